"""A manifest of recordings: its rows are labelled intervals of long files, which are cut into windows.

A column `window` makes a manifest one of recordings; `stride`, `start` and `end`, NAME_rate, NAME_start, NAME_times and
NAME_axis go with it. Rows that name the same files belong to one recording.
"""

import difflib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from equipoise.data.own.columns import first_few, is_blank
from equipoise.data.own.npz import read_npy
from equipoise.data.own.recordings import Recording, seconds_of
from equipoise.data.own.samples import Samples, no_samples
from equipoise.data.own.stacked import BANDS, FRAMES, SIDE, SUFFIXES, most_common, read_all, sound_facts
from equipoise.data.own.table import COLUMNS, NUMBER, TableFile, answers_of, numbers_of, read_table
from equipoise.data.own.windows import Windows, cut_windows, no_windows, samples_of_recordings
from equipoise.util.errors import BadInput, Unreadable

TIMING = ("window", "stride", "start", "end")
TIMED = {**{kind: SUFFIXES[kind] for kind in ("sound", "video", "array")}, "table": (".csv", ".parquet")}
ENDINGS = tuple(ending for endings in TIMED.values() for ending in endings)
BESIDE = {"_rate": "rate", "_start": "start", "_times": "times", "_axis": "last axis"}
"""Endings of columns that say something of a sensor, and what."""
TIMES = ("time", "times", "timestamp", "t", "seconds")
AT_ONCE = 6000  # frames of a spectrogram: a minute


def samples_of_recorded(manifest: TableFile) -> Samples:
    """Read the recordings of a manifest and cut them into windows, with everything that is wrong with them."""
    recordings, how, space, problems = _read_recordings(manifest)
    if problems:  # what else is wrong with the recordings would follow from that
        return no_samples(manifest.path.name, problems, manifest.notes)
    several = [name.removeprefix("label:") for name in manifest.columns if name.startswith("label:")]
    more: dict[str, Any] = {"name": manifest.path.name, "notes": manifest.notes, "classes": several or None}
    return samples_of_recordings(recordings, **how, **more, space=space)


def windows_of_recorded(manifest: TableFile) -> Windows:
    """Read the recordings of a manifest and cut them into windows, those without any label too."""
    recordings, how, _, problems = _read_recordings(manifest, unlabelled=True)
    return no_windows(problems) if problems else cut_windows(recordings, **how, unlabelled=True)


def _read_recordings(
    manifest: TableFile, *, unlabelled: bool = False
) -> tuple[list[Recording], dict[str, Any], list[str], list[str]]:
    """Return the recordings of a manifest, the way they are cut, sensors without a time axis, and what is wrong."""
    columns, problems = dict(manifest.columns), list(manifest.problems)
    window, stride = (_only(name, columns, problems) for name in ("window", "stride"))
    try:
        long = seconds_of(window, "window")
    except BadInput:  # said again where windows are cut
        long = 1.0
    marks = [name for name in columns if _is_beside(name, columns, problems)]
    told = {name: columns.pop(name) for name in marks if name in columns}
    told = {name: values for name, values in told.items() if _owner(name) in _sensors(columns)}
    space = _space(told, problems)
    kinds = _kinds(columns, problems)
    first_rows, recording_of = _joined(manifest, columns, kinds, told, problems)
    signals, rates, times, starts = _read_files(manifest, columns, kinds, told, first_rows, long, problems)
    _join_labels(manifest, kinds, (signals, rates, times, starts), first_rows, problems)
    answered = not any(map(_is_label, kinds)) and not (unlabelled and not any(map(_is_label, columns)))
    intervals = _intervals(manifest, columns, recording_of, problems) if answered else {}
    groups = answers_of("group", columns["group"]) if "group" in columns else None
    recordings = [
        Recording(
            {name: values[number] for name, values in signals.items()},
            intervals.get(number, ()),
            {name: values[number] for name, values in rates.items() if values[number] is not None},
            {name: values[number] for name, values in times.items() if values[number] is not None},
            group=None if groups is None else groups[row],
            part=str(columns["split"][row]) if "split" in columns else None,
            name=manifest.names[row] if manifest.named else _first_file(columns, kinds, row),
            starts={name: values[number] for name, values in starts.items() if values[number] is not None},
        )
        for number, row in enumerate(first_rows)
    ]
    pictures = [name for name, kind in kinds.items() if kind == "sound"]
    return recordings, {"window": window, "stride": stride, "pictures": pictures}, space, problems


