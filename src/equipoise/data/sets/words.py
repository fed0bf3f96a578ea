"""Sentences as numbers: cleaned words, their numbers in a vocabulary, and word vectors from a file."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import numpy as np

from equipoise.data.own.npz import read_arrays
from equipoise.util.errors import Unreadable
from equipoise.util.files import reading

PADDING, UNKNOWN, FIRST = 0, 1, 2  # words start behind both: none shares a number with what it is not
_DROPPED = re.compile(r"[.,'!?\"()*#:;]")
_BLANK = re.compile(r"[-/\s]+")


def words_of(written: Any) -> list[str]:
    """The words of a sentence, in small letters and without punctuation.

    Args:
        written: Texts or bytes, each alone or in a list or row of one. A hyphen or a slash parts two words.

    Raises:
        Unreadable: If there is anything else.

    Example:
        >>> words_of([[b"Well-known,"], ["don't"], b"..."])
        ['well', 'known', 'dont']
    """
    found = []
    for each in _listed(written):
        several = _listed(each)
        if len(several) != 1 or not isinstance(several[0], (str, bytes)):
            raise Unreadable(f"expected words, found {', '.join(type(one).__name__ for one in several) or 'nothing'}")
        text = several[0].decode("utf-8", "replace") if isinstance(several[0], bytes) else several[0]
        found += _BLANK.sub(" ", _DROPPED.sub("", text.lower())).split()
    return found


@final
@dataclass(frozen=True)
class Vocabulary:
    """Words and their numbers: 0 is padding, 1 is any word that is not among them, the others follow.

    Args:
        number_of: The number of each word.
    """

    number_of: Mapping[str, int]

    @staticmethod
    def of(sentences: Iterable[Iterable[str]], size: int) -> Vocabulary:
        """The most frequent words of some sentences, as many as fit; the alphabet decides between equals.

        Args:
            sentences: The words of each.
            size: How many numbers there are, padding and unknown included.
        """
        counts = Counter(word for sentence in sentences for word in sentence)
        ranked = sorted(counts, key=lambda word: (-counts[word], word))[: size - FIRST]
        return Vocabulary({word: number for number, word in enumerate(ranked, FIRST)})

    def numbers(self, words: Collection[str]) -> np.ndarray:
        """The numbers of some words, int16; a sentence without any is one unknown word."""
        return np.array([self.number_of.get(word, UNKNOWN) for word in words] or [UNKNOWN], dtype=np.int16)


@final
class Vectors:
    """Words as vectors; one that is not known is zeros, and so is a sentence without any.

    Args:
        known: The vector of each word.
        width: Of a vector.
    """

    def __init__(self, known: Mapping[str, np.ndarray], width: int) -> None:
        self._known, self._unknown = known, np.zeros(width, dtype=np.float32)

    def __call__(self, words: list[str]) -> np.ndarray:
        """The vectors of some words, [words, width]."""
        return np.stack([self._known.get(word, self._unknown) for word in words] or [self._unknown])


def read_vectors(path: Path, wanted: Collection[str], width: int) -> dict[str, np.ndarray]:
    """Word vectors from a file, those that are wanted.

    Args:
        path: `.npz` with an array `words` of texts and an array `vectors` [N, width]; or a text file with a word and
            its numbers in each line, as GloVe's.
        wanted: The words to keep.
        width: Of a vector.

    Raises:
        Unreadable: If the file cannot be read as either.
    """
    with reading(path):
        return _from_arrays(path, wanted, width) if path.suffix == ".npz" else _from_text(path, wanted, width)


def _listed(value: Any) -> Sequence[Any]:
    if isinstance(value, np.ndarray):
        return value.reshape(-1).tolist()
    return value if isinstance(value, (list, tuple)) else [value]


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
    keep = {str(word): row for row, word in enumerate(words.astype(str)) if str(word) in wanted}
    return {word: _checked(path, word, vectors[row]) for word, row in keep.items()}


def _from_text(path: Path, wanted: Collection[str], width: int) -> dict[str, np.ndarray]:
    kept, seen = {}, 0
    with path.open(encoding="utf-8", errors="replace") as lines:
        for line in lines:
            word, *numbers = line.rstrip("\n").rsplit(" ", width)  # from the right: some words hold blanks
            seen += len(numbers) == width
            if len(numbers) == width and word in wanted:
                kept[word] = _checked(path, word, np.array(numbers, dtype=np.float32))
    if not seen:
        raise Unreadable(f"{path}: expected a word and {width} numbers in each line, found no such line")
    return kept


def _checked(path: Path, word: str, vector: np.ndarray) -> np.ndarray:
    if not np.isfinite(vector).all():
        raise Unreadable(f"{path}: expected finite numbers, found others for the word {word!r}")
    return vector.astype(np.float32)
