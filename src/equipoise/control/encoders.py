"""Encoders of the policies: small, and with places kept, since an action depends on where things are."""

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import final

from torch import Tensor, nn

from equipoise.models.encoders import check_shape


@final
class SpatialCNN(nn.Module):
    """Strided convolutions whose last map is flattened, not averaged: [B, C, H, W] → [B, features].

    Args:
        shape: (C, H, W) of one picture; sides that are multiples of 16.
        features: The size of the output vector.
        widths: Channels behind each convolution; each halves the sides.
    """

    def __init__(self, shape: Sequence[int], features: int = 64, widths: Sequence[int] = (16, 32, 32, 32)) -> None:
        super().__init__()
        self.features, self._channels = features, shape[0]
        stages = [
            nn.Sequential(nn.Conv2d(before, after, 3, stride=2, padding=1), nn.ReLU())
            for before, after in pairwise([shape[0], *widths])
        ]
        cells = math.prod(side >> len(widths) for side in shape[1:])
        self.layers = nn.Sequential(*stages, nn.Flatten(), nn.Linear(widths[-1] * cells, features), nn.ReLU())

    def forward(self, pictures: Tensor) -> Tensor:
        """Encode pictures [B, C, H, W]."""
        check_shape(self, pictures, "[B, C, H, W]", self._channels)
        return self.layers(pictures)


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
