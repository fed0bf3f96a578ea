"""The tables of a study. Every renderer reads the same table, so that no two of them can disagree."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import final

from equipoise.measure.bootstrap import FEW_GROUPS
from equipoise.report.aggregate import (
    BASELINE,
    DECISIONS,
    SHIPPED,
    Row,
    RunGroup,
    aggregate,
    baseline_group,
    headline,
    number,
)
from equipoise.report.columns import (
    FEW,
    Cell,
    ResultColumn,
    check_columns,
    chosen_columns,
    main_columns,
    measure_columns,
    usual_columns,
)
from equipoise.report.differences import Difference, differences_between
from equipoise.report.kept import MOST_POOLED, class_notes, over_classes, pooled
from equipoise.report.notes import notes_below
from equipoise.report.results import Results
from equipoise.report.step_times import DOUBTED, doubt_note, load_of, time_note


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
    """Fill a table, leave out the columns that no group has a number for, and mark the best of each.

    A time that is not to be trusted is marked, and a note says why.
    """
    filled = {}
    for column in columns:
        measured = [column.of(group) for group in groups]
        if any(value is not None for value in measured):
            cells = [column.cell(value) for value in measured]
            cells = [_with_interval(column, group, cell) for group, cell in zip(groups, cells, strict=True)]
            cells = [_with_doubt(column, group, cell) for group, cell in zip(groups, cells, strict=True)]
            filled[column] = _mark_best(column, groups, cells)
    cells = tuple(zip(*filled.values(), strict=True)) if filled else ((),) * len(groups)
    doubted = [group for group, line in zip(groups, cells, strict=True) if any(cell.doubted for cell in line)]
    told = [*notes, *([doubt_note([row for group in doubted for row in group.rows])] if doubted else [])]
    return ResultTable(title, tuple(filled), tuple(group.label for group in groups), cells, tuple(told))


def _with_doubt(column: ResultColumn, group: RunGroup, cell: Cell) -> Cell:
    """Mark a time that was taken while the machine had other work."""
    if not (column.timed and cell.raw and load_of(group.rows).doubts()):
        return cell
    return replace(cell, aside=f"{cell.aside} {DOUBTED}".lstrip(), doubted=True)


def _with_interval(column: ResultColumn, group: RunGroup, cell: Cell) -> Cell:
    """Write the interval of a single run behind its number."""
    ends = column.interval_of(group) if column.interval_of is not None and cell.raw else None
    return replace(cell, aside=column.interval(*ends)) if ends else cell


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
    note = f"Shown: {len(labels):,} of {count:,} lines, the best. All of them: "
    notes = (f"{note}equipoise report FOLDER --format csv", *table.notes)
    return replace(table, labels=labels, cells=cells, notes=notes)


def underline_fastest(table: ResultTable, groups: Sequence[RunGroup], key: str, decision: str = SHIPPED) -> ResultTable:
    """Mark the lowest time in a column among the three best by a decision: good and cheap at once."""
    if key not in (keys := [column.key for column in table.columns]):
        return table
    at = keys.index(key)
    means = [group.of("test", decision) for group in groups]
    best = sorted((-groups[line].metric.merit(mean.mean), line) for line, mean in enumerate(means) if mean)
    timed = {line: time for _, line in best[:3] if (time := table.cells[line][at].value) is not None}
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
    return [
        main_table(rows, data, baseline, notes, results.groups[data], columns, results)
        for data, rows in by_data.items()
    ]


def main_table(
    rows: Sequence[Row],
    data: str,
    baseline: str = BASELINE,
    extra_notes: Sequence[str] = (),
    groups: Sequence[RunGroup] | None = None,
    columns: Sequence[str] = (),
    results: Results | None = None,
) -> ResultTable:
    """Build the table of headline, balance, robustness and cost of every label, as the paper prints it.

    Args:
        rows: Runs of one data set, in one metric.
        data: Its name.
        baseline: The label that paired differences are taken to.
        extra_notes: Notes to print below the table's own.
        groups: The rows, aggregated; None where that has not been done yet.
        columns: The columns to show, as for `tables`.
        results: The study that they are of, whose runs kept their answers; None where nobody has read them.
    """
    groups = aggregate(rows) if groups is None else groups
    constant = baseline_group(groups)
    shown = [*groups, *([constant] if constant else [])]
    differences = differences_between(shown, baseline, results=results)
    every = main_columns(groups, differences, baseline, results)
    if columns:
        every = chosen_columns([*every, *measure_columns(groups, results)], columns)
    else:
        every = usual_columns(every, groups)
    judged = [difference for difference in differences if constant is None or difference.label != constant.label]
    head = headline(groups)
    table = build_table(f"{data}: {head.label} on the test set{head.about}", every, shown)
    keys = {column.key for column in table.columns}
    notes = notes_below(groups, judged, keys if columns else None)
    notes += [time_note(rows)] if "t" in keys else []
    notes += [*_interval_notes(table, groups, judged, results), *(class_notes(results, groups) if results else [])]
    return underline_fastest(replace(table, notes=(*table.notes, *notes, *extra_notes)), shown, "step")


def _interval_notes(
    table: ResultTable, groups: Sequence[RunGroup], differences: Sequence[Difference], results: Results | None
) -> Iterator[str]:
    """Say what an interval by bootstrap is made of, and where that is too little."""
    counts = {number(row, "test", "interval_groups") for group in groups for row in group.rows if len(group.rows) == 1}
    counts |= {difference.pairs for difference in differences if difference.from_few}
    if results and any(column.kind == "interval" for column in table.columns):
        known = [one for group in groups[:MOST_POOLED] for key in DECISIONS if (one := pooled(results, group, key))]
        counts |= {one.groups for one in known}
        what = "groups" if known[0].grouped else "samples"
        metric = headline(groups).metric
        yield (
            f"Pooled: over the test samples of all {known[0].folds} folds together, mean over seeds; [low, high] is "
            f"the 95 % interval by bootstrap over {known[0].groups:,} {what}."
            + (" A draw in which a class does not occur leaves it out of the mean." if over_classes(groups) else "")
            + (" Scores of the models of different folds are ranked together there." if metric.ranks else "")
        )
    few = sorted(int(count) for count in counts if count is not None and count < FEW_GROUPS)
    if few and any(f"]{FEW}" in cell.aside for line in table.cells for cell in line):
        yield f"{FEW} from {' or '.join(map(str, few))} groups: too few to tell."
