"""Stand-ins for the paper's data: the same sensors and kinds of arrays, made up, so that anyone can see a table run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from equipoise.data.source import DataSet
from equipoise.data.splits import Splits, split_by_group
from equipoise.paper.published import PaperTable
from equipoise.training.presets import Preset
from equipoise.training.settings import Settings

SMALL_GRID = {"penalty": (1.0, 10.0), "smoothing": (0.1, 1.0)}

_CLIP = {"audio": (1, 9, 8), "video": (3, 2, 8, 8)}
_SHAPES: dict[str, dict[str, tuple[int, ...]]] = {
    **dict.fromkeys(("cremad", "vggsound", "kinetics-sounds", "ave"), _CLIP),
    "avmnist": {"image": (1, 8, 8), "sound": (1, 12, 12)},
    "urfunny": {"vision": (9, 6), "audio": (5, 6), "text": (7, 6)},
    "mosei": {"text": (7, 6), "audio": (5, 6)},
}
"""Shapes of one sample of each sensor: spectrograms, frames, images, and series of words."""

SAMPLES, GROUPS, CLASSES = 120, 10, 3


@final
@dataclass(frozen=True)
class StandIn:
    """Loader of the stand-in of a table. A class and no closure, so that it can be sent to another process.

    Args:
        table: The name of the table.
    """

    table: str

    def __call__(self, fold: int | None) -> Splits:  # noqa: ARG002 (there is one cut only)
        """Make classes that every sensor sees a little of, the later ones more faintly."""
        random = torch.Generator().manual_seed(0)
        label = torch.arange(SAMPLES) % CLASSES
        group = torch.arange(SAMPLES) // CLASSES % GROUPS
        inputs: dict[str, Tensor] = {}
        for number, (name, shape) in enumerate(_SHAPES[self.table].items()):
            level = 2 * torch.randn(CLASSES, shape[0], *[1] * len(shape[1:]), generator=random) / (1 + number)
            inputs[name] = level[label] + torch.randn(SAMPLES, *shape, generator=random)
            if len(shape) == 2:  # a series of words, of which some sentences have fewer
                lengths = torch.randint(2, shape[1] + 1, (SAMPLES,), generator=random)
                inputs[f"{name}_length"] = lengths
                inputs[name][(torch.arange(shape[1]) >= lengths[:, None])[:, None].expand_as(inputs[name])] = 0
        where = {"train": tuple(range(6)), "validation": (6, 7), "test": (8, 9)}
        parts = split_by_group(inputs, label, group, where)
        names = tuple(f"class {number}" for number in range(CLASSES))
        about = "made up: groups 0–5 train, 6 and 7 validate, 8 and 9 test"
        return Splits(self.table, parts["train"], parts["validation"], parts["test"], names, about)


def stand_in(table: PaperTable) -> DataSet:
    """Return the stand-in of a table."""
    return DataSet(f"stand-in for {table.name}", StandIn(table.name), 0, "Made up.")


def small_preset(table: PaperTable) -> Preset:
    """Return settings for it: encoders by the shape of the arrays, two short epochs."""
    settings = Settings(epochs=2, batch=12, features=8, fusion="sum", device="cpu")
    params = {"mimo": {"penalty": table.penalty, "smoothing": table.smoothing}}
    return Preset("small", table.name, settings, params, "Nobody's.")
