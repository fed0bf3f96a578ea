"""What separate losses give on a plain copy of a model, with `torch.autograd.grad` alone.

Nothing here, nor in the rules that are built on it, uses the library's own way from losses to gradients.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from itertools import combinations
from typing import NamedTuple, final

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F

from equipoise import HybridFusion
from methods.random_models import Batch, Shape, encoders_of, extra_of, separate_losses

FUSED = "fused"
Gradients = dict[str, Tensor]
"""By name of the parameter; without an entry where a loss is not connected with it."""


class Question(NamedTuple):
    """What is computed of a batch.

    Args:
        given: The losses that the balancer gets.
        scalars: Those of them that are means; the others hold a value per sample.
        factors: What losses are multiplied by.
        extra: The kind of losses that belong to no modality; empty for none.
        responses: Whether Shapley responses are needed.
        masks: The samples that have a sensor, where not all do.
    """

    given: frozenset[str]
    scalars: frozenset[str]
    factors: Mapping[str, float]
    extra: str
    responses: bool
    masks: Mapping[str, Tensor]

    def losses(self, outputs: Mapping[str, Tensor], labels: Tensor) -> dict[str, Tensor]:
        """The losses of outputs, of the samples that have the sensor."""
        found = separate_losses(outputs, labels, self.scalars, self.factors)
        return {name: loss[self.masks[name]] if name in self.masks else loss for name, loss in found.items()}


class Plain(NamedTuple):
    """One batch on the copy.

    Args:
        losses: As the balancer is given them: means, or values per sample.
        gradients: Of the mean of each loss.
        extra: Of the sum of the losses that belong to no modality.
        extra_value: That sum.
        features: Of each loss, at the output of each encoder.
        responses: Of the fused loss, through the Shapley response of each modality alone.
        response_losses: Of those responses, as `losses`.
    """

    losses: dict[str, Tensor]
    gradients: dict[str, Gradients]
    extra: Gradients
    extra_value: float
    features: dict[str, Gradients]
    responses: dict[str, Gradients]
    response_losses: dict[str, Tensor]


def measure(copy: nn.Module, shape: Shape, data: Batch, question: Question) -> Plain:
    """Every loss of a batch by itself, and its gradients."""
    parameters = {name: tensor for name, tensor in copy.named_parameters() if tensor.requires_grad}
    ends: dict[str, Tensor] = {}
    hooks = [encoder.register_forward_hook(_keep(ends, name)) for name, encoder in encoders_of(copy, shape).items()]
    outputs = hybrid_outputs(copy, data.inputs) if isinstance(copy, HybridFusion) else copy(data.inputs)
    for hook in hooks:
        hook.remove()
    asked: dict[tuple[str, str], Tensor] = {("parameter", name): tensor for name, tensor in parameters.items()}
    asked |= {("end", name): tensor for name, tensor in ends.items() if tensor.requires_grad}
    found = question.losses(outputs, data.labels)
    losses = {name: loss for name, loss in found.items() if name in question.given}
    gradients, features = {}, {}
    for name, loss in losses.items():
        both = gradients_of(loss.mean(), asked)
        gradients[name] = {key: gradient for (place, key), gradient in both.items() if place == "parameter"}
        features[name] = {key: gradient for (place, key), gradient in both.items() if place == "end"}
    extra: Gradients = {}
    value = 0.0
    if question.extra:
        total = torch.stack([loss.mean() for loss in extra_of(copy, outputs, question.extra).values()]).sum()
        extra, value = gradients_of(total, parameters), float(total.detach())
    responses, scored = _responses(copy, shape, data, question, parameters) if question.responses else ({}, {})
    detached = {name: loss.detach() for name, loss in losses.items()}
    return Plain(detached, gradients, extra, value, features, responses, scored)


def hybrid_outputs(model: HybridFusion, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The outputs of a hybrid model, one pass through the trunk after the other."""
    features = {name: encoder(inputs[name]) for name, encoder in model.encoders.items()}
    outputs = {FUSED: model.fusion(features)}
    detached = {name: tensor.detach() for name, tensor in model.fusion.named_parameters()}
    for name, feature in features.items():
        absent = {other: model.missing(other).expand_as(features[other]) for other in features if other != name}
        match model.unimodal:
            case "masked":
                outputs[name] = model.fusion({**absent, name: feature})
            case "masked_detached":
                outputs[name] = functional_call(model.fusion, detached, ({**absent, name: feature.detach()},))
            case "head":
                outputs[name] = model.heads[name](feature)
            case _:
                outputs[name] = model.heads[name](feature.detach())
    return outputs


def _keep(ends: dict[str, Tensor], name: str) -> Callable[[nn.Module, object, Tensor], None]:
    def hook(module: nn.Module, inputs: object, output: Tensor) -> None:  # noqa: ARG001
        ends[name] = output

    return hook


def gradients_of(output: Tensor, tensors: Mapping, arriving: Tensor | None = None) -> dict:
    """The gradients at the tensors that an output is connected with."""
    if not output.requires_grad:
        return {}
    found = torch.autograd.grad(output, list(tensors.values()), arriving, retain_graph=True, allow_unused=True)
    return {name: gradient for name, gradient in zip(tensors, found, strict=True) if gradient is not None}


