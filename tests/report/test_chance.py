"""Reports of studies in which some lines are one run and others many: pairs, intervals, tables, ranks and the page."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from equipoise.data.source import data_set
from equipoise.measure.bootstrap import bootstrap_interval
from equipoise.models.metrics import METRICS
from equipoise.models.task import Classification
from equipoise.report import (
    Results,
    aggregate,
    mean_ranks,
    overview,
    paired_differences,
    predictions,
    ranking,
    ranking_text,
    read,
    tables,
    write_page,
)
from equipoise.report import differences as module
from equipoise.report.differences import Difference, differences_between
from equipoise.report.gain import gain
from equipoise.report.intervals import SampledInterval
from equipoise.report.table import main_table
from equipoise.study.compare import compare
from equipoise.study.registry import entries
from report.example import make_row, write_study


def row(label: str, value: float, seed: int | None = 0, fold: int | None = None, **more: Any) -> dict[str, Any]:
    test = {"fused": value, **more.pop("test", {})}
    own = {"label": label, "method": label, "seed": seed, "fold": fold, "split": f"split {fold}", "test": test}
    return {"config": f"sha256:{label}{seed}{fold}", **own, **more}


# -- pairs --


def test_one_run_is_one_pair_with_the_mean_of_the_others_seeds() -> None:
    rows = [row("msl", value, seed) for seed, value in enumerate((0.70, 0.71, 0.75))] + [row("instant", 0.75, None)]
    rows += [row("ew", 0.72 + 0.01 * seed, seed) for seed in range(3)]
    by_label = {one.label: one for one in paired_differences(rows)}
    found = by_label["instant"]
    assert (found.mean, found.low, found.high, found.pairs) == (pytest.approx(0.03), None, None, 1)
    assert found.verdict == "too few to tell"
    assert (by_label["ew"].pairs, by_label["ew"].over) == (3, "seeds")
    turned = {one.label: one for one in paired_differences(rows, "instant")}
    assert turned["msl"].mean == pytest.approx(-0.03)
    assert turned["ew"].mean == pytest.approx(-0.02)
    assert {one.low for one in turned.values()} == {None}


def test_over_folds_one_run_meets_the_mean_of_each_fold() -> None:
    # Differences of 0.01, 0.02 and 0.03: mean 0.02, deviation 0.01, half width 4.302653 · 0.01 / √3 = 0.02484138.
    rows = [row("msl", 0.7 + (0.01 if seed else -0.01), seed, fold) for fold in range(3) for seed in range(2)]
    rows += [row("instant", 0.71 + 0.01 * fold, None, fold) for fold in range(3)]
    (found,) = paired_differences(rows)
    assert (found.pairs, found.over) == (3, "folds")
    assert (found.mean, found.low, found.high) == tuple(
        pytest.approx(end) for end in (0.02, 0.02 - 0.02484138, 0.02 + 0.02484138)
    )


def test_another_split_is_no_pair() -> None:
    assert paired_differences([row("msl", 0.7, 0), row("instant", 0.8, None, split="another")]) == []


@pytest.mark.parametrize("seeds", range(2, 12))
def test_copies_of_one_run_have_no_interval(seeds: int) -> None:
    rows = [row(label, value, seed) for label, value in (("msl", 0.7), ("mimo", 0.771)) for seed in range(seeds)]
    (found,) = differences_between(aggregate(rows), results=Results(Path("x"), rows, {}))
    assert (found.low, found.high, found.verdict) == (None, None, "too few to tell")


def test_an_interval_of_no_width_over_two_groups_is_none_either(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_by_samples", lambda *_: SampledInterval(0.003, 0.003, 2, "groups"))
    rows = [row(label, value + seed, seed) for label, value in (("msl", 0.7), ("mimo", 0.703)) for seed in range(3)]
    (found,) = differences_between(aggregate(rows), results=Results(Path("x"), rows, {}))
    assert (found.low, found.high, found.verdict) == (None, None, "too few to tell")


def test_the_nearest_baseline_is_one_that_has_a_pair() -> None:
    rows = [row("msl", 0.5, seed, run={"epochs": 5}) for seed in range(2)]
    rows += [row("msl", 0.6, seed, split="later", run={"epochs": 9}) for seed in range(2)]
    rows += [row("instant", 0.75, None, split="later", run={"epochs": 5})]
    (found,) = (one for one in paired_differences(rows) if one.label.startswith("instant"))
    assert found.mean == pytest.approx(0.15)


# -- tables --


def study() -> list[dict[str, Any]]:
    rows = [row("msl", 0.70 + 0.01 * seed, seed, test={"baseline": 0.3}) for seed in range(3)]
    own = {"fused_interval": [0.71, 0.79], "interval_groups": 40, "interval_over": "samples", "baseline": 0.3}
    return [*rows, row("instant", 0.75, None, test={**own, "faults": {"mean": {"fused": 0.5}}})]


def test_no_deviation_of_a_single_run_stands_in_a_table() -> None:
    table = main_table(study(), "ward")
    assert {label: table.at(label, "shipped").text for label in table.labels} == {
        "instant": "75.0 [71.0, 79.0]",
        "msl": "71.0 ± 1.0",
        "majority class": "30.0",
    }
    assert table.at("instant", "faults.fused").text == "50.0"
    notes = " ".join(table.notes)
    assert "4 runs (3 seeds). Nothing in instant is left to chance: one run." in notes
    assert "Fewer runs" not in notes
    assert "by bootstrap over the samples of the test part" in notes
    (column,) = overview(Results(Path("x"), [one | {"data": "ward"} for one in study()], {})).columns
    assert column.title == "ward"


def test_the_overview_shows_the_interval_of_each_data_set() -> None:
    rows: list[dict[str, Any]] = [{**one, "data": data} for data in ("ward", "home") for one in study()]
    rows[-1]["test"] |= {"fused_interval": [0.5, 0.9], "interval_groups": 4}
    table = overview(Results(Path("x"), rows, {}))
    assert [table.at("instant", data).text for data in ("ward", "home")] == ["75.0 [71.0, 79.0]", "75.0 [50.0, 90.0]*"]
    assert table.at("msl", "home").text == "71.0 ± 1.0"


def test_methods_are_ranked_by_their_means_however_many_runs_they_are_of() -> None:
    """By hand: instant is first on a and second on b, as msl is second and first; ew is last on both."""
    numbers = {"a": (0.8, (0.7, 0.75), (0.1, 0.2)), "b": (0.6, (0.5, 0.8), (0.3, 0.4))}
    rows = []
    for data, (instant, msl, ew) in numbers.items():
        rows.append(row("instant", instant, None, data=data))
        rows += [row(name, value, seed, data=data) for name, own in (("msl", msl), ("ew", ew)) for seed, value in
                 enumerate(own)]  # fmt: skip
    found = mean_ranks(Results(Path("x"), rows, {}))
    assert found is not None
    assert dict(found.ranks) == {"instant": 1.5, "msl": 1.5, "ew": 3.0}
    # Friedman by hand: 12·2 / (3·4) · (1.5² + 1.5² + 3² − 3·4²/4) = 3.
    assert found.statistic == pytest.approx(3.0)
    results = Results(Path("x"), [one | {"validation": one["test"]} for one in rows], {})
    order = ranking(results, "a")
    assert (order[0].label, order[0].validation.count, order[0].row["seed"]) == ("instant", 1, None)
    assert "Chosen: instant, since its fused has the highest accuracy on validation data." in ranking_text(
        order, results
    )


def test_deviations_stand_next_to_their_sign_however_wide_an_interval_below_is() -> None:
    from equipoise.report.markup import html_table

    text = html_table(main_table([*study(), *(row("ew", 0.5 + 0.2 * seed, seed) for seed in range(2))], "ward"))
    asides = re.findall(r'class="aside">(±[^<]*)<', text)
    assert {aside.replace("\N{FIGURE SPACE}", "_").rstrip("_") for aside in asides} == {"± _1.0", "± 14.1"}
    assert len({len(aside) for aside in asides}) == 1  # the numbers before them are aligned


# -- the decision that is shipped --


def two_orders() -> list[dict[str, Any]]:
    """By fused a is ahead of b, by the committee b of a; c has none, and is last as it ships fused."""
    numbers = {"a": (0.9, 0.6), "b": (0.7, 0.8), "c": (0.5, None)}
    return [
        row(label, fused + 0.01 * seed, seed, test={"committee": votes and votes + 0.01 * seed})
        for label, (fused, votes) in numbers.items()
        for seed in range(2)
    ]


def test_order_and_bold_are_those_of_the_decision_that_is_shipped() -> None:
    table = main_table(two_orders(), "ward")
    assert table.labels == ("b", "a", "c")
    assert [column.key for column in table.columns][:3] == ["shipped", "ships", "fused"]
    assert [table.at(label, "shipped").main for label in table.labels] == ["80.5", "60.5", "50.5"]
    assert [table.at(label, "ships").main for label in table.labels] == ["committee", "committee", "fused"]
    assert [table.at(label, "shipped").best for label in table.labels] == [True, False, False]
    assert "Headline: committee, or fused of c, the decision by which predict" in table.notes[0]
    assert table.at("a", "fused").main == "90.5"


def test_a_decision_that_nothing_ships_is_never_bold() -> None:
    rows = [one for one in two_orders() if one["label"] != "c"]
    table = main_table(rows, "ward")
    assert [column.heading for column in table.columns] == ["committee (shipped, %)", "fused (%)"]
    assert [label for label in table.labels if table.at(label, "shipped").best] == ["b"]
    assert not any(table.at(label, "fused").best for label in table.labels)
    named = main_table(rows, "ward", columns=["fused", "committee"])
    assert [[label for label in named.labels if named.at(label, key).best] for key in ("fused", "committee")] == [
        ["a"], ["b"],
    ]  # fmt: skip


def test_differences_are_those_of_the_decision_that_is_shipped() -> None:
    by_label = {one.label: one.mean for one in paired_differences(two_orders(), "a")}
    assert by_label == {"b": pytest.approx(0.2), "c": pytest.approx(-0.1)}
    fused = {one.label: one.mean for one in paired_differences(two_orders(), "a", ("test", "fused"))}
    assert fused == {"b": pytest.approx(-0.2), "c": pytest.approx(-0.4)}


# -- over the samples of one test part --


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two classes and two sensors of 100 people, on one split: the closed form, and joint training with two seeds."""
    folder, random = tmp_path_factory.mktemp("people"), np.random.default_rng(1)
    state, person = random.integers(0, 2, 500), np.arange(500) % 100
    arrays: dict[str, Any] = {
        name: random.normal(size=(500, 3)) + by * state[:, None] for name, by in (("heart", 0.6), ("breath", 0.3))
    }
    np.savez(folder / "people.npz", **arrays, label=np.array(["ill", "well"])[state], group=person)
    lines = entries(["instant", "msl"], ["epochs=2", "features=4"])
    compare(lines, data_set(str(folder / "people.npz")), [0, 1], folder / "out", quick=True, quiet=True, workers=1)
    return folder / "out"


