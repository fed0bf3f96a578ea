"""The paper's claims on each table, beside its own numbers and beside the measurements."""

import math
from collections.abc import Callable, Mapping, Sequence

from equipoise.measure.timing import ATTACHED, BARE, BASELINES
from equipoise.paper.claims import Change, Claim, Verdict, all_of, opposite, tally
from equipoise.paper.reproduce import CONTROL, ReproducedTable
from equipoise.report.aggregate import RunGroup, number
from equipoise.report.differences import paired_differences
from equipoise.report.step_times import load_of, over

Seeds = Mapping[int, float]
"""A number for each seed."""

Asked = Callable[[ReproducedTable], Claim | None]
"""A claim that looks for its numbers; None where the table has not got the rows."""

Judge = Callable[[Change | None], Verdict]

COMPARABLE = 0.01
"""One point of accuracy: what is less far below counts as comparable."""

NEAR = 2.0
"""Times agree within this factor: they are of other devices."""

CLOSE = 1.25
"""A time is close to that of joint training up to this factor. The paper's MSL is a plain loop: a bare step here."""

OURS, JOINT = "MIMO", "MSL"

READINGS = ("without backward", "with backward")
"""Two readings of the paper's t: balancing and update, or these and the backward pass."""


def claims(outcome: ReproducedTable) -> list[Claim]:
    """Return every claim of the paper on this table; none where the numbers are not about its data."""
    if not outcome.beside_paper:
        return []
    asked = [claim(outcome) for claim in (*_CLAIMS[outcome.table.name], _maximum_adds)]
    return [claim for claim in asked if claim is not None]


def summary(every: Sequence[Claim]) -> str:
    """Count the claims that agree, in one sentence."""
    return f"Of {len(every)} claims {tally(every)}."


# -- differences --


def difference(ours: Seeds, theirs: Seeds) -> Change | None:
    """Return ours minus theirs, seed by seed, with a 95 % interval; None without a common seed."""
    rows = [
        {"label": label, "method": label, "seed": seed, "value": value}
        for label, numbers in (("ours", ours), ("theirs", theirs))
        for seed, value in numbers.items()
    ]
    differences = paired_differences(rows, "theirs", ("value",))
    return Change.of(differences[0]) if differences else None


def above(change: Change | None) -> Verdict:
    """Agree where a difference is surely above zero, differ where it is surely below."""
    return "open" if change is None else change.above()


def below(change: Change | None) -> Verdict:
    """Agree where a difference is surely not above zero."""
    return opposite(above(change))


def _compared(where: str, says: str, change: Change | None, judge: Judge = above, after: str = "") -> Claim:
    if change is None:
        return _not_run(says)
    return Claim(where, says, change.points(2) + after, judge(change))


def _not_run(says: str) -> Claim:
    return Claim("not run", says, "the runs it needs are not there", "open")


def _seeds(line: RunGroup, *path: str) -> dict[int, float]:
    numbers = ((row["seed"], number(row, *path)) for row in line.rows)
    return {seed: value for seed, value in numbers if value is not None}


def _fused(outcome: ReproducedTable, name: str) -> dict[int, float]:
    return _seeds(outcome.lines[name], "test", "fused")


def _mean(numbers: Seeds) -> float:
    return math.fsum(numbers.values()) / len(numbers)


# -- claims on accuracy --


def _best(outcome: ReproducedTable) -> Claim | None:
    return _against_all(outcome, "MIMO has the best fused accuracy", above)


def _comparable(outcome: ReproducedTable) -> Claim | None:
    def judge(change: Change | None) -> Verdict:
        return "open" if change is None else change.above(-COMPARABLE, -COMPARABLE)

    points = f"{100 * COMPARABLE:g} point"
    return _against_all(outcome, f"MIMO is comparable (within {points}) to every other method or better", judge)


def _against_all(outcome: ReproducedTable, says: str, judge: Judge) -> Claim | None:
    """Compare MIMO with every other method of the table."""
    printed = {row.name: row.acc[0] for row in outcome.table.rows if row.acc}
    others = [name for name in printed if name != OURS]
    next_best = max(others, key=printed.__getitem__)
    says += f" (paper: {printed[OURS]:.2f}, next {next_best} {printed[next_best]:.2f} %)"
    ours = _fused(outcome, OURS)
    changes = {name: difference(ours, theirs) for name in others if (theirs := _fused(outcome, name))}
    if not ours or not changes:
        return _not_run(says)
    absent = [name for name in others if name not in changes]
    nearest = min(changes, key=lambda name: change.mean if (change := changes[name]) else math.inf)
    change, absent_words = changes[nearest], f", not run: {', '.join(absent)}" if absent else ""
    verdicts = [judge(change) for change in changes.values()]
    measured = (
        f"{100 * _mean(ours):.2f} %; nearest or above: {nearest} "
        f"{'no common seed' if change is None else f'({change.points(2)} for MIMO)'}; "
        f"surely so against {verdicts.count('agrees')} of {len(changes)} methods"
        f"{absent_words}"
    )
    return Claim("accuracy", says, measured, all_of([*verdicts, "open"] if absent else verdicts))


