"""Means, deviations and paired intervals, against numbers worked by hand."""

import math
from typing import Any

import pytest

from equipoise.report import MeanStd, aggregate, paired_differences
from equipoise.report.differences import compared_with
from equipoise.report.notes import answer, caution
from equipoise.report.table import main_table


def row(label: str, fused: float | None, seed: int = 0, fold: int | None = None, **more: Any) -> dict[str, Any]:
    test = {"fused": fused, **more.pop("test", {})}
    return {"label": label, "method": label, "seed": seed, "fold": fold, "split": f"split {fold}", "test": test, **more}


# -- aggregation --


def test_mean_and_sample_deviation() -> None:
    (line,) = aggregate([row("msl", value, seed) for seed, value in enumerate((0.7, 0.8, 0.9))])
    assert line.fused is not None
    assert (line.fused.mean, line.fused.deviation, line.fused.count) == (pytest.approx(0.8), pytest.approx(0.1), 3)


def test_a_single_run_has_no_deviation() -> None:
    (line,) = aggregate([row("msl", 0.75)])
    assert line.fused == MeanStd(0.75, None, 1)


def test_every_measure_of_a_line() -> None:
    test = {
        "committee": 0.8, "split": {"a": 0.6, "b": 0.5}, "probe": {"a": 0.9, "b": 0.9}, "disparity": 0.1,
        "faults": {"mean": {"fused": 0.4}},
    }  # fmt: skip
    (line,) = aggregate([row("ogmge", 0.7, test=test, seconds={"step": 0.004})])
    assert line.protocol == "split"
    assert line.alone == {"a": MeanStd(0.6, None, 1), "b": MeanStd(0.5, None, 1)}
    assert (line.committee, line.disparity) == (MeanStd(0.8, None, 1), MeanStd(0.1, None, 1))
    assert (line.faults, line.step) == (MeanStd(0.4, None, 1), MeanStd(0.004, None, 1))


def test_the_protocol_a_row_names_is_its_own() -> None:
    test = {"view": "split", "head": {"a": 0.6}, "split": {"a": 0.5}}
    (line,) = aggregate([row("ogmge", 0.7, test=test)])
    assert line.alone == {"a": MeanStd(0.5, None, 1)}


@pytest.mark.parametrize("value", [None, "0.5", True, math.nan, math.inf, {}])
def test_what_is_no_number_is_missing(value: Any) -> None:
    (line,) = aggregate([row("msl", value)])
    assert line.fused is None
    assert line.committee is None
    assert line.alone == {}


def test_lines_do_not_depend_on_which_run_finished_first() -> None:
    rows = [row(label, value + seed / 7, seed) for label, value in (("a", 0.1), ("b", 0.3)) for seed in range(5)]
    assert [line.label for line in aggregate(rows)] == ["b", "a"]
    assert aggregate(rows) == aggregate(rows[::-1])


def test_lines_without_a_fused_prediction_are_last() -> None:
    assert [line.label for line in aggregate([row("unimodal", None), row("msl", 0.1)])] == ["msl", "unimodal"]


def test_a_changed_setting_never_mixes_with_old_runs() -> None:
    rows = [row("msl", 0.5, seed, run={"epochs": 5, "lr": 0.1}) for seed in range(2)]
    rows += [row("msl", 0.7, seed, run={"epochs": 30, "lr": 0.1}) for seed in range(2)]
    assert [line.label for line in aggregate(rows)] == ["msl (epochs=30)", "msl (epochs=5)"]


def test_the_fixed_cut_and_folds_and_changed_data_never_mix() -> None:
    fixed = [row("msl", 0.5, seed) for seed in range(2)]
    folds = [row("msl", 0.7, fold=fold) for fold in range(3)]
    changed = [row("msl", 0.9, seed, split="sha256:0123456789abcdef") for seed in range(2)]
    again = [row("msl", 0.3, fold=fold, split=f"other {fold}") for fold in range(3)]
    other = [row("mimo", 0.6, seed) for seed in range(2)]
    found = {line.label: line.fused for line in aggregate([*fixed, *folds, *changed, *again, *other])}
    assert {label: (round(each.mean, 9), each.count) for label, each in found.items() if each} == {
        "msl (split split None)": (0.5, 2),
        "msl (folds)": (0.7, 3),
        "msl (split 0123456789ab)": (0.9, 2),
        "msl (folds of version 2)": (0.3, 3),
        "mimo (split split None)": (0.6, 2),
    }
    gains = {each.label: (each.baseline, each.mean) for each in paired_differences([*changed, *folds, *fixed, *other])}
    assert gains == {"mimo (split split None)": ("msl (split split None)", pytest.approx(0.1))}
    assert [line.label for line in aggregate([*folds, *(row("mimo", 0.1, fold=fold) for fold in range(3))])] == [
        "msl",
        "mimo",
    ]


def test_tuning_in_each_fold_stays_one_line() -> None:
    rows = [row("mimo", 0.5, fold=fold, params={"penalty": 10.0**fold}) for fold in range(3)]
    assert [line.label for line in aggregate(rows)] == ["mimo"]


# -- paired differences --


def test_an_interval_over_seeds() -> None:
    # Differences 0.01, 0.02, 0.03: mean 0.02, deviation 0.01, half width 4.3027 · 0.01 / √3 = 0.024841.
    rows = [row("msl", 0.7, seed) for seed in range(3)] + [row("mimo", 0.71 + seed / 100, seed) for seed in range(3)]
    (difference,) = paired_differences(rows)
    assert (difference.label, difference.baseline, difference.pairs, difference.over) == ("mimo", "msl", 3, "seeds")
    assert difference.mean == pytest.approx(0.02)
    assert difference.low == pytest.approx(0.02 - 0.024841, abs=1e-6)
    assert difference.high == pytest.approx(0.02 + 0.024841, abs=1e-6)
    assert difference.verdict == "no clear difference"


