"""The tables of a study. Every renderer reads the same table, so that no two of them can disagree."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal, final

from equipoise.report.aggregate import (
    BASELINE,
    PROTOCOLS,
    Difference,
    MeanStd,
    Row,
    RunGroup,
    aggregate,
    compared_with,
    differences_between,
    dig,
    modalities,
    number,
)
from equipoise.report.notes import notes_below
from equipoise.report.results import Results

MISSING = "–"
SHAPLEY_ERROR = "shapley_error"
SHAPLEY_NOTE = (
    "Shapley values of more than eight modalities are estimated from random orders; ± standard error is that of one "
    "run's estimate, mean over runs."
)


@final
@dataclass(frozen=True)
class ResultColumn:
    """A column of a table: the number it shows of each group of runs, and how it is written.

    Args:
        key: Its name in csv and JSON.
        title: Its name for people.
        of: Takes a group and returns its number.
        unit: Unit, or what else stands in brackets after the title.
        kind: Whether its cells are means over runs, paired differences or words.
        scale: Raw numbers are shown times this: 100 for percent.
        decimals: Digits after the point.
        better: Which end of it is best, and printed bold; None where neither is.
        by_protocol: The numbers depend on how uni-modal accuracy is measured, so that only groups of one protocol
            compete.
    """

    key: str
    title: str
    of: Callable[[RunGroup], MeanStd | Difference | str | None]
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

    def cell(self, measured: MeanStd | Difference | str | None) -> Cell:
        """Write a number."""
        if measured is None or isinstance(measured, str):
            return Cell(measured or MISSING)
        if isinstance(measured, MeanStd):
            mean, deviation, _ = measured
            aside = "" if deviation is None else f"± {self._written(deviation)}"
            return Cell(self._written(mean), aside, (mean, deviation))
        mean, low, high = measured.mean, measured.low, measured.high
        interval = "" if low is None or high is None else f"[{self._written(low, '+')}, {self._written(high, '+')}]"
        return Cell(self._written(mean, "+"), interval, (mean, low, high))

    def _written(self, value: float, sign: str = "-") -> str:
        text = f"{value * self.scale:{sign}.{self.decimals}f}"
        return text.replace("-", "") if float(text) == 0 and sign == "-" else text


@final
@dataclass(frozen=True, slots=True)
class Cell:
    """One cell of a table.

    Args:
        main: The number (or word) as written.
        aside: What is written after it: deviation or interval.
        raw: The raw numbers, mean and standard deviation or mean and interval; empty for words and what is missing.
        best: The best of its column.
        fastest: The fastest of the three best groups.
    """

    main: str
    aside: str = ""
    raw: tuple[float | None, ...] = ()
    best: bool = False
    fastest: bool = False

    @property
    def text(self) -> str:
        """Everything written in it."""
        return f"{self.main} {self.aside}" if self.aside else self.main

    @property
    def value(self) -> float | None:
        """The raw number; None for words and what is missing."""
        return self.raw[0] if self.raw else None

    def aside_in(self, width: int, space: str = " ") -> str:
        """Return what is written after the number, padded so that it is aligned in a column of this width."""
        sign = "± " if self.aside.startswith("± ") else ""
        return sign + self.aside.removeprefix(sign).rjust(width - len(sign), space)


@final
@dataclass(frozen=True)
class ResultTable:
    """Lines of cells under columns.

    Args:
        title: Its title.
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
        """Return the cell of one line under one column."""
        keys = [column.key for column in self.columns]
        return self.cells[self.labels.index(label)][keys.index(key)]


def build_table(
    title: str, columns: Sequence[ResultColumn], groups: Sequence[RunGroup], notes: Sequence[str] = ()
) -> ResultTable:
    """Fill a table, leave out the columns that no group has a number for, and mark the best of each."""
    filled = {}
    for column in columns:
        measured = [column.of(group) for group in groups]
        if any(value is not None for value in measured):
            filled[column] = _mark_best(column, groups, [column.cell(value) for value in measured])
    cells = tuple(zip(*filled.values(), strict=True)) if filled else ((),) * len(groups)
    return ResultTable(title, tuple(filled), tuple(group.label for group in groups), cells, tuple(notes))


