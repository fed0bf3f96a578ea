"""`id` names the samples, in every form that data has, and is never a sensor."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import equipoise
from deploy.shipped_runs import train_on
from equipoise import report
from equipoise.data import Splits
from equipoise.data.check import check_data
from equipoise.data.source import data_set
from equipoise.integrations.sklearn import MultimodalClassifier
from equipoise.study.compare import compare
from equipoise.study.registry import entries
from equipoise.util.errors import BadInput

SAMPLES = 60
LABEL = np.arange(SAMPLES) % 3
NAMES = [f"patient {number:02d}" for number in np.random.default_rng(0).permutation(SAMPLES)]
PARTS = np.arange(SAMPLES) // 3 % 3


def numbers() -> np.ndarray:
    return np.random.default_rng(1).normal(size=(SAMPLES, 2)) + LABEL[:, None]


def written(folder: Path, suffix: str, ids: Any) -> Path:
    """The same data in a file of any kind."""
    path, values = folder / f"data{suffix}", numbers()
    if suffix == ".npz":
        np.savez(path, a=values, id=np.array(ids), label=LABEL, split=PARTS)
        return path
    table = pd.DataFrame({"id": ids, "a_0": values[:, 0], "a_1": values[:, 1], "label": LABEL, "split": PARTS})
    table.to_csv(path, index=False) if suffix == ".csv" else table.to_parquet(path, index=False)
    return path


@pytest.mark.parametrize("suffix", [".npz", ".csv", ".parquet"])
@pytest.mark.parametrize("ids", [NAMES, list(range(SAMPLES))])
def test_one_rule_from_check_to_answers(suffix: str, ids: Any, tmp_path: Path) -> None:
    path = written(tmp_path, suffix, ids)
    found = check_data(str(path))
    assert (found.errors, list(found.modalities)) == ([], ["a"])
    splits = data_set(str(path)).load(None)
    assert splits.modalities == ("a",)
    assert list(map(str, splits.ids)) == list(map(str, ids))
    train_on(splits, tmp_path / "run")
    with np.load(tmp_path / "run" / "predictions.npz") as kept:
        assert kept["row"].tolist() == np.flatnonzero(PARTS == 2).tolist()
        assert kept["id"].astype(str).tolist() == [str(ids[row]) for row in np.flatnonzero(PARTS == 2)]
    model = equipoise.load(tmp_path / "run")
    assert model.sensors == ("a",)
    table = pd.DataFrame({"a_0": numbers()[:, 0], "a_1": numbers()[:, 1], "id": ids})
    assert model.predict({"a": numbers(), "id": ids}).ids == ids
    assert model.predict(table).ids == ids


def test_arrays_and_estimators_know_the_rule() -> None:
    splits = Splits.from_arrays({"a": numbers(), "id": NAMES}, LABEL)
    assert splits.modalities == ("a",)
    assert splits.ids == tuple(NAMES)
    assert splits.fingerprint() == Splits.from_arrays({"a": numbers()}, LABEL).fingerprint()
    estimator = MultimodalClassifier(method="instant", random_state=0)
    estimator.fit({"a": numbers(), "id": NAMES}, LABEL)
    assert list(estimator.inputs_) == ["a"]
    answers = estimator.predict({"a": numbers(), "id": NAMES[::-1]})
    assert np.array_equal(answers, estimator.predict({"a": numbers()}))


def test_ids_that_are_none_are_told_with_the_rest(tmp_path: Path) -> None:
    for ids, told in (
        ([*NAMES[:-1], NAMES[0]], f"id: expected another name for every sample, found again {NAMES[0]!r}"),
        (NAMES[:-1], f"found a {SAMPLES}, label {SAMPLES}, split {SAMPLES}, id {SAMPLES - 1}"),
        ([*NAMES[:-1], ""], "id: expected a value for every sample, found none in 1 of 60 (59)"),
        (np.zeros((SAMPLES, 2)), "id: expected one value per sample, [N], found an array of shape (60, 2)"),
    ):
        values = numbers()
        values[3, 1] = np.inf
        np.savez(tmp_path / "data.npz", a=values, id=np.array(ids), label=LABEL, split=PARTS)
        with pytest.raises(BadInput) as caught:
            data_set(str(tmp_path / "data.npz")).load(None)
        assert told in str(caught.value)
        assert "a: expected finite numbers" in str(caught.value)


def test_messages_call_samples_by_their_names() -> None:
    values = numbers()
    values[3, 1] = np.inf
    with pytest.raises(BadInput) as caught:
        Splits.from_arrays({"a": values, "id": NAMES}, LABEL)
    assert f"in 1 of 60 samples ({NAMES[3]})" in str(caught.value)


def test_no_sensor_is_called_id() -> None:
    with pytest.raises(ValueError, match="No modality may be called 'id': it is the column of the names"):
        equipoise.LateFusion({"id": torch.nn.Linear(2, 2)}, classes=2, features={"id": 2})


def test_predictions_of_a_study_have_the_names(tmp_path: Path) -> None:
    path = written(tmp_path, ".npz", NAMES)
    how: dict[str, Any] = {"seeds": [0], "quick": True, "workers": 1, "quiet": True}
    compare(entries(["msl"], ["epochs=1", "features=4"]), data_set(str(path)), out=tmp_path / "out", **how)
    (found,) = report.predictions(tmp_path / "out")
    columns = found.columns()
    assert list(columns)[5:7] == ["row", "id"]
    assert list(columns["id"]) == [NAMES[row] for row in np.flatnonzero(PARTS == 2)]


def test_one_id_too_few_is_an_error_of_the_check(tmp_path: Path) -> None:
    report = check_data(str(written(tmp_path, ".npz", NAMES[:-1])))
    assert report.errors == [
        f"expected one entry per sample in every array, found a {SAMPLES}, label {SAMPLES}, "
        f"split {SAMPLES}, id {SAMPLES - 1}"
    ]
