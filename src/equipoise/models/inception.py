"""An encoder of series after InceptionTime: convolutions of several widths side by side, and residual connections."""

import math
from collections.abc import Sequence
from typing import final

import torch
from torch import Tensor, nn

from equipoise.models.encoders import check_shape, laid_out, mean_over_time, projection, real_steps, zero_padding

STEPS = 128
"""About as many steps as the blocks read: a longer series is brought there by the stride of the stem."""
LONGEST = 256
"""The longest series that is read without a stem."""
GROUPS, WIDEST, LONGEST_KERNEL = 2, 32, 19
LEAST = -1e30
"""Takes the place of padding under a maximum; finite, since zero gradients times infinity would be no numbers."""


@final
class Inception(nn.Module):
    """Convolutions over time of three widths side by side, in residual blocks: [B, C, T] → [B, features], any T ≥ 1.

    From "InceptionTime: Finding AlexNet for Time Series Classification" (Ismail Fawaz et al., 2020), as one network,
    and narrower. A block has a bottleneck, convolutions over a long, a middle and a short time, a maximum over three
    steps, and batch norm; three blocks have a shortcut beside them. Behind the first three, time is pooled by 2. The
    features are the average over time. Series of more than 256 steps go through one convolution first, whose stride
    leaves about 128.

    Cost: about 5 million multiplications for 128 steps and 64 features; a longer series costs no more, its stem apart.
    Chosen for series of at least 24 steps.

    Args:
        channels: C.
        steps: T of most series, by which stride and kernels are chosen; others can be read too.
        features: The size of the output vector.
        width: Channels of each of the four branches of a block; by default a quarter of the features, at most 32.
        groups: Times three blocks.
    """

    def __init__(
        self, channels: int, steps: int, features: int = 64, width: int | None = None, groups: int = GROUPS
    ) -> None:
        super().__init__()
        self.features, self._channels = features, channels
        width = min(WIDEST, math.ceil(features / 4)) if width is None else width
        inside, self.stem = 4 * width, None
        self._stride = max(1, round(steps / STEPS)) if steps > LONGEST else 1
        if self._stride > 1:
            self.stem = _Stem(channels, inside, self._stride)
            channels, steps = inside, math.ceil(steps / self._stride)
        self.groups = nn.ModuleList()
        for _ in range(groups):
            self.groups.append(_Group(channels, width, _kernels(steps)))
            channels, steps = inside, math.ceil(steps / 2)
        self.project = projection(inside, features)

    def forward(self, series: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Encode series [B, C, T]; with `lengths` [B], in evaluation, as if each were cut there."""
        check_shape(self, series, "[B, C, T]", self._channels)
        maps = zero_padding(laid_out(series.unsqueeze(2)), lengths)  # images of one row: their operations know layouts
        if self.stem is not None:
            lengths = None if lengths is None else (lengths + self._stride - 1) // self._stride
            maps = zero_padding(self.stem(maps), lengths)
        for at, group in enumerate(self.groups):
            if at > 0:
                lengths = None if lengths is None else (lengths + 1) // 2
                maps = torch.max_pool2d(maps, (1, 2), ceil_mode=True)
            maps = group(maps, lengths)
        return self.project(mean_over_time(maps.squeeze(2).transpose(1, 2), lengths))


def _kernels(steps: int) -> list[int]:
    """Return the three widths, all odd: 19, 9 and 5, or for a short series half of its steps, and so on."""
    longest = min(LONGEST_KERNEL, max(5, steps // 2))
    return [max(3, longest >> halvings) // 2 * 2 + 1 for halvings in range(3)]


@final
class _Stem(nn.Sequential):
    """One step out of `stride`: a convolution over twice as many, batch norm and ReLU."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        # As wide as this and as padded, ⌈T / stride⌉ steps are left of T.
        convolution = nn.Conv2d(before, after, (1, 2 * stride + 1), (1, stride), (0, stride), bias=False)
        super().__init__(convolution, nn.BatchNorm2d(after), nn.ReLU())


@final
class _Group(nn.Module):
    """Three blocks beside a shortcut. What comes out is zero where there is padding, and nowhere less."""

    def __init__(self, before: int, width: int, kernels: Sequence[int]) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(_Block(before if at == 0 else 4 * width, width, kernels) for at in range(3))
        self.shortcut = nn.Sequential(nn.Conv2d(before, 4 * width, 1, bias=False), nn.BatchNorm2d(4 * width))

    def forward(self, maps: Tensor, lengths: Tensor | None) -> Tensor:
        first, second, third = self.blocks
        inside = zero_padding(first(maps, lengths).relu(), lengths)
        inside = zero_padding(second(inside, lengths).relu(), lengths)
        return zero_padding((third(inside, lengths) + self.shortcut(maps)).relu(), lengths)


@final
class _Block(nn.Module):
    """Four branches side by side and their batch norm, for images of one row: [B, C, 1, T] → [B, 4 · width, 1, T]."""

    def __init__(self, before: int, width: int, kernels: Sequence[int]) -> None:
        super().__init__()
        self.bottleneck = nn.Conv2d(before, width, 1, bias=False) if before > width else nn.Identity()
        inputs = min(before, width)
        self.branches = nn.ModuleList(
            nn.Conv2d(inputs, width, (1, kernel), padding=(0, kernel // 2), bias=False) for kernel in kernels
        )
        self.pooled = nn.Conv2d(before, width, 1, bias=False)
        self.norm = nn.BatchNorm2d(4 * width)

    def forward(self, maps: Tensor, lengths: Tensor | None) -> Tensor:
        narrow = self.bottleneck(maps)
        pooled = zero_padding(torch.max_pool2d(_least_padding(maps, lengths), (1, 3), 1, (0, 1)), lengths)
        return self.norm(torch.cat([*(branch(narrow) for branch in self.branches), self.pooled(pooled)], dim=1))


def _least_padding(maps: Tensor, lengths: Tensor | None) -> Tensor:
    """Keep the padding of each sample from being a maximum."""
    return maps if lengths is None else maps.masked_fill(~real_steps(lengths, maps, 3), LEAST)
