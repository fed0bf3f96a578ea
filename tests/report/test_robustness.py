"""Curves over learning rates and sizes: areas and choices worked out by hand, divergence, signs, tables, the figure."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from equipoise.models.metrics import METRICS
from equipoise.report import render
from equipoise.report.robustness import (
    areas,
    at_chosen,
    chosen,
    counted,
    draw_robustness,
    robustness_as_dict,
    robustness_tables,
)
from equipoise.study.robustness import Axis, CurveRun, MethodCurve


def run(
    test: float | None,
    validation: float | None = None,
    *,
    fold: int | None = None,
    seed: int = 0,
    constant: float = 0.2,
) -> CurveRun:
    """A run of fused alone, without a committee; None diverged."""
    row = {"test": {"fused": test}, "validation": {"fused": test if validation is None else validation}}
    return CurveRun(fold, seed, None if test is None else row, constant)


def curve(
    runs: dict[float, Any], metric: str = "accuracy", label: str = "msl", axis: Axis = "rate", data: str = "watch"
) -> MethodCurve:
    made = {at: own if isinstance(own, tuple) else (run(own),) for at, own in runs.items()}
    return MethodCurve(data, label, axis, made, dict.fromkeys(made, 100), 0.01, METRICS[metric])


def area(one: MethodCurve) -> float:
    (found,) = areas(one, "fused").values()
    return found


def test_the_area_is_the_mean_over_the_logarithm() -> None:
    assert area(curve({0.1: 0.4, 1.0: 0.8, 10.0: 0.6})) == pytest.approx((0.6 + 0.7) / 2)
    # Steps of log10(3) and 1: 0.5 over the first and 0.75 over the second.
    step = math.log10(3)
    assert area(curve({1.0: 0.4, 3.0: 0.6, 30.0: 0.9})) == pytest.approx((step * 0.5 + 0.75) / (step + 1))


def test_the_area_is_that_of_numpy_and_that_of_a_constant_is_the_constant() -> None:
    random = np.random.default_rng(0)
    for _ in range(50):
        places = np.sort(np.exp(random.normal(size=random.integers(2, 8)) * 3))
        heights = random.uniform(0.2, 1, size=len(places))
        logs = np.log(places)
        expected = np.trapezoid(heights, logs) / (logs[-1] - logs[0])
        assert area(curve(dict(zip(places.tolist(), heights.tolist(), strict=True)))) == pytest.approx(expected)
        assert area(curve(dict.fromkeys(places.tolist(), 0.7))) == pytest.approx(0.7)


def test_a_run_that_diverged_or_ended_worse_counts_as_the_constant_answer() -> None:
    assert area(curve({1.0: 0.8, 10.0: None})) == pytest.approx((0.8 + 0.2) / 2)
    assert area(curve({1.0: 0.8, 10.0: 0.1})) == pytest.approx((0.8 + 0.2) / 2)
    nothing = {"fused": None}
    unknown = CurveRun(None, 0, {"test": nothing, "validation": nothing}, 0.2)
    assert counted(curve({1.0: 0.5, 2.0: 0.5}), unknown, "fused") == 0.2


def test_of_errors_the_larger_is_the_worse() -> None:
    errors = {1.0: (run(3.0, constant=5.0),), 10.0: (run(1e6, constant=5.0),), 100.0: (run(None, constant=5.0),)}
    one = curve(errors, "mae")
    assert area(one) == pytest.approx((4.0 + 5.0) / 2)
    assert chosen(one, "fused") == {None: 1.0}
    assert chosen(curve({1.0: 3.0, 10.0: 2.5}, "mae"), "fused") == {None: 10.0}
    assert chosen(curve({1.0: 3.0, 10.0: 2.5}), "fused") == {None: 1.0}


def test_validation_chooses_and_the_test_part_tells() -> None:
    one = curve({0.1: (run(0.9, 0.5),), 1.0: (run(0.4, 0.8),), 10.0: (run(0.7, 0.6),)})
    assert chosen(one, "fused") == {None: 1.0}
    assert at_chosen(one, "fused") == {(None, 0, None): 0.4}


def test_the_rate_is_chosen_in_each_fold_by_the_mean_over_its_seeds() -> None:
    runs = {
        1.0: tuple(run(0.5, v, fold=f, seed=s) for f, s, v in ((0, 0, 0.9), (0, 1, 0.1), (1, 0, 0.7), (1, 1, 0.7))),
        3.0: tuple(run(0.6, v, fold=f, seed=s) for f, s, v in ((0, 0, 0.6), (0, 1, 0.6), (1, 0, 0.6), (1, 1, 0.6))),
    }
    one = curve(runs)
    assert chosen(one, "fused") == {0: 3.0, 1: 1.0}
    assert at_chosen(one, "fused") == {(0, 0, None): 0.6, (0, 1, None): 0.6, (1, 0, None): 0.5, (1, 1, None): 0.5}


def test_a_rate_at_which_a_run_diverged_is_chosen_last_and_of_equals_the_nearest_to_one() -> None:
    runs = {1.0: (run(0.5), run(0.5, seed=1)), 10.0: (run(0.9), run(None, seed=1))}
    assert chosen(curve(runs), "fused") == {None: 1.0}
    assert chosen(curve({0.1: 0.5, 0.3: 0.5, 10.0: 0.5}), "fused") == {None: 0.3}
    lost = curve({0.1: None, 1.0: None, 10.0: None})
    assert chosen(lost, "fused") == {None: 1.0}
    assert at_chosen(lost, "fused") == {(None, 0, None): 0.2}


def test_intervals_are_over_folds_with_seeds_averaged_and_shares_stay_shares() -> None:
    values = {(0, 0): 0.8, (0, 1): 0.6, (1, 0): 0.9, (1, 1): 0.9, (2, 0): 0.5, (2, 1): 0.7}
    runs = tuple(run(value, fold=fold, seed=seed) for (fold, seed), value in values.items())
    (content,) = robustness_as_dict([curve({1.0: runs, 10.0: runs})])["curves"]
    from scipy import stats

    folds = [0.7, 0.9, 0.6]
    low, high = stats.t.interval(0.95, 2, loc=np.mean(folds), scale=stats.sem(folds))
    assert content["area"] == {
        "mean": pytest.approx(np.mean(folds)), "low": pytest.approx(low), "high": pytest.approx(min(high, 1.0)),
        "count": 3, "over": "folds",
    }  # fmt: skip
    assert high > 1  # so that the end is one that no share has


def study() -> list[MethodCurve]:
    """Two methods, one of which has a committee and faults, on two data sets."""

    def whole(test: float, seed: int) -> CurveRun:
        numbers = {"fused": test, "committee": test + 0.05}
        row = {"test": {**numbers, "faults": {"mean": {"fused": test - 0.1, "committee": test}}}, "validation": numbers}
        return CurveRun(None, seed, {**row, "task": "classes"}, 0.2)

    curves = []
    for data in ("watch", "room"):
        rates = {at: tuple(whole(0.5 + 0.1 * at, seed) for seed in range(2)) for at in (1.0, 3.0)}
        curves.append(curve(rates, label="mimo", data=data))
        curves.append(curve({1.0: (run(0.9), run(0.8, seed=1)), 3.0: (run(None), run(0.1, seed=1))}, data=data))
        curves.append(curve({0.1: 0.3, 1.0: 0.6}, label="mimo", axis="size", data=data))
    return curves


def test_a_table_for_each_data_set_axis_and_decision() -> None:
    tables = robustness_tables(study())
    assert list(tables) == [
        f"{data}, {what}"
        for data in ("watch", "room")
        for what in (
            "fused over learning rates",
            "committee over learning rates",
            "fused over sizes of the training set",
        )
    ]
    rates = tables["watch, fused over learning rates"]
    assert [column.key for column in rates.columns] == ["rate.1", "rate.3", "area", "area.faults", "best", "chosen"]
    assert rates.labels == ("mimo", "msl")  # 70 and 52.5
    assert [rates.at("msl", key).main for key in ("rate.1", "rate.3", "area", "best", "chosen")] == [
        "85.0", "20.0", "52.5", "85.0", "× 1",
    ]  # fmt: skip
    assert rates.at("mimo", "area.faults").main == "60.0"
    assert rates.at("msl", "area.faults").value is None
    assert rates.at("mimo", "chosen").main == "× 3"
    assert rates.at("mimo", "area").best
    assert rates.columns[0].heading == "lr 0.01 (× 1)"
    assert any("There were: msl × 3 (1 of 2 diverged, 1 of 2 worse)." in note for note in rates.notes)
    sizes = tables["room, fused over sizes of the training set"]
    assert [column.key for column in sizes.columns] == ["size.0.1", "size.1", "area"]
    assert sizes.at("mimo", "area").main == "45.0"
    assert "±" in rates.notes[0]
    assert "±" not in sizes.notes[0], "of one run there is no deviation"
    for form in ("markdown", "latex", "csv", "json"):
        assert "mimo" in render(form, tables)


def test_errors_are_ordered_with_the_lowest_first() -> None:
    def of(*values: float) -> dict[float, Any]:
        return {at: (run(value, constant=9.0),) for at, value in zip((1.0, 3.0), values, strict=True)}

    lines = [curve(of(4.0, 5.0), "mae", "a"), curve(of(2.0, 3.0), "mae", "b")]
    (table,) = robustness_tables(lines).values()
    assert table.labels == ("b", "a")
    assert table.at("b", "area").best
    assert "mean absolute error" in table.title
    assert "lower is better" in table.title


def test_the_content_is_json_and_counts_what_was_lost() -> None:
    content = json.loads(json.dumps(robustness_as_dict(study()), allow_nan=False))["curves"]
    msl = next(one for one in content if (one["method"], one["data"]) == ("msl", "room"))
    assert [(point["at"], point["lr"], point["diverged"], point["worse"]) for point in msl["points"]] == [
        (1.0, 0.01, 0, 0), (3.0, 0.03, 1, 1),
    ]  # fmt: skip
    assert msl["chosen"] == [{"fold": None, "at": 1.0}]
    assert msl["area_under_faults"] is None
    assert {one["decision"] for one in content if one["method"] == "mimo"} == {"fused", "committee"}
    assert all("best" not in one for one in content if one["axis"] == "size")


def test_the_figure_has_a_panel_for_each_data_set_and_decision(tmp_path: Path) -> None:
    paths = draw_robustness(study(), tmp_path, "Made by hand.")
    assert [path.name for path in paths] == [
        f"robustness-{axis}.{ending}" for axis in ("rates", "sizes") for ending in ("svg", "png")
    ]
    again = draw_robustness(study(), tmp_path / "again", "Made by hand.")
    assert [path.read_bytes() for path in paths] == [path.read_bytes() for path in again]
    assert "Made by hand." in paths[0].read_text("utf-8")


def test_a_panel_shows_the_means(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from equipoise.report import drawing

    figures: list[Any] = []
    monkeypatch.setattr(drawing, "save", lambda figure, *_: figures.append(figure) or [])
    draw_robustness([one for one in study() if one.axis == "rate"], tmp_path, "")
    fused, _, committee, _ = figures[0].axes
    assert (fused.get_title(loc="left"), fused.get_xscale(), fused.get_ylabel()) == (
        "watch",
        "log",
        "fused accuracy (%)",
    )
    lines = [container.lines[0] for container in fused.containers]
    assert [line.get_ydata().tolist() for line in lines] == [pytest.approx([60, 80]), pytest.approx([85, 20])]
    assert [line.get_xdata().tolist() for line in lines] == [[1, 3], [1, 3]]
    assert len(committee.containers) == 1
    (legend,) = figures[0].legends
    assert [text.get_text() for text in legend.get_texts()] == ["mimo", "msl", "reads no sensor"]
