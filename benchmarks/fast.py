"""Whole training steps through `equipoise.training.train`, on a GPU: recorded or not, compiled or not, by method.

    python benchmarks/fast.py --only methods,compiled,small,modalities
    python benchmarks/fast.py --only beside --methods primaldual,twin,arl  # beside joint training, in turns
    python benchmarks/fast.py --only whole --folder runs/feeding  # 100 epochs of the CREMA-D preset

Made-up data lies on the device as prepared data does; every step gathers its batch, draws its views, runs the model,
balances, and moves the weights. A figure is the median over epochs of an epoch's time by its steps, after the epoch
that warms up; memory is the most that tensors took at once, less the data.
"""

from __future__ import annotations

import argparse
import gc
import json
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from statistics import linear_regression, mean, median
from typing import Any

import torch
from feeding import Synthetic

from equipoise import AGM, EW, MGDA, MIMO, MSES, MSL, MSLR, OGMGE, Balancer, MMPareto, PrimalDual, Trajectory
from equipoise.data import Part, Splits
from equipoise.data.prepare.prepare import prepare
from equipoise.data.prepare.prepared import Prepared
from equipoise.data.views import Rescaled, VideoFrames
from equipoise.study.registry import all_methods
from equipoise.training.presets import all_presets
from equipoise.training.settings import Settings
from equipoise.training.train import train

METHODS: dict[str, Callable[[], Balancer]] = {
    "msl": MSL,
    "mimo": partial(MIMO, penalty=100.0, smoothing=0.01),
    "ew": EW,
    "ogmge": OGMGE,
    "agm": lambda: AGM(form="fast"),
    "mslr": MSLR,
    "mses": partial(MSES, patience=80),
    "mgda": MGDA,
    "mmpareto": MMPareto,
    "primaldual": lambda: PrimalDual(optimum=stored_trajectory()),
    "twin": lambda: PrimalDual(optimum="twin"),
}
CREMAD = Settings(epochs=5, batch=64, lr=1e-3, fusion="sum", encoder="resnet18", device="cuda")
SMALL = Settings(epochs=4, batch=64, lr=0.1, encoder="lenet", device="cuda")


def cremad(count: int = 40 * 64) -> Splits:
    """Spectrograms of 257 × 188 and three stored frames of 256 × 256, of which two of 224 × 224 are read."""
    sound = torch.randn(count, 1, 257, 188)
    frames = torch.randint(256, (count, 3, 3, 256, 256), dtype=torch.uint8)
    return _splits({"audio": sound, "video": frames}, 6, {"video": VideoFrames(2, 224)})


def avmnist(count: int = 300 * 64) -> Splits:
    """Images of 28 × 28 and spectrograms of 112 × 112, stored as bytes."""
    inputs = {
        name: torch.randint(256, (count, 1, size, size), dtype=torch.uint8)
        for name, size in (("image", 28), ("audio", 112))
    }
    return _splits(inputs, 10, dict.fromkeys(inputs, Rescaled(1 / 255)))


def sensors(modalities: int, count: int = 100 * 64) -> Splits:
    """Vectors of 64 numbers from each sensor."""
    return _splits({f"sensor {number}": torch.randn(count, 64) for number in range(modalities)}, 6, {})


def _splits(inputs: dict[str, Any], classes: int, views: dict[str, Any]) -> Splits:
    label = torch.arange(len(next(iter(inputs.values())))) % classes
    train_part = Part(inputs, label, views=views)
    few = train_part.take(torch.arange(64))
    return Splits("made up", train_part, few, few, tuple(map(str, range(classes))))


def measured(splits: Splits, make: Callable[[], Balancer], settings: Settings) -> dict[str, Any]:
    """Milliseconds of a step, MiB beside the data, and the path that was taken."""
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    trained = train(splits, make(), settings)
    steps = len(splits.train) // settings.batch
    ms = median(record["seconds"] for record in trained.curves[1:]) / steps * 1e3
    data = splits.train.bytes + splits.validation.bytes
    return {
        "ms": ms,
        "first epoch": trained.curves[0]["seconds"],
        "MiB": (torch.cuda.max_memory_allocated() - data) / 2**20,
        **trained.path,
    }


def stored_trajectory(steps: int = 200) -> Trajectory:
    """Losses of a uni-modal run of the two sensors of CREMA-D."""
    trajectory = Trajectory()
    for step in range(steps):
        trajectory.record({name: torch.tensor(1.8 / (1 + 0.01 * step)) for name in ("audio", "video")})
    return trajectory


def beside(names: Sequence[str], rounds: int) -> dict[str, dict[str, Any]]:
    """The cost of methods beside joint training on two ResNet-18; all take turns, and medians count."""
    data, settings = cremad(20 * 64), CREMAD.changed({"epochs": 4, "compile": False})
    makes = {name: METHODS[name] if name in METHODS else all_methods()[name].make for name in ("msl", *names)}
    rows: dict[str, list[dict[str, Any]]] = {name: [] for name in makes}
    for _ in range(rounds):
        for name, make in makes.items():
            rows[name].append(measured(data, make, settings))
    joint = median(row["ms"] for row in rows["msl"])
    for name, found in rows.items():
        ms, memory = median(row["ms"] for row in found), found[-1]["MiB"]
        more = memory - rows["msl"][-1]["MiB"]
        spread = ", ".join(f"{row['ms'] / base['ms']:.3f}" for row, base in zip(found, rows["msl"], strict=True))
        print(
            f"{name:<14}{ms:8.3f} ms {ms / joint:7.3f} × ({spread}) {memory:8.0f} MiB, {more:+.0f}; "
            f"captured: {found[-1]['captured']}",
            flush=True,
        )
    return {name: {"rounds": found} for name, found in rows.items()}


