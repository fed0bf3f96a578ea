"""Runs that differ in seed and fold only: mean and standard deviation per label."""

import json
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, final

from equipoise.models.metrics import Metric, metric_of_row
from equipoise.report.headline import Headline, Row, baseline_name, headline_of
from equipoise.report.intervals import MeanStd as MeanStd
from equipoise.report.intervals import RunInterval
from equipoise.report.intervals import mean_std as mean_std
from equipoise.study.job import shipped_decision

OWN_PROTOCOLS = ("head", "detached", "split", "masked", "masked_detached")
PROTOCOLS = {
    "head": "heads trained with the model",
    "detached": "heads trained beside the model on detached features",
    "split": "the fused head's own share",
    "masked": "the whole model with the other sensors masked, a pass that it was trained on",
    "masked_detached": "the whole model with the other sensors masked by vectors that learned beside it",
    "probe": "a fresh linear layer on frozen features",
    "zeroed": "the other inputs zeroed",
    "shapley": "Shapley value of the fused prediction",
}
BASELINE = "msl"
DECISIONS = ("fused", "committee")
SHIPPED = "shipped"
"""In a path of keys it stands for the decision that the models of a group answer by."""
# Settings in which runs of one label may differ without being two things to compare.
_NOT_COMPARED = {"seed", "seeds", "fold", "folds", "out", "threads"}


def _measure(*path: str) -> cached_property[MeanStd | None]:
    """Mean and deviation of one number, cached: tables, notes and figures ask for the same ones many times."""
    return cached_property(lambda group: group.of(*path))


@final
@dataclass(frozen=True)
class RunGroup:
    """All runs of one label.

    Args:
        label: Its name in tables.
        rows: The runs, ordered by fold and seed, so that sums do not depend on which run finished first.
    """

    label: str
    rows: tuple[Row, ...]

    shipped = _measure("test", SHIPPED)  # the metric of the decision that its models answer by, the headline
    fused = _measure("test", "fused")  # that of the fused prediction
    committee = _measure("test", "committee")  # that of the committee of fused and uni-modal heads
    disparity = _measure("test", "disparity")  # how far the modalities lie apart
    faults = _measure("test", "faults", "mean", "fused")  # that of fused, averaged over the sensor faults
    step = _measure("seconds", "step")  # seconds of one training step, as it was trained

    @property
    def method(self) -> str:
        """The method's name."""
        return self.rows[0]["method"]

    @property
    def metric(self) -> Metric:
        """The metric of its numbers."""
        return metric_of_row(self.rows[0])

    @cached_property
    def ships(self) -> Literal["committee", "fused"]:
        """The decision that `predict`, the server and an exported graph answer by."""
        return "committee" if any(shipped_decision(row) == "committee" for row in self.rows) else "fused"

    @property
    def merit(self) -> float:
        """The mean of what it ships as a number of which larger is better; minus infinity where there is none."""
        return self.metric.merit(self.shipped.mean if self.shipped else None)

    def path(self, *path: str) -> tuple[str, ...]:
        """Return a path of keys with the decision that is shipped in the place of `SHIPPED`."""
        return tuple(self.ships if key == SHIPPED else key for key in path)

    def of(self, *path: str) -> MeanStd | None:
        """Mean and deviation of the number at a path of keys; None where no run has it."""
        path = self.path(*path)
        return mean_std([number(row, *path) for row in self.rows])

    @property
    def counts(self) -> tuple[float, float] | None:
        """The number of test samples of the first run, and of those of the positive class; None where none is."""
        samples, events = (number(self.rows[0], "test", key) for key in ("samples", "events"))
        return None if samples is None or events is None else (samples, events)

    def interval(self, decision: str) -> RunInterval | None:
        """The 95 % interval of a decision's number, of a single run that has measured one."""
        (decision,) = self.path(decision)
        ends = dig(self.rows[0], "test", f"{decision}_interval") if len(self.rows) == 1 else None
        known = [end for end in map(number, ends) if end is not None] if isinstance(ends, list) else []
        groups = number(self.rows[0], "test", "interval_groups")
        return RunInterval(known[0], known[1], groups, self.counts) if len(known) == 2 else None

    @cached_property
    def protocol(self) -> str | None:
        """The protocol that belongs to this method and by which each modality alone was measured."""
        recorded = (view for row in self.rows if (view := dig(row, "test", "view")) in OWN_PROTOCOLS)
        measured = (name for name in OWN_PROTOCOLS if any(dig(row, "test", name) for row in self.rows))
        return next(recorded, None) or next(measured, None)

    @cached_property
    def alone(self) -> dict[str, MeanStd]:
        """The metric of each modality alone, by this group's protocol."""
        if self.protocol is None:
            return {}
        means = {name: self.of("test", self.protocol, name) for name in modalities(self.rows)}
        return {name: mean for name, mean in means.items() if mean is not None}


def dig(value: Any, *path: str) -> Any:
    """Return the value at a path of keys; None where a key is absent."""
    try:
        for key in path:
            value = value[key]
    except (KeyError, TypeError):  # TypeError: no dictionary, and a text or a list has no keys
        return None
    return value


def number(value: Any, *path: str) -> float | None:
    """Return the finite number at a path of keys; None for anything else, since a report shows what it has."""
    try:
        for key in path:  # as `dig` does, without a call: a large study asks some million times
            value = value[key]
    except (KeyError, TypeError):
        return None
    if type(value) is not float and (isinstance(value, bool) or not isinstance(value, (int, float))):
        return None
    return float(value) if math.isfinite(value) else None


