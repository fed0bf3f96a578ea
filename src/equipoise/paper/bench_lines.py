"""What `equipoise bench` puts side by side: every method, a bare loop, and TorchJD's MGDA where it is installed."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeAlias

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import Optimizer

from equipoise import MGDA, MSES, Balancer, MMPareto
from equipoise.data.splits import Part
from equipoise.measure.timing import Stopwatch, TimedStep, backward_and_update, plain_backward
from equipoise.models import LateFusion, SequenceTransformer
from equipoise.models.late_fusion import Unimodal
from equipoise.study.registry import all_methods
from equipoise.util.errors import BadInput, look_up, raise_all

BARE, JOINT, TORCHJD = "bare loop", "msl", "torchjd mgda"
NEVER = 10**6  # epochs without a better accuracy: an encoder that stands still would cost less

Maker: TypeAlias = "Callable[[LateFusion, Optimizer, bool], TimedStep]"


def methods() -> dict[str, Callable[[], Balancer]]:
    """Every method by name, and the variants that decide at features."""
    found: dict[str, Callable[[], Balancer]] = {}
    for name, each in all_methods().items():
        if each.finish is not None:  # the ensemble trains as uni-modal training does
            continue
        found[name] = partial(MSES, patience=NEVER) if each.make is MSES else each.make
        if each.make in (MGDA, MMPareto):
            found[f"{name}-features"] = partial(each.make, at="features")
    return found


def chosen_methods(text: str) -> dict[str, Callable[[], Balancer]]:
    """The methods of a list with commas, or of "all"; joint training is always among them, since ratios are to it."""
    known = methods()
    asked = [JOINT, *(name.strip() for name in text.split(",") if name.strip())]
    problems = []
    found: dict[str, Callable[[], Balancer]] = {}
    for name in dict.fromkeys(one for each in asked for one in (known if each == "all" else [each])):
        try:
            found[name] = look_up("method", name, known)
        except BadInput as problem:
            problems.append(str(problem))
    raise_all(problems)
    return found


def loops(names: Sequence[str]) -> dict[str, Maker]:
    """Loops that are not ours, to stand beside these methods."""
    found: dict[str, Maker] = {BARE: bare_step}
    if "mgda" in names and importlib.util.find_spec("torchjd") is not None:
        found[TORCHJD] = torchjd_step
    return found


def views_of(loop: str) -> Unimodal | None:
    """Which uni-modal outputs the model of a loop has."""
    return None if loop == BARE else "head"


def bare_step(model: LateFusion, optimizer: Optimizer, beside: bool = False) -> TimedStep:  # noqa: ARG001
    """A step of joint training as one would write it without a library.

    Args:
        model: With a fused output and nothing else.
        optimizer: Of the model.
        beside: Without meaning here: its backward pass is the plain one.
    """

    def step(watch: Stopwatch, part: Part) -> None:
        with watch("forward"):
            loss = F.cross_entropy(model(part.inputs)["fused"], part.label)
        backward_and_update(watch, loss, optimizer)

    return step


def torchjd_step(model: LateFusion, optimizer: Optimizer, beside: bool = False) -> TimedStep:
    """A step of MGDA with TorchJD: on each encoder the fused and its own loss, as our MGDA does; heads on the sum.

    Args:
        model: With a head per modality.
        optimizer: Of the model.
        beside: Take a plain backward pass beside the step, so that what is beyond it counts as balancing.
    """
    from torchjd import aggregation
    from torchjd.autojac import backward, jac_to_grad

    aggregator = aggregation.MGDA()
    encoders = {name: list(encoder.parameters()) for name, encoder in model.encoders.items()}
    owned = {id(tensor) for tensors in encoders.values() for tensor in tensors}
    heads = [tensor for tensor in model.parameters() if id(tensor) not in owned]

    def losses_of(part: Part) -> dict[str, Tensor]:
        return {name: F.cross_entropy(logits, part.label) for name, logits in model(part.inputs).items()}

    def step(watch: Stopwatch, part: Part) -> None:
        if beside:
            plain_backward(watch, losses_of(part)["fused"], optimizer)
        with watch("forward"):
            losses = losses_of(part)
        with watch("backward"):
            torch.stack(list(losses.values())).sum().backward(inputs=heads, retain_graph=True)
            for name, tensors in encoders.items():
                backward([losses["fused"], losses[name]], inputs=tensors, retain_graph=True)
                jac_to_grad(tensors, aggregator)
        with watch("update"):
            optimizer.step()
            optimizer.zero_grad()

    return step


def transformer(shape: tuple[int, ...], features: int) -> nn.Module:
    """The encoder of sequences [T, D] that `--encoder transformer` takes."""
    return SequenceTransformer(shape[1], features)
