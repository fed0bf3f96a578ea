"""Runs that differ in seed and fold only, put together: mean and standard deviation per label."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, final

Row = dict[str, Any]
"""A row of results, as in ``results.jsonl``."""

OWN_PROTOCOLS = ("head", "detached", "split")
PROTOCOLS = {
    "head": "heads trained with the model",
    "detached": "heads trained beside the model on detached features",
    "split": "the fused head's own share",
    "probe": "a fresh linear layer on frozen features",
    "zeroed": "the other inputs zeroed",
    "shapley": "Shapley value of the fused prediction",
}
# What tells two runs of one label apart without making them two things to compare.
_NOT_SETTINGS = {"seed", "seeds", "fold", "folds", "out", "threads"}


@final
@dataclass(frozen=True, slots=True)
class MeanStd:
    """A mean over runs.

    Args:
        mean: Their mean.
        deviation: Their sample standard deviation (n − 1); None for a single run.
        count: How many runs had the number.
    """

    mean: float
    deviation: float | None
    count: int


@final
@dataclass(frozen=True)
class RunGroup:
    """All runs of one label.

    Args:
        label: What tables call it.
        rows: The runs, ordered by fold and seed, so that sums do not depend on which run finished first.
    """

    label: str
    rows: tuple[Row, ...]

    # Cached: tables, notes and figures ask for the same numbers again and again.

    @property
    def method(self) -> str:
        """The method's name."""
        return self.rows[0]["method"]

    def of(self, *path: str) -> MeanStd | None:
        """Mean and deviation of the number at a path of keys; None where no run has it."""
        return mean_std([number(row, *path) for row in self.rows])

    @cached_property
    def protocol(self) -> str | None:
        """How this method's uni-modal accuracy was measured: the one protocol that belongs to the method."""
        said = next((view for row in self.rows if (view := dig(row, "test", "view")) in OWN_PROTOCOLS), None)
        measured = (name for name in OWN_PROTOCOLS if any(dig(row, "test", name) for row in self.rows))
        return said or next(measured, None)

    @cached_property
    def fused(self) -> MeanStd | None:
        """Accuracy of the fused prediction, the headline."""
        return self.of("test", "fused")

    @cached_property
    def committee(self) -> MeanStd | None:
        """Accuracy of the committee of fused and uni-modal heads."""
        return self.of("test", "committee")

    @cached_property
    def alone(self) -> dict[str, MeanStd]:
        """Accuracy of each modality alone, by this line's protocol."""
        if self.protocol is None:
            return {}
        found = {name: self.of("test", self.protocol, name) for name in modalities(self.rows)}
        return {name: each for name, each in found.items() if each is not None}

    @cached_property
    def disparity(self) -> MeanStd | None:
        """How far the modalities' accuracies lie apart."""
        return self.of("test", "disparity")

    @cached_property
    def faults(self) -> MeanStd | None:
        """Fused accuracy, averaged over the sensor faults."""
        return self.of("test", "faults", "mean", "fused")

    @cached_property
    def step(self) -> MeanStd | None:
        """Seconds of one training step, as it was trained."""
        return self.of("seconds", "step")


def dig(value: Any, *path: str) -> Any:
    """What lies at a path of keys; None where a key is absent."""
    try:
        for key in path:
            value = value[key]
    except (KeyError, TypeError):  # TypeError: no dictionary, and a text or a list has no keys
        return None
    return value


def number(value: Any, *path: str) -> float | None:
    """The finite number at a path of keys; None for anything else, since a report shows what it has."""
    try:
        for key in path:  # as `dig` does, without a call: a large study asks some million times
            value = value[key]
    except (KeyError, TypeError):
        return None
    if type(value) is not float and (isinstance(value, bool) or not isinstance(value, (int, float))):
        return None
    return float(value) if math.isfinite(value) else None


def mean_std(numbers: Iterable[float | None]) -> MeanStd | None:
    """Mean and sample standard deviation of the numbers that are there.

    Example:
        >>> mean_std([1.0, None, 3.0])
        MeanStd(mean=2.0, deviation=1.4142135623730951, count=2)
    """
    found = [each for each in numbers if each is not None]
    if not found:
        return None
    mean = math.fsum(found) / len(found)
    squares = math.fsum((each - mean) ** 2 for each in found)
    return MeanStd(mean, math.sqrt(squares / (len(found) - 1)) if len(found) > 1 else None, len(found))


