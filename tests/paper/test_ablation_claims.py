"""What an ablation makes of its numbers: differences, verdicts on the paper's claims, the choice on validation."""

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from equipoise.paper import ablation, ablation_report
from equipoise.paper.ablation import AblationResult, Point, Sweep, sweep_of
from equipoise.paper.ablation_report import FAILS, MARGIN, change, claims, draw, shape, stays
from equipoise.paper.claims import Change
from equipoise.report.aggregate import RunGroup
from equipoise.study.registry import Entry


def row(label: str, seed: int, test: float, validation: float) -> dict[str, Any]:
    def part(fused: float) -> dict[str, Any]:
        return {"fused": fused, "fused_loss": 1.0, "view": "head", "head": {"a": fused / 2, "b": fused / 4}}

    return {
        "label": label, "method": "mimo", "config": f"{label} {seed}", "fold": None, "seed": seed, "split": "same",
        "test": part(test), "validation": part(validation), "params": {}, "run": {},
    }  # fmt: skip


def point(label: str, tests: Sequence[float], validation: float = 0.5, failed: int = 0) -> Point:
    rows = tuple(row(label, seed, test, validation) for seed, test in enumerate(tests))
    return Point(RunGroup(label, rows), failed, 0.01)


def outcome(
    sweep: Sweep, tests: Mapping[str, Sequence[float]], validation: Mapping[str, float] | None = None
) -> AblationResult:
    points = {
        entry.label: point(
            entry.label, tests[entry.label], (validation or {}).get(entry.label, 0.5), not tests[entry.label]
        )
        for entry in sweep.points
    }
    return AblationResult(sweep, "made up", "two halves", 3, 0, points)


PENALTIES = sweep_of("mimo", ["penalty=1,10,100"], divided=True)
LOW, MIDDLE, HIGH = [0.60, 0.61, 0.62], [0.80, 0.81, 0.82], [0.805, 0.811, 0.823]
AS_PAPER = {"penalty=1": LOW, "mimo": MIDDLE, "penalty=100": HIGH}
DIVIDED = {"penalty=1 lr=0.005": LOW, "lr=0.000909091": MIDDLE, "penalty=100 lr=9.90099e-05": MIDDLE}


def test_a_change_is_the_mean_of_paired_differences_with_students_interval() -> None:
    # differences 0.10, 0.12, 0.14: mean 0.12, deviation 0.02, t(0.975; 2) = 4.3027
    found = change(point("before", [0.5, 0.6, 0.4]), point("after", [0.6, 0.72, 0.54]))
    assert found is not None
    half = 4.302653 * 0.02 / math.sqrt(3)
    assert found == pytest.approx((0.12, 0.12 - half, 0.12 + half), abs=1e-6)


def test_one_run_bounds_nothing_and_runs_that_fail_are_a_fall() -> None:
    one = change(point("before", [0.5]), point("after", [0.9]))
    assert one is not None
    assert (one.low, one.high) == (-math.inf, math.inf)
    assert one.above(0, MARGIN) == stays(one) == "open"
    assert "no interval" in one.points()
    assert change(point("before", [0.5]), point("after", [], failed=1)) == FAILS
    assert FAILS.points() == "runs fail"
    assert change(point("before", [], failed=1), point("after", [0.5])) is None


@pytest.mark.parametrize(
    ("low", "high", "up", "flat"),
    [
        (0.001, 0.015, "agrees", "agrees"),  # surely up, and surely by less than two points
        (0.03, 0.09, "agrees", "differs"),
        (-0.01, 0.01, "differs", "agrees"),
        (-0.09, -0.03, "differs", "differs"),
        (-0.05, 0.05, "open", "open"),
        (-0.05, 0.01, "differs", "open"),
        (0.01, 0.05, "agrees", "open"),
    ],
)
def test_verdicts(low: float, high: float, up: str, flat: str) -> None:
    found = Change((low + high) / 2, low, high)
    assert found.above(0, MARGIN) == up
    assert stays(found) == flat


def test_the_papers_shape_is_recognised() -> None:
    found = claims(outcome(PENALTIES, {**AS_PAPER, **DIVIDED}))
    assert [claim.verdict for claim in found] == ["agrees", "agrees", "open", "agrees", "agrees"]
    assert found[0].measured.startswith("61.0 % at 1 and 81.0 % at 10: +20.0 points")
    assert "no clear loss up to λ = 100" in found[2].measured
    assert shape(found).startswith("The paper's shape is reproduced here")


