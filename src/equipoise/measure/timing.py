"""The cost of a training step: seconds as it was trained, seconds of each of its parts, and memory."""

from __future__ import annotations

import copy
import sys
import time
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

import torch
from torch.optim import Optimizer

from equipoise.balance.attach import unwrap_optimizer
from equipoise.balance.balancer import Balancer
from equipoise.data.splits import Part
from equipoise.measure.outputs import check_model
from equipoise.models.late_fusion import LateFusion
from equipoise.training.train import step_losses

WARM_UP = 3
APART = "after training, on a copy: without autocast, neither compiled nor recorded, waiting after each part"
"""The way `step_seconds` measures, for a row of results."""
MEBIBYTE = 2**20


def step_seconds(
    model: LateFusion, balancer: Balancer, optimizer: Any, part: Part, batch: int, steps: int = 20
) -> dict[str, float]:
    """Time training steps on copies: nothing of model, balancer, optimiser or the random state changes.

    Loss methods balance in their call, and the backward pass is an ordinary one. Other methods do part of their work
    inside the backward pass: there a plain backward pass of the fused loss, that of joint training, is timed beside
    it; "backward" is the time of the plain one, at most that of the whole, and "balance" is the rest of the whole plus
    the call. It is never negative.

    The copy is in training mode and stands on the device of the model. Copies of compiled encoders run uncompiled.

    Args:
        model: The model.
        balancer: The method; the copy is attached to the copied model and optimiser.
        optimizer: The optimiser of the model, bare or wrapped.
        part: The samples to take batches from, in order and round again; moving them to the device is not timed.
        batch: How many samples a step has, at most those of the part.
        steps: How many steps are timed, after a few to warm up.

    Returns:
        Medians over the steps, in seconds: "forward" (with the losses), "backward", "balance", "update" (with clearing
        the gradients) and "total", each step's sum.
    """
    check_model(model)
    device = model.committee.device
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        twin, twin_optimizer, twin_balancer = _copies(model, balancer, unwrap_optimizer(optimizer))
        found = []
        for number in range(WARM_UP + steps):
            rows = torch.arange(number * batch, number * batch + min(batch, len(part))) % len(part)
            chosen = part.take(rows.to(part.label.device)).to(device).ready()
            found.append(_step(twin, twin_balancer, twin_optimizer, chosen))
    return {name: median(step[name] for step in found[WARM_UP:]) for name in found[0]}


def trained_step(epochs: Sequence[float], steps: int) -> tuple[float | None, str]:
    """Compute the seconds of a step while the model was trained, and say how that was measured.

    Nothing waits for the device within an epoch, and what compiles, records or warms up does so in the first one.

    Args:
        epochs: Seconds of each epoch by the wall clock, with whatever the loop does: reading batches, checkpoints.
        steps: Of an epoch.

    Example:
        >>> trained_step([9.0, 2.0, 3.0, 4.0], steps=10)
        (0.3, 'wall clock of epochs 2 to 4, median, by 10 steps')
    """
    if not epochs:
        return None, "nothing was trained"
    if len(epochs) == 1:
        return epochs[0] / steps, f"wall clock of the only epoch, with its start, by {steps} steps"
    several = f"epochs 2 to {len(epochs)}, median," if len(epochs) > 2 else "epoch 2"
    return median(epochs[1:]) / steps, f"wall clock of {several} by {steps} steps"


def peak_memory(device: torch.device | str = "cpu") -> float:
    """Give the most memory held so far, in MiB.

    On a GPU that is what tensors took there since `torch.cuda.reset_peak_memory_stats`, or since the start; elsewhere
    the resident set of this process, which only ever grows.

    Args:
        device: Where.
    """
    if torch.device(device).type == "cuda":
        return torch.cuda.max_memory_allocated(device) / MEBIBYTE
    import resource  # not there on Windows

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / MEBIBYTE if sys.platform == "darwin" else peak / 1024  # bytes there, KiB elsewhere


def _copies(model: LateFusion, balancer: Balancer, optimizer: Optimizer) -> tuple[LateFusion, Optimizer, Balancer]:
    # In one go, so that the copied optimiser moves the copied model.
    twin, twin_optimizer, twin_balancer = copy.deepcopy((model, optimizer, balancer))
    twin_balancer.attach(twin, optimizer=twin_optimizer, group=balancer.group)
    return twin.train(), twin_optimizer, twin_balancer.train()


def _step(model: LateFusion, balancer: Balancer, optimizer: Optimizer, part: Part) -> dict[str, float]:
    device = part.label.device
    plain = None
    if balancer.route != "loss":
        _, plain = _timed(device, step_losses(model, balancer, part)[2]["fused"].mean().backward)
        optimizer.zero_grad()
    (losses, beside, _), forward = _timed(device, lambda: step_losses(model, balancer, part))
    loss, call = _timed(device, lambda: balancer(losses, extra=beside))
    _, whole = _timed(device, loss.backward)
    _, update = _timed(device, lambda: (optimizer.step(), optimizer.zero_grad()))
    backward = whole if plain is None else min(plain, whole)
    return {
        "forward": forward,
        "backward": backward,
        "balance": call + whole - backward,
        "update": update,
        "total": forward + call + whole + update,
    }


def _timed(device: torch.device, work: Callable[[], Any]) -> tuple[Any, float]:
    _synchronise(device)
    start = time.perf_counter()
    result = work()
    _synchronise(device)
    return result, time.perf_counter() - start


def _synchronise(device: torch.device) -> None:
    if device.type != "cpu":
        torch.accelerator.synchronize(device)
