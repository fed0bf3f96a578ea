"""Is a method better than joint training? Differences run by run, with an interval."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, final

from equipoise.report.aggregate import Line, aggregate, as_text, settings, spread
from equipoise.report.results import Row, number
from equipoise.report.student import two_sided_quantile

BASELINE = "msl"
CONFIDENCE = 0.95

Verdict = Literal["better", "worse", "no clear difference", "too few runs"]


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


def paired(
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
    lines = aggregate(rows)
    bases = [line for line in lines if line.rows[0]["label"] == baseline]
    bases = bases or [line for line in lines if line.method == baseline][:1]
    found = []
    for line in lines:
        if bases and all(line is not base for base in bases):
            base = max(bases, key=lambda base: _nearness(base, line, measure))
            difference = _difference(line, base, measure)
            found += [difference] if difference else []
    return found


def compared_with(differences: Sequence[Difference], baseline: str) -> str:
    """What differences were really taken to: where no line has the label asked for, it is one of that method."""
    found = {each.baseline for each in differences}
    return found.pop() if len(found) == 1 else baseline


def _difference(line: Line, base: Line, measure: Sequence[str]) -> Difference | None:
    ours, theirs = _by_run(line, measure), _by_run(base, measure)
    differences = {run: ours[run] - theirs[run] for run in ours if run in theirs}
    folds: dict[object, list[float]] = {}
    for (fold, _, _), value in differences.items():
        if fold is not None:
            folds.setdefault(fold, []).append(value)
    over = "folds" if len(folds) > 1 else "seeds"
    units = [math.fsum(each) / len(each) for each in folds.values()] if over == "folds" else list(differences.values())

    middle = spread(units)
    if middle is None:
        return None
    if middle.deviation is None:
        return Difference(line.label, base.label, middle.mean, None, None, middle.count, over)
    half = two_sided_quantile(CONFIDENCE, middle.count - 1) * middle.deviation / math.sqrt(middle.count)
    return Difference(line.label, base.label, middle.mean, middle.mean - half, middle.mean + half, middle.count, over)


def _by_run(line: Line, measure: Sequence[str]) -> dict[tuple[object, object, object], float]:
    """The number of each run, under what makes two runs a pair."""
    numbers = ((row, number(row, *measure)) for row in line.rows)
    return {(row.get("fold"), row.get("seed"), row.get("split")): value for row, value in numbers if value is not None}


def _nearness(base: Line, line: Line, measure: Sequence[str]) -> tuple[bool, int]:
    """Whether two lines have pairs, and how many settings they share.

    A baseline that was run in several ways is compared in the nearest one.
    """
    pairs = _by_run(base, measure).keys() & _by_run(line, measure).keys()
    ours, theirs = settings(line.rows[0]), settings(base.rows[0])
    return bool(pairs), sum(name in theirs and as_text(theirs[name]) == as_text(value) for name, value in ours.items())
