"""The metric that a study is reported in: its direction, and how its numbers are written."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, Literal, final

from equipoise.models.metrics import Metric, metric_of_row

DIGITS = 3  # of a number that is no percentage
Row = dict[str, Any]
"""The results of one run, as in ``results.jsonl``."""


@final
@dataclass(frozen=True)
class Headline:
    """A metric as it is written in tables, sentences and figures.

    Args:
        metric: The metric.
        decimals: Digits after the point.

    Example:
        >>> from equipoise.models.metrics import METRICS
        >>> Headline(METRICS["accuracy"]).in_words(0.575), Headline(METRICS["mae"], 2).in_words(4.5)
        ('57.5 %', '4.50')
    """

    metric: Metric
    decimals: int = 1

    @property
    def label(self) -> str:
        """Its name in a sentence."""
        return self.metric.label

    @property
    def scale(self) -> float:
        """Raw numbers are written times this."""
        return 100.0 if self.metric.percent else 1.0

    @property
    def unit(self) -> str:
        """The word after a number in a heading: the name of what has no unit of its own."""
        return "%" if self.metric.percent else self.metric.name

    @property
    def points(self) -> str:
        """The unit of a difference."""
        return "points" if self.metric.percent else self.metric.name

    @property
    def in_axis(self) -> str:
        """Its name beside an axis."""
        return f"{self.label} (%)" if self.metric.percent else self.label

    @property
    def in_percent(self) -> str:
        """The unit behind its name in a sentence."""
        return " in percent" if self.metric.percent else ""

    @property
    def better(self) -> Literal["higher", "lower"]:
        """The end that is best."""
        return "higher" if self.metric.higher else "lower"

    @property
    def best(self) -> str:
        """The best of several, as an adjective."""
        return "highest" if self.metric.higher else "lowest"

    @property
    def about(self) -> str:
        """Remarks on a metric other than a percentage of which more is better."""
        of_target = ", in units of the target" if self.metric.name in ("mae", "rmse") else ""
        return of_target + ("" if self.metric.higher else ", lower is better")

    def written(self, value: float, sign: str = "-") -> str:
        """Write a number without its unit."""
        return f"{value * self.scale:{sign}.{self.decimals}f}"

    def in_words(self, value: float) -> str:
        """Write a number with its unit."""
        return self.written(value) + (" %" if self.metric.percent else "")


def headline_of(row: Row, values: Iterable[float] = ()) -> Headline:
    """Return the headline of a study.

    Args:
        row: One of its runs.
        values: Some of its numbers; those that are no percentages get three digits of a typical one.
    """
    metric = metric_of_row(row)
    if metric.percent:
        return Headline(metric)
    sizes = [abs(value) for value in values if value and math.isfinite(value)]
    typical = median(sizes) if sizes and metric.name != "r2" else 0.5
    return Headline(metric, min(max(DIGITS - 1 - math.floor(math.log10(typical)), 0), 8))


def baseline_name(row: Row) -> str:
    """Name the answer that reads no sensor, with which every table is compared."""
    kind, metric = row.get("task") or "classes", metric_of_row(row)
    if kind == "regression":
        return "median" if metric.name == "mae" else "mean"
    if metric.ranks:
        return "chance"
    return "majority class" if kind == "classes" else "majority of each label"


def same_headline(rows: Sequence[Row]) -> dict[tuple[str, str], list[Row]]:
    """Divide rows by task and metric, which are never in one table, and by the class that the metric is of."""
    divided: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        metric = metric_of_row(row)
        name = f"{metric.name} of {row['positive']}" if metric.of_class and row.get("positive") else metric.name
        divided.setdefault((str(row.get("task") or "classes"), name), []).append(row)
    return divided
