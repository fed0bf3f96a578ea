"""Long recordings cut into windows, each a sample with a label.

Every window of a sensor has as many steps, round(window · rate). A sensor that gives nothing for a while is absent in
the windows that this touches: "NAME_present" beside its array says in which windows it is there.
"""

import math
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np

from equipoise.data.own.arrays import bytes_as_samples, read_samples
from equipoise.data.own.recordings import (
    LATE,
    SAME,
    ReadRecording,
    Recording,
    Signal,
    bridged,
    misspelt_sensors,
    read_recording,
    seconds_of,
    usual_rates,
)
from equipoise.data.own.samples import Samples, no_samples
from equipoise.util.errors import BadInput
from equipoise.util.processes import memory_problem

LabelAt = Literal["auto", "majority", "mean", "end"]
AT_ONCE = 256  # windows that are cut at once
MOST_WINDOWS = 2_000_000
LABEL_AT = ("auto", "majority", "mean", "end")


def samples_of_recordings(
    recordings: Iterable[Recording],
    *,
    window: str | float,
    stride: str | float | None = None,
    label_at: LabelAt = "auto",
    pictures: Collection[str] = (),
    problems: Iterable[str] = (),
    notes: Iterable[str] = (),
    **more: Any,
) -> Samples:
    """Cut recordings into windows, and collect all that is wrong.

    Args:
        recordings: As for `Splits.from_recordings`, like the next three.
        window: Of every sample.
        stride: From the start of one to that of the next; None for a window.
        label_at: The rule for the label of a window.
        pictures: Series [C, T] whose windows are pictures, [N, 1, C, T], such as spectrograms.
        problems: What was wrong before.
        notes: What was done before.
        more: As for `read_samples`.
    """
    cut = cut_windows(list(recordings), window, stride, label_at, pictures=pictures)
    problems = [*problems, *cut.problems]
    if not cut.names:
        problems = problems or ["expected windows, found none"]
        return no_samples(more.get("name", "own data"), problems, notes)
    given: dict[str, Any] = {"split": cut.split, "group": cut.group, **more}
    return read_samples(
        {"id": cut.names, **cut.arrays}, cut.label, problems=problems, notes=[*notes, *cut.notes], **given
    )


class Windows(NamedTuple):
    """The windows of recordings.

    Args:
        arrays: Per sensor [N, C, steps, …], and "NAME_present", [N], where it is absent in some windows.
        label: [N] or [N, D]; None where none is given.
        group: Of each window.
        split: Of each window; None where none is given.
        names: Of each window: its recording, and from which second to which.
        places: The same of each window as columns: "recording", "start" and "end".
        notes: What was cut, and what was left out.
        problems: What is wrong with the recordings.
    """

    arrays: dict[str, np.ndarray]
    label: np.ndarray | None
    group: np.ndarray | None
    split: np.ndarray | None
    names: list[str]
    places: dict[str, list[Any]]
    notes: list[str]
    problems: list[str]


