"""Reading the results of a study: one row per finished run, one line of curves per epoch."""

import json
import os
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, final

from equipoise.report.aggregate import RunGroup, aggregate, number
from equipoise.report.headline import Row, same_headline
from equipoise.study.store import SCHEMA, read_lines, read_rows
from equipoise.util.errors import BadInput
from equipoise.util.files import inside

RESULTS = "results.jsonl"
MOST_CURVES = 1000  # runs whose epochs are drawn, of one data set
_NUMBERS = frozenset({float, int, bool, type(None)})
_SHARED = ("run", "params", "versions", "path", "selected")  # parts of a row that are equal in many rows

Epoch = dict[str, Any]


@final
@dataclass(frozen=True)
class Results:
    """The finished runs of one folder.

    Args:
        folder: The folder they were read from.
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
        """Return the rows of each data set, under its name; nothing of two data sets, tasks or metrics is averaged.

        Of a data set that was run with several metrics, the name has the metric behind it.
        """
        rows_of: dict[str, list[Row]] = {}
        for row in self.rows:
            rows_of.setdefault(str(row.get("data") or "data"), []).append(row)
        named: dict[str, list[Row]] = {}
        for data, rows in sorted(rows_of.items()):
            divided = same_headline(rows)
            for (task, metric), some in divided.items():
                named[f"{data} ({task}, {metric})" if len(divided) > 1 else data] = some
        return named

    def run_folder(self, row: Row) -> Path:
        """Return the folder of a run's curves, model and predictions."""
        return inside(self.folder, "runs", str(row["config"]).removeprefix("sha256:")[:12])

    @cached_property
    def computed(self) -> dict[object, Any]:
        """Numbers from the answers of the runs, kept so that they are computed once."""
        return {}

    @cached_property
    def groups(self) -> dict[str, list[RunGroup]]:
        """The runs of each data set by label, under its name, the best first; see `aggregate`."""
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
        raise BadInput(f"expected a folder of results, found no folder {str(folder)!r}. To make one, {again}")
    if not os.path.lexists(path):
        raise BadInput(f"expected {RESULTS} in {str(folder)!r}, found none. To make one, {again}")

    shared: dict[str, Any] = {}
    content = read_rows(path, lambda row: _share_parts(_printable(row), shared))
    rows = {}
    other_schema, unfinished, repeated = [], [], []
    for line, row in content.values:
        config = str(row.get("config"))
        if row.get("schema", SCHEMA) != SCHEMA:
            other_schema.append(line)
        elif row.get("status", "done") != "done":
            unfinished.append(line)
        else:
            if config in rows:
                repeated.append(line)
            rows[config] = _with_label(row, path, line)
    oddities = [f"line {content.torn} is torn"] if content.torn else []
    reasons = f"a row of another schema than {SCHEMA}", "a run that is not done", "a run written before"
    left_out = zip(reasons, (other_schema, unfinished, repeated), strict=True)
    oddities += [f"{reason} ({_line_numbers(lines)})" for reason, lines in left_out if lines]
    if not rows:
        reason = "; ".join(oddities) or "it is empty"
        raise BadInput(f"expected finished runs in {str(path)!r}, found none: {reason}. To make some, {again}")

    curves = lazy = _Curves(folder, list(rows))
    if len(rows) <= MOST_CURVES:
        curves = {config: epochs for config in rows if (epochs := lazy.get(config))}
        oddities += lazy.oddities
    warning = f"Left out of {path}: " + "; ".join(oddities) if oddities else None
    return Results(folder, list(rows.values()), curves, warning)


def _share_parts(row: Row, shared: dict[str, Any]) -> Row:
    """Replace the settings of a row by those of an earlier one where they are equal, which saves memory."""
    for part in _SHARED:
        if isinstance(row.get(part), dict):
            row[part] = shared.setdefault(f"{part} {json.dumps(row[part])}", row[part])
    return row


def _with_label(row: Row, path: Path, line: int) -> Row:
    """Return a row that has a label and a method for certain."""
    label = row.get("label") or row.get("method")
    if not isinstance(label, str):
        raise BadInput(
            f'expected "label" or "method" in line {line} of {str(path)!r}, found neither. '
            f"To go on without it, type: sed -i '{line}d' {shlex.quote(str(path))}"
        )
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

    def __iter__(self) -> Iterator[str]:
        return (config for config in self.configs if config in self)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def _epochs(self, config: str) -> list[Epoch]:
        """Read the epochs of one run. A curve is an illustration: damage costs its end only."""
        name = re.fullmatch(r"(?:sha256:)?([0-9a-f]{12})[0-9a-f]*", config)
        if name is None or not (path := self.folder / "runs" / name[1] / "curves.jsonl").is_file():
            return []
        try:
            content = read_lines(path)
        except ValueError:
            self.oddities.append(f"the curves of run {name[1]} are damaged")
            return []
        if content.torn:
            self.oddities.append(f"the last line of the curves of run {name[1]} is torn")
        epochs = (_printable(epoch) for _, epoch in content.values if number(epoch, "epoch") is not None)
        return sorted(epochs, key=lambda epoch: epoch["epoch"])


def _printable(value: Any) -> Any:
    """Return the same value without control characters, which could command the terminal that shows them."""
    if isinstance(value, str):
        return _printable_text(value)
    if isinstance(value, dict):
        return {
            _printable_text(key): item if type(item) in _NUMBERS else _printable(item) for key, item in value.items()
        }
    return [_printable(item) for item in value] if isinstance(value, list) else value


@lru_cache(maxsize=2**16)  # rows have the same keys, and mostly the same words: one copy of each is kept
def _printable_text(text: str) -> str:
    if text.isprintable():
        return text
    return "".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in text)


def _line_numbers(lines: Sequence[int]) -> str:
    more = f" and {len(lines) - 5} more" if len(lines) > 5 else ""
    return f"line{'s' if len(lines) > 1 else ''} " + ", ".join(map(str, lines[:5])) + more