def aggregate(rows: Sequence[Row]) -> list[RunGroup]:
    """One line per label, the best fused accuracy first, those without a fused prediction last.

    Runs of one label with different settings are one line as long as no (fold, seed) occurs twice: tuning may choose
    differently in each fold. Where one does, the label stood for several things, and the settings that differ are
    added to it. So is the cut, where there are several: accuracies of the fixed cut, of folds, and of a file before and
    after it was changed are never averaged.

    Args:
        rows: Runs of one data set.
    """
    cuts = _cuts(rows)
    several = len(set(cuts)) > 1
    labels: dict[tuple[str, str], list[Row]] = {}
    for row, cut in zip(rows, cuts, strict=True):
        labels.setdefault((row["label"], cut if several else ""), []).append(row)
    lines = [
        RunGroup(name, tuple(sorted(some, key=_order)))
        for (label, cut), together in labels.items()
        for name, some in _told_apart(label, cut, together).items()
    ]
    return sorted(lines, key=lambda line: (-(line.fused.mean if line.fused else -math.inf), line.label))


def modalities(rows: Iterable[Row]) -> list[str]:
    """Every modality the rows know, in the order they name them."""
    found: dict[str, None] = {}
    for row in rows:
        for protocol in PROTOCOLS:
            found |= dict.fromkeys(dig(row, "test", protocol) or {})
    return list(found)


def settings(row: Row) -> dict[str, Any]:
    """Everything that was set for a run: the run's settings and the method's parameters."""
    return {**(row.get("run") or {}), **(row.get("params") or {})}


def varying(rows: Iterable[Row]) -> list[str]:
    """Names of the settings that are not the same in all these runs."""
    # Rows that were read together share their settings: what is one object is looked at once.
    different = {(id(row.get("run")), id(row.get("params"))): row for row in rows}
    seen: dict[str, set[str]] = {}
    found: Counter[str] = Counter()
    for row in different.values():
        for name, value in settings(row).items():
            seen.setdefault(name, set()).add(as_text(value))
            found[name] += 1
    absent = as_text(None)
    return [
        name
        for name, values in seen.items()
        if name not in _NOT_SETTINGS and len(values | {absent} if found[name] < len(different) else values) > 1
    ]


def as_text(value: Any) -> str:
    """A setting as one would type it."""
    if isinstance(value, str):
        return value
    if (type(value) is float and math.isfinite(value)) or type(value) is int:  # as JSON has them, without its machinery
        return repr(value)
    return json.dumps(value, ensure_ascii=False)


def _cuts(rows: Sequence[Row]) -> list[str]:
    """How the data of each run was cut; a second fingerprint for the same fold is that of other data."""
    seen: dict[Any, dict[Any, int]] = {}
    names = []
    for row in rows:
        fold, split = row.get("fold"), row.get("split")
        known = seen.setdefault(fold, {})
        again = known.setdefault(split, len(known))
        fixed = f"split {str(split).removeprefix('sha256:')[:12]}"
        names.append(fixed if fold is None else f"folds of version {again + 1}" if again else "folds")
    return names


def _told_apart(label: str, cut: str, rows: list[Row]) -> dict[str, list[Row]]:
    runs = Counter((row.get("fold"), row.get("seed")) for row in rows)
    differing = varying(rows) if max(runs.values()) > 1 else []
    apart: dict[str, list[Row]] = {}
    for row in rows:
        own = settings(row) if differing else {}
        values = [f"{name}={as_text(own.get(name))}" for name in differing]
        told = ", ".join([cut, *values] if cut else values)
        apart.setdefault(f"{label} ({told})" if told else label, []).append(row)
    return apart


def _order(row: Row) -> tuple[float, float, str]:
    fold, seed = number(row, "fold"), number(row, "seed")
    return (-1 if fold is None else fold, -1 if seed is None else seed, str(row.get("config")))
