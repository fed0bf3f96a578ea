"""UR-FUNNY: is the audience about to laugh? Face, voice and words of TED talks, aligned word by word.

Hasan et al., "UR-FUNNY: A Multimodal Language Dataset for Understanding Humor" (EMNLP 2019). Two layouts are read: the
one pickle that MultiBench made of it and AGM trains on, and the publisher's own six.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, final

import numpy as np

from equipoise.data.prepare.original import Clip, Clips, Field, InMemory, Original, Protocol
from equipoise.data.sets.affect import (
    PART_OF,
    SplitClips,
    cut_together,
    finite,
    plain,
    read_pickle,
    read_splits,
    shared_keys,
    without_silence,
)
from equipoise.data.sets.lists import refuse, some
from equipoise.data.views import TimeLast
from equipoise.util.errors import Unreadable, demand

PICKLE = "humor.pkl"
WIDTHS = {"vision": 371, "audio": 81, "text": 300}  # OpenFace 2, COVAREP, GloVe
FOLDS = {"train": "train", "dev": "valid", "test": "test"}
SIX = {
    "folds": "data_folds.pkl",
    "words": "language_sdk.pkl",
    "vision": "openface_features_sdk.pkl",
    "audio": "covarep_features_sdk.pkl",
    "labels": "humor_label_sdk.pkl",
    "vectors": "word_embedding_list.pkl",
}


@final
@dataclass(frozen=True)
class URFunny(Original):
    """UR-FUNNY, version 2.

    Args:
        steps: Words of the longest sample. A pickle with longer ones is refused; of the publisher's own samples the
            last so many words are kept, since the punchline is at the end.
        context: Whether the sentences before the punchline are part of a sample. `humor.pkl` has settled that already.
    """

    steps: int = 50
    context: bool = True

    name: ClassVar[str] = "urfunny"
    summary: ClassVar[str] = "will the audience laugh? Face, voice and words of TED talks, word by word"
    layout: ClassVar[str] = """\
Expected the pickle that MultiBench gives out, or this file itself as the source:
  humor.pkl                      train, valid and test, each with vision, audio, text, labels and id
