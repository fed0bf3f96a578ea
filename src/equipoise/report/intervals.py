"""Means over runs, their deviations, and their 95 % intervals."""

import math
from collections.abc import Iterable, Mapping
from typing import Literal, NamedTuple

from equipoise.util.extras import needs

CONFIDENCE = 0.95
Runs = Mapping[tuple[object, object, object], float]
"""A number of each run, under its fold, seed and split."""


class MeanStd(NamedTuple):
    """A mean over runs.

    Args:
        mean: Their mean.
        deviation: Their sample standard deviation (n − 1); None for a single run.
        count: How many runs had the number.
    """

    mean: float
    deviation: float | None
    count: int


class MeanInterval(NamedTuple):
    """A mean over runs with its 95 % interval.

    Args:
        mean: Their mean.
        low: Lower end, by Student's t; None of a single number.
        high: Upper end.
        count: How many numbers the interval is made of.
        over: What varies between them: folds (seeds of a fold are averaged first) or seeds.
    """

    mean: float
    low: float | None
    high: float | None
    count: int
    over: Literal["folds", "seeds"]


class RunInterval(NamedTuple):
    """The 95 % interval of a number of one run, by bootstrap.

    Args:
        low: Lower end.
        high: Upper end.
        groups: How many groups were drawn from, or samples, where there are no groups; None where nobody counted.
        counts: The number of samples, and of those of the positive class or label; None where there is no such.
    """

    low: float
    high: float
    groups: float | None = None
    counts: tuple[float, float] | None = None


class SampledInterval(NamedTuple):
    """A 95 % interval by bootstrap over one test part.

    Args:
        low: Lower end.
        high: Upper end.
        count: How many groups or samples are drawn.
        over: What is drawn.
    """

    low: float
    high: float
    count: int
    over: Literal["groups", "samples"]


def mean_std(numbers: Iterable[float | None]) -> MeanStd | None:
    """Compute mean and sample standard deviation of the numbers that are not None.

    Example:
        >>> mean_std([1.0, None, 3.0])
        MeanStd(mean=2.0, deviation=1.4142135623730951, count=2)
    """
    known = [value for value in numbers if value is not None]
    if not known:
        return None
    mean = math.fsum(known) / len(known)
    squares = math.fsum((value - mean) ** 2 for value in known)
    return MeanStd(mean, math.sqrt(squares / (len(known) - 1)) if len(known) > 1 else None, len(known))


def interval_over(runs: Runs) -> MeanInterval | None:
    """Compute the mean of a number over runs, and its interval by Student's t; None without a run.

    With several folds the seeds of a fold are averaged first and the interval is over folds; otherwise it is over
    seeds, and then speaks of this one split only.

    Args:
        runs: The number of each run.
    """
    folds: dict[object, list[float]] = {}
    for (fold, _, _), value in runs.items():
        if fold is not None:
            folds.setdefault(fold, []).append(value)
    over = "folds" if len(folds) > 1 else "seeds"
    by_fold = [math.fsum(values) / len(values) for values in folds.values()]
    middle = mean_std(by_fold if over == "folds" else runs.values())
    if middle is None:
        return None
    mean, deviation, count = middle
    low = high = None
    if deviation is not None:
        with needs("an interval", "train"):
            from scipy.special import stdtrit  # a quarter of a second that other commands need not wait

        half = float(stdtrit(count - 1, (1 + CONFIDENCE) / 2)) * deviation / math.sqrt(count)
        low, high = mean - half, mean + half
    return MeanInterval(mean, low, high, count, over)
