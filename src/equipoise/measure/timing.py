"""The cost of a training step: its pieces by one stopwatch, its wall-clock time in training, and memory.

A step is cut into pieces: reading the data, forward, balance, backward and update. What a backward pass takes beyond a
plain one of the fused loss is balancing.
"""

import copy
import sys
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from statistics import median
from typing import Any, final

import torch
from torch import Tensor
from torch.optim import Optimizer

from equipoise.balance.attach import unwrap_optimizer
from equipoise.balance.balancer import Balancer
from equipoise.data.splits import Part
from equipoise.models.encoded import check_model
from equipoise.models.fusion_model import FusionModel
from equipoise.training.step import step_arguments

PIECES = ("data", "forward", "backward", "balance", "update")
WARM_UP = 3
MEBIBYTE = 2**20
PROTOCOL = "after training, on a copy: without autocast, neither compiled nor recorded, waiting after each part"
"""The way `step_seconds` measures, for a row of results."""


@final
class Stopwatch:
    """Measures the pieces of one training step; the times of a piece that comes twice are added.

    Args:
        device: The device that the step runs on.
        synchronise: Wait for the device before and after each piece, so that a piece pays for its own work. Otherwise
            only the wall clock is read: a piece pays for launching its work, and the first one that waits pays for what
            others have launched.

    Example:
        >>> watch = Stopwatch(torch.device("cpu"))
        >>> with watch("forward"):
        ...     product = torch.ones(3) * 2
        >>> watch.pieces()["forward"] > 0
        True
    """

    def __init__(self, device: torch.device, *, synchronise: bool = True) -> None:
        self.device, self.synchronise = device, synchronise
        self.seconds = dict.fromkeys((*PIECES, "plain"), 0.0)

    @contextmanager
    def __call__(self, piece: str) -> Generator[None]:
        """Add the time of the block to a piece; "plain" is a backward pass beside the step."""
        if self.synchronise:
            self.wait()
        start = time.perf_counter()
        yield
        if self.synchronise:
            self.wait()
        self.seconds[piece] += time.perf_counter() - start

    def wait(self) -> None:
        """Wait for the device, outside of any piece."""
        if self.device.type != "cpu":
            torch.accelerator.synchronize(self.device)

    def pieces(self) -> dict[str, float]:
        """Give the seconds of each piece, counting as balance what the backward pass takes beyond the plain one."""
        pieces = {name: self.seconds[name] for name in PIECES}
        if self.seconds["plain"] > 0:
            pieces["backward"] = min(self.seconds["plain"], pieces["backward"])
            pieces["balance"] += self.seconds["backward"] - pieces["backward"]
        return pieces


TimedStep = Callable[[Stopwatch, Part], None]
"""A whole training step on a batch, whose pieces run under the stopwatch."""


def timed_step(model: FusionModel, balancer: Balancer, optimizer: Optimizer) -> TimedStep:
    """Make the training step of a method, as `equipoise.training.train` takes it.

    A loss method balances in its call, and its backward pass is an ordinary one. Other methods do part of their work
    inside the backward pass, so a plain backward pass of the fused loss, that of joint training, is timed beside it.

    Args:
        model: The model.
        balancer: The method, attached to the model.
        optimizer: The optimiser of the model.
    """

    def step(watch: Stopwatch, part: Part) -> None:
        if balancer.route != "loss":
            plain_backward(watch, step_arguments(model, balancer, part)[1]["fused"].mean(), optimizer)
        with watch("forward"):
            given, _ = step_arguments(model, balancer, part)
        with watch("balance"):
            loss = balancer(**given)
        backward_and_update(watch, loss, optimizer)

    return step


def plain_backward(watch: Stopwatch, loss: Tensor, optimizer: Optimizer) -> None:
    """Time a backward pass beside the step, and discard its gradients."""
    watch.wait()
    with watch("plain"):
        loss.backward()
    optimizer.zero_grad()
    watch.wait()


def backward_and_update(watch: Stopwatch, loss: Tensor, optimizer: Optimizer) -> None:
    """Time the end of a step: the backward pass, and the update with clearing the gradients."""
    with watch("backward"):
        loss.backward()
    with watch("update"):
        optimizer.step()
        optimizer.zero_grad()


def time_steps(
    step: TimedStep, read: Callable[[int], Part], count: int, device: torch.device, *, synchronise: bool = True
) -> list[dict[str, float]]:
    """Measure the seconds of each piece of consecutive steps; every step begins on an idle device.

    Args:
        step: The step, which trains the model it was made from.
        read: Gives the batch of a step by its number.
        count: Number of steps.
        device: The device that the steps run on.
        synchronise: As for `Stopwatch`.
    """
    times = []
    for number in range(count):
        watch = Stopwatch(device, synchronise=synchronise)
        watch.wait()
        with watch("data"):
            part = read(number)
        step(watch, part)
        watch.wait()
        times.append(watch.pieces())
    return times


def step_seconds(
    model: FusionModel, balancer: Balancer, optimizer: Any, part: Part, batch: int, steps: int = 20
) -> dict[str, float]:
    """Time training steps on copies: nothing of model, balancer, optimiser or the random state changes.

    The copy is in training mode, on the device of the model. Copies of compiled encoders run uncompiled.

    Args:
        model: The model.
        balancer: The method; the copy is attached to the copied model and optimiser.
        optimizer: The optimiser of the model, bare or wrapped.
        part: The samples to take batches from, in order and round again; moving them to the device is not timed.
        batch: Samples of a step, at most those of the part.
        steps: Steps that are timed, after a few to warm up.

    Returns:
        Medians over the steps, in seconds: "forward" (with the losses), "backward", "balance", "update" (with clearing
        the gradients) and "total", each step's sum. None is negative.
    """
    check_model("Measuring", model)
    device = model.committee.device

    def read(number: int) -> Part:
        rows = torch.arange(number * batch, number * batch + min(batch, len(part))) % len(part)
        return part.take(rows.to(part.label.device)).to(device).ready()

    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        # Copied together, so that the copied optimiser moves the copied model.
        twin, twin_optimizer, twin_balancer = copy.deepcopy((model, unwrap_optimizer(optimizer), balancer))
        twin_balancer.attach(twin, optimizer=twin_optimizer, group=balancer.group)
        step = timed_step(twin.train(), twin_balancer.train(), twin_optimizer)
        times = time_steps(step, read, WARM_UP + steps, device)[WARM_UP:]
    pieces = {name: [seconds[name] for seconds in times] for name in PIECES if name != "data"}
    pieces["total"] = [sum(seconds) for seconds in zip(*pieces.values(), strict=True)]
    return {name: median(seconds) for name, seconds in pieces.items()}


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
        device: The device.
    """
    if torch.device(device).type == "cuda":
        return torch.cuda.max_memory_allocated(device) / MEBIBYTE
    import resource  # not there on Windows

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / MEBIBYTE if sys.platform == "darwin" else peak / 1024  # bytes there, KiB elsewhere
