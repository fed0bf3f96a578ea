"""The lists that publishers ship with a data set: small text files, read without trust, every problem kept."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from pathlib import Path

from equipoise.data.prepare.original import Original
from equipoise.util.errors import raise_all

SHOWN = 5  # of a kind, before the rest is only counted


def find_list(source: Path, name: str, folders: Sequence[str]) -> Path | None:
    """The list of that name, in the folder itself or in the first of its subfolders that has it."""
    places = (source / folder / name for folder in ("", *folders))
    return next((place for place in places if place.is_file()), None)


def rows_of(path: Path, columns: int, problems: list[str]) -> list[list[str]]:
    """The rows of a list without a header, blank lines left out, cells stripped.

    Args:
        path: Text in UTF-8, with or without a byte order mark; commas between cells, quotes around a cell that has one.
        columns: How many cells a row has, at least.
        problems: Where everything that is wrong is added.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
        rows = [[cell.strip() for cell in row] for row in csv.reader(io.StringIO(text, newline=""), strict=True)]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        problems.append(f"{path}: expected a list as plain text, found something else ({error})")
        return []
    filled = [(number, row) for number, row in enumerate(rows, 1) if any(row)]
    short = [f"row {number}: {','.join(row)!r}" for number, row in filled if len(row) < columns]
    if short:
        problems.append(f"{path}: expected {columns} columns, found {some(short)}")
    return [row for _, row in filled if len(row) >= columns]


def some(things: Sequence[str]) -> str:
    """The first few, and how many more there are."""
    shown = ", ".join(things[:SHOWN])
    return shown if len(things) <= SHOWN else f"{shown} and {len(things) - SHOWN} more"


def refuse(original: Original, source: Path, problems: Sequence[str]) -> None:
    """Raise one error with every problem and what the folder should look like; nothing where there is none."""
    raise_all(problems, f"{source} cannot be read as {original.name}:", original.layout)
