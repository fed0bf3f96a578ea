"""Reading a model: evaluation mode, class probabilities, the vote of a committee, and Shapley values.

The committee's probability of class c is softmax_c(Σ_j w_j log p_j(c)), with one weight w_j ≥ 0 per member j: the fused
head first, then each modality's own.
"""

import math
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from equipoise.util.errors import raise_all

FLOOR = 0.1
"""The least part of an equal weight that each member left has where a sensor is missing."""
LEAST_LOG = -30.0
"""The least log-probability that counts: a head that gives a class no chance at all must not be able to forbid it."""


@contextmanager
def evaluating(model: nn.Module) -> Generator[None]:
    """Put a model into evaluation mode for a while; then every part goes back to the mode it was in."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, mode in modes:  # set directly: train() would reach the parts below, and may do more
            module.training = mode


def cross_entropies(outputs: Mapping[str, Tensor], labels: Tensor, reduction: str = "none") -> dict[str, Tensor]:
    """Return the cross-entropy of every output of a model that gives ``{"fused": logits, "audio": logits, …}``.

    Args:
        outputs: Logits by name.
        labels: The classes.
        reduction: One loss per sample ("none"), off which some methods read how sure each modality is; or their "mean"
            or "sum".
    """
    return {name: F.cross_entropy(logits, labels, reduction=reduction) for name, logits in outputs.items()}


def class_log_probabilities(outputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Read outputs as class scores [B, C] and normalise them, in float32 at least."""
    raise_all(
        f"Class probabilities expected outputs [B, C] for at least two classes; {name!r} has {list(output.shape)}. "
        "For other tasks call the model itself: model(inputs)['fused']."
        for name, output in outputs.items()
        if output.dim() != 2 or output.shape[1] < 2
    )
    return {name: widened(output).log_softmax(dim=1) for name, output in outputs.items()}


def widened(output: Tensor) -> Tensor:
    """Return an output in float32 at least."""
    return output if output.dtype == torch.float64 else output.float()


def surviving_weights(weights: Tensor, present: Tensor) -> Tensor:
    """Give the weights with which the members at hand vote.

    With a sensor missing the fused head goes too: it was trained to read all of them. Each member left has at least
    `FLOOR` of an equal weight, lest only members without a vote remain; and the weights are rescaled to the total of
    the full committee, so that the probabilities stay about as sharp, but to no more than one per member: a head
    that is left alone is not surer than by itself.

    Args:
        weights: The weight of every member of the full committee, the fused head first, [K + 1].
        present: The modalities at hand, booleans [..., K].

    Returns:
        The weights, [..., K + 1], zero for those that do not vote.
    """
    floor = FLOOR / len(weights)
    raised = weights[1:].clamp(min=floor) * present
    total = torch.minimum(weights.sum().clamp(min=floor), present.sum(dim=-1, keepdim=True).clamp(min=1))
    left = raised * (total / raised.sum(dim=-1, keepdim=True).clamp(min=floor))
    without_fused = torch.cat([torch.zeros_like(left[..., :1]), left], dim=-1)
    return torch.where(present.all(dim=-1, keepdim=True), weights, without_fused)


def varies_in_training(module: nn.Module) -> bool:
    """Return True for a layer that computes something else in training than in evaluation: batch statistics, dropout.

    Layers are known by their class; a module of the user's own that looks at `self.training` is not noticed.
    """
    if isinstance(module, (nn.modules.batchnorm._BatchNorm, nn.modules.instancenorm._InstanceNorm)):
        return module.training or module.track_running_stats
    if isinstance(module, nn.modules.dropout._DropoutNd):
        return module.p > 0
    dropout = getattr(module, "dropout", 0) if isinstance(module, (nn.RNNBase, nn.MultiheadAttention)) else 0
    return isinstance(module, nn.RReLU) or dropout > 0


def shapley_values(values: Mapping[frozenset[str], Any]) -> dict[str, Any]:
    """Divide the value of all modalities among them, by Shapley's rule.

    φ_m = Σ_{S ⊆ N∖m} |S|! (K − |S| − 1)! / K! · (v(S ∪ m) − v(S)). They add up to v(N) − v(∅).

    Args:
        values: v of every subset, numbers or tensors; the empty one comes first, and single ones in the order of the
            modalities.
    """
    count = max(map(len, values))
    weights = [math.factorial(size) * math.factorial(count - size - 1) / math.factorial(count) for size in range(count)]
    return {
        name: sum(
            weights[len(subset)] * (values[subset | {name}] - value)
            for subset, value in values.items()
            if name not in subset
        )
        for name in (name for single in values if len(single) == 1 for name in single)
    }
