"""CMU-MOSEI: is what a speaker says negative or not? Sentences of monologues in YouTube videos.

Zadeh et al., "Multimodal Language Analysis in the Wild: CMU-MOSEI Dataset and Interpretable Dynamic Fusion Graph" (ACL
2018). It is passed around in several versions that differ in features, in samples and in what counts as positive.
"""

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Any, ClassVar, Literal, final

import numpy as np

from equipoise.data.own.npz import read_arrays
from equipoise.data.prepare.original import (
    Clip,
    Clips,
    Field,
    Problems,
    Protocol,
    Published,
    by_group,
    official_and_agm,
    part_by_hash,
    some,
)
from equipoise.data.sets import affect
from equipoise.data.views import TimeLast
from equipoise.util.errors import Unreadable, demand
from equipoise.util.files import reading

Version = Literal["agm", "aligned", "unaligned", "raw"]
Neutral = Literal["positive", "negative", "drop"]
PICKLES: dict[str, tuple[str, dict[str, tuple[int, int]]]] = {
    "aligned": ("mosei_senti_data.pkl", {"vision": (50, 35), "audio": (50, 74), "text": (50, 300)}),
    "unaligned": ("mosei_senti_data_noalign.pkl", {"vision": (500, 35), "audio": (500, 74), "text": (50, 300)}),
    "raw": ("mosei_raw.pkl", {"vision": (50, 713), "audio": (50, 74), "text": (50, 300)}),
}
CLASSES: dict[str, tuple[str, str]] = {  # by what a neutral sentiment is
    "positive": ("negative", "non-negative"),
    "negative": ("non-positive", "positive"),
    "drop": ("negative", "positive"),
}
WORDS, FRAMES, MELS, VECTOR = 60, 60, 80, 300  # of AGM's version: what a sample is cut to, and the widths of its steps
SHARES = {"train": 0.7, "validation": 0.1, "test": 0.2}  # close to the official folds
PADDING, UNKNOWN, FIRST = 0, 1, 2  # words start behind both: none shares a number with what it is not
_SEGMENT = re.compile(r"^(.+?)(\[\d+\]|\$_\$\d+|_\d+)$")
_DROPPED, _BLANK = re.compile(r"[.,'!?\"()*#:;]"), re.compile(r"[-/\s]+")

SpokenContent = Mapping[str, Mapping[str, Mapping[Any, Any]]]  # of AGM's version, by split, by kind, by key


