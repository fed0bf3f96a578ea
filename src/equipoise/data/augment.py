"""Augmentation: training samples varied at random, in batches, on the device, by the kind of each sensor.

| kind | shape of one sample | variation |
|---|---|---|
| vector, token numbers | [D] | none |
| series | [C, T] | shifted in time by up to a tenth, each channel scaled by 0.9 to 1.1, noise of 5 % |
| series in space (`Part.spatial`) | [C, D] | scaled and noise |
| picture | [C, H, W] | shifted by up to an eighth of each side |
| spectrogram | [1, F, T], F ≠ T, or from a view of sound | a band and a stretch of up to an eighth each at its mean |
| video | [C, T, H, W] | all frames shifted alike, by up to an eighth; in time by up to a tenth |

What a shift moves in from outside is mirrored at the edge. Nothing is flipped: a mirrored digit is another digit, and
a movement to the left no movement to the right; nobody tells which pictures allow it. Frames that `VideoFrames` cuts
at random are left alone. Padding and samples that lack the sensor stay as they are.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace

import torch
from torch import Tensor

from equipoise.data.part import Part, is_beside
from equipoise.data.views import LogSTFT, Rescaled, VideoFrames
from equipoise.models.encoders import real_steps

SHIFT, SCALE, NOISE = 0.1, 0.1, 0.05
"""Of a series: the largest shift in parts of its length, the largest change of scale, and noise in deviations."""
CROP, MASK = 1 / 8, 1 / 8
"""The largest shift of a picture in parts of a side, and the widest mask of a spectrogram in parts of an axis."""

Augmentation = Callable[[Tensor, Tensor | None, torch.Generator], Tensor]
"""Returns inputs [B, …] varied at random, from them, the lengths of their time axis (or None) and a generator."""


def augmentations_of(part: Part) -> dict[str, Augmentation]:
    """Return how the samples of each modality are varied; those that are left as they are have no entry."""
    chosen: dict[str, Augmentation] = {}
    for name, array in part.inputs.items():
        view = part.views.get(name)
        if is_beside(name, part.inputs) or isinstance(view, VideoFrames):
            continue
        if view is None and not array.is_floating_point():
            continue
        stored = tuple(array.shape[1:])
        shape = stored if view is None else view.shape(stored)
        if len(shape) == 2:
            chosen[name] = vary_space if name in part.spatial else vary_series
        elif len(shape) == 3 and f"{name}_length" not in part.inputs:
            unlike = shape[0] == 1 and shape[1] != shape[2] and not isinstance(view, Rescaled)
            chosen[name] = mask_spectrogram if unlike or isinstance(view, LogSTFT) else shift_picture
        elif len(shape) == 4:
            chosen[name] = shift_video
    return chosen


def augmented(part: Part, augmentations: Mapping[str, Augmentation], random: torch.Generator) -> Part:
    """Return a batch with the inputs of its modalities varied; samples that lack one keep what stands for it.

    Args:
        part: As encoders read it.
        augmentations: By modality.
        random: Draws, on the device of the batch.
    """
    inputs, present = dict(part.inputs), part.present
    for name, vary in augmentations.items():
        if name in inputs:
            varied = vary(inputs[name], inputs.get(f"{name}_length"), random)
            there = present.get(name)
            inputs[name] = varied if there is None else torch.where(_over(there, varied), varied, inputs[name])
    return replace(part, inputs=inputs)


def vary_series(series: Tensor, lengths: Tensor | None, random: torch.Generator) -> Tensor:
    """Shift series [B, C, T] in time, scale each channel, and add noise."""
    return vary_space(_shifted(series, 2, SHIFT, lengths, random), lengths, random)


def vary_space(series: Tensor, lengths: Tensor | None, random: torch.Generator) -> Tensor:
    """Scale each channel of [B, C, T], and add noise in proportion to its own deviation in the sample."""
    real = None if lengths is None else real_steps(lengths, series, 2)
    seen = series if real is None else series.where(real, 0)
    count = series.shape[2] if real is None else real.sum(dim=2, keepdim=True).clamp(min=1)
    mean = seen.sum(dim=2, keepdim=True) / count
    off = series - mean if real is None else (series - mean).where(real, 0)
    deviation = (off.square().sum(dim=2, keepdim=True) / count).sqrt()
    scale = 1 + SCALE * (2 * _uniform(deviation.shape, series, random) - 1)
    noise = torch.randn(series.shape, device=series.device, dtype=series.dtype, generator=random)
    varied = scale * series + NOISE * deviation * noise
    return varied if real is None else torch.where(real, varied, series)


def shift_picture(picture: Tensor, lengths: Tensor | None, random: torch.Generator) -> Tensor:  # noqa: ARG001
    """Shift pictures [B, C, H, W] up or down, and to a side."""
    return _shifted(_shifted(picture, 2, CROP, None, random), 3, CROP, None, random)


def shift_video(video: Tensor, lengths: Tensor | None, random: torch.Generator) -> Tensor:
    """Shift all frames of [B, C, T, H, W] alike, and the whole in time."""
    for axis in (3, 4):
        video = _shifted(video, axis, CROP, None, random)
    return _shifted(video, 2, SHIFT, lengths, random)


def mask_spectrogram(sound: Tensor, lengths: Tensor | None, random: torch.Generator) -> Tensor:  # noqa: ARG001
    """Set a band and a stretch of each spectrogram [B, C, F, T] to its mean.

    Paper: Park et al., "SpecAugment" (Interspeech 2019).
    """
    masked = torch.zeros((), dtype=torch.bool, device=sound.device)
    for axis in (2, 3):
        size = sound.shape[axis]
        width = _uniform((len(sound), 1), sound, random) * MASK * size
        start = _uniform((len(sound), 1), sound, random) * (size - width)
        place = torch.arange(size, device=sound.device)
        inside = (place >= start) & (place < start + width)
        masked = masked | inside[(slice(None), *[None] * (axis - 1), slice(None), *[None] * (3 - axis))]
    return torch.where(masked, sound.mean(dim=(1, 2, 3), keepdim=True), sound)


def _shifted(values: Tensor, axis: int, most: float, lengths: Tensor | None, random: torch.Generator) -> Tensor:
    """Shift each sample of [B, …] along an axis by up to a part of its real length, mirrored at its edges.

    Padding behind the real steps stays where it is.
    """
    size = values.shape[axis]
    place = torch.arange(size, device=values.device)
    real = torch.full((1, 1), size, device=values.device) if lengths is None else lengths.to(values.device)[:, None]
    room = (most * real).long()
    draw = (_uniform((len(values), 1), values, random) * (2 * room + 1)).long().clamp(max=2 * room) - room
    mirrored = (place - draw).abs()
    mirrored = (real - 1) - ((real - 1) - mirrored).abs()
    place = torch.where(place < real, mirrored, place)
    shape = [1] * values.dim()
    shape[0], shape[axis] = place.shape
    return torch.take_along_dim(values, place.view(shape), dim=axis)


def _uniform(shape: tuple[int, ...], like: Tensor, random: torch.Generator) -> Tensor:
    return torch.rand(shape, device=like.device, generator=random)


def _over(mask: Tensor, like: Tensor) -> Tensor:
    """Give a mask of samples [B] as many axes as another tensor has."""
    return mask.to(like.device).view(-1, *[1] * (like.dim() - 1))
