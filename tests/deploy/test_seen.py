"""A model knows the samples that it was trained on again, in any order and form, and no others."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
import torch
from sklearn.metrics import roc_auc_score

import equipoise as package
from deploy.shipped_runs import SAMPLES, recorded, rows_of, trained
from equipoise.data.digests import NOTHING, sample_digests
from equipoise.data.part import Part
from equipoise.deploy import Predictor
from equipoise.study.job import SEEN
from equipoise.util.errors import BadInput

PARTS = np.array(["train", "validation", ""])[np.arange(SAMPLES) % 3]  # as `trained` cuts them
MISSING = {"series": [0, 1, 7], "camera": [1, 3]}


def with_gaps(arrays: dict[str, Any]) -> dict[str, Any]:
    """The same samples, some of which lack a sensor."""
    lists = {name: list(values) for name, values in arrays.items()}
    return lists | {name: [None if at in gone else one for at, one in enumerate(lists[name])]
                    for name, gone in MISSING.items()}  # fmt: skip


@pytest.fixture(scope="module", params=["complete", "gaps"])
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    folder, arrays = tmp_path_factory.mktemp("run"), recorded()
    arrays = with_gaps(arrays) if request.param == "gaps" else arrays
    trained(folder, arrays, np.arange(SAMPLES) % 2)
    return folder, arrays


def test_samples_are_known_whole_in_any_order_and_one_by_one(run: tuple[Path, dict[str, Any]]) -> None:
    folder, arrays = run
    predictor = package.load(folder)
    assert predictor.predict(arrays).seen == PARTS.tolist()
    rows = np.random.default_rng(0).permutation(SAMPLES)[:17]
    assert predictor.predict(rows_of(arrays, rows)).seen == PARTS[rows].tolist()
    for row in (2, 3, 4):
        one = {name: values[row] for name, values in arrays.items()}
        assert predictor.predict(one).seen == PARTS[row]


def test_numbers_may_come_with_more_or_fewer_digits(run: tuple[Path, dict[str, Any]]) -> None:
    folder, arrays = run
    kinds = {"vector": np.float32, "heat": np.float32}
    arrays = arrays | {name: [np.asarray(one, kind) for one in arrays[name]] for name, kind in kinds.items()}
    assert package.load(folder).predict(arrays).seen == PARTS.tolist()


@pytest.mark.parametrize("name", ["vector", "heat", "series", "speech", "camera"])
def test_another_reading_is_another_sample(run: tuple[Path, dict[str, Any]], name: str) -> None:
    folder, arrays = run
    predictor, rows = package.load(folder), [9, 10, 12, 13, 15]
    some = rows_of(arrays, rows)
    changed = some | {name: [one + np.ones((), np.asarray(one).dtype) for one in some[name]]}
    assert predictor.predict(changed).seen == [""] * 5
    assert predictor.predict(some | {name: None}).seen == [""] * 5  # a sample is known by all of its sensors
    exchanged = some | {name: some[name][1:] + some[name][:1]}
    assert predictor.predict(exchanged).seen == [""] * 5


def test_a_sample_without_any_sensor_is_none_that_was_seen(run: tuple[Path, dict[str, Any]]) -> None:
    folder, arrays = run
    assert package.load(folder).predict(dict.fromkeys(arrays)).seen == ""


def test_what_is_kept_is_eight_bytes_of_each_sample(run: tuple[Path, dict[str, Any]]) -> None:
    folder, _ = run
    stored = safetensors.numpy.load_file(folder / SEEN)
    assert {name: (digests.dtype, digests.shape) for name, digests in stored.items()} == {
        name: (np.dtype(np.int64), (SAMPLES // 3,)) for name in ("train", "validation")
    }
    assert all((np.diff(digests) > 0).all() for digests in stored.values())  # so that the order tells nothing


def test_digests_of_two_data_sets_do_not_compare() -> None:
    part = Part({"a": torch.randn(2000, 3)}, torch.zeros(2000))
    one, other = (sample_digests(part, ["a"], key) for key in ("one", "other"))
    assert len(set(one.tolist())) == 2000
    assert not {*one.tolist()} & {*other.tolist()}
    assert (sample_digests(part.take(torch.arange(5, 9)), ["a"], "one") == one[5:9]).all()
    lacking = Part({**part.inputs, "a_present": torch.arange(2000) > 0}, part.label)
    assert sample_digests(lacking, ["a"], "one")[0] == NOTHING


def test_a_part_of_a_longer_file_has_the_digests_of_its_samples() -> None:
    inputs = {"a": torch.randn(50, 2, 5000), "b": torch.randn(50, 4, 1000)}
    inputs["b_length"] = torch.arange(50) + 900
    rows = torch.arange(50).flip(0)[:20]
    part = Part(inputs, torch.zeros(20), rows=rows)
    whole = sample_digests(Part(inputs, torch.zeros(50)), ["a", "b"], "key")
    assert (sample_digests(part, ["b", "a"], "key") == whole[rows.numpy()]).all()
    assert (sample_digests(part.in_memory(), ["a", "b"], "key") == whole[rows.numpy()]).all()


def test_a_damaged_file_is_named_and_without_one_nothing_is_known(tmp_path: Path) -> None:
    arrays = {"a": np.random.default_rng(0).normal(size=(30, 4))}
    trained(tmp_path, arrays, np.arange(30) % 2)
    whole = (tmp_path / SEEN).read_bytes()
    other = safetensors.numpy.save({"train": np.zeros(3, np.float32), "validation": np.zeros(3, np.int64)})
    for content in (b"", whole[:-9], safetensors.numpy.save({"train": np.zeros(3, np.int64)}), other):
        (tmp_path / SEEN).write_bytes(content)
        with pytest.raises(BadInput, match="expected digests of the samples that the model was trained on"):
            package.load(tmp_path)
    (tmp_path / SEEN).unlink()
    assert package.load(tmp_path).predict(arrays).seen is None


# -- the command --


@pytest.fixture(scope="module")
def ward(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Predictor, dict[str, np.ndarray]]:
    """Patients of whom one of eight died, and a model of them."""
    folder, random = tmp_path_factory.mktemp("ward"), np.random.default_rng(0)
    died = np.arange(240) % 8 == 3
    arrays = {"labs": random.normal(size=(240, 4)) + died[:, None], "pulse": random.normal(size=(240, 2))}
    arrays["label"] = np.where(died, "died", "survived")
    trained(folder, {name: arrays[name] for name in ("labs", "pulse")}, arrays["label"], "metric=auroc")
    return folder, package.load(folder), arrays


def saved_as(file: Path, arrays: dict[str, np.ndarray]) -> Path:
    np.savez(file, **arrays)  # ty: ignore[invalid-argument-type]
    return file


def test_the_score_is_over_new_samples_and_the_rest_is_marked(equipoise: Any, ward: Any, tmp_path: Path) -> None:
    folder, predictor, arrays = ward
    data = saved_as(tmp_path / "all.npz", arrays)
    risk = predictor.predict({name: arrays[name] for name in ("labs", "pulse")}).probabilities[:, 0]
    died, new = arrays["label"] == "died", np.arange(240) % 3 == 2
    of_new, of_seen = (roc_auc_score(died[rows], risk[rows]) for rows in (new, ~new))
    code, printed, complaint = equipoise("predict", folder, "--data", data)
    assert (code, complaint) == (0, "")
    assert "The model has seen 160 of these samples: 80 in its training part and 80 in its validation part." in printed
    assert (
        f"By the labels in the data: over the 80 that the model has not seen, {died[new].sum()} events, "
        f"AUROC of died {100 * of_new:.1f} %; over the 160 that it has seen, AUROC of died {100 * of_seen:.1f} %, "
        "which says nothing about new ones."
    ) in printed
    out = tmp_path / "answers.npz"
    code, printed, _ = equipoise("predict", folder, "--data", data, "--json", "--out", out)
    told = json.loads(printed)
    assert told["seen"] == {"train": 80, "validation": 80}
    assert (told["metric"], told["positive"], told["scored"], told["events"]) == ("auroc", "died", 80, died[new].sum())
    assert told["value"] == pytest.approx(of_new, abs=1e-6)
    assert told["value_of_seen"] == pytest.approx(of_seen, abs=1e-6)
    with np.load(out) as answers:
        assert (answers["seen"] == np.array(["train", "validation", ""])[np.arange(240) % 3]).all()


def test_rows_of_the_training_file_in_another_order_and_without_labels(
    equipoise: Any, ward: Any, tmp_path: Path
) -> None:
    folder, _, arrays = ward
    rows = np.random.default_rng(1).permutation(240)[:50]
    some = {name: values[rows] for name, values in arrays.items() if name != "label"}
    _, printed, _ = equipoise("predict", folder, "--data", saved_as(tmp_path / "some.npz", some), "--json")
    counts = np.bincount(rows % 3)
    assert json.loads(printed)["seen"] == {"train": counts[0], "validation": counts[1]}
    lines = ["labs.a,labs.b,labs.c,labs.d,pulse.a,pulse.b"]
    table = np.concatenate([some["labs"], some["pulse"]], axis=1)
    lines += [",".join(repr(float(value)) for value in row) for row in table]
    (tmp_path / "some.csv").write_text("\n".join(lines) + "\n")
    _, printed, _ = equipoise("predict", folder, "--data", tmp_path / "some.csv", "--json")
    assert json.loads(printed)["seen"] == {"train": counts[0], "validation": counts[1]}


def test_all_seen_none_seen_and_not_known(equipoise: Any, ward: Any, tmp_path: Path) -> None:
    folder, _, arrays = ward
    seen = {name: values[np.arange(240) % 3 < 2] for name, values in arrays.items()}
    code, printed, _ = equipoise("predict", folder, "--data", saved_as(tmp_path / "seen.npz", seen))
    assert code == 0
    assert "By the labels in the data: over the 160 that it has seen, AUROC of died" in printed
    assert "nan" not in printed
    _, printed, _ = equipoise("predict", folder, "--data", tmp_path / "seen.npz", "--json")
    assert (json.loads(printed)["value"], json.loads(printed)["scored"]) == (None, 0)
    new = {name: values + (values.dtype.kind == "f") if values.dtype.kind == "f" else values
           for name, values in arrays.items()}  # fmt: skip
    out = tmp_path / "answers.csv"
    _, printed, _ = equipoise("predict", folder, "--data", saved_as(tmp_path / "new.npz", new), "--out", out)
    assert "has seen" not in printed
    assert "seen" not in out.read_text(encoding="utf-8").splitlines()[0]
    assert "(240 samples, 30 events)." in printed
    (folder / SEEN).rename(tmp_path / SEEN)
    try:
        _, printed, _ = equipoise("predict", folder, "--data", tmp_path / "seen.npz")
    finally:
        (tmp_path / SEEN).rename(folder / SEEN)
    assert "Whether the model was trained on these samples is not known" in printed
