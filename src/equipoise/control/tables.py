"""Tables of the peg-in-hole study: rates of success, paired differences, and what each sensor is worth."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

from equipoise.control.cloning import SENSORS
from equipoise.control.conditions import CONDITIONS
from equipoise.control.interventions import PHASES
from equipoise.control.lines import (
    alone_line,
    episodes,
    is_joint,
    joint_line,
    lines_of,
    mean,
    median_force,
    over_seeds,
    paired,
    success,
    success_rate,
    time_to_success,
    titled,
    tried,
)
from equipoise.control.scene import CONTROL_STEP
from equipoise.report.aggregate import RunGroup, number
from equipoise.report.columns import ResultColumn
from equipoise.report.differences import Difference
from equipoise.report.headline import Row
from equipoise.report.intervals import MeanInterval
from equipoise.report.notes import plural
from equipoise.report.table import ResultTable, build_table

LOST_FUSED, LOST_COMMITTEE = "camera_lost_zero", "camera_lost_committee"
WATCHED, UNWATCHED = "monitored", "camera_black"


# -- tables --

_SHARE = partial(ResultColumn, unit="%", kind="interval")
_POINTS = partial(ResultColumn, unit="points", kind="difference")
_MEAN = partial(ResultColumn, kind="interval", scale=1.0)
_DIFFERENCE = partial(ResultColumn, kind="difference", scale=1.0)


def control_tables(rows: Iterable[Row]) -> dict[str, ResultTable]:
    """Build every table that the rows of a study have numbers for.

    Args:
        rows: One per trained policy; unfinished ones are left out.

    Returns:
        The tables by name, in the order of the page.

    Raises:
        BadInput: If no row is finished.
    """
    lines = lines_of(rows)
    made = {
        "success": success_table(lines),
        "differences": difference_table(lines),
        "sensors": sensor_table(lines),
        "imbalance": imbalance_table(lines),
        "swap": swap_table(lines),
        "committee": committee_table(lines),
        "monitor": monitor_table(lines),
        "time": _condition_table("Time to success", lines, time_to_success, "s", 2),
        "force": _condition_table("Median of the largest force at the wrist", lines, median_force, "N", 1),
        "validation": validation_table(lines),
    }
    return {name: table for name, table in made.items() if table.columns}


def _table(title: str, columns: Sequence[ResultColumn], lines: Sequence[RunGroup], notes: Sequence[str]) -> ResultTable:
    """Build a table of the lines that have a number in it."""
    numbers = [column for column in columns if column.kind != "words"]
    measured = [line for line in lines if any(column.of(line) is not None for column in numbers)]
    return build_table(title, columns if measured else (), measured, [note for note in notes if note])


def success_table(lines: Sequence[RunGroup]) -> ResultTable:
    """Build the table of success, lines × conditions."""
    columns = [
        _SHARE(name, titled(name), partial(success, condition=name), better="higher")
        for name in tried(lines)
        if not name.startswith("without_")
    ]
    late, since = CONDITIONS["delay"].delay, CONDITIONS["camera_black"].since
    told = (
        f"Black, dead, lost: from step {since} on ({since * CONTROL_STEP:g} s). Black and dead: the sensor gives "
        "zeros, and the policy is not told. Lost: it is told, and the fused head or the committee goes on without the "
        f"sensor. Monitor: nobody tells; a monitor has to notice. Late: by {1e3 * late * CONTROL_STEP:g} ms."
    )
    return _table("Episodes that succeed", columns, lines, [told, *_interval_notes(lines), _BEST])


def difference_table(lines: Sequence[RunGroup]) -> ResultTable:
    """Build the table of paired differences of success to joint training, lines × conditions."""
    pairs = {line.label: base for line in lines if (base := joint_line(line, lines))}
    compared = [line for line in lines if line.label in pairs]

    def of(line: RunGroup, condition: str) -> Difference | None:
        rate = partial(success_rate, condition)
        return paired(line, rate, pairs[line.label], rate)

    columns = [_POINTS(name, titled(name), partial(of, condition=name)) for name in tried(compared)]
    names = list(dict.fromkeys(base.label for base in pairs.values()))
    if len(names) > 1:
        columns.insert(0, ResultColumn("base", "minus", lambda line: pairs[line.label].label, "", kind="words"))
    note = (
        "Difference of the rates of success, paired by training seed; [low, high]: 95 % interval by Student's t. A "
        "difference is called clear where the interval leaves out zero; nothing is corrected for the number of "
        "comparisons: where nothing differs, about one in twenty is clear by chance. Without an interval: one pair, or "
        "the same difference in all."
    )
    title = "Success minus that of joint training" + (f" ({names[0]})" if len(names) == 1 else "")
    return _table(title, columns, compared, [note, *_single_note(lines)])


def sensor_table(lines: Sequence[RunGroup]) -> ResultTable:
    """Build the table of what each sensor is worth: the probes of the camera, and success without each sensor."""
    columns = [
        *_probe_columns(),
        *(
            _SHARE(name, titled(name), partial(success, condition=name), better="higher")
            for name in tried(lines)
            if name.startswith("without_")
        ),
    ]
    notes = [
        "Probe: error of a ridge regression from the camera's features to the place of the hole, on episodes that no "
        "training saw; only the camera can know it. Relative: as seen from the peg. Absolute: on the table.",
        "Without a sensor: it is missing from the first step on, and the policy is told.",
        *_interval_notes(lines),
        _BEST,
    ]
    return _table("What the camera knows, and success without each sensor", columns, lines, notes)


def _probe_columns() -> list[ResultColumn]:
    probes = {"probe_mm": "relative to the peg, mm", "probe_absolute_mm": "absolute, mm"}
    return [
        _MEAN(key, "probe", partial(over_seeds, measure=partial(_intervention, key)), unit, decimals=2, better="lower")
        for key, unit in probes.items()
    ]


def _intervention(key: str, row: Row) -> float | None:
    return number(row, "interventions", key)


def swap_table(lines: Sequence[RunGroup]) -> ResultTable:
    """Build the table of how far an action moves when a sensor is swapped, lines × (sensor, phase)."""
    columns = [
        _MEAN(f"{sensor}.{phase}", sensor, partial(swap, sensor=sensor, phase=phase), phase, decimals=2)
        for sensor in SENSORS
        for phase in PHASES
    ]
    note = (
        "A sensor is swapped for that of another episode at the same step, in one phase only. Number: root mean square "
        "of the change of the next action, in units of the action's deviation. 0: the sensor is not followed there."
    )
    return _table("What each sensor is followed for, by phase", columns, lines, [note, *_seed_notes(lines)])


def swap(line: RunGroup, sensor: str, phase: str) -> MeanInterval | None:
    """Return how far the action moves when a sensor is swapped in a phase."""
    return over_seeds(line, lambda row: number(row, "interventions", "swap", sensor, phase, "change"))


def committee_table(lines: Sequence[RunGroup]) -> ResultTable:
    """Build the table of both ways to go on without the camera."""
    columns = [
        _SHARE(LOST_FUSED, "fused head", partial(success, condition=LOST_FUSED)),
        _SHARE(LOST_COMMITTEE, "committee", partial(success, condition=LOST_COMMITTEE)),
        _POINTS("difference", "committee − fused head", committee_gain),
    ]
    note = (
        "The camera is lost in the middle of an episode, and the policy is told. Fused head: it goes on with zeros (or "
        "what the model puts there) for the features of the camera. Committee: the heads of the other sensors vote. "
        "Same policies, same episodes; difference paired by training seed."
    )
    title = "Without the camera: the committee minus the fused head"
    return _table(title, columns, lines, [note, *_interval_notes(lines)])


def committee_gain(line: RunGroup) -> Difference | None:
    """Return the success of the committee minus that of the fused head, without the camera."""
    return paired(line, partial(success_rate, LOST_COMMITTEE), line, partial(success_rate, LOST_FUSED))


def monitor_table(lines: Sequence[RunGroup]) -> ResultTable:
    """Build the table of the monitor: false alarms, and how soon it leaves a dead sensor out."""

    def of(measure: Callable[[str, Row], float | None], name: str = WATCHED) -> Callable[[RunGroup], Any]:
        return partial(over_seeds, measure=partial(measure, name))

    watched = sorted((name for name in CONDITIONS if CONDITIONS[name].monitored), key=lambda name: name == WATCHED)
    columns = [
        *(_SHARE(f"{name}.false", "false alarms", of(false_alarms, name), unit=_which(name)) for name in watched),
        _SHARE("found", "camera dropped", of(failure_found)),
        _MEAN("delay", "delay", of(alarm_delay), "s", decimals=2),
        _POINTS("gain", "success, monitor − none", _monitor_gain),
    ]
    note = (
        "The camera gives zeros from the middle of an episode on. False alarms: episodes in which the monitor dropped "
        "a sensor that worked. Dropped: of the episodes that lasted until the failure. Delay: from the first bad "
        "observation to the alarm. Last column: success with the monitor minus that without it (camera black), paired "
        "by training seed."
    )
    return _table("The monitor", columns, lines, [note, *_seed_notes(lines)])


def _which(condition: str) -> str:
    return "%, clean" if CONDITIONS[condition].dead is None else "%, before the failure"


def _drops(row: Row, condition: str) -> list[tuple[int, str | None, int | None]]:
    columns = (episodes(row, condition, column) for column in ("steps", "dropped", "dropped_at"))
    return list(zip(*columns, strict=True))


def false_alarms(condition: str, row: Row) -> float | None:
    """Return the share of a monitored condition's episodes in which a sensor was dropped that still worked.

    An alarm after the failure that names another sensor is none of them: something had failed by then.
    """
    ends = CONDITIONS[condition].since if CONDITIONS[condition].dead else math.inf
    return mean(float(at is not None and at < ends) for _, _, at in _drops(row, condition))


def failure_found(condition: str, row: Row) -> float | None:
    """Return the share of episodes that lasted until the failure in which the dead sensor was dropped after it."""
    about = CONDITIONS[condition]
    return mean(
        float(name == about.dead and at is not None and at >= about.since)
        for steps, name, at in _drops(row, condition)
        if steps > about.since
    )


def alarm_delay(condition: str, row: Row) -> float | None:
    """Return the mean time from the failure until the dead sensor was dropped, in s, where it was."""
    about = CONDITIONS[condition]
    return mean(
        CONTROL_STEP * (at - about.since)
        for _, name, at in _drops(row, condition)
        if name == about.dead and at is not None and at >= about.since
    )


def _monitor_gain(line: RunGroup) -> Difference | None:
    return paired(line, partial(success_rate, WATCHED), line, partial(success_rate, UNWATCHED))


def imbalance_table(lines: Sequence[RunGroup]) -> ResultTable:
    """Build the table that compares the camera of each line with a camera that was trained alone."""
    several = [line for line in lines if len(line.rows[0]["sensors"]) > 1 and "camera" in line.rows[0]["sensors"]]
    checks = {line.label: imbalance(line, lines) for line in several}
    columns = [
        _DIFFERENCE("probe", "probe", lambda line: checks[line.label].get("probe"), "mm", decimals=2),
        _POINTS("success", "success without proprioception", lambda line: checks[line.label].get("success")),
    ]
    alone = alone_line(lines)
    note = (
        "Both are paired by training seed, with the 95 % interval by Student's t. Probe: error in the place of the "
        "hole relative to the peg, more is worse. Success without proprioception is compared with that of the camera "
        "alone, which never has it; less is worse. A policy that never missed a sensor in training loses some for that "
        "reason, too, so that it is the probe that speaks of the camera's encoder alone."
    )
    title = f"Is there an imbalance? Each line minus {alone.label if alone else 'the camera alone'}"
    return _table(title, columns, several, [note, imbalance_in_words(lines), *_single_note(lines)])


def imbalance(line: RunGroup, lines: Sequence[RunGroup]) -> dict[str, Difference]:
    """Compare the camera of a line with one trained alone: the probe, and success without proprioception."""
    alone = alone_line(lines)
    if alone is None:
        return {}
    probe, without = partial(_intervention, "probe_mm"), partial(success_rate, "without_proprioception")
    differences = {
        "probe": paired(line, probe, alone, probe, higher=False),
        "success": paired(line, without, alone, partial(success_rate, "clean")),
    }
    return {name: one for name, one in differences.items() if one is not None}


def imbalance_in_words(lines: Sequence[RunGroup]) -> str:
    """Say whether joint training leaves the camera behind; nothing where that was not measured."""
    joint = min((line for line in lines if is_joint(line)), key=lambda line: len(line.label), default=None)
    checks = imbalance(joint, lines) if joint else {}
    if joint is None or not checks:
        return ""
    parts = []
    if probe := checks.get("probe"):
        parts.append(
            f"the error of the probe is {_clearly(probe, 'larger', 'smaller')} ({in_numbers(probe, ' mm', 1, 2)})"
        )
    if without := checks.get("success"):
        said = in_numbers(without, " points", 100)
        parts.append(f"success without proprioception is {_clearly(without, 'lower', 'higher')} ({said})")
    figures = f"Of {joint.label} against the camera trained alone, {' and '.join(parts)}."
    return f"{_verdict(*(checks[key].verdict if key in checks else '' for key in ('probe', 'success')))} {figures}"


def _verdict(probe: str, without: str) -> str:
    """Say what both measures tell together; only the probe speaks of the encoder alone."""
    if {probe, without} <= {"too few to tell", ""}:
        return "Whether joint training leaves the camera behind cannot be told from these trainings."
    if {probe, without} == {"worse", "better"}:
        return "Whether joint training leaves the camera behind is not settled: the two measures disagree."
    if probe == "worse":
        return "The imbalance shows: joint training leaves the camera behind."
    if without == "worse":
        return "Success without proprioception points to an imbalance, but the probe of the camera shows none."
    if "better" in (probe, without):
        return "The imbalance does not show: joint training does not leave the camera behind."
    return "The imbalance does not show clearly."


def _clearly(difference: Difference, worse: str, better: str) -> str:
    words = {"worse": f"clearly {worse}", "better": f"clearly {better}", "too few to tell": "without an interval"}
    return words.get(difference.verdict, "not clearly different")


_BEST = "Bold: best of its column. Lines are ordered by success in clean episodes."


def in_numbers(difference: Difference, unit: str, scale: float = 1.0, decimals: int = 1) -> str:
    """Write a difference with its interval, as it stands in a sentence."""
    ends = [difference.mean, difference.low, difference.high]
    mean, low, high = ("" if end is None else f"{scale * end:+.{decimals}f}".replace("-", "−") for end in ends)
    return f"{mean}{unit} [{low}, {high}]" if low else f"{mean}{unit}"


def _condition_table(
    title: str, lines: Sequence[RunGroup], measure: Callable[[str, Row], float | None], unit: str, decimals: int
) -> ResultTable:
    """Build a table of a number of episodes, lines × conditions."""
    columns = [
        _MEAN(name, titled(name), partial(over_seeds, measure=partial(measure, name)), unit, decimals=decimals)
        for name in tried(lines)
    ]
    which = "Mean over the episodes that succeeded. " if measure is time_to_success else ""
    few = "Lines that succeed in different episodes are not compared on equal terms." if which else ""
    return _table(title, columns, lines, [which + few, *_seed_notes(lines)])


def validation_table(lines: Sequence[RunGroup]) -> ResultTable:
    """Build the table of errors on validation demonstrations: of the fused head, and of each sensor's own."""

    def of(name: str) -> Callable[[RunGroup], MeanInterval | None]:
        return partial(over_seeds, measure=lambda row: number(row, "validation", name))

    columns = [_MEAN(f"rmse.{name}", name, of(name), "mm/s", scale=1e3, better="lower") for name in ("fused", *SENSORS)]
    note = "Root mean square error of the predicted velocities. A small one need not mean that episodes succeed."
    return _table("Error on validation demonstrations", columns, lines, [note, *_seed_notes(lines)])


