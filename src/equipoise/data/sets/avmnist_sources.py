"""The sources of AV-MNIST, as their publishers lay them out: images of digits, spoken digits, and noises.

A sound becomes the picture of a spoken digit in noise, with numpy alone, the same every time: a power spectrogram of
one second at 8 kHz. The transform is chosen so that it has 112 × 112 cells by itself and nothing is resized: windows of
224 samples, one every 70, of which the 112 frequencies above zero are kept.
"""

import csv
import gzip
import math
import re
import zlib
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import BinaryIO, NamedTuple, cast, final

import numpy as np

from equipoise.data.prepare.original import Problems, part_by_hash
from equipoise.data.splits import PARTS
from equipoise.media.sound import read_sound
from equipoise.util.errors import BadInput, Unreadable, collect, raise_all
from equipoise.util.files import reading
from equipoise.util.processes import memory_problem

SIDE = 28  # pixels
DIGITS = range(10)
SHARES = {"train": 4 / 6, "validation": 1 / 6, "test": 1 / 6}
SALT = "spoken digits"  # one under which the six speakers of the Free Spoken Digit Dataset fall four, one, one
PART_OF_FOLD = {"1": "train", "2": "train", "3": "train", "4": "validation", "5": "test"}
MNIST_FILES = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")
SPOKEN_NAME = re.compile(r"([0-9])_([^_]+)_([0-9]+)\.wav")  # digit, speaker, index
Process = Callable[[np.ndarray], np.ndarray]
MOST_BYTES = 2**30  # larger claims of an idx file are not believed

RATE = 8_000  # hertz
WINDOW, HOP = 224, 70
ROWS, COLUMNS = WINDOW // 2, 112
SAMPLES = (COLUMNS - 1) * HOP + WINDOW  # 7,994: one second but for six samples
BLOCK = 160  # samples, 20 ms: the grain in which silence is told
SPEECH_RANGE, NOISE_RANGE = 30.0, 40.0  # decibels below the loudest block: what is softer is silence
LEVEL = 0.01  # power of every spoken part: as loud as a sine of height 0.14
LOWEST, HIGHEST = -100.0, 0.0  # decibels, black and white; a sine of height 1 has 0
SHORTEST = 2 * BLOCK  # a stretch as long holds a whole block of a noise, so it has power

_HANN = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(WINDOW) / WINDOW)
_FULL_SCALE = _HANN.sum() / 2  # what the transform makes of a sine of height 1


@final
class DigitImages(NamedTuple):
    """Images of digits: bytes [N, 28, 28], first for training, then validation, then test; labels [N]; parts [N]."""

    pixels: np.ndarray
    label: np.ndarray
    part: np.ndarray


@final
class SpokenDigit(NamedTuple):
    """The spoken part of one recording of a digit, and the part in which it may be heard."""

    name: str
    digit: int
    speaker: str
    part: str
    wave: np.ndarray


@final
class NoiseRecording(NamedTuple):
    """A noise without end, and the part in which it may be heard."""

    name: str
    part: str
    wave: np.ndarray


def read_images(source: Path, folder: str, validation: int) -> DigitImages:
    """Read the four files of MNIST, gzipped or not, in `source/folder` or right in `source`.

    Args:
        source: Where the sources lie.
        folder: Name of the folder in it.
        validation: How many of the last training images validate.

    Raises:
        BadInput: With everything that is wrong.
    """
    for place in (source / folder, source):
        # By name, or by name when gzipped.
        paths = [next((p for p in (place / f"{name}.gz", place / name) if p.exists()), None) for name in MNIST_FILES]
        if any(paths):
            break
    else:
        raise BadInput(f"images: expected {MNIST_FILES[0]}.gz and so on in {source / folder} or {source}, found none")
    files = zip(MNIST_FILES, paths, strict=True)
    readers = [partial(read_idx, path or place / name, 3 if "idx3" in name else 1) for name, path in files]
    train, train_label, test, test_label = collect(*readers)
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
    raise_all(problems)
    part = np.repeat(PARTS, (len(train) - validation, validation, len(test)))
    return DigitImages(np.concatenate([train, test]), np.concatenate([train_label, test_label]).astype(np.int64), part)


