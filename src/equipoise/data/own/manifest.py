"""A manifest: a table with a row per sample, whose columns hold paths to files, or numbers.

`label`, `split`, `group` and `id` mean what they say. Every other column is a modality:

- paths, relative to the manifest's folder, whose endings say what they are; "NAME:KIND" as the name of a column says it
  outright, such as "audio:sound" for the sound tracks of videos;
- numbers. Columns NAME_0, NAME_1, … (or from 1 on), and columns NAME.x, NAME.y, …, are one vector called NAME; any
  other column of numbers is a vector of one. In a .parquet a column of lists is a vector too, or a series.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import numpy as np

from equipoise.data.own.arrays import understand
from equipoise.data.own.columns import MARKS
from equipoise.data.own.cutting import TRAIN
from equipoise.data.own.layout import some_of
from equipoise.data.own.samples import Samples
from equipoise.data.own.table import Rows, answers, numbers, read_table
from equipoise.data.own.unify import SUFFIXES, unify

COLUMNS = ("label", "split", "group")
NUMBERED = re.compile(r"(?P<name>.+)_(?P<number>\d{1,4})", re.ASCII)


@final
@dataclass(frozen=True)
class Column:
    """A modality of a manifest.

    Args:
        name: Of the modality.
        kind: "numbers", "lists", or the kind of files.
        values: Per row.
    """

    name: str
    kind: str
    values: Any


@final
@dataclass(frozen=True)
class Manifest:
    """A table that was understood, before the files it names are read.

    Args:
        path: Where it is.
        rows: The table.
        modalities: What its columns are.
        problems: What is wrong with it.
    """

    path: Path
    rows: Rows
    modalities: list[Column]
    problems: list[str]

    @property
    def folds(self) -> int:
        """How many folds can be made, which no file needs to be read for."""
        return self._understood({}, [], []).folds

    def samples(self) -> Samples:
        """The samples, with everything that is wrong with them."""
        arrays: dict[str, Any] = {}
        problems, notes = list(self.problems), list(self.rows.notes)
        marks = [MARKS.get(str(value).lower()) for value in self.rows.columns.get("split", ())]
        usual = [number for number, mark in enumerate(marks) if mark == TRAIN] or list(range(len(self.rows.names)))
        for column in self.modalities:
            if column.kind in ("numbers", "lists"):
                arrays[column.name] = column.values
                continue
            paths = [self.path.parent / value for value in column.values]
            found = unify(column.kind, paths, usual, f"reading {column.name}")
            problems += [
                f"{column.name}, {self.rows.names[number]}: {why}" for number, why in sorted(found.failures.items())
            ]
            if found.values is not None:
                arrays[column.name] = found.values
            if found.note:
                notes.append(f"{column.name}: {found.note}")
        return self._understood(arrays, problems, notes)

    def _understood(self, arrays: dict[str, Any], problems: list[str], notes: list[str]) -> Samples:
        columns = {name: self.rows.columns.get(name) for name in COLUMNS}
        told = {name: None if values is None else answers(name, values) for name, values in columns.items()}
        return understand(arrays, **told, name=self.path.name, problems=problems, notes=notes, samples=self.rows.names)


def read_manifest(path: str | Path) -> Manifest:
    """Read a manifest's table, and tell what its columns are.

    Raises:
        BadInput: If the file as a whole cannot be read.
    """
    path = Path(path)
    rows = read_table(path)
    problems = list(rows.problems)
    columns = [
        column
        for name, values in rows.columns.items()
        if name not in COLUMNS and (column := _column(name, values, rows, problems)) is not None
    ]
    modalities = _vectors_joined(columns, problems)
    if not modalities and not problems:
        problems.append("expected a column per modality beside label, split, group and id, found none")
    names = Counter(column.name for column in modalities)
    problems += [
        f"column {name}: expected one modality of this name, found {count}"
        for name, count in names.items()
        if count > 1
    ]
    return Manifest(path, rows, modalities, problems)


def samples_of_manifest(path: str | Path) -> Samples:
    """The samples of a ``.csv`` or ``.parquet``, with everything that is wrong with them."""
    return read_manifest(path).samples()


def _column(header: str, values: Any, rows: Rows, problems: list[str]) -> Column | None:
    name, colon, kind = header.partition(":")
    if colon and kind not in SUFFIXES:
        problems.append(f"column {header}: expected one of {', '.join(SUFFIXES)} after the colon, found {kind!r}")
        return None
    if not colon and (found := numbers(values)) is not None:
        return Column(name, "numbers", found)
    if blank := [
        number for number, value in enumerate(values) if value is None or (isinstance(value, str) and not value)
    ]:
        problems.append(
            f"column {header}: expected a value in every row, found none in {len(blank)} ({some_of(blank, rows.names)})"
        )
        return None
    if not colon and all(isinstance(value, list) for value in values):
        return Column(name, "lists", values)
    kinds = [_kind(value) for value in values]
    counted = Counter(kind for kind in kinds if kind is not None)
    if not colon and len(counted) == 1 and None not in kinds:
        return Column(name, next(iter(counted)), values)
    if colon and all(isinstance(value, str) for value in values):
        return Column(name, kind, values)
    problems.append(_mixed(header, values, kinds, rows))
    return None


def _kind(value: Any) -> str | None:
    """What a path leads to, by its ending; None where that says nothing."""
    suffix = Path(value).suffix.lower() if isinstance(value, str) else ""
    return next((kind for kind, known in SUFFIXES.items() if suffix in known), None)


def _mixed(header: str, values: Any, kinds: list[str | None], rows: Rows) -> str:
    known = sorted({suffix for suffixes in SUFFIXES.values() for suffix in suffixes})
    strange = [number for number, kind in enumerate(kinds) if kind is None]
    if strange:
        return (
            f"column {header}: expected numbers, or paths to files that end in one of {', '.join(known)}; found "
            f"{values[strange[0]]!r} ({some_of(strange, rows.names)}). A column that is no modality is left out if its "
            'name begins with "_"'
        )
    (usual, _), *others = Counter(kinds).most_common()
    rare = [number for number, kind in enumerate(kinds) if kind != usual]
    found = ", ".join(f"{kind} in {count} rows" for kind, count in others)
    return (
        f"column {header}: expected files of one kind, found {usual} and also {found} ({some_of(rare, rows.names)}); "
        f"put them right, or name the column {header}:{usual} if all are to be read as that"
    )


def _vectors_joined(columns: list[Column], problems: list[str]) -> list[Column]:
    """The same columns with those that are parts of one vector in its place."""
    vectors: dict[str, list[tuple[int | None, Column]]] = {}
    joined: list[Column] = []
    for column in columns:
        dotted, numbered = column.name.partition("."), NUMBERED.fullmatch(column.name)
        if column.kind != "numbers" or not (dotted[1] or numbered):
            joined.append(column)
            continue
        name = numbered["name"] if numbered and not dotted[1] else dotted[0]
        number = int(numbered["number"]) if numbered and not dotted[1] else None
        if name not in vectors:
            joined.append(Column(name, "numbers", None))
        vectors.setdefault(name, []).append((number, column))
    for name, parts in vectors.items():
        found = sorted(number for number, _ in parts if number is not None)
        if found and found not in (list(range(len(parts))), list(range(1, len(parts) + 1))):
            problems.append(
                f"columns {name}_…: expected {name}_0, {name}_1, … without a gap, found the numbers {found}"
            )
    return [
        column if column.values is not None else Column(column.name, "numbers", _stacked(vectors[column.name]))
        for column in joined
    ]


def _stacked(parts: list[tuple[int | None, Column]]) -> np.ndarray:
    ordered = sorted(parts, key=lambda part: -1 if part[0] is None else part[0])  # by number, else as they stand
    return np.stack([np.asarray(column.values, np.float64) for _, column in ordered], axis=1)
