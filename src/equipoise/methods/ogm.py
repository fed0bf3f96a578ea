"""OGM: slow the modality that is ahead."""

from __future__ import annotations

from abc import ABC
from typing import Annotated, Literal, final

import torch

from equipoise.balance.coefficients import Coefficients, Losses, ratios
from equipoise.balance.kinds import Weighting
from equipoise.balance.needs import Needs
from equipoise.util.annotated import Tried

Modulated = Literal["all", "kernels"]
TRIED = Tried(0.1, 0.4, 0.8, 1.5)


class OnTheFly(Weighting, ABC):
    """The factors that OGM and OGM-GE have in common."""

    def __init__(self, strength: float, parameters: Modulated, start: int, stop: int | None) -> None:
        super().__init__(start=start, stop=stop)
        self.check_arguments((strength >= 0, "strength should be zero or more", strength))
        self.strength = strength
        self.needs = Needs(
            unimodal="share", learns_from_own=False, factors=True, scores=("likelihood",), block=parameters
        )

    def weigh(self, losses: Losses) -> Coefficients:
        """Give c_m = 1 − tanh(α · ρ_m) where ρ_m > 1, else 1, on the gradient of the fused loss."""
        ahead = ratios(losses.scores)
        factors = torch.where(ahead > 1, 1 - torch.tanh(self.strength * ahead), torch.ones_like(ahead))
        return Coefficients.joint(losses, factors)


@final
class OGM(OnTheFly):
    """On-the-fly gradient modulation: the fused gradient of an encoder that is ahead is made smaller.

    Encoder m moves along c_m · ∇f_mm with c_m = 1 − tanh(α · ρ_m) if ρ_m > 1, else 1. ρ_m is the mean over the other
    modalities j of s_m / s_j, s_m the mean probability of the right class as modality m sees it, exp(−f_m) sample by
    sample. For two modalities this is the published rule, except that a tie slows neither.

    Tasks: any. Where a sample has several labels and f_m is the mean of their binary cross-entropies, exp(−f_m) is the
    geometric mean of the probabilities of its right answers; where f_m is a Huber, squared or absolute error of a
    standardised number, exp(−f_m) is its likelihood up to a factor, which falls as the error grows.

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

    def __init__(
        self,
        strength: Annotated[float, TRIED] = 0.8,
        parameters: Modulated = "all",
        start: int = 0,
        stop: int | None = None,
    ) -> None:
        super().__init__(strength, parameters, start, stop)