def _first_file(columns: Mapping[str, Any], kinds: Mapping[str, str], row: int) -> str:
    """Return the file of the first sensor that a recording has, by which it is called where it has no `id`."""
    files = (_column(columns, name)[row] for name in kinds if not _is_label(name))
    return next((str(file) for file in files if not is_blank(file)), "")


def _is_label(name: str) -> bool:
    return name == "label" or name.startswith("label:")


def _is_beside(name: str, columns: Mapping[str, Any], problems: list[str]) -> bool:
    """Return whether a column says something of a sensor; of one that is not there, if no files are in it."""
    ending = next((one for one in BESIDE if name.endswith(one)), None)
    if ending is None:
        return False
    sensors = _sensors(columns) - {*COLUMNS[1:], *TIMING}
    if (of := name.removesuffix(ending)) in sensors:
        return True
    files = [value for value in columns[name] if isinstance(value, str) and Path(value).suffix.lower() in ENDINGS]
    near = difflib.get_close_matches(of, sensors - {name}, n=1)
    if files and not (near and ending == "_times"):  # a sensor of that name
        return False
    hint = f"did you mean {near[0]}{ending}?" if near else "rename it, or begin its name with _ to leave it out"
    problems.append(f"column {name}: expected the {BESIDE[ending]} of a sensor, found no column {of}; {hint}")
    return True


def _owner(name: str) -> str:
    return next((name.removesuffix(ending) for ending in BESIDE if name.endswith(ending)), name)


def _space(told: dict[str, Any], problems: list[str]) -> list[str]:
    """Take the columns that say what the last axis of a sensor is; return the sensors for which it is not time."""
    space = []
    for name in [name for name in told if name.endswith("_axis")]:
        words = sorted({str(value) for value in told.pop(name) if not is_blank(value)})
        if words == ["space"]:
            space.append(_owner(name))
        elif words not in (["time"], []):
            found = ", ".join(map(repr, words[:5]))
            problems.append(f"column {name}: expected the word time or the word space in all rows, found {found}")
    return space


def _sensors(columns: Mapping[str, Any]) -> set[str]:
    return {header.partition(":")[0] for header in columns}


def _only(name: str, columns: dict[str, Any], problems: list[str]) -> Any:
    """Take a column off the table that says the same in every row, or in one; None where there is none."""
    if name not in columns:
        return None
    values = sorted({str(value) for value in columns.pop(name) if not is_blank(value)})
    if len(values) != 1:
        found = ", ".join(values[:5]) or "none"
        problems.append(f"column {name}: expected one duration for all rows, such as 2s, found {found}")
        return "1s"
    return values[0]


def _kinds(columns: Mapping[str, Any], problems: list[str]) -> dict[str, str]:
    """Return the kind of file of each sensor, and of the label where that is a file."""
    kinds = {}
    for header, values in columns.items():
        name, colon, kind = header.partition(":")
        if header in TIMING or (header in COLUMNS and header != "label"):
            continue
        texts = [value for value in values if isinstance(value, str) and value]
        suffixes = {"numbers" if NUMBER.fullmatch(value) else Path(value).suffix.lower() for value in texts}
        fitting = [known for known, endings in TIMED.items() if suffixes and suffixes <= {*endings}]
        if name == "label":  # one label, or several, as files or as values
            if suffixes and suffixes <= {*TIMED["array"], *TIMED["table"]}:
                kinds[header] = fitting[0] if fitting else "table"
        elif colon and kind in TIMED:
            kinds[name] = kind
        elif colon:
            problems.append(f"column {header}: expected one of {', '.join(TIMED)} after the colon, found {kind!r}")
        elif fitting:
            kinds[name] = fitting[0]
        else:
            found = ", ".join(sorted(suffixes)[:5]) or "no paths"
            if numbers_of(values) is not None:
                found = f"numbers; if it says something of a sensor, call it SENSOR{', SENSOR'.join(BESIDE)}"
            known = ", ".join(ENDINGS)
            problems.append(f"column {header}: expected files of one kind that have a time, {known}; found {found}")
    labels, files = list(filter(_is_label, columns)), list(filter(_is_label, kinds))
    if files and ("label" in labels or len(files) < len(labels)) and len(labels) > 1:
        expected = "expected files in all columns label:NAME, or values in all, and no column label beside them"
        problems.append(f"columns {', '.join(labels)}: {expected}, found files in {', '.join(files)}")
    if not {*kinds} - {*files} and not problems:
        problems.append("expected a column of files per sensor beside label, start, end, window and stride, found none")
    return kinds


