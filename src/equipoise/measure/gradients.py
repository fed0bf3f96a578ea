"""Gradient conflict: the fused loss and a modality's own loss pull its encoder in opposite directions."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from equipoise.data.splits import Part
from equipoise.models.evaluation import cross_entropies, evaluating
from equipoise.models.late_fusion import LateFusion, check_model


def conflict(model: LateFusion, part: Part, batch: int = 512, seed: int = 0) -> dict[str, Any]:
    """Give the cosine between ∇f_mm and ∇f_k at each encoder k, and the share of encoders where it is negative.

    f_mm is the mean cross-entropy of the fused output and f_k that of modality k on one batch. The model is read in
    evaluation mode, so that no running statistics move; no `.grad` is touched. An encoder that a loss does not move,
    being frozen or without a gradient, has cosine 0: no conflict.

    Args:
        model: A model with the view "head" or "split", whose uni-modal losses reach the encoders.
        part: The samples to draw the batch from.
        batch: Samples that are drawn, without replacement.
        seed: Of the draw.

    Returns:
        ``{"cosine": {modality: …}, "conflicting": share of encoders}``.

    Raises:
        TypeError: If the model is no `LateFusion`.
        ValueError: If the model's uni-modal losses do not reach its encoders.
    """
    check_model("Measuring", model)
    if model.unimodal not in ("head", "split"):
        hint = f"found unimodal={model.unimodal!r}. Build it with LateFusion(…, unimodal='head')."
        raise ValueError(f"conflict expected unimodal='head' or 'split', whose losses reach the encoders; {hint}")
    rows = torch.randperm(len(part), generator=torch.Generator().manual_seed(seed))[:batch]
    chosen = part.take(rows.to(part.label.device)).to(model.committee.device).ready()
    cosine = {}
    with evaluating(model), torch.enable_grad():
        losses = cross_entropies(model(chosen.inputs), chosen.label, "mean")
        for name, encoder in model.encoders.items():
            moving = [parameter for parameter in encoder.parameters() if parameter.requires_grad]
            both = [_gradient(losses[objective], moving) for objective in ("fused", name) if moving]
            tiny = torch.finfo(torch.float64).tiny
            cosine[name] = F.cosine_similarity(*both, dim=0, eps=tiny).item() if both else 0.0
    return {"cosine": cosine, "conflicting": sum(value < 0 for value in cosine.values()) / len(cosine)}


def _gradient(loss: Tensor, parameters: Sequence[Tensor]) -> Tensor:
    gradients = torch.autograd.grad(loss, parameters, retain_graph=True, materialize_grads=True)
    return torch.cat([gradient.double().flatten() for gradient in gradients])