def read_idx(path: str | Path, axes: int) -> np.ndarray:
    """Read an idx file of unsigned bytes, the format of MNIST, gzipped or not.

    Whether it is gzipped is told by its first bytes, not by its name. Nothing is read beyond what the header claims, so
    that a small file cannot unpack to a huge one.

    Args:
        path: The file.
        axes: How many axes its array has: 3 for images, 1 for labels.

    Raises:
        Unreadable: If the file is missing or broken, or holds something else.
    """
    with reading(path) as path:
        with path.open("rb") as file:
            zipped = file.read(2) == b"\x1f\x8b"
        try:
            with gzip.open(path) if zipped else path.open("rb") as file:
                return _parse_idx(path, cast("BinaryIO", file), axes)
        except (EOFError, zlib.error, gzip.BadGzipFile) as problem:
            raise Unreadable(f"{path}: expected a whole gzip file, found a damaged one ({problem})") from None


def _parse_idx(path: Path, file: BinaryIO, axes: int) -> np.ndarray:
    magic, expected = file.read(4), bytes([0, 0, 8, axes])  # 8 marks unsigned bytes
    if magic != expected:
        wanted = f"expected the magic number {expected.hex()} (idx, unsigned bytes, {axes} axes)"
        raise Unreadable(f"{path}: {wanted}, found {magic.hex() or 'nothing'}")
    lengths = file.read(4 * axes)
    if len(lengths) < 4 * axes:
        raise Unreadable(f"{path}: expected a header of {4 + 4 * axes} bytes, found {4 + len(lengths)}")
    shape = tuple(np.frombuffer(lengths, ">u4").tolist())
    claimed = math.prod(shape)
    if claimed > MOST_BYTES:
        raise Unreadable(f"{path}: expected at most {MOST_BYTES:,} bytes, found a header that claims {shape}")
    if why := memory_problem(claimed):
        raise Unreadable(f"{path}: {why}")
    content = file.read(claimed + 1)
    if len(content) != claimed:
        found = f"{len(content):,}" if len(content) < claimed else "more"
        raise Unreadable(f"{path}: the header claims {shape}, which is {claimed:,} bytes; found {found}")
    return np.frombuffer(content, np.uint8).reshape(shape)


def read_spoken_digits(source: Path, folder: str, validation: Sequence[str], test: Sequence[str]) -> list[SpokenDigit]:
    """Read every spoken digit of every speaker, in an order that depends on their names alone.

    Two layouts are known: `recordings/{digit}_{speaker}_{index}.wav` (Free Spoken Digit Dataset) and
    `data/{speaker}/{digit}_{speaker}_{index}.wav` (AudioMNIST).

    Args:
        source: Where the sources lie.
        folder: Name of the folder in it; "" for whichever of `fsdd` and `audiomnist` there is, or none at all.
        validation: Speakers heard in validation.
        test: Speakers heard in the test. Where nobody is named, a hash of the names decides.

    Raises:
        BadInput: With everything that is wrong.
    """
    names = [folder] if folder else ["fsdd", "audiomnist"]
    collections = {}
    for place in [*(source / name for name in names), source]:
        paths = sorted([*place.glob("recordings/*.wav"), *place.glob("data/*/*.wav")])
        if files := [path for path in paths if not path.name.startswith(".")]:
            collections[place] = files
    if not collections:
        where = " or ".join(str(source / name) for name in names)
        raise BadInput(f"spoken digits: expected recordings/0_SPEAKER_0.wav, or data/SPEAKER/…, in {where}, found none")
    if len(collections) > 1:
        both = " and ".join(map(str, collections))
        raise BadInput(f"spoken digits: expected one collection, found {both}; say which is meant: spoken=FOLDER")
    [(place, files)] = collections.items()
    problems = Problems()
    matches = [(SPOKEN_NAME.fullmatch(file.name), file) for file in files]
    strange = [file.name for match, file in matches if not match]
    problems.unexpected(f"{place}: expected names like 7_jackson_32.wav", strange)
    takes = sorted((match[2], int(match[1]), int(match[3]), file) for match, file in matches if match)
    heard = Counter((speaker, digit) for speaker, digit, _, _ in takes)
    speakers = sorted({speaker for speaker, _ in heard})
    for speaker in speakers:
        if missing := [str(digit) for digit in DIGITS if not heard[speaker, digit]]:
            problems.append(f"{place}: expected every digit spoken by {speaker}, found none of {', '.join(missing)}")
    part_of, speaker_problems = part_of_speakers(speakers, validation, test)
    waves, broken = _read_sounds([file for *_, file in takes], spoken_part)
    raise_all([*problems, *speaker_problems, *broken])
    return [
        SpokenDigit(file.stem, digit, speaker, part_of[speaker], wave)
        for (speaker, digit, _, file), wave in zip(takes, waves, strict=True)
    ]


