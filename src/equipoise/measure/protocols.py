"""Uni-modal accuracy, under every protocol in use, each under its name: they differ by tens of points.

head, detached, split: the model's own uni-modal outputs, whichever it was built with.
split: the modality's share of the fused output, for any model whose fusion is additive.
probe: a fresh linear layer on the frozen features, fitted on the training part.
zeroed: the fused decision with the inputs of all other modalities set to zero.
shapley: the modality's Shapley value of the fused accuracy, inputs outside a subset set to zero.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import combinations

import torch
from torch import Tensor

from equipoise.data.splits import Part
from equipoise.measure.outputs import Outputs, decide, features_of_part
from equipoise.measure.probe import probe_features
from equipoise.measure.scoring import accuracy
from equipoise.models.evaluation import evaluating
from equipoise.models.late_fusion import LateFusion

Accuracies = dict[str, float]
"""One accuracy per modality."""
Subset = frozenset[str]


def unimodal_accuracy(
    model: LateFusion, part: Part, train: Part | None = None, batch: int = 512
) -> dict[str, Accuracies]:
    """Give the accuracy of every modality under every protocol that the model allows.

    Args:
        model: The model.
        part: The part to judge on, with every modality.
        train: The part to fit the probes on; without it there is no "probe".
        batch: How many samples the encoders read at a time.

    Returns:
        ``{protocol: {modality: accuracy}}``.
    """
    features = features_of_part(model, part, batch)
    own = view_accuracy(decide(model, features, part.label))
    return own | other_protocols(model, part, features, train, batch)


def view_accuracy(outputs: Outputs) -> dict[str, Accuracies]:
    """Give the accuracy of the model's own uni-modal outputs, under the name of its view; nothing where it has none."""
    if outputs.view is None:
        return {}
    return {outputs.view: {name: accuracy(logs, outputs.label) for name, logs in outputs.unimodal.items()}}


def other_protocols(
    model: LateFusion, part: Part, features: Mapping[str, Tensor], train: Part | None = None, batch: int = 512
) -> dict[str, Accuracies]:
    """Give the protocols that need no view: split where the fusion is additive, probe, zeroed, shapley.

    Args:
        model: The model.
        part: The part to judge on, with every modality.
        features: Its features, as `features_of_part` gives them.
        train: The part to fit the probes on; without it there is no "probe".
        batch: How many samples the encoders read at a time.
    """
    found = {}
    label = part.label.to(model.committee.device)
    if model.fusion.additive:
        with evaluating(model), torch.no_grad():
            shares = model.fusion.share(features)
        found["split"] = {name: accuracy(shares[name], label) for name in model.encoders}
    if train is not None:
        found["probe"] = probe_features(features_of_part(model, train, batch), train.label, features, label)
    subsets = subset_accuracy(model, part, features, batch)
    found["zeroed"] = {name: subsets[frozenset({name})] for name in model.encoders}
    found["shapley"] = shapley_values(subsets)
    return found


def subset_accuracy(
    model: LateFusion, part: Part, features: Mapping[str, Tensor], batch: int = 512
) -> dict[Subset, float]:
    """Give the fused accuracy of every subset of modalities, the inputs of the others set to zero.

    The value of the empty subset is the share of the most frequent class of the part: what can be reached without
    looking. What a model says to nothing but zeros would be an accident of its biases; this is the same for all models.
    """
    label = part.label.to(model.committee.device)
    # An encoder reads its own modality only, so two runs of each serve all 2^K subsets.
    silent = _features_of_silence(model, part, batch)
    values = {frozenset(): label.bincount().max().item() / len(label)}
    with evaluating(model), torch.no_grad():
        for size in range(1, len(model.encoders) + 1):
            for subset in map(frozenset, combinations(model.encoders, size)):
                seen = {name: features[name] if name in subset else silent[name] for name in model.encoders}
                values[subset] = accuracy(model.fusion(seen), label)
    return values


def _features_of_silence(model: LateFusion, part: Part, batch: int) -> dict[str, Tensor]:
    """The features of a part whose inputs are zero: one sample stands for all, unless they differ in length."""
    if not set(part.inputs) <= set(model.encoders):
        return features_of_part(model, part, batch, silent=True)
    one = features_of_part(model, part.take(torch.zeros_like(part.label[:1])), batch, silent=True)
    return {name: feature.expand(len(part), -1) for name, feature in one.items()}


def shapley_values(values: Mapping[Subset, float]) -> Accuracies:
    """Divide the value of all modalities among them, by Shapley's rule.

    φ_m = Σ_{S ⊆ N∖m} |S|! (K − |S| − 1)! / K! · (v(S ∪ m) − v(S)). They add up to v(N) − v(∅).

    Args:
        values: v of every subset.
    """
    everyone = max(values, key=len)
    count = len(everyone)
    weights = [math.factorial(size) * math.factorial(count - size - 1) / math.factorial(count) for size in range(count)]
    return {
        name: sum(
            weights[len(subset)] * (values[subset | {name}] - value)
            for subset, value in values.items()
            if name not in subset
        )
        for name in (name for single in values if len(single) == 1 for name in single)  # in the order given
    }


def disparity(accuracies: Accuracies) -> float:
    """How far the best modality is ahead of the worst: max − min of the accuracies under one protocol."""
    return max(accuracies.values()) - min(accuracies.values())


def beats_best_single(fused: float, accuracies: Accuracies) -> bool:
    """Whether the fused accuracy is above that of every single modality under one protocol."""
    return fused > max(accuracies.values())
