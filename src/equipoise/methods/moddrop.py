"""ModDrop: joint training of a model that drops modalities at random."""

from __future__ import annotations

from typing import Annotated, final

from equipoise.balance.coefficients import Coefficients, Losses
from equipoise.balance.kinds import Weighting
from equipoise.balance.needs import Needs
from equipoise.util.annotated import Tried


@final
class ModDrop(Weighting):
    """Joint training with modality dropout: the fused loss of features of which some modalities are zeroed.

    Encoders and fused head move along ∇f_mm(d_1 z_1, …, d_K z_K). z_k is the feature vector of modality k; d_k, drawn
    for each sample and step, is zero with probability p and one otherwise; where all would be zero, one of them stays.
    Nothing is dropped in evaluation. The model does the dropping: ``LateFusion(…, dropout=p)``, which `train` and the
    command build by themselves; `attach` refuses another, and one that drops them in its own way trains with `MSL`.

    Tasks: any.

    Paper: Neverova et al., "ModDrop: Adaptive Multi-Modal Gesture Recognition" (TPAMI 2016), which starts from encoders
    that were trained alone; here all are trained from the start. Cost: one backward pass.

    Args:
        dropout: p, at least 0 and below 1.

    Example:
        >>> import torch
        >>> from equipoise import LateFusion
        >>> encoders = {"audio": torch.nn.Linear(3, 4), "video": torch.nn.Linear(5, 4)}
        >>> model = LateFusion(encoders, classes=2, unimodal="detached", dropout=0.3)
        >>> balancer = ModDrop(dropout=0.3).attach(model)
        >>> float(balancer({"fused": torch.tensor(1.0)}))
        1.0
    """

    def __init__(self, dropout: Annotated[float, Tried(0.1, 0.3, 0.5)] = 0.3) -> None:
        super().__init__()
        self.check_arguments((0 <= dropout < 1, "dropout should be at least 0 and below 1", dropout))
        self.needs = Needs(learns_from_own=False, losses=False, encoders=False, model={"dropout": dropout})

    def weigh(self, losses: Losses) -> Coefficients:
        """The fused loss at one; on own heads, every loss at one."""
        return Coefficients.joint(losses)
