"""Made-up data for every task, complete or with gaps."""

import torch
from torch import Tensor

from equipoise.data.splits import Part, Splits
from equipoise.models.task import Classification, MultiLabel, Regression, Task

KINDS = ("classes", "labels", "regression")


def part_of(kind: str, count: int, seed: int, gaps: float = 0.0, filling: float = 0.0) -> Part:
    """Samples of two series and a vector that tell the target, some of them without the second series."""
    random = torch.Generator().manual_seed(seed)
    target = torch.randn(count, 2, generator=random)
    inputs = {
        "near": target[:, :1, None] + 0.3 * torch.randn(count, 2, 12, generator=random),
        "far": target[:, 1:, None] + torch.randn(count, 3, 8, generator=random),
        "plain": target + 0.5 * torch.randn(count, 2, generator=random),
    }
    if gaps:
        there = torch.rand(count, generator=random) >= gaps
        inputs["far"] = torch.where(there[:, None, None], inputs["far"], filling)
        inputs["far_present"] = there
    label: dict[str, Tensor] = {
        "classes": (target[:, 0] > 0).long() + (target[:, 1] > 0.5).long(),
        "labels": (target > 0).float(),
        "regression": 50 + 10 * target,
    }
    return Part(inputs, label[kind], torch.arange(count) // 4)


def task_of_kind(kind: str, train: Part) -> Task:
    if kind == "classes":
        return Classification(["low", "middle", "high"])
    if kind == "labels":
        return MultiLabel(["left", "right"])
    return Regression(["angle", "speed"], train.label.mean(dim=0), train.label.std(dim=0))


def splits_of(kind: str, gaps: float = 0.0, filling: float = 0.0) -> Splits:
    parts = [part_of(kind, count, seed, gaps, filling) for seed, count in enumerate((64, 32, 32))]
    task = task_of_kind(kind, parts[0])
    return Splits(kind, *parts, classes=task.names, task=task)
