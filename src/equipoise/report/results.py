"""Reading what a study left behind: one row per finished run, one line of curves per epoch."""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, final

from equipoise.report.aggregate import Row, RunGroup, aggregate, number
from equipoise.study.store import SCHEMA, read_lines, read_rows
from equipoise.util.errors import BadInput

RESULTS = "results.jsonl"
MOST_CURVES = 1000  # runs whose epochs are drawn, of one data set
_NUMBERS = frozenset({float, int, bool, type(None)})
_ALIKE = ("run", "params", "versions", "path", "selected")  # what many rows have in common, word for word

Epoch = dict[str, Any]


@final
@dataclass(frozen=True)
class Results:
    """The finished runs of one folder.

    Args:
        folder: Where they were read.
        rows: One dictionary per run, as in ``results.jsonl``.
        curves: Per run, under its ``config``, one dictionary per epoch. A run without curves is absent. Of more runs
            than are ever drawn each is read when it is asked for.
        warning: One line on what was left out; None when everything was read.
    """

    folder: Path
    rows: list[Row]
    curves: Mapping[str, list[Epoch]]
    warning: str | None = None

    def by_data(self) -> dict[str, list[Row]]:
        """The rows of each data set, under its name. Accuracies of different data sets are never averaged."""
        found: dict[str, list[Row]] = {}
        for row in self.rows:
            found.setdefault(str(row.get("data") or "data"), []).append(row)
        return dict(sorted(found.items()))

    @cached_property
    def lines(self) -> dict[str, list[RunGroup]]:
        """The lines of each data set, under its name: all runs of one label, the best first; see `aggregate`."""
        return {name: aggregate(rows) for name, rows in self.by_data().items()}


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

    seen: dict[str, Any] = {}
    found = read_rows(path, lambda row: _sharing(_printable(row), seen))
    oddities = [f"line {found.torn} is torn"] if found.torn else []
    rows = {}
    other_schema, unfinished, repeated = [], [], []
    for at, row in found.values:
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

    curves = lazy = _Curves(folder, list(rows))
    if len(rows) <= MOST_CURVES:
        curves = {config: epochs for config in rows if (epochs := lazy.get(config))}
        oddities += lazy.oddities
    warning = f"Left out of {path}: " + "; ".join(oddities) if oddities else None
    return Results(folder, list(rows.values()), curves, warning)


# -- one file --


def _sharing(row: Row, seen: dict[str, Any]) -> Row:
    """The row, whose settings are those of an earlier one where they are equal: rows are many, and memory is not."""
    for part in _ALIKE:
        if isinstance(row.get(part), dict):
            row[part] = seen.setdefault(f"{part} {json.dumps(row[part])}", row[part])
    return row


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


@final
class _Curves(Mapping[str, list[Epoch]]):
    """The curves of runs, read when they are asked for; `oddities` says what was wrong with those that were."""

    def __init__(self, folder: Path, configs: Sequence[str]) -> None:
        self.folder, self.configs = folder, configs
        self.oddities: list[str] = []
        self._read = lru_cache(maxsize=MOST_CURVES)(self._epochs)  # a figure asks for one number after the other

    def __getitem__(self, config: str) -> list[Epoch]:
        epochs = self._read(config)
        if not epochs:
            raise KeyError(config)
        return epochs

    def _epochs(self, config: str) -> list[Epoch]:
        epochs, torn = _curve(self.folder, config)
        self.oddities += [torn] if torn else []
        return epochs

    def __iter__(self) -> Iterator[str]:
        return (config for config in self.configs if config in self)

    def __len__(self) -> int:
        return sum(1 for _ in self)


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
        return _printable_text(value)
    if isinstance(value, dict):
        return {
            _printable_text(key): item if type(item) in _NUMBERS else _printable(item) for key, item in value.items()
        }
    if isinstance(value, list):
        return [_printable(item) for item in value]
    return value


@lru_cache(maxsize=2**16)  # rows have the same keys, and mostly the same words: one copy of each is kept
def _printable_text(text: str) -> str:
    if text.isprintable():
        return text
    return "".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in text)


def _numbers(lines: Iterable[int]) -> str:
    lines = list(lines)
    more = f" and {len(lines) - 5} more" if len(lines) > 5 else ""
    return f"line{'s' if len(lines) > 1 else ''} " + ", ".join(map(str, lines[:5])) + more
