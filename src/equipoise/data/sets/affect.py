"""The pickles in which the field passes UR-FUNNY and CMU-MOSEI around, read without running them.

One dictionary with `train`, `valid` and `test`; each has an array [N, T, D] per modality, `labels` and `id`. Samples
are padded with zeros in front.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import numpy as np

from equipoise.data.own.unpickle import load_pickle
from equipoise.data.prepare.original import Clip, Clips
from equipoise.data.sets.lists import some
from equipoise.util.errors import Unreadable
from equipoise.util.files import reading

PART_OF = {"train": "train", "valid": "validation", "test": "test"}

Sample = dict[str, np.ndarray]
Cut = Callable[[Sample], Sample]


@final
@dataclass(frozen=True)
class Split:
    """One split of such a pickle.

    Args:
        arrays: Per modality [N, T, D].
        labels: The first column of the labels, [N].
        keys: What the publisher calls each sample, as it is written there: a number, a text, or several of them.
    """

    arrays: dict[str, np.ndarray]
    labels: np.ndarray
    keys: tuple[tuple[str, ...], ...]


@final
class SplitClips(Clips):
    """The samples of all splits of one pickle, one split after the other.

    Args:
        path: Of the pickle, for messages.
        splits: By the pickle's names.
        clip: Makes a clip out of the split's name, the key of a sample and its label; None leaves the sample out.
        cut: Takes the padding off a sample, or raises Unreadable with the reason why it cannot be used.
    """

    def __init__(
        self,
        path: Path,
        splits: Mapping[str, Split],
        clip: Callable[[str, tuple[str, ...], float], Clip | None],
        cut: Cut,
    ) -> None:
        self._path, self._splits, self._cut = path, dict(splits), cut
        listed, self._rows = [], []
        for name, split in splits.items():
            for row, key in enumerate(split.keys):
                made = clip(name, key, float(split.labels[row]))
                if made is not None:
                    listed.append(made)
                    self._rows.append((name, row))
        self.listed = listed

    def read(self, number: int) -> Sample:
        """One sample without its padding, as float32."""
        name, row = self._rows[number]
        sample = {modality: np.asarray(array[row]) for modality, array in self._splits[name].arrays.items()}
        try:
            return finite(self._cut(without_silence(sample)))
        except Unreadable as problem:
            raise Unreadable(f"{self._path}, {name}, row {row}: {problem}") from None


def read_pickle(path: Path) -> Any:
    """What a pickle holds, if that is numbers, texts and plain containers.

    Raises:
        Unreadable: If the file is missing or broken, or holds anything that would have to be run.
    """
    with reading(path):
        return load_pickle(path)


def read_splits(path: Path, shapes: Mapping[str, tuple[int, int]], problems: list[str]) -> dict[str, Split]:
    """The three splits of a pickle; none where something is wrong.

    Args:
        path: Of the pickle.
        shapes: Per modality the longest time there may be, and the width of a step.
        problems: Where everything that is wrong is added.
    """
    try:
        content = read_pickle(path)
    except Unreadable as problem:
        problems.append(str(problem))
        return {}
    found = list(_problems_of(content, shapes))
    splits = {} if found else {name: _split(content[name], shapes) for name in PART_OF}
    found += shared_keys({name: split.keys for name, split in splits.items()})
    problems += [f"{path.name}: {each}" for each in found]
    return {} if found else splits


def shared_keys(keys: Mapping[str, Iterable[tuple[str, ...]]]) -> Iterator[str]:
    """What is wrong with keys that should name one sample each."""
    seen: dict[tuple[str, ...], str] = {}
    twice: dict[tuple[str, str], list[str]] = {}
    for name, several in keys.items():
        for key in several:
            if key in seen:
                twice.setdefault((seen[key], name), []).append(" ".join(key))
            seen[key] = name
    for (one, other), found in twice.items():
        where = f"twice in {one}" if one == other else f"in {one} and in {other}"
        yield f"expected every id once, found {len(found)} {where}: {some(found)}"


def cut_together(sample: Sample) -> Sample:
    """An aligned sample from its first word on, in every modality.

    Raises:
        Unreadable: If it has no words: the loaders of AGM and MultiBench drop these, by the sum of the text.
    """
    text = sample["text"]
    if text.sum() == 0:
        raise Unreadable("the text sums to 0, so there is no word to start at")
    start = int(text.any(axis=1).argmax())
    return {modality: array[start:] for modality, array in sample.items()}


def cut_apart(sample: Sample) -> Sample:
    """A sample whose modalities have a time each: rows of zeros are taken off both ends, all but one.

    Raises:
        Unreadable: If it has no words.
    """
    if sample["text"].sum() == 0:
        raise Unreadable("the text sums to 0, so there is no word to start at")
    return {modality: _trimmed(array) for modality, array in sample.items()}


def without_silence(sample: Sample) -> Sample:
    """The features of sound are logarithms of it, and silence is −∞ there: as 0, as the field has it."""
    return {**sample, "audio": np.where(np.isneginf(sample["audio"]), 0, sample["audio"])}


def finite(sample: Sample) -> Sample:
    """The sample as float32.

    Raises:
        Unreadable: If a number is none, or too large.
    """
    with np.errstate(over="ignore"):  # said below, with the modality's name
        found = {modality: np.ascontiguousarray(array, dtype=np.float32) for modality, array in sample.items()}
    bad = [modality for modality, array in found.items() if not np.isfinite(array).all()]
    if bad:
        raise Unreadable(f"expected finite numbers, found NaN or infinity in {', '.join(bad)}")
    return found


def _trimmed(array: np.ndarray) -> np.ndarray:
    real = np.flatnonzero(array.any(axis=1))
    return array[real[0] : real[-1] + 1] if len(real) else array[:1]


def _problems_of(content: Any, shapes: Mapping[str, tuple[int, int]]) -> Iterator[str]:
    if not isinstance(content, dict):
        yield f"expected a dictionary of {', '.join(PART_OF)}; found {_kind(content)}"
        return
    for name in PART_OF:
        split = content.get(name)
        if not isinstance(split, dict):
            found = "nothing" if name not in content else _kind(split)
            yield f"{name}: expected a dictionary of {', '.join([*shapes, 'labels', 'id'])}; found {found}"
            continue
        missing = [key for key in (*shapes, "labels", "id") if key not in split]
        if missing:
            yield f"{name}: expected {', '.join(missing)} too, found only {some(list(map(str, split)))}"
        for modality, (steps, width) in shapes.items():
            array = split.get(modality)
            if modality not in split or _fits(array, steps, width):
                continue
            yield f"{name}, {modality}: expected numbers [N, up to {steps}, {width}], found {_kind(array)}"
        present = (key for key in (*shapes, "labels", "id") if key in split)
        counts = {key: len(split[key]) for key in present if hasattr(split[key], "__len__")}
        if len(set(counts.values())) > 1:
            yield f"{name}: expected as many samples everywhere, found {_listed(counts)}"
        elif "labels" in split and not _are_numbers(split["labels"]):
            yield f"{name}, labels: expected finite numbers, found {_kind(split['labels'])} with others among them"


def _fits(array: Any, steps: int, width: int) -> bool:
    if not isinstance(array, np.ndarray) or array.dtype.kind not in "fiu" or array.ndim != 3:
        return False
    return array.shape[1] <= steps and array.shape[2] == width


def _are_numbers(labels: Any) -> bool:
    try:
        return bool(np.isfinite(_first_column(labels)).all())
    except (TypeError, ValueError):
        return False


def _first_column(labels: Any) -> np.ndarray:
    found = np.asarray(labels, dtype=np.float64)
    return found.reshape(len(found), -1)[:, 0]


def _split(content: dict[str, Any], shapes: Mapping[str, tuple[int, int]]) -> Split:
    keys = tuple(_key(each) for each in content["id"])
    return Split({modality: content[modality] for modality in shapes}, _first_column(content["labels"]), keys)


def _key(written: Any) -> tuple[str, ...]:
    several = np.asarray(written, dtype=object).reshape(-1).tolist()
    return tuple(map(plain, several))


def plain(name: Any) -> str:
    """An id as text: bytes are decoded, and 21.0 is 21."""
    if isinstance(name, bytes):
        return name.decode("utf-8", "replace")
    if isinstance(name, (float, np.floating)) and float(name).is_integer():
        return str(int(name))
    return str(name)


def _kind(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return f"{value.dtype} {list(value.shape)}"
    return type(value).__name__


def _listed(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {key}" for key, count in counts.items())