def test_the_interval_of_a_difference_is_that_of_people_drawn_again(out: Path) -> None:
    results = read(out)
    (found,) = differences_between(results.groups["people.npz"], results=results)
    runs = {(one.run["label"], one.run["seed"]): one for one in predictions(results)}
    right = {key: one.answers["committee"].argmax(1) == one.label for key, one in runs.items()}
    gain_of = right["instant", None] - (right["msl", 0].astype(float) + right["msl", 1]) / 2
    assert found.mean == pytest.approx(gain_of.mean())
    assert found.low is not None
    assert found.high is not None
    group = runs["instant", None].group
    assert group is not None
    people, random = np.unique(group), np.random.default_rng(0)
    own = {one: gain_of[group == one] for one in people}
    draws = (random.choice(people, len(people)) for _ in range(2000))
    drawn = [np.concatenate([own[one] for one in some]).mean() for some in draws]
    low, high = np.quantile(drawn, [0.025, 0.975])
    assert (found.pairs, found.over) == (len(people), "groups")
    assert (found.low, found.high) == (pytest.approx(low, abs=0.015), pytest.approx(high, abs=0.015))
    (table,) = tables(results)
    assert table.at("instant", "difference").raw == (found.mean, found.low, found.high)
    assert any(f"by bootstrap over the {len(people)} groups of one test part" in note for note in table.notes)


