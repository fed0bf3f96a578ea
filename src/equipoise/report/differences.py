"""Paired differences between labels, and their 95 % intervals: over folds, seeds, or the samples of one test part."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, final

import numpy as np

from equipoise.measure.bootstrap import FEW_GROUPS
from equipoise.report.aggregate import BASELINE, SHIPPED, Row, RunGroup, aggregate, as_text, number, settings
from equipoise.report.intervals import Runs, SampledInterval, interval_over
from equipoise.report.kept import difference_by_samples
from equipoise.report.results import Results

ABSENT, UNKNOWN = -1, -2  # codes of a setting: the baseline has none, or never had this value


@final
@dataclass(frozen=True)
class Difference:
    """The difference of one label to the baseline, on the same folds and seeds.

    Args:
        label: The label compared.
        baseline: The label it is compared with.
        mean: Mean difference; positive is above the baseline, which is better where `higher` is.
        low: Lower end of the 95 % interval; None where the runs cannot tell it.
        high: Upper end.
        pairs: How many differences, groups or samples the interval is made of.
        over: What varies between them: folds (seeds of a fold are averaged first), seeds, or the groups or samples of
            one test part.
        higher: Whether larger is better.
    """

    label: str
    baseline: str
    mean: float
    low: float | None
    high: float | None
    pairs: int
    over: Literal["folds", "seeds", "groups", "samples"]
    higher: bool = True

    @property
    def from_few(self) -> bool:
        """True where its interval is that of too few groups or samples to be believed."""
        return self.low is not None and self.over in ("groups", "samples") and self.pairs < FEW_GROUPS

    @property
    def verdict(self) -> Literal["better", "worse", "no clear difference", "too few to tell"]:
        """The claim it allows: a difference is clear when its interval does not cover zero."""
        if self.low is None or self.high is None or self.from_few:
            return "too few to tell"
        if self.low <= 0 <= self.high:
            return "no clear difference"
        return "better" if (self.low > 0) == self.higher else "worse"

    @property
    def gain(self) -> float:
        """The mean as a number of which larger is better."""
        return self.mean if self.higher else -self.mean


def paired_differences(
    rows: Sequence[Row], baseline: str = BASELINE, measure: Sequence[str] = ("test", SHIPPED)
) -> list[Difference]:
    """Compute paired differences of every label to the baseline, with 95 % intervals by Student's t.

    A pair is two runs with the same fold, seed and split. With several folds the seeds of a fold are averaged first
    and the interval is over folds; otherwise it is over seeds, and then speaks of this one split only. A run without a
    seed, which leaves nothing to chance, is one pair with the mean of the other's seeds: one split gives no interval.

    Args:
        rows: Runs of one data set.
        baseline: Label (or else method) that the others are compared with.
        measure: Path of keys to the number that is compared; "shipped" in it is the decision that each line ships.
    """
    return differences_between(aggregate(rows), baseline, measure)


def differences_between(
    groups: Sequence[RunGroup],
    baseline: str = BASELINE,
    measure: Sequence[str] = ("test", SHIPPED),
    results: Results | None = None,
) -> list[Difference]:
    """Compute paired differences of every group to the baseline, as `paired_differences` does for rows.

    Args:
        groups: All groups of one data set.
        baseline: Label (or else method) that the others are compared with.
        measure: Path of keys to the number that is compared.
        results: The study, whose runs kept their answers: where one split gives no interval over runs, there is one by
            bootstrap over its test part.
    """
    named = [group for group in groups if group.rows[0]["label"] == baseline]
    named = named or [group for group in groups if group.method == baseline][:1]
    if not named:
        return []
    baselines, own = _Baselines(named, measure), {id(group) for group in named}
    others = ((group, _by_run(group, measure)) for group in groups if id(group) not in own)
    differences = (
        _difference(group, runs, *baselines.nearest(group, runs), measure, results) for group, runs in others
    )
    return [difference for difference in differences if difference]


def difference_of(
    ours: RunGroup, base: RunGroup, measure: Sequence[str], results: Results | None = None
) -> Difference | None:
    """Compute the paired difference of one group to a second; None without a pair."""
    return _difference(ours, _by_run(ours, measure), base, _by_run(base, measure), measure, results)


def compared_with(differences: Sequence[Difference], baseline: str) -> str:
    """Name the baseline that differences were taken to: without a group of the label asked for, one of that method."""
    baselines = {difference.baseline for difference in differences}
    return baselines.pop() if len(baselines) == 1 else baseline


def _difference(
    group: RunGroup, ours: Runs, base: RunGroup, theirs: Runs, measure: Sequence[str], results: Results | None
) -> Difference | None:
    pairs = _pairs(ours, theirs)
    found = interval_over(pairs)
    if found is None:
        return None
    mean, low, high, count, over = found
    if over == "seeds" and (low is None or (_is_point(low, high) and results is not None)):
        # One pair, or copies of one: no interval over runs can be told.
        sampled = _by_samples(group, base, measure, pairs, results)
        low, high, count, over = sampled or (None, None, count, over)
    if results is not None and _is_point(low, high):
        low = high = None
    return Difference(group.label, base.label, mean, low, high, count, over, group.metric.higher)


def _is_point(low: float | None, high: float | None) -> bool:
    return low is None or high is None or math.isclose(low, high, rel_tol=1e-9, abs_tol=1e-12)


def _by_samples(
    group: RunGroup, base: RunGroup, measure: Sequence[str], pairs: Runs, results: Results | None
) -> SampledInterval | None:
    """Draw the test part of one split again and again; None where chance in training cannot be averaged out."""
    places = {(fold, split) for fold, _, split in pairs}
    both = [[row for row in one.rows if (row.get("fold"), row.get("split")) in places] for one in (group, base)]
    enough = all(len(rows) > 1 or rows[0].get("seed") is None for rows in both)
    if results is None or len(measure) != 2 or not enough:
        return None
    ours, theirs = (RunGroup(one.label, tuple(rows)) for one, rows in zip((group, base), both, strict=True))
    return difference_by_samples(results, ours, theirs, measure[1])


def _pairs(ours: Runs, theirs: Runs) -> Runs:
    """Return the difference of each pair; where one side has no seed, that to the mean over the other's seeds."""
    single = {(fold, split) for side in (ours, theirs) for fold, seed, split in side if seed is None}
    if single:
        ours, theirs = _averaged(ours, single), _averaged(theirs, single)
    return {run: ours[run] - theirs[run] for run in ours if run in theirs}