def shortened(table: ResultTable, most: int, keep: str = "") -> ResultTable:
    """Keep the first lines of a table, which are the best, with a note that says so where any is left out.

    Args:
        table: The whole table.
        most: How many lines stay.
        keep: Label of a line that stays wherever it stands.
    """
    count = len(table.labels)
    if count <= most:
        return table
    lines = zip(table.labels, table.cells, strict=True)
    labels, cells = zip(*(line for at, line in enumerate(lines) if at < most or line[0] == keep), strict=True)
    note = f"Shown: {len(labels):,} of {count:,} lines, the best by fused. All of them: "
    notes = (f"{note}equipoise report FOLDER --format csv", *table.notes)
    return replace(table, labels=labels, cells=cells, notes=notes)


def underline_fastest(table: ResultTable, groups: Sequence[RunGroup], key: str) -> ResultTable:
    """Mark the lowest time in a column among the three best by fused accuracy: good and cheap at once."""
    if key not in (keys := [column.key for column in table.columns]):
        return table
    at = keys.index(key)
    by_fused = sorted((-group.fused.mean, line) for line, group in enumerate(groups) if group.fused)
    timed = {line: time for _, line in by_fused[:3] if (time := table.cells[line][at].value) is not None}
    if len(timed) < 2:
        return table
    cells = [list(line) for line in table.cells]
    fastest = min(timed, key=timed.__getitem__)
    cells[fastest][at] = replace(cells[fastest][at], fastest=True)
    return replace(table, cells=tuple(map(tuple, cells)))


def _mark_best(column: ResultColumn, groups: Sequence[RunGroup], cells: list[Cell]) -> list[Cell]:
    """Mark the best among the groups that compete. Equal as written is equal: a reader sees no other digits."""
    competing: dict[str | None, list[int]] = {}
    for at, group in enumerate(groups):
        if column.better is not None and cells[at].value is not None:
            competing.setdefault(group.protocol if column.by_protocol else None, []).append(at)
    pick = max if column.better == "higher" else min
    for members in competing.values():
        best = pick(float(cells[at].main) for at in members)
        for at in members:
            if len(members) > 1 and float(cells[at].main) == best:
                cells[at] = replace(cells[at], best=True)
    return cells


# -- the tables of a study --

_accuracy = partial(ResultColumn, better="higher")


def tables(results: Results, baseline: str = BASELINE) -> list[ResultTable]:
    """Build the main table of each data set."""
    notes = (results.warning,) if results.warning else ()
    return [main_table(rows, data, baseline, notes, results.groups[data]) for data, rows in results.by_data().items()]


def main_table(
    rows: Sequence[Row],
    data: str,
    baseline: str = BASELINE,
    extra_notes: Sequence[str] = (),
    groups: Sequence[RunGroup] | None = None,
) -> ResultTable:
    """Build the table of accuracy, balance, robustness and cost of every label, as the paper prints it.

    Args:
        rows: Runs of one data set.
        data: Its name.
        baseline: The label that paired differences are taken to.
        extra_notes: Notes to print below the table's own.
        groups: The rows, aggregated; None where that has not been done yet.
    """
    groups = aggregate(rows) if groups is None else groups
    differences = {difference.label: difference for difference in differences_between(groups, baseline)}
    versus = f"vs {compared_with(list(differences.values()), baseline)}"
    protocols = sorted({group.protocol for group in groups if group.protocol})
    # A protocol that all groups share is named in the heading; several get a column of their own.
    alone_unit = f"{protocols[0]}, %" if len(protocols) == 1 else "%"
    alone_by = ResultColumn("protocol", "alone by", lambda group: group.protocol, "", kind="words")
    columns = [
        _accuracy("fused", "fused", lambda group: group.fused),
        ResultColumn("difference", versus, lambda group: differences.get(group.label), "points", kind="difference"),
        _accuracy("committee", "committee", lambda group: group.committee),
        *(_accuracy(f"alone.{name}", name, _alone(name), alone_unit, by_protocol=True) for name in modalities(rows)),
        *([alone_by] if len(protocols) > 1 else []),
        ResultColumn("disparity", "disparity", _at("test", "disparity"), "points", better="lower", by_protocol=True),
        _accuracy("faults.fused", "faults", lambda group: group.faults, "fused, %"),
        _accuracy("faults.committee", "faults", _at("test", "faults", "mean", "committee"), "committee, %"),
        ResultColumn("step", "step", lambda group: group.step, "ms, as trained", scale=1000.0, decimals=2),
    ]
    notes = [*notes_below(groups, list(differences.values())), *extra_notes]
    return underline_fastest(build_table(f"{data}: accuracy on the test set", columns, groups, notes), groups, "step")


