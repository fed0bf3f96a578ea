"""Methods ranked: on validation data by the decision that is shipped, and on the test parts of several data sets."""

import math
import shlex
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple, final

from equipoise.models.metrics import metric_of_row
from equipoise.report.aggregate import SHIPPED, MeanStd, RunGroup, headline, mean_std, measures_of, number
from equipoise.report.columns import ResultColumn
from equipoise.report.formats import text_table
from equipoise.report.headline import Row
from equipoise.report.notes import listed, plural
from equipoise.report.results import Results
from equipoise.report.table import ResultTable, build_table
from equipoise.util.errors import BadInput
from equipoise.util.extras import needs


class Ranked(NamedTuple):
    """A method in the ranking.

    Args:
        label: Its name in tables.
        decision: What its models ship: the committee where they have one, otherwise fused.
        validation: Mean and deviation of that decision on validation data, over seeds and folds.
        row: The run whose model is shipped: the best of them on validation data.
    """

    label: str
    decision: str
    validation: MeanStd
    row: Row


def ranking(results: Results, data: str | None = None) -> list[Ranked]:
    """Rank the methods of one data set, the best first.

    Args:
        results: The finished runs.
        data: The name of the data set; None where there is one.

    Raises:
        BadInput: If there are several data sets and none is named, or nothing can be shipped.
    """
    names = ", ".join(results.groups)
    if data is None and len(results.groups) > 1:
        first, choose = next(iter(results.groups)), "expected the name of one data set"
        how = f"ranking(results, data={first!r}), or --data {shlex.quote(first)}"
        raise BadInput(f"{results.folder}: {choose}, found {names}; give one: {how}")
    if data is not None and data not in results.groups:
        raise BadInput(f"data {data!r}: expected one of {names}")
    groups = results.groups[data] if data is not None else next(iter(results.groups.values()))
    ranked = ranked_groups(groups)
    if not ranked:
        raise BadInput(f"{results.folder}: expected a method with one decision to ship, found none; train with mimo")
    return ranked


def ranked_groups(groups: Sequence[RunGroup]) -> list[Ranked]:
    """Rank the groups of one data set that have something to ship, the best first."""
    ranked = [one for one in map(_ranked, groups) if one is not None]
    return sorted(ranked, key=lambda one: (-groups[0].metric.merit(one.validation.mean), one.label))


def _ranked(group: RunGroup) -> Ranked | None:
    values = [number(row, "validation", group.ships) for row in group.rows]
    mean = mean_std(values)
    if mean is None:
        return None
    best = max(zip(values, group.rows, strict=True), key=lambda one: metric_of_row(one[1]).merit(one[0]))
    return Ranked(group.label, group.ships, mean, best[1])


def ranking_text(ranked: Sequence[Ranked], results: Results) -> str:
    """Write the ranking, what is chosen, and why."""
    first, groups = ranked[0], results.groups
    own = next(groups[data] for data in groups if any(first.row in group.rows for group in groups[data]))
    head = headline(own)
    lines = [
        [
            one.label,
            one.decision,
            head.written(one.validation.mean)
            + ("" if one.validation.deviation is None else f" ± {head.written(one.validation.deviation)}"),
            str(one.validation.count),
        ]
        for one in ranked
    ]
    table = text_table(["method", "ships", f"validation {head.in_axis}", "runs"], lines)
    seed, fold = first.row.get("seed"), first.row.get("fold")
    run = ", ".join(f"{what} {at}" for what, at in (("seed", seed), ("fold", fold)) if at is not None)
    why = f"its {first.decision} has the {head.best} {head.label} on validation data"
    count = first.validation.count
    over = f", on average over {count} runs; of these {run} is the best" if count > 1 else f" ({run})" if run else ""
    folds = "" if fold is None else " A model of a fold has not seen the test groups of that fold."
    return "\n".join([*table, f"Chosen: {first.label}, since {why}{over}.{folds}"])


def ranking_as_dicts(ranked: Sequence[Ranked]) -> list[dict[str, Any]]:
    """Return the ranking in plain values."""
    return [
        {"label": one.label, "ships": one.decision, "validation": one.validation._asdict(), "config": one.row["config"]}
        for one in ranked
    ]


