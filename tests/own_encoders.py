"""Encoders that a user might write, for settings that name one by its dotted path."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Volumes(nn.Module):
    """Reads video [B, C, T, H, W] by weights of four and of five dimensions."""

    def __init__(self, shape: tuple[int, ...], features: int) -> None:
        super().__init__()
        self.features = features
        self.over_time = nn.Conv3d(shape[0], 6, 3, padding=1)
        self.of_pictures = nn.Conv2d(6, features, 3)

    def forward(self, inputs: Tensor) -> Tensor:
        maps = self.over_time(inputs).relu().mean(dim=2)
        return self.of_pictures(maps).relu().mean(dim=(2, 3))


class Drawing(nn.Module):
    """Reads numbers that its constructor draws, which a device without content cannot give."""

    def __init__(self, shape: tuple[int, ...], features: int) -> None:
        super().__init__()
        self.features = features
        self.scale = float(torch.rand(()))
        self.shifts = torch.rand(3).tolist()
        self.weights = nn.Linear(shape[0], features)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.weights(inputs) * self.scale + sum(self.shifts)
