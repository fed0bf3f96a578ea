"""What ``--data`` means: a data set by name, a prepared folder, an ``.npz``, or a manifest."""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import final

from torch import nn

from equipoise.data.own.manifest import read_manifest, samples_of_manifest
from equipoise.data.own.npz import samples_of_npz
from equipoise.data.own.samples import Samples
from equipoise.data.sets.generated import two_sensors
from equipoise.data.sets.watch import watch
from equipoise.data.splits import Splits, is_length
from equipoise.models.choose import kinds_of, reads_tokens
from equipoise.util.errors import BadInput, raise_all

SUFFIXES = (".npz", ".csv", ".parquet")
ENDINGS = ", ".join(SUFFIXES)
PLACE = "EQUIPOISE_DATA"
"""The variable of the environment that says where prepared data sets lie."""


@final
@dataclass(frozen=True)
class DataSet:
    """A data set by name.

    Args:
        name: What users type.
        load: Gives its splits; takes the number of a fold, or None.
        folds: How many folds it can be cut into.
        summary: One line on it.
    """

    name: str
    load: Callable[[int | None], Splits]
    folds: int
    summary: str


def all_data() -> dict[str, DataSet]:
    """Every data set that comes with the package, by name."""
    return {
        "watch": DataSet("watch", watch, 10, "Seven shoulder exercises of ten people, accelerometer and gyroscope."),
        "generated": DataSet("generated", _generated, 10, "An easy and a hard sensor, made up."),
    }


def data_set(text: str, split: str | None = None) -> DataSet:
    """The data set that a text means.

    Args:
        text: A name, a prepared folder, an ``.npz``, or a ``.csv`` or ``.parquet`` manifest.
        split: The protocol by which prepared data is cut; None for its first.

    Raises:
        BadInput: If there is no such data, or it cannot be used.
    """
    if text in all_data():
        _refuse_protocol(text, split)
        return all_data()[text]
    if is_file(text):
        _refuse_protocol(text, split)
        path = Path(text)
        if not path.exists():
            raise BadInput(_nothing_there(path, []))
        folds = samples_of(path).folds if path.suffix.lower() == ".npz" else read_manifest(path).folds
        return DataSet(path.name, OwnFile(os.path.realpath(path)), folds, f"Your own data, from {path}.")
    return _prepared(_folder_of(text), split)


def is_file(text: str) -> bool:
    """Whether a text means a file of a user's own data, by its ending."""
    return Path(text).suffix.lower() in SUFFIXES and not Path(text).is_dir()


def samples_of(path: str | Path) -> Samples:
    """The samples of a file of a user's own, read once as long as it does not change.

    Raises:
        BadInput: If the file as a whole cannot be read.
    """
    place = Path(os.path.realpath(path))  # not by pathlib, which raises where links lead in a circle
    seen = place.stat() if place.is_file() else None
    return _samples_of(str(place), 0 if seen is None else seen.st_mtime_ns, 0 if seen is None else seen.st_size)


@final
@dataclass(frozen=True)
class OwnFile:
    """Loads a file of a user's own. A class and no closure, so that it can be sent to another process.

    Args:
        path: Of the ``.npz``, ``.csv`` or ``.parquet``.
        tokens: The modalities that are read as token numbers.
    """

    path: str
    tokens: tuple[str, ...] = ()

    def __call__(self, fold: int | None) -> Splits:
        """Cut its samples."""
        return _cut(samples_of(self.path), fold, self.tokens)


@final
@dataclass(frozen=True)
class PreparedFolder:
    """Loads a prepared folder.

    Args:
        folder: Where it lies.
        protocol: By which it is cut.
    """

    folder: str
    protocol: str | None

    def __call__(self, fold: int | None) -> Splits:
        """Map its parts into memory."""
        from equipoise.data.prepare.prepared import Prepared

        return Prepared.open(self.folder).splits(self.protocol, fold)


def mark_tokens(data: DataSet, encoders: Iterable[tuple[str, int]]) -> DataSet:
    """Return the data as the encoders of some runs read it: token numbers stay the whole numbers they are.

    Prepared data says itself what it holds. A file of a user's own cannot: whole numbers may be counts as well, and are
    standardised like all others, unless the encoder that was chosen for them reads tokens.

    Args:
        data: Whose numbers.
        encoders: The settings ``encoder`` and ``features`` of each run.

    Raises:
        BadInput: If one run reads tokens where another reads numbers, or the file as a whole cannot be read.
    """
    if not isinstance(data.load, OwnFile):
        return data
    samples = samples_of(data.load.path)
    tokens = {(encoder, features): tokens_of(samples, encoder, features) for encoder, features in encoders}
    if len(set(tokens.values())) > 1:
        listed = "; ".join(f"encoder={one} reads {' and '.join(names) or 'none'}" for (one, _), names in tokens.items())
        raise BadInput(
            f"{data.name}: expected runs that read the same sensors as token numbers, found {listed}; run them apart"
        )
    return replace(data, load=replace(data.load, tokens=next(iter(tokens.values()), ())))


