"""Files of one modality, read side by side and brought to one form by stated rules.

Sound: one channel; the most common rate (the lower of two as common); as long as nine of ten are, at most ten seconds:
longer ones keep their middle, shorter ones are repeated; as 64 bands of log mel energy, 25 ms every 10 ms, [1, 64, T].
Pictures: the most common size, reduced to 224 pixels where it is larger; grey if all are grey, [C, H, W].
Videos: 8 frames at equal distances, 112 × 112, [3, 8, 112, 112].
Arrays (.npy): as they are; they may differ in time.

What is most common is asked of the rows of the training part where rows are marked, of all rows otherwise.
"""

from __future__ import annotations

import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import numpy as np
import torch

from equipoise.data.own.npz import read_npy
from equipoise.util.errors import Unreadable
from equipoise.util.files import reading

READERS = 8
PATIENCE = 2.0  # seconds before a person is told how far it is
SUFFIXES = {
    "sound": (".wav", ".flac", ".mp3", ".ogg"),
    "image": (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".ppm", ".pgm", ".tif", ".tiff", ".webp"),
    "video": (".mp4", ".avi", ".webm", ".flv", ".mkv", ".mov"),
    "array": (".npy",),
}
LONGEST_SECONDS, USUAL_SHARE, BANDS = 10.0, 0.9, 64
LARGEST_SIDE = 224
FRAMES, SIDE = 8, 112
GREY = ("1", "L", "LA", "I", "I;16", "I;16B", "I;16L")


@final
@dataclass(frozen=True)
class Unified:
    """The files of one column.

    Args:
        values: One array per row; None where some could not be read.
        note: What was done to them.
        failures: Per row that could not be read, why.
    """

    values: list[np.ndarray] | None
    note: str
    failures: dict[int, str]


def unify(kind: str, paths: Sequence[Path], usual: Sequence[int], title: str = "") -> Unified:
    """Read the files of a column.

    Args:
        kind: "sound", "image", "video" or "array".
        paths: One per row.
        usual: The rows that say what is most common.
        title: What a person is told is being read.
    """
    note, reader, failures = RULES[kind](paths, usual, title)
    rows = [number for number in range(len(paths)) if number not in failures]
    values, late = _side_by_side(reader, [paths[number] for number in rows], title)
    failures |= {rows[place]: why for place, why in late.items()}
    return Unified(None if failures else values, note, failures)


Rule = tuple[str, Callable[[Path], np.ndarray], dict[int, str]]


def _sounds(paths: Sequence[Path], usual: Sequence[int], title: str) -> Rule:
    facts, failures = _side_by_side(_sound_facts, paths, f"{title}, looking")
    asked = [facts[number] for number in usual if number not in failures] or [(16_000, 1.0)]
    rate = _most_common([rate for rate, _ in asked])
    seconds = sorted(length for _, length in asked)[int(np.ceil(USUAL_SHARE * len(asked))) - 1]
    seconds = min(seconds, LONGEST_SECONDS)
    samples = max(round(seconds * rate), rate // 40 + 1)  # one frame of 25 ms at least

    def read(path: Path) -> np.ndarray:
        from equipoise.media.sound import read_sound, tile
        from equipoise.media.spectrogram import fbank

        wave, _ = read_sound(path, rate)
        start = max(0, (len(wave) - samples) // 2)
        wave = torch.from_numpy(tile(wave[start : start + samples], samples))
        return fbank(wave, rate, BANDS).T.unsqueeze(0).numpy()

    return f"mono at {rate} Hz, {samples / rate:.2f} s, {BANDS} log mel bands", read, failures


def _images(paths: Sequence[Path], usual: Sequence[int], title: str) -> Rule:
    facts, failures = _side_by_side(_image_facts, paths, f"{title}, looking")
    asked = [facts[number] for number in usual if number not in failures] or [(LARGEST_SIDE, LARGEST_SIDE, False)]
    high, wide = _most_common([(high, wide) for high, wide, _ in asked])
    reduced = min(1.0, LARGEST_SIDE / max(high, wide))
    size = (max(1, round(high * reduced)), max(1, round(wide * reduced)))
    channels = 1 if all(grey for _, _, grey in asked) else 3

    def read(path: Path) -> np.ndarray:
        from equipoise.media.image import read_image

        return read_image(path, size, channels)

    return f"pictures of {size[0]} × {size[1]}, {'grey' if channels == 1 else 'in colour'}", read, failures


def _videos(_: Sequence[Path], __: Sequence[int], ___: str) -> Rule:
    return f"{FRAMES} frames of {SIDE} × {SIDE}, at equal distances", _frames, {}


def _arrays(_: Sequence[Path], __: Sequence[int], ___: str) -> Rule:
    return "", read_npy, {}


RULES: dict[str, Callable[[Sequence[Path], Sequence[int], str], Rule]] = {
    "sound": _sounds,
    "image": _images,
    "video": _videos,
    "array": _arrays,
}


def _frames(path: Path) -> np.ndarray:
    from equipoise.media.video import read_frames

    found = read_frames(path, None, FRAMES, SIDE)
    rows = ((np.arange(FRAMES) + 0.5) * len(found) / FRAMES).astype(int)  # a shorter video repeats some
    return np.moveaxis(found[rows], 1, 0)


def _sound_facts(path: Path) -> tuple[int, float]:
    """Rate and seconds, from the header where it can be believed."""
    from equipoise.media.sound import HIGHEST_RATE, LOWEST_RATE, read_sound

    with reading(path):
        import soundfile

        try:
            info = soundfile.info(str(path))
            if info.frames > 0 and LOWEST_RATE <= info.samplerate <= HIGHEST_RATE:
                return info.samplerate, info.frames / info.samplerate
        except (RuntimeError, TypeError):  # of another format, or broken: the reader says which
            pass
    wave, rate = read_sound(path)
    return rate, len(wave) / rate


def _image_facts(path: Path) -> tuple[int, int, bool]:
    """Height, width, and whether it is grey."""
    with reading(path):
        from PIL import Image

        from equipoise.media.image import FORMATS

        with Image.open(path, formats=FORMATS) as image:
            return image.height, image.width, image.mode in GREY


def _most_common(found: Sequence[Any]) -> Any:
    """The most common value; of several as common, the smallest."""
    counted: Counter[Hashable] = Counter(found)
    return min(counted, key=lambda value: (-counted[value], np.prod(value), value))


def _side_by_side(read: Callable[[Path], Any], paths: Sequence[Path], title: str) -> tuple[list[Any], dict[int, str]]:
    """What each file gives, None for those that cannot be read; and why these cannot."""
    failures: dict[int, str] = {}

    def attempt(number: int) -> Any:
        try:
            return read(paths[number])
        except Unreadable as why:
            failures[number] = str(why)
            return None

    started, found = time.perf_counter(), []
    told = sys.stderr.isatty()
    # Readers that silence a decoder's warnings do it for all threads: put back what was, after the last.
    with warnings.catch_warnings(), ThreadPoolExecutor(READERS) as readers:
        for each in readers.map(attempt, range(len(paths))):
            found.append(each)
            if told and time.perf_counter() - started > PATIENCE:
                print(f"\r{title}: {len(found)} of {len(paths)} files", end="", file=sys.stderr, flush=True)
    if told and time.perf_counter() - started > PATIENCE:
        print(file=sys.stderr)
    return found, failures
