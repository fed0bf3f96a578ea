"""What stands beside the sensors: the label of each sample, its part, and the group it belongs to."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np

from equipoise.data.own.layout import NAMED, as_numpy, some_of
from equipoise.data.splits import PARTS
from equipoise.util.errors import printable
from equipoise.util.processes import memory_problem

VALUE = 100  # bytes, about, that a value of Python's own takes
MARKS = {"0": 0, "train": 0, "1": 1, "validation": 1, "val": 1, "valid": 1, "2": 2, "test": 2}
REGRESSION = (
    "the command trains classifiers. For regression keep your own loop and balance its losses, see docs/own-model.md; "
    "for classes give whole numbers or names, such as label.astype(int)"
)


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
    """Who or what each sample comes from.

    Args:
        numbers: Which of the names, [N].
        names: Sorted; whole numbers stay whole numbers.
    """

    numbers: np.ndarray
    names: tuple[Any, ...]

    def in_two_parts(self, marks: np.ndarray) -> list[str]:
        """Those that are in more than one part, each with where it is."""
        there = np.zeros((len(self.names), len(PARTS)), bool)
        there[self.numbers, marks] = True
        return [
            f"{self.names[number]!r} ({', '.join(itertools.compress(PARTS, there[number]))})"
            for number in np.flatnonzero(there.sum(axis=1) > 1)
        ]


def read_labels(given: Any, classes: Any, problems: list[str], samples: Sequence[str] | None = None) -> Labels | None:
    """Classes from whole numbers, names or truth values; None where there are none, with the reasons in `problems`.

    Whole numbers 0 … C − 1 stay as they are. Anything else is numbered in the order of `classes`, or sorted.
    """
    before = len(problems)
    names = _class_names(classes, problems)
    column = _column("label", given, problems, samples)
    if column is None:
        return None
    if len(column) == 0:
        problems.append("label: expected at least one sample, found none")
    elif column.dtype.kind == "f":
        problems.append(f"label: expected classes, found the numbers {_shown(column)}: {REGRESSION}")
    if len(problems) > before:
        return None
    if names is not None and column.dtype.kind != "U":
        return _numbered(column.astype(np.int64), names, problems)
    found, numbers = np.unique(column, return_inverse=True)
    values = found.tolist()
    if names is None:
        names = tuple(map(str, values))
        problems += [f"label: {why}" for why in _odd_names(names)]
    elif unknown := sorted({*values} - {*names}):
        problems.append(f"label: expected one of the classes {list(names)}, found {_few(unknown)}")
        return None
    else:
        place = {name: number for number, name in enumerate(names)}
        numbers = np.array([place[value] for value in values])[numbers]
    if len(set(numbers.tolist())) < 2:
        problems.append(f"label: expected two classes or more, found {list(map(str, np.unique(column).tolist()))}")
    return Labels(numbers.reshape(-1).astype(np.int64), names)


def read_marks(given: Any, problems: list[str], samples: Sequence[str] | None = None) -> np.ndarray | None:
    """The part of each sample, 0, 1 or 2; None where it cannot be told, with the reasons in `problems`."""
    column = _column("split", given, problems, samples)
    if column is None:
        return None
    values, numbers = np.unique(column, return_inverse=True)
    marks = [MARKS.get(_plain(value)) for value in values.tolist()]
    if unknown := [value for value, mark in zip(values.tolist(), marks, strict=True) if mark is None]:
        problems.append(f"split: expected train, validation or test, or 0, 1, 2 for these; found {_few(unknown)}")
        return None
    return np.array(marks, np.int64)[numbers.reshape(-1)]


def read_groups(given: Any, problems: list[str], samples: Sequence[str] | None = None) -> Groups | None:
    """Groups from whole numbers or names; None where they cannot be told, with the reasons in `problems`."""
    column = _column("group", given, problems, samples)
    if column is None:
        return None
    if column.dtype.kind == "f":
        if (column != np.round(column)).any():
            problems.append(f"group: expected whole numbers or names, found the numbers {_shown(column)}")
            return None
        column = column.astype(np.int64)
    names, numbers = np.unique(column, return_inverse=True)
    return Groups(numbers.reshape(-1), tuple(names.tolist()))


def _column(name: str, given: Any, problems: list[str], samples: Sequence[str] | None) -> np.ndarray | None:
    """One value per sample: truth values, numbers or text."""
    column = as_numpy(given)
    if column.ndim == 2 and column.shape[1] == 1:
        column = column[:, 0]
    if column.ndim != 1:
        hint = "; of one-hot rows give array.argmax(axis=1)" if column.ndim == 2 else ""
        problems.append(f"{name}: expected one value per sample, [N], found an array of shape {column.shape}{hint}")
        return None
    if why := memory_problem(VALUE * column.size):
        problems.append(f"{name}: {why}")
        return None
    values = column.tolist()
    if missing := [number for number, value in enumerate(values) if _is_missing(value)]:
        problems.append(
            f"{name}: expected a value for every sample, found none in {len(missing)} of {len(values)} "
            f"({some_of(missing, samples)})"
        )
        return None
    if column.dtype.kind in "OS":
        column = _of_objects(values)
    if column is None or column.dtype.kind not in "biufU":
        kinds = sorted({type(value).__name__ for value in values})
        problems.append(f"{name}: expected whole numbers or names, found values of the types {', '.join(kinds)}")
        return None
    return column


def _of_objects(values: list[Any]) -> np.ndarray | None:
    """Python's own values as one array, if they are of one kind."""
    values = [value.decode("utf-8", "replace") if isinstance(value, bytes) else value for value in values]
    if all(isinstance(value, str) for value in values):
        return np.array(values, dtype=str)
    if all(isinstance(value, (bool, np.bool_)) for value in values):
        return np.array(values, dtype=bool)
    if all(isinstance(value, (int, float, np.number)) and not isinstance(value, bool) for value in values):
        return np.array(values)
    return None


