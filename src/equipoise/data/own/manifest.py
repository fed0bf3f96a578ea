"""A manifest: a table with a row per sample, whose columns hold paths to files, or numbers.

`label`, `split`, `group` and `id` mean what they say; columns label:NAME are several numbers or labels of each sample.
Every other column is a modality:

- paths, relative to the manifest's folder, whose endings say what they are; "NAME:KIND" as the name of a column says it
  outright, such as "audio:sound" for the sound tracks of videos;
- numbers. Columns NAME_0, NAME_1, … (or from 1 on), and columns NAME.x, NAME.y, …, are one vector called NAME; any
  other column of numbers is a vector of one. In a .parquet a column of lists is a vector too, or a series.

A blank means that the row lacks the modality.
"""

import re
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, final

import numpy as np

from equipoise.data.own.arrays import read_samples
from equipoise.data.own.columns import MARKS, first_few
from equipoise.data.own.draw import TRAIN
from equipoise.data.own.recorded import samples_of_recorded
from equipoise.data.own.samples import Samples
from equipoise.data.own.stacked import SUFFIXES, stack_files
from equipoise.data.own.table import COLUMNS, TableFile, answers_of, numbers_of, read_table
from equipoise.util.errors import BadInput, Unreadable
from equipoise.util.files import reading

SEVERAL = "label:"  # begins the names of columns that are the label together
NUMBERED = re.compile(r"(?P<name>.+)_(?P<number>\d{1,4})", re.ASCII)
FORM = "a first line with the names of the columns, among them label, and a line per sample"


class ManifestColumn(NamedTuple):
    """A modality of a manifest: its kind is "numbers", "lists", or that of its files; a value per row."""

    name: str
    kind: str
    values: Any


@final
@dataclass(frozen=True)
class Manifest:
    """A table that was read, before the files it names are.

    Args:
        path: Of the file.
        columns: Per name one value per row: an array of numbers, or a list of text or of lists; blanks are "" or None.
        names: Names of the rows in messages.
        problems: What is wrong with it.
        notes: What was left out.
        modalities: The columns that are modalities.
        named: Whether a column `id` names the rows.
    """

    path: Path
    columns: dict[str, Any]
    names: list[str]
    problems: list[str]
    notes: list[str]
    modalities: list[ManifestColumn] = field(default_factory=list)
    named: bool = False

    @property
    def recorded(self) -> bool:
        """True where its rows are intervals of recordings, which are cut into windows."""
        return "window" in self.columns

    @property
    def table(self) -> TableFile:
        """The table itself."""
        return TableFile(self.path, self.columns, self.names, self.problems, self.notes, named=self.named)

    @property
    def folds(self) -> int:
        """The number of folds that can be made; no file is read for that, unless windows have to be counted."""
        return self.samples().folds if self.recorded else self._samples({}, [], []).folds

    def samples(self) -> Samples:
        """Read the samples, with everything that is wrong with them."""
        if self.recorded:
            return samples_of_recorded(self.table)
        arrays, problems, notes = self.arrays()
        return self._samples(arrays, problems, notes)

    def arrays(self) -> tuple[dict[str, Any], list[str], list[str]]:
        """Read its modalities, those that can be read, and names of its rows; with all problems and notes."""
        arrays: dict[str, Any] = {"id": self.names} if self.named else {}
        problems, notes = list(self.problems), list(self.notes)
        marks = [MARKS.get(str(value).lower()) for value in self.columns.get("split", ())]
        usual = {number for number, mark in enumerate(marks) if mark == TRAIN} or {*range(len(self.names))}
        for name, kind, values in self.modalities:
            if kind in ("numbers", "lists"):
                arrays[name] = values
                continue
            there = [row for row, value in enumerate(values) if value]  # a blank: the sensor is missing in that row
            deciding = [place for place, row in enumerate(there) if row in usual] or range(len(there))
            files = stack_files(kind, [self.path.parent / values[row] for row in there], deciding, f"reading {name}")
            problems += [f"{name}, {self.names[there[at]]}: {why}" for at, why in sorted(files.failures.items())]
            notes += [f"{name}: {files.note}"] if files.note else []
            if files.values is not None:
                read = dict(zip(there, files.values, strict=True))
                arrays[name] = [read.get(row) for row in range(len(values))]
        return arrays, problems, notes

    def label(self) -> tuple[Any, list[str] | None]:
        """Return the answers, None where there are none; and the names of their columns where there are several."""
        if several := [name for name in self.columns if name.startswith(SEVERAL)]:
            return _stacked([self.columns[name] for name in several]), [name.removeprefix(SEVERAL) for name in several]
        return (answers_of("label", self.columns["label"]) if "label" in self.columns else None), None

    def _samples(self, arrays: dict[str, Any], problems: list[str], notes: list[str]) -> Samples:
        columns = {name: answers_of(name, self.columns[name]) for name in COLUMNS if name in self.columns}
        label, classes = self.label()
        if columns.pop("label", None) is not None and classes is not None:
            both = ", ".join(f"{SEVERAL}{name}" for name in classes)
            problems = [*problems, f"column label: expected either it or {both}, found both"]
        more: dict[str, Any] = {"problems": problems, "notes": notes, "samples": self.names, "classes": classes}
        return read_samples(arrays, label, **columns, name=self.path.name, **more)


def samples_of_manifest(path: str | Path) -> Samples:
    """Read the samples of a ``.csv`` or ``.parquet``, with everything that is wrong with them."""
    return read_manifest(path).samples()