def tokens_of(samples: Samples, encoder: str, features: int) -> tuple[str, ...]:
    """Return the modalities whose encoder reads token numbers.

    Args:
        samples: Of a user's own file.
        encoder: The setting: a kind or a dotted path for all, or "NAME:KIND,NAME:KIND".
        features: The setting.
    """
    shapes = {name: array.shape[1:] for name, array in samples.inputs.items() if not is_length(name, samples.inputs)}
    kinds, _ = kinds_of(encoder, shapes)
    # Encoders of pictures or series are not asked: to be asked, some have to be made.
    asked = [
        name for name, kind in kinds.items() if kind != "auto" and (name in samples.whole or len(shapes[name]) == 1)
    ]
    return tuple(name for name in asked if reads_tokens(kinds[name], tuple(shapes[name]), features))


def check_vocabulary(encoders: Mapping[str, nn.Module], splits: Splits) -> None:
    """Refuse token numbers that an encoder has no vector for: on a GPU they would be an error without a place.

    Args:
        encoders: By modality. One that says how many numbers it knows, by an attribute ``words``, is checked.
        splits: What they are to read: the parts that training sees.

    Raises:
        BadInput: With the modality, how many its encoder knows, and the largest there is.
    """
    problems = []
    for name, encoder in encoders.items():
        words = getattr(encoder, "words", None)
        if not isinstance(words, int):  # whose numbers may be many, and are not looked at
            continue
        stored = ((part.inputs[name], part.rows) for part in (splits.train, splits.validation))
        read = (array if rows is None else array[rows] for array, rows in stored)
        largest = max((int(array.max()) for array in read if array.numel()), default=-1)
        if largest >= words:
            problems.append(
                f"{name}: expected token numbers below {words}, which its encoder knows, found {largest}; "
                "give it an encoder with more words, or number the tokens as that encoder does"
            )
    raise_all(problems)


def _generated(fold: int | None) -> Splits:
    return two_sensors(seed=fold or 0)


@lru_cache(maxsize=2)
def _samples_of(path: str, _changed: int, _size: int) -> Samples:
    return samples_of_npz(path) if Path(path).suffix.lower() == ".npz" else samples_of_manifest(path)


@lru_cache(maxsize=8)
def _cut(samples: Samples, fold: int | None, tokens: tuple[str, ...]) -> Splits:
    return samples.splits(fold, tokens=tokens)


def _prepared(folder: Path, split: str | None) -> DataSet:
    from equipoise.data.prepare.prepared import Prepared

    found = Prepared.open(folder)
    if split is not None and split not in found.protocols:
        known = list(found.protocols)
        raise BadInput(f"unknown split {split!r} of {found.name}; {_meant(split, known)}")
    return DataSet(found.name, PreparedFolder(os.path.realpath(folder), split), found.folds, found.summary)


def _folder_of(text: str) -> Path:
    """Where prepared data lies; an answer with what to type where there is none."""
    from equipoise.data.sets import PUBLISHED

    path = Path(text)
    if text not in PUBLISHED:
        if path.is_dir():
            return path
        raise BadInput(_nothing_there(path, [*all_data(), *PUBLISHED]))
    places = [Path(os.environ[PLACE]) / text] if os.environ.get(PLACE) else []
    places += [Path("data") / text, path]
    for place in places:
        if (place / "prepared.json").is_file():
            return place
    looked = ", ".join(str(place) for place in places)
    raise BadInput(
        f"data set {text!r} is not prepared: looked in {looked}. Prepare it from its originals, which its publisher "
        f"gives: equipoise prepare {text} --source DIR --out {places[0]}. Or set {PLACE} to the folder that holds "
        f"{text}/"
    )


def _nothing_there(path: Path, names: list[str]) -> str:
    text = str(path)
    if path.exists():
        return f"{text}: expected a prepared folder, or a file that ends in {ENDINGS}; found a file of another kind"
    if os.path.lexists(path):
        return f"{text}: expected a file or a folder, found a link that leads nowhere, or in a circle"
    if path.suffix or os.sep in text:
        there = sorted(each.name for each in path.parent.iterdir()) if path.parent.is_dir() else []
        near = difflib.get_close_matches(path.name, there, n=1)
        hint = f"; did you mean {path.parent / near[0]}?" if near else ""
        return f"no such file or folder: {text}{hint}"
    return f"unknown data set {text!r}; {_meant(text, names, f', a prepared folder, or a file that ends in {ENDINGS}')}"


def _meant(name: str, known: Iterable[str], or_else: str = "") -> str:
    known = list(known)
    near = difflib.get_close_matches(name, known, n=1)
    return f"did you mean {near[0]!r}?" if near else f"expected one of {', '.join(known)}{or_else}"


def _refuse_protocol(text: str, split: str | None) -> None:
    if split is not None:
        raise BadInput(f"{text} has one way to be cut only; leave out the split {split!r}")
