"""Shoulder exercises seen by a smartwatch: the accelerometer and the gyroscope of ten people doing seven exercises.

The recordings (140 series at 50 Hz) come with the package `seglearn` (BSD licence): Burns et al., "Shoulder
Physiotherapy Exercise Recognition: Machine Learning the Inertial Signals from a Smartwatch" (2018). Its file is read
without importing the package, by an unpickler that knows numpy arrays only, after its checksum has been compared.
"""

from __future__ import annotations

import hashlib
import importlib.util
from functools import cache
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from equipoise.data.own.npz import load_object_array
from equipoise.data.splits import Splits, split_by_group

SHA256 = "eb122f23cdf06ef6bd6c6c5312958ec5cf9d038e2e6d457b8081662c75a42537"
PEOPLE = tuple(range(1, 11))
WINDOW, STRIDE = 100, 50  # two seconds at 50 Hz, half overlapping
EXERCISES = (
    "pendulum",
    "abduction",
    "forward elevation",
    "internal rotation",
    "external rotation",
    "trapezius extension",
    "upright row",
)


def watch(fold: int | None = None) -> Splits:
    """Windows of two seconds, half overlapping; modalities `accelerometer` and `gyroscope`, each 3 × 100; standardised.

    Args:
        fold: One of ten: person `fold + 1` is the test set, the next three validate, the other six train. None is the
            one fixed cut of short comparisons: five people train, three validate, two test.
    """
    inputs, label, person = _windows()
    where = people_of(fold)
    parts = split_by_group(inputs, label, person, where)
    described = ", ".join(f"{part}: people {', '.join(map(str, numbers))}" for part, numbers in where.items())
    splits = Splits("watch", parts["train"], parts["validation"], parts["test"], EXERCISES, described)
    return splits.standardised()


def people_of(fold: int | None) -> dict[str, tuple[int, ...]]:
    """Who is in which part."""
    if fold is None:
        return {"train": PEOPLE[:5], "validation": PEOPLE[5:8], "test": PEOPLE[8:]}
    if not 0 <= fold < len(PEOPLE):
        msg = f"watch: fold should be one of 0 to {len(PEOPLE) - 1}, found {fold}"
        raise ValueError(msg)
    turned = PEOPLE[fold:] + PEOPLE[:fold]
    return {"train": turned[4:], "validation": turned[1:4], "test": turned[:1]}


@cache
def _windows() -> tuple[dict[str, Tensor], Tensor, Tensor]:
    content = load_object_array(_verified_file()).tolist()  # the dictionary inside an array without dimensions
    windows, label, person = [], [], []
    for series, exercise, subject in zip(content["X"], content["y"], content["subject"], strict=True):
        starts = range(0, len(series) - WINDOW + 1, STRIDE)
        windows += [series[start : start + WINDOW].T for start in starts]
        label += [int(exercise)] * len(starts)
        person += [int(subject)] * len(starts)
    array = torch.from_numpy(np.stack(windows).astype(np.float32))
    inputs = {"accelerometer": array[:, :3].contiguous(), "gyroscope": array[:, 3:].contiguous()}
    return inputs, torch.tensor(label), torch.tensor(person)


def _verified_file() -> Path:
    found = importlib.util.find_spec("seglearn")  # finds the package without running it
    if found is None or not found.submodule_search_locations:
        msg = "the data set 'watch' comes with the package seglearn, which is not installed; type: pip install seglearn"
        raise ModuleNotFoundError(msg)
    path = Path(found.submodule_search_locations[0]) / "data" / "watch_dataset.npy"
    if not path.is_file():
        msg = f"expected the recordings at {path}, found no file; type: pip install --force-reinstall seglearn"
        raise FileNotFoundError(msg)
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    if digest != SHA256:
        msg = f"{path}: expected sha256 {SHA256}, found {digest}; type: pip install --force-reinstall seglearn==1.2.5"
        raise ValueError(msg)
    return path
