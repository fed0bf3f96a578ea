"""One table for a study of several data sets: methods × data sets."""

import math
import re
from collections.abc import Sequence
from dataclasses import replace

from equipoise.report.aggregate import BASELINE, SHIPPED, RunGroup, baseline_group, headline
from equipoise.report.columns import (
    Measured,
    ResultColumn,
    check_columns,
    chosen_columns,
    main_columns,
    measure_columns,
)
from equipoise.report.differences import differences_between
from equipoise.report.headline import Row
from equipoise.report.intervals import RunInterval
from equipoise.report.notes import plural
from equipoise.report.results import Results
from equipoise.report.table import ResultTable, build_table


def overview(results: Results, baseline: str = BASELINE, columns: Sequence[str] = (SHIPPED,)) -> ResultTable:
    """Build the table of every method on every data set, the best on average first.

    Args:
        results: The finished runs.
        baseline: The label that paired differences are taken to.
        columns: The columns of each data set, as for `tables`; the decision that is shipped where none is named.

    Raises:
        BadInput: If no table has a column of such a name.
    """
    columns = columns or (SHIPPED,)
    check_columns(results, columns)
    constants = {data: baseline_group(groups) for data, groups in results.groups.items()}
    lines = {
        data: {group.label: group for group in [*groups, *filter(None, [constants[data]])]}
        for data, groups in results.groups.items()
    }
    every = [
        _column(data, column, lines[data], several=len(columns) > 1)
        for data, groups in results.groups.items()
        for column in _columns(results, groups, list(lines[data].values()), baseline, columns)
    ]
    last, ranks = {constant.label for constant in constants.values() if constant}, _ranks(results.groups)
    rows: dict[str, list[Row]] = {}
    for label, group in ((label, group) for own in lines.values() for label, group in own.items()):
        rows.setdefault(label, []).extend(group.rows)
    labels = sorted(rows, key=lambda label: (label in last, ranks.get(label, math.inf), label))
    groups = [RunGroup(label, tuple(rows[label])) for label in labels]
    table = build_table("Methods × data sets, on the test sets", every, groups, _notes(results))
    return replace(table, notes=(*table.notes, *([results.warning] if results.warning else [])))


def _columns(
    results: Results, groups: Sequence[RunGroup], shown: Sequence[RunGroup], baseline: str, names: Sequence[str]
) -> list[ResultColumn]:
    differences = differences_between(shown, baseline, results=results)
    every = [*main_columns(groups, differences, baseline, results), *measure_columns(groups, results)]
    return chosen_columns(every, names)


def _column(data: str, column: ResultColumn, lines: dict[str, RunGroup], *, several: bool) -> ResultColumn:
    """Return a column of one data set as one of all: its title is the data's."""

    def of(group: RunGroup) -> Measured:
        own = lines.get(group.label)
        return None if own is None else column.of(own)

    def interval_of(group: RunGroup) -> RunInterval | None:
        own = lines.get(group.label)
        return None if own is None or column.interval_of is None else column.interval_of(own)

    heading = column.title + (f", {column.unit}" if column.unit else "")
    return replace(
        column,
        key=f"{data}.{column.key}" if several else data,
        title=re.sub(r"\.(npz|csv|parquet)$", "", data),
        unit=heading,
        of=of,
        interval_of=interval_of,
    )


def _ranks(groups_of: dict[str, list[RunGroup]]) -> dict[str, float]:
    """Return the mean rank of each label over the data sets it was run on."""
    places: dict[str, list[int]] = {}
    for groups in groups_of.values():
        for place, group in enumerate(groups):  # they are sorted, the best first
            places.setdefault(group.label, []).append(place)
    return {label: sum(own) / len(own) for label, own in places.items()}


def _notes(results: Results) -> list[str]:
    about = []
    for data, groups in results.groups.items():
        head, runs = headline(groups), sorted({len(group.rows) for group in groups})
        count = plural(runs[0], "run") if len(runs) == 1 else f"{runs[0]} to {runs[-1]} runs"
        about.append(f"{data}: {head.label}{head.about}; {count} of each method")
    deviation = "± is the standard deviation over seeds and folds, [low, high] the 95 % interval of a single run. "
    return [". ".join(about) + ".", deviation + "Bold: best of its column. Lines are ordered by their mean rank."]