def _against_sensors(name: str, does: str, judge: Judge) -> Asked:
    """Compare a row's fused accuracy with the sensor that is best alone, in our runs."""

    def claim(outcome: ReproducedTable) -> Claim | None:
        paper = outcome.table.row(name)
        alone = {row.name: (row.sensor, row.alone[row.sensor][0]) for row in outcome.table.rows if row.sensor}
        if paper is None or paper.acc is None or not alone:
            return None
        top = max(alone, key=lambda sensor: alone[sensor][1])
        says = f"{name} {does} (paper: {paper.acc[0]:.2f} against {top}'s {alone[top][1]:.2f} %)"
        if (paper.acc[0] > alone[top][1]) == does.startswith("does not"):
            says += "; its own table has it the other way round"
        numbers = {row: _seeds(outcome.lines[row], "test", "head", sensor) for row, (sensor, _) in alone.items()}
        ours, own = _fused(outcome, name), {row: seeds for row, seeds in numbers.items() if seeds}
        if not ours or not own:
            return _not_run(says)
        best = max(own, key=lambda row: _mean(own[row]))
        change = difference(ours, own[best])
        measured = f"{100 * _mean(ours):.2f} against {best}'s {100 * _mean(own[best]):.2f} %"
        return Claim("single sensors", says, measured + (f": {change.points(2)}" if change else ""), judge(change))

    return claim


def _beats_sensors(name: str) -> Asked:
    return _against_sensors(name, "beats the best single sensor", above)


def _fails_to_beat_sensors(name: str) -> Asked:
    return _against_sensors(name, "does not match the best single sensor", below)


def _does_not_improve(name: str) -> Asked:
    def claim(outcome: ReproducedTable) -> Claim | None:
        paper, joint = outcome.table.row(name), outcome.table.row(JOINT)
        if paper is None or joint is None or paper.acc is None or joint.acc is None:
            return None
        says = (
            f"{name} does not improve fused accuracy over MSL (paper: {paper.acc[0]:.2f} against {joint.acc[0]:.2f} %"
        )
        says += "; its own table has it the other way round)" if paper.acc[0] > joint.acc[0] else ")"
        return _compared("accuracy", says, difference(_fused(outcome, name), _fused(outcome, JOINT)), below)

    return claim


def _maximum_adds(outcome: ReproducedTable) -> Claim | None:
    """Check what the paper's claims rest on, though it does not say so; None where the control was not run."""
    if CONTROL not in outcome.lines:
        return None
    says = f"(control) the maximum adds to fused accuracy: MIMO is above {CONTROL}"
    return _compared("control", says, difference(_fused(outcome, OURS), _fused(outcome, CONTROL)))


# -- claims on balance --


def _less_disparity(other: str) -> Asked:
    """MIMO's modalities lie less far apart. Heads against heads; other protocols do not compare."""

    def claim(outcome: ReproducedTable) -> Claim | None:
        ours, theirs = outcome.table.row(OURS), outcome.table.row(other)
        if ours is None or theirs is None or ours.disparity is None or theirs.disparity is None:
            return None
        paper = f"{100 * ours.disparity:.1f} against {100 * theirs.disparity:.1f} points"
        numbers = (_seeds(outcome.lines[name], "test", "disparity") for name in (OURS, other))
        says = f"MIMO's disparity is smaller than {other}'s (paper: {paper})"
        return _compared("balance", says, difference(*numbers), below)

    return claim


def _leans(name: str, modality: str, weak: str) -> Asked:
    def claim(outcome: ReproducedTable) -> Claim | None:
        paper = outcome.table.row(name)
        if paper is None:
            return None
        printed = f"{paper.alone[modality][0]:.1f} against {paper.alone[weak][0]:.1f} %"
        numbers = (_seeds(outcome.lines[name], "test", "head", sensor) for sensor in (modality, weak))
        says = f"{name} leans on {modality} (paper: {printed})"
        return _compared("balance", says, difference(*numbers), after=" ahead")

    return claim


# -- claims on time --


def _faster(factor: float, other: str = "MMPareto") -> Asked:
    """The next best method takes this many times longer, by both readings of the paper's definition."""
    says = f"MIMO's subroutine is about {factor:g} times faster than {other}'s"

    def claim(outcome: ReproducedTable) -> Claim | None:
        if (paper := _printed(outcome, other, OURS)) is None:
            return None
        tops, bottoms = (_over(outcome, name, BARE) for name in (other, OURS))
        ratios = [top / bottom for top, bottom in zip(tops, bottoms, strict=True) if top and bottom]
        measured = "{:.1f} for balancing and update, × {:.1f} with backward, each over the bare step of its own runs"
        holds = [factor / NEAR <= ratio <= factor * NEAR for ratio in ratios]
        return _time_claim(outcome, (other, OURS), says + paper, measured, ratios, holds)

    return claim