def read_manifest(path: str | Path) -> Manifest:
    """Read a ``.csv`` or ``.parquet``. Columns without a name, and those that begin with "_", are left out.

    Raises:
        BadInput: If the file as a whole cannot be read.
    """
    path = Path(path)
    try:
        with reading(path):
            table = read_table(path)
    except Unreadable as why:
        raise BadInput(f"{why}. Expected a manifest: {FORM}") from why
    named = "id" in table.columns
    manifest = Manifest(table.path, table.columns, table.names, table.problems, table.notes, named=named)
    columns, names, problems = manifest.columns, manifest.names, manifest.problems
    if "id" in columns:
        names[:] = map(str, columns.pop("id"))
    if not names:
        problems.append(f"expected a row per sample, found none below the names {list(columns)}")
    if manifest.recorded:
        return manifest
    if {"start", "end"} <= columns.keys():
        advice = "give window, such as 2s, beside them; or names that begin with _, and they are left out"
        problems.append(f"columns start, end: expected a column window where rows are intervals, found none; {advice}")
    kept = []
    for header, values in columns.items():
        if header not in COLUMNS and not header.startswith(SEVERAL):
            try:
                kept.append(_column(header, values, names))
            except BadInput as problem:
                problems.append(f"column {header}: {problem}")
    manifest.modalities.extend(join_vectors(kept, problems))
    if not manifest.modalities and not problems:
        problems.append("expected a column per modality beside label, split, group and id, found none")
    counts = Counter(column.name for column in manifest.modalities)
    twice = {name: count for name, count in counts.items() if count > 1}
    problems += [f"column {name}: expected one modality of this name, found {twice[name]}" for name in twice]
    return manifest


def _stacked(given: list[Any]) -> np.ndarray:
    """Return several columns as one table: of numbers where all are, NaN where they are blank."""
    read = [answers_of("label", values) for values in given]
    columns = [
        numbers if (numbers := numbers_of(values)) is not None and one.dtype == object else one
        for values, one in zip(given, read, strict=True)
    ]
    plain = all(isinstance(column, np.ndarray) and column.dtype.kind in "biuf" for column in columns)
    return np.stack(columns if plain else [np.array(column, object) for column in columns], axis=1)


def _column(header: str, values: Any, names: list[str]) -> ManifestColumn:
    name, colon, kind = header.partition(":")
    if colon and kind not in SUFFIXES:
        raise BadInput(f"expected one of {', '.join(SUFFIXES)} after the colon, found {kind!r}")
    if not colon and (numbers := numbers_of(values)) is not None:
        return ManifestColumn(name, "numbers", numbers)
    values = [None if isinstance(value, str) and not value else value for value in values]  # missing in that row
    there = [row for row, value in enumerate(values) if value is not None]
    if not there:
        raise BadInput("expected a value in some row, found none in all of them")
    words = header.endswith("_axis") and all(value in ("space", "time") for value in values)
    if words or (not colon and all(isinstance(values[row], list) for row in there)):
        return ManifestColumn(name, "lists", values)
    if colon and all(isinstance(values[row], str) for row in there):
        return ManifestColumn(name, kind, values)
    suffixes = {row: Path(str(values[row])).suffix.lower() if isinstance(values[row], str) else "" for row in there}
    found = {
        row: next((kind for kind, known in SUFFIXES.items() if end in known), None) for row, end in suffixes.items()
    }
    if strange := [row for row, kind in found.items() if kind is None]:
        known = ", ".join(sorted(suffix for suffixes in SUFFIXES.values() for suffix in suffixes))
        raise BadInput(
            f"expected numbers, or paths to files that end in one of {known}; found {values[strange[0]]!r} "
            f'({first_few(strange, names)}). A column that is no modality is left out if its name begins with "_"'
        )
    (usual, _), *others = Counter(found.values()).most_common()
    if not others:
        return ManifestColumn(name, str(usual), values)
    rare = first_few([row for row, kind in found.items() if kind != usual], names)
    also = ", ".join(f"{kind} in {count} rows" for kind, count in others)
    advice = f"put them right, or name the column {header}:{usual} if all are to be read as that"
    raise BadInput(f"expected files of one kind, found {usual} and also {also} ({rare}); {advice}")


def join_vectors(columns: list[ManifestColumn], problems: list[str]) -> list[ManifestColumn]:
    """Return the same columns, with those that are parts of one vector joined in its place."""
    vectors: dict[str, list[tuple[int, ManifestColumn]]] = {}
    joined: dict[Any, ManifestColumn] = {}
    for place, column in enumerate(columns):
        name, dot, _ = column.name.partition(".")
        numbered = None if dot else NUMBERED.fullmatch(column.name)
        if column.kind != "numbers" or not (dot or numbered):
            joined[place] = column
            continue
        name, number = (numbered["name"], int(numbered["number"])) if numbered else (name, -1)
        vectors.setdefault(name, []).append((number, column))
        joined[name] = column  # in the place of the first
    for name, parts in vectors.items():
        numbers = sorted(number for number, _ in parts if number >= 0)
        if numbers and numbers not in (list(range(len(parts))), list(range(1, len(parts) + 1))):
            expected = f"expected {name}_0, {name}_1, … without a gap"
            problems.append(f"columns {name}_…: {expected}, found the numbers {numbers}")
        ordered = [column for _, column in sorted(parts, key=lambda part: part[0])]  # by number, else as they stand
        values = np.stack([np.asarray(column.values, np.float64) for column in ordered], axis=1)
        joined[name] = ManifestColumn(name, "numbers", values)
    return list(joined.values())
