"""Columns beside the sensors: the label of each sample, its part, and its group."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np
import torch
from torch import Tensor

from equipoise.util.errors import BadInput, printable
from equipoise.util.processes import memory_problem

PARTS = ("train", "validation", "test")
MARKS = {"0": 0, "train": 0, "1": 1, "validation": 1, "val": 1, "valid": 1, "2": 2, "test": 2}
VALUE = 100  # bytes, about, that a Python value takes
NAMED = 5  # of many wrong samples, so many are named
REGRESSION = (
    "the command trains classifiers. For regression keep your own loop and balance its losses, see docs/own-model.md; "
    "for classes give whole numbers or names, such as label.astype(int)"
)
_KINDS = {"text": str, "truth values": (bool, np.bool_), "numbers": (int, float, np.number)}


@final
@dataclass(frozen=True)
class Labels:
    """The class of each sample.

    Args:
        numbers: From 0, [N].
        classes: Their names, in that order.
    """

    numbers: np.ndarray
    classes: tuple[str, ...]


@final
@dataclass(frozen=True)
class Groups:
    """The person, speaker or recording that each sample comes from.

    Args:
        numbers: Indices into the names, [N].
        names: Sorted; whole numbers stay whole numbers.
    """

    numbers: np.ndarray
    names: tuple[Any, ...]

    def in_two_parts(self, marks: np.ndarray) -> list[str]:
        """Return the groups that are in more than one part, each with its parts."""
        there = np.zeros((len(self.names), len(PARTS)), bool)
        there[self.numbers, marks] = True
        return [
            f"{self.names[number]!r} ({', '.join(itertools.compress(PARTS, there[number]))})"
            for number in np.flatnonzero(there.sum(axis=1) > 1)
        ]


def as_numpy(given: Any) -> np.ndarray:
    """Return a tensor, list or array as a numpy array."""
    if isinstance(given, Tensor):
        given = given.detach().cpu()
        given = (given.float() if given.dtype == torch.bfloat16 else given).numpy()
    return np.asarray(given)


def first_few(numbers: Sequence[int], samples: Sequence[str] | None = None) -> str:
    """Return the first few of many samples, by name."""
    named = ", ".join(str(number) if samples is None else samples[number] for number in numbers[:NAMED])
    return named + (", …" if len(numbers) > NAMED else "")


def read_labels(given: Any, classes: Any, problems: list[str], samples: Sequence[str] | None = None) -> Labels | None:
    """Read classes from whole numbers, names or truth values.

    Whole numbers 0 … C − 1 stay as they are. Anything else is numbered in the order of `classes`, or sorted.

    Args:
        given: One value per sample.
        classes: Their names; None where they have none.
        problems: Collects what is wrong with the classes, of which there may be several.
        samples: Names of the samples, for messages.

    Raises:
        BadInput: If the values cannot be classes.
    """
    names, before = None, len(problems)
    if classes is not None:
        names = tuple(map(str, as_numpy(classes).reshape(-1).tolist()))
        if len(set(names)) < len(names) or len(names) < 2:
            problems.append(f"classes: expected two names or more, every one another, found {list(names)}")
        problems += _unprintable("classes", names)
    column = _read_column("label", given, samples)
    if len(column) == 0:
        raise BadInput("label: expected at least one sample, found none")
    if column.dtype.kind == "f":
        raise BadInput(f"label: expected classes, found the numbers {_distinct(column)}: {REGRESSION}")
    if len(problems) > before:
        return None
    distinct, numbers = np.unique(column, return_inverse=True)
    values = distinct.tolist()
    if names is None:
        names = tuple(map(str, values))
        problems += _unprintable("label", names)
    elif column.dtype.kind != "U":  # numbers that say themselves which class they are
        numbers = column.astype(np.int64)
        if outside := [number for number in sorted({*numbers.tolist()}) if not 0 <= number < len(names)]:
            expected = f"label: expected 0 to {len(names) - 1}, since {len(names)} classes are named"
            raise BadInput(f"{expected}, found {_few(outside)}")
        if len(values) < 2:
            only = f"found those of {names[numbers[0]]} only"
            problems.append(f"label: expected samples of two classes or more, {only}")
        return Labels(numbers, names)
    elif unknown := sorted({*values} - {*names}):
        raise BadInput(f"label: expected one of the classes {list(names)}, found {_few(unknown)}")
    else:
        place = {name: number for number, name in enumerate(names)}
        numbers = np.array([place[value] for value in values])[numbers]
    if len(values) < 2:
        problems.append(f"label: expected two classes or more, found {list(map(str, values))}")
    return Labels(numbers.astype(np.int64), names)


def read_marks(given: Any, samples: Sequence[str] | None = None) -> np.ndarray:
    """Read the part of each sample, 0, 1 or 2.

    Raises:
        BadInput: If there are other values.
    """
    distinct, numbers = np.unique(_read_column("split", given, samples), return_inverse=True)
    values = distinct.tolist()
    whole = [int(value) if isinstance(value, float) and value.is_integer() else value for value in values]
    marks = [MARKS.get(str(value).strip().lower()) for value in whole]
    if unknown := [value for value, mark in zip(values, marks, strict=True) if mark is None]:
        raise BadInput(f"split: expected train, validation or test, or 0, 1, 2 for these; found {_few(unknown)}")
    return np.array(marks, np.int64)[numbers]


def read_groups(given: Any, samples: Sequence[str] | None = None) -> Groups:
    """Read groups from whole numbers or names.

    Raises:
        BadInput: If they are neither.
    """
    column = _read_column("group", given, samples)
    if column.dtype.kind == "f":
        if (column != np.round(column)).any():
            raise BadInput(f"group: expected whole numbers or names, found the numbers {_distinct(column)}")
        column = column.astype(np.int64)
    names, numbers = np.unique(column, return_inverse=True)
    return Groups(numbers, tuple(names.tolist()))


def _read_column(name: str, given: Any, samples: Sequence[str] | None) -> np.ndarray:
    """Read one value per sample: truth values, numbers or text."""
    column = as_numpy(given)
    if column.ndim == 2 and column.shape[1] == 1:
        column = column[:, 0]
    if column.ndim != 1:
        hint = "; of one-hot rows give array.argmax(axis=1)" if column.ndim == 2 else ""
        raise BadInput(f"{name}: expected one value per sample, [N], found an array of shape {column.shape}{hint}")
    if why := memory_problem(VALUE * column.size):
        raise BadInput(f"{name}: {why}")
    values = column.tolist()
    blank = [value is None or value in ("", b"") or (isinstance(value, float) and value != value) for value in values]
    if missing := np.flatnonzero(blank).tolist():
        count = f"{len(missing)} of {len(values)} ({first_few(missing, samples)})"
        raise BadInput(f"{name}: expected a value for every sample, found none in {count}")
    kinds = sorted({type(value).__name__ for value in values})
    if column.dtype.kind in "OS":
        values = [value.decode("utf-8", "replace") if isinstance(value, bytes) else value for value in values]
        found = {next((kind for kind, types in _KINDS.items() if isinstance(value, types)), "") for value in values}
        if len(found) <= 1 and "" not in found:
            column = np.array(values, dtype=None if values else str)
    if column.dtype.kind not in "biufU":
        raise BadInput(f"{name}: expected whole numbers or names, found values of the types {', '.join(kinds)}")
    return column


def _unprintable(column: str, names: Sequence[str]) -> list[str]:
    """Report names with characters that would command the terminal, or the page, on which they are shown."""
    odd = [name for name in names if printable(name, "") != name]
    return [f"{column}: expected names of letters that can be shown, found {_few(odd)}"] if odd else []


def _few(values: Sequence[Any]) -> str:
    return ", ".join(map(repr, values[:NAMED])) + (", …" if len(values) > NAMED else "")


def _distinct(column: np.ndarray) -> str:
    return _few([float(value) for value in np.unique(column)[: NAMED + 1]])
