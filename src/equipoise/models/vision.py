"""Encoders of pictures and of video that read movement: residual networks for small pictures."""

import math
from typing import final

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from equipoise.models.encoders import (
    ResidualBlock,
    check_shape,
    laid_out,
    linear_relu,
    mean_over_time,
    projection,
    real_steps,
)

SIDE, FRAME_SIDE = 32, 16
"""The longest side of the plane that the first block of a picture or a video reads: the stem brings it there."""
GRID = 3
"""Video is averaged over so many fields along each side: in front of a fixed camera, the place tells something."""


@final
class SmallResNet(nn.Module):
    """A residual network of three stages for small pictures: [B, C, H, W] → [B, features], any H, W ≥ 1.

    From "Deep Residual Learning for Image Recognition" (He et al., 2016), in the form for small pictures: its first
    convolution keeps pictures of up to 32 × 32 whole. Those of up to 64 are pooled by 2 behind it; only larger ones are
    read in strides. Then one residual block per stage, with 16, 32 and 64 channels at the default width, the average
    over the plane.

    Cost: about 9 million multiplications for 28 × 28, 12 million for 32 × 32, and no more for larger pictures, their
    stem apart. Chosen for pictures whose sides are at least 16.

    Args:
        channels: C.
        side: The longer of the sides of most pictures, by which the stem is chosen; others can be read too.
        features: The size of the output vector.
        width: Channels of the first stage; the next two have twice and four times as many.
    """

    def __init__(self, channels: int, side: int, features: int = 64, width: int = 16) -> None:
        super().__init__()
        self.features, self._channels = features, channels
        self.stem = stem_for(channels, side, width)
        blocks = (ResidualBlock(width, width), *(ResidualBlock(n, 2 * n, stride=2) for n in (width, 2 * width)))
        self.stages = nn.Sequential(*blocks)
        self.project = projection(4 * width, features)

    def forward(self, images: Tensor) -> Tensor:
        """Encode images [B, C, H, W]."""
        check_shape(self, images, "[B, C, H, W]", self._channels)
        return self.project(self.stages(self.stem(laid_out(images))).mean(dim=(2, 3)))


@final
class Video(nn.Module):
    """A residual network over space and time for video: [B, C, T, H, W] → [B, features], any T, H, W ≥ 1.

    From "A Closer Look at Spatiotemporal Convolutions for Action Recognition" (Tran et al., 2018): each convolution
    over three dimensions is one over the plane and one over time. Beside each frame it reads what changed since the one
    before. The stem brings the plane to at most 16 × 16 in one stride; then two stages halve plane and frames. The
    average is taken over time and over the fields of a 3 × 3 grid, as most sensors of pictures stand still.

    Cost: about 18 million multiplications for 16 frames of 48 × 48. Chosen for video of at least 4 frames whose sides
    are at least 16.

    Args:
        channels: C.
        side: The longer side of most frames, by which the stem is chosen; others can be read too.
        features: The size of the output vector.
        width: Channels of the stem; the two stages have twice and four times as many.
    """

    def __init__(self, channels: int, side: int, features: int = 64, width: int = 24) -> None:
        super().__init__()
        self.features, self._channels = features, channels
        self.stem = stem_for(2 * channels, side, width, most=FRAME_SIDE, pooled=False)
        self.first, self.second = _SpaceTime(width, 2 * width), _SpaceTime(2 * width, 4 * width)
        self.project = linear_relu(4 * width * GRID**2, features)

    def forward(self, videos: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Encode videos [B, C, T, H, W]; with `lengths` [B], in evaluation, as if each had that many frames."""
        check_shape(self, videos, "[B, C, T, H, W]", self._channels)
        batch = videos.shape[0]
        change = F.pad(videos[:, :, 1:] - videos[:, :, :-1], (0, 0, 0, 0, 1, 0))
        frames = self.stem(laid_out(torch.cat([videos, change], dim=1).movedim(2, 1).flatten(0, 1)))
        for stage in (self.first, self.second):
            frames = stage(frames, batch, lengths)
            lengths = None if lengths is None else (lengths + 1) // 2
        fields = _fields(frames, GRID).flatten(1)
        return self.project(mean_over_time(fields.unflatten(0, (batch, -1)), lengths))


@final
class _SpaceTime(nn.Module):
    """A convolution over the plane and one over time beside a shortcut, both of stride 2: [B · T, C, H, W]."""

    def __init__(self, before: int, after: int) -> None:
        super().__init__()
        self.space = nn.Conv2d(before, after, 3, 2, 1, bias=False)
        self.space_norm = nn.BatchNorm2d(after)
        self.time = nn.Conv2d(after, after, (3, 1), (2, 1), (1, 0), bias=False)
        self.time_norm = nn.BatchNorm2d(after)
        self.shortcut = nn.Sequential(nn.Conv2d(before, after, 1, 2, bias=False), nn.BatchNorm2d(after))

    def forward(self, frames: Tensor, batch: int, lengths: Tensor | None) -> Tensor:
        """Read the frames of a batch; `lengths` [B] are those before the stride."""
        planes = self.space_norm(self.space(frames)).relu()
        # Rows of time by pixels, which are laid out in memory as frames with channels last are.
        rows = planes.permute(0, 2, 3, 1).reshape(batch, -1, planes[0, 0].numel(), planes.shape[1]).permute(0, 3, 1, 2)
        rows = self.time_norm(self.time(_without_padding(rows, lengths)))
        moved = rows.permute(0, 2, 3, 1).reshape(-1, *planes.shape[2:], planes.shape[1]).permute(0, 3, 1, 2)
        still = frames.unflatten(0, (batch, -1))[:, ::2].flatten(0, 1)
        return (moved + self.shortcut(still)).relu()


def _without_padding(rows: Tensor, lengths: Tensor | None) -> Tensor:
    """Set the padding of each sample to zero along the time of [B, C, T, pixels]."""
    return rows if lengths is None else rows.masked_fill(~real_steps(lengths, rows, 2), 0)


def stem_for(channels: int, side: int, width: int, most: int = SIDE, *, pooled: bool = True) -> nn.Sequential:
    """Make the first convolution of a network, which brings the longer side of a picture to at most `most`, by halves.

    All halves are strides of the convolution, but for the last one if it is to be pooled.
    """
    halvings = max(0, math.ceil(math.log2(side / most)))
    pooling = [nn.MaxPool2d(2, ceil_mode=True)] if halvings and pooled else []  # ceil: a single pixel survives
    stride = 2 ** (halvings - len(pooling))
    kernel = max(stride + 1, min(2 * stride + 1, 7))
    convolution = nn.Conv2d(channels, width, kernel, stride, kernel // 2, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm2d(width), *pooling, nn.ReLU())


def _fields(maps: Tensor, count: int) -> Tensor:
    """Average maps [N, C, H, W] over count × count fields of equal size, pixels at borders by their parts → [N, C, …].

    `adaptive_avg_pool2d` has no deterministic gradient on a GPU, and no graph where the sides are no multiples.
    """
    return _parts(maps.shape[2], count, maps) @ maps @ _parts(maps.shape[3], count, maps).T


def _parts(size: int, count: int, like: Tensor) -> Tensor:
    """Give the part that each of `size` pixels has in the mean over each of `count` fields, [count, size]."""
    pixels = torch.arange(size, device=like.device, dtype=like.dtype)
    first = torch.arange(count, device=like.device, dtype=like.dtype).unsqueeze(1) * (size / count)
    overlap = torch.minimum(pixels + 1, first + size / count) - torch.maximum(pixels, first)
    return overlap.clamp(min=0) * (count / size)
