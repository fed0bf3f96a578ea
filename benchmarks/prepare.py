"""What preparing gains from a second process, on real small videos and sounds; and what it adds to tiny clips.

python benchmarks/prepare.py
"""

from __future__ import annotations

import multiprocessing as mp
import os
import tempfile
import time
from abc import abstractmethod
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import ClassVar, final

import av
import numpy as np
import soundfile
import torch

from equipoise.data.prepare.original import Clip, Clips, Field, Original, Protocol
from equipoise.data.prepare.prepare import prepare
from equipoise.media.sound import read_sound, tile
from equipoise.media.spectrogram import log_stft
from equipoise.media.video import read_frames

CLIPS, SECONDS, RATE, FPS, HIGH, WIDE = 200, 2, 22_050, 30, 360, 480  # of the size that CREMA-D has
TINY_CLIPS = 3_000
ROUNDS = 3  # the best of them counts: other programs only ever add


class Made(Original):
    """What both data sets have in common."""

    summary: ClassVar[str] = "Made on the spot."
    layout: ClassVar[str] = ""
    protocols: ClassVar[dict[str, Protocol]] = {"all": Protocol("everything")}

    count: ClassVar[int]

    @abstractmethod
    def read(self, source: Path, name: str) -> dict[str, np.ndarray]: ...

    def open(self, source: Path) -> Listed:
        return Listed(self, source)

    def classes(self, clips: Clips) -> tuple[str, ...]:  # noqa: ARG002
        return ("even", "odd")


@final
class Listed(Clips):
    """Clips by number."""

    def __init__(self, original: Made, source: Path) -> None:
        self.original, self.source = original, source
        self.listed = [Clip(f"{n:04}", n % 2, f"{n}", {"all": "train"}) for n in range(original.count)]

    def read(self, number: int) -> dict[str, np.ndarray]:
        return self.original.read(self.source, self.listed[number].id)


@final
@dataclass(frozen=True)
class Filmed(Made):
    """Videos of two seconds with sounds beside them, as CREMA-D has them."""

    name: ClassVar[str] = "filmed"
    count: ClassVar[int] = CLIPS

    @property
    def fields(self) -> dict[str, Field]:
        return {"audio": Field((1, 257, 188)), "video": Field((SECONDS, 3, 224, 224), "uint8", ragged=True)}

    def read(self, source: Path, name: str) -> dict[str, np.ndarray]:
        wave, _ = read_sound(source / f"{name}.wav", RATE)
        spectrogram = log_stft(torch.from_numpy(tile(wave, 3 * RATE)), 512, 353)
        return {"audio": spectrogram.numpy()[None], "video": read_frames(source / f"{name}.mp4", 1, SECONDS, 224)}


@final
@dataclass(frozen=True)
class Tiny(Made):
    """Arrays of AV-MNIST's shapes at about two milliseconds each; the image begins with how many microseconds."""

    name: ClassVar[str] = "tiny"
    count: ClassVar[int] = TINY_CLIPS

    @property
    def fields(self) -> dict[str, Field]:
        return {"image": Field((1, 28, 28), "uint8"), "audio": Field((1, 112, 112), "uint8")}

    def read(self, source: Path, name: str) -> dict[str, np.ndarray]:  # noqa: ARG002
        started, random = time.thread_time(), np.random.default_rng(int(name))
        np.sort(random.random(100_000))  # the work
        arrays = {key: random.integers(0, 256, field.shape, np.uint8) for key, field in self.fields.items()}
        arrays["image"][0, 0, :4] = np.full(1, 1e6 * (time.thread_time() - started), np.float32).view(np.uint8)
        return arrays


def make_clips(folder: Path) -> None:
    """Real files: H.264 in mp4, and wav."""
    random = np.random.default_rng(0)
    film = random.integers(0, 256, (SECONDS * FPS, HIGH // 8, WIDE // 8, 3), dtype=np.uint8)
    frames = film.repeat(8, axis=1).repeat(8, axis=2)
    for number in range(CLIPS):
        wave = 0.5 * np.sin(np.arange(SECONDS * RATE) * (0.02 + number / 2000))
        soundfile.write(folder / f"{number:04}.wav", wave, RATE)
        with av.open(str(folder / f"{number:04}.mp4"), "w") as container:
            stream = container.add_stream("libx264", rate=Fraction(FPS), options={"preset": "ultrafast"})
            stream.height, stream.width = HIGH, WIDE
            stream.pix_fmt = "yuv420p"
            for frame in np.roll(frames, number, axis=0):
                container.mux(stream.encode(av.VideoFrame.from_ndarray(frame, format="rgb24")))
            container.mux(stream.encode())


def seconds_of(original: Made, source: Path, workers: int) -> float:
    with tempfile.TemporaryDirectory() as out:
        started = time.perf_counter()
        assert prepare(original, source, Path(out), workers=workers).count == original.count
        return time.perf_counter() - started


def tiny_clips() -> None:
    """Processor time, since other programs change it least."""
    with tempfile.TemporaryDirectory() as out:
        before = os.times()
        prepared = prepare(Tiny(), Path(out).parent, Path(out), workers=2)
        ours, theirs = (1e6 * (sum(os.times()[k : k + 2]) - sum(before[k : k + 2])) / TINY_CLIPS for k in (0, 2))
        read = float(prepared.splits().train.inputs["image"][:, 0, 0, :4].contiguous().view(torch.float32).mean())
    more = f"{theirs - read:.0f} µs more in its worker, {ours:.0f} µs in the parent"
    print(f"a clip that takes {read:.0f} µs to read: {more}; {100 * (ours + theirs - read) / read:.1f} % together")


def bare_seconds(source: Path, workers: int) -> float:
    """The same reading and nothing else: what the machine can gain at best."""
    clips = Filmed().open(source)

    def read(first: int) -> None:
        for number in range(first, CLIPS, workers):
            clips.read(number)

    context = mp.get_context("fork")
    started = time.perf_counter()
    processes = [context.Process(target=read, args=(first,)) for first in range(workers)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    return time.perf_counter() - started


def main() -> None:
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder)
        tiny_clips()
        make_clips(source)
        ways = {"prepare": partial(seconds_of, Filmed(), source), "bare reading": partial(bare_seconds, source)}
        times = {(name, workers): [] for name in ways for workers in (1, 2)}
        for _ in range(ROUNDS):
            for (name, workers), found in times.items():
                found.append(ways[name](workers))
        for name in ways:
            one, two = (min(times[name, workers]) for workers in (1, 2))
            print(f"{CLIPS} clips, {name}: one process {one:.2f} s, two {two:.2f} s; {one / two:.2f} times as fast")


if __name__ == "__main__":
    main()
