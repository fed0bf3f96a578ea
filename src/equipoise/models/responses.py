"""Each modality's response, a term of the fused output, and the objectives that come of responses."""

from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any, final

import torch
from torch import Tensor, nn

from equipoise.models.evaluation import evaluating, shapley_values
from equipoise.util.errors import name_problems, raise_all

MOST = 10
"""The most modalities that `ShapleyResponses` takes."""


def response_losses(fused: Tensor, responses: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Give ⟨∂f/∂φ_m, φ_m⟩ of each response φ_m, with the slope as a constant, where the responses add up to the output.

    The gradients of these objectives add up to that of the fused loss f; a method that weighs them modulates what each
    modality learns from it.

    Args:
        fused: The fused loss, one value per sample or a scalar, computed from the responses.
        responses: By modality.
    """
    slopes = torch.autograd.grad(fused.mean(), list(responses.values()), retain_graph=True)
    return {name: (slope * one).sum() for slope, (name, one) in zip(slopes, responses.items(), strict=True)}


@final
class ShapleyResponses(nn.Module):
    """Wraps any model so that it tells each modality's response: 2^K − 1 forward passes, for early and hybrid fusion.

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
        >>> class Product(nn.Module):
        ...     def forward(self, inputs):
        ...         return inputs["a"] * inputs["b"] + inputs["a"]
        >>> model = ShapleyResponses(Product(), ["a", "b"])
        >>> outputs = model({"a": torch.tensor([2.0]), "b": torch.tensor([3.0])})
        >>> {name: response.tolist() for name, response in outputs.items()}
        {'fused': [8.0], 'a': [5.0], 'b': [3.0]}
    """

    def __init__(self, model: nn.Module, modalities: Sequence[str]) -> None:
        super().__init__()
        problems = name_problems(modalities)
        if len(modalities) > MOST:
            problems.append(
                f"ShapleyResponses expected at most {MOST} modalities, for which it runs the model {2**MOST - 1} times "
                f"a step; found {len(modalities)}. A method that has a fast form needs one pass."
            )
        raise_all(problems)
        self.model = model
        self.modalities = tuple(modalities)

    def forward(self, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Give the fused output, then each modality's response; `response_losses` makes objectives of these."""
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
        return {"fused": torch.stack(list(responses.values())).sum(dim=0), **responses}

    def _output(self, inputs: Mapping[str, Tensor]) -> Tensor:
        output = self.model(inputs)
        return output["fused"] if isinstance(output, Mapping) else output