def _averaged(runs: Runs, single: set[tuple[object, object]]) -> Runs:
    """Average over the seeds of some folds and splits."""
    values: dict[tuple[object, object, object], list[float]] = {}
    for (fold, seed, split), value in runs.items():
        values.setdefault((fold, None if (fold, split) in single else seed, split), []).append(value)
    return {run: math.fsum(some) / len(some) for run, some in values.items()}


def _meeting(runs: Runs) -> set[tuple[object, object, object]]:
    """Return the runs, and for each its place: a run without a seed meets all of its place."""
    return {*runs, *((fold, None, split) for fold, _, split in runs)}


def _meet(ours: Runs, theirs: Runs) -> bool:
    """Tell whether there is a pair."""
    return not (_meeting(theirs).isdisjoint(ours) and _meeting(ours).isdisjoint(theirs))


def _by_run(group: RunGroup, measure: Sequence[str]) -> Runs:
    """Return the number of each run, under what makes two runs a pair."""
    path = group.path(*measure)
    numbers = ((row, number(row, *path)) for row in group.rows)
    return {(row.get("fold"), row.get("seed"), row.get("split")): value for row, value in numbers if value is not None}


@final
class _Baselines:
    """A baseline, which may have been run with several settings; another group is compared with the nearest of them.

    The nearest one has pairs with the group, if any has, and shares most settings with it; of several the first.
    """

    def __init__(self, groups: Sequence[RunGroup], measure: Sequence[str]) -> None:
        self.groups = groups
        self.runs = [_by_run(group, measure) for group in groups]
        self.every_run = set().union(*map(_meeting, self.runs))
        own = [{name: as_text(value) for name, value in settings(group.rows[0]).items()} for group in groups]
        names = dict.fromkeys(name for texts in own for name in texts)
        values = {name: [texts.get(name) for texts in own] for name in names}
        # Only where they differ can one of them be nearer than another. There, equal settings have equal codes.
        self.codes = {
            name: {text: code for code, text in enumerate(dict.fromkeys(texts)) if text is not None}
            for name, texts in values.items()
            if len(set(texts)) > 1
        }
        table = [[codes.get(text, ABSENT) for text in values[name]] for name, codes in self.codes.items()]
        self.table = np.array(table, dtype=np.int32).reshape(len(self.codes), len(groups))

    def nearest(self, group: RunGroup, runs: Runs) -> tuple[RunGroup, Runs]:
        """Return the group to compare with, and its numbers."""
        own = settings(group.rows[0])
        wanted = [
            codes.get(as_text(own[name]), UNKNOWN) if name in own else UNKNOWN for name, codes in self.codes.items()
        ]
        shared = (self.table == np.array(wanted, dtype=np.int32)[:, None]).sum(axis=0)
        at = int(shared.argmax())
        if not _meet(runs, self.runs[at]) and not _meeting(runs).isdisjoint(self.every_run):
            order = np.argsort(-shared, kind="stable").tolist()
            at = next((place for place in order if _meet(runs, self.runs[place])), at)
        return self.groups[at], self.runs[at]
