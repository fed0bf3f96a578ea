"""Unimodal: every modality for itself, the yardstick of what each could reach."""

from __future__ import annotations

from typing import final

import torch

from equipoise.balance.balancer import Balancer
from equipoise.balance.losses import LossValues, Weights


@final
class Unimodal(Balancer):
    """Uni-modal training: minimise Σ_k f_k, so that each encoder and its head learn as if alone.

    f_k is the loss of modality k. The fused loss, where given, moves nothing. With separate encoders and a plain
    optimiser this trains K independent models in one run.

    Tasks: any.

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
