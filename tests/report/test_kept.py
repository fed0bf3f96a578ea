"""Numbers from the answers of runs: over all folds together, in other metrics, and classes that a fold lacks."""

import re
from pathlib import Path

import numpy as np
import pytest
import sklearn.metrics

from equipoise.data.source import data_set
from equipoise.report import as_latex, as_markdown, predictions, read, tables, write_page
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