def cut_windows(
    recordings: Sequence[Recording],
    window: str | float,
    stride: str | float | None = None,
    label_at: LabelAt = "auto",
    *,
    pictures: Collection[str] = (),
    unlabelled: bool = False,
) -> Windows:
    """Cut recordings into windows.

    Args:
        recordings: As for `Splits.from_recordings`, like the next three.
        window: Of every sample.
        stride: From the start of one to that of the next; None for a window.
        label_at: The rule for the label of a window.
        pictures: Series [C, T] whose windows are pictures, [N, 1, C, T], such as spectrograms.
        unlabelled: Whether recordings without any label are cut too, whole.
    """
    problems: list[str] = []
    lengths: list[float] = []
    for owner, given in (("window", window), ("stride", stride)):
        try:
            lengths += [seconds_of(given, owner)] if given is not None else lengths[:1]
        except BadInput as problem:
            problems.append(str(problem))
    if label_at not in LABEL_AT:
        problems.append(f"label_at: expected one of {', '.join(LABEL_AT)}, found {label_at!r}")
    if not recordings:
        problems.append("expected at least one recording, found none")
    cut, (long, every) = not problems, lengths if len(lengths) == 2 else (1.0, 1.0)
    names = _names(recordings)
    rates = usual_rates(recordings)
    read = [read_recording(one, name, long, problems, rates) for one, name in zip(recordings, names, strict=True)]
    problems += misspelt_sensors(recordings, names)
    if not cut:
        return no_windows(problems)
    starts = [_starts(one, name, long, every, problems) for one, name in zip(read, names, strict=True)]
    if (count := sum(map(len, starts))) > MOST_WINDOWS:
        problems.append(f"expected at most {MOST_WINDOWS:,} windows, found {count:,}; type a larger stride")
        return no_windows(problems)
    unlabelled = unlabelled and not any(len(one.values) for one in read)
    labels = _Labels(np.zeros(0), np.ones(sum(map(len, starts)), bool), "")
    if not unlabelled:
        labels = _labels(read, starts, long, label_at, problems)
    sensors = list(dict.fromkeys(name for one in read for name in one.signals))
    present = {name: _presence(name, read, starts, long) for name in sensors}
    there = np.any([*present.values()], axis=0) if present else np.zeros(len(labels.known), bool)
    kept = there & labels.known
    notes = [f"windows of {long:g} s every {every:g} s of {len(recordings)} recordings: {int(kept.sum()):,}"]
    if unknown := int((~labels.known).sum()):
        notes[0] += f"; {unknown:,} more left out, {labels.lacking}"
    if silent := int((labels.known & ~there).sum()):
        notes[0] += f"; {silent:,} more left out, no sensor gives anything there"
    if len(kept) and not kept.any() and not problems:
        problems.append(f"expected windows that have a label, found none in {notes[0]}")
    arrays: dict[str, np.ndarray] = {}
    for name in sensors if kept.any() else ():
        try:
            array, note = _cut(name, read, starts, long, kept, present[name])
        except BadInput as problem:
            problems.append(f"{name}: {problem}")
            continue
        notes.append(f"{name}: {note}")
        arrays[name] = array[:, None] if name in pictures else array
        if not present[name][kept].all():
            arrays[f"{name}_present"] = present[name][kept]
    rows = np.repeat(np.arange(len(recordings)), [len(own) for own in starts])[kept]
    begins = np.concatenate(starts)[kept] if starts else np.zeros(0)
    ends = begins + long
    places = {"recording": [names[row] for row in rows], "start": _tidy(begins), "end": _tidy(ends)}
    columns = _columns(recordings, names, rows, problems)
    label = None if unlabelled else labels.values[kept]
    named = [f"{name}, {start:.12g} to {end:.12g} s" for name, start, end in zip(*places.values(), strict=True)]
    return Windows(arrays, label, *columns, named, places, notes, problems)


def no_windows(problems: list[str]) -> Windows:
    """Return no windows, and why."""
    return Windows({}, None, None, None, [], {}, [], problems)


def _tidy(seconds: np.ndarray) -> list[float]:
    """Return times without what rounding adds to them."""
    return np.round(seconds, 6).tolist()


def _names(recordings: Sequence[Recording]) -> list[str]:
    """Return a name for every recording, no two the same."""
    names = [str(one.name) or f"recording {number}" for number, one in enumerate(recordings)]
    counts = Counter(names)
    return [name if counts[name] == 1 else f"{name} ({number})" for number, name in enumerate(names)]


def _columns(
    recordings: Sequence[Recording], names: Sequence[str], rows: np.ndarray, problems: list[str]
) -> tuple[np.ndarray, np.ndarray | None]:
    """Return group and part of each window."""
    groups = [name if one.group is None else one.group for one, name in zip(recordings, names, strict=True)]
    if not all(isinstance(group, (int, np.integer)) for group in groups):
        groups = list(map(str, groups))
    parts = [one.part for one in recordings]
    if blank := [name for name, part in zip(names, parts, strict=True) if part in (None, "")]:
        if len(blank) < len(parts):
            few = ", ".join(blank[:5]) + (", …" if len(blank) > 5 else "")
            problems.append(f"part: expected one for every recording or for none, found none for {few}")
        return np.array(groups)[rows], None
    return np.array(groups)[rows], np.array(list(map(str, parts)))[rows]


# -- cutting --


def _starts(one: ReadRecording, name: str, window: float, stride: float, problems: list[str]) -> np.ndarray:
    signals = [signal for signal in one.signals.values() if len(signal.times)]
    if not signals:
        return np.zeros(0)
    first, last = min(signal.times[0] for signal in signals), max(signal.end for signal in signals)
    slack = min(signal.step for signal in signals) / 2
    count = int(np.floor((last - first - window + slack) / stride)) + 1
    if count < 1:
        problems.append(f"{name}: expected at least one window of {window:g} s, found {last - first:.6g} s in all")
    if count > MOST_WINDOWS:
        cut = f"{last - first:.6g} s in windows every {stride:g} s are {count:,} windows"
        problems.append(f"{name}: {cut}, expected at most {MOST_WINDOWS:,}; look at its rate, window and stride")
        return np.zeros(0)
    return first + stride * np.arange(max(0, count))


