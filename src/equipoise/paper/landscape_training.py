"""Training up to a number of iterations, with a look at training and test samples on the way.

The steps are those of every run. `equipoise.training.train` counts epochs, and never touches the test part; a figure of
the test loss has to. Nothing is chosen by what is seen here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any, Literal, final

import torch
from torch import Tensor

from equipoise.data.splits import Part, Splits
from equipoise.models import LateFusion
from equipoise.models.choose import build_encoders
from equipoise.study.registry import Entry
from equipoise.training.step import evaluate
from equipoise.training.train import Run

LOOKS, TELL = 50, 10
"""How many times curves are measured on the way, and at how many of these the user hears of it."""
Protocol = Literal["split", "head"]
Look = dict[str, Any]
"""After a number of steps: {"step": …, "train": {output: {"loss": …, "accuracy": …}}, "test": …}."""


@final
@dataclass(frozen=True)
class Solution:
    """Where training arrived.

    Args:
        name: Of the method.
        model: In the view that uni-modal accuracies are read from.
        curves: What was seen on the way.
    """

    name: str
    model: LateFusion
    curves: list[Look]


def stratified(label: Tensor, size: int, seed: int = 0) -> Tensor:
    """Rows of a fixed subset in which every class has its share, to within one sample.

    Args:
        label: The classes, [N].
        size: How many rows; all where there are fewer.
        seed: Of the draw.

    Example:
        >>> rows = stratified(torch.tensor([0, 0, 0, 0, 1, 1]), 3)
        >>> torch.tensor([0, 0, 0, 0, 1, 1])[rows].tolist()
        [0, 0, 1]
    """
    order = torch.randperm(len(label), generator=torch.Generator().manual_seed(seed)).to(label.device)
    by_class = order[label[order].argsort(stable=True)]
    size = min(size, len(label))
    # Equal strides through the samples in the order of their classes.
    chosen = (torch.arange(size, dtype=torch.float64) + 0.5) * (len(label) / max(size, 1))
    return by_class[chosen.long().to(label.device)].sort().values


def subset(part: Part, size: int, seed: int, device: torch.device | str) -> Part:
    """A stratified subset of a part, as encoders read it in evaluation."""
    return part.take(stratified(part.label, size, seed)).to(device).ready()


def view_of(model: LateFusion, splits: Splits, entry: Entry, protocol: Protocol) -> LateFusion:
    """A copy of a model whose uni-modal outputs follow a protocol; under "split" it has no other heads to perturb."""
    settings = entry.settings
    encoders = build_encoders(settings.encoder, splits.shapes, settings.features)
    view = LateFusion(encoders, len(splits.classes), fusion=settings.fusion, unimodal=protocol)
    wanted = view.state_dict()
    view.load_state_dict({name: value for name, value in model.state_dict().items() if name in wanted})
    return view.to(model.committee.device).eval()


def solve(
    splits: Splits,
    entry: Entry,
    steps: int,
    seed: int,
    protocol: Protocol,
    parts: dict[str, Part],
    tell: Callable[[str], None],
) -> Solution:
    """Train for a number of iterations.

    Args:
        splits: The data.
        entry: The method, which must not need the end of an epoch, and how to build and train the model.
        steps: Iterations of the optimiser.
        seed: Of weights, batches and dropout; the same start for every method.
        protocol: Of the uni-modal accuracies.
        parts: What to look at, by name, as `subset` gives it.
        tell: Called with words on how far it is.

    Raises:
        FloatingPointError: If training diverged.
    """
    run = Run(splits, entry.balancer(), entry.settings, seed)
    look_every = max(1, steps // LOOKS)

    def look(step: int) -> Look:
        with torch.random.fork_rng():  # building a view draws weights, which must not change what training draws
            view = view_of(run.model, splits, entry, protocol)
            return {"step": step, **{name: evaluate(view, part) for name, part in parts.items()}}

    curves = [look(0)]
    for step in islice(_steps_of(run), steps):
        if step % look_every == 0 or step == steps:
            curves.append(look(step))
        if step % (TELL * look_every) == 0 or step == steps:
            tell(f"training {entry.label}: step {step:,} of {steps:,}")
    reached = curves[-1]["train"]["fused"]["loss"]
    if not math.isfinite(reached):
        raise FloatingPointError(f"expected a finite training loss after {steps} steps, found {reached}")
    return Solution(entry.method.name, view_of(run.model, splits, entry, protocol), curves)


def _steps_of(run: Run) -> Iterator[int]:
    """The steps of a run from one on, without an end: each is taken when it is asked for."""
    step = 0
    while True:
        for _ in run.steps():
            step += 1
            yield step
        run.end_epoch()
