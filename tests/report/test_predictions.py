"""Runs keep their answers, sample by sample, and the numbers of their rows follow from them."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import sklearn.metrics

from equipoise.data.source import data_set
from equipoise.report import Predictions, predictions, read
from equipoise.study.compare import compare
from equipoise.study.registry import entries
from equipoise.util.errors import BadInput

WORDS = ("epochs=2", "features=4", "batch=32", "lr=0.02")
SAMPLES, GROUPS = 90, 9


def own_file(path: Path, label: np.ndarray) -> Path:
    """Two sensors that know the label a little."""
    random = np.random.default_rng(0)
    seen = label.reshape(len(label), -1).mean(axis=1, keepdims=True)
    arrays = {name: (random.normal(size=(len(label), 3)) + 2 * seen).astype(np.float32) for name in ("a", "b")}
    np.savez(path, **arrays, label=label, group=np.arange(len(label)) % GROUPS)
    return path


def study(path: Path, label: np.ndarray, out: Path, methods: tuple[str, ...] = ("ew",), folds: int = 0) -> None:
    source = data_set(str(own_file(path, label)))
    how = {"quick": True, "quiet": True, "workers": 1}
    compare(entries(list(methods), WORDS), source, [0], out, folds=folds, **how)


def test_classes(tmp_path: Path) -> None:
    label = np.arange(SAMPLES) // 3 % 3
    study(tmp_path / "own.npz", label, tmp_path / "out", ("ew", "unimodal"), folds=3)
    found = predictions(tmp_path / "out")
    assert len(found) == 6
    rows: dict[str, list[int]] = {"ew": [], "unimodal": []}
    for one in found:
        assert (one.task, one.names) == ("classes", ("0", "1", "2"))
        assert (one.label == label[one.row]).all()
        assert one.group is not None
        assert (one.group == one.row % GROUPS).all()
        rows[one.run["label"]] += one.row.tolist()
        trained = {"fused", "committee"} if one.run["label"] == "ew" else set()
        assert set(one.answers) == trained | {"alone.a", "alone.b"}
        for answer in one.answers.values():
            np.testing.assert_allclose(answer.sum(axis=1), 1, atol=1e-5)
        for decision in trained:
            right = sklearn.metrics.accuracy_score(one.label, one.answers[decision].argmax(axis=1))
            assert right == pytest.approx(one.run["test"][decision])
        for name, value in one.run["test"]["head"].items():
            assert (one.answers[f"alone.{name}"].argmax(axis=1) == one.label).mean() == pytest.approx(value)
    assert all(sorted(tested) == list(range(SAMPLES)) for tested in rows.values())
    frame = pd.DataFrame(found[0].columns())
    assert list(frame.columns[:8]) == ["data", "method", "seed", "fold", "config", "row", "group", "label"]
    assert (frame["fused"] == frame["label"]).mean() == pytest.approx(found[0].run["test"]["fused"])


def test_numbers(tmp_path: Path) -> None:
    label = np.linspace(-3, 9, SAMPLES)[:, None].astype(np.float32) * np.array([1, -1], np.float32)
    study(tmp_path / "own.npz", label, tmp_path / "out")
    (one,) = predictions(tmp_path / "out")
    assert one.task == "regression"
    np.testing.assert_allclose(one.label, label[one.row])
    for decision in ("fused", "committee"):
        error = sklearn.metrics.mean_absolute_error(one.label, one.answers[decision])
        assert error == pytest.approx(one.run["test"][decision], rel=1e-5)
    assert {f"fused.{name}" for name in one.names} <= set(pd.DataFrame(one.columns()).columns)


def test_damage_is_named(tmp_path: Path) -> None:
    study(tmp_path / "own.npz", np.arange(SAMPLES) % 2, tmp_path / "out")
    results = read(tmp_path / "out")
    path = results.run_folder(results.rows[0]) / "predictions.npz"
    assert isinstance(predictions(results)[0], Predictions)
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(BadInput, match=r"predictions\.npz: expected the answers of a run"):
        predictions(results)
    path.unlink()
    assert predictions(results) == []