def missing_table(groups: Sequence[RunGroup], names: Sequence[str]) -> ResultTable:
    """Build the table of accuracy without one sensor, by each way to go on without it."""
    faults = ((name, dig(row, "test", "faults", name, "missing") or {}) for name in names for row in _rows(groups))
    columns = [
        _accuracy(f"{name}.{answer}", f"no {name}", _without(name, answer), f"{answer}, %")
        for name, answer in dict.fromkeys((name, answer) for name, answers in faults for answer in answers)
    ]
    return build_table("Accuracy without one sensor", columns, groups)


def protocol_table(groups: Sequence[RunGroup], names: Sequence[str]) -> ResultTable:
    """Build the table of uni-modal accuracy by every protocol measured; estimated Shapley values with their error."""
    columns = [
        _accuracy(f"{protocol}.{name}", name, _at("test", protocol, name), f"{protocol}, %")
        for protocol in PROTOCOLS
        for name in names
    ]
    unit = "± standard error of shapley, %"
    columns += [ResultColumn(f"{SHAPLEY_ERROR}.{name}", name, _at("test", SHAPLEY_ERROR, name), unit) for name in names]
    notes = [SHAPLEY_NOTE] if any(dig(row, "test", SHAPLEY_ERROR) for row in _rows(groups)) else []
    return build_table("Accuracy of each modality alone, by every protocol", columns, groups, notes)


def measure_table(groups: Sequence[RunGroup]) -> ResultTable:
    """Build the table of the other measures of both decisions, and of what a run costs."""
    columns, decisions, cost = [], ("fused", "committee"), partial(ResultColumn, scale=1.0)
    for decision in decisions:
        f1, ece, loss = (f"{decision}_{key}" for key in ("f1", "ece", "loss"))
        columns += [
            _accuracy(f1, f"{decision} macro F1", _at("test", f1)),
            ResultColumn(ece, f"{decision} calibration error", _at("test", ece), better="lower"),
            cost(loss, f"{decision} loss", _at("test", loss), "nats", decimals=3, better="lower"),
        ]
    columns.append(ResultColumn("beats", "fused beats best modality", _beats_best, "% of runs", decimals=0))
    worst = ("test", "faults", "worst")
    columns += [_accuracy(f"worst.{key}", f"worst fault, {key}", _at(*worst, key)) for key in decisions]
    columns += [
        cost("total", "whole run", _at("seconds", "total"), "s"),
        cost("memory", "peak memory", _at("memory"), "MB", decimals=0),
        ResultColumn("runs", "runs", lambda group: str(len(group.rows)), "", kind="words"),
    ]
    return build_table("More measures", columns, groups)


def fault_table(groups: Sequence[RunGroup], decision: str) -> ResultTable:
    """Build the table of the accuracy of one decision under every fault at every level."""
    rows = _rows(groups)
    names = modalities(rows)
    faults = ((name, dig(row, "test", "faults", name)) for row in rows for name in names)
    paths = dict.fromkeys((name, *path) for name, levels in faults for path in _paths(levels, decision))
    columns = [_accuracy(".".join(path), " ".join(path), _at("test", "faults", *path, decision)) for path in paths]
    return build_table(f"Accuracy under every fault, {decision}", columns, groups)


def _rows(groups: Sequence[RunGroup]) -> list[Row]:
    return [row for group in groups for row in group.rows]


def _at(*path: str) -> Callable[[RunGroup], MeanStd | None]:
    return lambda group: group.of(*path)


def _alone(name: str) -> Callable[[RunGroup], MeanStd | None]:
    return lambda group: group.alone.get(name)


def _without(name: str, answer: str) -> Callable[[RunGroup], MeanStd | None]:
    """Filled inputs are judged by the fused prediction; the committee drops a member and needs no filling."""
    path = ("test", "faults", name, "missing", answer)
    decision = "fused" if answer in ("zeros", "mean") else "committee"
    return lambda group: group.of(*path) or group.of(*path, decision)


def _beats_best(group: RunGroup) -> MeanStd | None:
    answers = [dig(row, "test", "beats_best_single") for row in group.rows]
    known = [answer for answer in answers if isinstance(answer, bool)]
    return MeanStd(sum(known) / len(known), None, len(known)) if known else None


def _paths(faults: object, decision: str) -> Iterator[tuple[str, ...]]:
    """List the paths of keys below which the decision has a number."""
    if isinstance(faults, dict):
        if number(faults, decision) is not None:
            yield ()
        for key, inner in faults.items():
            yield from ((key, *path) for path in _paths(inner, decision))
