"""What the loop is made of: micro-batches, optimiser, schedule, and the accelerator."""

from __future__ import annotations

import os
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn

from equipoise.balance import collectives
from equipoise.data.splits import Part
from equipoise.training import distributed
from equipoise.training.rates import layerwise
from equipoise.training.settings import Settings
from equipoise.training.tracking import PROJECT, Trackers
from equipoise.util.errors import BadInput

SharedState = dict[str, dict[str, Any]]
"""The state that Accelerate's objects share, by class."""


def split(part: Part, sizes: Sequence[int]) -> Iterator[Part]:
    """A batch in micro-batches of these sizes."""
    if len(sizes) == 1:
        yield part
        return
    for rows in torch.arange(len(part), device=part.label.device).split(list(sizes)):
        yield part.take(rows)


def gpus() -> int:
    """How many GPUs this machine has, asked without touching them: who touched one cannot be forked any more.

    The driver is asked, and not whether this torch can use it; one that is too old is said when a run begins.
    """
    os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")  # for those libraries that ask for themselves
    return torch.cuda.device_count()


def device_of(settings: Settings) -> str:
    """Where a run with these settings takes place; a `BadInput` where this machine cannot do it."""
    there = gpus()
    device = settings.device if settings.device != "auto" else "cuda" if there else "cpu"
    if device != "cpu" and int(device.partition(":")[2] or 0) >= there:
        raise BadInput(f"device={settings.device}: expected a GPU, found {there} on this machine; type device=cpu")
    if device == "cpu" and settings.precision == "fp16":
        raise BadInput("precision=fp16: expected a GPU, found device cpu; type precision=bf16 or precision=fp32")
    return device


def precision_of(settings: Settings, device: torch.device | str) -> str:
    """The precision a run has: the one asked for, or what suits the device."""
    if settings.precision != "auto":
        return settings.precision
    half = torch.device(device).type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)
    return "bf16" if half and not settings.deterministic else "fp32"


def why_not_captured(settings: Settings, device: torch.device, ranks: int, steps: int, least: int) -> str:
    """Why the steps of a run are not recorded; "" where they are to be.

    Args:
        settings: Of the run.
        device: Where it takes place.
        ranks: Processes that train together.
        steps: How many the run has.
        least: How many are worth it.
    """
    if settings.capture is False:
        return "capture=false"
    if device.type != "cuda":
        return "only a GPU plays steps back"
    if precision_of(settings, device) == "fp16":
        return "with fp16 every step asks the gradients whether it may be taken; type precision=bf16"
    if ranks > 1:
        return f"{ranks} processes train together"
    if settings.capture == "auto" and settings.deterministic:
        return "deterministic=true"
    if settings.capture == "auto" and steps < least:
        return f"{steps} steps are too few to earn it back"
    return ""


def to_channels_last(model: nn.Module) -> None:
    """Lay out the weights of 2-D convolutions with channels last, in place; all others stay as they are.

    `Module.to(memory_format=…)` does the same, and fails where a model has weights of five dimensions as well.
    """
    for tensor in (*model.parameters(), *model.buffers()):
        if tensor.dim() == 4:
            tensor.data = tensor.data.contiguous(memory_format=torch.channels_last)


@contextmanager
def accelerate_state(held: SharedState) -> Generator[None, None, None]:
    """Give Accelerate another state meanwhile, and the present one back afterwards.

    All of Accelerate's objects in a process share one state, a caller's own Accelerator too: a run takes a new one, and
    whoever called it finds theirs as it was. Used again inside, with the same state, it is the caller's turn.

    Args:
        held: The state to use; it holds the present one until it is given back. Empty for a new one.
    """
    _exchange(held)
    try:
        yield
    finally:
        _exchange(held)


def _exchange(held: SharedState) -> None:
    from accelerate.state import AcceleratorState, GradientState, PartialState

    for kind in (AcceleratorState, GradientState, PartialState):
        shared = kind._shared_state  # which its objects have as their attributes: changed in place
        present = dict(shared)
        shared.clear()
        shared.update(held.get(kind.__name__, {}))
        held[kind.__name__] = present


def make_accelerator(settings: Settings, trackers: Trackers, folder: Path | None) -> Any:
    """Precision, device and trackers, as Accelerate does them."""
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState, PartialState
    from accelerate.utils import patch_environment

    # A run may follow another of other precision in one process; `train` sees to it that no caller's state is there.
    AcceleratorState._reset_state(reset_partial_state=True)
    if settings.deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # without it cuBLAS may not repeat itself
        torch.use_deterministic_algorithms(mode=True, warn_only=True)
        torch.backends.cudnn.benchmark = False  # which kernel wins a race is chance
    device = device_of(settings)
    distributed.meet(device)
    # What `accelerate launch` leaves for a loop of its own; ours cuts batches and models itself.
    ours = {"accelerate_gradient_accumulation_steps": "1", "accelerate_use_fsdp": "false"}
    numbered = {"accelerate_torch_device": device} if ":" in device else {}
    with patch_environment(**ours, **numbered):
        PartialState(cpu=device == "cpu")  # before trackers, which would have it made as it comes
        accelerator = Accelerator(
            mixed_precision={"fp32": "no"}.get(precision := precision_of(settings, device), precision),
            cpu=device == "cpu",
            log_with=(trackers.make(folder) if collectives.rank() == 0 else []) or None,
        )
    if trackers.names and collectives.rank() == 0:
        facts = {**settings.as_dict(), **trackers.facts}
        accelerator.init_trackers(PROJECT, config={name: str(value) for name, value in facts.items()})
    return accelerator


def make_optimizer(model: nn.Module, settings: Settings, *, recorded: bool = False) -> torch.optim.Optimizer:
    """The optimiser by name.

    Args:
        model: Whose parameters.
        settings: Of the run.
        recorded: Whether its steps may be played back: all of them in few kernels, and the learning rate in a tensor.
    """
    first = next(model.parameters())
    rate = torch.tensor(settings.lr, device=first.device) if recorded else settings.lr
    moved = model.parameters() if settings.layer_decay == 1 else layerwise(model, rate, settings.layer_decay)
    whole = settings.parallel == "ddp"  # the fused ones do not know shards
    fused = True if recorded or (whole and first.device.type == "cpu") else None
    if settings.optimizer == "sgd":
        return torch.optim.SGD(moved, rate, momentum=settings.momentum, weight_decay=settings.weight_decay, fused=fused)
    kind = torch.optim.AdamW if settings.optimizer == "adamw" else torch.optim.Adam
    return kind(moved, rate, weight_decay=settings.weight_decay, fused=fused, capturable=recorded)


def make_schedule(optimizer: torch.optim.Optimizer, settings: Settings) -> Any:
    """The learning-rate schedule by name; None where it is constant."""
    if settings.schedule == "cosine":
        return torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, max(settings.epochs, 1))
    if settings.schedule == "step":
        return torch.optim.lr_scheduler.MultiStepLR(optimizer, [max(1, round(0.7 * settings.epochs))], 0.1)
    return None