class _Labels(NamedTuple):
    """The label of each window, [N] or [N, D]; which windows have one; and why the others have none."""

    values: np.ndarray
    known: np.ndarray
    lacking: str


def _labels(
    read: Sequence[ReadRecording], windows: Sequence[np.ndarray], window: float, rule: str, problems: list[str]
) -> _Labels:
    total, given = sum(map(len, windows)), [_as_array(one.values) for one in read if len(one.values)]
    none = _Labels(np.zeros(total), np.zeros(total, bool), "no label")
    if not given:
        if not problems:
            problems.append("label: expected labels=[(start, end, label), …] or a signal called label, found none")
        return none
    kinds = {(values.dtype.kind in "US", values.shape[1:]) for values in given}
    allowed = {1: "biufUS", 2: "biuf"}
    if len(kinds) > 1 or any(values.dtype.kind not in allowed.get(values.ndim, "") for values in given):
        problems.append("label: expected names, or numbers, or as many numbers in every label, found a mixture")
        return none
    joined = np.concatenate(given)
    several = joined.ndim > 1
    if rule == "mean" and joined.dtype.kind in "US":
        problems.append("label_at: expected majority or end for labels that are names, found mean")
        return none
    if rule == "auto" or (several and rule == "majority"):
        rule = "mean" if several or joined.dtype.kind == "f" else "majority"
    distinct, codes = np.unique(joined, return_inverse=True) if rule == "majority" else (joined, np.arange(len(joined)))
    values = np.zeros((total, *joined.shape[1:]), np.float64 if rule == "mean" else joined.dtype)
    known, row, place = np.zeros(total, bool), 0, 0
    for one, starts in zip(read, windows, strict=True):
        own = codes[place : place + len(one.values)]
        place += len(one.values)
        for start in starts:
            if (found := _label(one, own, distinct, start, start + window, rule)) is not None:
                values[row], known[row] = found, True
            row += 1
    if several and rule == "mean" and np.isin(joined, (0, 1)).all():  # several labels, each of them yes or no
        values = (values >= 0.5).astype(np.int64)
    return _Labels(values, known, "no label at their end" if rule == "end" else "no label covers half of them")


def _as_array(values: Any) -> np.ndarray:
    """Return labels as an array; one of objects where they are of several kinds."""
    try:
        mixed = isinstance(values, list) and len({isinstance(value, (str, bytes)) for value in values}) > 1
        return np.array(values, object) if mixed else np.asarray(values)
    except ValueError:  # not as many numbers in every label
        return np.zeros(len(values), object)


def _label(one: ReadRecording, codes: np.ndarray, distinct: np.ndarray, start: float, end: float, rule: str) -> Any:
    """Return the label of a window; None where it has none."""
    first = int(np.searchsorted(one.ends, start, side="right"))
    behind = int(np.searchsorted(one.starts, end, side="left"))
    if first >= behind:
        return None
    if rule == "end":
        return distinct[codes[behind - 1]] if one.ends[behind - 1] >= end - SAME else None
    covered = np.minimum(one.ends[first:behind], end) - np.maximum(one.starts[first:behind], start)
    half = (end - start) / 2 - SAME
    if rule == "mean":
        return covered @ distinct[codes[first:behind]] / covered.sum() if covered.sum() >= half else None
    own, place = np.unique(codes[first:behind], return_inverse=True)
    shares = np.bincount(place, covered)
    best = int(shares.argmax())
    return distinct[own[best]] if shares[best] >= half else None


def _presence(sensor: str, read: Sequence[ReadRecording], windows: Sequence[np.ndarray], window: float) -> np.ndarray:
    """Return in which windows a sensor is there."""
    found = []
    for one, starts in zip(read, windows, strict=True):
        signal = one.signals.get(sensor)
        there = np.full(len(starts), signal is not None and len(signal.times) > 0)
        if signal is not None and there.any():
            times, most = signal.times, bridged(window, signal.step)
            late = np.flatnonzero(np.diff(times) > max(LATE * signal.step, most))
            holes = [(-np.inf, times[0]), *zip(times[late] + signal.step, times[late + 1], strict=True)]
            for begin, end in [*holes, (signal.end, np.inf)]:
                there &= np.minimum(end, starts + window) - np.maximum(begin, starts) <= most
        found.append(there)
    return np.concatenate(found)


