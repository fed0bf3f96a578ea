"""The linear probe: how much of the class can be read off frozen features, whatever the model makes of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from equipoise.data.splits import Part
from equipoise.measure.outputs import features_of_part
from equipoise.measure.scoring import accuracy
from equipoise.models.late_fusion import LateFusion

PENALTY = 1e-3  # on the squared weights of standardised features: small, and enough for one answer on separable ones
_STEPS = 500  # more than enough: some hundred bring the gradient to 1e-6


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
        """Class scores [N, C] of features [N, F]."""
        return F.linear((features.double() - self.mean) / self.deviation, self.weight, self.bias)


def fit_probe(features: Tensor, label: Tensor, classes: int) -> Probe:
    """Fit multinomial logistic regression with a small L2 penalty: full batch, L-BFGS, double precision, from zero.

    There is no chance in it: the same features give the same probe.

    Args:
        features: Of the training samples, [N, F].
        label: Their classes, [N].
        classes: How many classes there are.
    """
    features, label = features.detach().double(), label.to(features.device)
    mean, deviation = features.mean(dim=0), features.std(dim=0, correction=0)
    deviation = torch.where(deviation == 0, 1.0, deviation)
    standard = (features - mean) / deviation

    weight = features.new_zeros(classes, features.shape[1], requires_grad=True)
    bias = features.new_zeros(classes, requires_grad=True)
    solver = torch.optim.LBFGS(
        [weight, bias], max_iter=_STEPS, tolerance_grad=1e-6, tolerance_change=1e-12, line_search_fn="strong_wolfe"
    )

    def loss() -> Tensor:
        solver.zero_grad()
        value = F.cross_entropy(F.linear(standard, weight, bias), label) + PENALTY / 2 * weight.square().sum()
        value.backward()
        return value

    with torch.enable_grad():
        solver.step(loss)
    return Probe(mean, deviation, weight.detach(), bias.detach())


def probe_accuracy(model: LateFusion, train: Part, part: Part, batch: int = 512) -> dict[str, float]:
    """Give the accuracy on a part of a fresh linear layer per modality, fitted on the frozen features of another.

    Args:
        model: The model whose encoders are probed; it is not changed.
        train: The part that the layers are fitted on.
        part: The part that they are judged on.
        batch: How many samples the encoders read at a time.
    """
    learnt, judged = features_of_part(model, train, batch), features_of_part(model, part, batch)
    return probe_features(learnt, train.label, judged, part.label)


def probe_features(
    learnt: Mapping[str, Tensor], learnt_label: Tensor, judged: Mapping[str, Tensor], judged_label: Tensor
) -> dict[str, float]:
    """`probe_accuracy`, where the features are at hand."""
    classes = int(max(learnt_label.max(), judged_label.max())) + 1
    found = {}
    for name, features in judged.items():
        probe = fit_probe(learnt[name], learnt_label, classes)
        found[name] = accuracy(probe.logits(features), judged_label.to(features.device))
    return found
