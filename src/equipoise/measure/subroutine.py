"""The paper's subroutine time t(s): what balancing and the update of the parameters take per batch.

A step is cut into forward, balance, backward and update, and timed in two ways. "synchronised" waits for the device
before and after each piece, so that a piece pays for its own work. "launched" reads the wall clock only, as code that
never mentions synchronisation does: a piece then pays for starting its work, and whoever waits first pays for what
others have started.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from statistics import fmean, pstdev
from typing import Literal, final

import torch
from torch import Tensor
from torch.optim import Optimizer

from equipoise.balance.balancer import Balancer
from equipoise.data.splits import Part
from equipoise.models.late_fusion import LateFusion
from equipoise.training.step import step_losses

Clock = Literal["synchronised", "launched"]
CLOCKS: tuple[Clock, ...] = ("synchronised", "launched")
PIECES = ("forward", "balance", "backward", "update")
WARM_UP = 3


@final
class Watch:
    """A stopwatch for the pieces of one step; a piece that comes twice is added up.

    Args:
        device: Where the step runs.
        clock: Whether pieces wait for the device.

    Example:
        >>> watch = Watch(torch.device("cpu"), "synchronised")
        >>> with watch("forward"):
        ...     product = torch.ones(3) * 2
        >>> watch.seconds["forward"] > 0
        True
    """

    def __init__(self, device: torch.device, clock: Clock) -> None:
        self.device, self.clock = device, clock
        self.seconds = dict.fromkeys((*PIECES, "plain"), 0.0)

    @contextmanager
    def __call__(self, piece: str) -> Generator[None]:
        """Add what happens inside to a piece; "plain" is a backward pass that only stands beside the step."""
        if self.clock == "synchronised":
            self.wait()
        start = time.perf_counter()
        yield
        if self.clock == "synchronised":
            self.wait()
        self.seconds[piece] += time.perf_counter() - start

    def wait(self) -> None:
        """Let the device finish, outside of any piece."""
        if self.device.type != "cpu":
            torch.accelerator.synchronize(self.device)

    def split(self) -> dict[str, float]:
        """Seconds per piece: what a backward pass takes beyond a plain one is balancing."""
        pieces = {name: self.seconds[name] for name in PIECES}
        plain = self.seconds["plain"]
        if plain > 0:
            pieces["backward"] = min(plain, self.seconds["backward"])
            pieces["balance"] += self.seconds["backward"] - pieces["backward"]
        return pieces


Step = Callable[[Watch, Part], None]
"""A whole training step on a batch, its pieces named to the watch."""


def balanced_step(model: LateFusion, balancer: Balancer, optimizer: Optimizer) -> Step:
    """A step of one of our methods, as `equipoise.training.train` takes it.

    Args:
        model: The model.
        balancer: The method, attached to it.
        optimizer: Of the model.
    """

    def step(watch: Watch, part: Part) -> None:
        if balancer.route != "loss":  # such a method does part of its work inside the backward pass
            _plain_backward(watch, model, balancer, optimizer, part)
        with watch("forward"):
            losses, beside, _ = step_losses(model, balancer, part)
        with watch("balance"):
            loss = balancer(losses, extra=beside)
        learn(watch, loss, optimizer)

    return step


def learn(watch: Watch, loss: Tensor, optimizer: Optimizer) -> None:
    """The end of every step: the backward pass, and the update."""
    with watch("backward"):
        loss.backward()
    with watch("update"):
        optimizer.step()
        optimizer.zero_grad()


def _plain_backward(watch: Watch, model: LateFusion, balancer: Balancer, optimizer: Optimizer, part: Part) -> None:
    fused = step_losses(model, balancer, part)[2]["fused"].mean()
    watch.wait()
    with watch("plain"):
        fused.backward()
    optimizer.zero_grad()
    watch.wait()


def subroutine_seconds(
    step: Step, batches: Sequence[Part], steps: int, clock: Clock = "synchronised"
) -> dict[str, float]:
    """Mean seconds of each piece over a number of steps, after a few to warm up.

    Every step begins on an idle device, as it does after the loss of the last one was read.

    Args:
        step: The step; it does train whatever it was made from.
        batches: Taken in turn, already on the device.
        steps: How many are timed.
        clock: How.

    Returns:
        "forward", "balance", "backward" and "update"; "subroutine", the paper's t(s) read narrowly: balance and update;
        "with backward", read widely; "spread", the standard deviation of "subroutine"; and "total".
    """
    found: list[dict[str, float]] = []
    for number in range(WARM_UP + steps):
        part = batches[number % len(batches)]
        watch = Watch(part.label.device, clock)
        watch.wait()
        step(watch, part)
        watch.wait()
        found.append(watch.split())
    return summary(found[WARM_UP:])


def summary(found: Sequence[dict[str, float]]) -> dict[str, float]:
    """The means of some steps, and the two readings of t(s)."""
    means = {name: fmean(each[name] for each in found) for name in PIECES}
    narrow = [each["balance"] + each["update"] for each in found]
    return {
        **means,
        "subroutine": fmean(narrow),
        "with backward": fmean(narrow) + means["backward"],
        "spread": pstdev(narrow),
        "total": sum(means.values()),
    }
