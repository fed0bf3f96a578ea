"""Data sets that ``--data`` names: one of the package, a prepared folder, an ``.npz``, or a manifest."""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import final

from torch import nn

from equipoise.data.bundled import PEOPLE, two_sensors, watch
from equipoise.data.own.manifest import read_manifest, samples_of_manifest
from equipoise.data.own.npz import samples_of_npz
from equipoise.data.own.samples import Samples
from equipoise.data.part import is_beside
from equipoise.data.prepare.prepared import FACTS, Prepared
from equipoise.data.sets import PUBLISHED
from equipoise.data.share import TrainShare
from equipoise.data.splits import Splits
from equipoise.models.choose import kinds_of, reads_tokens
from equipoise.util.errors import BadInput, raise_all

SUFFIXES = (".npz", ".csv", ".parquet")
ENDINGS = ", ".join(SUFFIXES)
FOLDER_VARIABLE = "EQUIPOISE_DATA"
"""The environment variable with the folder of prepared data sets."""


@final
@dataclass(frozen=True)
class DataSet:
    """A data set by name.

    Args:
        name: As users type it.
        load: Returns its splits; takes the number of a fold, or None.
        folds: The number of folds it can be cut into.
        summary: One line on it.
    """

    name: str
    load: Callable[[int | None], Splits]
    folds: int
    summary: str

    def cut_into(self, folds: int) -> DataSet:
        """Return the same data cut into another number of folds.

        Raises:
            BadInput: If its folds are fixed, or so many cannot be made.
        """
        if folds == self.folds:
            return self
        load = getattr(self.load, "cut_into", None)
        if load is None or self.folds == 0:
            there = f"its {self.folds} folds are fixed: type --folds" if self.folds else "it has no groups to cut by"
            raise BadInput(f"{self.name} cannot be cut into {folds} folds; {there}")
        return replace(self, load=load(folds), folds=folds)


def all_data() -> dict[str, DataSet]:
    """Return every data set that comes with the package, by name."""
    return {
        "watch": DataSet("watch", Watch(), 10, "Seven shoulder exercises of ten people, accelerometer and gyroscope."),
        "generated": DataSet("generated", Generated(), 10, "An easy and a hard sensor, made up."),
    }


def data_set(text: str, split: str | None = None) -> DataSet:
    """Return the data set that a text means.

    Args:
        text: A name, a prepared folder, an ``.npz``, or a ``.csv`` or ``.parquet`` manifest.
        split: The protocol by which prepared data is cut; None for its first.

    Raises:
        BadInput: If there is no such data, or it cannot be used.
    """
    path, known = Path(text), all_data()
    if text in known or is_file(text):
        if split is not None:
            raise BadInput(f"{text} has one way to be cut only; leave out the split {split!r}")
        if text in known:
            return known[text]
        if not path.exists():
            raise BadInput(_not_found(path))
        manifest = None if path.suffix.lower() == ".npz" else read_manifest(path)
        folds = samples_of(path).folds if manifest is None or manifest.recorded else manifest.folds
        return DataSet(path.name, OwnFile(os.path.realpath(path)), folds, f"Your own data, from {path}.")
    folder = _prepared_folder(text)
    prepared = Prepared.open(folder)
    prepared.chosen(split)
    return DataSet(prepared.name, PreparedFolder(os.path.realpath(folder), split), prepared.folds, prepared.summary)


def is_file(text: str) -> bool:
    """Return whether a text means a file of a user's own data, by its ending."""
    return Path(text).suffix.lower() in SUFFIXES and not Path(text).is_dir()


def samples_of(path: str | Path) -> Samples:
    """Return the samples of a file of a user's own, read once as long as it does not change.

    Raises:
        BadInput: If the file as a whole cannot be read.
    """
    place = Path(os.path.realpath(path))  # not by pathlib, which raises where links lead in a circle
    status = place.stat() if place.is_file() else None
    return _samples_of(str(place), status and (status.st_mtime_ns, status.st_size))


@final
@dataclass(frozen=True)
class OwnFile:
    """Loads a file of a user's own. A class and no closure, so that it can be sent to another process.

    Args:
        path: Of the ``.npz``, ``.csv`` or ``.parquet``.
        tokens: The modalities that are read as token numbers.
        folds: How many folds its groups are cut into; None for the usual number.
        task: What its labels are; "auto" to see it from them.
    """

    path: str
    tokens: tuple[str, ...] = ()
    folds: int | None = None
    task: str = "auto"

    def __call__(self, fold: int | None) -> Splits:
        """Divide its samples into parts."""
        return _splits_of(samples_of(self.path), fold, self.tokens, self.folds, self.task)

    def cut_into(self, folds: int) -> OwnFile:
        """Return the same with another number of folds; reading tells whether there are as many groups."""
        return replace(self, folds=folds)


@final
@dataclass(frozen=True)
class Watch:
    """Loads `watch`.

    Args:
        folds: How many folds its people are cut into.
    """

    folds: int = len(PEOPLE)

    def __call__(self, fold: int | None) -> Splits:
        """Divide its people into parts."""
        return watch(fold, self.folds)

    def cut_into(self, folds: int) -> Watch:
        """Return the same with another number of folds."""
        if not 3 <= folds <= len(PEOPLE):
            raise BadInput(f"watch: expected 3 to {len(PEOPLE)} folds, found {folds}")
        return Watch(folds)


@final
@dataclass(frozen=True)
class Generated:
    """Loads `generated`, whose folds are draws of its own."""

    def __call__(self, fold: int | None) -> Splits:
        """Make the draw of a fold."""
        return two_sensors(seed=fold or 0)

    def cut_into(self, _folds: int) -> Generated:
        """Return the same: as many draws as are asked for can be made."""
        return self


