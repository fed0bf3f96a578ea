"""OGM: slow the modality that is ahead."""

from __future__ import annotations

from typing import ClassVar, Literal, final

import torch
from torch import Tensor

from equipoise.balance.balancer import Balancer
from equipoise.balance.losses import LossValues
from equipoise.balance.method import Weights
from equipoise.methods.scores import log_likelihood, ratios
from equipoise.util.errors import demand

Parameters = Literal["all", "kernels"]


def check_ogm(owner: str, strength: float, parameters: str) -> None:
    """The rules that OGM and OGM-GE have in common."""
    demand(
        owner,
        (strength >= 0, "strength should be zero or more", strength),
        (parameters in ("all", "kernels"), "parameters should be 'all' or 'kernels'", parameters),
    )


def ogm_weights(values: LossValues, strength: float) -> Weights:
    """c_m = 1 − tanh(α · ρ_m) where ρ_m > 1, else 1, on the gradient of the fused loss."""
    ahead = ratios(values.scores)
    factors = torch.where(ahead > 1, 1 - torch.tanh(strength * ahead), torch.ones_like(ahead))
    return Weights.joint(values, factors)


def is_kernel(tensor: Tensor) -> bool:
    """Whether a tensor is the kernel of a convolution, of any number of dimensions."""
    return tensor.dim() >= 3


@final
class OGM(Balancer):
    """On-the-fly gradient modulation: the fused gradient of an encoder that is ahead is made smaller.

    Encoder m moves along c_m · ∇f_mm with c_m = 1 − tanh(α · ρ_m) if ρ_m > 1, else 1. ρ_m is the mean over the other
    modalities j of s_m / s_j, s_m the mean probability of the right class as modality m sees it, exp(−f_m) sample by
    sample. For two modalities this is the published rule, except that a tie slows nobody.

    Paper: Peng et al., "Balanced Multimodal Learning via On-the-fly Gradient Modulation" (CVPR 2022).
    Cost: one backward pass.

    Args:
        strength: α. The authors advise 0.1 for VGGSound and 0.8 for CREMA-D.
        parameters: "all" tensors of an encoder, or the "kernels" of its convolutions only, as in the authors' code.
        start: First epoch that modulates.
        stop: First epoch that no longer does. The authors' default is 51.

    Example:
        >>> from equipoise import LateFusion
        >>> model = LateFusion({"audio": torch.nn.Linear(3, 4), "video": torch.nn.Linear(5, 4)}, classes=2)
        >>> balancer = OGM(strength=0.8).attach(model, optimizer=torch.optim.SGD(model.parameters(), 0.1))
        >>> loss = balancer(
        ...     {"fused": model({"audio": torch.ones(1, 3), "video": torch.ones(1, 5)})["fused"].sum(),
        ...      "audio": torch.tensor([0.5]), "video": torch.tensor([1.5])})  # one sample
        >>> round(float(balancer.table.at("fused", "audio")), 4)  # 1 − tanh(0.8 · e)
        0.0255
    """

    route = "fused"
    unimodal = "split"
    search: ClassVar = {"strength": (0.1, 0.4, 0.8, 1.5)}
    modulates = True
    logarithmic_scores = True

    def __init__(
        self, strength: float = 0.8, parameters: Parameters = "all", start: int = 0, stop: int | None = None
    ) -> None:
        super().__init__(start=start, stop=stop)
        check_ogm("OGM", strength, parameters)
        self.strength, self.parameters_modulated = strength, parameters

    def score(self, losses: Tensor) -> Tensor:
        """The log of the mean probability of the right class."""
        return log_likelihood(losses)

    def touches(self, tensor: Tensor) -> bool:
        """All tensors, or kernels only."""
        return self.parameters_modulated == "all" or is_kernel(tensor)

    def weigh(self, values: LossValues) -> Weights:
        """A factor below one for whoever is ahead."""
        return ogm_weights(values, self.strength)
