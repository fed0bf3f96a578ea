"""Paired differences of methods to joint training, run by run, with confidence intervals."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, final

import numpy as np
from scipy.special import stdtrit

from equipoise.report.aggregate import Row, RunGroup, aggregate, as_text, mean_std, number, settings

BASELINE = "msl"
CONFIDENCE = 0.95
ABSENT, UNKNOWN = -1, -2  # codes of a setting: the baseline has none, or never had this value

Runs = dict[tuple[object, object, object], float]
"""A number of each run, under its fold, seed and split."""


@final
@dataclass(frozen=True)
class Difference:
    """The difference of one label to the baseline, on the same folds and seeds.

    Args:
        label: The label compared.
        baseline: The label it is compared with.
        mean: Mean difference; positive is above the baseline.
        low: Lower end of the 95 % interval; None with fewer than two pairs.
        high: Upper end.
        pairs: How many differences the interval is made of.
        over: What varies between them: folds (seeds of a fold are averaged first) or seeds.
    """

    label: str
    baseline: str
    mean: float
    low: float | None
    high: float | None
    pairs: int
    over: Literal["folds", "seeds"]

    @property
    def verdict(self) -> Literal["better", "worse", "no clear difference", "too few runs"]:
        """The claim it allows: a difference is clear when its interval does not cover zero."""
        if self.low is None or self.high is None:
            return "too few runs"
        return "better" if self.low > 0 else "worse" if self.high < 0 else "no clear difference"


def paired_differences(
    rows: Sequence[Row], baseline: str = BASELINE, measure: Sequence[str] = ("test", "fused")
) -> list[Difference]:
    """Compute paired differences of every label to the baseline, with 95 % intervals by Student's t.

    A pair is two runs with the same fold, seed and split. With several folds the seeds of a fold are averaged first
    and the interval is over folds; otherwise it is over seeds, and then speaks of this one split only.

    Args:
        rows: Runs of one data set.
        baseline: Label (or else method) that the others are compared with.
        measure: Path of keys to the number that is compared.
    """
    return differences_between(aggregate(rows), baseline, measure)


def differences_between(
    groups: Sequence[RunGroup], baseline: str = BASELINE, measure: Sequence[str] = ("test", "fused")
) -> list[Difference]:
    """Compute paired differences of every group to the baseline, as `paired_differences` does for rows.

    Args:
        groups: All groups of one data set.
        baseline: Label (or else method) that the others are compared with.
        measure: Path of keys to the number that is compared.
    """
    named = [group for group in groups if group.rows[0]["label"] == baseline]
    named = named or [group for group in groups if group.method == baseline][:1]
    if not named:
        return []
    baselines, own = _Baselines(named, measure), {id(group) for group in named}
    others = ((group, _by_run(group, measure)) for group in groups if id(group) not in own)
    differences = (_difference(group, runs, *baselines.nearest(group, runs)) for group, runs in others)
    return [difference for difference in differences if difference]


def compared_with(differences: Sequence[Difference], baseline: str) -> str:
    """Name the baseline that differences were taken to: without a group of the label asked for, one of that method."""
    baselines = {difference.baseline for difference in differences}
    return baselines.pop() if len(baselines) == 1 else baseline


def _difference(group: RunGroup, ours: Runs, base: RunGroup, theirs: Runs) -> Difference | None:
    differences = {run: ours[run] - theirs[run] for run in ours if run in theirs}
    folds: dict[object, list[float]] = {}
    for (fold, _, _), value in differences.items():
        if fold is not None:
            folds.setdefault(fold, []).append(value)
    over = "folds" if len(folds) > 1 else "seeds"
    by_fold = [math.fsum(values) / len(values) for values in folds.values()]
    middle = mean_std(by_fold if over == "folds" else differences.values())
    if middle is None:
        return None
    mean, deviation, pairs = middle
    low = high = None
    if deviation is not None:
        half = float(stdtrit(pairs - 1, (1 + CONFIDENCE) / 2)) * deviation / math.sqrt(pairs)
        low, high = mean - half, mean + half
    return Difference(group.label, base.label, mean, low, high, pairs, over)


def _by_run(group: RunGroup, measure: Sequence[str]) -> Runs:
    """Return the number of each run, under what makes two runs a pair."""
    numbers = ((row, number(row, *measure)) for row in group.rows)
    return {(row.get("fold"), row.get("seed"), row.get("split")): value for row, value in numbers if value is not None}


@final
class _Baselines:
    """A baseline, which may have been run with several settings; another group is compared with the nearest of them.

    The nearest one has pairs with the group, if any has, and shares most settings with it; of several the first.
    """

    def __init__(self, groups: Sequence[RunGroup], measure: Sequence[str]) -> None:
        self.groups = groups
        self.runs = [_by_run(group, measure) for group in groups]
        self.every_run = set().union(*self.runs)
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
        if runs.keys().isdisjoint(self.runs[at]) and not runs.keys().isdisjoint(self.every_run):
            order = np.argsort(-shared, kind="stable").tolist()
            at = next(place for place in order if not runs.keys().isdisjoint(self.runs[place]))
        return self.groups[at], self.runs[at]
