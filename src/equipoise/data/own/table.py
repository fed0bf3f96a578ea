"""Reading a manifest as a table: columns by name, from .csv or .parquet."""

from __future__ import annotations

import csv
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, final

import numpy as np

from equipoise.data.own.layout import some_of
from equipoise.util.errors import BadInput, Unreadable
from equipoise.util.files import reading
from equipoise.util.processes import free_memory, memory_problem

NUMBER = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?|[+-]?(nan|inf|infinity)", re.ASCII | re.IGNORECASE)
WHOLE = re.compile(
    r"0|-?[1-9]\d{0,17}", re.ASCII
)  # "007" is a name: read as a number, it would not be written like that
CELLS = 10  # bytes that one byte of a csv takes as values of Python's own, about
VALUE, NUMBER_SIZE = 100, 16  # bytes that a value of Python's own, or a number in an array, takes, about
INSIDE = 5  # bytes that one byte of text or of a list takes as values of Python's own, about
FORM = "a first line with the names of the columns, among them label, and a line per sample"


@final
@dataclass(frozen=True)
class Rows:
    """A table.

    Args:
        columns: Per name one value per row: an array of numbers, or a list of text or of lists; blanks are "" or None.
        names: What messages call each row.
        problems: What is wrong with it.
        notes: What was left out.
    """

    columns: dict[str, Any]
    names: list[str]
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def read_table(path: Path) -> Rows:
    """The table of a ``.csv`` or ``.parquet``. Columns without a name, and those that begin with "_", are left out.

    Raises:
        BadInput: If the file as a whole cannot be read.
    """
    try:
        with reading(path):
            found = _read_parquet(path) if path.suffix.lower() == ".parquet" else _read_csv(path)
    except Unreadable as why:
        raise BadInput(f"{why}. Expected a manifest: {FORM}") from why
    if "id" in found.columns:
        ids = [str(value) for value in found.columns.pop("id")]
        found = Rows(found.columns, ids, found.problems, found.notes)
        if repeated := [each for each, count in Counter(ids).items() if count > 1]:
            found.problems.append(
                f"id: expected another in every row, found again {some_of(range(len(repeated)), repeated)}"
            )
    if not found.names:
        found.problems.append(f"expected a row per sample, found none below the names {list(found.columns)}")
    return found


def numbers(values: Any) -> np.ndarray | None:
    """A column as numbers, with NaN where it is blank; None where it holds anything else."""
    if isinstance(values, np.ndarray):
        return values if values.dtype.kind in "biuf" else None
    if not all(isinstance(value, str) and (not value or NUMBER.fullmatch(value)) for value in values):
        return None
    return np.array([float(value) if value else np.nan for value in values]) if any(values) else None


def answers(name: str, values: Any) -> Any:
    """Label, split or group: whole numbers where all are written as such, or text; a label may be other numbers too."""
    if isinstance(values, np.ndarray):
        return values
    if values and all(isinstance(value, str) and WHOLE.fullmatch(value) for value in values):
        return np.array([int(value) for value in values], np.int64)
    broken = name == "label" and any(isinstance(value, str) and "." in value for value in values)
    if broken and (found := numbers(values)) is not None:
        return found
    return np.array(values, dtype=object)


def _read_csv(path: Path) -> Rows:
    if why := memory_problem(CELLS * path.stat().st_size):
        raise Unreadable(f"{path}: {why}; store it as .parquet, or with fewer columns")
    with path.open(encoding="utf-8-sig", newline="") as file:
        first = file.readline()
        file.seek(0)
        marks = {mark: first.count(mark) for mark in (",", ";", "\t")}
        reader = csv.reader(file, delimiter=max(marks, key=lambda mark: marks[mark]), strict=True)
        header = [name.strip() for name in next(reader, [])]
        lines, rows, problems = [], [], []
        for row in reader:
            if not any(cell.strip() for cell in row):
                continue
            if len(row) != len(header):
                problems.append(f"line {reader.line_num}: expected {len(header)} values, found {len(row)}")
                continue
            lines.append(f"line {reader.line_num}")
            rows.append([cell.strip() for cell in row])
    columns: dict[str, Any] = {}
    notes = []
    for place, name in enumerate(header):
        if not name or name.startswith("_"):
            notes.append(f"column {name or place + 1} left out")
        elif name in columns:
            problems.append(f"column {name}: expected one of this name, found several")
        else:
            columns[name] = [row[place] for row in rows]
    return Rows(columns, lines, problems, notes)


def _read_parquet(path: Path) -> Rows:
    import pyarrow.parquet

    with pyarrow.parquet.ParquetFile(path, memory_map=False) as file:
        table = _read_in_batches(path, file)
    names = [name.strip() for name in table.column_names]
    problems = [f"column {name}: expected one of this name, found several" for name in _repeated(names)]
    kept = [name for name in dict.fromkeys(names) if name and not name.startswith("_")]
    notes = [f"column {name} left out" for name in dict.fromkeys(names) if name not in kept]
    columns = {name: _values(table.column(names.index(name))) for name in kept}
    return Rows(columns, [f"row {number}" for number in range(table.num_rows)], problems, notes)


def _read_in_batches(path: Path, file: Any) -> Any:
    """The table, unless it needs more than the memory: a value that is written once may stand in every row."""
    import pyarrow

    described, free = file.metadata, free_memory()
    groups = [described.row_group(number) for number in range(described.num_row_groups)]
    chunks = [group.column(number).total_uncompressed_size for group in groups for number in range(group.num_columns)]
    rows = min(2**16, max(1, free // 4 // max([1, *chunks])))  # no value is longer than its chunk
    plain = [_is_number(field.type) for field in file.schema_arrow]
    needed, batches = described.num_rows * sum(NUMBER_SIZE if each else VALUE for each in plain), []
    _refuse_beyond(path, needed, free)
    for batch in file.iter_batches(rows, use_threads=False):
        values = [column for column, number in zip(batch.columns, plain, strict=True) if not number]
        needed += sum(INSIDE * column.nbytes for column in values)
        _refuse_beyond(path, needed, free)
        batches.append(batch)
    return pyarrow.Table.from_batches(batches, file.schema_arrow)


def _refuse_beyond(path: Path, needed: int, free: int) -> None:
    if why := memory_problem(needed, free):
        raise Unreadable(f"{path}: {why}; store it with fewer rows or columns")


def _is_number(kind: Any) -> bool:
    import pyarrow

    return pyarrow.types.is_integer(kind) or pyarrow.types.is_floating(kind) or pyarrow.types.is_boolean(kind)


def _values(column: Any) -> Any:
    if _is_number(column.type):
        return column.to_numpy()  # NaN where there is nothing; objects where truth values are missing
    return column.to_pylist()


def _repeated(names: Sequence[str]) -> list[str]:
    return [name for name in dict.fromkeys(names) if names.count(name) > 1]