def test_a_fall_from_too_large_a_step_is_found_and_so_is_its_repair() -> None:
    fallen = {**AS_PAPER, **DIVIDED, "penalty=100": [0.30, 0.31, 0.29]}
    found = claims(outcome(PENALTIES, fallen))
    assert [claim.verdict for claim in found] == ["agrees", "differs", "agrees", "agrees", "agrees"]
    assert "divided, 81.0 %" in found[2].measured
    assert shape(found).startswith("The paper's shape is not reproduced here")

    not_repaired = {**fallen, "penalty=100 lr=9.90099e-05": [0.50, 0.51, 0.49]}
    assert [claim.verdict for claim in claims(outcome(PENALTIES, not_repaired))] == [
        "agrees",
        "differs",
        "differs",
        "agrees",
        "differs",
    ]

    diverged = claims(outcome(PENALTIES, {**fallen, "penalty=100": []}))
    assert [claim.verdict for claim in diverged] == ["agrees", "differs", "agrees", "agrees", "agrees"]
    assert "runs fail" in diverged[2].measured

    without = claims(outcome(sweep_of("mimo", ["penalty=1,10,100"]), fallen))
    assert without[2].verdict == "open"
    assert "--scaled-rate would tell" in without[2].measured


@pytest.mark.parametrize(
    ("large", "verdict"), [(LOW, "agrees"), (HIGH, "differs"), (MIDDLE, "differs"), ([0.5, 0.99, 0.7], "open")]
)
def test_a_large_smoothing_should_degrade(large: list[float], verdict: str) -> None:
    sweep = sweep_of("mimo", ["smoothing=0.01,0.1,1"])
    (found,) = claims(outcome(sweep, {"smoothing=0.01": MIDDLE, "mimo": MIDDLE, "smoothing=1": large}))
    assert found.verdict == verdict


def test_a_smoothing_beyond_the_papers_grid_is_judged_apart() -> None:
    sweep = sweep_of("mimo", ["smoothing=0.01,1,10"])
    found = claims(outcome(sweep, {"smoothing=0.01": MIDDLE, "smoothing=1": HIGH, "smoothing=10": LOW}))
    assert [(claim.where, claim.verdict) for claim in found] == [
        ("Figure 3, μ", "differs"), ("control to Figure 3", "agrees"),
    ]  # fmt: skip
    assert "81.0 % at 0.01 and 61.0 % at 10" in found[1].measured
    assert shape(found).startswith("The paper's shape is not reproduced here"), "controls do not count"


def test_the_paper_says_nothing_of_other_methods() -> None:
    sweep = sweep_of("ew", ["weight=1,2"])
    found = outcome(sweep, {"ew": LOW, "weight=2": HIGH})
    assert claims(found) == []
    assert "paper" not in ablation_report.text(found)


def test_validation_chooses_and_not_the_test() -> None:
    chosen = {"penalty=1": 0.9, "mimo": 0.7, "penalty=100": 0.9}
    found = outcome(PENALTIES, {**AS_PAPER, **DIVIDED}, chosen)
    assert found.chosen(PENALTIES.curves[0]) == 1.0, "the first of equals"
    text = ablation_report.text(found)
    assert (
        "Validation chooses 1, 61.0 % on test; the best on test, which nobody may choose by, is 100 with 81.3 %" in text
    )
    assert "(protocol: head)" in text

    diverged = outcome(PENALTIES, {**AS_PAPER, **DIVIDED, "penalty=1": []}, chosen)
    assert diverged.chosen(PENALTIES.curves[0]) == 100.0, "what diverged is never chosen"


def test_words_and_numbers_tell_the_same() -> None:
    found = outcome(PENALTIES, {**AS_PAPER, **DIVIDED})
    content, text = ablation_report.as_dict(found), ablation_report.text(found)
    first = content["curves"][0]["points"][1]
    assert first["test"]["fused"] == {"mean": pytest.approx(0.81), "deviation": pytest.approx(0.01), "count": 3}
    assert first["test"]["alone"]["a"]["mean"] == pytest.approx(0.405)
    assert "81.0 ± 1.0" in text
    assert "40.5 ± 0.5" in text
    assert text.count("\nagrees ") + text.count("\ndiffers ") + text.count("\nopen ") == len(content["claims"])
    json.dumps(content, allow_nan=False)


def test_a_run_whose_loss_is_no_number_has_failed() -> None:
    sweep = sweep_of("mimo", ["penalty=1,10"])
    rows = [row(entry.label, 0, 0.3, 0.3) for entry in sweep.points]
    rows[1]["validation"]["fused_loss"] = None
    jobs: Any = [_Asked(entry, rows[at]["config"]) for at, entry in enumerate(sweep.points)]
    found = ablation.points_of(sweep, jobs, [*rows, row("penalty=1", 7, 0.9, 0.9)])
    assert {label: (len(each.line.rows), each.failed) for label, each in found.items()} == {
        "penalty=1": (1, 0), "mimo": (0, 1),
    }  # fmt: skip


class _Asked:
    def __init__(self, entry: Entry, config: str) -> None:
        self.entry, self.config = entry, config


@pytest.mark.slow
def test_a_figure_drawn_again_is_the_same_file(tmp_path: Path) -> None:
    found = outcome(PENALTIES, {**AS_PAPER, **DIVIDED, "penalty=100": []})
    first, second = (draw(found, tmp_path / name, "Made by hand.") for name in ("one", "two"))
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in second]
    picture = first[0].read_text(encoding="utf-8")
    assert "A point is left out where a run failed" in picture