def test_a_run_is_not_compared_with_its_copy(out: Path, tmp_path: Path) -> None:
    folder = tmp_path / "copied"
    shutil.copytree(out, folder)
    first = next(one for one in read(folder).rows if one["label"] == "instant")
    copy = {**first, "label": "auto", "method": "auto", "config": "sha256:" + "0" * 64}
    shutil.copytree(folder / "runs" / first["config"][7:19], folder / "runs" / ("0" * 12))
    with (folder / "results.jsonl").open("a", encoding="utf-8") as file:
        file.write(json.dumps(copy) + "\n")
    results = read(folder)
    differences = differences_between(results.groups["people.npz"], "instant", results=results)
    assert {one.label: (one.mean, one.low) for one in differences}["auto"] == (0.0, None)
    found = gain(results.groups["people.npz"], results)
    assert found is None or "closed-form model" not in found[0]


@pytest.mark.parametrize("lost", ["predictions", "seeds"])
def test_without_answers_or_with_one_seed_there_is_no_interval(out: Path, tmp_path: Path, lost: str) -> None:
    folder = tmp_path / "copied"
    shutil.copytree(out, folder)
    if lost == "predictions":
        for path in folder.glob("runs/*/predictions.npz"):
            path.unlink()
    else:
        lines = (folder / "results.jsonl").read_text("utf-8").splitlines(keepends=True)
        kept = [line for line in lines if json.loads(line)["seed"] != 1]
        (folder / "results.jsonl").write_text("".join(kept), encoding="utf-8")
    results = read(folder)
    (found,) = differences_between(results.groups["people.npz"], results=results)
    assert (found.low, found.high, found.verdict) == (None, None, "too few to tell")


