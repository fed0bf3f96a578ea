"""Mean ranks over data sets: ties, signs of metrics, the tests of Demšar (2006), and the diagram."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from equipoise import report
from equipoise.report import Results, drawing, mean_ranks
from equipoise.report.rank_diagram import rank_diagram
from equipoise.report.ranking import MEASURES, critical_difference, ranks_table
from equipoise.util.errors import BadInput
from report.example import make_row, write_study


def row(label: str, data: str, fused: float | None, metric: str = "accuracy", seed: int = 0, **more: Any) -> Any:
    made = {**make_row(label, seed, data=data), "metric": metric, "test": {"fused": fused, **more}, "validation": {}}
    made["task"] = "regression" if metric in ("mae", "rmse", "r2") else "classes"
    return {**made, "config": f"{label} {data} {metric} {seed}"}


def study(numbers: dict[str, dict[str, float]], metric: str = "accuracy") -> Results:
    """A study of methods × data sets."""
    return Results(Path("x"), [row(m, d, v, metric) for m, own in numbers.items() for d, v in own.items()], {})


# Table 6 of Demšar (2006): AUC of C4.5, with m, with cf, and with both, on 14 data sets; 0.9751 where its ranks
# tell apart what its three digits do not.
DEMSAR = np.array(
    [
        [0.763, 0.768, 0.771, 0.798], [0.599, 0.591, 0.590, 0.569], [0.954, 0.971, 0.968, 0.967],
        [0.628, 0.661, 0.654, 0.657], [0.882, 0.888, 0.886, 0.898], [0.936, 0.931, 0.916, 0.931],
        [0.661, 0.668, 0.609, 0.685], [0.583, 0.583, 0.563, 0.625], [0.775, 0.838, 0.866, 0.875],
        [1.000, 1.000, 1.000, 1.000], [0.940, 0.962, 0.965, 0.962], [0.619, 0.666, 0.614, 0.669],
        [0.972, 0.981, 0.9751, 0.975], [0.957, 0.978, 0.946, 0.970],
    ]
)  # fmt: skip
NAMES = ("C4.5", "C4.5+m", "C4.5+cf", "C4.5+m+cf")


def demsar() -> Results:
    return study({name: {f"d{at:02}": value for at, value in enumerate(DEMSAR[:, k])} for k, name in enumerate(NAMES)})


def test_the_example_of_demsar() -> None:
    found = mean_ranks(demsar())
    assert found is not None
    assert {name: round(rank, 2) for name, rank in found.ranks.items()} == {
        "C4.5+m+cf": 1.96, "C4.5+m": 2.0, "C4.5+cf": 2.89, "C4.5": 3.14,
    }  # fmt: skip
    assert found.difference == pytest.approx(1.25, abs=0.005)
    ranks = np.array(list(found.ranks.values()))
    plain = 12 * 14 / (4 * 5) * ((ranks**2).sum() - 4 * 25 / 4)
    assert plain == pytest.approx(9.28, abs=0.005)  # as in the paper, which does not correct for ties
    ties = (4**3 - 4) + 3 * (2**3 - 2)
    assert found.statistic == pytest.approx(plain / (1 - ties / (14 * 4 * (4**2 - 1))))
    assert found.chance == pytest.approx(0.0167, abs=1e-4)
    assert found.alike == [("C4.5+m+cf", "C4.5+m", "C4.5+cf", "C4.5")]  # 3.14 - 1.96 is below 1.25


@pytest.mark.parametrize(("methods", "q"), [(2, 1.960), (3, 2.343), (4, 2.569), (5, 2.728), (10, 3.164)])
def test_the_critical_difference_is_that_of_the_table(methods: int, q: float) -> None:
    for data in (3, 14, 30):
        expected = q * (methods * (methods + 1) / (6 * data)) ** 0.5
        assert critical_difference(methods, data) == pytest.approx(expected, rel=5e-4)


def test_ties_share_ranks_and_errors_count_downwards() -> None:
    good = study({"a": {"x": 0.9, "y": 0.5}, "b": {"x": 0.9, "y": 0.7}, "c": {"x": 0.1, "y": 0.6}})
    found = mean_ranks(good)
    assert found is not None
    assert found.ranks == {"b": (1.5 + 1) / 2, "a": (1.5 + 3) / 2, "c": (3 + 2) / 2}
    errors = mean_ranks(Results(Path(), [{**one, "metric": "mae"} for one in good.rows], {}))
    assert errors is not None
    assert errors.ranks == {label: 4 - rank for label, rank in found.ranks.items()}
    mixed = [one if one["data"] == "x" else {**one, "metric": "rmse"} for one in good.rows]
    both = mean_ranks(Results(Path(), mixed, {}))
    assert both is not None
    assert both.ranks == {"a": (1.5 + 1) / 2, "b": (1.5 + 3) / 2, "c": (3 + 2) / 2}


def test_seeds_are_averaged_before_methods_are_ranked() -> None:
    rows = [row("a", data, value, seed=seed) for data in "xy" for seed, value in enumerate((0.9, 0.1))]
    rows += [row("b", data, 0.6, seed=seed) for data in "xy" for seed in range(2)]
    found = mean_ranks(Results(Path(), rows, {}))
    assert found is not None
    assert found.ranks == {"b": 1.0, "a": 2.0}
    assert (found.statistic, found.chance) == (None, None)  # two methods: nothing for Friedman
    assert found.difference == pytest.approx(1.960 / 2**0.5, abs=0.001)


def test_methods_that_are_not_everywhere_are_left_out_by_name() -> None:
    some = study({"a": {"x": 0.9, "y": 0.5}, "b": {"x": 0.8, "y": 0.7}, "only x": {"x": 1.0}})
    found = mean_ranks(some)
    assert found is not None
    assert (found.left_out, list(found.ranks)) == (("only x",), ["a", "b"])
    table = ranks_table(some)
    assert table is not None
    assert any("Left out, since not on every data set: only x." in note for note in table.notes)


def test_nothing_is_ranked_over_one_data_set_nor_over_one_method() -> None:
    assert mean_ranks(study({"a": {"x": 0.9}, "b": {"x": 0.5}})) is None
    assert mean_ranks(study({"a": {"x": 0.9, "y": 0.5}})) is None
    assert ranks_table(study({"a": {"x": 0.9}, "b": {"x": 0.5}})) is None
    twice = Results(Path(), [row(m, "x", 0.5, metric) for m in "ab" for metric in ("accuracy", "macro_f1")], {})
    assert len(twice.groups) == 2
    assert ranks_table(twice) is None, "one data set with two metrics counts once"


def test_all_equal_is_no_difference() -> None:
    found = mean_ranks(study({name: {"x": 0.5, "y": 0.7} for name in "abc"}))
    assert found is not None
    assert (set(found.ranks.values()), found.statistic, found.chance) == ({2.0}, 0.0, 1.0)
    assert found.alike == [("a", "b", "c")]


def test_groups_are_maximal_and_hold_all_that_is_near(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    for case in range(30):
        k, n = int(random.integers(3, 9)), int(random.integers(2, 40))
        lean = random.normal(size=(k, 1)) * random.choice([0, 1, 3])
        values = lean + random.normal(size=(k, n)).round(1)
        numbers = {f"m{at}": {f"d{d:02}": values[at, d] for d in range(n)} for at in range(k)}
        found = mean_ranks(Results(tmp_path, study(numbers).rows, {}))
        assert found is not None, case
        near = {
            (a, b)
            for a in found.ranks
            for b in found.ranks
            if a != b and abs(found.ranks[a] - found.ranks[b]) < found.difference
        }
        assert near == {(a, b) for group in found.alike for a in group for b in group if a != b}
        assert not any(set(a) < set(b) for a in found.alike for b in found.alike)


def test_the_table_holds_both_decisions_with_and_without_faults(tmp_path: Path) -> None:
    for data in ("watch", "room", "site"):
        write_study(tmp_path, data=data, seeds=2, epochs=1)
    results = report.read(tmp_path)
    table = ranks_table(results)
    assert table is not None
    keys = ["rank.shipped", "rank.fused", "rank.shipped.faults", "rank.fused.faults"]
    assert [column.key for column in table.columns] == keys
    for measure, key in zip(MEASURES, keys, strict=True):
        found = mean_ranks(results, measure)
        assert found is not None
        for label in table.labels:
            assert table.at(label, key).value == found.ranks.get(label)
    assert table.at(table.labels[0], "rank.shipped").best
    assert "over 3 data sets" in table.title
    assert any("With 3 data sets the tests are weak" in note for note in table.notes)
    text = report.write_page(results).read_text("utf-8")
    assert "Mean ranks over 3 data sets" in text


def test_the_command_prints_the_ranks_in_every_format(equipoise: Any, tmp_path: Path) -> None:
    for data in ("watch", "room"):
        write_study(tmp_path, data=data, seeds=1, epochs=1)
    assert "Mean ranks over 2 data sets" in equipoise("report", tmp_path).out
    assert "Mean ranks over 2 data sets" in equipoise("report", tmp_path, "--format", "markdown").out
    (first, *_) = json.loads(equipoise("report", tmp_path, "--ranks", "--json").out)
    assert set(first["data"]) == {"watch", "room"}
    assert equipoise("report", tmp_path, "--ranks", "--format", "csv").out.startswith("label,rank.shipped,")
    ended = equipoise("report", tmp_path, "--figure", "ranks", "--to", "svg")
    assert (ended.code, ended.out.strip()) == (0, str(tmp_path / "figures" / "ranks.svg"))
    alone = write_study(tmp_path / "one", seeds=1, epochs=1)
    for words in (["--ranks"], ["--figure", "ranks"]):
        code, printed, complaint = equipoise("report", alone, *words)
        assert (code, printed) == (2, "")
        assert "two data sets or more, found watch" in complaint


def test_the_diagram_places_methods_at_their_ranks_and_joins_those_that_do_not_differ() -> None:
    with drawing.style():
        (axes,) = rank_diagram(demsar()).axes
    found = mean_ranks(demsar())
    assert found is not None
    lines = [(np.asarray(line.get_xdata()).tolist(), line.get_linewidth()) for line in axes.lines]
    assert sorted(places[0] for places, _ in lines if len(places) == 3) == pytest.approx(sorted(found.ranks.values()))
    bars = [places for places, width in lines if width == 3]
    ends = [(found.ranks[group[0]], found.ranks[group[-1]]) for group in found.alike]
    assert [(bar[0] + 0.04, bar[1] - 0.04) for bar in bars] == [pytest.approx(end) for end in ends]
    words = " ".join(text.get_text() for text in axes.texts)
    assert all(name in words for name in NAMES)
    assert "critical difference 1.25" in words


def test_a_diagram_of_one_data_set_is_refused() -> None:
    with drawing.style(), pytest.raises(BadInput, match="two data sets or more, found x"):
        rank_diagram(study({"a": {"x": 0.9}, "b": {"x": 0.5}}))
