"""Studies of several data sets, and of any number of folds."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from equipoise.cli.options import every_data_and, folds_of, with_values
from equipoise.data.bundled import PEOPLE, people_of
from equipoise.data.source import all_data, data_set
from equipoise.study.compare import compare_each
from equipoise.study.registry import entries
from equipoise.util.errors import BadInput

WORDS = ("epochs=1", "features=4", "batch=32")


def own_file(path: Path, samples: int = 60, groups: int = 12) -> Path:
    """A small file of two sensors, two classes."""
    random = np.random.default_rng(len(path.name))
    label = np.arange(samples) % 2
    arrays = {name: (random.normal(size=(samples, 3)) + label[:, None]).astype(np.float32) for name in ("a", "b")}
    np.savez(path, **arrays, label=label, group=np.arange(samples) // (samples // groups))
    return path


@pytest.mark.parametrize("folds", range(3, 11))
def test_every_person_of_watch_is_tested_once(folds: int) -> None:
    parts = [people_of(fold, folds) for fold in range(folds)]
    assert sorted(person for part in parts for person in part["test"]) == list(PEOPLE)
    for part in parts:
        assert sorted(person for people in part.values() for person in people) == list(PEOPLE)
        assert len(part["train"]) >= 3
        assert len(part["validation"]) >= 2


@pytest.mark.parametrize("folds", [3, 4, 7, 12])
def test_own_data_is_cut_into_as_many_folds_as_asked(folds: int, tmp_path: Path) -> None:
    data = data_set(str(own_file(tmp_path / "own.npz"))).cut_into(folds)
    tested = [data.load(fold).check().test.group for fold in range(data.folds)]
    groups = [number for group in tested if group is not None for number in group.unique().tolist()]
    assert (data.folds, sorted(groups)) == (folds, list(range(12)))


def test_more_folds_than_groups_are_refused(tmp_path: Path) -> None:
    data = data_set(str(own_file(tmp_path / "own.npz")))
    with pytest.raises(BadInput, match="folds: expected 3 to 12, at most one per group, found 13"):
        data.cut_into(13).load(0)
    with pytest.raises(BadInput, match="watch: expected 3 to 10 folds, found 11"):
        all_data()["watch"].cut_into(11)


@pytest.mark.parametrize(
    ("typed", "read"),
    [
        ("--folds", "--folds=all"),
        ("--folds 5", "--folds 5"),
        ("--folds=5", "--folds=5"),
        ("--folds --quick", "--folds=all --quick"),
        ("--folds epochs=2", "--folds=all epochs=2"),
        ("--seeds 3 --folds", "--seeds 3 --folds=all"),
    ],
)
def test_the_number_of_folds_may_be_left_out(typed: str, read: str) -> None:
    assert with_values(typed.split()) == read.split()
    assert [folds_of(text) for text in ("all", "5", False, True)] == [True, 5, False, True]


def test_one_study_of_two_data_sets(tmp_path: Path) -> None:
    files = ",".join(str(own_file(tmp_path / f"{name}.npz")) for name in ("first", "second"))
    (studies,) = every_data_and(files, None, "auto", lambda preset: entries(["msl", "mimo"], WORDS, preset))
    rows = compare_each(studies, [0], tmp_path / "out", folds=3, quick=True, quiet=True, workers=1)
    found = {(row["data"], row["label"], row["fold"], row["folds"]) for row in rows}
    names = ("first.npz", "second.npz")
    assert found == {(data, label, fold, 3) for data in names for label in ("msl", "mimo") for fold in range(3)}
    lines = (tmp_path / "out" / "results.jsonl").read_text().splitlines()
    assert len(lines) == len(rows) == 12
    assert {json.loads(line)["config"] for line in lines} == {row["config"] for row in rows}


def test_what_several_data_sets_cannot_be(tmp_path: Path) -> None:
    def studies(text: str, split: str | None = None) -> Any:
        return every_data_and(text, split, "auto", lambda preset: entries(["msl"], (), preset))

    (tmp_path / "other").mkdir()
    twice = ",".join(str(own_file(folder / "own.npz")) for folder in (tmp_path, tmp_path / "other"))
    with pytest.raises(BadInput, match=r"expected each name once, found own\.npz twice"):
        studies(twice)
    with pytest.raises(BadInput, match="--split random: expected one data set, found 2"):
        studies("watch,generated", "random")
    with pytest.raises(BadInput, match=r"wach.*\n.*gnerated"):
        studies("wach,gnerated")
    comma = own_file(tmp_path / "a,b.npz")
    ((source, _),) = studies(str(comma))[0]
    assert source.name == "a,b.npz"