@pytest.mark.parametrize(("over", "count", "verdict"), [
    ("groups", 9, "too few to tell"), ("groups", 10, "better"), ("samples", 9, "too few to tell"),
    ("folds", 3, "better"),
])  # fmt: skip
def test_few_groups_allow_no_claim(over: Any, count: int, verdict: str) -> None:
    assert Difference("a", "b", 0.2, 0.1, 0.3, count, over).verdict == verdict


@pytest.mark.parametrize("name", ["accuracy", "balanced_accuracy", "auroc"])
def test_an_interval_against_the_same_answers_is_zero_and_turned_round_where_sides_are(name: str) -> None:
    random = torch.Generator().manual_seed(3)
    label = torch.randint(2, (80,), generator=random)
    ours, theirs = (torch.rand(2, 80, 2, generator=random).softmax(-1) for _ in range(2))
    task, metric, group = Classification(["a", "b"]), METRICS[name], torch.arange(80) % 20
    assert bootstrap_interval(metric, ours, label, task, group, against=ours) == [0.0, 0.0]
    one, other = (
        bootstrap_interval(metric, a, label, task, group, against=b) for a, b in ((ours, theirs), (theirs, ours))
    )
    assert one is not None
    assert other is not None
    assert one == pytest.approx([-end for end in reversed(other)])
    assert one[0] < one[1]


# -- the page of one model --


def test_the_page_of_one_model_asks_about_it_alone(equipoise: Any, tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    state = random.integers(0, 2, 120)
    arrays: dict[str, Any] = {name: random.normal(size=(120, 3)) + state[:, None] for name in ("heart", "breath")}
    np.savez(tmp_path / "ward.npz", **arrays, label=np.array(["ill", "well"])[state])
    told = equipoise(
        "train", "--data", tmp_path / "ward.npz", "--method", "instant", "--out", tmp_path / "one", "--json"
    )
    (made,) = json.loads(told.out)
    assert (made["seed"], made["ships"]) == (None, "committee")
    said = equipoise("report", tmp_path / "one").out
    page = re.sub(r"<[^>]*>", " ", write_page(tmp_path / "one").read_text("utf-8").partition("<main")[2])
    number = f"{100 * made['test']['committee']:.1f}"
    assert "How good is instant on ward.npz?" in page
    assert f"the committee decision of instant, reaches {number} % accuracy on the test part (95 % interval" in page
    assert re.search(
        r"by bootstrap over \d+ samples, \d+ events in \d+\); majority class, which reads no sensor, \d+\.\d %", page
    )
    for text in (page, " ".join(said.split())):
        for never in ("msl", "joint training", "Epoch selected", "Underlined", "over the groups", "± 0.0"):
            assert never not in text
        assert "over the samples of the test part" in text
    assert re.search(rf"instant\s+{number} \[", said)


def test_the_page_of_several_without_joint_training_says_which_is_first(tmp_path: Path) -> None:
    text = write_page(write_study(tmp_path, ["ew", "mimo"], epochs=2)).read_text("utf-8")
    first = aggregate(read(tmp_path).rows)[0]
    assert "Which method is best on watch?" in text
    assert f"First on the test part is the committee decision of {first.label}: it reaches" in text
    assert "Joint training (msl) was not run beside these methods" in text
    assert make_row("ew")["label"] in text