def _close(outcome: ReproducedTable) -> Claim | None:
    """MIMO costs about what joint training does."""
    if (paper := _printed(outcome, OURS, JOINT)) is None:
        return None
    says = f"MIMO's subroutine time is close to MSL's (within {100 * (CLOSE - 1):g} %){paper}"
    bare, attached = ([one for one in _over(outcome, OURS, line) if one] for line in (BARE, ATTACHED))
    words = [f"{{:.1f}} and × {{:.1f}} over {BASELINES[line]}" for line in (BARE, ATTACHED)]
    measured = f"{'; × '.join(words)}: for balancing and update, and with backward; judged over the first"
    return _time_claim(outcome, (OURS,), says, measured, [*bare, *attached], [ratio <= CLOSE for ratio in bare])


def _printed(outcome: ReproducedTable, one: str, other: str) -> str | None:
    """Say what the paper prints of two rows; None where its table has not got them."""
    first, second = outcome.table.row(one), outcome.table.row(other)
    if first is None or second is None:
        return None
    times = [row.time[0] for row in (first, second)]
    return f" (paper: {1000 * times[0]:g} and {1000 * times[1]:g} ms, × {times[0] / times[1]:.1f})"


def _over(outcome: ReproducedTable, name: str, baseline: str) -> list[float | None]:
    """Return the time of a row over that of a baseline in its own runs, by each reading."""
    means = [over(baseline, "time", key)(outcome.lines[name]) for key in READINGS]
    return [None if mean is None else mean.mean for mean in means]


def _time_claim(
    outcome: ReproducedTable,
    names: Sequence[str],
    says: str,
    measured: str,
    ratios: Sequence[float],
    holds: Sequence[bool],
) -> Claim:
    """Judge by both readings; open where they disagree, and where the times are not to be trusted."""
    if len(holds) < len(READINGS):
        return _not_run(says)
    verdict: Verdict = ("differs", "open", "agrees")[sum(holds)]
    return _if_trusted(outcome, names, Claim("time", says, f"× {measured.format(*ratios)}", verdict))


def _if_trusted(outcome: ReproducedTable, names: Sequence[str], claim: Claim) -> Claim:
    """Leave a claim open whose times were taken while the machine had other work."""
    doubts = load_of([row for name in names for row in outcome.lines[name].rows]).doubts()
    if not doubts:
        return claim
    return claim._replace(measured=f"{claim.measured}; not to be trusted, under {', '.join(doubts)}", verdict="open")


def _fastest(outcome: ReproducedTable) -> Claim | None:
    """Of the three best by accuracy MIMO takes least, by both readings."""
    says = "of the three most accurate methods MIMO has the lowest t"
    means = {name: line.fused.mean for name, line in outcome.lines.items() if line.fused and outcome.table.row(name)}
    if OURS not in means or len(means) < 3:
        return _not_run(says)
    best = sorted(means, key=lambda name: -means[name])[:3]
    measured = f"the three are {', '.join(best)}"
    if OURS not in best:
        return Claim("time", says, measured, "differs")
    costs = {name: _over(outcome, name, BARE) for name in best}
    first = [
        min(best, key=lambda name, at=at: math.inf if (cost := costs[name][at]) is None else cost)
        for at in range(len(READINGS))
    ]
    measured += f"; lowest over a bare step: {first[0]} for balancing and update, {first[1]} with backward"
    verdict: Verdict = ("differs", "open", "agrees")[first.count(OURS)]
    return _if_trusted(outcome, best, Claim("time", says, measured, verdict))


_BEATS, _MSL_FAILS, _AGM_FAILS = _beats_sensors(OURS), _fails_to_beat_sensors(JOINT), _fails_to_beat_sensors("AGM")
_LEANS, _EVEN = _leans("MGDA", "audio", "video"), _less_disparity("MMPareto")
_CLAIMS: dict[str, tuple[Asked, ...]] = {
    "cremad": (_best, _MSL_FAILS, _BEATS, _does_not_improve("EW"), _does_not_improve("MGDA"), _LEANS, _fastest, _close),
    "urfunny": (_comparable, _BEATS, _fastest, _close),
    "vggsound": (_best, _EVEN, _faster(20.0), _close),
    "kinetics-sounds": (_best, _EVEN, _fastest, _close),
    "avmnist": (_comparable, _best, _BEATS, _faster(4.0), _fastest, _close),
    "mosei": (_best, _BEATS, _MSL_FAILS, _AGM_FAILS, _close),
    "ave": (_best, _BEATS, _MSL_FAILS, _AGM_FAILS, _close),
}