def _column(columns: Mapping[str, Any], name: str) -> Any:
    if name in columns:
        return columns[name]
    return next(values for header, values in columns.items() if header.partition(":")[0] == name)


def _join_labels(
    manifest: TableFile,
    kinds: Mapping[str, str],
    read: tuple[dict[str, list[Any]], ...],
    rows: Sequence[int],
    problems: list[str],
) -> None:
    """Make one signal called label, [D, T], of the files of several columns label:NAME, which share their times."""
    several = [name for name in kinds if name.startswith("label:")]
    if not several:
        return
    signals, *beside = ({name: one.pop(name) for name in several} for one in read)
    times = beside[1]
    joined = []
    for number, row in enumerate(rows):
        own = [signals[name][number] for name in several]
        clocks = [times[name][number] for name in several]
        if any(one is None for one in own):
            joined.append(None)
            if any(one is not None for one in own):
                problems.append(f"label, {manifest.names[row]}: expected a file in each of {', '.join(several)}")
            continue
        own = [np.atleast_2d(one) for one in own]
        alike = all((one is None) == (clocks[0] is None) and np.array_equal(one, clocks[0]) for one in clocks[1:])
        if not alike or any(one.ndim != 2 or one.shape != (1, own[0].shape[-1]) for one in own):
            found = ", ".join(f"{name} {list(one.shape)}" for name, one in zip(several, own, strict=True))
            expected = "expected files with one number per step [T], all at the same times"
            problems.append(f"label, {manifest.names[row]}: {expected}, found {found}")
            joined.append(None)
            continue
        joined.append(np.concatenate(own))
    for into, column in zip(read, (joined, *(one[several[0]] for one in beside)), strict=True):
        into["label"] = column


def _joined(
    manifest: TableFile,
    columns: Mapping[str, Any],
    kinds: Mapping[str, str],
    told: Mapping[str, Any],
    problems: list[str],
) -> tuple[list[int], list[int]]:
    """Return the first row of each recording, and the recording of each row: those that name the same files."""
    files = [tuple(str(_column(columns, name)[row] or "") for name in kinds) for row in range(len(manifest.names))]
    places = {each: number for number, each in enumerate(dict.fromkeys(files))}
    recording_of = [places[each] for each in files]
    first_rows = [recording_of.index(number) for number in range(len(places))]
    alike = {name: columns[name] for name in ("group", "split") if name in columns} | dict(told)
    for name, values in alike.items():
        differing = [
            row for row, number in enumerate(recording_of) if str(values[row]) != str(values[first_rows[number]])
        ]
        if differing:
            rows = first_few(differing, manifest.names)
            problems.append(f"column {name}: expected one value for the rows of a recording, found another in {rows}")
    owner: dict[tuple[str, str], int] = {}
    for each, number in places.items():
        for name, file in zip(kinds, each, strict=True):
            if file and owner.setdefault((name, file), number) != number:
                row = manifest.names[first_rows[number]]
                problems.append(f"{name}, {row}: expected a file of one recording, found {file} beside other files too")
    return first_rows, recording_of


def _intervals(
    manifest: TableFile, columns: Mapping[str, Any], recording_of: Sequence[int], problems: list[str]
) -> dict[int, list[tuple[float, float, Any]]]:
    """Return the labelled intervals of each recording; a row without start and end is all of it."""
    count = len(manifest.names)
    bounds = []
    for name, outside in (("start", -np.inf), ("end", np.inf)):
        values = numbers_of(columns[name]) if name in columns else np.full(count, np.nan)
        if values is None:
            problems.append(f"column {name}: expected seconds from the beginning of the recording, found text")
            return {}
        bounds.append(np.where(np.isnan(values), outside, values))
    labels = list(filter(_is_label, columns))
    if not labels:
        problems.append("label: expected the label of each interval, found no column called label")
        return {}
    answers = [answers_of("label", columns[name]) for name in labels]
    found: dict[int, list[tuple[float, float, Any]]] = {}
    for row, number in enumerate(recording_of):
        values = [column[row].item() if hasattr(column[row], "item") else column[row] for column in answers]
        if not any(map(is_blank, values)):
            value = values[0] if labels == ["label"] else values
            found.setdefault(number, []).append((float(bounds[0][row]), float(bounds[1][row]), value))
    return found


# -- files --