def part_of_speakers(
    speakers: Sequence[str], validation: Sequence[str] = (), test: Sequence[str] = ()
) -> tuple[dict[str, str], list[str]]:
    """Return the part in which each speaker is heard, and what is wrong with that.

    Args:
        speakers: All of them.
        validation: Those heard in validation.
        test: Those heard in the test. Where nobody is named, a hash of the speaker's name decides, which does not
            depend on who else there is.
    """
    named = {**dict.fromkeys(validation, "validation"), **dict.fromkeys(test, "test")}
    drawn = {} if named else {speaker: part_by_hash(speaker, SHARES, SALT) for speaker in speakers}
    part_of = drawn or {speaker: named.get(speaker, "train") for speaker in speakers}
    there = ", ".join(speakers)
    problems = [f"speakers: expected some of {there}, found {name!r}" for name in named if name not in speakers]
    problems += [f"speakers: expected {name} in one part, found two" for name in validation if name in test]
    if empty := [part for part in PARTS if part not in part_of.values()]:
        hint = "with three or more, say who is heard where: validation_speakers=NAME test_speakers=NAME"
        expected = "speakers: expected at least one in each part"
        problems.append(f"{expected}, found none for {' and '.join(empty)} among {there}; {hint}")
    return part_of, problems


def read_noises(source: Path, folder: str) -> list[NoiseRecording]:
    """Read the noises of ESC-50 that its `meta/esc50.csv` lists, in that order.

    Folds 1 to 3 are heard in training, fold 4 in validation, fold 5 in the test. Its publisher keeps clips that were
    cut from one recording in one fold.

    Raises:
        BadInput: With everything that is wrong.
    """
    place = next((place for place in (source / folder, source) if (place / "meta").is_dir()), None)
    if place is None:
        raise BadInput(f"noises: expected meta/esc50.csv and audio/ in {source / folder} or {source}, found none")
    table = place / "meta" / "esc50.csv"
    try:
        with table.open(encoding="utf-8-sig", newline="") as file:
            rows = [(row.get("filename") or "", row.get("fold") or "") for row in csv.DictReader(file)]
    except (OSError, UnicodeDecodeError, csv.Error) as problem:
        raise BadInput(f"{table}: expected a table as plain text, found something else ({problem})") from None
    problems = Problems()
    strange = [repr(name) for name, _ in rows if not name or Path(name).name != name]
    problems.unexpected(f"{table}: expected names of files in a column filename", strange)
    strange = [f"{fold!r} of {name}" for name, fold in rows if fold not in PART_OF_FOLD]
    problems.unexpected(f"{table}: expected folds from 1 to 5 in a column fold", strange)
    heard = {PART_OF_FOLD.get(fold) for _, fold in rows}
    for part in [part for part in PARTS if part not in heard]:
        folds = " or ".join(fold for fold, its in PART_OF_FOLD.items() if its == part)
        problems.append(f"{table}: expected a noise of fold {folds} for {part}, found none")
    raise_all(problems)
    waves, broken = _read_sounds([place / "audio" / name for name, _ in rows], endless_noise)
    raise_all(broken)
    return [
        NoiseRecording(Path(name).stem, PART_OF_FOLD[fold], wave)
        for (name, fold), wave in zip(rows, waves, strict=True)
    ]


def _read_sounds(files: Sequence[Path], process: Process) -> tuple[list[np.ndarray], list[str]]:
    """Return the processed sounds in their order, and what is wrong with those that cannot be used."""

    def read(file: Path) -> np.ndarray | str:
        try:
            return process(read_sound(file, RATE)[0])
        except Unreadable as problem:  # it names the file
            return str(problem)
        except BadInput as problem:
            return f"{file}: {problem}"

    with ThreadPoolExecutor() as threads:  # decoding runs outside of Python's lock; `map` keeps the order
        results = list(threads.map(read, files))
    broken = [result for result in results if isinstance(result, str)]
    more = [f"… and {len(broken) - 10} more files that cannot be used"] if len(broken) > 10 else []
    return [result for result in results if not isinstance(result, str)], [*broken[:10], *more]


