"""Baselines: joint training, and every modality trained for itself."""

from collections.abc import Callable, Sequence
from typing import final

import torch

from equipoise.balance.balancer import Balancer
from equipoise.balance.losses import LossValues, Weights


@final
class MSL(Balancer):
    """Joint training: minimise the fused loss f_mm and nothing else.

    Encoders and fused head move along ∇f_mm. Uni-modal losses, where given, train only parameters that the fused loss
    does not reach: the uni-modal heads, for measuring.

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
        """There is none."""
        return ""

    def smoothness(self, of_loss: Callable[..., tuple[float, float]], modalities: Sequence[str]) -> float:
        """The largest constant: of the fused loss, or of a uni-modal head on features that carry no gradient."""
        heads = [of_loss(name, head_alone=True)[0] for name in modalities]
        return max([of_loss("fused")[0], *heads])


@final
class Unimodal(Balancer):
    """Uni-modal training: minimise Σ_k f_k, so that each encoder and its head learn as if alone.

    f_k is the loss of modality k. The fused loss, where given, moves nothing. With separate encoders and a plain
    optimiser this trains K independent models in one run.

    Also the single-sensor rows of every published table. Cost: one backward pass.

    Args:
        modality: Train this modality only; None trains all of them.

    Example:
        >>> balancer = Unimodal("video")
        >>> float(balancer({"audio": torch.tensor(2.0), "video": torch.tensor(4.0)}))
        4.0
    """

    unimodal = "head"
    needs_fused = False

    def __init__(self, modality: str | None = None) -> None:
        super().__init__()
        self.modality = modality

    def weigh(self, values: LossValues) -> Weights:
        """Nothing for the fused loss, one for each modality that trains."""
        if self.modality is not None and self.modality not in self.modalities:
            raise ValueError(f"Unimodal: modality should be one of {list(self.modalities)}, found {self.modality!r}")
        # Filled, not copied from a list: a copy from the host would make the device wait.
        trains = [torch.full_like(values.fused, self.modality in (None, name)) for name in self.modalities]
        return Weights(torch.stack([torch.zeros_like(values.fused), *trains]))