@final
@dataclass(frozen=True)
class MOSEI(Published):
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

    name = "mosei"
    summary = "is a sentence of negative sentiment or not? Words and voice, or face too, of YouTube videos"
    layout = """\
Expected for version=agm the files of the MOSEI_UMONS project, each a dictionary by id such as --qXJuDtHPw[5]:
  {train,valid,test}_sentences.p   the words of a sentence
  {train,valid,test}_mels.p        its spectrogram, [T, 80]
  {train,valid,test}_sentiment.p   its sentiment, from -3 to 3
for the other versions one pickle with vision, audio, text, labels and id, or this file itself as the source:
  mosei_senti_data.pkl             version=aligned
  mosei_senti_data_noalign.pkl     version=unaligned
  mosei_raw.pkl                    version=raw"""
    protocols: ClassVar[dict[str, Protocol]] = {
        "official": by_group("The publisher's folds, no video in two of them. Selection sees valid alone."),
        "agm-valid": by_group(
            "As in AGM's code: train learns, and valid both selects the epoch and is reported. Test is not used.",
            selects_on_test=True,
        ),
        "videos": by_group("Videos drawn by a hash of their names: 70 % train, 10 % validate, 20 % test."),
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
        """Describe text and audio, or face, voice and words."""
        if self.version != "agm":
            shapes = PICKLES[self.version][1]
            return {name: Field(shape, ragged=True, view=TimeLast()) for name, shape in shapes.items()}
        numbers = Field((WORDS,), "int16", ragged=True)
        text = Field((WORDS, VECTOR), ragged=True, view=TimeLast()) if self.vectors else numbers
        return {"text": text, "audio": Field((FRAMES, MELS), ragged=True, view=TimeLast())}

    def find(self, source: Path, problems: Problems) -> Clips | None:
        """Find the sentences of a folder, or of the pickle itself."""
        if self.version == "agm":
            return self._find_spoken(source, problems)
        file, shapes = PICKLES[self.version]
        path = source if source.is_file() else source / file
        trim = affect.trim_apart if self.version == "unaligned" else affect.trim_together
        return affect.find_splits(path, shapes, self._clip, trim, CLASSES[self.neutral], problems)

    def _clip(self, split: str, key: tuple[str, ...], sentiment: float) -> Clip | None:
        if sentiment == 0 and self.neutral == "drop":
            return None
        video = video_of(key)
        parts = official_and_agm(affect.PART_OF[split]) | {"videos": part_by_hash(video, SHARES, salt="mosei videos")}
        positive = sentiment >= 0 if self.neutral == "positive" else sentiment > 0
        return Clip("/".join(key), int(positive), video, parts)

    def _find_spoken(self, source: Path, problems: Problems) -> Clips:
        """Find sentences as numbers or vectors, with the spectrogram they were said in.

        A key that one of the files does not know is listed all the same, and read as unreadable: it shows as skipped.
        """
        content = _read_spoken(source, problems)
        encode = self._encoder(content, problems)

        def sample(place: tuple[str, Any]) -> affect.Sample:
            split, key = place
            if missing := [f"{split}_{kind}.p" for kind in KINDS if key not in content[split][kind]]:
                raise Unreadable(f"expected it in every file, found none in {', '.join(missing)}")
            mels = np.asarray(content[split]["mels"][key])
            if mels.ndim != 2 or mels.shape[1] != MELS or not len(mels) or mels.dtype.kind not in "fiu":
                raise Unreadable(f"expected mels [T, {MELS}], found {mels.dtype} {list(mels.shape)}")
            audio = affect.finite({"audio": mels[:FRAMES]})["audio"]
            return {"text": encode(words_of(content[split]["sentences"][key])[:WORDS]), "audio": audio}

        def describe(place: tuple[str, Any]) -> str:
            return f"{source}, {place[0]}, id {affect.as_text(place[1])}"

        entries = []
        for split, key in ((split, key) for split, kinds in content.items() for key in _keys(kinds)):
            sentiment = affect.first_number(content[split]["sentiment"].get(key, -1))
            entries.append((self._clip(split, (affect.as_text(key),), sentiment), (split, key)))
        return affect.pickled_clips(entries, describe, sample, CLASSES[self.neutral])

    def _encoder(self, content: SpokenContent, problems: Problems) -> Callable[[list[str]], np.ndarray]:
        """Return what turns words into what is stored; a sentence without any is one unknown word.

        The vocabulary is that of train: nothing is known of the others. An unknown word is a vector of zeros.
        """
        spoken = [[words_of(sentence) for sentence in kinds["sentences"].values()] for kinds in content.values()]
        if not self.vectors:
            number_of = vocabulary_of(spoken[0] if spoken else [], self.vocabulary)
            return lambda words: np.array([number_of.get(word, UNKNOWN) for word in words] or [UNKNOWN], dtype=np.int16)
        wanted = {word for sentences in spoken for sentence in sentences for word in sentence}
        vectors = problems.attempt(read_vectors, Path(self.vectors), wanted, VECTOR) or {}
        unknown = np.zeros(VECTOR, dtype=np.float32)
        return lambda words: np.stack([vectors.get(word, unknown) for word in words] or [unknown])


def video_of(key: tuple[str, ...]) -> str:
    """Return the video a sentence is from.

    An id is written as video, start and end; as `video[3]`; as `video$_$3`; or as `video_3`. Cutting too much off a
    name can only make a group larger, and so never puts like samples into two parts.
    """
    match = _SEGMENT.match(key[0]) if len(key) == 1 else None
    return match.group(1) if match else key[0]


def words_of(written: Any) -> list[str]:
    """Return the words of a sentence, in small letters and without punctuation.

    Args:
        written: Texts or bytes, each alone or in a list or row of one. A hyphen or a slash separates two words.

    Raises:
        Unreadable: If there is anything else.

    Example:
        >>> words_of([[b"Well-known,"], ["don't"], b"..."])
        ['well', 'known', 'dont']
    """
    words = []
    for item in _as_list(written):
        texts = _as_list(item)
        if len(texts) != 1 or not isinstance(texts[0], (str, bytes)):
            raise Unreadable(f"expected words, found {', '.join(type(text).__name__ for text in texts) or 'nothing'}")
        words += _BLANK.sub(" ", _DROPPED.sub("", affect.as_text(texts[0]).lower())).split()
    return words


def _as_list(value: Any) -> Sequence[Any]:
    if isinstance(value, np.ndarray):
        return value.reshape(-1).tolist()
    return value if isinstance(value, (list, tuple)) else [value]


def vocabulary_of(sentences: Iterable[Iterable[str]], size: int) -> dict[str, int]:
    """Number the most frequent words, as many as fit; the alphabet decides between equals.

    Args:
        sentences: The words of each.
        size: How many numbers there are; 0 is padding, 1 is any word that is not among them.
    """
    counts = Counter(word for sentence in sentences for word in sentence)
    ranked = sorted(counts, key=lambda word: (-counts[word], word))[: size - FIRST]
    return {word: number for number, word in enumerate(ranked, FIRST)}


def read_vectors(path: Path, wanted: Collection[str], width: int) -> dict[str, np.ndarray]:
    """Read the vectors of the wanted words from a file.

    Args:
        path: `.npz` with an array `words` of texts and an array `vectors` [N, width]; or a text file with a word and
            its numbers in each line, as GloVe's.
        wanted: The words to keep.
        width: Of a vector.

    Raises:
        Unreadable: If the file cannot be read as either.
    """
    with reading(path):
        vectors = (_from_arrays if path.suffix == ".npz" else _from_text)(path, wanted, width)
        for word, vector in vectors.items():
            if not np.isfinite(vector).all():
                raise Unreadable(f"{path}: expected finite numbers, found others for the word {word!r}")
        return {word: vector.astype(np.float32) for word, vector in vectors.items()}


def _from_arrays(path: Path, wanted: Collection[str], width: int) -> dict[str, np.ndarray]:
    content, problems = read_arrays(path)
    if problems:
        raise Unreadable(f"{path}: {'; '.join(problems)}")
    if not {"words", "vectors"} <= {*content}:
        raise Unreadable(f"{path}: expected arrays 'words' and 'vectors', found {', '.join(content) or 'none'}")
    words, vectors = content["words"], content["vectors"]
    if words.dtype.kind not in "US" or vectors.shape != (len(words), width) or vectors.dtype.kind != "f":
        found = f"words {words.dtype} {list(words.shape)}, vectors {vectors.dtype} {list(vectors.shape)}"
        raise Unreadable(f"{path}: expected N texts and N vectors of {width} numbers; found {found}")
    return {str(word): vectors[row] for row, word in enumerate(words.astype(str)) if str(word) in wanted}


def _from_text(path: Path, wanted: Collection[str], width: int) -> dict[str, np.ndarray]:
    vectors, seen = {}, 0
    with path.open(encoding="utf-8", errors="replace") as lines:
        for line in lines:
            word, *numbers = line.rstrip("\n").rsplit(" ", width)  # from the right: some words hold blanks
            seen += len(numbers) == width
            if len(numbers) == width and word in wanted:
                vectors[word] = np.array(numbers, dtype=np.float32)
    if not seen:
        raise Unreadable(f"{path}: expected a word and {width} numbers in each line, found no such line")
    return vectors


KINDS: dict[str, tuple[str, Callable[[Any], bool]]] = {  # what each file should hold for an id
    "sentences": ("words", lambda sentence: Problems().attempt(words_of, sentence) is not None),
    "mels": ("an array", lambda _: True),  # looked at one by one, as they are read
    "sentiment": ("a finite number", lambda value: isfinite(affect.first_number(value))),
}


def _read_spoken(source: Path, problems: Problems) -> SpokenContent:
    """Read the nine files of the MOSEI_UMONS project; nothing where something is wrong."""
    paths = {split: {kind: source / f"{split}_{kind}.p" for kind in KINDS} for split in affect.PART_OF}
    content = {split: affect.read_pickles(files, problems) for split, files in paths.items()}
    whole = not problems
    for split, kinds in content.items():
        for kind, values in kinds.items():
            expected, fits = KINDS[kind]
            if not isinstance(values, dict):
                whole = False
                problems.append(f"{split}_{kind}.p: expected a dictionary by id, found {type(values).__name__}")
            elif odd := [affect.as_text(key) for key, value in values.items() if not fits(value)]:
                others = f"found something else for {some(odd)}"
                problems.append(f"{split}_{kind}.p: expected {expected} for each id, {others}")
    if whole:
        keys = {split: [(affect.as_text(key),) for key in _keys(kinds)] for split, kinds in content.items()}
        problems += affect.shared_keys(keys)
    return {} if problems else content


def _keys(kinds: Mapping[str, Mapping[Any, Any]]) -> list[Any]:
    """Return every key that any of the files knows, in the order of the first that does."""
    return list(dict.fromkeys(key for kind in KINDS for key in kinds[kind]))