def spoken_part(wave: np.ndarray) -> np.ndarray:
    """Return what is spoken in a recording, at a power of `LEVEL`, at most `SAMPLES` long.

    It reaches from the first block that is at most 30 dB softer than the loudest one to the last. Of a longer part, the
    stretch with most energy is kept: in a few recordings the middle holds nothing but the room.

    Raises:
        BadInput: If there is nothing in it.
    """
    wave = _checked(wave)
    loud = np.flatnonzero(_loud_blocks(wave, SPEECH_RANGE))
    end = len(wave) if loud[-1] + 1 == len(wave) // BLOCK else (loud[-1] + 1) * BLOCK
    part = wave[loud[0] * BLOCK : end]
    if len(part) > SAMPLES:
        energy = np.concatenate([[0.0], np.cumsum(part**2)])
        start = int(np.argmax(energy[SAMPLES:] - energy[:-SAMPLES]))
        part = part[start : start + SAMPLES]
    _demand_length(part)
    return (part * np.sqrt(LEVEL / np.mean(part**2))).astype(np.float32)


def endless_noise(wave: np.ndarray) -> np.ndarray:
    """Return a noise without its silent blocks, continued by its own beginning: a second can start anywhere.

    Many published clips are padded with zeros, and no factor makes a ratio of speech to silence.

    Returns:
        What is left, and `SAMPLES` more.

    Raises:
        BadInput: If there is nothing in it.
    """
    wave = _checked(wave)
    blocks = wave[: len(wave) // BLOCK * BLOCK].reshape(-1, BLOCK)[_loud_blocks(wave, NOISE_RANGE)]
    return np.resize(blocks, blocks.size + SAMPLES).astype(np.float32)


def mixed(spoken: np.ndarray, noise: np.ndarray, ratio: float) -> np.ndarray:
    """Add a spoken part to the middle of a second of noise.

    Args:
        spoken: At most `SAMPLES` long.
        noise: `SAMPLES` long.
        ratio: Power of the spoken part over the power of the noise during it, in decibels; infinity for no noise.

    Returns:
        `SAMPLES` numbers.
    """
    start = (SAMPLES - len(spoken)) // 2
    during = slice(start, start + len(spoken))
    speech, noise = spoken.astype(np.float64), noise.astype(np.float64)
    power = np.mean(speech**2) / np.mean(noise[during] ** 2)
    wave = noise * np.sqrt(power * 10 ** (-ratio / 10))
    wave[during] += speech
    return wave


def spectrogram(wave: np.ndarray) -> np.ndarray:
    """Compute the picture of `SAMPLES` numbers: decibels between fixed limits, as bytes [112, 112].

    Row r is the frequency (r + 1) · 8000/224 Hz, so the lowest comes first; column c starts at sample 70 c.
    """
    frames = np.lib.stride_tricks.sliding_window_view(wave, WINDOW)[::HOP]
    spectra = np.fft.rfft(frames * _HANN)[:, 1:]
    power = (spectra.real**2 + spectra.imag**2) / _FULL_SCALE**2
    decibels = 10 * np.log10(np.maximum(power, 10 ** (LOWEST / 10)))
    return np.minimum(np.rint((decibels - LOWEST) * (255 / (HIGHEST - LOWEST))), 255).astype(np.uint8).T


def _checked(wave: np.ndarray) -> np.ndarray:
    _demand_length(wave)
    if not np.isfinite(wave).all():
        raise BadInput("expected finite numbers, found NaN or infinity")
    if not wave[: len(wave) // BLOCK * BLOCK].any():
        raise BadInput("expected a sound, found silence")
    return wave.astype(np.float64)


def _demand_length(wave: np.ndarray) -> None:
    if len(wave) < SHORTEST:
        shortest, length = 1000 * SHORTEST / RATE, 1000 * len(wave) / RATE
        raise BadInput(f"expected at least {shortest:g} ms of sound, found {length:.3g} ms")


def _loud_blocks(wave: np.ndarray, decibels: float) -> np.ndarray:
    """Mark the whole blocks that are at most so much softer than the loudest one."""
    power = np.mean(wave[: len(wave) // BLOCK * BLOCK].reshape(-1, BLOCK) ** 2, axis=1)
    return power >= power.max() * 10 ** (-decibels / 10)
