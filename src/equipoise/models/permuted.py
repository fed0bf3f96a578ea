"""Outputs with the features of one modality permuted in the batch, and how far they are from those without."""

import math
from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn import functional as F

from equipoise.models.fusion_model import FusionModel, Tensors
from equipoise.models.task import Classification, MultiLabel, Task, widened


def permuted_outputs(
    model: FusionModel, features: Mapping[str, Tensor], name: str, permutations: int = 1, present: Tensor | None = None
) -> Tensor:
    """Give the fused outputs where one modality has the features of other samples of the batch, [P, B, size].

    Permutations are drawn from torch's generator of the device.

    Args:
        model: A model whose features are vectors, such as LateFusion.
        features: As `model.features` gives them.
        name: The modality.
        permutations: Their number P.
        present: The samples that have the sensor, booleans [B], where some lack it: these are permuted among
            themselves.
    """
    own = features[name]
    luck = torch.rand(permutations, len(own), device=own.device)
    rows = luck.argsort(dim=1)
    if present is not None:
        # Those that have it come first, in an order of chance and in their own, and one is laid on the other.
        lacking = (~present).to(luck.dtype)
        drawn, places = (luck + 2 * lacking).argsort(dim=1), lacking.argsort(stable=True)
        rows = torch.empty_like(drawn).scatter_(1, places.expand_as(drawn), drawn)
    repeated = {other: feature.repeat(permutations, 1) for other, feature in features.items() if other != name}
    mixed = {other: own[rows.flatten()] if other == name else repeated[other] for other in features}
    return model.fusion(model.complete(mixed)).unflatten(0, (permutations, len(own)))


def permutation_losses(
    model: FusionModel,
    features: Mapping[str, Tensor],
    fused: Tensor,
    permutations: int = 8,
    present: Mapping[str, Tensor] | None = None,
) -> Tensors:
    """Give L_k = −D(p, p_k) of each modality k, one value per sample [B], for `further` of a balancer.

    p is the fused output, as a constant, p_k that with the features of modality k permuted, D their distance: the
    Jensen-Shannon divergence of classes, its mean over labels, of numbers 1 − exp(−d²/8), which is the squared
    Hellinger distance of two normal distributions with a deviation of one, d apart. The less the output depends on
    modality k, the closer L_k is to zero.

    Args:
        model: A model whose features are vectors, such as LateFusion, and which knows its task.
        features: As `model.features` gives them.
        fused: The fused output of the batch.
        permutations: Over how many of them a distance is averaged.
        present: By modality the samples that have the sensor, booleans [B], where some lack it; the others are left
            out, and those that have it weigh so much more that the mean over the batch is theirs.

    Example:
        >>> from equipoise import LateFusion
        >>> model = LateFusion({"audio": torch.nn.Linear(3, 4), "video": torch.nn.Linear(5, 4)}, classes=2)
        >>> features = model.features({"audio": torch.randn(8, 3), "video": torch.zeros(8, 5)})
        >>> further = permutation_losses(model, features, model.outputs_from(features)["fused"])
        >>> {name: (loss <= 0).all().item() for name, loss in further.items()}
        {'audio': True, 'video': True}
        >>> further["video"].abs().max().item() < 1e-6  # all samples have the same: nothing depends on which is whose
        True
    """
    task, found = model.known_task(), {}
    for name in features:
        mask = None if present is None else present.get(name)
        others = permuted_outputs(model, features, name, permutations, mask)
        loss = -_distance(task, widened(fused.detach()).expand_as(others), widened(others)).mean(dim=0)
        if mask is not None:
            loss = torch.where(mask, loss, 0.0) * (len(mask) / mask.sum().clamp(min=1))
        found[name] = loss
    return found


def _distance(task: Task, one: Tensor, other: Tensor) -> Tensor:
    """Return the distance of outputs [..., size] as a task reads them, between zero and one, [...]."""
    if isinstance(task, Classification):
        return _divergence(one.log_softmax(dim=-1), other.log_softmax(dim=-1)).sum(dim=-1)
    if isinstance(task, MultiLabel):
        pairs = ((F.logsigmoid(sign * one), F.logsigmoid(sign * other)) for sign in (1, -1))
        return torch.stack([_divergence(*pair) for pair in pairs]).sum(dim=0).mean(dim=-1)
    return (1 - (-(one - other).square() / 8).exp()).mean(dim=-1)


def _divergence(one: Tensor, other: Tensor) -> Tensor:
    """Return the terms of the Jensen-Shannon divergence, from logarithms of probabilities."""
    middle = torch.logaddexp(one, other) - math.log(2)
    return 0.5 * (one.exp() * (one - middle) + other.exp() * (other - middle))
