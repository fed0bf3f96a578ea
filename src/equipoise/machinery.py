"""What the loop is made of: batches, optimiser, schedule, and the accelerator."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from equipoise.data.splits import Part
from equipoise.settings import Settings


def batches(part: Part, size: int, shuffle: torch.Generator) -> Iterator[Part]:
    """Every sample once, in a new order; a last batch of one is left out, since it has no batch statistics."""
    order = torch.randperm(len(part), generator=shuffle).to(part.label.device)
    for rows in order.split(size):
        if len(rows) > 1 or len(part) == 1:
            yield part.take(rows)


def pieces(part: Part, count: int) -> Iterator[Part]:
    """A batch in micro-batches."""
    if count == 1:
        yield part
        return
    for rows in torch.arange(len(part), device=part.label.device).chunk(count):
        yield part.take(rows)


def make_accelerator(settings: Settings, trackers: Sequence[str], folder: Path | None) -> Any:
    """Precision, device and trackers, as Accelerate does them."""
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState

    AcceleratorState._reset_state(
        reset_partial_state=True
    )  # a run may follow another of other precision in one process
    if settings.deterministic:
        torch.use_deterministic_algorithms(mode=True, warn_only=True)
    accelerator = Accelerator(
        mixed_precision={"fp32": "no"}.get(settings.precision, settings.precision),
        cpu=settings.device == "cpu" or not torch.cuda.is_available(),
        log_with=list(trackers) or None,
        project_dir=str(folder) if folder is not None else None,
    )
    if trackers:
        accelerator.init_trackers("equipoise", config={k: str(v) for k, v in settings.as_dict().items()})
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
