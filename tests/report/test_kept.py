"""Numbers from the answers of runs: over all folds together, in other metrics, and classes that a fold lacks."""

import re
from pathlib import Path

import numpy as np
import pytest
import sklearn.metrics

from equipoise.data.source import data_set
from equipoise.report import Results, as_latex, as_markdown, predictions, read, tables, write_page
from equipoise.report.table import main_table
from equipoise.study.compare import compare
from equipoise.study.registry import entries
from equipoise.util.errors import BadInput
from report.example import make_row

WORDS = ("epochs=2", "features=4", "batch=32", "lr=0.02", "metric=balanced_accuracy")
GROUPS = 12


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three classes of which the rarest occurs in three patients only, over five folds and two seeds."""
    folder, random = tmp_path_factory.mktemp("ward"), np.random.default_rng(0)
    patient = np.arange(240) % GROUPS
    state = np.where(np.isin(patient, [1, 5, 9]) & (np.arange(240) % 24 < 12), 2, random.integers(0, 2, 240))
    arrays = {name: random.normal(size=(240, 3)) + state[:, None] for name in ("heart", "breath")}
    label, group = np.array(["sr", "af", "vt"])[state], np.array([f"P{number:02}" for number in patient])
    np.savez(folder / "ward.npz", **arrays, label=label, group=group)
    how = {"quick": True, "quiet": True, "workers": 1, "folds": 5}
    compare(entries(["msl", "ew"], WORDS), data_set(str(folder / "ward.npz")), [0, 1], folder / "out", **how)
    return folder / "out"


def test_folds_are_pooled(out: Path) -> None:
    results = read(out)
    (table,) = tables(results)
    for decision in ("fused", "committee"):
        by_seed = []
        for seed in (0, 1):
            runs = [one for one in predictions(results) if (one.run["label"], one.run["seed"]) == ("ew", seed)]
            truth = np.concatenate([one.label for one in runs])
            said = np.concatenate([one.answers[decision].argmax(1) for one in runs])
            assert len(truth) == 240
            by_seed.append(sklearn.metrics.balanced_accuracy_score(truth, said))
        cell = table.at("ew", f"pooled.{decision}")
        mean, low, high = (number for number in cell.raw if number is not None)
        assert mean == pytest.approx(np.mean(by_seed))
        assert low <= mean <= high
        assert cell.text == f"{100 * mean:.1f} [{100 * low:.1f}, {100 * high:.1f}]"
        for text in (as_markdown(table), as_latex(table), write_page(results).read_text("utf-8")):
            assert f"{100 * low:.1f}, {100 * high:.1f}" in text
    assert any("all 5 folds together" in note and "over 12 groups" in note for note in table.notes)


def test_classes_that_a_fold_lacks_are_named(out: Path) -> None:
    results = read(out)
    tested = {one.run["fold"]: set(one.label.tolist()) for one in predictions(results)}
    lacking = sorted(fold for fold, known in tested.items() if len(known) < 3)
    assert len(lacking) == 2
    (table,) = tables(results)
    expected = f"The test parts of folds {lacking[0]} and {lacking[1]} have no sample of vt: "
    assert f"{expected}means over folds mix metrics of 3 and 2 classes." in table.notes


def test_other_metrics_are_columns(out: Path) -> None:
    results = read(out)
    (table,) = tables(results, columns=["fused", "auroc", "macro_f1"])
    keys = [column.key for column in table.columns]
    assert keys == ["fused", "auroc.fused", "auroc.committee", "macro_f1.fused", "macro_f1.committee"]
    runs = [one for one in predictions(results) if one.run["label"] == "msl"]
    f1 = [
        sklearn.metrics.f1_score(o.label, o.answers["fused"].argmax(1), labels=np.unique(o.label), average="macro")
        for o in runs
    ]
    assert table.at("msl", "macro_f1.fused").value == pytest.approx(np.mean(f1))
    with pytest.raises(BadInput, match=r"unknown column 'mae'; expected some of .*auroc"):
        tables(results, columns=["mae"])


def test_notes_are_those_of_the_columns_and_describe_all_folds(out: Path) -> None:
    (whole,), (few,) = tables(read(out)), tables(read(out), columns=["runs"])
    text, short = " ".join(whole.notes), " ".join(few.notes)
    assert re.search(r"5 folds \(seed 0\), drawn by group: \d train, \d validate, \d test in fold 0\.", text)
    assert "Pooled: " in text
    for about in ("Headline: ", "committee pools", "Paired differences", "step, as trained", "Underlined"):
        assert about in text
        assert about not in short
    assert "Pooled: " not in short


def test_names_of_groups_are_kept(out: Path) -> None:
    one = predictions(out)[0]
    assert one.group is not None
    assert one.group.dtype.kind == "U"
    assert one.group.tolist() == [f"P{row % GROUPS:02}" for row in one.row]


def test_events_and_samples_are_beside_the_interval() -> None:
    row = make_row("mimo", 0)
    row |= {"metric": "auprc", "positive": "died"}
    row["test"] |= {"fused": 0.393, "fused_interval": [0.12, 0.71], "interval_groups": 2}
    row["test"] |= {"samples": 1061, "events": 4, "baseline": 4 / 1061}
    table = main_table([row], "ward")
    assert table.title == "ward: AUPRC of died on the test set"
    assert table.at("mimo", "fused").text == "39.3 [12.0, 71.0]*, 4 events in 1,061"
    assert table.at("chance", "fused").main == "0.4"
    assert "* from 2 groups: too few to tell." in table.notes
    assert "Events are samples of died. By chance the AUPRC of died is their share." in table.notes
    row["test"] |= {"samples": 61, "events": 1, "interval_groups": 61, "interval_over": "samples"}
    table = main_table([row], "ward")
    assert table.at("mimo", "fused").text == "39.3 [12.0, 71.0], 1 event in 61"
    assert any("by bootstrap over the samples of the test part" in note for note in table.notes)


def test_the_named_class_goes_from_the_word_to_rows_columns_pools_and_notes(out: Path, tmp_path: Path) -> None:
    ward, how = data_set(str(out.parent / "ward.npz")), {"quick": True, "quiet": True, "workers": 1, "folds": 5}
    words = ("epochs=2", "features=4", "batch=32", "lr=0.02", "metric=auprc", "positive=vt")
    rows = compare(entries(["msl"], words), ward, [0], tmp_path, **how)
    answers = {one.run["fold"]: one for one in predictions(tmp_path)}
    lacking = []
    for row in rows:
        one = answers[row["fold"]]
        truth = one.label == 2
        assert (row["positive"], row["test"]["samples"], row["test"]["events"]) == ("vt", len(truth), truth.sum())
        if not truth.any():
            lacking.append(row["fold"])
            assert row["test"]["fused"] is None
            continue
        for decision in ("fused", "committee"):
            expected = sklearn.metrics.average_precision_score(truth, one.answers[decision][:, 2])
            assert row["test"][decision] == pytest.approx(expected, abs=1e-5)
        assert row["test"]["baseline"] == pytest.approx(truth.mean())
    (table,) = tables(read(tmp_path))
    assert table.title.endswith(": AUPRC of vt on the test set")
    assert (
        f"The test parts of folds {lacking[0]} and {lacking[1]} have no sample of vt, and so no AUPRC of vt."
        in table.notes
    )
    label = np.concatenate([one.label for one in answers.values()])
    score = np.concatenate([one.answers["fused"] for one in answers.values()])
    assert table.at("msl", "pooled.fused").text.endswith(f"], {(label == 2).sum()} events in 240")
    pooled = sklearn.metrics.average_precision_score(label == 2, score[:, 2])
    assert table.at("msl", "pooled.fused").value == pytest.approx(pooled, abs=1e-5)
    with pytest.raises(BadInput, match="positive=tv: expected a class of the data: 'tv' is none of 'af', 'sr', 'vt'"):
        compare(entries(["msl"], [*words, "positive=tv"]), ward, [0], tmp_path / "other", **how)


def test_metrics_of_two_classes_are_not_in_one_table(tmp_path: Path) -> None:
    rows = [make_row("mimo", seed) | {"metric": "auprc", "data": "ward"} for seed in range(3)]
    rows = [row | {"positive": name} for row, name in zip(rows, ("died", "died", "survived"), strict=True)]
    divided = Results(tmp_path, rows, {}).by_data()
    assert {name: len(some) for name, some in divided.items()} == {
        "ward (classes, auprc of died)": 2,
        "ward (classes, auprc of survived)": 1,
    }
    same = [row | {"metric": "accuracy"} for row in rows]
    assert list(Results(tmp_path, same, {}).by_data()) == ["ward"]


def test_an_interval_of_few_groups_says_so() -> None:
    row = make_row("mimo", 0)
    row["test"] |= {"fused": 1.0, "fused_interval": [1.0, 1.0], "interval_groups": 2}
    table = main_table([row], "watch")
    assert table.at("mimo", "fused").text == "100.0 [100.0, 100.0]*"
    assert "* from 2 groups: too few to tell." in table.notes
    row["test"]["interval_groups"] = 10
    table = main_table([row], "watch")
    assert table.at("mimo", "fused").text == "100.0 [100.0, 100.0]"
    assert not any("too few" in note for note in table.notes)
