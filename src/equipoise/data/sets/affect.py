"""The pickles in which UR-FUNNY and CMU-MOSEI are passed around, read without running them.

Most are one dictionary with `train`, `valid` and `test`; each has an array [N, T, D] per modality, `labels` and `id`.
Samples are padded with zeros in front.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from equipoise.data.own.unpickle import load_pickle
from equipoise.data.prepare.original import Clip, DecodedClips, Problems, some
from equipoise.util.errors import Unreadable
from equipoise.util.files import reading
from equipoise.util.processes import memory_problem

PART_OF = {"train": "train", "valid": "validation", "test": "test"}

Sample = dict[str, np.ndarray]
Shapes = Mapping[str, tuple[int, int]]
Classes = tuple[str, ...]
Trim = Callable[[Sample], Sample]
ClipOf = Callable[[str, tuple[str, ...], float], Clip | None]
# Makes a clip out of the name of a split, the key of a sample and its label; None leaves the sample out.


def pickled_clips(
    entries: Iterable[tuple[Clip | None, Any]],
    describe: Callable[[Any], str],
    sample: Callable[[Any], Sample],
    classes: Classes,
) -> DecodedClips:
    """Return the clips of samples out of pickles that are in memory.

    Args:
        entries: A clip, or None to leave it out, and the place of its sample.
        describe: Names a place in messages.
        sample: Makes the arrays of a place, or raises Unreadable with the reason why they cannot be used.
        classes: Names of the classes.
    """
    kept = [(clip, place) for clip, place in entries if clip is not None]

    def read(number: int) -> Sample:
        place = kept[number][1]
        try:
            return sample(place)
        except Unreadable as problem:
            raise Unreadable(f"{describe(place)}: {problem}") from None

    return DecodedClips([clip for clip, _ in kept], read, classes)


def read_pickles(paths: Mapping[str, Path], problems: Problems) -> dict[str, Any]:
    """Read pickles of numbers, texts and plain containers; those that hold anything else are problems."""
    content = {}
    for name, path in paths.items():
        try:
            with reading(path), path.open("rb") as file:
                if why := memory_problem(path.stat().st_size, of=path.name):
                    raise Unreadable(f"{path}: {why}")
                content[name] = load_pickle(file)
        except Unreadable as problem:
            problems.append(str(problem))
    return content


def find_splits(
    path: Path, shapes: Shapes, clip: ClipOf, trim: Trim, classes: Classes, problems: Problems
) -> DecodedClips | None:
    """Read a pickle of three splits.

    Args:
        path: Of the pickle.
        shapes: Per modality the longest time there may be, and the width of a step.
        clip: Makes a clip.
        trim: Takes the padding off a sample, or raises Unreadable with the reason why it cannot be used.
        classes: Names of the classes.
        problems: Where everything that is wrong is added.
    """
    content: Any = read_pickles({"": path}, problems).get("")
    if not problems:
        problems += [f"{path.name}: {problem}" for problem in _split_problems(content, shapes)]
    if problems:
        return None
    keys = {name: [_key(written) for written in content[name]["id"]] for name in PART_OF}
    problems += [f"{path.name}: {problem}" for problem in shared_keys(keys)]
    labels = {name: _first_column(content[name]["labels"]).tolist() for name in PART_OF}
    places = [(name, row) for name in PART_OF for row in range(len(keys[name]))]

    def sample(place: tuple[str, int]) -> Sample:
        name, row = place
        return finite(trim(without_silence({part: np.asarray(content[name][part][row]) for part in shapes})))

    entries = ((clip(name, keys[name][row], labels[name][row]), (name, row)) for name, row in places)
    return pickled_clips(entries, lambda place: f"{path}, {place[0]}, row {place[1]}", sample, classes)


def shared_keys(keys: Mapping[str, Iterable[tuple[str, ...]]]) -> Iterator[str]:
    """Yield what is wrong with keys that should name one sample each."""
    seen: dict[tuple[str, ...], str] = {}
    twice: dict[tuple[str, str], list[str]] = {}
    for name, several in keys.items():
        for key in several:
            if key in seen:
                twice.setdefault((seen[key], name), []).append(" ".join(key))
            seen[key] = name
    for (one, other), again in twice.items():
        where = f"twice in {one}" if one == other else f"in {one} and in {other}"
        yield f"expected every id once, found {len(again)} {where}: {some(again)}"


def trim_together(sample: Sample) -> Sample:
    """Cut an aligned sample to what follows from its first word on, in every modality.

    Raises:
        Unreadable: If it has no words: the loaders of AGM and MultiBench drop these, by the sum of the text.
    """
    text = sample["text"]
    if text.sum() == 0:
        raise Unreadable("the text sums to 0, so there is no word to start at")
    start = int(text.any(axis=1).argmax())
    return {modality: array[start:] for modality, array in sample.items()}


def trim_apart(sample: Sample) -> Sample:
    """Take rows of zeros, all but one, off both ends of each modality of a sample that is not aligned.

    Raises:
        Unreadable: If it has no words.
    """
    trim_together(sample)
    trimmed = {}
    for modality, array in sample.items():
        rows = np.flatnonzero(array.any(axis=1))
        trimmed[modality] = array[rows[0] : rows[-1] + 1] if len(rows) else array[:1]
    return trimmed


def without_silence(sample: Sample) -> Sample:
    """Set silence to 0, as others do: the features of sound are logarithms, and it is −∞ there."""
    return {**sample, "audio": np.where(np.isneginf(sample["audio"]), 0, sample["audio"])}


def finite(sample: Sample) -> Sample:
    """Return the sample as float32.

    Raises:
        Unreadable: If a number is none, or too large.
    """
    with np.errstate(over="ignore"):  # said below, with the modality's name
        sample = {modality: np.ascontiguousarray(array, dtype=np.float32) for modality, array in sample.items()}
    if bad := [modality for modality, array in sample.items() if not np.isfinite(array).all()]:
        raise Unreadable(f"expected finite numbers, found NaN or infinity in {', '.join(bad)}")
    return sample


def first_number(value: Any) -> float:
    """Return the first number of a label, however it is wrapped; NaN where there is none."""
    try:
        return float(np.asarray(value, dtype=np.float64).reshape(-1)[0])
    except (TypeError, ValueError, IndexError):
        return float("nan")


def as_text(name: Any) -> str:
    """Return an id as text: bytes are decoded, and 21.0 is 21."""
    if isinstance(name, bytes):
        return name.decode("utf-8", "replace")
    if isinstance(name, (float, np.floating)) and float(name).is_integer():
        return str(int(name))
    return str(name)


def _split_problems(content: Any, shapes: Shapes) -> Iterator[str]:
    if not isinstance(content, dict):
        yield f"expected a dictionary of {', '.join(PART_OF)}; found {_kind(content)}"
        return
    keys = [*shapes, "labels", "id"]
    for name in PART_OF:
        split = content.get(name)
        if not isinstance(split, dict):
            kind = _kind(split) if name in content else "nothing"
            yield f"{name}: expected a dictionary of {', '.join(keys)}; found {kind}"
            continue
        if missing := [key for key in keys if key not in split]:
            yield f"{name}: expected {', '.join(missing)} too, found only {some(list(map(str, split)))}"
        for modality, (steps, width) in shapes.items():
            array = split.get(modality)
            numbers = isinstance(array, np.ndarray) and array.dtype.kind in "fiu" and array.ndim == 3
            if modality in split and not (numbers and array.shape[1] <= steps and array.shape[2] == width):
                yield f"{name}, {modality}: expected numbers [N, up to {steps}, {width}], found {_kind(array)}"
        counts = {key: len(split[key]) for key in keys if hasattr(split.get(key), "__len__")}
        if len(set(counts.values())) > 1:
            listed = ", ".join(f"{count} {key}" for key, count in counts.items())
            yield f"{name}: expected as many samples everywhere, found {listed}"
        elif "labels" in split and not np.isfinite(_first_column(split["labels"])).all():
            yield f"{name}, labels: expected finite numbers, found {_kind(split['labels'])} with others among them"


def _first_column(labels: Any) -> np.ndarray:
    """Return the first number of each row; NaN where they are no numbers."""
    try:
        numbers = np.asarray(labels, dtype=np.float64)
        return numbers.reshape(len(numbers), -1)[:, 0]
    except (TypeError, ValueError):
        return np.array([np.nan])


def _key(written: Any) -> tuple[str, ...]:
    return tuple(map(as_text, np.asarray(written, dtype=object).reshape(-1).tolist()))


def _kind(value: Any) -> str:
    return f"{value.dtype} {list(value.shape)}" if isinstance(value, np.ndarray) else type(value).__name__
