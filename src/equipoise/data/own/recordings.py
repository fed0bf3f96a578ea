"""Recordings as users have them: sensors at rates of their own, labels per interval or over time; read and checked."""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from itertools import pairwise
from typing import Any, NamedTuple, final

import numpy as np

from equipoise.data.own.arrays import COLOURS
from equipoise.data.own.columns import as_numpy
from equipoise.util.errors import BadInput, name_problems

UNITS = {"ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0}
DURATION = re.compile(r"(\d+\.?\d*|\.\d+) ?(ms|s|min|h)?", re.ASCII)
BRIDGED, STEPS_BRIDGED = 0.1, 3  # of a window, and steps: what may be missing in one piece
LATE = 1.5  # sampling intervals after which a sample is missing
SAME = 1e-6  # seconds
EXPECTED = "[T], [C, T] or [C, T, H, W]"


@final
@dataclass(frozen=True, eq=False)
class Recording:
    """One recording: several sensors, each at a rate of its own, and labels. All times are seconds of one clock.

    Args:
        signals: Per sensor an array [T], [C, T] or [C, T, H, W], or None where it was off. One called "label" holds the
            label over time instead of `labels`: classes or numbers, [T], or several numbers, [D, T].
        labels: Intervals (start, end, label) that do not overlap; what is between them has no label.
        rates: Samples per second, per sensor. Such a signal begins at 0, or at its second in `starts`.
        times: The time of each sample, [T], for sensors that have no fixed rate; they may begin anywhere.
        group: The person or vehicle; without it the recording is a group of its own.
        part: "train", "validation" or "test", of all recordings or of none.
        name: For messages.
        starts: The second of the first sample, per sensor, for signals that have a rate and no times.
    """

    signals: Mapping[str, Any]
    labels: Sequence[tuple[float, float, Any]] = ()
    rates: Mapping[str, float] = field(default_factory=dict)
    times: Mapping[str, Any] = field(default_factory=dict)
    group: Any = None
    part: str | None = None
    name: str = ""
    starts: Mapping[str, float] = field(default_factory=dict)


def seconds_of(given: str | float, owner: str = "duration") -> float:
    """Return a duration in seconds.

    Args:
        given: A number of seconds, or text with a unit: 500ms, 2s, 1min, 1h.
        owner: For messages.

    Raises:
        BadInput: If it is no duration above zero.

    Example:
        >>> seconds_of("500ms"), seconds_of("1min"), seconds_of(2)
        (0.5, 60.0, 2.0)
    """
    found = DURATION.fullmatch(str(given).strip())
    value = float(found[1]) * UNITS[found[2] or "s"] if found else 0.0
    if value <= 0:
        raise BadInput(f"{owner}: expected a duration such as 2s, 500ms or 1min, found {given!r}")
    return value


class Signal(NamedTuple):
    """A signal that was read.

    Args:
        values: [C, T, …].
        times: Of each step.
        rate: As it was given; None where only times are.
        step: The usual distance of two samples, in seconds.
        regular: Whether samples are one step apart exactly.
        start: The second of its first sample as it was given; 0 where it was not, or all samples have times.
    """

    values: np.ndarray
    times: np.ndarray
    rate: float | None
    step: float
    regular: bool
    start: float = 0.0

    @property
    def end(self) -> float:
        """The time at which the last sample ends."""
        return float(self.times[-1]) + self.step


class ReadRecording(NamedTuple):
    """A recording that was read: its sensors, and intervals with their labels."""

    signals: dict[str, Signal]
    starts: np.ndarray
    ends: np.ndarray
    values: list[Any] | np.ndarray


def read_recording(
    recording: Recording, name: str, window: float, problems: list[str], rates: Mapping[str, float] | None = None
) -> ReadRecording:
    """Read a recording, and add what is wrong with it to the problems.

    Args:
        recording: As it was given.
        name: Of the recording, in messages.
        window: In seconds.
        problems: Collects what is wrong.
        rates: The usual rates of the sensors in other recordings, for messages.
    """
    signals: dict[str, Signal] = {}
    for sensor, given in recording.signals.items():
        if given is None:
            continue
        if sensor != "label" and (wrong := name_problems([sensor])):
            problems += [problem for problem in wrong if problem not in problems]
            continue
        try:
            signals[sensor] = _read_signal(recording, sensor, given, window, (rates or {}).get(sensor))
        except BadInput as problem:
            problems.append(f"{name}, {sensor}: {problem}")
    unknown = {*recording.rates, *recording.times, *recording.starts} - {*recording.signals}
    for sensor in sorted(unknown):
        near = get_close_matches(sensor, recording.signals, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        problems.append(f"{name}: expected rates, times and starts of its signals, found {sensor!r}{hint}")
    label = signals.pop("label", None)
    if far := _far_apart(signals):
        problems.append(f"{name}: expected sensors on one clock, found {far}")
        signals = {}
    if not signals and not any(problem.startswith(f"{name}, ") for problem in problems):
        problems.append(f"{name}: expected at least one signal, found none")
    if label is not None and len(recording.labels):
        problems.append(f"{name}: expected labels as intervals or as a signal called label, found both")
    if label is not None:
        ends = np.minimum(np.append(label.times[1:], np.inf), label.times + LATE * label.step)
        values = label.values[0] if len(label.values) == 1 else label.values.T
        return ReadRecording(signals, label.times, ends, values)
    starts, ends, values = _read_intervals(recording.labels, name, problems)
    if len(starts) and (there := [one for one in signals.values() if len(one.times)]):
        first, last = min(one.times[0] for one in there), max(one.end for one in there)
        outside = [f"{a:g} to {b:g} s" for a, b in zip(starts, ends, strict=True) if b <= first or a >= last]
        if outside:
            found = f"found {len(outside)} outside, such as {outside[0]}"
            problems.append(f"{name}, labels: expected intervals within {first:g} to {last:g} s, {found}")
    return ReadRecording(signals, starts, ends, values)


def _far_apart(signals: Mapping[str, Signal]) -> str:
    """Say which sensors are so far apart in time that their clocks cannot be the same."""
    spans = sorted((one.times[0], one.end, sensor) for sensor, one in signals.items() if len(one.times))
    for number in range(1, len(spans)):
        until, begin = max(end for _, end, _ in spans[:number]), spans[number][0]
        if begin - until > sum(end - start for start, end, _ in spans):
            return f"{spans[number - 1][2]} until {until:.9g} s and {spans[number][2]} from {begin:.9g} s on"
    return ""


def _read_intervals(given: Any, name: str, problems: list[str]) -> tuple[np.ndarray, np.ndarray, list[Any]]:
    rows = []
    for number, row in enumerate(given):
        try:
            start, end, value = row
            rows.append((float(start), float(end), value))
            wrong = not float(start) < float(end)
        except (TypeError, ValueError):
            wrong = True
        if wrong:
            expected = "expected (start, end, label) in seconds, the end after the start"
            problems.append(f"{name}, labels: {expected}, found {row!r} in place {number}")
            return np.zeros(0), np.zeros(0), []
    rows.sort(key=lambda row: row[:2])
    for (_, end, one), (start, _, other) in pairwise(rows):
        if start < end - SAME:
            expected = "expected intervals that do not overlap"
            problems.append(f"{name}, labels: {expected}, found {one!r} until {end:g} s and {other!r} from {start:g} s")
    return np.array([row[0] for row in rows]), np.array([row[1] for row in rows]), [row[2] for row in rows]


def misspelt_sensors(recordings: Sequence[Recording], names: Sequence[str]) -> Iterable[str]:
    """Report a sensor of one recording alone that is probably the one of nearly its name that all others have."""
    sensors = [[key for key, given in one.signals.items() if given is not None] for one in recordings]
    count = Counter(sensor for own in sensors for sensor in own)
    for own, name in zip(sensors, names, strict=True):
        usual = [sensor for sensor in count if sensor not in own and count[sensor] == len(recordings) - 1 > 1]
        for sensor in own:
            if count[sensor] == 1 and (near := get_close_matches(sensor, usual, n=1)):
                yield f"{name}: expected {near[0]!r}, as in all other recordings, found {sensor!r}; rename it"


def usual_rates(recordings: Sequence[Recording]) -> dict[str, float]:
    """Return the most common rate of each sensor, where any is given."""
    given = [(sensor, rate) for one in recordings for sensor, rate in one.rates.items()]
    counts = Counter(pair for pair in given if isinstance(pair[1], (int, float, np.number)))
    return {sensor: rate for (sensor, rate), _ in reversed(counts.most_common())}


def _read_signal(recording: Recording, sensor: str, given: Any, window: float, usual: float | None) -> Signal:
    values = _steps_second(as_numpy(given), sensor)
    rate, times, start = (each.get(sensor) for each in (recording.rates, recording.times, recording.starts))
    if rate is not None and not (isinstance(rate, (int, float, np.number)) and 0 < rate < np.inf):
        raise BadInput(f"expected a rate above zero, in samples per second, found {rate!r}")
    if start is not None and not (isinstance(start, (int, float, np.number)) and np.isfinite(start)):
        raise BadInput(f"expected its start in seconds, found {start!r}")
    if start is not None and times is not None:
        raise BadInput(f"expected its times or its start, found both, the times and {start:g} s; leave out the start")
    count, regular, first = values.shape[1], times is None, float(start or 0)
    if times is None:
        if rate is None:
            hint = "…" if usual is None else f"{usual:g}"
            others = "" if usual is None else ", as other recordings have"
            advice = f"give rates={{{sensor!r}: {hint}}}{others}; in a manifest it is the column {sensor}_rate"
            raise BadInput(f"expected its rate or its times, found neither; {advice}")
        rate = float(rate)
        times, step = first + np.arange(count) / rate, 1 / rate
        if values.ndim == 2 and sensor != "label" and count / rate < window and len(values) > count:
            shape = f"found {list(values.shape)}, {count / rate:g} s"
            raise BadInput(f"expected [C, T], time last, of one window at least, {shape}; give its transpose")
    else:
        times = as_numpy(times)
        if times.dtype.kind in "Mm":
            raise BadInput("expected times in seconds, found dates; give (times - first) / numpy.timedelta64(1, 's')")
        if times.shape != (count,) or times.dtype.kind not in "iuf":
            turned = "; time comes last: give its transpose" if times.shape == values.shape[:1] else ""
            found = f"found times of shape {list(times.shape)} for values {list(values.shape)}"
            raise BadInput(f"expected one time per step, in seconds, {found}{turned}")
        times = times.astype(np.float64)
        jumps = np.diff(times)
        if not np.isfinite(times).all() or (jumps <= 0).any():
            at = int(np.argmax(~(jumps > 0))) if len(jumps) else 0
            where = (
                f"found {times[at]:.9g} before {times[at + 1]:.9g} s (steps {at} and {at + 1})" if len(jumps) else ""
            )
            raise BadInput(f"expected times that increase from step to step, {where or 'found no finite number'}")
        if rate is None and not len(jumps):
            raise BadInput("expected two samples or more, or a rate, found one sample with its time")
        step = _usual(jumps, window) if len(jumps) else 1 / float(rate or 1)
        rate = None if rate is None else float(rate)
    if sensor == "label":
        known = ~np.isnan(values).any(axis=0) if values.dtype.kind == "f" else np.ones(count, bool)
        return Signal(values[:, known], times[known], rate, step, regular, first)
    return _without_holes(Signal(values, times, rate, step, regular, first), window)


def _usual(jumps: np.ndarray, window: float) -> float:
    """Return the usual distance of two samples: the median, or the mean without gaps where samples come in bursts."""
    median = float(np.median(jumps))
    mean = float(jumps[jumps <= max(LATE * median, BRIDGED * window)].mean())
    return median if abs(median - mean) < BRIDGED * mean else mean


def _steps_second(values: np.ndarray, sensor: str) -> np.ndarray:
    """Return a signal as [C, T, …]."""
    if values.dtype.kind not in "biuf" and not (sensor == "label" and values.dtype.kind in "US"):
        raise BadInput(f"expected numbers, found values of the type {values.dtype}")
    if values.ndim == 1:
        values = values[None]
    if values.dtype == np.uint8 and values.ndim == 3:
        values = values[None]  # grey frames
    elif values.dtype == np.uint8 and values.ndim == 4 and values.shape[-1] in COLOURS:
        values = np.moveaxis(values, -1, 0)
    if values.ndim not in (2, 4) or 0 in values.shape:
        raise BadInput(f"expected {EXPECTED}, found an array of shape {list(values.shape)}")
    return values


def _without_holes(signal: Signal, window: float) -> Signal:
    """Leave out the steps at which a sensor was off, NaN in all its channels; refuse any other NaN."""
    values, times = signal.values, signal.times
    if values.dtype.kind != "f":
        return signal
    inner = tuple(axis for axis in range(values.ndim) if axis != 1)
    off, bad = np.array(np.isnan(values).all(axis=inner)), ~np.isfinite(values).all(axis=inner)
    everywhere = bool(off.all())
    edges = np.flatnonzero(np.diff(np.concatenate([[False], off, [False]])))
    for first, behind in edges.reshape(-1, 2):
        off[first:behind] = (behind - first) * signal.step > bridged(window, signal.step) or everywhere
    if (wrong := np.flatnonzero(bad & ~off)).size:
        where = ", ".join(f"{times[at]:.6g} s" for at in wrong[:5]) + (", …" if len(wrong) > 5 else "")
        expected = f"expected finite numbers, or NaN in all channels for over {bridged(window, signal.step):.3g} s"
        raise BadInput(f"{expected} while it is off; found NaN or infinity in {len(wrong):,} steps, at {where}")
    return signal._replace(values=values[:, ~off], times=times[~off])


def bridged(window: float, step: float) -> float:
    """Return the seconds that may be missing of a sensor in a window, in one piece."""
    return max(BRIDGED * window, min(STEPS_BRIDGED * step, window / 2)) + SAME
