"""Reading a model: evaluation mode, class probabilities, the vote of a committee, and Shapley values.

The committee's probability of class c is softmax_c(Σ_j w_j log p_j(c)), with one weight w_j ≥ 0 per member j: the fused
head first, then each modality's own.
"""

import math
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from itertools import combinations
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from equipoise.util.errors import name_problems, raise_all
from equipoise.util.graph import scale_gradient

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


MOST = 10
"""The most modalities that `ShapleyResponses` takes."""


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


@final
class ShapleyResponses(nn.Module):
    """Wraps any model so that exact AGM can modulate it: 2^K − 1 forward passes, for early and hybrid fusion.

    The response of modality m is φ_m = Σ_{S ⊆ N∖m} |S|! (K − |S| − 1)! / K! · (F(S ∪ m) − F(S)): F(S) is the model's
    output with the inputs outside S set to zero, F(∅) = 0. The responses add up to F(N), which is the fused output.
    As in the published code the full pass runs in the mode the model is in, the others in evaluation mode, and
    gradients flow through all of them.

    Paper: Li et al., "Boosting Multi-modal Model Performance with Adaptive Gradient Modulation" (ICCV 2023).

    Args:
        model: Maps ``{name: input}`` to a tensor, or to a mapping with the entry "fused".
        modalities: Their names, as in the inputs; at most ten.

    Raises:
        ValueError: If there are more, or a name is none.

    Example:
        >>> from equipoise import AGM
        >>> class Product(nn.Module):
        ...     def forward(self, inputs):
        ...         return inputs["a"] * inputs["b"] + inputs["a"]
        >>> model = ShapleyResponses(Product(), ["a", "b"])
        >>> outputs = model({"a": torch.tensor([2.0]), "b": torch.tensor([3.0])})
        >>> {name: response.tolist() for name, response in outputs.items()}
        {'fused': [8.0], 'a': [5.0], 'b': [3.0]}
        >>> balancer = AGM(responses=model)
    """

    def __init__(self, model: nn.Module, modalities: Sequence[str]) -> None:
        super().__init__()
        problems = name_problems(modalities)
        if len(modalities) > MOST:
            problems.append(
                f"ShapleyResponses expected at most {MOST} modalities, for which it runs the model {2**MOST - 1} times "
                f"a step; found {len(modalities)}. Train with AGM() on the model itself: its fast form needs one pass."
            )
        raise_all(problems)
        self.model = model
        self.modalities = tuple(modalities)

    def forward(self, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Give the fused output, then each modality's response, which carries no gradient of its own."""
        absent = [name for name in self.modalities if name not in inputs]
        raise_all(f"Expected an input for each of {list(self.modalities)}; found none for {name!r}." for name in absent)
        outputs: dict[frozenset[str], Any] = {frozenset(): 0, frozenset(self.modalities): self._output(inputs)}
        with evaluating(self.model):
            for size in range(1, len(self.modalities)):
                for chosen in map(frozenset, combinations(self.modalities, size)):
                    heard = {
                        name: torch.zeros_like(value) if name in self.modalities and name not in chosen else value
                        for name, value in inputs.items()
                    }
                    outputs[chosen] = self._output(heard)
        responses = shapley_values(outputs)
        scaled = [scale_gradient(response, name) for name, response in responses.items()]
        fused = torch.stack(scaled).sum(dim=0)
        return {"fused": fused, **{name: response.detach() for name, response in responses.items()}}

    def _output(self, inputs: Mapping[str, Tensor]) -> Tensor:
        output = self.model(inputs)
        return output["fused"] if isinstance(output, Mapping) else output


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
