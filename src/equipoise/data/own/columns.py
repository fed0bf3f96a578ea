"""Columns with one value per sample, truth values, numbers or text: parts and groups."""

import itertools
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np
import torch
from torch import Tensor

from equipoise.data.own.draw import PARTS
from equipoise.util.errors import BadInput, first_line, printable
from equipoise.util.processes import memory_problem

MARKS = {"0": 0, "train": 0, "1": 1, "validation": 1, "val": 1, "valid": 1, "2": 2, "test": 2}
VALUE = 100  # bytes, about, that a Python value takes
NAMED = 5  # of many wrong samples, so many are named
MOST_SHOWN = 20
_KINDS = {"text": str, "truth values": (bool, np.bool_), "numbers": (int, float, np.number)}


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

    @property
    def are_numbers(self) -> bool:
        """True if they are whole numbers that a tensor can hold: hashes of 64 bits may be larger."""
        return all(type(name) is int and -(2**63) <= name < 2**63 for name in self.names)

    def in_two_parts(self, marks: np.ndarray) -> list[str]:
        """Return the groups that are in more than one part, each with its parts."""
        there = np.zeros((len(self.names), len(PARTS)), bool)
        there[self.numbers, marks] = True
        return [
            f"{self.names[number]!r} ({', '.join(itertools.compress(PARTS, there[number]))})"
            for number in np.flatnonzero(there.sum(axis=1) > 1)
        ]


def as_numpy(given: Any) -> np.ndarray:
    """Return a tensor, list or array as a numpy array; what a masked one hides is NaN, or None.

    Raises:
        ValueError: Where there is no such array; or TypeError.
    """
    try:
        return _as_numpy(given)
    except (RuntimeError, MemoryError) as why:  # nested tensors, objects that say that they are endless
        raise ValueError(first_line(why)) from None


def _as_numpy(given: Any) -> np.ndarray:
    if isinstance(given, Tensor):
        if given.is_meta:
            raise BadInput("expected tensors with numbers in them, found one on the device meta, which holds none")
        given = given.detach().cpu()
        given = (given.float() if given.dtype == torch.bfloat16 else given).numpy()
    if isinstance(given, np.ma.MaskedArray) and np.ma.is_masked(given):
        plain = given.dtype.kind in "biuf"
        wide = given.dtype if given.dtype.kind == "f" else np.dtype(float if plain else object)
        return given.astype(wide).filled(np.nan if plain else None)
    return np.asarray(given)


def size_of(given: Any) -> int | None:
    """Return the number of entries of a list or array; None where it has no axis."""
    if given is None or isinstance(given, (list, tuple)):
        return None if given is None else len(given)
    array = as_numpy(given)
    return len(array) if array.ndim else None


def first_few(numbers: Sequence[int], samples: Sequence[str] | None = None) -> str:
    """Return the first few of many samples, by name."""
    named = ", ".join(str(number) if samples is None else samples[number] for number in numbers[:NAMED])
    return named + (", …" if len(numbers) > NAMED else "")


def read_marks(given: Any, samples: Sequence[str] | None = None) -> np.ndarray:
    """Read the part of each sample, 0, 1 or 2.

    Raises:
        BadInput: If there are other values.
    """
    distinct, numbers = np.unique(read_column("split", given, samples), return_inverse=True)
    values = distinct.tolist()
    whole = [int(value) if isinstance(value, float) and value.is_integer() else value for value in values]
    marks = [MARKS.get(str(value).strip().lower()) for value in whole]
    if unknown := [value for value, mark in zip(values, marks, strict=True) if mark is None]:
        raise BadInput(f"split: expected train, validation or test, or 0, 1, 2 for these; found {few(unknown)}")
    return np.array(marks, np.int64)[numbers]


def read_ids(given: Any) -> tuple[Any, ...]:
    """Read the names of samples, whole numbers or text.

    Raises:
        BadInput: If they are neither, or two samples have the same.
    """
    ids = tuple(read_column("id", given, None).tolist())
    if repeated := [name for name, count in Counter(ids).items() if count > 1]:
        raise BadInput(f"id: expected another name for every sample, found again {few(repeated)}")
    return ids


def read_groups(given: Any, samples: Sequence[str] | None = None) -> Groups:
    """Read groups from whole numbers or names.

    Raises:
        BadInput: If they are neither.
    """
    column = read_column("group", given, samples)
    if column.dtype.kind == "f":
        if (column != np.round(column)).any():
            raise BadInput(f"group: expected whole numbers or names, found the numbers {distinct_values(column)}")
        column = column.astype(np.int64)
    names, numbers = np.unique(column, return_inverse=True)
    return Groups(numbers, tuple(names.tolist()))


def read_column(name: str, given: Any, samples: Sequence[str] | None) -> np.ndarray:
    """Read one value per sample: truth values, numbers or text."""
    column = as_numpy(given)
    if column.ndim == 2 and column.shape[1] == 1:
        column = column[:, 0]
    if column.ndim != 1:
        raise BadInput(f"{name}: expected one value per sample, [N], found an array of shape {column.shape}")
    if why := memory_problem(VALUE * column.size):
        raise BadInput(f"{name}: {why}")
    values = column.tolist()
    if missing := [number for number, value in enumerate(values) if is_blank(value)]:
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


def is_blank(value: object) -> bool:
    """Return whether a value stands for none: None, NaN, an empty text, or what pandas has for that."""
    empty = isinstance(value, (str, bytes)) and not value
    return value is None or empty or (isinstance(value, float) and value != value) or type(value).__name__ == "NAType"


def unprintable(column: str, names: Sequence[str]) -> list[str]:
    """Report names with characters that would command the terminal, or the page, on which they are shown."""
    odd = [name for name in names if printable(name, "") != name]
    return [f"{column}: expected names of letters that can be shown, found {few(odd)}"] if odd else []


def few(values: Sequence[Any]) -> str:
    """Return the first few of many values, as Python writes them."""
    return ", ".join(map(repr, values[:NAMED])) + (", …" if len(values) > NAMED else "")


def listed(names: Sequence[str]) -> str:
    """Return names, separated by commas; the first twenty of very many."""
    return ", ".join(names[:MOST_SHOWN]) + (f" and {len(names) - MOST_SHOWN} more" if len(names) > MOST_SHOWN else "")


def counted(count: int, noun: str) -> str:
    """Return a number of things in words: "1 group", "2 groups"."""
    return f"{count} {noun}" + ("s" if count != 1 else "")


def distinct_values(column: np.ndarray) -> str:
    """Return the first few distinct numbers of a column."""
    return few([float(value) for value in np.unique(column)[: NAMED + 1]])
