"""Data sets that need no preparation: generated sensors, and the recordings of a smartwatch."""

import hashlib
import importlib.util
from functools import cache
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from equipoise.data.own.unpickle import load_pickle
from equipoise.data.splits import Splits, split_by_group


def two_sensors(samples: int = 600, classes: int = 3, hard: float = 0.5, seed: int = 0) -> Splits:
    """Generate two sensors that see the same classes, one clearly and one faintly, from ten generated people.

    Args:
        samples: Over all three parts.
        classes: How many.
        hard: How clearly the hard sensor sees them; the easy one sees them at 2.
        seed: Of everything.
    """
    random = torch.Generator().manual_seed(seed)
    label = torch.arange(samples) % classes
    group = torch.arange(samples) // classes % 10

    def sensor(size: int, strength: float) -> Tensor:
        centres = strength * torch.randn(classes, size, generator=random)
        person = 0.3 * torch.randn(10, size, generator=random)
        return centres[label] + person[group] + torch.randn(samples, size, generator=random)

    inputs = {"easy": sensor(8, 2.0), "hard": sensor(12, hard)}
    people = {"train": range(6), "validation": range(6, 9), "test": range(9, 10)}
    names = tuple(f"class {number}" for number in range(classes))
    about = "people 0–5 train, 6–8 validate, 9 tests (all generated)"
    train, validation, test = split_by_group(inputs, label, group, people).values()
    return Splits("generated", train, validation, test, names, about)


SHA256 = "eb122f23cdf06ef6bd6c6c5312958ec5cf9d038e2e6d457b8081662c75a42537"
PEOPLE = tuple(range(1, 11))
WINDOW, STRIDE = 100, 50  # two seconds at 50 Hz, half overlapping
_NAMES = "pendulum|abduction|forward elevation|internal rotation|external rotation|trapezius extension|upright row"
EXERCISES = tuple(_NAMES.split("|"))


def watch(fold: int | None = None, folds: int = len(PEOPLE)) -> Splits:
    """Return windows of two seconds of `accelerometer` and `gyroscope`, each 3 × 100, half overlapping, standardised.

    Args:
        fold: One of ten: person `fold + 1` is the test set, the next three validate, the other six train. None is the
            one fixed split of short comparisons: five people train, three validate, two test.
        folds: How many there are, 3 to 10. Of fewer than ten each tests on several people.
    """
    inputs, label, person = _windows()
    where = people_of(fold, folds)
    train, validation, test = split_by_group(inputs, label, person, where).values()
    described = ", ".join(f"{part}: people {', '.join(map(str, numbers))}" for part, numbers in where.items())
    return Splits("watch", train, validation, test, EXERCISES, described).standardised()


def people_of(fold: int | None, folds: int = len(PEOPLE)) -> dict[str, tuple[int, ...]]:
    """Return the people of each part."""
    if fold is None:
        return {"train": PEOPLE[:5], "validation": PEOPLE[5:8], "test": PEOPLE[8:]}
    if not 0 <= fold < folds:
        raise ValueError(f"watch: fold should be one of 0 to {folds - 1}, found {fold}")
    first, end = (len(PEOPLE) * edge // folds for edge in (fold, fold + 1))
    turned, tested = PEOPLE[first:] + PEOPLE[:first], end - first
    learnt = max(4, tested + 2)  # from here on people train
    return {"train": turned[learnt:], "validation": turned[tested:learnt], "test": turned[:tested]}


@cache
def _windows() -> tuple[dict[str, Tensor], Tensor, Tensor]:
    path = _verified_file()
    with path.open("rb") as file:
        np.lib.format.read_magic(file)
        np.lib.format.read_array_header_1_0(file)
        content = load_pickle(file).tolist()  # the dictionary inside an array without dimensions
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
    package = importlib.util.find_spec("seglearn")  # finds the package without running it
    if package is None or not package.submodule_search_locations:
        needed = "the data set 'watch' comes with the package seglearn, which is not installed"
        raise ModuleNotFoundError(f"{needed}; type: pip install seglearn")
    path = Path(package.submodule_search_locations[0]) / "data" / "watch_dataset.npy"
    again = "type: pip install --force-reinstall seglearn"
    if not path.is_file():
        raise FileNotFoundError(f"expected the recordings at {path}, found no file; {again}")
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    if digest != SHA256:
        raise ValueError(f"{path}: expected sha256 {SHA256}, found {digest}; {again}==1.2.5")
    return path
