"""Is a method better than joint training? Differences run by run, with an interval."""

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
ABSENT, UNKNOWN = -1, -2  # of a setting: the baseline has none, or never had this value

Verdict = Literal["better", "worse", "no clear difference", "too few runs"]
Runs = dict[tuple[object, object, object], float]
"""A number of each run, under its fold, seed and split."""


@final
@dataclass(frozen=True)
class Difference:
    """How far one label lies above the baseline, on the same folds and seeds.

    Args:
        label: What is compared.
        baseline: What it is compared with.
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
    def verdict(self) -> Verdict:
        """What may be claimed: a difference is clear when its interval does not cover zero."""
        if self.low is None or self.high is None:
            return "too few runs"
        if self.low > 0:
            return "better"
        return "worse" if self.high < 0 else "no clear difference"


def paired_differences(
    rows: Sequence[Row], baseline: str = BASELINE, measure: Sequence[str] = ("test", "fused")
) -> list[Difference]:
    """Paired differences of every label to the baseline, with 95 % intervals by Student's t.

    A pair is two runs with the same fold, seed and split. With several folds the seeds of a fold are averaged first
    and the interval is over folds; otherwise it is over seeds, and then speaks of this one split only.

    Args:
        rows: Runs of one data set.
        baseline: Label (or else method) that the others are compared with.
        measure: Path of keys to the number that is compared.
    """
    return differences_between(aggregate(rows), baseline, measure)


def differences_between(
    lines: Sequence[RunGroup], baseline: str = BASELINE, measure: Sequence[str] = ("test", "fused")
) -> list[Difference]:
    """Paired differences of every line to the baseline, as `paired` has them.

    Args:
        lines: All lines of one data set.
        baseline: Label (or else method) that the others are compared with.
        measure: Path of keys to the number that is compared.
    """
    named = [line for line in lines if line.rows[0]["label"] == baseline]
    named = named or [line for line in lines if line.method == baseline][:1]
    if not named:
        return []
    bases, own = _Bases(named, measure), {id(line) for line in named}
    found = []
    for line in lines:
        if id(line) not in own:
            runs = _by_run(line, measure)
            difference = _difference(line, runs, *bases.nearest(line, runs))
            found += [difference] if difference else []
    return found


def compared_with(differences: Sequence[Difference], baseline: str) -> str:
    """What differences were really taken to: where no line has the label asked for, it is one of that method."""
    found = {each.baseline for each in differences}
    return found.pop() if len(found) == 1 else baseline


def _difference(line: RunGroup, ours: Runs, base: RunGroup, theirs: Runs) -> Difference | None:
    differences = {run: ours[run] - theirs[run] for run in ours if run in theirs}
    folds: dict[object, list[float]] = {}
    for (fold, _, _), value in differences.items():
        if fold is not None:
            folds.setdefault(fold, []).append(value)
    over = "folds" if len(folds) > 1 else "seeds"
    units = [math.fsum(each) / len(each) for each in folds.values()] if over == "folds" else list(differences.values())

    middle = mean_std(units)
    if middle is None:
        return None
    if middle.deviation is None:
        return Difference(line.label, base.label, middle.mean, None, None, middle.count, over)
    half = float(stdtrit(middle.count - 1, (1 + CONFIDENCE) / 2)) * middle.deviation / math.sqrt(middle.count)
    return Difference(line.label, base.label, middle.mean, middle.mean - half, middle.mean + half, middle.count, over)


def _by_run(line: RunGroup, measure: Sequence[str]) -> Runs:
    """The number of each run, under what makes two runs a pair."""
    numbers = ((row, number(row, *measure)) for row in line.rows)
    return {(row.get("fold"), row.get("seed"), row.get("split")): value for row, value in numbers if value is not None}


@final
class _Bases:
    """A baseline, which may have been run in several ways; another line is compared with the nearest of them.

    The nearest one has pairs with the line, if any has, and shares most settings with it; of several the first.
    """

    def __init__(self, lines: Sequence[RunGroup], measure: Sequence[str]) -> None:
        self.lines = lines
        self.runs = [_by_run(line, measure) for line in lines]
        self.every_run = set().union(*self.runs)
        ways = [{name: as_text(value) for name, value in settings(line.rows[0]).items()} for line in lines]
        values = {name: [way.get(name) for way in ways] for name in dict.fromkeys(name for way in ways for name in way)}
        # Only where they differ can one of them be nearer than another. There, equal settings have equal numbers.
        self.numbers = {
            name: {text: at for at, text in enumerate(dict.fromkeys(texts)) if text is not None}
            for name, texts in values.items()
            if len(set(texts)) > 1
        }
        table = [[numbers.get(text, ABSENT) for text in values[name]] for name, numbers in self.numbers.items()]
        self.table = np.array(table, dtype=np.int32).reshape(len(self.numbers), len(lines))

    def nearest(self, line: RunGroup, runs: Runs) -> tuple[RunGroup, Runs]:
        """The line to compare with, and its numbers."""
        own = settings(line.rows[0])
        wanted = [
            numbers.get(as_text(own[name]), UNKNOWN) if name in own else UNKNOWN
            for name, numbers in self.numbers.items()
        ]
        shared = (self.table == np.array(wanted, dtype=np.int32)[:, None]).sum(axis=0)
        at = int(shared.argmax())
        if runs.keys().isdisjoint(self.runs[at]) and not runs.keys().isdisjoint(self.every_run):
            order = np.argsort(-shared, kind="stable").tolist()
            at = next(place for place in order if not runs.keys().isdisjoint(self.runs[place]))
        return self.lines[at], self.runs[at]
