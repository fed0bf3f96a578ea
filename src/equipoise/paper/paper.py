"""The paper's seven tables as they are printed: every method, accuracy and time, each with its error."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, final

from equipoise.paper.paper_notes import NOTES
from equipoise.report.aggregate import MeanStd

Printed = tuple[float, float]
"""A number and its standard deviation, accuracies in percent and times in seconds."""

SEEDS = 3


@final
@dataclass(frozen=True)
class PaperRow:
    """One row of a table.

    Args:
        name: What the paper calls it. (The table of AV-MNIST prints C^a, C^v, Vanilla MSL and MIMO (ours).)
        method: What it is called here.
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
        """Accuracy of a modality alone, from 0 to 1."""
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
        rows: In the paper's order.
        penalty: λ that the paper's appendix gives for it.
        smoothing: μ.
        split: The way to cut it that comes nearest to the paper's.
        borrowed: Parameters of methods for this data in AGM's code, whose default settings the paper says it takes.
    """

    name: str
    title: str
    modalities: Mapping[str, str]
    rows: tuple[PaperRow, ...]
    penalty: float
    smoothing: float
    split: str = "official"
    borrowed: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    @property
    def methods(self) -> list[str]:
        """What has to be run, each once: the rows of single sensors come from one run that trains them side by side."""
        return list(dict.fromkeys(row.method for row in self.rows))

    @property
    def notes(self) -> tuple[str, ...]:
        """What has to be known of its numbers before anything is compared with them."""
        return NOTES[self.name]

    def row(self, name: str) -> PaperRow | None:
        """A row by the paper's name; None where the table has none."""
        return next((row for row in self.rows if row.name == name), None)


GRID = {"penalty": (1.0, 10.0, 100.0), "smoothing": (0.001, 0.01, 0.1, 1.0)}
"""Where the paper looks for λ and μ of each data set, one of 3 × 4 points."""

SINGLE = {"a": "Audio", "v": "Visual", "t": "Text"}
NAMES = {"msl": "MSL", "mses": "MSES", "mslr": "MSLR", "ogmge": "OGM-GE", "agm": "AGM", "ew": "EW", "mgda": "MGDA",
         "mmpareto": "MMPareto", "mimo": "MIMO"}  # fmt: skip


_BORROWED: dict[str, dict[str, dict[str, Any]]] = {
    "cremad": {"mses": {"patience": 80}, "mslr": {"rates": {"audio": 0.9, "video": 1.1}}, "agm": {"cap": 10.0}},
    "urfunny": {
        "mses": {"patience": 30}, "mslr": {"rates": {"audio": 0.9, "vision": 1.4, "text": 0.7}}, "agm": {"cap": 7.0},
    },
    "avmnist": {"mses": {"patience": 10}, "mslr": {"rates": {"sound": 1.3, "image": 0.7}}, "agm": {"cap": None}},
    "mosei": {"agm": {"cap": None}},
    "ave": {"agm": {"cap": None}},
}  # fmt: skip


def _table(
    name: str,
    title: str,
    modalities: Mapping[str, str],
    chosen: tuple[float, float],
    numbers: Mapping[str, tuple[Printed, ...]],
    split: str = "official",
) -> PaperTable:
    """Rows from their numbers: a letter and (accuracy, time) for a sensor, a method and its columns for the others."""
    rows = []
    by_letter = {letter: modality for modality, letter in modalities.items()}
    for key, (first, *others, time) in numbers.items():
        if key in by_letter:
            rows.append(PaperRow(SINGLE[key], "unimodal", None, {by_letter[key]: first}, time))
        else:
            rows.append(PaperRow(NAMES[key], key, first, dict(zip(modalities, others, strict=True)), time))
    return PaperTable(name, title, modalities, tuple(rows), *chosen, split, _BORROWED.get(name, {}))


def _share(printed: Printed) -> MeanStd:
    return MeanStd(printed[0] / 100, printed[1] / 100, SEEDS)


