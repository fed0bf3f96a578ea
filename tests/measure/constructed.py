"""Models and parts made so that it is known beforehand what measuring has to find."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from equipoise.data import Part, Splits
from equipoise.models import MLP, CNN1d, LateFusion, Sum
from equipoise.models.late_fusion import Unimodal


def names(count: int) -> list[str]:
    return ["audio", "cam_left", "keys", "imu", *(f"sensor {k}" for k in range(4, count))][:count]


def reader(weights: dict[str, float], classes: int = 3, **options: Any) -> LateFusion:
    """A model that reads class scores straight off its inputs; the fused head adds them up with these weights."""
    identities = {name: nn.Identity() for name in weights}
    model = LateFusion(identities, classes, fusion="sum", features=dict.fromkeys(weights, classes), **options)
    with torch.no_grad():
        for name, weight in weights.items():
            own = [(linear(model.heads, name), 1.0)] if model.heads else []
            for head, factor in [(share_of(model, name), weight), *own]:
                head.weight.copy_(factor * torch.eye(classes))
                head.bias.zero_()
    return model


def share_of(model: LateFusion, name: str) -> nn.Linear:
    """The layer of a modality in a fusion that sums."""
    assert isinstance(model.fusion, Sum)
    return linear(model.fusion.heads, name)


def linear(heads: Mapping[str, nn.Module], name: str) -> nn.Linear:
    head = heads[name]
    assert isinstance(head, nn.Linear)
    return head


def told(label: Tensor, classes: int = 3, size: float = 5.0) -> Tensor:
    """The input with which `reader` tells these classes."""
    return size * F.one_hot(label, classes).float()


def random_model(count: int, *, seed: int = 0, **options: Any) -> LateFusion:
    torch.manual_seed(seed)
    encoders = {name: MLP(3 + k, features=4 + k, hidden=(6,)) for k, name in enumerate(names(count))}
    model = LateFusion(encoders, classes=3, **options)
    with torch.no_grad():
        model.committee.copy_(torch.rand(count + 1))
    return model


def random_part(count: int, samples: int = 40, *, seed: int = 0) -> Part:
    random = torch.Generator().manual_seed(seed)
    label = torch.randint(3, (samples,), generator=random)
    inputs = {
        name: torch.randn(samples, 3 + k, generator=random) + F.pad(F.one_hot(label, 3).float(), (0, k))
        for k, name in enumerate(names(count))
    }
    return Part(inputs, label, torch.arange(samples) % 5)


def random_splits(count: int) -> Splits:
    parts = [random_part(count, samples, seed=seed) for seed, samples in enumerate((60, 50, 40))]
    return Splits("random", *parts, classes=("one", "two", "three"))


def series_model(unimodal: Unimodal | None = "head", dropout: float = 0.0) -> LateFusion:
    """Two modalities with a time axis, fitted for a moment: an untrained model tells one class whatever it sees."""
    return copy.deepcopy(_fitted(unimodal, dropout))


@cache
def _fitted(unimodal: Unimodal | None, dropout: float) -> LateFusion:
    torch.manual_seed(0)
    encoders = {"audio": CNN1d(2, 4, width=4), "imu": CNN1d(3, 4, width=4)}
    model = LateFusion(encoders, classes=3, unimodal=unimodal, dropout=dropout)
    optimizer, part = torch.optim.Adam(model.parameters(), lr=0.03), series_part()
    for _ in range(20):
        optimizer.zero_grad()
        torch.stack([F.cross_entropy(z, part.label) for z in model(part.inputs).values()]).sum().backward()
        optimizer.step()
    optimizer.zero_grad()
    return model


def series_part(samples: int = 30, steps: int = 24, *, seed: int = 0) -> Part:
    random = torch.Generator().manual_seed(seed)
    inputs = {"audio": torch.randn(samples, 2, steps, generator=random)}
    inputs["imu"] = torch.randn(samples, 3, steps, generator=random)
    return Part(inputs, torch.randint(3, (samples,), generator=random))