def _read_files(
    manifest: TableFile,
    columns: Mapping[str, Any],
    kinds: Mapping[str, str],
    told: Mapping[str, Any],
    rows: Sequence[int],
    window: float,
    problems: list[str],
) -> tuple[dict[str, list[Any]], ...]:
    """Return signals, rates, times and starts of each sensor, a value per recording; None where there is none."""
    folder = manifest.path.parent
    signals: dict[str, list[Any]] = {}
    rates: dict[str, list[Any]] = {}
    times: dict[str, list[Any]] = {}
    starts: dict[str, list[Any]] = {}

    def read(name: str, values: Any, reader: Callable[[Path], Any]) -> list[Any]:
        there = [place for place, row in enumerate(rows) if not is_blank(values[row])]
        paths = [folder / str(values[rows[place]]) for place in there]
        found, failures = read_all(reader, paths, f"reading {name}")
        problems.extend(f"{name}, {manifest.names[rows[there[at]]]}: {why}" for at, why in sorted(failures.items()))
        whole: list[Any] = [None] * len(rows)
        for place, value in zip(there, found, strict=True):
            whole[place] = value
        return whole

    for name, kind in kinds.items():
        values = _column(columns, name)
        reader: Callable[[Path], Any] = read_npy
        if kind == "sound":
            facts = [fact for fact in read(name, values, sound_facts) if fact is not None]
            reader = _sound_reader(most_common([rate for rate, _ in facts]) if facts else 16_000)
        elif kind != "array":
            reader = _read_series if kind == "table" else _video_reader(window)
        found = read(name, values, reader)
        triples = [one if isinstance(one, tuple) else (one, None, None) for one in found]
        signals[name], rates[name], times[name] = (list(column) for column in zip(*triples, strict=True))
        owner = "label" if _is_label(name) else name
        starts[name] = [None] * len(rows)
        for ending, into, unit in (("_rate", rates, "samples per second"), ("_start", starts, "seconds")):
            if (header := f"{owner}{ending}") not in told or all(map(is_blank, told[header])):
                continue
            numbers = numbers_of(told[header])
            if numbers is None:
                problems.append(f"column {header}: expected {unit}, found text")
            else:
                into[name] = [None if np.isnan(numbers[row]) else float(numbers[row]) for row in rows]
        if kind == "video":  # whose frames have times, counted from its beginning
            pairs = zip(times[name], starts[name], strict=True)
            times[name] = [own if own is None or start is None else own + start for own, start in pairs]
            starts[name] = [None] * len(rows)
        if f"{owner}_times" in told:
            times[name] = read(f"{owner}_times", told[f"{owner}_times"], read_npy)
    return signals, rates, times, starts


def _read_series(path: Path) -> tuple[np.ndarray, None, np.ndarray | None]:
    """Read a table of numbers, a row per step: a column of times, where there is one, and the channels."""
    columns = read_table(path).columns
    numbers = {name: numbers_of(values) for name, values in columns.items()}
    if text := [name for name, values in numbers.items() if values is None]:
        raise Unreadable(f"{path}: expected columns of numbers, found others in {', '.join(text[:5])}")
    time = next((name for name in numbers if name.lower() in TIMES), None)
    times = None if time is None else numbers.pop(time)
    if not numbers:
        raise Unreadable(f"{path}: expected columns of numbers beside the time, found none")
    return np.stack([np.asarray(values, np.float64) for values in numbers.values()]), None, times


def _sound_reader(rate: int) -> Callable[[Path], tuple[np.ndarray, float, None]]:
    def read(path: Path) -> tuple[np.ndarray, float, None]:
        from equipoise.media.sound import read_sound
        from equipoise.media.spectrogram import FRAME_SECONDS, SHIFT_SECONDS, fbank

        wave = torch.from_numpy(read_sound(path, rate)[0])
        frame, shift = int(rate * FRAME_SECONDS), int(rate * SHIFT_SECONDS)
        count = (len(wave) - frame) // shift + 1
        if count < 1:
            raise Unreadable(f"{path}: expected a sound of {FRAME_SECONDS} s at least")
        pieces = [
            fbank(wave[first * shift : (min(first + AT_ONCE, count) - 1) * shift + frame], rate, BANDS)
            for first in range(0, count, AT_ONCE)
        ]
        return torch.cat(pieces).T.numpy(), rate / shift, None

    return read


def _video_reader(window: float) -> Callable[[Path], tuple[np.ndarray, float, np.ndarray]]:
    def read(path: Path) -> tuple[np.ndarray, float, np.ndarray]:
        from equipoise.media.video import read_timed_frames

        frames, times = read_timed_frames(path, FRAMES / window, SIDE)
        return np.moveaxis(frames, 1, 0), FRAMES / window, times

    return read
