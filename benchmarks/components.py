"""Data sets whose sensors are components of frozen kernels, computed once for all lines of a study."""

from dataclasses import replace

import torch

from equipoise.data.part import LENGTH, Part
from equipoise.data.source import data_set
from equipoise.data.splits import Splits
from equipoise.models.rocket import Rocket

FOLDS = 5


def components_of(path: str, fold: int) -> Splits:
    """Return a fold whose modalities are components of frozen kernels, vectors."""
    torch.set_num_threads(1)
    splits = data_set(path).cut_into(FOLDS).load(fold)
    parts: dict[str, Part] = {name: part.in_memory().ready() for name, part in splits.parts.items()}
    for name, shape in splits.shapes.items():
        encoder = Rocket(shape)
        for which, part in parts.items():
            values, ends = part.inputs[name], part.inputs.get(name + LENGTH)
            with torch.no_grad():
                found = encoder.fit(values, ends) if which == "train" else encoder.components_of(values, ends)
            others = {key: value for key, value in part.inputs.items() if key != name + LENGTH}
            parts[which] = replace(part, inputs={**others, name: found})
    return replace(splits, **parts, scales={})  # ty: ignore[invalid-argument-type]
