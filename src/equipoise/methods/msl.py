"""MSL: joint training, the baseline everything is measured against."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import final

from equipoise.balance.balancer import Balancer
from equipoise.balance.losses import LossValues, Weights


@final
class MSL(Balancer):
    """Joint training: minimise the fused loss f_mm and nothing else.

    Encoders and fused head move along ∇f_mm. Uni-modal losses, where given, train only parameters that the fused loss
    does not reach: the uni-modal heads, for measuring.

    Tasks: any.

    Also known as vanilla multi-modal sensor learning. Cost: one backward pass.

    Example:
        >>> balancer = MSL()
        >>> float(balancer({"fused": torch.tensor(1.0), "audio": torch.tensor(2.0)}))
        1.0
    """

    route = "fused"
    unimodal = "detached"
    needs_unimodal = False
    needs_encoders = False

    def __init__(self) -> None:
        super().__init__()

    def weigh(self, values: LossValues) -> Weights:
        """The fused loss at one; on heads, every loss at one."""
        return Weights.joint(values)

    def smoothness_problem(self) -> str:
        """Name no problem: the smoothness is known."""
        return ""

    def smoothness(self, of_loss: Callable[..., tuple[float, float]], modalities: Sequence[str]) -> float:
        """The largest constant: of the fused loss, or of a uni-modal head on features that carry no gradient."""
        heads = [of_loss(name, head_alone=True)[0] for name in modalities]
        return max([of_loss("fused")[0], *heads])
