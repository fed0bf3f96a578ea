"""Columns of tables, and their cells: the numbers that a study has of each group of runs, and how they are written."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, final

from equipoise.measure.bootstrap import FEW_GROUPS
from equipoise.measure.timing import BASELINES, OWN
from equipoise.models.metrics import METRICS
from equipoise.report.aggregate import BASELINE, DECISIONS, SHIPPED, MeanStd, Row, RunGroup, dig, headline, modalities
from equipoise.report.differences import Difference, compared_with
from equipoise.report.headline import Headline
from equipoise.report.intervals import MeanInterval, RunInterval
from equipoise.report.kept import MOST_POOLED, PooledFolds, metrics_of, other_metric, pooled
from equipoise.report.notes import events_of
from equipoise.report.results import Results
from equipoise.report.step_times import over
from equipoise.util.errors import raise_all

MISSING = "–"
FEW = "*"  # behind an interval from few groups
SIGN = "± "  # before a deviation
Measured = MeanStd | MeanInterval | Difference | PooledFolds | str | None


@final
@dataclass(frozen=True)
class ResultColumn:
    """A column of a table: the number it shows of each group of runs, and how it is written.

    Args:
        key: Its name in csv and JSON.
        title: Its name for people.
        of: Takes a group and returns its number.
        unit: Unit, or what else stands in brackets after the title.
        kind: Whether its cells are means over runs, paired differences, numbers with an interval, or words.
        scale: Raw numbers are shown times this: 100 for percent.
        decimals: Digits after the point.
        better: Which end of it is best, and printed bold; None where neither is.
        by_protocol: The numbers depend on how each modality alone is measured, so that only groups of one protocol
            compete.
        timed: The numbers are times, which are marked where the machine had other work.
        interval_of: Takes a group of a single run and returns the interval of its number, by bootstrap.
    """

    key: str
    title: str
    of: Callable[[RunGroup], Measured]
    unit: str = "%"
    kind: Literal["mean", "difference", "interval", "words"] = "mean"
    scale: float = 100.0
    decimals: int = 1
    better: Literal["higher", "lower"] | None = None
    by_protocol: bool = False
    timed: bool = False
    interval_of: Callable[[RunGroup], RunInterval | None] | None = None

    @property
    def heading(self) -> str:
        """Title and unit on one line."""
        return f"{self.title} ({self.unit})" if self.unit else self.title

    def cell(self, measured: Measured) -> Cell:
        """Write a number."""
        if measured is None or isinstance(measured, str):
            return Cell(measured or MISSING)
        if isinstance(measured, MeanStd):
            mean, deviation, _ = measured
            aside = "" if deviation is None else f"{SIGN}{self.written(deviation)}"
            return Cell(self.written(mean), aside, (mean, deviation))
        mean, low, high = measured.mean, measured.low, measured.high
        if isinstance(measured, PooledFolds | MeanInterval):
            groups, counts = (measured.groups, measured.counts) if isinstance(measured, PooledFolds) else (None, None)
            aside = "" if low is None or high is None else self.interval(low, high, groups, counts)
            return Cell(self.written(mean), aside, (mean, low, high))
        interval = "" if low is None or high is None else f"[{self.written(low, '+')}, {self.written(high, '+')}]"
        interval += FEW if measured.from_few else ""
        return Cell(self.written(mean, "+"), interval, (mean, low, high))

    def interval(self, low: float, high: float, groups: float | None, counts: tuple[float, float] | None) -> str:
        """Write an interval, marked where it comes from a bootstrap over few groups.

        Args:
            low: Its lower end.
            high: Its upper end.
            groups: How many groups were drawn from; None where it is no bootstrap.
            counts: The number of samples, and of those of the positive class; None where no class is.
        """
        few = FEW if groups is not None and groups < FEW_GROUPS else ""
        return f"[{self.written(low)}, {self.written(high)}]{few}{events_of(counts)}"

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
        doubted: A time that is not to be trusted.
    """

    main: str
    aside: str = ""
    raw: tuple[float | None, ...] = ()
    best: bool = False
    fastest: bool = False
    doubted: bool = False

    @property
    def text(self) -> str:
        """Everything written in it."""
        return f"{self.main} {self.aside}" if self.aside else self.main

    @property
    def value(self) -> float | None:
        """The raw number; None for words and what is missing."""
        return self.raw[0] if self.raw else None


