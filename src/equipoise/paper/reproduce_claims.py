"""What the paper says of each table, beside its own numbers and beside what was measured."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from equipoise.paper.claims import Claim, Verdict, all_of, opposite, tally
from equipoise.paper.reproduce import CONTROL
from equipoise.paper.reproduce_outcome import Outcome
from equipoise.paper.reproduce_time_claims import JOINT, OURS, Asked, close, faster, fastest, not_run
from equipoise.report.aggregate import RunGroup, number
from equipoise.report.paired import Difference, paired_differences

Seeds = Mapping[int, float]
"""A number for each seed."""

COMPARABLE = 0.01
"""One point of accuracy: what is less far below counts as comparable."""


def claims(outcome: Outcome) -> list[Claim]:
    """Every claim of the paper on this table; none where the numbers are not about its data."""
    if not outcome.beside_paper:
        return []
    found = [claim(outcome) for claim in (*_CLAIMS[outcome.table.name], _maximum_adds)]
    return [claim for claim in found if claim is not None]


def summary(found: Sequence[Claim]) -> str:
    """How many agree, in one sentence."""
    return f"Of {len(found)} claims {tally(found)}."


# -- differences --


def difference(ours: Seeds, theirs: Seeds) -> Difference | None:
    """Ours minus theirs, seed by seed, with a 95 % interval; None without a common seed."""
    rows = [
        {"label": label, "method": label, "seed": seed, "value": value}
        for label, numbers in (("ours", ours), ("theirs", theirs))
        for seed, value in numbers.items()
    ]
    found = paired_differences(rows, "theirs", ("value",))
    return found[0] if found else None


def above(found: Difference | None) -> Verdict:
    """Whether a difference is surely above zero, surely below, or nobody knows."""
    if found is None or found.low is None or found.high is None:
        return "open"
    return "agrees" if found.low > 0 else "differs" if found.high < 0 else "open"


def _seeds(line: RunGroup, *path: str) -> dict[int, float]:
    found = ((row["seed"], number(row, *path)) for row in line.rows)
    return {seed: value for seed, value in found if value is not None}


def _fused(outcome: Outcome, name: str) -> dict[int, float]:
    return _seeds(outcome.lines[name], "test", "fused")


def _mean(numbers: Seeds) -> float:
    return math.fsum(numbers.values()) / len(numbers)


def _said(found: Difference) -> str:
    if found.low is None or found.high is None:
        return f"{100 * found.mean:+.2f} points (one run, no interval)"
    return f"{100 * found.mean:+.2f} points [{100 * found.low:+.2f}, {100 * found.high:+.2f}]"


# -- claims on accuracy --


def _best(outcome: Outcome) -> Claim | None:
    """MIMO against every other method of the table."""
    return _against_all(outcome, "MIMO has the best fused accuracy", lambda found: above(found))


def _comparable(outcome: Outcome) -> Claim | None:
    def verdict(found: Difference | None) -> Verdict:
        if found is None or found.low is None or found.high is None:
            return "open"
        return "agrees" if found.low > -COMPARABLE else "differs" if found.high < -COMPARABLE else "open"

    points = f"{100 * COMPARABLE:g} point"
    return _against_all(outcome, f"MIMO is comparable (within {points}) to every other method or better", verdict)


def _against_all(outcome: Outcome, says: str, verdict: Callable[[Difference | None], Verdict]) -> Claim | None:
    printed = {row.name: row.acc[0] for row in outcome.table.rows if row.acc}
    others = [name for name in printed if name != OURS]
    next_best = max(others, key=printed.__getitem__)
    told = f"{says} (paper: {printed[OURS]:.2f}, next {next_best} {printed[next_best]:.2f} %)"
    ours = _fused(outcome, OURS)
    found = {name: difference(ours, theirs) for name in others if (theirs := _fused(outcome, name))}
    if not ours or not found:
        return not_run(told)
    absent = [name for name in others if name not in found]
    nearest = min(found, key=lambda name: each.mean if (each := found[name]) else math.inf)
    nearest_one = found[nearest]
    measured = f"{100 * _mean(ours):.2f} %; nearest or above: {nearest} "
    measured += "no common seed" if nearest_one is None else f"({_said(nearest_one)} for MIMO)"
    verdicts = [verdict(each) for each in found.values()]
    surely = sum(each == "agrees" for each in verdicts)
    measured += f"; surely so against {surely} of {len(found)} methods" + (
        f", not run: {', '.join(absent)}" if absent else ""
    )
    return Claim("accuracy", told, measured, all_of([*verdicts, *(["open"] if absent else [])]))  # ty: ignore[invalid-argument-type]


def _beats_sensors(name: str) -> Asked:
    return lambda outcome: _against_sensors(outcome, name, "beats the best single sensor", above)


def _fails_to_beat_sensors(name: str) -> Asked:
    return lambda outcome: _against_sensors(
        outcome, name, "does not match the best single sensor", lambda found: opposite(above(found))
    )


def _against_sensors(
    outcome: Outcome, name: str, does: str, verdict: Callable[[Difference | None], Verdict]
) -> Claim | None:
    """A row's fused accuracy against the sensor that is best alone, in our runs."""
    paper = outcome.table.row(name)
    alone = {row.name: (row.sensor, row.alone[row.sensor][0]) for row in outcome.table.rows if row.sensor}
    if paper is None or paper.acc is None or not alone:
        return None
    top = max(alone, key=lambda each: alone[each][1])
    said = f"{name} {does} (paper: {paper.acc[0]:.2f} against {top}'s {alone[top][1]:.2f} %)"
    if (paper.acc[0] > alone[top][1]) == does.startswith("does not"):
        said += "; its own table has it the other way round"
    own = {each: _seeds(outcome.lines[each], "test", "head", sensor) for each, (sensor, _) in alone.items() if sensor}
    ours, own = _fused(outcome, name), {each: numbers for each, numbers in own.items() if numbers}
    if not ours or not own:
        return not_run(said)
    best = max(own, key=lambda each: _mean(own[each]))
    found = difference(ours, own[best])
    measured = f"{100 * _mean(ours):.2f} against {best}'s {100 * _mean(own[best]):.2f} %"
    return Claim("single sensors", said, measured + (f": {_said(found)}" if found else ""), verdict(found))


