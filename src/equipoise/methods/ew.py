"""EW: equal weighting of the fused and the uni-modal losses."""

from collections.abc import Callable, Sequence
from typing import ClassVar, final

import torch

from equipoise.balance.balancer import Balancer
from equipoise.balance.losses import LossValues, Weights


@final
class EW(Balancer):
    """Equal weighting: minimise f_mm + w · Σ_k f_k.

    f_mm is the fused loss, f_k the loss of modality k, w the weight. With w = λ/K it is the control beside MIMO: the
    same total weight, spread evenly instead of towards the modality that is behind.

    Tasks: any.

    Also the uniform baseline of Wei and Hu, "MMPareto" (ICML 2024). Cost: one backward pass.

    Args:
        weight: w, the weight of every uni-modal loss.

    Example:
        >>> balancer = EW(weight=0.5)
        >>> float(balancer({"fused": torch.tensor(1.0), "audio": torch.tensor(2.0), "video": torch.tensor(4.0)}))
        4.0
    """

    unimodal = "head"
    search: ClassVar = {"weight": (0.3, 1.0, 3.0, 10.0)}

    def __init__(self, weight: float = 1.0) -> None:
        super().__init__()
        self.check_arguments((weight >= 0, "weight should be zero or more", weight))
        self.weight = weight

    def weigh(self, values: LossValues) -> Weights:
        """The fused loss at one, every uni-modal loss at w."""
        return Weights(torch.cat([torch.ones_like(values.fused)[None], torch.full_like(values.unimodal, self.weight)]))

    def smoothness_problem(self) -> str:
        """Name no problem: the smoothness is known."""
        return ""

    def smoothness(self, of_loss: Callable[..., tuple[float, float]], modalities: Sequence[str]) -> float:
        """L_mm + w · Σ_k L_k."""
        return of_loss("fused")[0] + self.weight * sum(of_loss(name)[0] for name in modalities)
