"""What AV-MNIST is made of, as its publishers lay it out: images of digits, spoken digits, and noises."""

from __future__ import annotations

import csv
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import final

import numpy as np

from equipoise.data.sets.avmnist_sound import RATE, endless_noise, spoken_part
from equipoise.data.sets.hashing import cut
from equipoise.data.sets.idx import read_idx
from equipoise.data.sets.lists import some
from equipoise.data.splits import PARTS
from equipoise.util.errors import BadInput, Unreadable, collect

SIDE = 28  # pixels
DIGITS = range(10)
SHARES = {"train": 4 / 6, "validation": 1 / 6, "test": 1 / 6}
SALT = "spoken digits"  # one under which the six speakers of the Free Spoken Digit Dataset fall four, one, one
PART_OF_FOLD = {"1": "train", "2": "train", "3": "train", "4": "validation", "5": "test"}

_FILES = {  # of MNIST, with the number of their axes
    "training images": ("train-images-idx3-ubyte", 3),
    "training labels": ("train-labels-idx1-ubyte", 1),
    "test images": ("t10k-images-idx3-ubyte", 3),
    "test labels": ("t10k-labels-idx1-ubyte", 1),
}
_SPOKEN = re.compile(r"(?P<digit>[0-9])_(?P<speaker>[^_]+)_(?P<index>[0-9]+)\.wav")


@final
@dataclass(frozen=True)
class Images:
    """Images of digits.

    Args:
        pixels: Bytes, [N, 28, 28]: those of the training part, then validation, then the test.
        label: [N].
        part: [N].
    """

    pixels: np.ndarray
    label: np.ndarray
    part: np.ndarray


@final
@dataclass(frozen=True)
class Take:
    """What is spoken in one recording of a digit, and the part in which it may be heard."""

    name: str
    digit: int
    speaker: str
    part: str
    wave: np.ndarray


@final
@dataclass(frozen=True)
class Noise:
    """A noise without end, and the part in which it may be heard."""

    name: str
    part: str
    wave: np.ndarray


def read_images(source: Path, folder: str, validation: int) -> Images:
    """The four files of MNIST, gzipped or not, in `source/folder` or right in `source`.

    Args:
        source: Where the ingredients lie.
        folder: Name of the folder in it.
        validation: How many of the last training images validate.

    Raises:
        BadInput: With everything that is wrong.
    """
    names = [name for name, _ in _FILES.values()]
    place = next((each for each in (source / folder, source) if any(_there(each / name) for name in names)), None)
    if place is None:
        raise BadInput(f"images: expected {names[0]}.gz and so on in {source / folder} or {source}, found none")
    questions = [_idx_question(place / name, axes) for name, axes in _FILES.values()]
    train, train_label, test, test_label = collect(*questions)
    problems = []
    for kind, pixels, label in (("training", train, train_label), ("test", test, test_label)):
        if pixels.shape[1:] != (SIDE, SIDE):
            problems.append(f"{place}: expected {kind} images of {SIDE} × {SIDE}, found {pixels.shape[1:]}")
        if len(pixels) != len(label) or not len(label):
            problems.append(f"{place}: expected a label for each {kind} image, found {len(pixels)} and {len(label)}")
        if label.size and label.max() >= len(DIGITS):
            problems.append(f"{place}: expected {kind} labels from 0 to 9, found {label.max()}")
    if validation >= len(train):
        problems.append(f"validation_images: expected fewer than the {len(train)} training images, found {validation}")
    _raise(problems)
    part = np.repeat(PARTS, (len(train) - validation, validation, len(test)))
    return Images(np.concatenate([train, test]), np.concatenate([train_label, test_label]).astype(np.int64), part)


def read_takes(source: Path, folder: str, validation: Sequence[str], test: Sequence[str]) -> list[Take]:
    """Every spoken digit of every speaker, in an order that depends on their names alone.

    Two layouts are known: `recordings/{digit}_{speaker}_{index}.wav` (Free Spoken Digit Dataset) and
    `data/{speaker}/{digit}_{speaker}_{index}.wav` (AudioMNIST).

    Args:
        source: Where the ingredients lie.
        folder: Name of the folder in it; "" for whichever of `fsdd` and `audiomnist` there is, or none at all.
        validation: Speakers heard in validation.
        test: Speakers heard in the test. Where nobody is named, a hash of the names decides.

    Raises:
        BadInput: With everything that is wrong.
    """
    names = [folder] if folder else ["fsdd", "audiomnist"]
    found = {place: files for place in [*(source / name for name in names), source] if (files := _recordings(place))}
    if not found:
        where = " or ".join(str(source / name) for name in names)
        raise BadInput(f"spoken digits: expected recordings/0_SPEAKER_0.wav, or data/SPEAKER/…, in {where}, found none")
    if len(found) > 1:
        both = " and ".join(map(str, found))
        raise BadInput(f"spoken digits: expected one collection, found {both}; say which is meant: spoken=FOLDER")
    [(place, files)] = found.items()
    read = [
        (match["speaker"], int(match["digit"]), int(match["index"]), file)
        for file in files
        if (match := _SPOKEN.fullmatch(file.name))
    ]
    problems = []
    if strange := [file.name for file in files if not _SPOKEN.fullmatch(file.name)]:
        problems.append(f"{place}: expected names like 7_jackson_32.wav, found {some(strange)}")
    heard = Counter((speaker, digit) for speaker, digit, _, _ in read)
    speakers = sorted({speaker for speaker, *_ in read})
    silent = {speaker: [str(digit) for digit in DIGITS if not heard[speaker, digit]] for speaker in speakers}
    problems += [
        f"{place}: expected every digit spoken by {speaker}, found none of {', '.join(missing)}"
        for speaker, missing in silent.items()
        if missing
    ]
    part_of, unfit = part_of_speakers(speakers, validation, test)
    read.sort()
    waves, broken = _sounds([file for *_, file in read], spoken_part)
    _raise([*problems, *unfit, *broken])
    return [
        Take(file.stem, digit, speaker, part_of[speaker], wave)
        for (speaker, digit, _, file), wave in zip(read, waves, strict=True)
    ]


