"""Encoders of the policies: small, and with places kept, since an action depends on where things are."""

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import final

import torch
from torch import Tensor, nn

from equipoise.models.encoders import check_shape


@final
class SpatialSoftmaxCNN(nn.Module):
    """Convolutions whose last maps are read as places: [B, C, H, W] → [B, features].

    Each channel of the last map becomes a distribution over its cells by a softmax, of which the mean row and column
    are taken. So a channel says where something is, finer than a cell, and the layers behind see places instead of
    pixels. From "End-to-End Training of Deep Visuomotor Policies" (Levine et al., 2016).

    Args:
        shape: (C, H, W) of one picture.
        features: The size of the output vector.
        widths: Channels behind each convolution.
        strides: Of each convolution.
    """

    def __init__(
        self,
        shape: Sequence[int],
        features: int = 64,
        widths: Sequence[int] = (16, 32, 32),
        strides: Sequence[int] = (2, 2, 1),
    ) -> None:
        super().__init__()
        self.features, self._channels = features, shape[0]
        self.convolutions = nn.Sequential()
        for number, ((before, after), stride) in enumerate(zip(pairwise([shape[0], *widths]), strides, strict=True)):
            size = 3 if number else 5
            self.convolutions.extend([nn.Conv2d(before, after, size, stride, padding=size // 2), nn.ReLU()])
        self.convolutions.pop(-1)  # what is shared out by the softmax has both signs
        self.sharpness = nn.Parameter(torch.ones(widths[-1], 1))
        self.layers = nn.Sequential(nn.Linear(2 * widths[-1], 128), nn.ReLU(), nn.Linear(128, features), nn.ReLU())

    def forward(self, pictures: Tensor) -> Tensor:
        """Encode pictures [B, C, H, W]."""
        check_shape(self, pictures, "[B, C, H, W]", self._channels)
        maps = self.convolutions(pictures)
        shares = (maps.flatten(2) * self.sharpness).softmax(dim=2).view_as(maps)
        places = [
            shares.sum(dim=other) @ torch.linspace(-1, 1, maps.shape[along], device=maps.device, dtype=shares.dtype)
            for along, other in ((2, 3), (3, 2))
        ]
        return self.layers(torch.cat(places, dim=1))


@final
class FlatMLP(nn.Module):
    """Two fully connected layers on all numbers of a short window: [B, …] → [B, features].

    Args:
        shape: Of one window.
        features: The size of the output vector.
        hidden: The size of the layer between.
    """

    def __init__(self, shape: Sequence[int], features: int = 64, hidden: int = 128) -> None:
        super().__init__()
        self.features = features
        inputs = math.prod(shape)
        self.layers = nn.Sequential(
            nn.Flatten(), nn.Linear(inputs, hidden), nn.ReLU(), nn.Linear(hidden, features), nn.ReLU()
        )

    def forward(self, windows: Tensor) -> Tensor:
        """Encode windows [B, …]."""
        return self.layers(windows)
