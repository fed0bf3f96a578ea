"""The smartwatch recordings: read without their package, cut by person."""

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from equipoise.data import Splits, watch
from equipoise.data.bundled import _verified_file, _windows, people_of
from equipoise.data.source import all_data

FOLDS = [None, *range(10)]


def pretend(monkeypatch: pytest.MonkeyPatch, folder: Path | None) -> None:
    """Let the package lie in another folder, or nowhere."""
    found = None if folder is None else SimpleNamespace(submodule_search_locations=[str(folder)])
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: found)


def test_a_missing_package_is_named_with_what_to_type(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, None)
    with pytest.raises(ModuleNotFoundError, match=r"comes with the package seglearn.*type: pip install seglearn"):
        _verified_file()


def test_a_missing_file_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pretend(monkeypatch, tmp_path)
    with pytest.raises(FileNotFoundError, match=r"watch_dataset\.npy, found no file; type: pip install"):
        _verified_file()


def test_another_file_is_not_read(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    original = _verified_file().read_bytes()
    (tmp_path / "data" / "watch_dataset.npy").write_bytes(original[:-1] + bytes([original[-1] ^ 1]))
    pretend(monkeypatch, tmp_path)
    with pytest.raises(ValueError, match=r"expected sha256 eb122f.*, found .*; type: pip install --force-reinstall"):
        _verified_file()


def test_the_package_is_not_imported() -> None:
    program = (
        "import sys; from equipoise.data import watch; watch(); "
        "assert not [name for name in sys.modules if name.split('.')[0] in ('seglearn', 'sklearn')]"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


def recordings() -> dict[str, Any]:
    return np.load(_verified_file(), allow_pickle=True).tolist()  # known by its checksum


def test_windows_are_two_seconds_and_overlap_by_half() -> None:
    inputs, label, person = _windows()
    content, at = recordings(), 0
    assert len(content["X"]) == 140
    for series, exercise, subject in zip(content["X"], content["y"], content["subject"], strict=True):
        count = (len(series) - 100) // 50 + 1
        rows = slice(at, at + count)
        assert label[rows].tolist() == [int(exercise)] * count
        assert person[rows].tolist() == [int(subject)] * count
        for name, columns in (("accelerometer", slice(0, 3)), ("gyroscope", slice(3, 6))):
            for number in (0, 1, count - 1):
                expected = series[50 * number : 50 * number + 100, columns].T.astype(np.float32)
                assert (inputs[name][at + number].numpy() == expected).all()
        at += count
    assert at == len(label) == len(person) == len(inputs["gyroscope"])


def test_modalities_classes_and_shapes() -> None:
    found = watch().check()
    assert found.shapes == {"accelerometer": (3, 100), "gyroscope": (3, 100)}
    short = ["PEN", "ABD", "FEL", "IR", "ER", "TRAP", "ROW"]  # as the recordings have them
    assert recordings()["y_labels"] == short
    assert found.classes == (
        "pendulum", "abduction", "forward elevation", "internal rotation", "external rotation",
        "trapezius extension", "upright row",
    )  # fmt: skip
    assert all(part.inputs["gyroscope"].dtype == torch.float32 for part in found.parts.values())


def people(found: Splits) -> dict[str, set[int]]:
    return {name: set(part.group.tolist()) for name, part in found.parts.items() if part.group is not None}


@pytest.mark.parametrize("fold", FOLDS)
def test_nobody_is_in_two_parts(fold: int | None) -> None:
    found = watch(fold).check()
    groups = people(found)
    assert {name: set(numbers) for name, numbers in people_of(fold).items()} == groups
    assert sum(map(len, groups.values())) == len(set.union(*groups.values())) == 10
    assert sum(map(len, found.parts.values())) == len(_windows()[1])


def test_the_fixed_split_tests_on_the_last_two_people() -> None:
    assert people_of(None) == {"train": (1, 2, 3, 4, 5), "validation": (6, 7, 8), "test": (9, 10)}
    assert people_of(8) == {"train": (3, 4, 5, 6, 7, 8), "validation": (10, 1, 2), "test": (9,)}


def test_everybody_is_tested_once() -> None:
    tested = [person for fold in range(10) for person in people_of(fold)["test"]]
    assert sorted(tested) == list(range(1, 11))
    validated = [person for fold in range(10) for person in people_of(fold)["validation"]]
    assert sorted(validated) == sorted(3 * list(range(1, 11)))
    assert all_data()["watch"].folds == 10


@pytest.mark.parametrize("fold", [-1, 10])
def test_a_fold_there_is_not(fold: int) -> None:
    with pytest.raises(ValueError, match=f"fold should be one of 0 to 9, found {fold}"):
        watch(fold)


@pytest.mark.parametrize("fold", [None, 4])
def test_standardised_on_training_people(fold: int | None) -> None:
    found = watch(fold)
    for array in found.train.inputs.values():
        torch.testing.assert_close(array.mean((0, 2)), torch.zeros(3), atol=1e-4, rtol=0)
        torch.testing.assert_close(array.std((0, 2)), torch.ones(3), atol=1e-4, rtol=0)
    for part in (found.validation, found.test):
        assert any((array.mean((0, 2)).abs() > 0.01).any() for array in part.inputs.values())
        assert any(((array.std((0, 2)) - 1).abs() > 0.01).any() for array in part.inputs.values())


def test_the_fingerprint_names_the_fold_and_stays() -> None:
    marks = [watch(fold).fingerprint() for fold in FOLDS]
    assert len(set(marks)) == len(FOLDS)
    assert watch(3).fingerprint() == marks[4]
