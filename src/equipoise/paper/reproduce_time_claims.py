"""What the paper says of the time that a batch takes, beside its own numbers and beside what was measured."""

from __future__ import annotations

import math
from collections.abc import Callable

from equipoise.paper.claims import Claim
from equipoise.paper.reproduce_outcome import Outcome

Asked = Callable[[Outcome], Claim | None]
"""A claim that looks for its numbers; None where the table has not got the rows."""

NEAR = 2.0
"""Times agree within this factor: they are of other devices."""

CLOSE = 1.25
"""A time is close to that of joint training up to this factor."""

OURS, JOINT = "MIMO", "MSL"

READINGS = ("subroutine", "with backward")
"""What t may mean: balancing and update, or these and the backward pass."""


def faster(factor: float, other: str = "MMPareto") -> Asked:
    """How many times longer the next best method takes, by both readings of the paper's definition."""

    def verdict(ratio: float) -> bool:
        return factor / NEAR <= ratio <= factor * NEAR

    return lambda outcome: _time_claim(
        outcome, other, OURS, f"MIMO's subroutine is about {factor:g} times faster than {other}'s", verdict
    )


def close(outcome: Outcome) -> Claim | None:
    """MIMO costs about what joint training does."""
    said = f"MIMO's subroutine time is close to MSL's (within {100 * (CLOSE - 1):g} %)"
    return _time_claim(outcome, OURS, JOINT, said, lambda ratio: ratio <= CLOSE)


def _time_claim(outcome: Outcome, one: str, other: str, says: str, verdict: Callable[[float], bool]) -> Claim | None:
    printed = outcome.table.row(one), outcome.table.row(other)
    if printed[0] is None or printed[1] is None:
        return None
    says += f" (paper: {1000 * printed[0].time[0]:g} and {1000 * printed[1].time[0]:g} ms, "
    says += f"× {printed[0].time[0] / printed[1].time[0]:.1f})"
    ratios = {}
    for key in READINGS:
        times = [outcome.lines[name].of("time", key) for name in (one, other)]
        if times[0] is None or times[1] is None:
            return not_run(says)
        ratios[key] = times[0].mean / times[1].mean
    answers = [verdict(ratio) for ratio in ratios.values()]
    measured = f"× {ratios['subroutine']:.1f} for balancing and update, × {ratios['with backward']:.1f} with backward"
    return Claim("time", says, measured, "agrees" if all(answers) else "open" if any(answers) else "differs")


def fastest(outcome: Outcome) -> Claim | None:
    """Of the three best by accuracy MIMO takes least, by both readings."""
    says = "of the three most accurate methods MIMO has the lowest t"
    means = {name: line.fused.mean for name, line in outcome.lines.items() if line.fused and outcome.table.row(name)}
    if OURS not in means or len(means) < 3:
        return not_run(says)
    best = sorted(means, key=lambda name: -means[name])[:3]
    told = f"the three are {', '.join(best)}"
    if OURS not in best:
        return Claim("time", says, told, "differs")
    first = [min(best, key=lambda name, key=key: _mean(outcome, name, key)) for key in READINGS]
    right = sum(name == OURS for name in first)
    told += f"; lowest: {first[0]} for balancing and update, {first[1]} with backward"
    return Claim("time", says, told, ("differs", "open", "agrees")[right])


def _mean(outcome: Outcome, name: str, key: str) -> float:
    found = outcome.lines[name].of("time", key)
    return math.inf if found is None else found.mean


def not_run(says: str) -> Claim:
    """A claim that waits for its runs."""
    return Claim("not run", says, "the runs it needs are not there", "open")
