"""What it costs to bring data to the training step: an epoch of CREMA-D's size against its steps alone.

    python benchmarks/feeding.py --folder runs/feeding

prepares made-up clips of the real size (6,698 clips: a 257 × 188 spectrogram and three frames of 256 × 256 each), then
trains with the CREMA-D preset on a GPU: on one batch that lies ready, on data resident on the device, and streamed
from disk (first with nothing of it in memory, then as it comes). Prints medians of epochs and the ratios.
"""

from __future__ import annotations

import argparse
import os
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import ClassVar

import numpy as np
import torch

from equipoise import MIMO, MSL, Balancer
from equipoise.data.feed import micro_batches
from equipoise.data.prepare.original import Clip, Clips, Field, Original, Protocol
from equipoise.data.prepare.prepare import prepare
from equipoise.data.prepare.prepared import Prepared
from equipoise.data.splits import Splits
from equipoise.data.views import VideoFrames
from equipoise.training.presets import all_presets
from equipoise.training.settings import Settings
from equipoise.training.train import Run, train

TRAIN, OTHERS = 6698, 128


class MadeUp(Clips):
    """Noise, drawn anew whenever it is read."""

    def __init__(self, listed: list[Clip], size: int) -> None:
        self.listed, self.size = listed, size

    def read(self, number: int) -> dict[str, np.ndarray]:
        random = np.random.default_rng(number)
        video = random.integers(0, 256, (3, 3, self.size, self.size), dtype=np.uint8)
        return {"audio": random.standard_normal((1, 257, 188), dtype=np.float32), "video": video}


@dataclass(frozen=True)
class Synthetic(Original):
    """No files at all."""

    name: ClassVar[str] = "synthetic"
    summary: ClassVar[str] = "Made-up clips of CREMA-D's size."
    layout: ClassVar[str] = ""
    protocols: ClassVar[dict[str, Protocol]] = {"made-up": Protocol("By number.")}
    size: int = 256
    train: int = TRAIN

    @property
    def fields(self) -> dict[str, Field]:
        frames = Field((3, 3, self.size, self.size), "uint8", ragged=True, view=VideoFrames(2, 224))
        return {"audio": Field((1, 257, 188)), "video": frames}

    def open(self, source: Path) -> Clips:  # noqa: ARG002
        parts = ["train"] * self.train + ["validation"] * OTHERS + ["test"] * OTHERS
        listed = [Clip(str(n), n % 6, str(n), {"made-up": part}) for n, part in enumerate(parts)]
        return MadeUp(listed, self.size)

    def classes(self, clips: Clips) -> tuple[str, ...]:  # noqa: ARG002
        return ("NEU", "HAP", "SAD", "FEA", "DIS", "ANG")


def steps_alone(splits: Splits, make: type[Balancer], settings: Settings, epochs: int) -> list[float]:
    """Seconds of the steps of an epoch, recorded as training records them, on one batch that lies ready."""
    made = splits.train.take(torch.arange(settings.batch)).to("cuda").ready()
    ready = Splits("ready", made, made, made, splits.classes)
    run = Run(ready, make(), settings.changed({"capture": True}))
    run.model.train()
    pieces = micro_batches(torch.arange(settings.batch), 0, 1, 1)
    rows = torch.arange(settings.batch, device="cuda")
    found = []
    for _ in range(epochs):
        torch.cuda.synchronize()
        started = time.perf_counter()
        for _ in range(-(-len(splits.train) // settings.batch)):
            run.captured(rows, pieces)
        torch.cuda.synchronize()
        found.append(time.perf_counter() - started)
    return found[1:]


def epochs_of(splits: Splits, make: type[Balancer], settings: Settings) -> tuple[list[float], float]:
    torch.cuda.reset_peak_memory_stats()
    curves = train(splits, make(), settings).curves
    return [record["seconds"] for record in curves], torch.cuda.max_memory_allocated() / 2**30


def forget(folder: Path) -> None:
    """Ask the system to drop what it keeps of the files in memory."""
    for path in folder.glob("*.safetensors"):
        with path.open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=Path("runs/feeding"))
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--precisions", default="bf16")
    chosen = parser.parse_args()
    source = chosen.folder / "nothing"
    source.mkdir(parents=True, exist_ok=True)
    started = time.perf_counter()
    prepare(Synthetic(), source, chosen.folder / "prepared")
    gigabytes = sum(path.stat().st_size for path in (chosen.folder / "prepared").glob("*.safetensors")) / 2**30
    print(f"prepared {TRAIN + 2 * OTHERS} clips, {gigabytes:.2f} GiB, in {time.perf_counter() - started:.1f} s")
    splits = Prepared.open(chosen.folder / "prepared").splits()
    for precision in chosen.precisions.split(","):
        base = all_presets()["cremad"].settings.changed(
            {"precision": precision, "epochs": chosen.epochs, "compile": False}
        )
        for make in (MSL, MIMO):
            alone = median(steps_alone(splits, make, base, chosen.epochs))
            resident, held = epochs_of(splits, make, base.changed({"feed": "resident"}))
            forget(chosen.folder / "prepared")
            streamed, light = epochs_of(splits, make, base.changed({"feed": "streamed"}))
            print(
                f"{precision} {make.__name__}: steps alone {alone:.2f} s an epoch; "
                f"resident {median(resident[1:]):.2f} s, {median(resident[1:]) / alone:.3f} ×, {held:.1f} GiB; "
                f"streamed {median(streamed[1:]):.2f} s, {median(streamed[1:]) / alone:.3f} ×, {light:.1f} GiB "
                f"(its first epoch, nothing in memory: {streamed[0]:.2f} s, {streamed[0] / alone:.3f} ×)"
            )


if __name__ == "__main__":
    main()
