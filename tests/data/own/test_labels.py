"""Labels of every task: what each array is read as, and how parts are drawn for it."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.preprocessing import StandardScaler

from equipoise.data.own.draw import TRAIN, draw, draw_fold
from equipoise.data.own.labels import Labels, read_labels
from equipoise.data.own.manifest import samples_of_manifest
from equipoise.data.source import data_set, mark_task
from equipoise.data.splits import Splits
from equipoise.models.task import Classification, MultiLabel, Regression
from equipoise.util.errors import BadInput

from_arrays = Splits.from_arrays
RANDOM = np.random.default_rng(0)
FLOATS = RANDOM.normal(size=30)
ROWS = RANDOM.normal(size=(30, 2))
SEVERAL = (np.arange(30)[:, None] >> np.arange(3)) % 2
ONE_HOT = np.eye(3, dtype=int)[np.arange(30) % 3]


def read(given: Any, names: Any = None, task: str = "auto") -> Labels:
    problems: list[str] = []
    labels = read_labels(given, names, problems, task)
    assert labels is not None
    assert problems == []
    return labels


@pytest.mark.parametrize(
    ("given", "task", "kind", "expected"),
    [
        (np.arange(30) % 3, "auto", "classes", np.arange(30) % 3),
        (np.arange(30) % 3, "regression", "regression", (np.arange(30) % 3)[:, None]),
        (np.arange(30) % 2 == 0, "auto", "classes", np.arange(30) % 2 == 0),
        (np.arange(30.0) % 3, "classes", "classes", np.arange(30) % 3),
        (FLOATS, "auto", "regression", FLOATS[:, None]),
        (FLOATS.astype(np.float16), "auto", "regression", FLOATS.astype(np.float16)[:, None]),
        (FLOATS[:, None], "auto", "regression", FLOATS[:, None]),
        (torch.tensor(FLOATS), "auto", "regression", FLOATS[:, None]),
        (np.array(FLOATS, object), "auto", "regression", FLOATS[:, None]),
        (ROWS, "auto", "regression", ROWS),
        (ROWS.tolist(), "auto", "regression", ROWS),
        (np.array(ROWS, object), "auto", "regression", ROWS),
        (np.arange(60).reshape(30, 2), "regression", "regression", np.arange(60).reshape(30, 2)),
        (SEVERAL, "auto", "labels", SEVERAL),
        (SEVERAL.astype(bool), "auto", "labels", SEVERAL),
        (SEVERAL.astype(float), "auto", "labels", SEVERAL),
        (SEVERAL.astype(float), "regression", "regression", SEVERAL),
        (ONE_HOT, "auto", "labels", ONE_HOT),
        (ONE_HOT, "classes", "classes", np.arange(30) % 3),
        (ONE_HOT.astype(float), "classes", "classes", np.arange(30) % 3),
    ],
)
def test_kinds_by_hand(given: Any, task: str, kind: str, expected: np.ndarray) -> None:
    labels = read(given, task=task)
    assert labels.kind == kind
    assert labels.values.dtype == (np.int64 if kind == "classes" else np.float32)
    assert (labels.values == expected.astype(labels.values.dtype)).all()


def test_names_by_hand() -> None:
    assert read(FLOATS).names == ("label",)
    assert read(FLOATS, ["angle"]).names == ("angle",)
    assert read(ROWS).names == ("label_0", "label_1")
    assert read(ROWS, np.array(["steer", "speed"])).names == ("steer", "speed")
    assert read(SEVERAL, ["af", "mi", "ok"]).names == ("af", "mi", "ok")
    assert read(ONE_HOT, ["a", "b", "c"], "classes").names == ("a", "b", "c")
    with pytest.raises(ValueError, match="expected 1 name, one per column of label, found 3; or label holds classes"):
        from_arrays({"a": FLOATS}, FLOATS, classes=["a", "b", "c"])


def test_what_could_have_been_meant_otherwise_is_said() -> None:
    (whole,) = read(np.arange(30.0) % 3).warnings
    assert whole == "label: whole numbers stored as floats are read as numbers; type task=classes for classes"
    assert whole in from_arrays({"a": FLOATS}, np.arange(30.0) % 3).about
    assert read(np.arange(30.0)).warnings == ()  # thirty values are a count or a temperature
    (one,) = read(ONE_HOT).warnings
    assert "every sample has exactly one label; if these are classes, give one number per sample" in one
    assert read(SEVERAL).warnings == ()
    rates = np.arange(300) % 40
    (many,) = read(rates).warnings
    assert many == (
        "label: 40 whole numbers are read as so many classes; if these are numbers to predict, type task=regression"
    )
    assert read(np.arange(3000) % 40).warnings == ()
    with pytest.raises(BadInput, match="found none of 39; if these are numbers to predict, type task=regression"):
        from_arrays({"a": rates}, rates, split=np.where(rates == 39, 2, np.arange(300) % 3))
    for given, task in ((np.arange(30.0) % 3, "regression"), (ONE_HOT, "labels")):
        assert read(given, task=task).warnings == ()  # it was said


def test_what_pandas_and_numpy_hide_is_missing() -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"steer": FLOATS, "speed": FLOATS + 1})
    assert read(frame).names == ("steer", "speed")
    hidden = [
        pandas.Series([1, None, 2] * 10, dtype="Int64"),
        pandas.Series([True, None, False] * 10, dtype="boolean"),
        np.ma.masked_array(np.arange(30) % 3, mask=np.arange(30) % 3 == 1),
        np.ma.masked_array(ROWS, mask=np.arange(30)[:, None].repeat(2, 1) % 3 == 1),
    ]
    for label in hidden:
        with pytest.raises(BadInput, match=r"a value for every sample, found none in 10 of 30 \(1, 4, 7, 10, 13, …\)"):
            read_labels(label, None, [])


def test_advice_never_harms() -> None:
    """An angle is not cut to whole numbers, and of several labels none is thrown away."""
    cases = [(FLOATS, "classes"), (SEVERAL, "classes"), (FLOATS, "labels"), (ROWS, "labels"), (ROWS, "classes")]
    for given, task in cases:
        with pytest.raises(BadInput) as found:
            read_labels(given, None, [], task)
        assert "astype" not in str(found.value)
        assert "argmax" not in str(found.value)


# -- drawing --


@pytest.mark.parametrize("seed", range(8))
def test_parts_of_numbers_have_the_same_spread(seed: int) -> None:
    random = np.random.default_rng(seed)
    values = np.exp(random.normal(size=random.integers(200, 800)))[:, None]
    labels = Labels(values.astype(np.float32), ("label",), "regression")
    marks = draw(labels.strata, None, seed)
    np.testing.assert_allclose(np.bincount(marks) / len(marks), [0.6, 0.2, 0.2], atol=0.01)
    fifths = np.digitize(values[:, 0], np.quantile(values, [0.2, 0.4, 0.6, 0.8]))
    for part in range(3):
        np.testing.assert_allclose(np.bincount(fifths[marks == part]) / (marks == part).sum(), 0.2, atol=0.03)


@pytest.mark.parametrize("count", range(3, 40))
def test_no_part_of_few_numbers_is_empty(count: int) -> None:
    values = np.random.default_rng(count).normal(size=(count, 1)).astype(np.float32)
    marks = draw(Labels(values, ("label",), "regression").strata, None, 0)
    assert set(marks.tolist()) == {0, 1, 2}


def test_equal_numbers_are_one_stratum() -> None:
    values = np.repeat([[0.0], [5.0]], [90, 10], axis=0).astype(np.float32)
    assert len(set(Labels(values, ("label",), "regression").strata.tolist())) == 2


@pytest.mark.parametrize("seed", range(8))
def test_every_label_is_learnt_where_it_can_be(seed: int) -> None:
    random = np.random.default_rng(seed)
    values = (random.random((400, 6)) < random.uniform(0.01, 0.6, 6)).astype(np.float32)
    values[:6] = np.maximum(values[:6], np.eye(6))
    labels = Labels(values, tuple("abcdef"), "labels")
    group = random.integers(0, 40, 400)
    _, group = np.unique(group, return_inverse=True)
    for groups in (None, group):
        marks = draw(labels.strata, groups, seed)
        assert (values[marks == TRAIN].sum(axis=0) > 0).all()
        if groups is not None:
            assert len(set(zip(group.tolist(), marks.tolist(), strict=True))) == len(np.unique(group))
    common = values.sum(axis=0) >= 20
    shares = [values[draw(labels.strata, None, seed) == part].sum(axis=0) / values.sum(axis=0) for part in range(3)]
    np.testing.assert_allclose(
        np.array(shares)[:, common], np.array([0.6, 0.2, 0.2])[:, None].repeat(common.sum(), 1), atol=0.2
    )
    tested = sum((draw_fold(labels.strata, group, fold, 5, seed) == 2).astype(int) for fold in range(5))
    assert (tested == 1).all()


def test_the_rarest_label_decides_by_hand() -> None:
    values = np.array([[1, 0, 0], [1, 1, 0], [1, 1, 1], [0, 0, 0], [1, 0, 0]], np.float32)
    assert Labels(values, tuple("abc"), "labels").strata.tolist() == [2, 1, 0, 3, 2]


# -- splits --


@pytest.mark.parametrize("columns", [1, 3])
def test_splits_of_numbers(columns: int) -> None:
    random = np.random.default_rng(columns)
    label = random.normal(5, 3, size=(120, columns))
    found = from_arrays({"a": random.normal(size=(120, 4))}, label, group=np.arange(120) // 6).check()
    assert isinstance(found.task, Regression)
    assert found.task.size == columns
    assert found.train.label.dtype == torch.float32
    scaler = StandardScaler().fit(found.train.label.numpy())
    np.testing.assert_allclose(found.task.mean, scaler.mean_, rtol=1e-5)
    count = len(found.train)
    np.testing.assert_allclose(found.task.deviation, scaler.scale_ * (count / (count - 1)) ** 0.5, rtol=1e-5)
    whole = np.concatenate([part.label.numpy() for part in found.parts.values()])
    assert sorted(whole.flatten().tolist()) == sorted(label.astype(np.float32).flatten().tolist())


def test_splits_of_several_labels() -> None:
    found = from_arrays({"a": RANDOM.normal(size=(30, 4))}, SEVERAL, classes=["x", "y", "z"]).check()
    assert isinstance(found.task, MultiLabel)
    assert found.classes == found.task.names == ("x", "y", "z")
    assert found.train.label.shape == (len(found.train), 3)
    assert "drawn at random within each label" in found.about
    assert isinstance(from_arrays({"a": RANDOM.normal(size=(30, 4))}, np.arange(30) % 2).task, Classification)


def test_the_fingerprint_knows_the_labels() -> None:
    arrays, split = {"a": np.arange(30.0)}, np.repeat([0, 1, 2], 10)
    marks = [
        from_arrays(arrays, label, split=split, task=task).fingerprint()
        for label, task in [(FLOATS, "auto"), (FLOATS + 1, "auto"), (np.arange(30), "regression")]
    ]
    assert len(set(marks)) == 3


@pytest.mark.parametrize(
    ("label", "options", "message"),
    [
        (np.where(np.arange(30) < 10, 1.5, FLOATS), {}, "train: expected numbers that differ, found one only in label"),
        (
            ONE_HOT * (np.arange(30)[:, None] > 9) | [1, 0, 0],
            {},
            "train: expected samples with every label, found none",
        ),
    ],
)
def test_what_training_cannot_learn_is_refused(label: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        from_arrays({"a": np.arange(30.0)}, label, split=np.repeat([0, 1, 2], 10), **options)


# -- files --


def test_a_file_is_read_for_the_task_that_is_asked(tmp_path: Path) -> None:
    path = tmp_path / "my.npz"
    np.savez(path, a=np.arange(60.0), label=np.arange(60) % 20)
    data = data_set(str(path))
    assert data.load(None).task.kind == "classes"
    numbers = mark_task(data, ["regression", "regression"]).load(None)
    assert numbers.task.kind == "regression"
    assert mark_task(data, ["auto"]).load(None).task.kind == "classes"
    with pytest.raises(BadInput, match=r"my.npz: expected runs of one task, found regression, auto; run them apart"):
        mark_task(data, ["regression", "auto"])
    with pytest.raises(BadInput, match="watch holds classes; leave out task=regression"):
        mark_task(data_set("watch"), ["regression"])


def test_folds_are_known_whatever_the_task(tmp_path: Path) -> None:
    path = tmp_path / "my.npz"
    np.savez(path, a=np.arange(60.0), label=np.arange(120).reshape(60, 2), group=np.arange(60) // 6)
    data = data_set(str(path))
    assert data.folds == 5
    assert len(mark_task(data, ["regression"]).load(3).test) == 12
    with pytest.raises(BadInput, match="type task=regression"):
        data.load(3)


def test_several_columns_of_a_manifest(tmp_path: Path) -> None:
    header, rows = "label:steer,label:speed,heat,group", [f"{at / 7},{at * 2},{at},{at // 4}" for at in range(40)]
    (tmp_path / "a.csv").write_text("\n".join([header, *rows]))
    found = samples_of_manifest(tmp_path / "a.csv")
    assert found.problems == ()
    assert found.label is not None
    assert found.label.kind == "regression"
    assert found.label.names == ("steer", "speed")
    np.testing.assert_allclose(found.label.values, [(at / 7, at * 2) for at in range(40)], rtol=1e-6)
    (tmp_path / "b.csv").write_text(
        "\n".join(["label:af,label:mi,heat", *[f"{at % 2},{at % 3 // 2},{at}" for at in range(40)]])
    )
    several = samples_of_manifest(tmp_path / "b.csv").label
    assert several is not None
    assert (several.kind, several.names) == ("labels", ("af", "mi"))
    gaps = "\n".join([header, "0.5,,1,0", *rows])
    (tmp_path / "c.csv").write_text(gaps)
    assert "label: expected a value for every sample, found none in 1 of 41 (line 2)" in str(
        samples_of_manifest(tmp_path / "c.csv").problems
    )
    (tmp_path / "d.csv").write_text("\n".join([f"label,{header}", *[f"1,{row}" for row in rows]]))
    assert "expected either it or label:steer, label:speed, found both" in str(
        samples_of_manifest(tmp_path / "d.csv").problems
    )


def test_rows_of_a_parquet(tmp_path: Path) -> None:
    import pyarrow
    import pyarrow.parquet

    table = pyarrow.table({"label": [[at / 3, at * 2.0] for at in range(40)], "heat": np.arange(40.0)})
    pyarrow.parquet.write_table(table, tmp_path / "a.parquet")
    labels = samples_of_manifest(tmp_path / "a.parquet").label
    assert labels is not None
    assert labels.values.shape == (40, 2)
