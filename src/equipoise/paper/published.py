"""The paper's seven tables as they are printed: every method, accuracy and time, each with its error.

The numbers are in published.json, with notes on what does not fit together in them, or with the code they were made
with. "AGM's code" is that of Li et al. (2023), which the paper says it uses for single sensors, joint training and the
methods that modulate gradients; what is said of it was read in it.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from typing import Any, final

import torch
from torch import Tensor

from equipoise.data.source import DataSet
from equipoise.data.splits import Splits, split_by_group
from equipoise.report.aggregate import MeanStd
from equipoise.training.presets import Preset
from equipoise.training.settings import Settings

Printed = tuple[float, float]
"""A number and its standard deviation, accuracies in percent and times in seconds."""

GRID = {"penalty": (1.0, 10.0, 100.0), "smoothing": (0.001, 0.01, 0.1, 1.0)}
"""The grid in which the paper looks for λ and μ of each data set, one of 3 × 4 points."""

SEEDS = 3
SINGLE = {"a": "Audio", "v": "Visual", "t": "Text"}
NAMES = {"msl": "MSL", "mses": "MSES", "mslr": "MSLR", "ogmge": "OGM-GE", "agm": "AGM", "ew": "EW", "mgda": "MGDA"}
NAMES |= {"mmpareto": "MMPareto", "mimo": "MIMO"}


@final
@dataclass(frozen=True)
class PaperRow:
    """One row of a table.

    Args:
        name: The paper's name. (The table of AV-MNIST prints C^a, C^v, Vanilla MSL and MIMO (ours).)
        method: The name here.
        acc: Fused accuracy in percent; None for a single sensor.
        alone: Accuracy of each modality in percent, by the modality's name here.
        time: Seconds of the balancing subroutine and the update, per batch.
    """

    name: str
    method: str
    acc: Printed | None
    alone: Mapping[str, Printed]
    time: Printed

    @property
    def sensor(self) -> str | None:
        """The one modality of a row that has no other."""
        return next(iter(self.alone)) if self.acc is None else None

    @property
    def fused(self) -> MeanStd | None:
        """Fused accuracy, from 0 to 1."""
        return None if self.acc is None else _share(self.acc)

    def of(self, modality: str) -> MeanStd | None:
        """Return the accuracy of a modality alone, from 0 to 1."""
        return _share(self.alone[modality]) if modality in self.alone else None

    @property
    def disparity(self) -> float | None:
        """Largest minus smallest accuracy of a modality alone, from 0 to 1; the paper prints no error for it."""
        means = [mean for mean, _ in self.alone.values()]
        return (max(means) - min(means)) / 100 if len(means) > 1 else None

    @property
    def seconds(self) -> MeanStd:
        """Time per batch."""
        return MeanStd(*self.time, 1)


@final
@dataclass(frozen=True)
class PaperTable:
    """A table of the paper.

    Args:
        name: The data set, as users type it.
        title: The data set, as the paper calls it.
        modalities: The names of its sensors here, each with the letter of the paper's column (Acc_a).
        rows: The rows, in the paper's order.
        penalty: λ that the paper's appendix gives for it.
        smoothing: μ.
        split: The way to cut it that comes nearest to the paper's.
        borrowed: Parameters of methods for this data in AGM's code, whose default settings the paper says it takes.
        notes: Facts to know of its numbers before anything is compared with them.
    """

    name: str
    title: str
    modalities: Mapping[str, str]
    rows: tuple[PaperRow, ...]
    penalty: float
    smoothing: float
    split: str
    borrowed: Mapping[str, Mapping[str, Any]]
    notes: tuple[str, ...]

    @property
    def methods(self) -> list[str]:
        """Methods to run, each once: the rows of single sensors come from one run that trains them side by side."""
        return list(dict.fromkeys(row.method for row in self.rows))

    def row(self, name: str) -> PaperRow | None:
        """Return a row by the paper's name; None where the table has none."""
        return next((row for row in self.rows if row.name == name), None)


def _row(key: str, numbers: list[list[float]], modalities: Mapping[str, str]) -> PaperRow:
    """Build a row: a letter and (accuracy, time) for a sensor, a method and its columns for the others."""
    first, *others, time = [(mean, deviation) for mean, deviation in numbers]
    for modality, letter in modalities.items():
        if key == letter:
            return PaperRow(SINGLE[key], "unimodal", None, {modality: first}, time)
    return PaperRow(NAMES[key], key, first, dict(zip(modalities, others, strict=True)), time)


def _share(printed: Printed) -> MeanStd:
    return MeanStd(printed[0] / 100, printed[1] / 100, SEEDS)


def _tables() -> dict[str, PaperTable]:
    content = json.loads(files("equipoise.paper").joinpath("published.json").read_text("utf-8"))
    for table in content.values():
        rows = table.pop("rows").items()
        table["rows"] = tuple(_row(key, numbers, table["modalities"]) for key, numbers in rows)
        table["notes"] = tuple(table["notes"])
    return {name: PaperTable(name, **table) for name, table in content.items()}


TABLES = _tables()
"""The tables by the name of their data set."""


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
