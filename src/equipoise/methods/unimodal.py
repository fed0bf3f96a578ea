"""Unimodal: every modality for itself, the yardstick of what each could reach."""

from __future__ import annotations

from typing import final

from equipoise.balance.coefficients import Coefficients, Losses
from equipoise.balance.kinds import Weighting
from equipoise.balance.needs import Needs


@final
class Unimodal(Weighting):
    """Uni-modal training: minimise Σ_k f_k, so that each encoder and its head learn as if alone.

    f_k is the loss of modality k. The fused loss, where given, moves nothing. With separate encoders and a plain
    optimiser this trains K independent models in one run.

    Tasks: any.

    Also the single-sensor rows of every published table. Cost: one backward pass.

    Args:
        modality: Train this modality only; None trains all of them.

    Example:
        >>> import torch
        >>> balancer = Unimodal("video")
        >>> float(balancer({"audio": torch.tensor(2.0), "video": torch.tensor(4.0)}))
        4.0
    """

    needs = Needs(fused=False, encoders=False)

    def __init__(self, modality: str | None = None) -> None:
        super().__init__()
        self.modality = modality
        self.needs = Needs(fused=False, encoders=False, modalities=() if modality is None else (modality,))

    def weigh(self, losses: Losses) -> Coefficients:
        """Nothing for the fused loss, one for each modality that trains."""
        weights = losses.weights(0.0, 1.0)
        for place, name in enumerate(self.modalities, start=1):
            if self.modality not in (None, name):
                weights[place] = 0.0
        return Coefficients.shared(weights)
