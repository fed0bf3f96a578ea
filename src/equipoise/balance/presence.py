"""Samples that lack a sensor: masks beside the losses, and means over the samples that have it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from equipoise.balance.losses import FUSED, Tensors, scalar
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


def scalars_of(
    losses: Tensors, objectives: Sequence[str], present: Tensors | None, presence: Tensor | None
) -> list[Tensor | None]:
    """Return the scalar of each objective with its graph, None where no loss was given.

    That of a sensor is its mean over the samples that have it, of all ranks: Σ m_i f_i over the samples of this rank,
    divided by their number and by the share of samples that have the sensor on all ranks. The mean of such scalars over
    ranks, and of their gradients, is that of one process.

    Args:
        losses: One value per sample.
        objectives: Their names, the fused one first.
        present: Masks by modality.
        presence: The share of samples that have each sensor; None where all have all.
    """
    if presence is None:
        return [scalar(losses[name]) if name in losses else None for name in objectives]
    masks = [None, *((present or {}).get(name) for name in objectives[1:])]
    shares = [None, *divisor(presence).unbind()]
    scalars: list[Tensor | None] = []
    for name, mask, share in zip(objectives, masks, shares, strict=True):
        if name not in losses:
            scalars.append(None)
            continue
        mean = scalar(losses[name] if mask is None else torch.where(mask.bool(), losses[name], 0.0))
        scalars.append(mean if share is None else mean / share.to(mean.dtype))
    return scalars


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