def read_noises(source: Path, folder: str) -> list[Noise]:
    """The noises of ESC-50 that its `meta/esc50.csv` lists, in that order.

    Folds 1 to 3 are heard in training, fold 4 in validation, fold 5 in the test. Its publisher keeps clips that were
    cut from one recording in one fold.

    Raises:
        BadInput: With everything that is wrong.
    """
    table = next((each / "meta" / "esc50.csv" for each in (source / folder, source) if (each / "meta").is_dir()), None)
    if table is None:
        raise BadInput(f"noises: expected meta/esc50.csv and audio/ in {source / folder} or {source}, found none")
    try:
        with table.open(encoding="utf-8-sig", newline="") as file:
            rows = [(row.get("filename") or "", row.get("fold") or "") for row in csv.DictReader(file)]
    except (OSError, UnicodeDecodeError, csv.Error) as problem:
        raise BadInput(f"{table}: expected a table as plain text, found something else ({problem})") from None
    problems = []
    if odd := [repr(name) for name, _ in rows if not name or Path(name).name != name]:
        problems.append(f"{table}: expected names of files in a column filename, found {some(odd)}")
    if odd := [f"{fold!r} of {name}" for name, fold in rows if fold not in PART_OF_FOLD]:
        problems.append(f"{table}: expected folds from 1 to 5 in a column fold, found {some(odd)}")
    heard = {PART_OF_FOLD.get(fold) for _, fold in rows}
    for part in [part for part in PARTS if part not in heard]:
        folds = " or ".join(fold for fold, its in PART_OF_FOLD.items() if its == part)
        problems.append(f"{table}: expected a noise of fold {folds} for {part}, found none")
    _raise(problems)
    waves, broken = _sounds([table.parent.parent / "audio" / name for name, _ in rows], endless_noise)
    _raise(broken)
    return [Noise(Path(name).stem, PART_OF_FOLD[fold], wave) for (name, fold), wave in zip(rows, waves, strict=True)]


def part_of_speakers(
    speakers: Sequence[str], validation: Sequence[str] = (), test: Sequence[str] = ()
) -> tuple[dict[str, str], list[str]]:
    """In which part each speaker is heard, and what is wrong with that.

    Args:
        speakers: All of them.
        validation: Those heard in validation.
        test: Those heard in the test. Where nobody is named, a hash of the speaker's name decides, which does not
            depend on who else there is.
    """
    named = {**dict.fromkeys(validation, "validation"), **dict.fromkeys(test, "test")}
    if named:
        part_of = {speaker: named.get(speaker, "train") for speaker in speakers}
    else:
        part_of = {speaker: cut(speaker, SHARES, SALT) for speaker in speakers}
    there = ", ".join(speakers)
    problems = [f"speakers: expected some of {there}, found {name!r}" for name in named if name not in speakers]
    problems += [f"speakers: expected {name} in one part, found two" for name in validation if name in test]
    if empty := [part for part in PARTS if part not in part_of.values()]:
        problems.append(
            f"speakers: expected at least one in each part, found none for {' and '.join(empty)} among {there}; "
            "with three or more, say who is heard where: validation_speakers=NAME test_speakers=NAME"
        )
    return part_of, problems


def _recordings(place: Path) -> list[Path]:
    """The spoken digits of a folder, in either layout; files whose names begin with a dot are none."""
    found = [*place.glob("recordings/*.wav"), *place.glob("data/*/*.wav")]
    return sorted(file for file in found if not file.name.startswith("."))


def _sounds(files: Sequence[Path], made_of: Callable[[np.ndarray], np.ndarray]) -> tuple[list[np.ndarray], list[str]]:
    """What is made of each file's sound, in their order; and what is wrong with those that cannot be used."""
    from equipoise.media.sound import read_sound

    def one(file: Path) -> np.ndarray | str:
        try:
            return made_of(read_sound(file, RATE)[0])
        except Unreadable as problem:  # it names the file
            return str(problem)
        except BadInput as problem:
            return f"{file}: {problem}"

    with ThreadPoolExecutor() as threads:  # decoding runs outside of Python's lock; `map` keeps the order
        found = list(threads.map(one, files))
    broken = [each for each in found if isinstance(each, str)]
    more = [f"… and {len(broken) - 10} more files that cannot be used"] if len(broken) > 10 else []
    return [each for each in found if not isinstance(each, str)], [*broken[:10], *more]


def _idx_question(path: Path, axes: int) -> Callable[[], np.ndarray]:
    return lambda: read_idx(_there(path) or path, axes)


def _there(path: Path) -> Path | None:
    """A file by its name, or by its name when gzipped."""
    return next((each for each in (path.with_name(path.name + ".gz"), path) if each.exists()), None)


def _raise(problems: Iterable[str]) -> None:
    if text := "\n".join(problems):
        raise BadInput(text)
