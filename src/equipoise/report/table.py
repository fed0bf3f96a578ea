"""One table, from which every renderer reads, so that no two of them can disagree."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, final

from equipoise.report.aggregate import MeanStd, RunGroup
from equipoise.report.paired import Difference

MISSING = "–"

Measured = MeanStd | Difference | str | None


@final
@dataclass(frozen=True)
class ResultColumn:
    """What a column shows, and how.

    Args:
        key: Its name in csv and JSON.
        title: Its name for people.
        of: What it shows of a line.
        unit: Unit, or what else stands in brackets after the title.
        kind: Whether its cells are means over runs, paired differences or words.
        scale: Raw numbers are shown times this: 100 for percent.
        decimals: Digits after the point.
        better: Which end of it is best, and printed bold; None where neither is.
        by_protocol: The numbers depend on how uni-modal accuracy is measured, so that only lines of one protocol
            compete.
    """

    key: str
    title: str
    of: Callable[[RunGroup], Measured]
    unit: str = "%"
    kind: Literal["mean", "difference", "words"] = "mean"
    scale: float = 100.0
    decimals: int = 1
    better: Literal["higher", "lower"] | None = None
    by_protocol: bool = False

    @property
    def heading(self) -> str:
        """Title and unit on one line."""
        return f"{self.title} ({self.unit})" if self.unit else self.title

    def cell(self, measured: Measured) -> Cell:
        """A number, and how it is written."""
        if measured is None:
            return Cell(MISSING)
        if isinstance(measured, str):
            return Cell(measured)
        if isinstance(measured, MeanStd):
            aside = "" if measured.deviation is None else f"± {self._written(measured.deviation)}"
            return Cell(self._written(measured.mean), aside, value=measured.mean, deviation=measured.deviation)
        has_interval = measured.low is not None and measured.high is not None
        aside = f"[{self._written(measured.low, '+')}, {self._written(measured.high, '+')}]" if has_interval else ""
        return Cell(self._written(measured.mean, "+"), aside, value=measured.mean, low=measured.low, high=measured.high)

    def _written(self, value: float | None, sign: str = "-") -> str:
        text = f"{(value or 0.0) * self.scale:{sign}.{self.decimals}f}"
        return text.replace("-", "") if float(text) == 0 and sign == "-" else text


@final
@dataclass(frozen=True, slots=True)
class Cell:
    """What stands in one place of a table.

    Args:
        main: The number (or word) as written.
        aside: What is written after it: deviation or interval.
        value: The raw number; None for words and what is missing.
        deviation: Raw standard deviation.
        low: Raw lower end of the interval.
        high: Raw upper end.
        best: The best of its column.
        fastest: The fastest of the three best lines.
    """

    main: str
    aside: str = ""
    value: float | None = None
    deviation: float | None = None
    low: float | None = None
    high: float | None = None
    best: bool = False
    fastest: bool = False

    @property
    def text(self) -> str:
        """Everything written in it."""
        return f"{self.main} {self.aside}" if self.aside else self.main

    def aside_in(self, width: int, space: str = " ") -> str:
        """What is written after the number, filled up so that it stands below its like in a column of this width."""
        if self.aside.startswith("± "):
            return "± " + self.aside[2:].rjust(width - 2, space)
        return self.aside.rjust(width, space)


@final
@dataclass(frozen=True)
class ResultTable:
    """Lines of cells under columns.

    Args:
        title: What it shows.
        columns: Its columns, without the first, which holds the labels.
        labels: One per line.
        cells: Per line, one cell per column.
        notes: What a reader has to know to trust the numbers.
    """

    title: str
    columns: tuple[ResultColumn, ...]
    labels: tuple[str, ...]
    cells: tuple[tuple[Cell, ...], ...]
    notes: tuple[str, ...] = ()

    def at(self, label: str, key: str) -> Cell:
        """The cell of one line under one column."""
        keys = [column.key for column in self.columns]
        return self.cells[self.labels.index(label)][keys.index(key)]


def shortened(table: ResultTable, most: int, keep: str = "") -> ResultTable:
    """The first lines of a table, which are the best, with a note that says so where any is left out.

    Args:
        table: The whole table.
        most: How many lines stay.
        keep: Label of a line that stays wherever it stands.
    """
    count = len(table.labels)
    if count <= most:
        return table
    kept = [at for at, label in enumerate(table.labels) if at < most or label == keep]
    note = (
        f"Shown: {len(kept):,} of {count:,} lines, the best by fused. All of them: equipoise report FOLDER --format csv"
    )
    return replace(
        table,
        labels=tuple(table.labels[at] for at in kept),
        cells=tuple(table.cells[at] for at in kept),
        notes=(note, *table.notes),
    )


def build_table(
    title: str, columns: Sequence[ResultColumn], lines: Sequence[RunGroup], notes: Sequence[str] = ()
) -> ResultTable:
    """Fill a table, leave out the columns that no line has a number for, and mark the best of each."""
    filled = []
    for column in columns:
        measured = [column.of(line) for line in lines]
        if any(each is not None for each in measured):
            filled.append((column, _mark_best(column, lines, [column.cell(each) for each in measured])))
    cells = tuple(zip(*(cells for _, cells in filled), strict=True)) if filled else tuple(() for _ in lines)
    return ResultTable(
        title, tuple(column for column, _ in filled), tuple(line.label for line in lines), cells, tuple(notes)
    )


def _mark_best(column: ResultColumn, lines: Sequence[RunGroup], cells: list[Cell]) -> list[Cell]:
    """Mark the best of each group that competes. Equal as written is equal: a reader sees no other digits."""
    if column.better is None:
        return cells
    groups: dict[str | None, list[int]] = {}
    for at, line in enumerate(lines):
        if cells[at].value is not None:
            groups.setdefault(line.protocol if column.by_protocol else None, []).append(at)
    marked = list(cells)
    pick = max if column.better == "higher" else min
    for group in groups.values():
        best = pick(float(cells[at].main) for at in group)
        for at in group:
            if len(group) > 1 and float(cells[at].main) == best:
                marked[at] = replace(cells[at], best=True)
    return marked
