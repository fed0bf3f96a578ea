"""Joint training with torch alone: a small network per sensor, concatenation, one linear layer, one loss."""

from __future__ import annotations

from typing import final

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

STEPS, BATCH, RATE, DECAY = 1500, 64, 1e-3, 0.01
HIDDEN = 128
LONG = 128  # steps; a longer series is read in greater strides


def encoder(array: Tensor) -> nn.Sequential:
    """Return a network of three layers: convolutions for series [N, C, T], linear for vectors [N, D]."""
    if array.dim() == 2:
        return nn.Sequential(
            nn.Linear(array.shape[1], HIDDEN), nn.ReLU(), nn.Dropout(0.2), nn.Linear(HIDDEN, HIDDEN), nn.ReLU()
        )
    channels, first = array.shape[1], max(1, array.shape[2] // LONG)
    layers: list[nn.Module] = []
    for width, kernel, stride in ((64, 2 * first + 5, first), (HIDDEN, 5, 2), (HIDDEN, 3, 2)):
        layers += [nn.Conv1d(channels, width, kernel, stride, kernel // 2), nn.BatchNorm1d(width), nn.ReLU()]
        channels = width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool1d(1), nn.Flatten())


@final
class Joint:
    """Fit and predict like an estimator, on a list with one array per sensor.

    Args:
        seed: Of weights, batches and dropout.
        numbers: The label is a number; otherwise a class.
        steps: Of the optimiser.
    """

    def __init__(self, seed: int, *, numbers: bool, steps: int = STEPS) -> None:
        self.seed, self.numbers, self.steps = seed, numbers, steps

    def fit(self, arrays: list[np.ndarray], label: np.ndarray) -> None:
        torch.set_num_threads(1)
        torch.manual_seed(self.seed)
        inputs = [torch.from_numpy(array) for array in arrays]
        self.classes = np.unique(label)
        self.mean, self.deviation = float(label.mean()), float(label.std()) or 1.0
        known = (label - self.mean) / self.deviation if self.numbers else np.searchsorted(self.classes, label)
        target = torch.from_numpy(known).to(torch.float32 if self.numbers else torch.int64)
        self.encoders = nn.ModuleList(encoder(array) for array in inputs)
        self.head = nn.Linear(HIDDEN * len(inputs), 1 if self.numbers else len(self.classes))
        both = [*self.encoders.parameters(), *self.head.parameters()]
        mover = torch.optim.AdamW(both, lr=RATE, weight_decay=DECAY)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(mover, self.steps)
        passes = -(-self.steps * BATCH // len(label))
        order = torch.cat([torch.randperm(len(label)) for _ in range(passes)])[: self.steps * BATCH]
        for rows in order.view(self.steps, BATCH):
            output = self._outputs([array[rows] for array in inputs])
            wanted = target[rows]
            loss = F.smooth_l1_loss(output[:, 0], wanted) if self.numbers else F.cross_entropy(output, wanted)
            mover.zero_grad()
            loss.backward()
            mover.step()
            schedule.step()

    def predict(self, arrays: list[np.ndarray]) -> np.ndarray:
        self.encoders.eval()
        with torch.no_grad():
            inputs = [torch.from_numpy(array) for array in arrays]
            batches = zip(*(array.split(256) for array in inputs), strict=True)
            output = torch.cat([self._outputs(list(batch)) for batch in batches]).numpy()
        return output[:, 0] * self.deviation + self.mean if self.numbers else self.classes[output.argmax(axis=1)]

    def _outputs(self, inputs: list[Tensor]) -> Tensor:
        features = [one(array) for one, array in zip(self.encoders, inputs, strict=True)]
        return self.head(torch.cat(features, dim=1))