def aggregate(rows: Sequence[Row]) -> list[RunGroup]:
    """Group runs by label, the best by the decision that is shipped first, those without one last.

    Runs of one label with different settings are one group as long as no (fold, seed) occurs twice: tuning may choose
    differently in each fold. Where one does, the label stood for several things, and the settings that differ are
    added to it. So is the cut, where there are several: numbers of the fixed cut, of folds, and of a file before and
    after it was changed are never averaged.

    Args:
        rows: Runs of one data set, in one metric.
    """
    cuts = _cuts(rows)
    several = len(set(cuts)) > 1
    labels: dict[tuple[str, str], list[Row]] = {}
    for row, cut in zip(rows, cuts, strict=True):
        labels.setdefault((row["label"], cut if several else ""), []).append(row)
    groups = [
        RunGroup(name, tuple(sorted(runs, key=_order)))
        for (label, cut), alike in labels.items()
        for name, runs in _by_settings(label, cut, alike).items()
    ]
    return sorted(groups, key=lambda group: (-group.merit, group.label))


def headline(groups: Sequence[RunGroup]) -> Headline:
    """Return the metric of groups of one data set, and how its numbers are written."""
    means = (mean for group in groups for mean in (group.shipped, *group.alone.values()))
    return headline_of(groups[0].rows[0], (mean.mean for mean in means if mean))


def measures_of(groups: Sequence[RunGroup], measures: Mapping[str, Sequence[str]]) -> dict[str, Sequence[str]]:
    """Return the measures that differ: where every group ships its fused decision, that is no second one."""
    same = all(group.ships == "fused" for group in groups)
    return {name: path for name, path in measures.items() if not (same and "fused" in path)}


def baseline_group(groups: Sequence[RunGroup]) -> RunGroup | None:
    """Return a line for the answer that reads no sensor, once on each split of the others; None without one."""
    runs: dict[tuple[object, ...], Row] = {}
    for row in (row for group in groups for row in group.rows):
        value, name = number(row, "test", "baseline"), baseline_name(row)
        if value is not None:
            keys = ("data", "fold", "split", "task", "metric", "positive")
            own = {"label": name, "method": name, "seed": None, "test": {"fused": value}}
            runs.setdefault((row.get("fold"), row.get("split")), {**own, **{key: row.get(key) for key in keys}})
    rows = tuple(sorted(runs.values(), key=_order))
    return RunGroup(rows[0]["label"], rows) if rows else None


def modalities(rows: Iterable[Row]) -> list[str]:
    """List every modality of the rows, in the order they name them."""
    return list(dict.fromkeys(name for row in rows for key in PROTOCOLS for name in dig(row, "test", key) or ()))


def settings(row: Row) -> dict[str, Any]:
    """Return everything that was set for a run: its settings, the method's parameters, and the user's own code."""
    code = row.get("code") or {}
    marks = {"code": " ".join(str(mark).removeprefix("sha256:")[:8] for mark in code.values())} if code else {}
    return {**(row.get("run") or {}), **(row.get("params") or {}), **marks}


def varying(rows: Iterable[Row]) -> list[str]:
    """List the names of the settings that are not the same in all these runs."""
    # Rows that were read together share their settings: what is one object is looked at once.
    different = {(id(row.get("run")), id(row.get("params")), id(row.get("code"))): row for row in rows}
    values: defaultdict[str, set[str]] = defaultdict(set)
    counts: Counter[str] = Counter()
    for row in different.values():
        for name, value in settings(row).items():
            values[name].add(as_text(value))
            counts[name] += 1
    for name, count in counts.items():
        values[name] |= {as_text(None)} if count < len(different) else set()
    return [name for name, texts in values.items() if name not in _NOT_COMPARED and len(texts) > 1]


def as_text(value: Any) -> str:
    """Write a setting as one would type it."""
    if isinstance(value, str):
        return value
    if (type(value) is float and math.isfinite(value)) or type(value) is int:  # as JSON has them, and faster
        return repr(value)
    return json.dumps(value, ensure_ascii=False)


def _cuts(rows: Sequence[Row]) -> list[str]:
    """Name the cut of each run's data; a second fingerprint for the same fold is that of other data."""
    versions: defaultdict[Any, dict[Any, int]] = defaultdict(dict)
    names = []
    for row in rows:
        fold, split = row.get("fold"), row.get("split")
        version = versions[fold].setdefault(split, len(versions[fold]))
        fixed = f"split {str(split).removeprefix('sha256:')[:12]}"
        names.append(fixed if fold is None else f"folds of version {version + 1}" if version else "folds")
    return names


def _by_settings(label: str, cut: str, rows: list[Row]) -> dict[str, list[Row]]:
    """Divide the runs of one label by the settings that differ, where a (fold, seed) occurs twice."""
    runs = Counter((row.get("fold"), row.get("seed")) for row in rows)
    differing = varying(rows) if max(runs.values()) > 1 else []
    parts: dict[str, list[Row]] = {}
    for row in rows:
        own = settings(row) if differing else {}
        details = ", ".join([*([cut] if cut else []), *(f"{name}={as_text(own.get(name))}" for name in differing)])
        parts.setdefault(f"{label} ({details})" if details else label, []).append(row)
    return parts


def _order(row: Row) -> tuple[float, float, str]:
    fold, seed = number(row, "fold"), number(row, "seed")
    return (-1 if fold is None else fold, -1 if seed is None else seed, str(row.get("config")))
