"""A model from encoders, by the name of its fusion: late, hybrid or early."""

from collections.abc import Mapping

from torch import nn

from equipoise.models.encoded import EncodedModel
from equipoise.models.fusion_model import Unimodal
from equipoise.models.hybrid_fusion import HybridFusion
from equipoise.models.late_fusion import LateFusion
from equipoise.models.task import Task

DEPTH = {"hybrid": 2, "early": 4}
"""Layers of the trunk, by the name of the fusion. Under early fusion the trunk does the work of encoders too."""


def encoder_words(encoder: str, fusion: str) -> str:
    """Return the words of the encoders of a model: under early fusion, inputs are cut into tokens and no more."""
    return "stem" if fusion == "early" and encoder == "auto" else encoder


def assemble(
    encoders: Mapping[str, nn.Module],
    task: Task,
    *,
    fusion: str,
    unimodal: Unimodal | None,
    width: int,
    dropout: float = 0.0,
) -> EncodedModel:
    """Build the model of a task.

    Args:
        encoders: One per modality.
        task: The task.
        fusion: "concat", "sum", "gated" or "film" of late fusion; "hybrid" or "early".
        unimodal: The source of a modality's own output.
        width: Size of a token of the trunk, where there is one.
        dropout: Modality dropout.
    """
    if fusion in DEPTH:
        depth = DEPTH[fusion]
        return HybridFusion(encoders, task=task, unimodal=unimodal, dropout=dropout, width=width, depth=depth)
    return LateFusion(encoders, task=task, fusion=fusion, unimodal=unimodal, dropout=dropout)
