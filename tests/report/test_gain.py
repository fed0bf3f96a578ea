"""The first sentence of a page: what the shipped answer gains, by what the paired intervals allow."""

from pathlib import Path
from typing import Any

import pytest

from equipoise.report import aggregate, read, write_page
from equipoise.report.gain import gain
from report.example import make_row, write_study

NOISE = (-0.01, 0.0, 0.01)


def rows_of(
    label: str, fused: float, committee: float | None, faults: float, seeds: int = 3, spread: float = 1.0
) -> list[dict[str, Any]]:
    """Runs whose numbers are these, give or take a point: those of the methods compared with the other way round."""
    rows = []
    for seed, up in zip(range(seeds), NOISE, strict=False):
        noise = spread * (up if label in ("msl", "instant") else -up)
        row = make_row("mimo", seed) | {"label": label, "method": label, "config": f"sha256:{label}{seed}"}
        numbers = {"fused": fused + noise, "committee": None if committee is None else committee + noise}
        mean = {"fused": faults + noise, "committee": None if committee is None else faults + 0.1 + noise}
        row["validation"] = numbers
        row["test"] = {**numbers, "faults": {"mean": mean}}
        rows.append(row)
    return rows


def sentences(*lines: list[dict[str, Any]]) -> tuple[str, str] | None:
    return gain(aggregate([row for line in lines for row in line]))


def test_it_is_ahead_of_both_with_and_without_faults() -> None:
    found = sentences(
        rows_of("msl", 0.80, 0.81, 0.5), rows_of("instant", 0.82, 0.83, 0.6), rows_of("mimo", 0.85, 0.90, 0.7)
    )
    assert found is not None
    assert found[0] == (
        "The answer that is shipped is clearly better than joint training and the closed-form model, with all sensors "
        "and under sensor faults."
    )
    assert found[1].startswith(
        "It is the committee decision of mimo, first on validation data: 90.0 % with all sensors"
    )
    # Differences of 0.09 + 0.02, 0.09 and 0.09 − 0.02; t of two degrees of freedom is 4.303: ± 4.303 · 0.02 / √3.
    assert "(+9.0 points to joint training, 95 % interval +4.0 to +14.0 over 3 seeds; +7.0 points to the" in found[1]


def test_verdicts_that_differ_are_told_apart() -> None:
    found = sentences(
        rows_of("msl", 0.80, 0.81, 0.9), rows_of("instant", 0.83, 0.89, 0.6), rows_of("mimo", 0.85, 0.90, 0.7)
    )
    assert found is not None
    assert found[0] == (
        "The answer that is shipped is clearly better than joint training and not clearly different from the "
        "closed-form model, with all sensors; clearly worse than joint training and clearly better than the "
        "closed-form model, under sensor faults."
    )


def test_the_sentence_is_the_same_where_numbers_move_a_little() -> None:
    found = [
        sentences(
            rows_of("msl", 0.80 + by, 0.81, 0.5),
            rows_of("instant", 0.82, 0.8, 0.6),
            rows_of("mimo", 0.9, 0.9 + by, 0.7),
        )
        for by in (-0.01, 0.0, 0.01)
    ]
    assert len({one[0] for one in found if one}) == 1
    assert len({one[1] for one in found if one}) == 3


def test_the_line_is_chosen_on_validation_data_alone() -> None:
    first, second = rows_of("ew", 0.7, 0.71, 0.6), rows_of("mimo", 0.9, 0.9, 0.7)
    for row in first:
        row["validation"] = {"fused": 0.99, "committee": 0.99}
    found = sentences(rows_of("msl", 0.8, 0.8, 0.5), first, second)
    assert found is not None
    assert "of ew, first on validation data: 71.0 % with all sensors" in found[1]
    assert "clearly worse than joint training, with all sensors" in found[0]


@pytest.mark.parametrize(("first", "base"), [("msl", "the closed-form model"), ("instant", "joint training")])
def test_what_is_shipped_is_not_compared_with_its_own_other_decision(first: str, base: str) -> None:
    """Its committee is ten points above its own fused decision, and 15 above the other method as that is shipped."""
    own, other = rows_of(first, 0.8, 0.9, 0.5), rows_of("ew", 0.7, 0.75, 0.5)
    assert sentences(own, other) is None
    named = [row | {"label": "other", "method": "instant" if first == "msl" else "msl"} for row in other]
    found = sentences(own, named)
    assert found is not None
    assert f"(+15.0 points to {base}, 95 % interval" in found[1]
    assert found[1].count("points to") == 2  # with all sensors, and under faults


@pytest.mark.parametrize("seeds", [1, 3])
def test_without_a_pair_or_an_interval_nothing_is_said(seeds: int) -> None:
    other = rows_of("ew" if seeds == 3 else "msl", 0.8, 0.8, 0.5, seeds)
    assert sentences(rows_of("mimo", 0.9, 0.9, 0.6, seeds), other) is None


def test_it_is_the_first_sentence_of_the_page(tmp_path: Path) -> None:
    folder = write_study(tmp_path, ["msl", "ew", "mimo"], epochs=2)
    found = gain(read(folder).groups["watch"])
    assert found is not None
    page = write_page(folder).read_text(encoding="utf-8")
    assert page.partition("</h2>")[2].startswith(f"<p>{found[0]}</p>")


def test_less_than_two_points_is_not_clear() -> None:
    found = sentences(rows_of("msl", 0.80, None, 0.5, spread=0.1), rows_of("mimo", 0.815, None, 0.53, spread=0.1))
    assert found is not None
    assert found[0] == (
        "The answer that is shipped is not clearly different from joint training, with all sensors; clearly better "
        "than joint training, under sensor faults."
    )
