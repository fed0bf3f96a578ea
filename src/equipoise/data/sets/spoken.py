"""Sentences and mel spectrograms in pickles of their own per split, as the MOSEI_UMONS project lays them out."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, final

import numpy as np

from equipoise.data.prepare.original import Clip, Clips
from equipoise.data.sets.affect import PART_OF, finite, plain, read_pickle, shared_keys
from equipoise.data.sets.lists import some
from equipoise.data.sets.words import words_of
from equipoise.util.errors import Unreadable

KINDS = ("sentences", "mels", "sentiment")

Content = Mapping[str, Mapping[str, Mapping[Any, Any]]]
"""By split, by kind, by key."""


class Lengths(NamedTuple):
    """What a sample is cut to, and how wide its steps are."""

    words: int
    frames: int
    mels: int
    vector: int


@final
class SpokenClips(Clips):
    """Sentences as numbers or vectors, with the spectrogram they were said in.

    A key that one of the files does not know is listed all the same, and read as unreadable: it shows up as skipped.

    Args:
        source: The folder, for messages.
        content: What the files hold.
        clip: Makes a clip out of the split's name, the key and the sentiment; None leaves the sample out.
        lengths: What a sample is cut to.
        words: Turns words into what is stored.
    """

    def __init__(
        self,
        source: Path,
        content: Content,
        clip: Callable[[str, tuple[str, ...], float], Clip | None],
        lengths: Lengths,
        words: Callable[[list[str]], np.ndarray],
    ) -> None:
        self._source, self._content, self._lengths, self._words = source, content, lengths, words
        listed: list[Clip] = []
        self._keys: list[tuple[str, Any]] = []
        for split, kinds in content.items():
            for key in keys_of(kinds):
                sentiment = kinds["sentiment"].get(key, -1)  # read() refuses it where there is none
                made = clip(split, (plain(key),), _sentiment(sentiment))
                if made is not None:
                    listed.append(made)
                    self._keys.append((split, key))
        self.listed = listed

    def read(self, number: int) -> dict[str, np.ndarray]:
        """The words and frames of a sentence, the first so many."""
        split, key = self._keys[number]
        kinds, lengths = self._content[split], self._lengths
        try:
            if missing := [f"{split}_{kind}.p" for kind in KINDS if key not in kinds[kind]]:
                raise Unreadable(f"expected it in every file, found none in {', '.join(missing)}")
            mels = np.asarray(kinds["mels"][key])
            if mels.ndim != 2 or mels.shape[1] != lengths.mels or not len(mels) or mels.dtype.kind not in "fiu":
                raise Unreadable(f"expected mels [T, {lengths.mels}], found {mels.dtype} {list(mels.shape)}")
            audio = finite({"audio": mels[: lengths.frames]})["audio"]
            return {"text": self._words(words_of(kinds["sentences"][key])[: lengths.words]), "audio": audio}
        except Unreadable as problem:
            raise Unreadable(f"{self._source}, {split}, id {plain(key)}: {problem}") from None


def read_spoken(source: Path, problems: list[str]) -> Content:
    """What the nine files of a folder hold; nothing where something is wrong.

    Args:
        source: The folder.
        problems: Where everything that is wrong is added.
    """
    content: dict[str, dict[str, Any]] = {split: {} for split in PART_OF}
    found = []
    for split, kinds in content.items():
        for kind in KINDS:
            try:
                kinds[kind] = read_pickle(source / f"{split}_{kind}.p")
            except Unreadable as problem:
                found.append(str(problem))
    found += _problems_of(content)
    problems += found
    return {} if found else content


def keys_of(kinds: Mapping[str, Mapping[Any, Any]]) -> list[Any]:
    """Every key that any of the files knows, in the order of the first that does."""
    return list(dict.fromkeys(key for kind in KINDS for key in kinds[kind]))


def _problems_of(content: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    whole = True
    for split, kinds in content.items():
        for kind, values in kinds.items():
            if not isinstance(values, dict):
                whole = False
                yield f"{split}_{kind}.p: expected a dictionary by id, found {type(values).__name__}"
            elif odd := [plain(key) for key, value in values.items() if not _IS[kind](value)]:
                what = {"sentences": "words", "sentiment": "a finite number"}[kind]
                yield f"{split}_{kind}.p: expected {what} for each id, found something else for {some(odd)}"
        whole = whole and len(kinds) == len(KINDS)
    if whole:
        yield from shared_keys({split: [(plain(key),) for key in keys_of(kinds)] for split, kinds in content.items()})


def _is_said(sentence: Any) -> bool:
    try:
        words_of(sentence)
    except Unreadable:
        return False
    return True


_IS: dict[str, Callable[[Any], bool]] = {
    "sentences": _is_said,
    "mels": lambda _: True,  # looked at one by one, as they are read
    "sentiment": lambda value: bool(np.isfinite(_sentiment(value))),
}


def _sentiment(value: Any) -> float:
    try:
        return float(np.asarray(value, dtype=np.float64).reshape(-1)[0])
    except (TypeError, ValueError, IndexError):
        return float("nan")
