"""What the paper's ablation says of MIMO's two parameters, each beside what was measured."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from equipoise.paper.ablation import Curve, in_words
from equipoise.paper.ablation_runs import Outcome, Point
from equipoise.paper.claims import Claim, Verdict, all_of, tally
from equipoise.report.paired import Difference, paired_differences

MARGIN = 0.02
"""Two points of accuracy: what is smaller counts as flat."""

WEAK, ENOUGH, LARGEST = 1.0, 10.0, 100.0
"""The values of λ that the paper speaks of; its grid ends at the last."""

SMOOTHEST = 1.0
"""The largest μ of the paper's grid."""


class Change(NamedTuple):
    """How test accuracy changes from one setting to another, in paired runs.

    Args:
        mean: Mean difference.
        low: Lower end of its 95 % interval.
        high: Upper end.
    """

    mean: float
    low: float
    high: float

    def __str__(self) -> str:
        if math.isinf(self.low) or math.isinf(self.high):
            if math.isinf(self.mean):
                return "runs fail"
            return f"{100 * self.mean:+.1f} points (one run, no interval)"
        return f"{100 * self.mean:+.1f} points [{100 * self.low:+.1f}, {100 * self.high:+.1f}]"


FAILS = Change(-math.inf, -math.inf, -math.inf)
"""From runs that end to runs that do not."""


def claims(outcome: Outcome) -> list[Claim]:
    """Every claim of the paper that the runs can speak to; none for methods other than MIMO."""
    if outcome.sweep.base.method.name != "mimo":
        return []
    found: list[Claim] = []
    for curve in outcome.sweep.curves:
        if curve.around and len(curve.labels) > 1:
            found += _of_penalty(outcome, curve) if curve.axis == "penalty" else []
            found += _of_smoothing(outcome, curve) if curve.axis == "smoothing" and not curve.divided else []
    return found


def shape(found: Sequence[Claim]) -> str:
    """Whether the paper's shape came out, in one sentence."""
    figure = [claim for claim in found if claim.where.startswith("Figure 3")]
    verdict = all_of([claim.verdict for claim in figure] or ["agrees"])
    said = {"agrees": "reproduced", "differs": "not reproduced", "open": "neither reproduced nor refuted"}[verdict]
    return f"The paper's shape is {said} here: of {len(figure)} claims of Figure 3 {tally(figure)}."


# -- verdicts --


def rises(change: Change) -> Verdict:
    """Whether accuracy surely goes up, surely by less than the margin, or nobody knows."""
    return "agrees" if change.low > 0 else "differs" if change.high < MARGIN else "open"


def stays(change: Change) -> Verdict:
    """Whether accuracy is surely within the margin, surely out of it, or nobody knows."""
    if change.low > -MARGIN and change.high < MARGIN:
        return "agrees"
    return "differs" if change.low > MARGIN or change.high < -MARGIN else "open"


def change(before: Point, after: Point) -> Change | None:
    """The difference between two settings, run by run; None where nothing can be compared."""
    if before.failed or not before.line.rows:
        return None
    if after.failed:
        return FAILS
    found = paired_differences([*before.line.rows, *after.line.rows], before.line.label)
    return _with_ends(found[0]) if found else None


def _with_ends(found: Difference) -> Change:
    """One run bounds nothing."""
    low, high = found.low, found.high
    return Change(found.mean, -math.inf if low is None else low, math.inf if high is None else high)


# -- the paper's claims --


def _of_penalty(outcome: Outcome, curve: Curve) -> list[Claim]:
    points = outcome.along(curve)
    if ENOUGH not in points:
        return []
    found = []
    base = points[ENOUGH]
    where, rate = (
        ("control to Figure 3", ", with the learning rate over 1 + λ") if curve.divided else ("Figure 3, λ", "")
    )
    rise = change(points[WEAK], base) if WEAK in points else None
    if rise is not None:
        said = f"{_levels(points, [WEAK, ENOUGH])}: {rise}"
        found.append(Claim(where, f"λ = 1 is worse than λ = 10{rate}", said, rises(rise)))
    above = {value: step for value in points if value > ENOUGH and (step := change(base, points[value])) is not None}
    flat = {value: step for value, step in above.items() if value <= LARGEST}
    if flat:
        said = "; ".join(f"λ = {in_words(value)}: {step}" for value, step in flat.items())
        verdicts = [stays(step) for step in flat.values()]
        says = f"above λ = 10 gains are marginal, up to the 100 where the paper's grid ends{rate}"
        found.append(Claim(where, says, said, all_of(verdicts)))
    return found if curve.divided else [*found, *_of_step_size(outcome, curve, above)]


def _of_step_size(outcome: Outcome, curve: Curve, above: dict[Any, Change]) -> list[Claim]:
    """Where λ makes the step too large, and whether a smaller learning rate undoes it."""
    where, points = "control to Figure 3", outcome.along(curve)
    fallen = [value for value, step in above.items() if step.high < 0]
    if above and not fallen:
        said = f"no clear loss up to λ = {in_words(max(above))}"
        return [Claim(where, "where a large λ costs accuracy, the step is too large", said, "open")]
    divided = next((each for each in outcome.sweep.curves if each.divided and _same_line(each, curve)), None)
    found = []
    for value in fallen:
        says = f"λ = {in_words(value)} costs accuracy by its step: the learning rate over 1 + λ brings it back"
        loss = f"{_level(points[value])} and {above[value]} to λ = 10"
        if divided is None:
            found.append(Claim(where, says, f"{loss}; --scaled-rate would tell", "open"))
            continue
        slow = outcome.along(divided)[value]
        rest, gain = change(points[ENOUGH], slow), change(points[value], slow)
        gained = "" if gain is None else f"{gain} to the same undivided, "
        found.append(Claim(where, says, f"{loss}; divided, {_level(slow)}, {gained}{rest} to λ = 10", _back(rest)))
    return found


def _back(rest: Change | None) -> Verdict:
    """Whether what is lost to λ = 10 is surely less than the margin, surely more, or nobody knows."""
    if rest is None:
        return "open"
    return "agrees" if rest.low > -MARGIN else "differs" if rest.high < -MARGIN else "open"


def _of_smoothing(outcome: Outcome, curve: Curve) -> list[Claim]:
    """The smallest μ against the largest of the paper's grid, and against the largest there is."""
    points = outcome.along(curve)
    small, large = min(points), max(points)
    inside = max((value for value in points if value <= SMOOTHEST), default=small)
    found = []
    for value in dict.fromkeys([inside, large]):
        fall = change(points[small], points[value]) if value > small else None
        if fall is not None:
            turned = Change(-fall.mean, -fall.high, -fall.low)
            said = f"{_levels(points, [small, value])}: {fall}"
            says = f"a large μ of {in_words(value)} degrades accuracy against a small one"
            where = "Figure 3, μ" if value == inside else "control to Figure 3"
            found.append(Claim(where, says, said, rises(turned)))
    return found


def _same_line(one: Curve, other: Curve) -> bool:
    return one.axis == other.axis and one.others == other.others


def _levels(points: dict[Any, Point], values: Sequence[Any]) -> str:
    return " and ".join(f"{_level(points[value])} at {in_words(value)}" for value in values)


def _level(point: Point) -> str:
    found = point.accuracy("test")
    return "no accuracy" if found is None else f"{100 * found.mean:.1f} %"