def test_an_interval_over_folds_averages_the_seeds_of_a_fold_first() -> None:
    # Two seeds in fold 0 (0.01, 0.03), one in fold 1 (0.04): units 0.02 and 0.04, mean 0.03, deviation 0.014142,
    # half width 12.7062 · 0.014142 / √2 = 0.127062.
    rows = [row("msl", 0.5, 0, 0), row("msl", 0.5, 1, 0), row("msl", 0.6, 0, 1)]
    rows += [row("mimo", 0.51, 0, 0), row("mimo", 0.53, 1, 0), row("mimo", 0.64, 0, 1)]
    (difference,) = paired_differences(rows)
    assert (difference.pairs, difference.over) == (2, "folds")
    assert difference.mean == pytest.approx(0.03)
    assert difference.low == pytest.approx(0.03 - 0.127062, abs=1e-6)


def test_one_fold_with_several_seeds_is_over_seeds() -> None:
    rows = [row(label, value + seed / 50, seed, 4) for label, value in (("msl", 0.5), ("mimo", 0.6)) for seed in (0, 1)]
    (difference,) = paired_differences(rows)
    assert (difference.pairs, difference.over) == (2, "seeds")


def test_one_pair_has_no_interval() -> None:
    (difference,) = paired_differences([row("msl", 0.5), row("mimo", 0.6)])
    assert (difference.low, difference.high, difference.verdict) == (None, None, "too few to tell")


def test_only_runs_on_the_same_split_are_pairs() -> None:
    assert paired_differences([row("msl", 0.5), {**row("mimo", 0.6), "split": "another"}]) == []
    assert paired_differences([row("msl", 0.5, seed=0), row("mimo", 0.6, seed=1)]) == []


def test_without_the_baseline_there_are_no_differences() -> None:
    assert paired_differences([row("ew", 0.5), row("mimo", 0.6)]) == []


def test_a_baseline_that_was_run_in_two_ways_is_compared_in_the_nearest() -> None:
    rows = [
        row("msl", 0.5, run={"epochs": 5}),
        row("msl", 0.7, run={"epochs": 30}),
        row("mimo", 0.71, run={"epochs": 30}),
    ]
    (difference,) = paired_differences(rows)
    assert difference.baseline == "msl (epochs=30)"
    assert difference.mean == pytest.approx(0.01)


def test_other_measures_are_paired_too() -> None:
    rows = [row("msl", 0.9, test={"committee": 0.5}), row("mimo", 0.1, test={"committee": 0.7})]
    (difference,) = paired_differences(rows, measure=("test", "committee"))
    assert difference.mean == pytest.approx(0.2)


# -- the answer in words --


def study(*gains: float) -> list[dict[str, Any]]:
    """Joint training, and a method that is better by each gain in turn."""
    rows = [row("msl", 0.5, seed) for seed in range(len(gains))]
    return rows + [row("mimo", 0.5 + gain, seed) for seed, gain in enumerate(gains)]


@pytest.mark.parametrize(
    ("gains", "words"),
    [
        ((0.05, 0.06, 0.05), "clearly better than joint training: mimo (+5.3 points, 95 % interval +3.9 to +6.8"),
        ((-0.05, -0.06, -0.05), "none is clearly better than joint training; clearly worse: mimo."),
        ((0.05, -0.02, 0.01), "no clear difference: mimo (+1.3 points, 95 % interval −7.4 to +10.1 over 3 seeds"),
        ((0.05,), "too few runs or groups to compare with joint training: mimo (+5.0 points)."),
    ],
)
def test_the_answer_claims_what_the_interval_allows(gains: tuple[float, ...], words: str) -> None:
    rows = study(*gains)
    assert words in answer(aggregate(rows), paired_differences(rows), "msl", "fused accuracy")


def test_the_answer_without_joint_training() -> None:
    rows = [row("mimo", 0.6)]
    said = answer(aggregate(rows), paired_differences(rows), "msl", "fused accuracy")
    assert said == "The answer that is shipped, the fused decision of mimo, reaches 60.0 % accuracy on the test part."
    several = [*rows, row("ew", 0.5, test={"committee": 0.7, "baseline": 0.25})]
    said = answer(aggregate(several), paired_differences(several), "msl", "fused accuracy")
    assert said == (
        "First on the test part is the committee decision of ew: it reaches 70.0 % accuracy on the test part; majority "
        "class, which reads no sensor, 25.0 %. Joint training (msl) was not run beside these methods, so none can be "
        "said to beat it."
    )


def test_of_several_the_most_is_named() -> None:
    rows = [*study(0.05, 0.06, 0.05), *(row("ew", 0.5 + gain, seed) for seed, gain in enumerate((0.02, 0.03, 0.02)))]
    assert "better than joint training: mimo, ew (most: mimo +5.3 points" in answer(
        aggregate(rows), paired_differences(rows), "msl", "fused accuracy"
    )


def test_a_baseline_by_another_label_is_called_by_it() -> None:
    rows = [row("msl + dropout", 0.5, seed, method="msl") for seed in range(2)]
    rows += [row("mimo", 0.6, seed) for seed in range(2)]
    assert compared_with(paired_differences(rows), "msl") == "msl + dropout"
    table = main_table(rows, "watch")
    assert [column.title for column in table.columns if column.key == "difference"] == ["vs msl + dropout"]
    assert compared_with(paired_differences(study(0.1)), "msl") == compared_with([], "msl") == "msl"


def test_intervals_over_seeds_come_with_a_caution() -> None:
    assert "this one split" in caution(paired_differences(study(0.1, 0.2)))
    assert caution(paired_differences(study(0.1))) == ""
