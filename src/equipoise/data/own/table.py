"""Tables as files hold them, .csv and .parquet, read without trusting their size; and their columns as numbers."""

import csv
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import numpy as np

from equipoise.util.errors import Unreadable
from equipoise.util.processes import free_memory, memory_problem

COLUMNS = ("label", "split", "group")
NUMBER = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?|[+-]?(nan|inf|infinity)", re.ASCII | re.IGNORECASE)
WHOLE = re.compile(r"0|-?[1-9]\d{0,17}", re.ASCII)  # "007" is a name: it would not be written like that
CELLS = 10  # bytes that one byte of a csv takes as Python values, about
VALUE, NUMBER_SIZE = 100, 16  # bytes that a Python value, or a number in an array, takes, about
INSIDE = 5  # bytes that one byte of text or of a list takes as Python values, about


@final
@dataclass(frozen=True)
class TableFile:
    """A table that was read.

    Args:
        path: Of the file.
        columns: Per name one value per row: an array of numbers, or a list of text or of lists; blanks are "" or None.
        names: Names of the rows in messages.
        problems: What is wrong with it.
        notes: What was left out.
        named: Whether these are names from a column `id`.
    """

    path: Path
    columns: dict[str, Any]
    names: list[str]
    problems: list[str]
    notes: list[str]
    named: bool = False


def read_table(path: Path) -> TableFile:
    """Read a ``.csv`` or ``.parquet``. Columns without a name, and those that begin with "_", are left out.

    Raises:
        Unreadable: If it needs more memory than is free. What else may be wrong with a file raises other errors.
    """
    return _read_parquet(path) if path.suffix.lower() == ".parquet" else _read_csv(path)


def numbers_of(values: Any) -> np.ndarray | None:
    """Return a column as numbers, with NaN where it is blank; None where it holds anything else."""
    if isinstance(values, np.ndarray):
        return values if values.dtype.kind in "biuf" else None
    if not all(isinstance(value, str) and (not value or NUMBER.fullmatch(value)) for value in values):
        return None
    return np.array([float(value) if value else np.nan for value in values]) if any(values) else None


def answers_of(name: str, values: Any) -> Any:
    """Return label, split or group as whole numbers where all are such, or text; a label may be other numbers too."""
    if isinstance(values, np.ndarray):
        return values
    if values and all(isinstance(value, str) and WHOLE.fullmatch(value) for value in values):
        return np.array([int(value) for value in values], np.int64)
    broken = name == "label" and any(isinstance(value, str) and "." in value for value in values)
    numbers = numbers_of(values) if broken else None
    return np.array(values, dtype=object) if numbers is None else numbers


def _read_csv(path: Path) -> TableFile:
    if why := memory_problem(CELLS * path.stat().st_size, of=path.name):
        raise Unreadable(f"{path}: {why}; store it as .parquet, or with fewer columns")
    with path.open(encoding="utf-8-sig", newline="") as file:
        first = file.readline()
        file.seek(0)
        reader = csv.reader(file, delimiter=max(",;\t", key=first.count), strict=True)
        header = [name.strip() for name in next(reader, [])]
        lines, rows, problems, notes = [], [], [], []
        for row in reader:
            if any(cell.strip() for cell in row) and len(row) != len(header):
                problems.append(f"line {reader.line_num}: expected {len(header)} values, found {len(row)}")
            elif any(cell.strip() for cell in row):
                lines.append(f"line {reader.line_num}")
                rows.append([cell.strip() for cell in row])
    columns: dict[str, Any] = {}
    for place, name in enumerate(header):
        if not name or name.startswith("_"):
            notes.append(f"column {name or place + 1} left out")
        elif name in columns:
            problems.append(f"column {name}: expected one of this name, found several")
        else:
            columns[name] = [row[place] for row in rows]
    return TableFile(path, columns, lines, problems, notes)


def _read_parquet(path: Path) -> TableFile:
    """Read a table, unless it needs more than the memory: a value that is written once may stand in every row."""
    import pyarrow
    import pyarrow.parquet

    def is_number(kind: Any) -> bool:
        return any(getattr(pyarrow.types, f"is_{name}")(kind) for name in ("integer", "floating", "boolean"))

    def refuse_beyond(needed: int) -> None:
        if needed > free:
            raise Unreadable(f"{path}: {memory_problem(needed, free)}; store it with fewer rows or columns")

    with pyarrow.parquet.ParquetFile(path, memory_map=False) as file:
        described, free, batches = file.metadata, free_memory(), []
        groups = [described.row_group(number) for number in range(described.num_row_groups)]
        chunks = [group.column(at).total_uncompressed_size for group in groups for at in range(group.num_columns)]
        rows = min(2**16, max(1, free // 4 // max([1, *chunks])))  # no value is longer than its chunk
        plain = [is_number(field.type) for field in file.schema_arrow]
        needed = described.num_rows * sum(NUMBER_SIZE if number else VALUE for number in plain)
        refuse_beyond(needed)
        memory_problem(needed, free, path.name)
        for batch in file.iter_batches(rows, use_threads=False):
            values = [column for column, number in zip(batch.columns, plain, strict=True) if not number]
            needed += sum(INSIDE * column.nbytes for column in values)
            refuse_beyond(needed)
            batches.append(batch)
        table = pyarrow.Table.from_batches(batches, file.schema_arrow)
    names = [name.strip() for name in table.column_names]
    problems = [f"column {name}: expected one of this name, found several" for name in repeated_names(names)]
    distinct, columns = dict.fromkeys(names), {}
    for name in (name for name in distinct if name and not name.startswith("_")):
        column = table.column(names.index(name))  # as numbers: NaN where blank; objects where truth values are missing
        columns[name] = column.to_numpy() if is_number(column.type) else column.to_pylist()
    notes = [f"column {name} left out" for name in distinct if name not in columns]
    return TableFile(path, columns, [f"row {number}" for number in range(table.num_rows)], problems, notes)


def repeated_names(names: Iterable[str]) -> list[str]:
    """Return the names that stand there more than once."""
    return [name for name, count in Counter(names).items() if count > 1]
