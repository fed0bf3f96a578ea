"""Ragged time: samples of different lengths in one padded tensor."""

import torch
from torch import Tensor


def real_steps(lengths: Tensor, steps: int) -> Tensor:
    """Mark the steps that are no padding: [B] lengths → [B, steps] booleans."""
    return torch.arange(steps, device=lengths.device) < lengths.unsqueeze(1)


def mean_over_time(values: Tensor, lengths: Tensor | None = None) -> Tensor:
    """Average [B, T, F] over the real steps of each sample → [B, F]; a sample without any gives zeros."""
    if lengths is None:
        return values.mean(dim=1)
    steps = values.shape[1]
    lengths = lengths.to(values.device)
    padding = ~real_steps(lengths, steps).unsqueeze(2)
    return values.masked_fill(padding, 0).sum(dim=1) / lengths.clamp(1, steps).unsqueeze(1)


def fold_frames(video: Tensor) -> Tensor:
    """Put the frames of [B, C, T, H, W] into the batch → [B·T, C, H, W], the frames of a sample side by side.

    Time is moved before the channels first: a bare reshape would mix frames with colours.
    """
    return video.movedim(2, 1).flatten(0, 1)
