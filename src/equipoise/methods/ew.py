"""EW: equal weighting of the fused and the uni-modal losses."""

from typing import Annotated, final

from equipoise.balance.coefficients import Coefficients, Losses
from equipoise.balance.kinds import Weighting
from equipoise.balance.needs import Needs
from equipoise.util.annotated import Tried


@final
class EW(Weighting):
    """Equal weighting: minimise f_mm + w · Σ_k f_k.

    f_mm is the fused loss, f_k the loss of modality k, w the weight. With w = λ/K it is the control beside MIMO: the
    same total weight, spread evenly instead of towards the modality that is behind.

    Tasks: any.

    Also the uniform baseline of Wei and Hu, "MMPareto" (ICML 2024). Cost: one backward pass.

    Args:
        weight: w, the weight of every uni-modal loss.

    Example:
        >>> import torch
        >>> balancer = EW(weight=0.5)
        >>> float(balancer({"fused": torch.tensor(1.0), "audio": torch.tensor(2.0), "video": torch.tensor(4.0)}))
        4.0
    """

    needs = Needs(encoders=False)

    def __init__(self, weight: Annotated[float, Tried(0.3, 1.0, 3.0, 10.0)] = 1.0) -> None:
        super().__init__()
        self.check_arguments((weight >= 0, "weight should be zero or more", weight))
        self.weight = weight

    def weigh(self, losses: Losses) -> Coefficients:
        """The fused loss at one, every uni-modal loss at w."""
        return Coefficients.shared(losses.weights(1.0, self.weight))
