"""ModDrop: joint training of a model that drops modalities at random."""

from __future__ import annotations

from typing import ClassVar, final

from torch import nn

from equipoise.balance.balancer import Balancer
from equipoise.balance.losses import LossValues, Weights
from equipoise.util.errors import BadInput


@final
class ModDrop(Balancer):
    """Joint training with modality dropout: the fused loss of features of which some modalities are zeroed.

    Encoders and fused head move along ∇f_mm(d_1 z_1, …, d_K z_K). z_k is the feature vector of modality k; d_k, drawn
    for each sample and step, is zero with probability p and one otherwise; where all would be zero, one of them stays.
    Nothing is dropped in evaluation. The model does the dropping: ``LateFusion(…, dropout=p)``, which `train` and the
    command build by themselves; `attach` refuses another.

    Tasks: any.

    Paper: Neverova et al., "ModDrop: Adaptive Multi-Modal Gesture Recognition" (TPAMI 2016), which starts from encoders
    that were trained alone; here all are trained from the start. Cost: one backward pass.

    Args:
        dropout: p, at least 0 and below 1.

    Example:
        >>> from equipoise import LateFusion
        >>> encoders = {"audio": torch.nn.Linear(3, 4), "video": torch.nn.Linear(5, 4)}
        >>> model = LateFusion(encoders, classes=2, unimodal="detached", dropout=0.3)
        >>> balancer = ModDrop(dropout=0.3).attach(model)
        >>> float(balancer({"fused": torch.tensor(1.0)}))
        1.0
    """

    route = "fused"
    unimodal = "detached"
    search: ClassVar = {"dropout": (0.1, 0.3, 0.5)}
    needs_unimodal = False
    needs_encoders = False

    def __init__(self, dropout: float = 0.3) -> None:
        super().__init__()
        self.check_arguments((0 <= dropout < 1, "dropout should be at least 0 and below 1", dropout))
        self.modality_dropout = dropout

    def weigh(self, values: LossValues) -> Weights:
        """The fused loss at one; on heads, every loss at one."""
        return Weights.joint(values)

    def attached(self, model: nn.Module | None) -> None:
        """Refuse a model that does not drop modalities with this probability."""
        wanted, found = self.modality_dropout, getattr(model, "dropout", 0.0)
        if found != wanted:
            raise BadInput(
                f"ModDrop: expected a model that drops modalities, LateFusion(…, dropout={wanted:g}), found "
                f"{type(model).__name__} with dropout={found}; a model that drops them in its own way trains with MSL()"
            )