# -- mean ranks over data sets --

LEVEL = 0.05
ENOUGH = 10
"""Data sets above which Demšar (2006) takes the distribution of Friedman's statistic for that of χ²."""
MEASURES = {
    "shipped": ("test", SHIPPED),
    "fused": ("test", "fused"),
    "shipped under faults": ("test", "faults", "mean", SHIPPED),
    "fused under faults": ("test", "faults", "mean", "fused"),
}
"""The numbers that methods are ranked by."""


@final
@dataclass(frozen=True)
class MeanRanks:
    """Ranks of methods over data sets, by one measure: 1 is the best, and ties share the mean of their ranks.

    Args:
        measure: A key of `MEASURES`.
        data: The data sets.
        ranks: The mean rank of each method that has the number on all of them, the best first.
        left_out: Methods that have it on some of them only.
        statistic: Friedman's χ², corrected for ties; None of fewer than three methods.
        chance: The probability of one as large if the methods did not differ.
        difference: The critical difference by Nemenyi: mean ranks that lie closer do not differ at the level of 5 %.
    """

    measure: str
    data: tuple[str, ...]
    ranks: Mapping[str, float]
    left_out: tuple[str, ...]
    statistic: float | None
    chance: float | None
    difference: float

    @property
    def chance_in_words(self) -> str:
        """The probability as it is written; nothing where there is none."""
        return "" if self.chance is None else f"p = {self.chance:.3f}" if self.chance >= 0.001 else "p < 0.001"

    @property
    def alike(self) -> list[tuple[str, ...]]:
        """The largest groups of methods that the critical difference does not tell apart, two or more in each."""
        labels, ranks, found, last = list(self.ranks), list(self.ranks.values()), [], 0
        for start, rank in enumerate(ranks):
            end = bisect_left(ranks, rank + self.difference)
            if end > max(last, start + 1):
                found.append(tuple(labels[start:end]))
                last = end
        return found


@lru_cache
def critical_difference(methods: int, data: int) -> float:
    """Return Nemenyi's critical difference of mean ranks at the level of 5 %: q · √(k (k + 1) / (6 N)).

    Args:
        methods: k.
        data: N, the number of data sets.

    Example:
        >>> round(critical_difference(4, 14), 2)
        1.25
    """
    with needs("a critical difference", "train"):
        from scipy.stats import studentized_range  # a second that other commands need not wait

    q = float(studentized_range.ppf(1 - LEVEL, methods, math.inf)) / math.sqrt(2)
    return q * math.sqrt(methods * (methods + 1) / (6 * data))


def mean_ranks(results: Results, measure: str = "shipped") -> MeanRanks | None:
    """Rank the methods of a study of several data sets, in the direction of each metric.

    Args:
        results: The finished runs.
        measure: A key of `MEASURES`.

    Returns:
        The mean ranks; None where fewer than two methods have the number on two data sets or more.
    """
    merits: dict[str, dict[str, float]] = {}
    for data, groups in _each_data_once(results).items():
        means = {group.label: group.of(*MEASURES[measure]) for group in groups}
        own = {label: groups[0].metric.merit(mean.mean) for label, mean in means.items() if mean}
        merits |= {data: own} if own else {}
    every = list(dict.fromkeys(label for own in merits.values() for label in own))
    common = [label for label in every if all(label in own for own in merits.values())]
    if len(merits) < 2 or len(common) < 2:
        return None
    with needs("a ranking", "train"):
        from scipy.stats import friedmanchisquare, rankdata

    table = [[own[label] for label in common] for own in merits.values()]
    ranks = rankdata([[-merit for merit in line] for line in table], axis=1).mean(axis=0).tolist()
    statistic = chance = None
    if len(common) > 2:
        tied = all(len(set(line)) == 1 for line in table)  # which scipy divides by zero for
        found = (0.0, 1.0) if tied else friedmanchisquare(*zip(*table, strict=True))
        statistic, chance = float(found[0]), float(found[1])
    ordered = dict(sorted(zip(common, ranks, strict=True), key=lambda one: (one[1], one[0])))
    left_out = tuple(label for label in every if label not in common)
    difference = critical_difference(len(common), len(merits))
    return MeanRanks(measure, tuple(merits), ordered, left_out, statistic, chance, difference)


