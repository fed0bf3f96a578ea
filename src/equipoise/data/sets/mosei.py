"""CMU-MOSEI: is what a speaker says negative or not? Sentences of monologues in YouTube videos.

Zadeh et al., "Multimodal Language Analysis in the Wild: CMU-MOSEI Dataset and Interpretable Dynamic Fusion Graph" (ACL
2018). It goes around in several versions that differ in features, in samples and in what counts as positive.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal, final

import numpy as np

from equipoise.data.prepare.original import Clip, Clips, Field, Original, Protocol
from equipoise.data.sets.affect import PART_OF, SplitClips, cut_apart, cut_together, read_splits
from equipoise.data.sets.hashing import cut
from equipoise.data.sets.lists import refuse
from equipoise.data.sets.spoken import Content, Lengths, SpokenClips, read_spoken
from equipoise.data.sets.words import Vectors, Vocabulary, read_vectors, words_of
from equipoise.data.views import TimeLast
from equipoise.util.errors import Unreadable, demand

Version = Literal["agm", "aligned", "unaligned", "raw"]
Neutral = Literal["positive", "negative", "drop"]
PICKLES: dict[str, tuple[str, dict[str, tuple[int, int]]]] = {
    "aligned": ("mosei_senti_data.pkl", {"vision": (50, 35), "audio": (50, 74), "text": (50, 300)}),
    "unaligned": ("mosei_senti_data_noalign.pkl", {"vision": (500, 35), "audio": (500, 74), "text": (50, 300)}),
    "raw": ("mosei_raw.pkl", {"vision": (50, 713), "audio": (50, 74), "text": (50, 300)}),
}
CLASSES: dict[str, tuple[str, str]] = {
    "positive": ("negative", "non-negative"),
    "negative": ("non-positive", "positive"),
    "drop": ("negative", "positive"),
}
LENGTHS = Lengths(words=60, frames=60, mels=80, vector=300)  # of AGM's version
SHARES = {"train": 0.7, "validation": 0.1, "test": 0.2}  # close to the official folds
_SEGMENT = re.compile(r"^(.+?)(\[\d+\]|\$_\$\d+|_\d+)$")


@final
@dataclass(frozen=True)
class MOSEI(Original):
    """CMU-MOSEI, sentiment in two classes.

    Args:
        version: "agm": text and audio, from the word lists and mel spectrograms that AGM and the seed paper train on.
            "aligned", "unaligned": face, voice and words from the pickle that most others use. "raw": from MultiBench's
            larger one.
        neutral: What a sentiment of exactly 0 is: "positive", as in AGM and BalanceBenchmark; "negative", as in
            MultiBench; "drop" leaves those samples out.
        vectors: For "agm", a file of word vectors, 300 numbers each (`.npz` or GloVe's `.txt`). Without it a word is
            its number in the vocabulary, and the encoder learns the vectors.
        vocabulary: For "agm" without vectors, how many numbers there are; 0 is padding, 1 is an unknown word.
    """

    version: Version = "agm"
    neutral: Neutral = "positive"
    vectors: str = ""
    vocabulary: int = 20_000

    name: ClassVar[str] = "mosei"
    summary: ClassVar[str] = (
        "is a sentence of negative sentiment or not? Words and voice, or face too, of YouTube videos"
    )
    layout: ClassVar[str] = """\
Expected for version=agm the files of the MOSEI_UMONS project, each a dictionary by id such as --qXJuDtHPw[5]:
  {train,valid,test}_sentences.p   the words of a sentence
  {train,valid,test}_mels.p        its spectrogram, [T, 80]
  {train,valid,test}_sentiment.p   its sentiment, from -3 to 3
for the other versions one pickle with vision, audio, text, labels and id, or this file itself as the source:
  mosei_senti_data.pkl             version=aligned
  mosei_senti_data_noalign.pkl     version=unaligned
  mosei_raw.pkl                    version=raw"""
    protocols: ClassVar[dict[str, Protocol]] = {
        "official": Protocol(
            "The publisher's folds, no video in two of them. Selection sees valid alone.", by_group=True
        ),
        "agm-valid": Protocol(
            "As in AGM's code: train learns, and valid both selects the epoch and is reported. Test is not used.",
            by_group=True,
            selects_on_test=True,
        ),
        "videos": Protocol(
            "Videos drawn by a hash of their names: 70 % train, 10 % validate, 20 % test.", by_group=True
        ),
    }

    def __post_init__(self) -> None:
        demand(
            "mosei",
            (self.version in ("agm", *PICKLES), f"version should be one of agm, {', '.join(PICKLES)}", self.version),
            (self.neutral in CLASSES, f"neutral should be one of {', '.join(CLASSES)}", self.neutral),
            (self.version == "agm" or not self.vectors, "vectors are for version=agm", self.vectors),
            (3 <= self.vocabulary <= 2**15, "vocabulary should be 3 to 32768", self.vocabulary),
        )

    @property
    def fields(self) -> dict[str, Field]:
        """Text and audio, or face, voice and words."""
        if self.version != "agm":
            shapes = PICKLES[self.version][1]
            return {name: Field(shape, ragged=True, view=TimeLast()) for name, shape in shapes.items()}
        audio = Field((LENGTHS.frames, LENGTHS.mels), ragged=True, view=TimeLast())
        if self.vectors:
            return {"text": Field((LENGTHS.words, LENGTHS.vector), ragged=True, view=TimeLast()), "audio": audio}
        return {"text": Field((LENGTHS.words,), "int16", ragged=True), "audio": audio}

    def open(self, source: Path) -> Clips:
        """The sentences of a folder, or of the pickle itself."""
        source = Path(source)
        problems: list[str] = []
        if self.version == "agm":
            content = read_spoken(source, problems)
            words = self._words(content, problems)
            clips: Clips = SpokenClips(source, content, self._clip, LENGTHS, words)
        else:
            file, shapes = PICKLES[self.version]
            path = source if source.is_file() else source / file
            splits = read_splits(path, shapes, problems)
            clips = SplitClips(path, splits, self._clip, cut_apart if self.version == "unaligned" else cut_together)
        refuse(self, source, problems)
        return clips

    def classes(self, clips: Clips) -> tuple[str, ...]:  # noqa: ARG002 (they are the same for all)
        """The two sides of zero."""
        return CLASSES[self.neutral]

    def _words(self, content: Content, problems: list[str]) -> Callable[[list[str]], np.ndarray]:
        """What turns words into what is stored. The vocabulary is that of train: nothing is known of the others."""
        spoken = [[words_of(each) for each in kinds["sentences"].values()] for kinds in content.values()]
        if not self.vectors:
            return Vocabulary.of(spoken[0] if spoken else [], self.vocabulary).numbers
        wanted = {word for sentences in spoken for sentence in sentences for word in sentence}
        try:
            return Vectors(read_vectors(Path(self.vectors), wanted, LENGTHS.vector), LENGTHS.vector)
        except Unreadable as problem:
            problems.append(str(problem))
            return Vectors({}, LENGTHS.vector)

    def _clip(self, split: str, key: tuple[str, ...], sentiment: float) -> Clip | None:
        if sentiment == 0 and self.neutral == "drop":
            return None
        video = video_of(key)
        parts = {"official": PART_OF[split], "videos": cut(video, SHARES, salt="mosei videos")}
        if split != "test":
            parts["agm-valid"] = "train" if split == "train" else "test"
        positive = sentiment >= 0 if self.neutral == "positive" else sentiment > 0
        return Clip("/".join(key), int(positive), video, parts)


def video_of(key: tuple[str, ...]) -> str:
    """The video a sentence is from.

    An id is written as video, start and end; as `video[3]`; as `video$_$3`; or as `video_3`. Cutting too much off a
    name can only make a group larger, and so never puts like samples into two parts.
    """
    if len(key) > 1:
        return key[0]
    found = _SEGMENT.match(key[0])
    return found.group(1) if found else key[0]
