"""What goes wrong with a sensor, done to an array [N, …]. The array given is never changed.

Time is axis 2 of [N, C, T] and [N, C, T, H, W]; [N, D] and [N, C, H, W] have none, and there the samples of a group, in
their order, are the time line. Where time is ragged, padding counts as signal: encoders that know lengths ignore it.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from equipoise.data.splits import Part

BURST = 5.0  # deviations: far outside of what training has shown
SAMPLE = 1000
STRETCHES = 20  # a window is cut into so many stretches, and a burst takes whole ones


class Training(NamedTuple):
    """What the training part looks like, per modality.

    Args:
        mean: The mean sample, of the shape of one.
        deviation: The standard deviation of each channel, [C, 1, …], over samples and everything behind the channel.
    """

    mean: dict[str, Tensor]
    deviation: dict[str, Tensor]


def training_statistics(train: Part) -> Training:
    """Read off the training part what faults are measured by: its mean sample, and the deviation of each channel.

    Where inputs are made from what is stored (frames of videos, say), a thousand samples stand for all.
    """
    if train.views:
        train = train.take(torch.linspace(0, len(train) - 1, min(len(train), SAMPLE)).long()).ready()
    mean, deviation = {}, {}
    for name, array in train.solid().inputs.items():
        if array.is_floating_point():  # lengths of ragged time are whole numbers
            mean[name] = array.mean(dim=0)
            deviation[name] = array.std(dim=[0, *range(2, array.dim())], correction=0, keepdim=True)[0]
    return Training(mean, deviation)


def time_axis(array: Tensor) -> int | None:
    """Where time is: axis 2 of [N, C, T] and [N, C, T, H, W], nowhere in other shapes."""
    return 2 if array.dim() in (3, 5) else None


def noisy(array: Tensor, level: float, deviation: Tensor, random: torch.Generator) -> Tensor:
    """Add Gaussian noise of `level` times the training deviation."""
    return array + level * deviation.to(array) * _normal(array, random)


def frozen(array: Tensor, group: Tensor | None, random: torch.Generator) -> Tensor:
    """Let the signal stand still from a time on that is drawn for each sample, the first and the last step included.

    Without a time axis each sample is the one before it in its group; the first of a group stays.
    """
    if time_axis(array) is None:
        return array[earlier_rows(len(array), group, lag=1)]
    steps = torch.arange(array.shape[2])
    onset = torch.randint(array.shape[2], (len(array), 1), generator=random)
    return _at_times(array, torch.minimum(steps, onset))


def delayed(array: Tensor, share: float, group: Tensor | None) -> Tensor:
    """Let the signal arrive late by a share of its window, its first value repeated until then.

    Without a time axis each sample comes from earlier in its group, by this share of the group's samples; the first
    sample of the group is repeated.
    """
    if time_axis(array) is None:
        return array[earlier_rows(len(array), group, share=share)]
    steps = torch.arange(array.shape[2])
    late = (steps - round(share * len(steps))).clamp(min=0)
    return _at_times(array, late.expand(len(array), -1))


def bursts(array: Tensor, share: float, mean: Tensor, deviation: Tensor, random: torch.Generator) -> Tensor:
    """Replace random stretches by noise around the training mean, five deviations wide, for a share of the time.

    A window is cut into 20 stretches, or into single steps where it has fewer, and of each sample this share of them is
    hit. A greater share hits the stretches of a smaller one and more. Without a time axis a burst takes a whole sample,
    and this share of the samples is hit, wherever they are: neighbours often are of one class.
    """
    noise = mean.to(array) + BURST * deviation.to(array) * _normal(array, random)
    if time_axis(array) is None:
        hit = _lowest(torch.rand(1, len(array), generator=random), share)[0]
        return torch.where(_behind(hit, array), noise, array)
    steps = array.shape[2]
    stretches = min(STRETCHES, steps)
    stretch_of_step = torch.arange(steps) * stretches // steps
    hit = _lowest(torch.rand(len(array), stretches, generator=random), share)[:, stretch_of_step]
    return torch.where(_behind(hit[:, None], array), noise, array)


def earlier_rows(count: int, group: Tensor | None, *, lag: int = 0, share: float = 0.0) -> Tensor:
    """For each sample the row of an earlier one of its group, but no earlier than the group's first.

    Args:
        count: How many samples there are.
        group: The group of each, [N]; None where all are of one.
        lag: How many samples earlier.
        share: How much earlier still, as a share of the group's samples.
    """
    group = torch.zeros(count, dtype=torch.int64) if group is None else group.cpu()
    order = group.argsort(stable=True)  # group by group, in the order of the file
    sizes = group[order].unique_consecutive(return_counts=True)[1]
    starts = (sizes.cumsum(0) - sizes).repeat_interleave(sizes)
    lags = (lag + (share * sizes).round().long()).repeat_interleave(sizes)
    rows = torch.empty_like(order)
    rows[order] = order[torch.maximum(torch.arange(count) - lags, starts)]
    return rows


def _at_times(array: Tensor, times: Tensor) -> Tensor:
    """Read each sample at times of its own, [N, T]."""
    return array.gather(2, _behind(times[:, None], array).expand_as(array))


def _behind(values: Tensor, array: Tensor) -> Tensor:
    """Give values the missing axes of an array behind their own, on its device."""
    return values.reshape(*values.shape, *[1] * (array.dim() - values.dim())).to(array.device)


def _lowest(luck: Tensor, share: float) -> Tensor:
    """Mark the lowest of each row, as many as the share says."""
    return luck.argsort(dim=1).argsort(dim=1) < round(share * luck.shape[1])


def _normal(array: Tensor, random: torch.Generator) -> Tensor:
    """Normal numbers in the shape of an array, drawn on the CPU so that every device sees the same."""
    return torch.randn(array.shape, generator=random).to(array)
