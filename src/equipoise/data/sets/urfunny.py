"""UR-FUNNY: is the audience about to laugh? Face, voice and words of TED talks, aligned word by word.

Hasan et al., "UR-FUNNY: A Multimodal Language Dataset for Understanding Humor" (EMNLP 2019). Two layouts are read: the
one pickle that MultiBench made of it and AGM trains on, and the publisher's own six.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, final

import numpy as np

from equipoise.data.prepare.original import (
    Clip,
    Clips,
    Field,
    Problems,
    Protocol,
    Published,
    by_group,
    official_and_agm,
    some,
)
from equipoise.data.sets import affect
from equipoise.data.views import TimeLast
from equipoise.util.errors import Unreadable, demand

PICKLE = "humor.pkl"
CLASSES = ("no laughter", "laughter")
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
BY_ID = ("words", "vision", "audio", "labels")


@final
@dataclass(frozen=True)
class URFunny(Published):
    """UR-FUNNY, version 2.

    Args:
        steps: Words of the longest sample. A pickle with longer ones is refused; of the publisher's own samples the
            last so many words are kept, since the punchline is at the end.
        context: Whether the sentences before the punchline are part of a sample. `humor.pkl` has settled that already.
    """

    steps: int = 50
    context: bool = True

    name = "urfunny"
    summary = "will the audience laugh? Face, voice and words of TED talks, word by word"
    layout = """\
Expected the pickle that MultiBench gives out, or this file itself as the source:
  humor.pkl                      train, valid and test, each with vision, audio, text, labels and id
or the six of the publisher's "extracted features" of UR-FUNNY-V2 (ROC-HCI/UR-FUNNY):
  data_folds.pkl, language_sdk.pkl, openface_features_sdk.pkl, covarep_features_sdk.pkl, humor_label_sdk.pkl,
  word_embedding_list.pkl"""
    protocols: ClassVar[dict[str, Protocol]] = {
        "official": by_group(
            "The publisher's train, dev and test folds, speaker-independent by its word: the ids are bare numbers and "
            "name no speaker. Selection sees dev alone."
        ),
        "agm-valid": by_group(
            "As in AGM's code: train learns, and the dev fold both selects the epoch and is reported. The test fold is "
            "not used.",
            selects_on_test=True,
        ),
    }

    def __post_init__(self) -> None:
        demand("urfunny", (self.steps >= 1, "steps should be 1 or more", self.steps))

    @property
    def fields(self) -> dict[str, Field]:
        """Describe face, voice and words, one row per word."""
        return {modality: Field(shape, ragged=True, view=TimeLast()) for modality, shape in self._shapes.items()}

    @property
    def _shapes(self) -> dict[str, tuple[int, int]]:
        return {modality: (self.steps, width) for modality, width in WIDTHS.items()}

    def find(self, source: Path, problems: Problems) -> Clips | None:
        """Find the samples of a folder, or of the pickle itself."""
        pickle = source if source.is_file() else source / PICKLE
        if pickle.is_file():
            return affect.find_splits(pickle, self._shapes, _clip, affect.trim_together, CLASSES, problems)
        if any((source / file).exists() for file in SIX.values()):
            return self._find_six(source, problems)
        problems.append(f"expected {PICKLE}, or {', '.join(SIX.values())}; found none of them")
        return None

    def _find_six(self, source: Path, problems: Problems) -> Clips | None:
        """Put samples together from the publisher's pickles: the words of the context, then of the punchline."""
        content = affect.read_pickles({part: source / file for part, file in SIX.items()}, problems)
        problems += _six_problems(content)
        if problems:
            return None
        entries = [
            (_clip(split, (affect.as_text(key),), affect.first_number(content["labels"].get(key))), key)
            for fold, split in FOLDS.items()
            for key in content["folds"][fold]
        ]

        def sample(key: Any) -> affect.Sample:
            return affect.finite(affect.trim_together(affect.without_silence(self._aligned(content, key))))

        return affect.pickled_clips(entries, lambda key: f"{source}, id {affect.as_text(key)}", sample, CLASSES)

    def _aligned(self, content: Mapping[str, Any], key: Any) -> affect.Sample:
        if missing := [SIX[part] for part in BY_ID if key not in content[part]]:
            raise Unreadable(f"expected it in every file, found none in {', '.join(missing)}")
        try:
            indexes = self._joined(content["words"][key], "embedding_indexes").astype(np.int64).reshape(-1)
            sample = {part: self._joined(content[part][key], "features") for part in ("vision", "audio")}
            sample["text"] = np.asarray([content["vectors"][index] for index in indexes], dtype=np.float64)
        except (KeyError, IndexError, TypeError, ValueError) as problem:
            raise Unreadable(f"not laid out as the publisher says: {type(problem).__name__}: {problem}") from None
        if not len(indexes):
            raise Unreadable("expected words, found none")
        if odd := [f"{part} {list(rows.shape)}" for part, rows in sample.items() if rows.shape[1:] != (WIDTHS[part],)]:
            raise Unreadable(f"expected a row of {WIDTHS} per word, found {', '.join(odd)}")
        counts = {part: len(rows) for part, rows in sample.items()}
        if len(set(counts.values())) > 1:
            raise Unreadable(f"expected as many words in every modality, found {counts}")
        return {part: rows[-self.steps :] for part, rows in sample.items()}

    def _joined(self, entry: Any, what: str) -> np.ndarray:
        """Join the sentences: the publisher keeps the context as a list of them."""
        sentences = [*(entry[f"context_{what}"] if self.context else ()), entry[f"punchline_{what}"]]
        real = [np.asarray(sentence, dtype=np.float64) for sentence in sentences if len(sentence)]
        return np.concatenate(real) if real else np.zeros(0)


def _clip(split: str, key: tuple[str, ...], label: float) -> Clip:
    name = " ".join(key)
    return Clip(name, int(label >= 1), name, official_and_agm(affect.PART_OF[split]))


def _six_problems(content: Mapping[str, Any]) -> Iterator[str]:
    for part in BY_ID:
        if part in content and not isinstance(content[part], dict):
            yield f"{SIX[part]}: expected a dictionary by id, found {type(content[part]).__name__}"
    if "vectors" in content and not hasattr(content["vectors"], "__getitem__"):
        yield f"{SIX['vectors']}: expected a list of word vectors, found {type(content['vectors']).__name__}"
    if "folds" not in content:
        return
    folds, labels = content["folds"], content.get("labels")
    if missing := [fold for fold in FOLDS if not isinstance(folds, dict) or not hasattr(folds.get(fold), "__iter__")]:
        yield f"{SIX['folds']}: expected lists of ids called {', '.join(FOLDS)}; found none called {', '.join(missing)}"
        return
    keys = [key for fold in FOLDS for key in folds[fold]]
    if odd := [repr(key) for key in keys if not isinstance(key, (str, bytes, int, float, np.generic))]:
        yield f"{SIX['folds']}: expected ids that are texts or numbers, found {some(odd)}"
        return
    yield from affect.shared_keys({fold: [(affect.as_text(key),) for key in folds[fold]] for fold in FOLDS})
    known = labels if isinstance(labels, dict) else {}
    if odd := [affect.as_text(key) for key in keys if key in known and math.isnan(affect.first_number(known[key]))]:
        yield f"{SIX['labels']}: expected 0 or 1 for each id, found something else for {some(odd)}"