def _responses(
    copy: nn.Module, shape: Shape, data: Batch, question: Question, parameters: Mapping[str, Tensor]
) -> tuple[dict[str, Gradients], dict[str, Tensor]]:
    """Shapley values of the fused output over all 2^K subsets; inputs outside a subset are zeros, and so is F(∅).

    They add up to the fused output; the gradient that arrives there goes on through each of them alone.
    """
    names, count = shape.modalities, len(shape.modalities)

    def output(chosen: Iterable[str]) -> Tensor:
        kept = {name: value if name in chosen else torch.zeros_like(value) for name, value in data.inputs.items()}
        return copy(kept)[FUSED]

    outputs = {frozenset(s): output(s) for size in range(1, count + 1) for s in combinations(names, size)}
    outputs[frozenset()] = torch.zeros_like(outputs[frozenset(names)])
    values: dict[str, Tensor] = {}
    for name in names:
        others = [other for other in names if other != name]
        subsets = [frozenset(s) for size in range(count) for s in combinations(others, size)]
        gains = [(outputs[s | {name}] - outputs[s]) / (count * math.comb(count - 1, len(s))) for s in subsets]
        values[name] = torch.stack(gains).sum(dim=0)
    whole = torch.stack(list(values.values())).sum(dim=0).detach().requires_grad_()
    loss = question.factors.get(FUSED, 1.0) * F.cross_entropy(whole, data.labels)
    (arriving,) = torch.autograd.grad(loss, whole)
    through = {name: gradients_of(value, parameters, arriving) for name, value in values.items()}
    detached = {name: value.detach() for name, value in values.items()}
    return through, question.losses(detached, data.labels)


@final
class Layout:
    """Which parameters of a model belong to which encoder.

    Args:
        modalities: Their names.
        blocks: The names of the trainable parameters of each encoder; empty when no model is attached.
        kernels: The names of the parameters with three dimensions or more.
        heads: The parts of an additive fused head that belong to a modality: for the name of a parameter and that of
            the modality its columns; None for the whole parameter.
        trunk: The names of the trainable parameters of the trunk that belong to no encoder.
    """

    def __init__(
        self,
        modalities: Iterable[str],
        blocks: Mapping[str, frozenset[str]],
        kernels: frozenset[str],
        heads: Mapping[str, Mapping[str, slice | None]],
        trunk: frozenset[str] = frozenset(),
    ) -> None:
        self.trunk = trunk
        self.modalities, self.blocks, self.kernels, self.heads = tuple(modalities), dict(blocks), kernels, dict(heads)
        self.groups: list[list[str]] = []
        """Encoders that share parameters, together."""
        for name in self.blocks:
            joined = [g for g in self.groups if any(self.blocks[name] & self.blocks[other] for other in g)]
            merged = [member for g in joined for member in g]
            self.groups = [g for g in self.groups if g not in joined] + [[*merged, name]]
        self.groups_of = {key: group for group in self.groups for name in group for key in self.blocks[name]}
        """For each parameter of an encoder the group that it is decided on with."""

    def means(self, factors: Mapping[str, float]) -> dict[str, float]:
        """Factors of encoders; those that share parameters have the mean of theirs."""
        told = dict(factors)
        for group in self.groups:
            told |= dict.fromkeys(group, sum(factors[name] for name in group) / len(group))
        return told

    def on_head(self, name: str, factors: Mapping[str, float], size: int) -> float | Tensor:
        """The factor on a parameter of the fused head: one, that of its modality, or one for each of its columns."""
        factor = torch.ones(1, size, dtype=torch.float64)
        for modality, columns in self.heads.get(name, {}).items():
            if columns is None:
                return factors[modality]
            factor[:, columns] = factors[modality]
        return factor if name in self.heads else 1.0

    def reached(self, gradients: Gradients, modality: str) -> bool:
        """Whether a loss with these gradients is connected with an encoder."""
        return any(name in gradients for name in self.blocks.get(modality, ()))

    def reaches_trunk(self, gradients: Gradients) -> bool:
        """Whether a loss with these gradients is connected with the trunk."""
        return not self.trunk.isdisjoint(gradients)


@final
class Total:
    """A sum of gradients by parameter, and how large its terms are: rounding is relative to those."""

    def __init__(self) -> None:
        self.values: Gradients = {}
        self.sizes: dict[str, float] = {}

    def add(self, name: str, gradient: Tensor, factor: float | Tensor = 1.0) -> None:
        """Add a gradient times a factor."""
        term = gradient * factor
        self.values[name] = self.values[name] + term if name in self.values else term
        self.sizes[name] = self.sizes.get(name, 0.0) + float(term.abs().max())

    def add_all(self, gradients: Gradients, factor: float = 1.0) -> None:
        """Add several."""
        for name, gradient in gradients.items():
            self.add(name, gradient, factor)


def shortest(vectors: np.ndarray) -> np.ndarray:
    """The weights of the shortest vector in the convex hull of the rows: of all supports, the best feasible one.

    For a support the shortest affine combination is a least-squares problem in the differences to its first member,
    which is taken to be the shortest; columns are scaled, so that lengths of several magnitudes do no harm.
    """
    order = np.argsort(np.linalg.norm(vectors, axis=1))
    best, least = np.zeros(len(vectors)), math.inf
    for size in range(1, len(vectors) + 1):
        for support in combinations(order, size):
            first, rest = support[0], list(support[1:])
            weights = np.zeros(len(vectors))
            if rest:
                columns = (vectors[rest] - vectors[first]).T
                lengths = np.linalg.norm(columns, axis=0)
                lengths[lengths == 0] = 1.0
                solution = np.linalg.lstsq(columns / lengths, -vectors[first], rcond=None)[0]
                weights[rest] = solution / lengths
            weights[first] = 1 - weights.sum()
            length = float(np.linalg.norm(weights @ vectors))
            if (weights >= 0).all() and length < least:
                best, least = weights, length
    return best
