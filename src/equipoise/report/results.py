"""Reading what a study left behind: one row per finished run, one line of curves per epoch."""

from __future__ import annotations

import math
import os
import re
import shlex
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

from equipoise.errors import BadInput
from equipoise.store import SCHEMA, read_lines, read_rows

RESULTS = "results.jsonl"

Row = dict[str, Any]
Epoch = dict[str, Any]


@final
@dataclass(frozen=True)
class Results:
    """The finished runs of one folder.

    Args:
        folder: Where they were read.
        rows: One dictionary per run, as in ``results.jsonl``.
        curves: Per run, under its ``config``, one dictionary per epoch. A run without curves is absent.
        warning: One line on what was left out; None when everything was read.
    """

    folder: Path
    rows: list[Row]
    curves: dict[str, list[Epoch]]
    warning: str | None = None

    def by_data(self) -> dict[str, list[Row]]:
        """The rows of each data set, under its name. Accuracies of different data sets are never averaged."""
        names = sorted({str(row.get("data") or "data") for row in self.rows})
        return {name: [row for row in self.rows if str(row.get("data") or "data") == name] for name in names}


def read(folder: str | Path) -> Results:
    """Read the results of a study.

    A torn last line (the study was killed while it wrote), a row of another schema and a run that did not finish are
    left out, and named in ``warning``.

    Args:
        folder: The folder given to ``equipoise compare --out``.

    Raises:
        BadInput: There is no such folder, it holds no finished run, or a line of it is damaged.
    """
    folder = Path(folder)
    again = f"type: equipoise compare --data watch --out {shlex.quote(str(folder))}"
    path = folder / RESULTS
    if not folder.is_dir():
        msg = f"expected a folder of results, found no folder {str(folder)!r}. To make one, {again}"
        raise BadInput(msg)
    if not os.path.lexists(path):
        msg = f"expected {RESULTS} in {str(folder)!r}, found none. To make one, {again}"
        raise BadInput(msg)

    found = read_rows(path)
    oddities = [f"line {found.torn} is torn"] if found.torn else []
    rows = {}
    other_schema, unfinished, repeated = [], [], []
    for at, read in found.values:
        row = _printable(read)
        config = str(row.get("config"))
        if row.get("schema", SCHEMA) != SCHEMA:
            other_schema.append(at)
        elif row.get("status", "done") != "done":
            unfinished.append(at)
        else:
            if config in rows:
                repeated.append(at)
            rows[config] = _named(row, path, at)
    oddities += [
        f"{what} ({_numbers(at)})"
        for what, at in (
            (f"a row of another schema than {SCHEMA}", other_schema),
            ("a run that is not done", unfinished),
            ("a run written before", repeated),
        )
        if at
    ]
    if not rows:
        reason = "; ".join(oddities) or "it is empty"
        msg = f"expected finished runs in {str(path)!r}, found none: {reason}. To make some, {again}"
        raise BadInput(msg)

    curves = {}
    for config in rows:
        epochs, torn = _curve(folder, config)
        if epochs:
            curves[config] = epochs
        if torn:
            oddities.append(torn)
    warning = f"Left out of {path}: " + "; ".join(oddities) if oddities else None
    return Results(folder, list(rows.values()), curves, warning)


def dig(value: Any, *path: str) -> Any:
    """What lies at a path of keys; None where a key is absent."""
    for key in path:
        value = value.get(key) if isinstance(value, dict) else None
    return value


def number(value: Any, *path: str) -> float | None:
    """The finite number at a path of keys; None for anything else, since a report shows what it has."""
    found = dig(value, *path)
    if isinstance(found, bool) or not isinstance(found, (int, float)) or not math.isfinite(found):
        return None
    return float(found)


# -- one file --


def _named(row: Row, path: Path, at: int) -> Row:
    """A row that surely has a label, so that nobody after this needs to ask."""
    label = row.get("label") or row.get("method")
    if not isinstance(label, str):
        msg = (
            f'expected "label" or "method" in line {at} of {str(path)!r}, found neither. '
            f"To go on without it, type: sed -i '{at}d' {shlex.quote(str(path))}"
        )
        raise BadInput(msg)
    return {**row, "label": label, "method": str(row.get("method") or label)}


def _curve(folder: Path, config: str) -> tuple[list[Epoch], str | None]:
    """The epochs of one run, and what was wrong with them. A curve is an illustration: damage costs its end only."""
    name = re.fullmatch(r"(?:sha256:)?([0-9a-f]{12})[0-9a-f]*", config)
    path = folder / "runs" / (name[1] if name else "") / "curves.jsonl"
    if name is None or not path.is_file():
        return [], None
    try:
        found = read_lines(path)
    except ValueError:
        return [], f"the curves of run {name[1]} are damaged"
    epochs = sorted(
        (_printable(epoch) for _, epoch in found.values if number(epoch, "epoch") is not None), key=lambda e: e["epoch"]
    )
    return epochs, f"the last line of the curves of run {name[1]} is torn" if found.torn else None


def _printable(value: Any) -> Any:
    """The same value without control characters, which could command the terminal that shows them."""
    if isinstance(value, str):
        return "".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in value)
    if isinstance(value, dict):
        return {_printable(key): _printable(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_printable(item) for item in value]
    return value


def _numbers(lines: Iterable[int]) -> str:
    lines = list(lines)
    more = f" and {len(lines) - 5} more" if len(lines) > 5 else ""
    return f"line{'s' if len(lines) > 1 else ''} " + ", ".join(map(str, lines[:5])) + more