def _each_data_once(results: Results) -> dict[str, list[RunGroup]]:
    """Return the groups of each data set; one that was run with several metrics counts once, with the first."""
    once: dict[str, tuple[str, list[RunGroup]]] = {}
    for name, groups in results.groups.items():
        once.setdefault(str(groups[0].rows[0].get("data")), (name, groups))
    return dict(once.values())


def every_ranks(results: Results) -> list[MeanRanks]:
    """Rank the methods by every measure that can be ranked by; none of a study of one data set."""
    groups = [group for own in results.groups.values() for group in own]
    measures = measures_of(groups, MEASURES) if len(results.groups) > 1 else ()
    found = (mean_ranks(results, measure) for measure in measures)
    return [one for one in found if one is not None]


def ranks_table(results: Results) -> ResultTable | None:
    """Build the table of mean ranks over data sets, with the tests below it; None where nothing can be ranked.

    Args:
        results: The finished runs.
    """
    every = every_ranks(results)
    if not every:
        return None
    rows: dict[str, list[Row]] = {}
    for group in (group for groups in results.groups.values() for group in groups):
        rows.setdefault(group.label, []).extend(group.rows)
    labels = list(dict.fromkeys(label for one in every for label in one.ranks))
    groups = [RunGroup(label, tuple(rows[label])) for label in labels]
    columns = [_rank_column(one) for one in every]
    count = len(every[0].data)
    title = f"Mean ranks over {count} data sets, on the test sets: 1 is the best, ties share ranks"
    return build_table(title, columns, groups, [*map(_rank_note, every), *_cautions(every)])


def _rank_column(one: MeanRanks) -> ResultColumn:
    def of(group: RunGroup) -> MeanStd | None:
        return MeanStd(one.ranks[group.label], None, len(one.data)) if group.label in one.ranks else None

    name, _, faults = one.measure.partition(" ")
    key = "rank." + one.measure.replace(" under ", ".")
    return ResultColumn(key, name, of, faults or "all sensors", scale=1.0, decimals=2, better="lower")


def _rank_note(one: MeanRanks) -> str:
    """Write the tests of one measure."""
    what = f"{one.measure}: {plural(len(one.ranks), 'method')} on {plural(len(one.data), 'data set')}"
    friedman = "" if one.chance is None else f"; Friedman χ² = {one.statistic:.2f}, {one.chance_in_words}"
    same = listed([listed(labels) for labels in one.alike], "; ") or "none"
    left = f" Left out, since not on every data set: {listed(list(one.left_out))}." if one.left_out else ""
    critical = f"critical difference (Nemenyi, {LEVEL:g}) {one.difference:.2f}"
    return f"{what}{friedman}; {critical}. Not told apart: {same}.{left}"


def _cautions(every: Sequence[MeanRanks]) -> Iterator[str]:
    """State what the tests do not say."""
    count = min(len(one.data) for one in every)
    if count <= ENOUGH:
        yield (
            f"With {count} data sets the tests are weak (Demšar, 2006, wants more than {ENOUGH}): methods that are not "
            "told apart need not be equal."
        )
    if any(one.chance is not None and one.chance >= LEVEL for one in every):
        yield f"Where p is {LEVEL:g} or more, Friedman's test shows no difference at all, whatever the mean ranks are."


def ranks_as_dicts(results: Results) -> list[dict[str, Any]]:
    """Return the mean ranks by every measure, and their tests, in plain values."""
    return [
        {
            "measure": one.measure,
            "data": list(one.data),
            "ranks": dict(one.ranks),
            "left_out": list(one.left_out),
            "friedman": one.statistic,
            "p": one.chance,
            "critical_difference": one.difference,
            "alike": [list(labels) for labels in one.alike],
        }
        for one in every_ranks(results)
    ]
