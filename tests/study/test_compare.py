"""The diagnosis of an imbalance."""

from pathlib import Path
from typing import Any

from equipoise.study.compare import diagnose
from equipoise.study.job import Job


def test_diagnosis_rests_on_the_probe(whole: tuple[list[Job], list[dict[str, Any]], Path]) -> None:
    _, (joint, alone), _ = whole
    found = diagnose([joint], [alone])
    assert found.answer == "unclear"
    assert all(gap.as_dict()["low"] is None and gap.alone == alone["test"]["probe"][gap.modality] for gap in found.gaps)

    def rows(*values: float) -> list[dict[str, Any]]:
        return [{"test": {"probe": {"easy": 0.9, "hard": value}}} for value in values]

    assert diagnose(rows(0.4, 0.41, 0.42), rows(0.6, 0.6, 0.63)).answer == "yes"
    assert diagnose(rows(0.6, 0.61, 0.6), rows(0.6, 0.605, 0.6)).answer == "no"
    assert diagnose(rows(0.3, 0.9), rows(0.9, 0.3)).answer == "unclear"
    yes = diagnose(rows(0.4, 0.41, 0.42), rows(0.6, 0.6, 0.63))
    assert "hard" in yes.advice
    low, high = yes.gaps[1].low, yes.gaps[1].high
    assert low < yes.gaps[1].difference < high


def test_an_error_that_grows_is_lost() -> None:
    def rows(*values: float) -> list[dict[str, Any]]:
        return [{"metric": "mae", "test": {"probe": {"easy": 4.0, "hard": value}}} for value in values]

    found = diagnose(rows(9.0, 9.2, 8.9), rows(6.0, 6.1, 6.2))
    assert (found.answer, "hard" in found.advice) == ("yes", True)
    assert 0 < found.gaps[1].low < found.gaps[1].difference < found.gaps[1].high
    assert diagnose(rows(6.1, 6.15, 6.1), rows(6.0, 6.1, 6.05)).answer == "no"  # less than a twentieth
    assert diagnose(rows(6.0, 6.1, 6.2), rows(9.0, 9.2, 8.9)).answer == "no"
