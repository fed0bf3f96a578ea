"""Samples that lack a sensor: masks beside the losses, and means over the samples that have it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from equipoise.balance.coefficients import FUSED, Tensors
from equipoise.util.errors import unknown_name


def masks_of(present: Tensors, losses: Tensors, modalities: Sequence[str]) -> dict[str, Tensor]:
    """Return the masks of the losses that were given, as booleans, or raise one message with all that is wrong.

    Args:
        present: By modality one value per sample, True or 1 where the sample has that sensor.
        losses: Of the step.
        modalities: Names that are known.
    """
    if not isinstance(present, Mapping):
        kind = type(present).__name__
        raise TypeError(f"present: expected a mapping from modalities to masks, {{'camera': mask}}, found {kind}")
    problems = []
    for name, mask in present.items():
        loss = losses.get(name)
        if name == FUSED:
            problems.append("the fused loss covers every sample and takes no mask; name sensors only")
        elif name not in modalities:
            problems.append(unknown_name(name, modalities).rstrip("."))
        elif not isinstance(mask, Tensor):
            problems.append(f"the mask of {name!r} should be a tensor, found {type(mask).__name__}")
        elif loss is None:
            continue
        elif loss.dim() != 1:
            found = f"found one of shape {list(loss.shape)}; type F.cross_entropy(…, reduction='none')"
            problems.append(f"loss {name!r} should hold one value per sample, {found}")
        elif mask.shape != loss.shape:
            expected = f"{len(loss)} values, one per sample"
            problems.append(f"the mask of {name!r} should hold {expected}, found shape {list(mask.shape)}")
        elif mask.device != loss.device:
            problems.append(f"the mask of {name!r} should live on {loss.device}, found {mask.device}")
        elif mask.dtype != torch.bool and mask.device.type == "cpu" and not bool(((mask == 0) | (mask == 1)).all()):
            # Elsewhere looking at the numbers would stall the device.
            problems.append(f"the mask of {name!r} should hold True and False, or 1 and 0, found other numbers")
    if problems:
        raise ValueError("present: " + "; ".join(problems))
    return {name: mask.bool() for name, mask in present.items() if name in losses}


def masked(losses: Sequence[Tensor], masks: Sequence[Tensor | None], value: float) -> list[Tensor]:
    """Put a value in place of the losses or scores of samples that lack the sensor, which may be anything, also NaN."""
    pairs = zip(losses, masks, strict=True)
    return [loss if mask is None else torch.where(mask, loss, value) for loss, mask in pairs]


def mean_where(scores: Tensor, mask: Tensor | None) -> Tensor:
    """Return the mean of each column of scores [B, S], with zeros for samples that lack the sensor.

    Scores [S] are means over the samples that have it; so are those of other samples than the mask's.
    """
    if mask is not None and scores.dim() == 2 and len(scores) == len(mask):
        return torch.where(mask[:, None], scores, 0.0).mean(dim=0)
    mean = scores if scores.dim() == 1 else scores.mean(dim=0)
    return mean if mask is None else mean * mask.to(mean.dtype).mean()


def divisor(presence: Tensor) -> Tensor:
    """Return shares of samples to divide by: one where no sample has the sensor, since its loss is zero then."""
    return torch.where(presence > 0, presence, 1.0)


def neutral(scores: Tensor, presence: Tensor) -> Tensor:
    """Give sensors that no sample has the mean score of those that some sample has: neither ahead nor behind."""
    here = presence > 0
    rows = here if scores.dim() == 1 else here[:, None]
    mean = torch.where(rows, scores, 0.0).sum(dim=0) / here.sum().clamp(min=1)
    return torch.where(rows, scores, mean)


def together(losses: Sequence[Tensors], present: Sequence[Tensors | None]) -> dict[str, Tensor]:
    """Join the masks of micro-batches; a micro-batch that names no mask for a sensor has it in every sample."""
    names = dict.fromkeys(name for masks in present for name in masks or {})
    joined = {}
    for name in names:
        whole = [
            torch.ones_like(batch[name].reshape(-1), dtype=torch.bool) if name in batch else None for batch in losses
        ]
        pairs = zip(present, whole, strict=True)
        pieces = [(masks or {}).get(name, every) for masks, every in pairs]
        joined[name] = torch.cat([piece.bool() for piece in pieces if piece is not None])
    return joined