def _class_names(classes: Any, problems: list[str]) -> tuple[str, ...] | None:
    if classes is None:
        return None
    names = tuple(map(str, as_numpy(classes).reshape(-1).tolist()))
    if len(set(names)) < len(names) or len(names) < 2:
        problems.append(f"classes: expected two names or more, every one another, found {list(names)}")
    problems += [f"classes: {why}" for why in _odd_names(names)]
    return names


def _odd_names(names: Sequence[str]) -> list[str]:
    """Say which names hold characters that would command the terminal, or the page, on which they are shown."""
    odd = [name for name in names if printable(name, "") != name]
    return [f"expected names of letters that can be shown, found {_few(odd)}"] if odd else []


def _numbered(numbers: np.ndarray, names: tuple[str, ...], problems: list[str]) -> Labels | None:
    """Whole numbers that say themselves which class they are."""
    if outside := sorted({number for number in numbers.tolist() if not 0 <= number < len(names)}):
        problems.append(
            f"label: expected 0 to {len(names) - 1}, since {len(names)} classes are named, found {_few(outside)}"
        )
        return None
    if len(set(numbers.tolist())) < 2:
        problems.append(f"label: expected samples of two classes or more, found those of {names[numbers[0]]} only")
    return Labels(numbers, names)


def _is_missing(value: Any) -> bool:
    return value is None or value in ("", b"") or (isinstance(value, float) and value != value)


def _plain(value: Any) -> str:
    whole = isinstance(value, float) and value.is_integer()
    return str(int(value) if whole else value).strip().lower()


def _few(values: Sequence[Any]) -> str:
    return ", ".join(map(repr, values[:NAMED])) + (", …" if len(values) > NAMED else "")


def _shown(column: np.ndarray) -> str:
    return _few([float(value) for value in np.unique(column)[: NAMED + 1]])