# -- notes --


def _seed_notes(lines: Sequence[RunGroup]) -> list[str]:
    counts = sorted({len(line.rows) for line in lines} - {1})
    return [f"[low, high]: 95 % interval by Student's t over {_range(counts)} training seeds."] if counts else []


def _interval_notes(lines: Sequence[RunGroup]) -> list[str]:
    """Say what the intervals of rates are made of."""
    notes = _seed_notes(lines)
    if notes:
        notes[0] += " One without width: all seeds have the same rate."
    single = [line.label for line in lines if len(line.rows) == 1]
    if single:
        which = "Every line" if len(single) == len(lines) else ", ".join(single)
        notes.append(
            f"{which}: one training seed; [low, high] is Wilson's 95 % interval over its episodes, and says nothing of "
            "how another training would turn out."
        )
    counts = sorted(
        {len(episodes(row, name, "success")) for line in lines for row in line.rows for name in row["rollouts"]}
    )
    return [*notes, f"{_range(counts)} episodes of each policy in each condition, the same for all lines."]


def _single_note(lines: Sequence[RunGroup]) -> list[str]:
    if max(len(line.rows) for line in lines) > 1:
        return []
    return [f"{plural(1, 'training seed')}: no interval, and nothing can be called clear."]


def _range(counts: Sequence[int]) -> str:
    return f"{counts[0]}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