_ALL = (
    _table(
        "cremad", "CREMA-D", {"audio": "a", "video": "v"}, (100.0, 0.01), {
            "a": ((59.31, 0.76), (0.028, 0.005)),
            "v": ((61.04, 0.87), (0.029, 0.005)),
            "msl": ((60.26, 0.84), (58.02, 0.58), (22.69, 1.72), (0.038, 0.009)),
            "mses": ((57.96, 0.42), (55.84, 0.91), (27.37, 1.12), (0.042, 0.007)),
            "mslr": ((62.09, 0.15), (58.35, 0.62), (25.62, 1.43), (0.0412, 0.006)),
            "ogmge": ((74.49, 0.65), (53.78, 1.21), (47.82, 1.51), (0.112, 0.009)),
            "agm": ((46.63, 0.93), (43.05, 0.99), (18.32, 1.11), (0.205, 0.005)),
            "ew": ((65.50, 0.50), (58.80, 0.77), (59.66, 1.56), (0.036, 0.006)),
            "mgda": ((63.47, 0.79), (60.80, 0.68), (26.25, 1.19), (0.310, 0.053)),
            "mmpareto": ((68.67, 0.97), (60.59, 0.57), (58.82, 1.61), (0.309, 0.053)),
            "mimo": ((75.96, 0.83), (55.60, 1.54), (59.76, 1.40), (0.037, 0.012)),
        }, "agm-6027-669-745",
    ),
    _table(
        "urfunny", "UR-Funny", {"audio": "a", "vision": "v", "text": "t"}, (10.0, 1.0), {
            "a": ((58.00, 0.74), (0.037, 0.002)),
            "v": ((53.12, 0.52), (0.038, 0.002)),
            "t": ((63.74, 1.59), (0.038, 0.002)),
            "msl": ((63.10, 0.59), (53.02, 1.16), (50.18, 0.78), (62.49, 0.90), (0.038, 0.002)),
            "mses": ((62.90, 0.68), (53.33, 1.17), (49.91, 1.46), (62.71, 0.60), (0.071, 0.006)),
            "mslr": ((63.16, 0.45), (54.77, 1.51), (50.69, 0.18), (61.89, 0.99), (0.074, 0.012)),
            "agm": ((64.18, 0.77), (54.76, 0.65), (49.45, 0.90), (62.74, 0.76), (0.384, 0.001)),
            "ew": ((63.63, 0.42), (54.00, 0.94), (49.69, 0.95), (62.41, 0.55), (0.090, 0.002)),
            "mgda": ((63.81, 0.53), (53.85, 1.37), (49.81, 0.80), (62.96, 1.00), (0.441, 0.003)),
            "mmpareto": ((63.94, 0.53), (52.48, 1.57), (50.31, 0.76), (63.35, 1.27), (0.436, 0.006)),
            "mimo": ((64.54, 0.86), (52.19, 1.08), (50.38, 0.48), (62.10, 1.31), (0.101, 0.013)),
        },
    ),
    _table(
        "vggsound", "VGGSound", {"audio": "a", "video": "v"}, (10.0, 0.01), {
            "msl": ((60.8, 0.13), (42.83, 1.04), (15.43, 1.18), (0.011, 0.001)),
            "ogmge": ((62.13, 1.31), (32.50, 2.26), (22.00, 0.01), (0.121, 0.007)),
            "ew": ((63.90, 1.58), (48.77, 2.01), (25.20, 1.40), (0.006, 0.001)),
            "mmpareto": ((66.07, 1.04), (48.07, 1.37), (28.87, 1.44), (0.389, 0.053)),
            "mimo": ((69.10, 1.13), (41.47, 1.04), (38.20, 1.01), (0.019, 0.004)),
        },
    ),
    _table(
        "kinetics-sounds", "Kinetics-Sound", {"audio": "a", "video": "v"}, (10.0, 0.01), {
            "msl": ((59.83, 1.78), (41.2, 6.34), (18.67, 1.56), (0.023, 0.007)),
            "ogmge": ((63.73, 1.37), (44.10, 0.01), (22.57, 2.56), (0.247, 0.119)),
            "ew": ((60.73, 1.77), (45.13, 2.56), (33.3, 2.34), (0.026, 0.010)),
            "mmpareto": ((68.60, 1.41), (48.07, 1.37), (37.23, 1.37), (0.689, 0.098)),
            "mimo": ((69.60, 1.41), (45.07, 1.04), (43.13, 1.78), (0.039, 0.015)),
        }, "mimo-80-10-10",
    ),
    _table(
        "avmnist", "AV-MNIST", {"sound": "a", "image": "v"}, (10.0, 0.1), {
            "a": ((42.32, 0.17), (0.019, 0.003)),
            "v": ((65.05, 0.08), (0.019, 0.003)),
            "msl": ((71.70, 0.11), (39.98, 0.46), (64.67, 0.24), (0.015, 0.002)),
            "mses": ((71.61, 0.02), (39.92, 0.65), (64.66, 0.26), (0.017, 0.002)),
            "mslr": ((71.96, 0.12), (40.5, 0.79), (64.50, 0.14), (0.018, 0.002)),
            "ogmge": ((71.70, 0.11), (39.98, 0.46), (64.67, 0.24), (0.055, 0.026)),
            "agm": ((70.92, 0.81), (29.16, 0.92), (61.76, 1.98), (0.060, 0.021)),
            "ew": ((72.22, 0.04), (41.63, 0.26), (41.77, 0.18), (0.019, 0.011)),
            "mgda": ((72.15, 0.50), (41.63, 0.12), (41.92, 0.22), (0.086, 0.003)),
            "mmpareto": ((72.42, 0.21), (41.64, 0.35), (41.83, 0.25), (0.085, 0.002)),
            "mimo": ((72.77, 0.10), (42.21, 0.38), (42.25, 0.34), (0.018, 0.004)),
        }, "agm-54000-9000-7000",
    ),
    _table(
        "mosei", "CMU-MOSEI", {"text": "t", "audio": "a"}, (100.0, 0.001), {
            "t": ((81.53, 0.16), (0.100, 0.009)),
            "a": ((74.12, 0.06), (0.101, 0.009)),
            "msl": ((80.33, 0.18), (73.89, 1.58), (73.08, 0.01), (0.279, 0.009)),
            "agm": ((80.28, 0.19), (79.64, 0.19), (78.23, 0.65), (0.304, 0.007)),
            "mimo": ((81.62, 0.06), (81.44, 0.10), (81.36, 0.23), (0.287, 0.009)),
        },
    ),
    _table(
        "ave", "AVE", {"audio": "a", "video": "v"}, (100.0, 0.01), {
            "a": ((66.03, 0.28), (0.010, 0.001)),
            "v": ((63.82, 0.99), (0.011, 0.001)),
            "msl": ((67.41, 0.30), (33.46, 1.49), (56.61, 1.91), (0.027, 0.002)),
            "agm": ((72.54, 1.13), (54.73, 1.29), (50.92, 1.98), (0.161, 0.002)),
            "mimo": ((73.69, 0.24), (72.69, 0.22), (71.85, 0.47), (0.029, 0.002)),
        },
    ),
)  # fmt: skip

TABLES: dict[str, PaperTable] = {table.name: table for table in _ALL}
"""By the name of their data set."""
