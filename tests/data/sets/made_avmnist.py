"""Tiny ingredients of AV-MNIST in their publishers' layouts; every digit is spoken as a tone of its own."""

import gzip
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from equipoise.data.sets.avmnist_sources import RATE, WINDOW
from media.made import make_wav

SPEAKERS = ("george", "jackson", "lucas", "nicolas", "theo", "yweweler")
TRAIN, VALIDATION, TEST = 30, 10, 20
FOLDS = {"1-7-A-0.wav": 1, "2-7-A-1.wav": 2, "3-7-A-2.wav": 3, "4-7-A-3.wav": 4, "5-7-A-4.wav": 5}


def idx_bytes(array: np.ndarray) -> bytes:
    lengths = b"".join(length.to_bytes(4, "big") for length in array.shape)
    return bytes([0, 0, 8, array.ndim]) + lengths + array.tobytes()


def write_idx(path: Path, array: np.ndarray) -> None:
    content = idx_bytes(array)
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)


def row_of(digit: int) -> int:
    """Where in a spectrogram a digit's tone lies."""
    return 9 + 10 * digit


def make_images(folder: Path, *, zipped: bool = True) -> Path:
    """NoiseRecording, darker for larger digits, in the four files of MNIST."""
    random = np.random.default_rng(0)
    folder.mkdir(parents=True, exist_ok=True)
    for stem, count in (("train", TRAIN + VALIDATION), ("t10k", TEST)):
        label = random.permutation(np.arange(count) % 10).astype(np.uint8)
        pixels = random.integers(0, 256, (count, 28, 28)) // (1 + label[:, None, None])
        for name, array in (("images-idx3", pixels.astype(np.uint8)), ("labels-idx1", label)):
            write_idx(folder / f"{stem}-{name}-ubyte{'.gz' if zipped else ''}", array)
    return folder


def make_takes(folder: Path, speakers: Iterable[str] = SPEAKERS, *, rate: int = RATE, nested: bool = False) -> Path:
    """Two takes a digit of every speaker, as loud and as long as they like."""
    for number, speaker in enumerate(speakers):
        place = folder / "data" / speaker if nested else folder / "recordings"
        for digit in range(10):
            for index in range(2):
                hertz, seconds = (row_of(digit) + 1) * RATE / WINDOW, 0.2 + 0.05 * index + 0.02 * number
                make_wav(place / f"{digit}_{speaker}_{index}.wav", seconds, rate, hertz, height=0.1 + 0.1 * number)
    return folder


def make_noises(folder: Path) -> Path:
    """One clip a fold: white noise for a part of it, then zeros, as many published ones are."""
    random = np.random.default_rng(1)
    for name in FOLDS:
        wave = 0.2 * random.standard_normal(30_000)
        wave[12_000:] = 0
        make_wav(folder / "audio" / name, rate=44_100, wave=wave)
    (folder / "meta").mkdir(exist_ok=True)
    rows = [f"{name},{fold},{name.split('-')[-1][:-4]},dog,True,7,A" for name, fold in FOLDS.items()]
    table = "\n".join(["filename,fold,target,category,esc10,src_file,take", *rows])
    (folder / "meta" / "esc50.csv").write_text(table + "\n", encoding="utf-8")
    return folder


def make_ingredients(source: Path) -> Path:
    make_images(source / "mnist")
    make_takes(source / "fsdd")
    make_noises(source / "esc50")
    return source
