"""What the training loop costs beside a bare loop written by hand, on the smartwatch data, in one run.

python benchmarks/loop.py
"""

from __future__ import annotations

import statistics
import time

import torch
from torch.nn import functional as F

from equipoise import MIMO, MSL
from equipoise.balance.balancer import Balancer
from equipoise.data import watch
from equipoise.data.splits import Splits
from equipoise.training.settings import Settings
from equipoise.training.train import build_model, train


def bare_epoch(splits: Splits, settings: Settings) -> float:
    """Joint training as one would write it: shuffle, forward, losses, backward, step."""
    torch.manual_seed(0)
    model = build_model(splits, MSL(), settings).train()
    optimizer = torch.optim.SGD(model.parameters(), settings.lr, momentum=0.9, weight_decay=1e-4)
    part = splits.train
    started = time.perf_counter()
    for rows in torch.randperm(len(part)).split(settings.batch):
        outputs = model({name: array[rows] for name, array in part.inputs.items()})
        loss = torch.stack([F.cross_entropy(z, part.label[rows]) for z in outputs.values()]).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return time.perf_counter() - started


def our_epoch(splits: Splits, settings: Settings, balancer: Balancer) -> float:
    return train(splits, balancer, settings).curves[0]["seconds"]


def main() -> None:
    torch.set_num_threads(1)
    splits, settings = watch(), Settings(epochs=1, device="cpu")
    ways = {
        "bare loop": lambda: bare_epoch(splits, settings),
        "train, msl": lambda: our_epoch(splits, settings, MSL()),
        "train, mimo": lambda: our_epoch(splits, settings, MIMO()),
    }
    times: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(7):
        for name, way in ways.items():
            times[name].append(way())
    bare = statistics.median(times["bare loop"])
    for name, found in times.items():
        print(f"{name:<12} {statistics.median(found):.3f} s per epoch, {statistics.median(found) / bare:.3f} × bare")


if __name__ == "__main__":
    main()