or the six of the publisher's "extracted features" of UR-FUNNY-V2 (ROC-HCI/UR-FUNNY):
  data_folds.pkl, language_sdk.pkl, openface_features_sdk.pkl, covarep_features_sdk.pkl, humor_label_sdk.pkl,
  word_embedding_list.pkl"""
    protocols: ClassVar[dict[str, Protocol]] = {
        "official": Protocol(
            "The publisher's train, dev and test folds, speaker-independent by its word: the ids are bare numbers and "
            "name no speaker. Selection sees dev alone.",
            by_group=True,
        ),
        "agm-valid": Protocol(
            "As in AGM's code: train learns, and the dev fold both selects the epoch and is reported. The test fold is "
            "not used.",
            by_group=True,
            selects_on_test=True,
        ),
    }

    def __post_init__(self) -> None:
        demand("urfunny", (self.steps >= 1, "steps should be 1 or more", self.steps))

    @property
    def fields(self) -> dict[str, Field]:
        """Face, voice and words, one row per word."""
        return {
            modality: Field((self.steps, width), "float32", ragged=True, view=TimeLast())
            for modality, width in WIDTHS.items()
        }

    def open(self, source: Path) -> Clips:
        """The samples of a folder, or of the pickle itself."""
        source = Path(source)
        pickle = source if source.is_file() else source / PICKLE
        problems: list[str] = []
        if pickle.is_file():
            shapes = {modality: (self.steps, width) for modality, width in WIDTHS.items()}
            splits = read_splits(pickle, shapes, problems)
            clips: Clips = SplitClips(pickle, splits, _clip, cut_together)
        elif any((source / file).exists() for file in SIX.values()):
            clips = _SixClips(source, _read_six(source, problems), self.steps, self.context)
        else:
            clips = InMemory([])
            problems.append(f"expected {PICKLE}, or {', '.join(SIX.values())}; found none of them")
        refuse(self, source, problems)
        return clips

    def classes(self, clips: Clips) -> tuple[str, ...]:  # noqa: ARG002 (they are the same for all)
        """What the audience does."""
        return ("no laughter", "laughter")


def _clip(split: str, key: tuple[str, ...], label: float) -> Clip:
    part = PART_OF[split]
    parts = {"official": part}
    if split != "test":
        parts["agm-valid"] = "train" if split == "train" else "test"
    name = " ".join(key)
    return Clip(name, int(label >= 1), name, parts)


@final
class _SixClips(Clips):
    """Samples put together from the publisher's pickles."""

    def __init__(self, source: Path, content: Mapping[str, Any], steps: int, context: bool) -> None:
        self._source, self._content, self._steps, self._context = source, content, steps, context
        folds, labels = content.get("folds", {}), content.get("labels", {})
        self._keys = [(fold, key) for fold in FOLDS for key in folds.get(fold, ())]
        self.listed = [_clip(FOLDS[fold], (plain(key),), _number(labels.get(key))) for fold, key in self._keys]

    def read(self, number: int) -> dict[str, np.ndarray]:
        """The words of the context and of the punchline, one after the other."""
        key = self._keys[number][1]
        try:
            return finite(cut_together(without_silence(self._aligned(key))))
        except Unreadable as problem:
            raise Unreadable(f"{self._source}, id {plain(key)}: {problem}") from None

    def _aligned(self, key: Any) -> dict[str, np.ndarray]:
        missing = [SIX[part] for part in ("words", "vision", "audio", "labels") if key not in self._content[part]]
        if missing:
            raise Unreadable(f"expected it in every file, found none in {', '.join(missing)}")
        vectors = self._content["vectors"]
        try:
            indexes = self._joined(self._content["words"][key], "embedding_indexes").astype(np.int64).reshape(-1)
            sample = {part: self._joined(self._content[part][key], "features") for part in ("vision", "audio")}
            sample["text"] = np.asarray([vectors[index] for index in indexes], dtype=np.float64)
        except (KeyError, IndexError, TypeError, ValueError) as problem:
            raise Unreadable(f"not laid out as the publisher says: {type(problem).__name__}: {problem}") from None
        if not len(indexes):
            raise Unreadable("expected words, found none")
        if found := [
            f"{part} {list(each.shape)}" for part, each in sample.items() if each.shape[1:] != (WIDTHS[part],)
        ]:
            raise Unreadable(f"expected a row of {WIDTHS} per word, found {', '.join(found)}")
        counts = {part: len(each) for part, each in sample.items()}
        if len(set(counts.values())) > 1:
            raise Unreadable(f"expected as many words in every modality, found {counts}")
        return {part: each[-self._steps :] for part, each in sample.items()}

    def _joined(self, entry: Any, what: str) -> np.ndarray:
        """Sentence after sentence: the publisher keeps the context as a list of them."""
        sentences = [*(entry[f"context_{what}"] if self._context else ()), entry[f"punchline_{what}"]]
        real = [np.asarray(each, dtype=np.float64) for each in sentences if len(each)]
        return np.concatenate(real) if real else np.zeros(0)


def _read_six(source: Path, problems: list[str]) -> dict[str, Any]:
    """What the six files hold; nothing where something is wrong."""
    content, found = {}, []
    for part, file in SIX.items():
        try:
            content[part] = read_pickle(source / file)
        except Unreadable as problem:
            found.append(str(problem))
    found += _problems_of(content)
    problems += found
    return {} if found else content


def _problems_of(content: Mapping[str, Any]) -> Iterator[str]:
    for part in ("words", "vision", "audio", "labels"):
        if part in content and not isinstance(content[part], dict):
            yield f"{SIX[part]}: expected a dictionary by id, found {type(content[part]).__name__}"
    if "vectors" in content and not hasattr(content["vectors"], "__getitem__"):
        yield f"{SIX['vectors']}: expected a list of word vectors, found {type(content['vectors']).__name__}"
    if "folds" not in content:
        return
    folds = content["folds"]
    missing = [fold for fold in FOLDS if not isinstance(folds, dict) or not hasattr(folds.get(fold), "__iter__")]
    if missing:
        yield f"{SIX['folds']}: expected lists of ids called {', '.join(FOLDS)}; found none called {', '.join(missing)}"
        return
    keys = [key for fold in FOLDS for key in folds[fold]]
    if odd := [key for key in keys if not isinstance(key, (str, bytes, int, float, np.generic))]:
        yield f"{SIX['folds']}: expected ids that are texts or numbers, found {some([repr(key) for key in odd])}"
        return
    yield from shared_keys({fold: [(plain(key),) for key in folds[fold]] for fold in FOLDS})
    labels = content.get("labels")
    if isinstance(labels, dict):
        odd = [plain(key) for key in keys if key in labels and math.isnan(_number(labels[key]))]
        if odd:
            yield f"{SIX['labels']}: expected 0 or 1 for each id, found something else for {some(odd)}"


def _number(label: Any) -> float:
    try:
        return float(np.asarray(label, dtype=np.float64).reshape(-1)[0])
    except (TypeError, ValueError, IndexError):
        return float("nan")
