"""Generated data with an easy and a hard sensor, for tests, examples and a first look."""

from __future__ import annotations

import torch
from torch import Tensor

from equipoise.data.splits import Splits, split_by_group


def two_sensors(samples: int = 600, classes: int = 3, hard: float = 0.5, seed: int = 0) -> Splits:
    """Generate two sensors that see the same classes, one clearly and one faintly, from ten generated people.

    Args:
        samples: Over all three parts.
        classes: How many.
        hard: How clearly the hard sensor sees them; the easy one sees them at 2.
        seed: Of everything.
    """
    random = torch.Generator().manual_seed(seed)
    label = torch.arange(samples) % classes
    group = torch.arange(samples) // classes % 10

    def sensor(size: int, strength: float) -> Tensor:
        centres = strength * torch.randn(classes, size, generator=random)
        person = 0.3 * torch.randn(10, size, generator=random)
        return centres[label] + person[group] + torch.randn(samples, size, generator=random)

    inputs = {"easy": sensor(8, 2.0), "hard": sensor(12, hard)}
    people = {"train": range(6), "validation": range(6, 9), "test": range(9, 10)}
    names = tuple(f"class {number}" for number in range(classes))
    about = "people 0–5 train, 6–8 validate, 9 tests (all generated)"
    train, validation, test = split_by_group(inputs, label, group, people).values()
    return Splits("generated", train, validation, test, names, about)