def growth(counts: Sequence[int], rounds: int) -> dict[str, dict[str, Any]]:
    """What MIMO costs beside joint training for each number of sensors; the two take turns, and medians count.

    The line fitted to the differences says what one more sensor adds, as a share of the smallest step and of the mean.
    """
    found: dict[str, dict[str, Any]] = {}
    for capture in (True, False):
        more, steps = [], []
        for count in counts:
            data = sensors(count)
            settings = Settings(epochs=4, batch=64, device="cuda", capture=capture)
            times: dict[str, list[float]] = {"msl": [], "mimo": []}
            for _ in range(rounds):
                for name, row in times.items():
                    row.append(measured(data, METHODS[name], settings)["ms"])
            joint, mimo = median(times["msl"]), median(times["mimo"])
            more.append(mimo - joint)
            steps.append(joint)
            found[f"K={count}, recorded {capture}"] = {"msl": times["msl"], "mimo": times["mimo"]}
            print(f"K={count}, recorded {capture}: joint {joint:.3f} ms, MIMO {mimo:.3f} ms, {mimo / joint:.3f} ×")
        if len(counts) > 1:
            slope = linear_regression(counts, more).slope
            print(
                f"recorded {capture}: one more sensor adds {slope * 1e3:.1f} µs to the difference, "
                f"{slope / min(steps):.2%} of the smallest step, {slope / mean(steps):.2%} of the mean one",
                flush=True,
            )
    return found


def whole_run(folder: Path) -> None:
    """MIMO with the preset of CREMA-D, its 100 epochs, on made-up prepared data of its size."""
    (folder / "nothing").mkdir(parents=True, exist_ok=True)
    prepare(Synthetic(), folder / "nothing", folder / "prepared")
    splits = Prepared.open(folder / "prepared").splits()
    settings = all_presets()["cremad"].settings.changed({"device": "cuda"})
    torch.cuda.reset_peak_memory_stats()
    started = time.perf_counter()
    trained = train(splits, METHODS["mimo"](), settings, on_epoch=_tell_every(20))
    seconds, memory = time.perf_counter() - started, torch.cuda.max_memory_allocated() / 2**30
    print(
        f"{len(trained.curves)} epochs of MIMO in {seconds:.0f} s ({trained.seconds:.0f} s of training), at most "
        f"{memory:.1f} GiB, {trained.path}"
    )


def _tell_every(epochs: int) -> Callable[[dict[str, Any]], None]:
    def tell(record: dict[str, Any]) -> None:
        if record["epoch"] % epochs == 0:
            print(f"epoch {record['epoch']}: {record['seconds']:.2f} s", flush=True)

    return tell


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="methods,compiled,small,modalities")
    parser.add_argument("--methods", default=",".join(METHODS))
    parser.add_argument("--modalities", default="2,3,4,5,6,7,8", help="how many, for that section")
    parser.add_argument("--rounds", type=int, default=3, help="of both methods in turn, for that section")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--folder", type=Path, default=Path("runs/feeding"))
    chosen = parser.parse_args()
    wanted, names = chosen.only.split(","), chosen.methods.split(",")
    found: dict[str, dict[str, Any]] = {}

    def tell(name: str, splits: Splits, method: str, settings: Settings, beside: str | None = None) -> None:
        row = found[name] = measured(splits, METHODS[method], settings)
        ratio = row["ms"] / found[beside]["ms"] if beside in found else 1.0
        memory = row["MiB"] / found[beside]["MiB"] if beside in found else 1.0
        print(
            f"{name:<34}{row['ms']:8.3f} ms {ratio:7.3f} × {row['MiB']:8.0f} MiB {memory:6.3f} × "
            f"first epoch {row['first epoch']:6.1f} s  {row['precision']}, captured: {row['captured']}, "
            f"compiled: {row.get('compiled', '')}",
            flush=True,
        )

    if {"methods", "compiled"} & set(wanted):
        data = cremad()
        if "methods" in wanted:
            tell("msl, as written", data, "msl", CREMAD.changed({"capture": False}))
            tell("msl, as written, fp32", data, "msl", CREMAD.changed({"capture": False, "precision": "fp32"}))
            for name in names:
                tell(f"{name}, recorded", data, name, CREMAD.changed({"compile": False}), "msl, recorded")
        if "compiled" in wanted:
            for name in names:
                tell(f"{name}, compiled", data, name, CREMAD.changed({"compile": True}), "msl, compiled")
    if "small" in wanted:
        data = avmnist()
        for name in names:
            plain = f"{name}, small, as written"
            tell(plain, data, name, SMALL.changed({"capture": False}))
            tell(f"{name}, small, recorded", data, name, SMALL, plain)
    if "modalities" in wanted:
        found |= growth([int(count) for count in chosen.modalities.split(",")], chosen.rounds)
    if "beside" in wanted:
        found |= beside(names, chosen.rounds)
    if "whole" in wanted:
        whole_run(chosen.folder)
    if chosen.json:
        chosen.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
