"""Separately trained uni-modal models that vote: what a committee has to beat."""

from __future__ import annotations

from collections.abc import Mapping
from typing import final

import torch
from torch import Tensor, nn

from equipoise.models.fusion import Fusion
from equipoise.models.late_fusion import LateFusion


@final
class Vote(Fusion):
    """The mean of the modalities' log-probabilities, with equal weights and nothing to train.

    Args:
        heads: One trained head per modality.
    """

    def __init__(self, heads: Mapping[str, nn.Module]) -> None:
        super().__init__()
        # In a tuple: the heads belong to the model that votes, and are not to be counted twice.
        self._heads = (dict(heads),)

    def forward(self, features: Mapping[str, Tensor]) -> Tensor:
        """The votes of all, averaged."""
        heads = self._heads[0]
        votes = [heads[name](feature).log_softmax(dim=1) for name, feature in features.items()]
        return torch.stack(votes).mean(dim=0)


def as_ensemble(model: LateFusion) -> LateFusion:
    """A model with the same encoders and heads whose fused decision is their equal vote.

    Args:
        model: Trained uni-modally, with a head per modality.
    """
    voting = LateFusion(
        dict(model.encoders),
        head=lambda size: nn.Linear(size, 2),  # replaced below by the trained ones
        fusion=Vote(dict(model.heads)),
        unimodal="head",
        features=model.sizes,
    )
    voting.heads = model.heads
    return voting.to(model.committee.device).train(model.training)
