"""Files of one kind, sounds, pictures, videos or arrays, read into samples that can be stacked."""

import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from equipoise.data.own.arrays import bytes_as_samples
from equipoise.data.own.npz import read_npy
from equipoise.util.errors import Unreadable
from equipoise.util.files import reading
from equipoise.util.processes import memory_problem

READERS = 8
PATIENCE = 2.0  # seconds before progress is shown
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


class StackedFiles(NamedTuple):
    """The files of one column.

    Args:
        values: One array per row; None where some could not be read.
        note: What was done to them.
        failures: Per row that could not be read, why.
    """

    values: list[np.ndarray] | None
    note: str
    failures: dict[int, str]


def stack_files(kind: str, paths: Sequence[Path], usual: Sequence[int], title: str = "") -> StackedFiles:
    """Read the files of a column.

    Args:
        kind: "sound", "image", "video" or "array".
        paths: One per row.
        usual: The rows that decide what is most common.
        title: Shown with the progress.
    """
    note, reader, failures = "", read_npy, dict[int, str]()
    if kind == "video":
        note, reader = f"{FRAMES} frames of {SIDE} × {SIDE}, at equal distances", _read_video
    elif kind != "array":
        describe, rule = (sound_facts, _sound_rule) if kind == "sound" else (_image_facts, _image_rule)
        facts, failures = read_all(describe, paths, f"{title}, looking")
        note, reader = rule([facts[number] for number in usual if number not in failures])
    rows = [number for number in range(len(paths)) if number not in failures]
    tried, _ = read_all(reader, [paths[number] for number in rows[:1]], title)
    for value in (value for value in tried if value is not None):
        shape = (len(rows), *value.shape)
        taken = len(rows) * value.nbytes + bytes_as_samples(shape, value.dtype)
        if why := memory_problem(taken, of=f"{len(rows):,} files of {kind}"):
            return StackedFiles(None, note, {rows[0]: f"{len(rows):,} like {paths[rows[0]]}, {why}"})
    values, late = read_all(reader, [paths[number] for number in rows], title)
    failures |= {rows[place]: why for place, why in late.items()}
    return StackedFiles(None if failures else values, note, failures)


def _sound_rule(facts: Sequence[tuple[int, float]]) -> tuple[str, Callable[[Path], np.ndarray]]:
    facts = facts or [(16_000, 1.0)]
    rate = most_common([rate for rate, _ in facts])
    seconds = sorted(length for _, length in facts)[int(np.ceil(USUAL_SHARE * len(facts))) - 1]
    samples = max(round(min(seconds, LONGEST_SECONDS) * rate), rate // 40 + 1)  # one frame of 25 ms at least

    def read(path: Path) -> np.ndarray:
        from equipoise.media.sound import read_sound, tile
        from equipoise.media.spectrogram import fbank

        wave, _ = read_sound(path, rate)
        start = max(0, (len(wave) - samples) // 2)
        wave = torch.from_numpy(tile(wave[start : start + samples], samples))
        return fbank(wave, rate, BANDS).T.unsqueeze(0).numpy()

    return f"mono at {rate} Hz, {samples / rate:.2f} s, {BANDS} log mel bands", read


def _image_rule(facts: Sequence[tuple[int, int, bool]]) -> tuple[str, Callable[[Path], np.ndarray]]:
    facts = facts or [(LARGEST_SIDE, LARGEST_SIDE, False)]
    high, wide = most_common([(high, wide) for high, wide, _ in facts])
    reduced = min(1.0, LARGEST_SIDE / max(high, wide))
    size = (max(1, round(high * reduced)), max(1, round(wide * reduced)))
    grey = all(grey for _, _, grey in facts)

    def read(path: Path) -> np.ndarray:
        from equipoise.media.video import read_image

        return read_image(path, size, 1 if grey else 3)

    return f"pictures of {size[0]} × {size[1]}, {'grey' if grey else 'in colour'}", read


def _read_video(path: Path) -> np.ndarray:
    from equipoise.media.video import read_frames

    frames = read_frames(path, None, FRAMES, SIDE)
    rows = ((np.arange(FRAMES) + 0.5) * len(frames) / FRAMES).astype(int)  # a shorter video repeats some
    return np.moveaxis(frames[rows], 1, 0)


def sound_facts(path: Path) -> tuple[int, float]:
    """Return rate and seconds, from the header where it can be believed."""
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
    """Return height, width, and whether it is grey."""
    with reading(path):
        from PIL import Image

        from equipoise.media.video import FORMATS

        with Image.open(path, formats=FORMATS) as image:
            return image.height, image.width, image.mode in GREY


def most_common(values: Sequence[Any]) -> Any:
    """Return the most common value; of several as common, the smallest."""
    counts: Counter[Hashable] = Counter(values)
    return min(counts, key=lambda value: (-counts[value], np.prod(value), value))


def read_all(read: Callable[[Path], Any], paths: Sequence[Path], title: str) -> tuple[list[Any], dict[int, str]]:
    """Read files in parallel; return what each gives, None for those that cannot be read, and why these cannot."""
    failures: dict[int, str] = {}

    def attempt(number: int) -> Any:
        try:
            return read(paths[number])
        except Unreadable as why:
            failures[number] = str(why)

    started, values, live = time.perf_counter(), [], sys.stderr.isatty()
    # Readers that silence a decoder's warnings do it for all threads: put back what was, after the last.
    with warnings.catch_warnings(), ThreadPoolExecutor(READERS) as readers:
        for value in readers.map(attempt, range(len(paths))):
            values.append(value)
            if live and time.perf_counter() - started > PATIENCE:
                end = "\n" if len(values) == len(paths) else ""
                print(f"\r{title}: {len(values)} of {len(paths)} files", end=end, file=sys.stderr, flush=True)
    return values, failures
