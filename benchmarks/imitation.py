"""How public code of some methods spends its time, imitated to be measured beside ours. No method of ours runs this.

Written from a description of that code, for two modalities as it is. What makes it slow is kept on purpose: scores in a
loop over samples that takes the softmax of the whole batch anew for each of them and reads a number off the device;
gradients copied tensor by tensor, flattened, and weighed on the CPU; a decision per tensor that waits for the device.
The values are those of `OGMGE`, `AGM` and `MMPareto`, as tests show.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import Optimizer

from equipoise.data.splits import Part
from equipoise.measure.timing import Stopwatch, TimedStep, backward_and_update
from equipoise.models.evaluation import evaluating
from equipoise.models.late_fusion import LateFusion

SMALLEST = 1e-8  # probability that AGM's code reads


def looped_score(logits: Tensor, label: Tensor) -> Tensor:
    """The probabilities of the right classes added up, one sample after the other.

    Example:
        >>> looped_score(torch.zeros(3, 2), torch.tensor([0, 1, 0]))
        tensor(1.5000)
    """
    total = logits.new_zeros(())
    for sample in range(len(label)):
        probabilities = torch.softmax(logits, dim=1)  # of the whole batch, each time
        total = total + probabilities[sample][label[sample]]  # an index that lies on the device is read first
    return total


def looped_log_score(logits: Tensor, label: Tensor) -> Tensor:
    """The mean of −log max(probability of the right class, 1e-8), one sample after the other."""
    total = logits.new_zeros(())
    for sample in range(len(label)):
        probability = torch.softmax(logits, dim=1)[sample][label[sample]]
        if probability < SMALLEST:  # waits for the device
            probability = probability.clamp(min=SMALLEST)
        total = total - probability.log()
    return total / len(label)


def vectorised_score(logits: Tensor, label: Tensor) -> Tensor:
    """The same as `looped_score`, all samples at once."""
    return torch.softmax(logits, dim=1).gather(1, label[:, None]).sum()


def looped_ogmge(model: LateFusion, optimizer: Optimizer, strength: float = 0.8, *, noise: bool = True) -> TimedStep:
    """OGM-GE with scores in a loop, its decision on the CPU, and gradients changed after the backward pass."""

    def step(watch: Stopwatch, part: Part) -> None:
        with watch("forward"):
            outputs, shares = model.with_shares(part.inputs)
            loss = F.cross_entropy(outputs["fused"], part.label)
        with watch("balance"):
            scores = {name: looped_score(share.detach(), part.label) for name, share in shares.items()}
            factors = {name: _ogm_factor(name, scores, strength) for name in scores}
        with watch("backward"):
            loss.backward()
        with watch("balance"):
            for name, encoder in model.encoders.items():
                for gradient in _gradients(encoder):
                    drawn = torch.randn_like(gradient) * (gradient.std() + SMALLEST) if noise else 0.0
                    gradient.mul_(factors[name]).add_(drawn)
        with watch("update"):
            optimizer.step()
            optimizer.zero_grad()

    return step


def _ogm_factor(name: str, scores: dict[str, Tensor], strength: float) -> float:
    (other,) = (score for key, score in scores.items() if key != name)
    ratio = scores[name] / other
    return 1 - math.tanh(strength * ratio.item()) if ratio > 1 else 1.0


def looped_agm(model: LateFusion, optimizer: Optimizer, strength: float = 1.0) -> TimedStep:
    """AGM by its 2^K forward passes, with scores in a loop; the factors act on the responses in the backward pass."""
    usual, count = dict.fromkeys(model.encoders, 0.0), [0]

    def step(watch: Stopwatch, part: Part) -> None:
        with watch("forward"):
            whole = model(part.inputs)["fused"]
        with watch("balance"):
            with evaluating(model):
                alone = {name: model(_only(name, part.inputs))["fused"] for name in model.encoders}
                model(_only(None, part.inputs))  # runs in the public code, too, and is not used
            one, other = alone
            responses = {one: (whole - alone[other] + alone[one]) / 2, other: (whole - alone[one] + alone[other]) / 2}
            scores = {name: looped_log_score(each.detach(), part.label).item() for name, each in responses.items()}
            for name, rival in ((one, other), (other, one)):
                ahead = math.exp(scores[rival] - scores[name])
                factor = math.exp(strength * min(math.exp(usual[rival] - usual[name]) - ahead, 10.0))
                responses[name].register_hook(lambda gradient, factor=factor: gradient * factor)
            count[0] += 1
            for name, score in scores.items():
                usual[name] += (score - usual[name]) / count[0]
            loss = F.cross_entropy(responses[one] + responses[other], part.label)
        backward_and_update(watch, loss, optimizer)

    return step


def _only(name: str | None, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
    return {key: value if key == name else torch.zeros_like(value) for key, value in inputs.items()}


def copied_mmpareto(model: LateFusion, optimizer: Optimizer, boost: float = 1.5) -> TimedStep:
    """MMPareto with K + 2 backward passes, gradients copied and flattened, and weights found on the CPU."""

    def step(watch: Stopwatch, part: Part) -> None:
        with watch("forward"):
            losses = {name: F.cross_entropy(logits, part.label) for name, logits in model(part.inputs).items()}
        with watch("balance"):
            fused = _copies_after(losses["fused"], model, optimizer)
            own = {name: _copies_after(losses[name], model, optimizer)[name] for name in model.encoders}
            shares = {name: _share_of_fused(fused[name], own[name]) for name in own}
        with watch("backward"):
            torch.stack(list(losses.values())).sum().backward()
        with watch("balance"):
            for name, encoder in model.encoders.items():
                for gradient, first, second in zip(_gradients(encoder), fused[name], own[name], strict=True):
                    mixed = 2 * shares[name] * first + 2 * (1 - shares[name]) * second
                    stretch = gradient.norm() / mixed.norm()
                    if stretch > 1:  # waits for the device, tensor by tensor
                        mixed = mixed * stretch
                    gradient.copy_(boost * mixed)
        with watch("update"):
            optimizer.step()
            optimizer.zero_grad()

    return step


def _copies_after(loss: Tensor, model: LateFusion, optimizer: Optimizer) -> dict[str, list[Tensor]]:
    optimizer.zero_grad()
    loss.backward(retain_graph=True)
    found = {name: [gradient.clone() for gradient in _gradients(each)] for name, each in model.encoders.items()}
    optimizer.zero_grad()
    return found


def _share_of_fused(fused: Sequence[Tensor], own: Sequence[Tensor]) -> float:
    first, second = (torch.cat([each.flatten() for each in some]).cpu() for some in (fused, own))
    inner = float(first @ second)
    if inner > 0:
        return 0.5
    apart = float((first - second).square().sum())
    return 0.5 if apart == 0 else min(1.0, max(0.0, (float(second @ second) - inner) / apart))


def _gradients(encoder: nn.Module) -> list[Tensor]:
    return [parameter.grad for parameter in encoder.parameters() if parameter.grad is not None]
