"""MSL: joint training, the baseline everything is measured against."""

from __future__ import annotations

from typing import final

from equipoise.balance.coefficients import Coefficients, Losses
from equipoise.balance.kinds import Weighting
from equipoise.balance.needs import Needs


@final
class MSL(Weighting):
    """Joint training: minimise the fused loss f_mm and nothing else.

    Encoders and fused head move along ∇f_mm. Uni-modal losses, where given, train only parameters that the fused loss
    does not reach: the uni-modal heads, for measuring.

    Tasks: any.

    Also known as vanilla multi-modal sensor learning. Cost: one backward pass.

    Example:
        >>> import torch
        >>> balancer = MSL()
        >>> float(balancer({"fused": torch.tensor(1.0), "audio": torch.tensor(2.0)}))
        1.0
    """

    needs = Needs(learns_from_own=False, losses=False, encoders=False)

    def __init__(self) -> None:
        super().__init__()

    def weigh(self, losses: Losses) -> Coefficients:
        """The fused loss at one; on own heads, every loss at one."""
        return Coefficients.joint(losses)