def aligned(cells: Sequence[Cell], space: str = " ") -> list[str]:
    """Write what stands behind the numbers of a column, all equally wide, deviations next to their sign."""
    asides = [cell.aside.removeprefix(SIGN) for cell in cells]
    deviations = [len(aside) for aside, cell in zip(asides, cells, strict=True) if cell.aside.startswith(SIGN)]
    texts = [
        SIGN + aside.rjust(max(deviations), space) if cell.aside.startswith(SIGN) else aside
        for aside, cell in zip(asides, cells, strict=True)
    ]
    width = max(map(len, texts), default=0)
    return [text.ljust(width, space) for text in texts]


def main_columns(
    groups: Sequence[RunGroup], differences: Sequence[Difference], baseline: str, results: Results | None = None
) -> list[ResultColumn]:
    """Return the usual columns of a table.

    Args:
        groups: All groups of one data set.
        differences: Of them, to the baseline.
        baseline: As it was asked for.
        results: The study, for what is computed from its answers.
    """
    head, score = score_columns(groups)
    by_label = {difference.label: difference for difference in differences}
    versus = f"vs {compared_with(differences, baseline)}"
    protocols = sorted({group.protocol for group in groups if group.protocol})
    # A protocol that all groups share is named in the heading; several get a column of their own.
    alone_unit = f"{protocols[0]}, {head.unit}" if len(protocols) == 1 else head.unit
    alone_by = ResultColumn("protocol", "alone by", lambda group: group.protocol, "", kind="words")
    apart = partial(score, unit=head.points)
    ships = sorted({group.ships for group in groups if group.shipped})
    # A decision that all groups ship is named in the heading; two get a column of their own.
    name, shipped_unit = (ships[0], f"shipped, {head.unit}") if len(ships) == 1 else (SHIPPED, head.unit)
    ships_by = ResultColumn("ships", "ships", lambda group: group.ships if group.shipped else None, "", kind="words")
    return [
        score(SHIPPED, name, lambda group: group.shipped, unit=shipped_unit, interval_of=_interval(SHIPPED)),
        *([ships_by] if len(ships) > 1 else []),
        apart("difference", versus, lambda group: by_label.get(group.label), kind="difference", better=None),
        score("fused", "fused", lambda group: group.fused, interval_of=_interval("fused")),
        score("committee", "committee", lambda group: group.committee, interval_of=_interval("committee")),
        *(
            score(f"pooled.{key}", f"{key}, pooled", pool, unit=f"all folds, {head.unit}", kind="interval")
            for key, pool in _pools(results, groups).items()
        ),
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
        ResultColumn("step", "step", lambda group: group.step, "ms, as trained", scale=1000.0, decimals=2, timed=True),
    ]


def time_columns(unit: str = "ms", *path: str, key: str = "t", title: str = "t") -> list[ResultColumn]:
    """Return the columns of t, or of another time of a step: as it is, and over both baselines.

    Args:
        unit: Of the time.
        path: Of keys in a row, to the times of the lines; that of t where there is none.
        key: The key of the first column, and the beginning of those of the others.
        title: Of all of them.
    """
    where, time = path or ("timing", "t"), partial(ResultColumn, decimals=2, timed=True)
    return [
        time(key, title, measured(*where, OWN, "wall"), unit, scale=1000.0),
        *(
            time(f"{key}.{name}", title, over(name, *where), f"× {words}", scale=1.0)
            for name, words in BASELINES.items()
        ),
    ]


def _pools(results: Results | None, groups: Sequence[RunGroup]) -> dict[str, Callable[[RunGroup], Measured]]:
    """Return what pools the folds of each decision of a group; nothing without the answers of runs."""
    if results is None:
        return {}
    own = {group.label for group in groups[:MOST_POOLED]}

    def pool(decision: str, group: RunGroup) -> PooledFolds | None:
        return pooled(results, group, decision) if group.label in own else None

    return {decision: partial(pool, decision) for decision in DECISIONS}


