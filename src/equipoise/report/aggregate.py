"""Runs that differ in seed and fold only: mean and standard deviation per label, and paired differences."""

import json
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, final

import numpy as np

from equipoise.models.metrics import Metric
from equipoise.report.headline import Headline, Row, baseline_name, headline_of, metric_of_row
from equipoise.report.intervals import MeanStd as MeanStd
from equipoise.report.intervals import Runs, interval_over
from equipoise.report.intervals import mean_std as mean_std

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

    fused = _measure("test", "fused")  # the metric of the fused prediction, the headline
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

    @property
    def merit(self) -> float:
        """The mean of fused as a number of which larger is better; minus infinity where there is none."""
        return self.metric.merit(self.fused.mean if self.fused else None)

    def of(self, *path: str) -> MeanStd | None:
        """Mean and deviation of the number at a path of keys; None where no run has it."""
        return mean_std([number(row, *path) for row in self.rows])

    def interval(self, decision: str) -> tuple[float, float] | None:
        """The 95 % interval of a decision's number, of a single run that has measured one."""
        ends = dig(self.rows[0], "test", f"{decision}_interval") if len(self.rows) == 1 else None
        known = [end for end in map(number, ends) if end is not None] if isinstance(ends, list) else []
        return (known[0], known[1]) if len(known) == 2 else None

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
    """Group runs by label, the best by fused first, those without a fused prediction last.

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
    means = (mean for group in groups for mean in (group.fused, *group.alone.values()))
    return headline_of(groups[0].rows[0], (mean.mean for mean in means if mean))


def baseline_group(groups: Sequence[RunGroup]) -> RunGroup | None:
    """Return a line for the answer that reads no sensor, on the splits and seeds of the others; None without one."""
    runs: dict[tuple[object, ...], Row] = {}
    for row in (row for group in groups for row in group.rows):
        value, name = number(row, "test", "baseline"), baseline_name(row)
        if value is not None:
            keys = ("data", "fold", "seed", "split", "task", "metric")
            own = {"label": name, "method": name, "test": {"fused": value}, **{key: row.get(key) for key in keys}}
            runs.setdefault((row.get("fold"), row.get("seed"), row.get("split")), own)
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


BASELINE = "msl"
ABSENT, UNKNOWN = -1, -2  # codes of a setting: the baseline has none, or never had this value


@final
@dataclass(frozen=True)
class Difference:
    """The difference of one label to the baseline, on the same folds and seeds.

    Args:
        label: The label compared.
        baseline: The label it is compared with.
        mean: Mean difference; positive is above the baseline, which is better where `higher` is.
        low: Lower end of the 95 % interval; None with fewer than two pairs.
        high: Upper end.
        pairs: How many differences the interval is made of.
        over: What varies between them: folds (seeds of a fold are averaged first) or seeds.
        higher: Whether larger is better.
    """

    label: str
    baseline: str
    mean: float
    low: float | None
    high: float | None
    pairs: int
    over: Literal["folds", "seeds"]
    higher: bool = True

    @property
    def verdict(self) -> Literal["better", "worse", "no clear difference", "too few runs"]:
        """The claim it allows: a difference is clear when its interval does not cover zero."""
        if self.low is None or self.high is None:
            return "too few runs"
        if self.low <= 0 <= self.high:
            return "no clear difference"
        return "better" if (self.low > 0) == self.higher else "worse"

    @property
    def gain(self) -> float:
        """The mean as a number of which larger is better."""
        return self.mean if self.higher else -self.mean


def paired_differences(
    rows: Sequence[Row], baseline: str = BASELINE, measure: Sequence[str] = ("test", "fused")
) -> list[Difference]:
    """Compute paired differences of every label to the baseline, with 95 % intervals by Student's t.

    A pair is two runs with the same fold, seed and split. With several folds the seeds of a fold are averaged first
    and the interval is over folds; otherwise it is over seeds, and then speaks of this one split only.

    Args:
        rows: Runs of one data set.
        baseline: Label (or else method) that the others are compared with.
        measure: Path of keys to the number that is compared.
    """
    return differences_between(aggregate(rows), baseline, measure)


def differences_between(
    groups: Sequence[RunGroup], baseline: str = BASELINE, measure: Sequence[str] = ("test", "fused")
) -> list[Difference]:
    """Compute paired differences of every group to the baseline, as `paired_differences` does for rows.

    Args:
        groups: All groups of one data set.
        baseline: Label (or else method) that the others are compared with.
        measure: Path of keys to the number that is compared.
    """
    named = [group for group in groups if group.rows[0]["label"] == baseline]
    named = named or [group for group in groups if group.method == baseline][:1]
    if not named:
        return []
    baselines, own = _Baselines(named, measure), {id(group) for group in named}
    others = ((group, _by_run(group, measure)) for group in groups if id(group) not in own)
    differences = (_difference(group, runs, *baselines.nearest(group, runs)) for group, runs in others)
    return [difference for difference in differences if difference]


def difference_of(ours: RunGroup, measure: Sequence[str], base: RunGroup, other: Sequence[str]) -> Difference | None:
    """Compute the paired difference of a number of one group to another number of a second; None without a pair."""
    return _difference(ours, _by_run(ours, measure), base, _by_run(base, other))


def compared_with(differences: Sequence[Difference], baseline: str) -> str:
    """Name the baseline that differences were taken to: without a group of the label asked for, one of that method."""
    baselines = {difference.baseline for difference in differences}
    return baselines.pop() if len(baselines) == 1 else baseline


def _difference(group: RunGroup, ours: Runs, base: RunGroup, theirs: Runs) -> Difference | None:
    found = interval_over({run: ours[run] - theirs[run] for run in ours if run in theirs})
    if found is None:
        return None
    return Difference(
        group.label, base.label, found.mean, found.low, found.high, found.count, found.over, group.metric.higher
    )


def _by_run(group: RunGroup, measure: Sequence[str]) -> Runs:
    """Return the number of each run, under what makes two runs a pair."""
    numbers = ((row, number(row, *measure)) for row in group.rows)
    return {(row.get("fold"), row.get("seed"), row.get("split")): value for row, value in numbers if value is not None}


@final
class _Baselines:
    """A baseline, which may have been run with several settings; another group is compared with the nearest of them.

    The nearest one has pairs with the group, if any has, and shares most settings with it; of several the first.
    """

    def __init__(self, groups: Sequence[RunGroup], measure: Sequence[str]) -> None:
        self.groups = groups
        self.runs = [_by_run(group, measure) for group in groups]
        self.every_run = set().union(*self.runs)
        own = [{name: as_text(value) for name, value in settings(group.rows[0]).items()} for group in groups]
        names = dict.fromkeys(name for texts in own for name in texts)
        values = {name: [texts.get(name) for texts in own] for name in names}
        # Only where they differ can one of them be nearer than another. There, equal settings have equal codes.
        self.codes = {
            name: {text: code for code, text in enumerate(dict.fromkeys(texts)) if text is not None}
            for name, texts in values.items()
            if len(set(texts)) > 1
        }
        table = [[codes.get(text, ABSENT) for text in values[name]] for name, codes in self.codes.items()]
        self.table = np.array(table, dtype=np.int32).reshape(len(self.codes), len(groups))

    def nearest(self, group: RunGroup, runs: Runs) -> tuple[RunGroup, Runs]:
        """Return the group to compare with, and its numbers."""
        own = settings(group.rows[0])
        wanted = [
            codes.get(as_text(own[name]), UNKNOWN) if name in own else UNKNOWN for name, codes in self.codes.items()
        ]
        shared = (self.table == np.array(wanted, dtype=np.int32)[:, None]).sum(axis=0)
        at = int(shared.argmax())
        if runs.keys().isdisjoint(self.runs[at]) and not runs.keys().isdisjoint(self.every_run):
            order = np.argsort(-shared, kind="stable").tolist()
            at = next(place for place in order if not runs.keys().isdisjoint(self.runs[place]))
        return self.groups[at], self.runs[at]