@final
@dataclass(frozen=True)
class PreparedFolder:
    """Loads a prepared folder.

    Args:
        folder: Its path.
        protocol: By which it is cut.
    """

    folder: str
    protocol: str | None

    def __call__(self, fold: int | None) -> Splits:
        """Map its parts into memory."""
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
    if isinstance(data.load, TrainShare):
        return _within_share(data, data.load, lambda whole: mark_tokens(whole, encoders))
    if not isinstance(data.load, OwnFile):
        return data
    samples = samples_of(data.load.path)
    tokens = {(encoder, features): tokens_of(samples, encoder, features) for encoder, features in encoders}
    if len(set(tokens.values())) > 1:
        listed = "; ".join(f"encoder={one} reads {' and '.join(names) or 'none'}" for (one, _), names in tokens.items())
        expected = "expected runs that read the same sensors as token numbers"
        raise BadInput(f"{data.name}: {expected}, found {listed}; run them apart")
    return replace(data, load=replace(data.load, tokens=next(iter(tokens.values()), ())))


def mark_task(data: DataSet, tasks: Iterable[str]) -> DataSet:
    """Return the data with its labels read for the task of some runs.

    Args:
        data: Whose labels.
        tasks: The setting ``task`` of each run.

    Raises:
        BadInput: If runs have different tasks, or the data of the package has another one.
    """
    if isinstance(data.load, TrainShare):
        return _within_share(data, data.load, lambda whole: mark_task(whole, tasks))
    asked = dict.fromkeys(tasks)
    if len(asked) > 1:
        raise BadInput(f"{data.name}: expected runs of one task, found {', '.join(asked)}; run them apart")
    (task,) = asked or ("auto",)
    if isinstance(data.load, OwnFile):
        return replace(data, load=replace(data.load, task=task))
    if task not in ("auto", "classes"):
        raise BadInput(f"{data.name} holds classes; leave out task={task}")
    return data


def share_of(data: DataSet, share: float) -> DataSet:
    """Return the data with a share of its training samples; see `share.with_train_share`."""
    return data if share == 1 else replace(data, load=TrainShare(data.load, share))


def _within_share(data: DataSet, load: TrainShare, mark: Callable[[DataSet], DataSet]) -> DataSet:
    """Return the data with the whole that a share is taken of marked."""
    return replace(data, load=replace(load, whole=mark(replace(data, load=load.whole)).load))


def tokens_of(samples: Samples, encoder: str, features: int) -> tuple[str, ...]:
    """Return the modalities whose encoder reads token numbers.

    Args:
        samples: Of a user's own file.
        encoder: The setting: a kind or a dotted path for all, or "NAME:KIND,NAME:KIND".
        features: The setting.
    """
    shapes = {name: array.shape[1:] for name, array in samples.inputs.items() if not is_beside(name, samples.inputs)}
    kinds, _ = kinds_of(encoder, shapes)
    # Encoders of pictures or series are not asked: to be asked, some have to be made.
    vectors = [name for name in kinds if name in samples.whole or len(shapes[name]) == 1]
    asked = {name: kinds[name] for name in vectors if kinds[name] != "auto"}
    return tuple(name for name, kind in asked.items() if reads_tokens(kind, tuple(shapes[name]), features))


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
            advice = "give it an encoder with more words, or number the tokens as that encoder does"
            known = f"expected token numbers below {words}, which its encoder knows"
            problems.append(f"{name}: {known}, found {largest}; {advice}")
    raise_all(problems)


@lru_cache(maxsize=2)
def _samples_of(path: str, _version: tuple[int, int] | None) -> Samples:
    return samples_of_npz(path) if Path(path).suffix.lower() == ".npz" else samples_of_manifest(path)


@lru_cache(maxsize=8)
def _splits_of(samples: Samples, fold: int | None, tokens: tuple[str, ...], folds: int | None, task: str) -> Splits:
    read = samples if task == "auto" else samples.for_task(task)
    return Splits.from_samples(read, fold, tokens=tokens, folds=folds)


def _prepared_folder(text: str) -> Path:
    """Return the folder of prepared data; raise an error with what to type where there is none."""
    path = Path(text)
    if text not in PUBLISHED:
        if path.is_dir():
            return path
        raise BadInput(_not_found(path))
    folders = [Path(os.environ[FOLDER_VARIABLE]) / text] if os.environ.get(FOLDER_VARIABLE) else []
    folders += [Path("data") / text, path]
    for folder in folders:
        if (folder / FACTS).is_file():
            return folder
    raise BadInput(
        f"data set {text!r} is not prepared: looked in {', '.join(map(str, folders))}. Prepare it from its originals, "
        f"which its publisher gives: equipoise prepare {text} --source DIR --out {folders[0]}. "
        f"Or set {FOLDER_VARIABLE} to the folder that holds {text}/"
    )


def _not_found(path: Path) -> str:
    if path.exists():
        return f"{path}: expected a prepared folder, or a file that ends in {ENDINGS}; found a file of another kind"
    if os.path.lexists(path):
        return f"{path}: expected a file or a folder, found a link that leads nowhere, or in a circle"
    if path.suffix or os.sep in str(path):
        there = sorted(entry.name for entry in path.parent.iterdir()) if path.parent.is_dir() else []
        near = difflib.get_close_matches(path.name, there, n=1)
        return f"no such file or folder: {path}" + (f"; did you mean {path.parent / near[0]}?" if near else "")
    names = [*all_data(), *PUBLISHED]
    near = difflib.get_close_matches(str(path), names, n=1)
    expected = f"expected one of {', '.join(names)}, a prepared folder, or a file that ends in {ENDINGS}"
    return f"unknown data set {str(path)!r}; " + (f"did you mean {near[0]!r}?" if near else expected)
