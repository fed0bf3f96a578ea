"""The tables of a study. Every renderer reads the same table, so that no two of them can disagree."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, final

from equipoise.report.aggregate import (
    BASELINE,
    Difference,
    MeanStd,
    Row,
    RunGroup,
    aggregate,
    baseline_group,
    compared_with,
    differences_between,
    dig,
    headline,
    modalities,
)
from equipoise.report.headline import Headline
from equipoise.report.notes import notes_below
from equipoise.report.results import Results
from equipoise.util.errors import raise_all

MISSING = "–"


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
        by_protocol: The numbers depend on how each modality alone is measured, so that only groups of one protocol
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
            aside = "" if deviation is None else f"± {self.written(deviation)}"
            return Cell(self.written(mean), aside, (mean, deviation))
        mean, low, high = measured.mean, measured.low, measured.high
        interval = "" if low is None or high is None else f"[{self.written(low, '+')}, {self.written(high, '+')}]"
        return Cell(self.written(mean, "+"), interval, (mean, low, high))

    def written(self, value: float, sign: str = "-") -> str:
        """Write a raw number as the column shows it."""
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
            cells = [column.cell(value) for value in measured]
            cells = [_with_interval(column, group, cell) for group, cell in zip(groups, cells, strict=True)]
            filled[column] = _mark_best(column, groups, cells)
    cells = tuple(zip(*filled.values(), strict=True)) if filled else ((),) * len(groups)
    return ResultTable(title, tuple(filled), tuple(group.label for group in groups), cells, tuple(notes))


def _with_interval(column: ResultColumn, group: RunGroup, cell: Cell) -> Cell:
    """Write the interval of a single run behind its number."""
    ends = group.interval(column.key) if column.key in ("fused", "committee") and cell.raw else None
    return replace(cell, aside=f"[{', '.join(map(column.written, ends))}]") if ends else cell


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
    """Mark the lowest time in a column among the three best by fused: good and cheap at once."""
    if key not in (keys := [column.key for column in table.columns]):
        return table
    at = keys.index(key)
    by_fused = sorted((-group.merit, line) for line, group in enumerate(groups) if group.fused)
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


def tables(results: Results, baseline: str = BASELINE, columns: Sequence[str] = ()) -> list[ResultTable]:
    """Build the main table of each data set.

    Args:
        results: The finished runs.
        baseline: The label that paired differences are taken to.
        columns: The columns to show, by key or the beginning of one (``faults``); all usual ones where none is named.

    Raises:
        BadInput: If no table has a column of such a name.
    """
    check_columns(results, columns)
    notes = (results.warning,) if results.warning else ()
    by_data = results.by_data()
    return [main_table(rows, data, baseline, notes, results.groups[data], columns) for data, rows in by_data.items()]


def main_table(
    rows: Sequence[Row],
    data: str,
    baseline: str = BASELINE,
    extra_notes: Sequence[str] = (),
    groups: Sequence[RunGroup] | None = None,
    columns: Sequence[str] = (),
) -> ResultTable:
    """Build the table of headline, balance, robustness and cost of every label, as the paper prints it.

    Args:
        rows: Runs of one data set, in one metric.
        data: Its name.
        baseline: The label that paired differences are taken to.
        extra_notes: Notes to print below the table's own.
        groups: The rows, aggregated; None where that has not been done yet.
        columns: The columns to show, as for `tables`.
    """
    groups = aggregate(rows) if groups is None else groups
    constant = baseline_group(groups)
    shown = [*groups, *([constant] if constant else [])]
    differences = differences_between(shown, baseline)
    every = main_columns(groups, differences, baseline)
    if columns:
        every = chosen_columns([*every, *measure_columns(groups)], columns)
    judged = [difference for difference in differences if constant is None or difference.label != constant.label]
    notes, head = [*notes_below(groups, judged), *extra_notes], headline(groups)
    title = f"{data}: {head.label} on the test set{head.about}"
    return underline_fastest(build_table(title, every, shown, notes), shown, "step")


def main_columns(groups: Sequence[RunGroup], differences: Sequence[Difference], baseline: str) -> list[ResultColumn]:
    """Return the usual columns of a table.

    Args:
        groups: All groups of one data set.
        differences: Of them, to the baseline.
        baseline: As it was asked for.
    """
    head, score = score_columns(groups)
    by_label = {difference.label: difference for difference in differences}
    versus = f"vs {compared_with(differences, baseline)}"
    protocols = sorted({group.protocol for group in groups if group.protocol})
    # A protocol that all groups share is named in the heading; several get a column of their own.
    alone_unit = f"{protocols[0]}, {head.unit}" if len(protocols) == 1 else head.unit
    alone_by = ResultColumn("protocol", "alone by", lambda group: group.protocol, "", kind="words")
    apart = partial(score, unit=head.points)
    return [
        score("fused", "fused", lambda group: group.fused),
        apart("difference", versus, lambda group: by_label.get(group.label), kind="difference", better=None),
        score("committee", "committee", lambda group: group.committee),
        *(
            score(f"alone.{name}", name, _alone(name), unit=alone_unit, by_protocol=True)
            for name in modalities(rows_of(groups))
        ),
        *([alone_by] if len(protocols) > 1 else []),
        apart("disparity", "disparity", measured("test", "disparity"), better="lower", by_protocol=True),
        score("faults.fused", "faults", lambda group: group.faults, unit=f"fused, {head.unit}"),
        score(
            "faults.committee",
            "faults",
            measured("test", "faults", "mean", "committee"),
            unit=f"committee, {head.unit}",
        ),
        ResultColumn("step", "step", lambda group: group.step, "ms, as trained", scale=1000.0, decimals=2),
    ]


def measure_columns(groups: Sequence[RunGroup]) -> list[ResultColumn]:
    """Return the columns of the other measures of both decisions, and of what a run costs."""
    _, score = score_columns(groups)
    nats = "nats" if (groups[0].rows[0].get("task") or "classes") == "classes" else "mean"
    columns, decisions, cost = [], ("fused", "committee"), partial(ResultColumn, scale=1.0)
    for decision in decisions:
        f1, ece, loss = (f"{decision}_{key}" for key in ("f1", "ece", "loss"))
        columns += [
            ResultColumn(f1, f"{decision} macro F1", measured("test", f1), better="higher"),
            ResultColumn(ece, f"{decision} calibration error", measured("test", ece), better="lower"),
            cost(loss, f"{decision} loss", measured("test", loss), nats, decimals=3, better="lower"),
            ResultColumn(f"{decision}_coverage", f"{decision} coverage", measured("test", f"{decision}_coverage")),
            score(
                f"{decision}_width",
                f"{decision} interval width",
                measured("test", f"{decision}_width"),
                unit="of target",
            ),
        ]
    columns.append(ResultColumn("beats", "fused beats best modality", _beats_best, "% of runs", decimals=0))
    worst = ("test", "faults", "worst")
    columns += [score(f"worst.{key}", f"worst fault, {key}", measured(*worst, key)) for key in decisions]
    return [
        *columns,
        cost("total", "whole run", measured("seconds", "total"), "s"),
        cost("memory", "peak memory", measured("memory"), "MB", decimals=0),
        ResultColumn("runs", "runs", lambda group: str(len(group.rows)), "", kind="words"),
    ]


def chosen_columns(columns: Sequence[ResultColumn], names: Sequence[str]) -> list[ResultColumn]:
    """Return the columns that names mean, in the order of the names: by key, or all whose key begins with one."""
    by_name = {name: [column for column in columns if _means(name, column.key)] for name in names}
    return list(dict.fromkeys(column for name in names for column in by_name[name]))


COLUMNS = (
    *("fused", "difference", "committee", "alone", "protocol", "disparity", "faults", "step", "beats", "worst"),
    *(
        f"{decision}_{score}"
        for decision in ("fused", "committee")
        for score in ("f1", "ece", "loss", "coverage", "width")
    ),
    *("total", "memory", "runs"),
)
"""Names of columns, without the sensors and decisions that some have behind a dot."""


def check_names(names: Sequence[str]) -> None:
    """Refuse names that no study has a column of, before it is run."""
    unknown = [name for name in names if name.partition(".")[0] not in COLUMNS]
    raise_all(f"--columns: unknown column {name!r}; expected some of {', '.join(COLUMNS)}" for name in unknown)


def check_columns(results: Results, names: Sequence[str]) -> None:
    """Refuse names that mean no column of any table of a study."""
    if names:
        every = [groups for groups in results.groups.values() if groups]
        columns = [[*main_columns(groups, (), BASELINE), *measure_columns(groups)] for groups in every]
        keys = dict.fromkeys(column.key for some in columns for column in some)
        known = dict.fromkeys(name for key in keys for name in (key.partition(".")[0], key))
        raise_all(
            f"--columns: unknown column {name!r}; expected some of {', '.join(known)}"
            for name in names
            if name not in known
        )


def _means(name: str, key: str) -> bool:
    return key == name or key.startswith(f"{name}.")


def score_columns(groups: Sequence[RunGroup]) -> tuple[Headline, Callable[..., ResultColumn]]:
    """Return the headline of groups, and what makes a column in its metric."""
    head = headline(groups)
    how: dict[str, Any] = {"unit": head.unit, "scale": head.scale, "decimals": head.decimals, "better": head.better}
    return head, partial(ResultColumn, **how)


def rows_of(groups: Sequence[RunGroup]) -> list[Row]:
    """Return every run of some groups."""
    return [row for group in groups for row in group.rows]


def measured(*path: str) -> Callable[[RunGroup], MeanStd | None]:
    """Return what takes a group and gives the mean of the number at a path of keys."""
    return lambda group: group.of(*path)


def _alone(name: str) -> Callable[[RunGroup], MeanStd | None]:
    return lambda group: group.alone.get(name)


def _beats_best(group: RunGroup) -> MeanStd | None:
    answers = [dig(row, "test", "beats_best_single") for row in group.rows]
    known = [answer for answer in answers if isinstance(answer, bool)]
    return MeanStd(sum(known) / len(known), None, len(known)) if known else None