def metric_columns(groups: Sequence[RunGroup], results: Results | None) -> list[ResultColumn]:
    """Return the columns of every metric of the task, for those who ask for one by name."""
    if results is None:
        return []
    decimals = headline(groups).decimals
    return [
        ResultColumn(
            f"{metric.name}.{decision}",
            f"{decision} {metric.label}",
            partial(other_metric, results, metric=metric, decision=decision),
            "%" if metric.percent else metric.name,
            scale=100.0 if metric.percent else 1.0,
            decimals=1 if metric.percent else 3 if metric.name == "r2" else decimals,
            better="higher" if metric.higher else "lower",
        )
        for metric in metrics_of(groups)
        for decision in DECISIONS
    ]


def measure_columns(groups: Sequence[RunGroup], results: Results | None = None) -> list[ResultColumn]:
    """Return the columns of the other measures of both decisions, and of what a run costs.

    Args:
        groups: All groups of one data set.
        results: The study; with it there are columns of every other metric of the task, from the answers of its runs.
    """
    _, score = score_columns(groups)
    nats = "nats" if (groups[0].rows[0].get("task") or "classes") == "classes" else "mean"
    columns, cost = metric_columns(groups, results), partial(ResultColumn, scale=1.0)
    for decision in DECISIONS:
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
    columns += [score(f"worst.{key}", f"worst fault, {key}", measured(*worst, key)) for key in DECISIONS]
    return [
        *columns,
        *time_columns(),
        ResultColumn(
            "t.cpu", "t", measured("timing", "t", OWN, "cpu"), "ms of CPU", scale=1000.0, decimals=2, timed=True
        ),
        cost("total", "whole run", measured("seconds", "total"), "s"),
        cost("memory", "peak memory", measured("memory"), "MB", decimals=0),
        ResultColumn("runs", "runs", lambda group: str(len(group.rows)), "", kind="words"),
    ]


def usual_columns(columns: Sequence[ResultColumn], groups: Sequence[RunGroup]) -> list[ResultColumn]:
    """Return the columns that are shown where none is named: those that say something which the first one does not.

    Only numbers of a decision that is shipped compete.

    Args:
        columns: As `main_columns` returns them.
        groups: All groups of one data set.
    """
    ships = {group.ships for group in groups if group.shipped}
    same = {"committee", *(ships if len(ships) == 1 else ())}
    others = set(DECISIONS) - ships
    return [
        replace(column, better=None) if others & {*column.key.split(".")} else column
        for column in columns
        if column.key not in same
    ]


def chosen_columns(columns: Sequence[ResultColumn], names: Sequence[str]) -> list[ResultColumn]:
    """Return the columns that names mean, in the order of the names: by key, or all whose key begins with one."""
    by_name = {name: [column for column in columns if _means(name, column.key)] for name in names}
    return list(dict.fromkeys(column for name in names for column in by_name[name]))


COLUMNS = (
    *("shipped", "ships", "difference", *DECISIONS, "alone", "protocol", "disparity"),
    *("faults", "step", "beats", "worst"),
    *(f"{decision}_{score}" for decision in DECISIONS for score in ("f1", "ece", "loss", "coverage", "width")),
    *("t", "total", "memory", "runs", "pooled", *METRICS),
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
        columns = [
            [*main_columns(groups, (), BASELINE, results), *measure_columns(groups, results)] for groups in every
        ]
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


def _interval(decision: str) -> Callable[[RunGroup], RunInterval | None]:
    return lambda group: group.interval(decision)


def _alone(name: str) -> Callable[[RunGroup], MeanStd | None]:
    return lambda group: group.alone.get(name)


def _beats_best(group: RunGroup) -> MeanStd | None:
    answers = [dig(row, "test", "beats_best_single") for row in group.rows]
    known = [answer for answer in answers if isinstance(answer, bool)]
    return MeanStd(sum(known) / len(known), None, len(known)) if known else None
