"""Lines of the peg-in-hole study: their numbers, intervals over training seeds, and paired differences.

Every line of a study has the same training seeds and the same episodes, so two lines, or two conditions of one line,
are compared training seed by training seed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from statistics import NormalDist, median
from typing import Any

from equipoise.control.cloning import SENSORS
from equipoise.control.conditions import CONDITIONS
from equipoise.control.scene import CONTROL_STEP
from equipoise.report.aggregate import RunGroup, dig
from equipoise.report.differences import Difference
from equipoise.report.headline import Row
from equipoise.report.intervals import CONFIDENCE, MeanInterval, Runs, interval_over
from equipoise.util.errors import BadInput

JOINT = "msl"
"""The method that is joint training."""
ALONE = ("camera",)
"""The sensors of the line that joint training is checked against."""
SAME = 1e-9
"""Differences closer than this are the same but for rounding."""
TITLES = {
    "clean": "clean",
    "unseen": "unseen holes",
    "camera_black": "camera black",
    "force_dead": "force dead",
    "delay": "late sensors",
    "camera_lost_zero": "camera lost: fused head",
    "camera_lost_committee": "camera lost: committee",
    "monitored": "camera black: monitor",
    "monitored_clean": "clean: monitor",
    **{f"without_{sensor}": f"without {sensor}" for sensor in SENSORS},
}
"""Conditions for people."""
Measure = Callable[[Row], float | None]


# -- numbers of a row --


def success_rate(condition: str, row: Row) -> float | None:
    """Return the share of a condition's episodes that succeeded."""
    return mean(map(float, episodes(row, condition, "success")))


def time_to_success(condition: str, row: Row) -> float | None:
    """Return the mean time of the episodes that succeeded, in simulated seconds."""
    ended = zip(episodes(row, condition, "success"), episodes(row, condition, "steps"), strict=True)
    return mean(steps * CONTROL_STEP for success, steps in ended if success)


def median_force(condition: str, row: Row) -> float | None:
    """Return the median of the largest force of each episode, in N."""
    forces = episodes(row, condition, "peak_force")
    return median(forces) if forces else None


def episodes(row: Row, condition: str, column: str) -> list[Any]:
    """Return one entry per episode; nothing where the condition was not tried."""
    return dig(row, "rollouts", condition, column) or []


def mean(values: Iterable[float]) -> float | None:
    """Return the mean of some numbers; None of no number."""
    known = list(values)
    return math.fsum(known) / len(known) if known else None


# -- lines, and what varies between trainings --


def lines_of(rows: Iterable[Row]) -> list[RunGroup]:
    """Group finished rows by line, the best in clean episodes first; of two rows of one training, the last counts.

    Raises:
        BadInput: If no row is finished.
    """
    trained: dict[str, dict[int, Row]] = {}
    for row in rows:
        if row.get("status") == "done":
            trained.setdefault(row["line"], {})[row["seed"]] = row
    if not trained:
        raise BadInput("rows: expected at least one finished policy, found none; run the study first")
    lines = [RunGroup(label, tuple(own[seed] for seed in sorted(own))) for label, own in trained.items()]
    return sorted(lines, key=lambda line: (-_merit(line), line.label))


def _merit(line: RunGroup) -> float:
    found = over_seeds(line, partial(success_rate, "clean"))
    return found.mean if found else -math.inf


def over_seeds(line: RunGroup, measure: Measure) -> MeanInterval | None:
    """Return the mean over training seeds, with its interval by Student's t."""
    return interval_over(_by_seed(line, measure))


def success(line: RunGroup, condition: str) -> MeanInterval | None:
    """Return the rate of success with its interval: over training seeds, or over the episodes of a single one."""
    found = over_seeds(line, partial(success_rate, condition))
    if found is None:
        return None
    if found.low is not None and found.high is not None:
        return found._replace(low=max(found.low, 0.0), high=min(found.high, 1.0))
    outcomes = next(own for row in line.rows if (own := episodes(row, condition, "success")))
    return wilson(sum(outcomes), len(outcomes))


def wilson(successes: int, trials: int) -> MeanInterval:
    """Return a share with Wilson's 95 % interval, which speaks of the episodes of one policy.

    Example:
        >>> [round(end, 3) for end in wilson(8, 10)[:3]]
        [0.8, 0.49, 0.943]
    """
    z = NormalDist().inv_cdf((1 + CONFIDENCE) / 2)
    share, scale = successes / trials, 1 + z * z / trials
    middle = (share + z * z / (2 * trials)) / scale
    half = z * math.sqrt(share * (1 - share) / trials + (z / (2 * trials)) ** 2) / scale
    # At a share of 0 or 1 the end is there exactly; rounding must not put it beyond.
    return MeanInterval(share, max(min(middle - half, share), 0.0), min(max(middle + half, share), 1.0), 1, "seeds")


def paired(
    ours: RunGroup, measure: Measure, theirs: RunGroup, other: Measure, *, higher: bool = True
) -> Difference | None:
    """Return the difference of two numbers, paired by training seed; None without a pair.

    Where all seeds have the same difference there is no interval. Rates of a few episodes often coincide, and an
    interval without width would make a difference of one episode a clear one.

    Args:
        ours: The line whose number it is.
        measure: The number.
        theirs: The line that it is compared with, which may be the same.
        other: The number there.
        higher: Whether more is better.
    """
    first, second = _by_seed(ours, measure), _by_seed(theirs, other)
    found = interval_over({seed: first[seed] - second[seed] for seed in first if seed in second})
    if found is None:
        return None
    low, high = found.low, found.high
    if low is not None and high is not None and high - low < SAME:
        low = high = None
    return Difference(ours.label, theirs.label, found.mean, low, high, found.count, "seeds", higher)


def joint_line(line: RunGroup, lines: Sequence[RunGroup]) -> RunGroup | None:
    """Return the joint training that a line is compared with: that of the same fusion, or else the first.

    None is returned for joint training itself, and without any.
    """
    joint = sorted((one for one in lines if is_joint(one)), key=lambda one: len(one.label))
    fusion = dig(line.rows[0], "run", "fusion")
    alike = [one for one in joint if len(line.rows[0]["sensors"]) > 1 and dig(one.rows[0], "run", "fusion") == fusion]
    found = next(iter([*alike, *joint]), None)
    return None if found is line else found


def is_joint(line: RunGroup) -> bool:
    """Tell whether a line is joint training of several sensors."""
    return line.method == JOINT and len(line.rows[0]["sensors"]) > 1


def alone_line(lines: Iterable[RunGroup]) -> RunGroup | None:
    """Return the line that has the camera only."""
    return next((line for line in lines if tuple(line.rows[0]["sensors"]) == ALONE), None)


def tried(lines: Iterable[RunGroup]) -> list[str]:
    """List the conditions of any line, in the order in which they are known."""
    names = {name for line in lines for row in line.rows for name in row["rollouts"]}
    return [*(name for name in CONDITIONS if name in names), *sorted(names - {*CONDITIONS})]


def titled(condition: str) -> str:
    """Return a condition's name for people."""
    return TITLES.get(condition, condition.replace("_", " "))


def _by_seed(line: RunGroup, measure: Measure) -> Runs:
    values = ((row["seed"], measure(row)) for row in line.rows)
    return {(None, seed, None): value for seed, value in values if value is not None and math.isfinite(value)}