def _does_not_improve(name: str) -> Asked:
    def claim(outcome: Outcome) -> Claim | None:
        paper, joint = outcome.table.row(name), outcome.table.row(JOINT)
        if paper is None or joint is None or paper.acc is None or joint.acc is None:
            return None
        said = (
            f"{name} does not improve fused accuracy over MSL (paper: {paper.acc[0]:.2f} against {joint.acc[0]:.2f} %"
        )
        said += "; its own table has it the other way round)" if paper.acc[0] > joint.acc[0] else ")"
        found = difference(_fused(outcome, name), _fused(outcome, JOINT))
        return not_run(said) if found is None else Claim("accuracy", said, _said(found), opposite(above(found)))

    return claim


def _maximum_adds(outcome: Outcome) -> Claim | None:
    """No claim of the paper, but what its claims rest on; None where the control was not run."""
    if CONTROL not in outcome.lines:
        return None
    said = f"(control) the maximum adds to fused accuracy: MIMO is above {CONTROL}"
    found = difference(_fused(outcome, OURS), _fused(outcome, CONTROL))
    return not_run(said) if found is None else Claim("control", said, _said(found), above(found))


# -- claims on balance --


def _less_disparity(other: str) -> Asked:
    """MIMO's modalities lie less far apart. Heads against heads; other protocols do not compare."""

    def claim(outcome: Outcome) -> Claim | None:
        ours, theirs = outcome.table.row(OURS), outcome.table.row(other)
        if ours is None or theirs is None or ours.disparity is None or theirs.disparity is None:
            return None
        said = f"MIMO's disparity is smaller than {other}'s"
        said += f" (paper: {100 * ours.disparity:.1f} against {100 * theirs.disparity:.1f} points)"
        found = difference(*(_seeds(outcome.lines[name], "test", "disparity") for name in (OURS, other)))
        return not_run(said) if found is None else Claim("balance", said, _said(found), opposite(above(found)))

    return claim


def _leans(name: str, modality: str, weak: str) -> Asked:
    def claim(outcome: Outcome) -> Claim | None:
        paper = outcome.table.row(name)
        if paper is None:
            return None
        said = (
            f"{name} leans on {modality} (paper: {paper.alone[modality][0]:.1f} against {paper.alone[weak][0]:.1f} %)"
        )
        found = difference(*(_seeds(outcome.lines[name], "test", "head", each) for each in (modality, weak)))
        return not_run(said) if found is None else Claim("balance", said, f"{_said(found)} ahead", above(found))

    return claim


_CLAIMS: dict[str, tuple[Asked, ...]] = {
    "cremad": (
        _best,
        _fails_to_beat_sensors(JOINT),
        _beats_sensors(OURS),
        _does_not_improve("EW"),
        _does_not_improve("MGDA"),
        _leans("MGDA", "audio", "video"),
        fastest,
        close,
    ),
    "urfunny": (_comparable, _beats_sensors(OURS), fastest, close),
    "vggsound": (_best, _less_disparity("MMPareto"), faster(20.0), close),
    "kinetics-sounds": (_best, _less_disparity("MMPareto"), fastest, close),
    "avmnist": (_comparable, _best, _beats_sensors(OURS), faster(4.0), fastest, close),
    "mosei": (_best, _beats_sensors(OURS), _fails_to_beat_sensors(JOINT), _fails_to_beat_sensors("AGM"), close),
    "ave": (_best, _beats_sensors(OURS), _fails_to_beat_sensors(JOINT), _fails_to_beat_sensors("AGM"), close),
}
