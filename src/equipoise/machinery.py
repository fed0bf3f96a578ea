"""What the loop is made of: micro-batches, optimiser, schedule, and the accelerator."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn

from equipoise.data.splits import Part
from equipoise.settings import Settings
from equipoise.tracking import PROJECT, Trackers


def pieces(part: Part, count: int) -> Iterator[Part]:
    """A batch in micro-batches."""
    if count == 1:
        yield part
        return
    for rows in torch.arange(len(part), device=part.label.device).chunk(count):
        yield part.take(rows)


def device_of(settings: Settings) -> str:
    """Where a run with these settings takes place; a ValueError where this machine cannot do it."""
    there = torch.cuda.device_count() if torch.cuda.is_available() else 0
    device = settings.device if settings.device != "auto" else "cuda" if there else "cpu"
    if device != "cpu" and int(device.partition(":")[2] or 0) >= there:
        raise ValueError(f"device={settings.device}: expected a GPU, found {there} on this machine; type device=cpu")
    if device == "cpu" and settings.precision == "fp16":
        raise ValueError("precision=fp16: expected a GPU, found device cpu; type precision=bf16 or precision=fp32")
    return device


def make_accelerator(settings: Settings, trackers: Trackers, folder: Path | None) -> Any:
    """Precision, device and trackers, as Accelerate does them."""
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState
    from accelerate.utils import patch_environment

    # A run may follow another of other precision in one process.
    AcceleratorState._reset_state(reset_partial_state=True)
    if settings.deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # without it cuBLAS may not repeat itself
        torch.use_deterministic_algorithms(mode=True, warn_only=True)
    torch.backends.cudnn.benchmark = not settings.deterministic  # batches have one size, so looking for it pays
    device = device_of(settings)
    numbered = {"accelerate_torch_device": device} if ":" in device else {}
    with patch_environment(**numbered):
        accelerator = Accelerator(
            mixed_precision={"fp32": "no"}.get(settings.precision, settings.precision),
            cpu=device == "cpu",
            log_with=trackers.make(folder) or None,
        )
    if trackers.names:
        facts = {**settings.as_dict(), **trackers.facts}
        accelerator.init_trackers(PROJECT, config={name: str(value) for name, value in facts.items()})
    return accelerator


def make_optimizer(model: nn.Module, settings: Settings) -> torch.optim.Optimizer:
    """The optimiser by name."""
    if settings.optimizer == "sgd":
        return torch.optim.SGD(
            model.parameters(), settings.lr, momentum=settings.momentum, weight_decay=settings.weight_decay
        )
    kind = torch.optim.AdamW if settings.optimizer == "adamw" else torch.optim.Adam
    return kind(model.parameters(), settings.lr, weight_decay=settings.weight_decay)


def make_schedule(optimizer: torch.optim.Optimizer, settings: Settings) -> Any:
    """The learning-rate schedule by name; None where it is constant."""
    if settings.schedule == "cosine":
        return torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, max(settings.epochs, 1))
    if settings.schedule == "step":
        return torch.optim.lr_scheduler.MultiStepLR(optimizer, [max(1, round(0.7 * settings.epochs))], 0.1)
    return None