def _cut(
    sensor: str,
    read: Sequence[ReadRecording],
    windows: Sequence[np.ndarray],
    window: float,
    kept: np.ndarray,
    present: np.ndarray,
) -> tuple[np.ndarray, str]:
    """Return the windows of a sensor that are kept, [N, C, steps, …], zero where it is absent; and a note."""
    signals = [one.signals.get(sensor) for one in read]
    some = [signal for signal in signals if signal is not None]
    inner = {(signal.values.shape[0], *signal.values.shape[2:]): list(signal.values.shape) for signal in some}
    if len(inner) > 1:
        raise BadInput(f"expected arrays that differ in time only, found {' and '.join(map(str, inner.values()))}")
    rate, note = _rate(some)
    steps = round(window * rate)
    if steps < 1:
        raise BadInput(f"expected a window with one sample at least, found {window:g} s at {rate:g} Hz")
    ((channels, *behind),) = inner
    kind = np.result_type(*{signal.values.dtype for signal in some})
    kind = np.dtype(np.float32) if kind.kind == "f" else kind
    shape = (int(kept.sum()), channels, steps, *behind)
    taken = kind.itemsize * math.prod(shape) + bytes_as_samples(shape, kind)
    if why := memory_problem(taken, of=f"a sensor in {shape[0]:,} windows"):
        raise BadInput(f"cut into windows, it {why}; take a longer stride")
    array = np.zeros(shape, kind)
    row = place = 0
    for signal, starts in zip(signals, windows, strict=True):
        chosen = kept[place : place + len(starts)]
        there = present[place : place + len(starts)][chosen]
        if signal is not None:
            rows, begins = row + np.flatnonzero(there), starts[chosen][there]
            for first in range(0, len(rows), AT_ONCE):
                now = slice(first, first + AT_ONCE)
                array[rows[now]] = _windows(signal, begins[now], window, steps, rate)
        row, place = row + len(there), place + len(starts)
    begins = sorted({signal.start for signal in some})
    ends = " to ".join(f"{start:g}" for start in dict.fromkeys((begins[0], begins[-1])))
    what = f"{steps} steps at {rate:g} Hz{note}" + (f", begins at {ends} s" if any(begins) else "")
    return (array if steps > 1 else array[:, :, 0]), what


def _rate(signals: Sequence[Signal]) -> tuple[float, str]:
    """Return the rate of all windows of a sensor: the most common one that is given, or that of the usual step."""
    given = Counter(signal.rate for signal in signals if signal.rate is not None)
    if not given:
        rate = 1 / float(np.median([signal.step for signal in signals]))
        return float(f"{rate:.3g}"), " by its times"
    rate = min(given, key=lambda one: (-given[one], one))
    others = [f"{one:g}" for one in sorted(given) if one != rate]
    return rate, f" (recordings at {', '.join(others)} Hz brought to that)" if others else ""


def _windows(signal: Signal, starts: np.ndarray, window: float, steps: int, rate: float) -> np.ndarray:
    """Return windows [W, C, steps, …]: the samples where the rate is theirs, else what is between or next to them."""
    times, values = signal.times, signal.values
    if signal.regular and signal.rate == rate:
        wanted = np.floor((starts - signal.start) * rate + 0.5)[:, None] + np.arange(steps)
        nearest = np.searchsorted(times, signal.start + (wanted - 0.5) / rate).clip(0, len(times) - 1)
        return np.moveaxis(values[:, nearest], 1, 0)
    grid = starts[:, None] + np.arange(steps) * (window / steps)
    right = np.searchsorted(times, grid).clip(min(1, len(times) - 1), len(times) - 1)
    left = np.maximum(right - 1, 0)
    weight = ((grid - times[left]) / np.maximum(times[right] - times[left], SAME)).clip(0, 1)
    if values.dtype.kind != "f" or values.ndim > 2:
        return np.moveaxis(values[:, np.where(weight > 0.5 + SAME, right, left)], 1, 0)
    return np.moveaxis(values[:, left] * (1 - weight) + values[:, right] * weight, 1, 0)
