"""The linear probe: the accuracy of a fresh linear layer on frozen features, whatever the heads of the model do."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from equipoise.data.splits import Part
from equipoise.measure.outputs import accuracy, read_features, reading
from equipoise.models.late_fusion import LateFusion

PENALTY = 1e-3  # on the squared weights of standardised features: small, and enough for one answer on separable ones
_STEPS, _INNER = 100, 250  # more than enough: about ten, of some dozens each, bring the gradient to the tolerance
_TOLERANCE = 1e-7  # of the largest entry of the gradient
_DECREASE = 1e-4  # of what the slope promises, that a step has to keep


class Probe(NamedTuple):
    """A linear layer on standardised features.

    Args:
        mean: Of each feature in training, [F].
        deviation: Of each feature in training, [F]; one where a feature never moved.
        weight: Of the layer, [C, F].
        bias: Of the layer, [C].
    """

    mean: Tensor
    deviation: Tensor
    weight: Tensor
    bias: Tensor

    def logits(self, features: Tensor) -> Tensor:
        """Compute class scores [N, C] of features [N, F]."""
        return F.linear((features.double() - self.mean) / self.deviation, self.weight, self.bias)


def fit_probe(features: Tensor, label: Tensor, classes: int) -> Probe:
    """Fit multinomial logistic regression with a small L2 penalty: full batch, Newton's method, double precision.

    It starts from zero, so the same features give the same probe.

    Args:
        features: Of the training samples, [N, F].
        label: Their classes, [N].
        classes: Number of classes.
    """
    features, label = features.detach().double(), label.to(features.device)
    mean, deviation = features.mean(dim=0), features.std(dim=0, correction=0)
    deviation = torch.where(deviation == 0, 1.0, deviation)
    standard = F.pad((features - mean) / deviation, (0, 1), value=1.0)  # the last one is the bias's
    solution = _minimise(standard, F.one_hot(label, classes).double())
    return Probe(mean, deviation, solution[:-1].T.contiguous(), solution[-1])


@torch.no_grad()
def _minimise(inputs: Tensor, target: Tensor) -> Tensor:
    """Find the weights [F + 1, C] of least mean cross-entropy plus penalty; the last row, the bias, has no penalty."""
    penalty = torch.full_like(inputs[0], PENALTY).unsqueeze(1)
    penalty[-1] = 0.0
    turned = inputs.T.contiguous() / len(inputs)

    def loss(weights: Tensor) -> tuple[Tensor, Tensor]:
        logits = inputs @ weights
        value = (logits.logsumexp(dim=1) - (logits * target).sum(dim=1)).mean()
        return value + (penalty * weights.square()).sum() / 2, logits

    weights = inputs.new_zeros(inputs.shape[1], target.shape[1])
    value, logits = loss(weights)
    for _ in range(_STEPS):
        chances = logits.softmax(dim=1)
        gradient = turned @ (chances - target) + penalty * weights
        if gradient.abs().max() <= _TOLERANCE:
            break

        def curvature(direction: Tensor, chances: Tensor = chances) -> Tensor:
            moved = chances * (inputs @ direction)
            return turned @ (moved - chances * moved.sum(dim=1, keepdim=True)) + penalty * direction

        step = _solve(curvature, -gradient)
        slope = (gradient * step).sum()
        share = 1.0
        while (reached := loss(weights + share * step))[0] > value + _DECREASE * share * slope and share > _TOLERANCE:
            share /= 2
        weights = weights + share * step
        value, logits = reached
    return weights


def _solve(curvature: Callable[[Tensor], Tensor], right: Tensor) -> Tensor:
    """Solve curvature(x) = right by conjugate gradients, the more exactly the smaller the right side is."""
    solution, rest, direction = torch.zeros_like(right), right, right
    size = start = rest.square().sum()
    enough = start * right.abs().max().clamp(max=1 / 16)
    for _ in range(_INNER):
        bent = curvature(direction)
        length = size / (direction * bent).sum()
        solution = solution + length * direction
        rest = rest - length * bent
        before, size = size, rest.square().sum()
        if size <= enough:
            break
        direction = rest + size / before * direction
    return solution


def probe_accuracy(model: LateFusion, train: Part, part: Part, batch: int = 512) -> dict[str, float]:
    """Give the accuracy on a part of a fresh linear layer per modality, fitted on the frozen features of another.

    Args:
        model: The model whose encoders are probed; it is not changed.
        train: The part that the layers are fitted on.
        part: The part that they are judged on.
        batch: Samples that the encoders read at a time.
    """
    with reading(model):
        learnt, judged = read_features(model, train, batch), read_features(model, part, batch)
    return probe_features(learnt, train.label, judged, part.label)


def probe_features(
    learnt: Mapping[str, Tensor], learnt_label: Tensor, judged: Mapping[str, Tensor], judged_label: Tensor
) -> dict[str, float]:
    """Compute `probe_accuracy` from features."""
    classes = int(max(learnt_label.max(), judged_label.max())) + 1
    probes = {name: fit_probe(learnt[name], learnt_label, classes) for name in judged}
    return {
        name: accuracy(probe.logits(judged[name]), judged_label.to(judged[name].device))
        for name, probe in probes.items()
    }
