"""The ensemble, the equal vote of separately trained models, which a committee has to beat."""

from collections.abc import Mapping
from typing import final

from torch import Tensor, nn

from equipoise.models.encoded import EncodedModel
from equipoise.models.fusion import Fusion
from equipoise.models.fusion_model import FusionModel
from equipoise.models.late_fusion import LateFusion
from equipoise.models.own_model import OwnModel
from equipoise.models.task import Task


@final
class Vote(Fusion):
    """The mean of the modalities' votes, with equal weights and nothing to train.

    Args:
        heads: One trained head per modality.
        task: Says how outputs are averaged.
    """

    def __init__(self, heads: Mapping[str, nn.Module], task: Task) -> None:
        super().__init__()
        # In a tuple: both belong to the model that votes, and are not to be counted twice.
        self._of_model = (dict(heads), task)

    def forward(self, features: Mapping[str, Tensor]) -> Tensor:
        """Average the votes of all."""
        heads, task = self._of_model
        return task.equal_vote([heads[name](feature) for name, feature in features.items()])


def as_ensemble(model: FusionModel) -> FusionModel:
    """Separately trained uni-modal models whose votes are averaged.

    Args:
        model: Trained uni-modally, with a head per modality.

    Returns:
        A model with the same encoders and heads, whose fused decision is their equal vote.
    """
    if isinstance(model, OwnModel):
        return model.equal_vote()
    if not isinstance(model, EncodedModel):
        raise TypeError(
            f"as_ensemble expected a LateFusion, a HybridFusion or an OwnModel, found {type(model).__name__}"
        )
    task = model.known_task()
    voting = LateFusion(
        dict(model.encoders), task=task, fusion=Vote(dict(model.heads), task), unimodal="head", features=model.sizes
    )
    voting.heads = model.heads
    return voting.to(model.committee.device).train(model.training)
