"""A part of a data set: samples, with what stands beside their modalities."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import final

import torch
from torch import Tensor

from equipoise.data.views import View
from equipoise.models.encoders import real_steps

LENGTH, PRESENT = "_length", "_present"
"""Endings of the names of arrays that stand beside a modality."""


@final
@dataclass(frozen=True)
class Part:
    """Some samples: one tensor per modality, their labels and groups.

    Args:
        inputs: Per modality a tensor [N, …], or a longer one of which the part has some `rows`. Beside "imu" there may
            be "imu_length", how many steps of each sample are real, and "imu_present", which samples have it at all.
        label: Classes, [N]; numbers, floats [N, D]; or several labels, floats 0 and 1, [N, L].
        group: Person, speaker or video of each sample, [N]; None where there are none.
        rows: Which rows of the inputs are the samples of this part, [N]; None where all are. So parts of one prepared
            file share its memory map, and only what is taken is read.
        views: Make the input of an encoder out of a modality as it is stored; none where that is the input.
        spatial: Modalities whose last axis is not time: beams of a scanner, bins of a spectrum.
        index: The number of each sample in the data that the part was cut from, [N]; None where that is not known.
    """

    inputs: dict[str, Tensor]
    label: Tensor
    group: Tensor | None = None
    rows: Tensor | None = None
    views: Mapping[str, View] = field(default_factory=dict)
    spatial: frozenset[str] = frozenset()
    index: Tensor | None = None

    def __len__(self) -> int:
        return len(self.label)

    def take(self, rows: Tensor) -> Part:
        """Return the samples of these rows, by number or by a mask."""
        group = None if self.group is None else self.group[rows]
        stored = rows if self.rows is None else self.rows[rows]
        inputs = {name: array[stored] for name, array in self.inputs.items()}
        index = None if self.index is None else self.index[rows]
        return Part(inputs, self.label[rows], group, None, self.views, self.spatial, index)

    def apply(self, function: Callable[[Tensor], Tensor]) -> Part:
        """Return a part with a function applied to every tensor of this one, whose inputs are its own.

        Its samples are for training: their numbers in the data, which nothing there asks for, stay behind.
        """
        inputs = {name: function(array) for name, array in self.inputs.items()}
        group = None if self.group is None else function(self.group)
        return Part(inputs, function(self.label), group, views=self.views, spatial=self.spatial)

    def to(self, device: torch.device | str) -> Part:
        """Return the same samples on another device."""
        return self.in_memory().apply(lambda array: array.to(device))

    def in_memory(self) -> Part:
        """Return the same samples with inputs of their own, read whole."""
        return self if self.rows is None else self.take(torch.arange(len(self)))

    @property
    def present(self) -> dict[str, Tensor]:
        """Of each modality that some samples lack, which samples have it, booleans [N]."""
        masks = {name: self.inputs.get(f"{name}_present") for name in self.inputs}
        return {name: mask for name, mask in masks.items() if mask is not None}

    @property
    def bytes(self) -> int:
        """The memory that the samples take, as they are stored."""
        return sum(len(self) * array[:1].nbytes for array in self.inputs.values())

    def ready(self, random: torch.Generator | None = None) -> Part:
        """Return the same samples as encoders read them.

        Args:
            random: Draws frames, crops and flips for training; None for the fixed view of evaluation.
        """
        if not self.views:
            return self
        inputs = dict(self.inputs)
        for name, view in self.views.items():
            if name in inputs:
                inputs[name] = view(inputs[name], inputs.get(f"{name}_length"), random)
                if view.takes_lengths:
                    inputs.pop(f"{name}_length", None)
        return replace(self, inputs=inputs, rows=None, views={})


def joined(one: Part, other: Part) -> Part:
    """Return the samples of two parts of the same data as one part."""
    first, second = one.in_memory(), other.in_memory()

    def both(name: str) -> Tensor | None:
        pair = [getattr(first, name), getattr(second, name)]
        return None if any(array is None for array in pair) else torch.cat(pair)

    inputs = {name: torch.cat([array, second.inputs[name]]) for name, array in first.inputs.items()}
    label = torch.cat([first.label, second.label])
    return replace(first, inputs=inputs, label=label, group=both("group"), index=both("index"))


def is_beside(name: str, arrays: Mapping[str, object]) -> bool:
    """Return whether a name stands for the lengths of another modality, or for the samples that have it."""
    return any(name.endswith(ending) and name.removesuffix(ending) in arrays for ending in (LENGTH, PRESENT))


def channel_statistics(name: str, part: Part) -> tuple[Tensor, Tensor]:
    """Return mean and deviation of each channel, over the samples that have it and all axes behind the channel."""
    array, lengths = part.inputs[name], part.inputs.get(f"{name}_length")
    if name in part.present:
        there = part.present[name]
        array, lengths = array[there], None if lengths is None else lengths[there]
    over = [0, *range(2, array.dim())]
    if lengths is None:
        mean, deviation = array.mean(dim=over, keepdim=True)[0], array.std(dim=over, keepdim=True)[0]
    else:
        real = real_steps(lengths, array, 2).expand_as(array)
        count = real.sum(dim=over, keepdim=True)[0].clamp(min=1)
        mean = array.where(real, 0).sum(dim=over, keepdim=True)[0] / count
        squares = (array - mean).where(real, 0).square().sum(dim=over, keepdim=True)[0]
        deviation = (squares / (count - 1).clamp(min=1)).sqrt()
    return mean, torch.where(deviation == 0, 1.0, deviation)
