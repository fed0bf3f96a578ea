"""Numbers from the answers that runs kept: over all folds together, in other metrics, and the classes of each fold."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from equipoise.measure.bootstrap import bootstrap_interval
from equipoise.models.metrics import METRICS, Metric, events
from equipoise.models.task import Task, task_of
from equipoise.report.aggregate import MeanStd, RunGroup, mean_std
from equipoise.report.intervals import SampledInterval
from equipoise.report.predictions import Predictions, predictions_of_run
from equipoise.report.results import Results

if TYPE_CHECKING:
    from torch import Tensor

MOST_POOLED = 40  # methods, the best first: every one of them has its own bootstrap
Found = TypeVar("Found")


class PooledFolds(NamedTuple):
    """A metric over the test samples of all folds together.

    Args:
        mean: Its mean over seeds.
        low: Lower end of the 95 % interval, by bootstrap; None where it cannot be told.
        high: Upper end.
        groups: How many groups are drawn, or samples, where there are no groups.
        grouped: Whether there are groups.
        folds: How many folds there are.
        counts: The number of samples, and of those of the positive class or label; None where there is no such.
    """

    mean: float
    low: float | None
    high: float | None
    groups: int
    grouped: bool
    folds: int
    counts: tuple[int, int] | None = None


def pooled(results: Results, group: RunGroup, decision: str) -> PooledFolds | None:
    """Compute the metric over the test samples of all folds; None unless every sample is tested once by each seed."""
    rows, several = group.rows, {row.get("fold") for row in group.rows}
    if "config" not in rows[0] or None in several or len(several) < 2 or len(several) < (rows[0].get("folds") or 0):
        return None
    return _once(results, ("pooled", group.label, rows[0]["config"], decision), lambda: _pool(results, group, decision))


def _pool(results: Results, group: RunGroup, decision: str) -> PooledFolds | None:
    import numpy as np
    import torch

    folds, by_seed = {row.get("fold") for row in group.rows}, {}
    for row in group.rows:
        found = predictions_of_run(results, row)
        if found is None or decision not in found.answers:
            return None
        by_seed.setdefault(row.get("seed"), []).append(found)
    answers: list[Tensor] = []
    place = label = None
    for runs in by_seed.values():
        rows = np.concatenate([one.row for one in runs])
        order = np.argsort(rows)
        if len(runs) != len(folds) or len(np.unique(rows)) < len(rows):
            return None
        if place is not None and not np.array_equal(place, rows[order]):
            return None
        place, label = rows[order], np.concatenate([one.label for one in runs])[order]
        answers.append(torch.from_numpy(np.concatenate([one.answers[decision] for one in runs])[order]))
    first = next(iter(by_seed.values()))
    groups = None
    if all(one.group is not None for one in first):
        rows = np.concatenate([one.row for one in first])
        names = np.concatenate([one.group for one in first if one.group is not None])[np.argsort(rows)]
        groups = torch.from_numpy(np.unique(names, return_inverse=True)[1])
    truth, task, metric = torch.from_numpy(label), _task(first[0]), group.metric
    mean = mean_std(metric(answer, truth, task) for answer in answers)
    if mean is None or mean.mean != mean.mean:
        return None
    low, high = bootstrap_interval(metric, torch.stack(answers), truth, task, groups) or (None, None)
    count = len(truth) if groups is None else int(groups.max()) + 1
    positives = events(truth, task)
    counts = None if positives is None else (len(truth), positives)
    return PooledFolds(mean.mean, low, high, count, groups is not None, len(folds), counts)


def difference_by_samples(results: Results, ours: RunGroup, theirs: RunGroup, decision: str) -> SampledInterval | None:
    """Compute the interval of the difference between two lines by bootstrap over the test part of their one split.

    Args:
        results: The study.
        ours: The runs of one line there.
        theirs: Those of the other.
        decision: As a key of the test part; "shipped" is that of each line.

    Returns:
        None where the runs kept no answers, or where every draw gives the same: nothing is compared with itself.
    """
    key = ("difference", decision, *((one.label, one.rows[0].get("config")) for one in (ours, theirs)))
    return _once(results, key, lambda: _by_samples(results, (ours, theirs), decision))


def _by_samples(results: Results, both: Sequence[RunGroup], decision: str) -> SampledInterval | None:
    import numpy as np
    import torch

    answers, every = [], []
    for one in both:
        kept = [predictions_of_run(results, row) for row in one.rows if "config" in row]
        runs, (name,) = [run for run in kept if run is not None], one.path(decision)
        if len(runs) < len(one.rows) or any(name not in run.answers for run in runs):
            return None
        answers.append(torch.stack([torch.from_numpy(run.answers[name]) for run in runs]))
        every += runs
    first = every[0]
    if any(not np.array_equal(first.row, run.row) or not np.array_equal(first.label, run.label) for run in every):
        return None
    group = None if first.group is None else torch.from_numpy(np.unique(first.group, return_inverse=True)[1])
    truth = torch.from_numpy(first.label)
    ends = bootstrap_interval(both[0].metric, answers[0], truth, _task(first), group, against=answers[1])
    if ends is None or ends[0] == ends[1]:
        return None
    count = len(truth) if group is None else int(group.max()) + 1
    return SampledInterval(ends[0], ends[1], count, "samples" if group is None else "groups")


def metrics_of(groups: Sequence[RunGroup]) -> list[Metric]:
    """List the metrics that fit the task of some runs."""
    row = groups[0].rows[0]
    kind = str(row.get("task") or "classes")
    return [metric.titled(row.get("positive")) for metric in METRICS.values() if kind in metric.kinds]


def other_metric(results: Results, group: RunGroup, metric: Metric, decision: str) -> MeanStd | None:
    """Compute mean and deviation over runs of any metric, from the answers that they kept; None of a made-up line."""
    import torch

    def compute() -> MeanStd | None:
        values = []
        for row in group.rows:
            found = predictions_of_run(results, row) if "config" in row else None
            if found is not None and decision in found.answers:
                answer, label = torch.from_numpy(found.answers[decision]), torch.from_numpy(found.label)
                values.append(metric(answer, label, _task(found)))
        return mean_std(value for value in values if value == value)

    return _once(results, (metric.name, group.label, group.rows[0].get("config"), decision), compute)


def over_classes(groups: Sequence[RunGroup]) -> bool:
    """Return whether the metric of some runs is a mean over the classes or labels that occur."""
    metric, named = groups[0].metric, groups[0].rows[0].get("positive") is not None
    return metric.name in ("balanced_accuracy", "macro_f1") or (metric.of_class and not named)


def class_notes(results: Results, groups: Sequence[RunGroup]) -> list[str]:
    """Name the classes of which a test part has no sample, where the metric is a mean over classes."""
    metric, positive = groups[0].metric, groups[0].rows[0].get("positive")
    if not (metric.of_class or over_classes(groups)):
        return []
    absent: dict[Any, tuple[str, ...]] = {}
    count, what = 0, "class"
    for row in (row for group in groups for row in group.rows if row.get("fold") not in absent):
        if found := predictions_of_run(results, row):
            there = set(found.label.tolist()) if found.task == "classes" else set(found.label.max(axis=0).nonzero()[0])
            absent[row.get("fold")] = tuple(name for at, name in enumerate(found.names) if at not in there)
            count, what = len(found.names), "class" if found.task == "classes" else "label"
    folds: dict[tuple[str, ...], list[Any]] = {}
    for fold, names in sorted(absent.items(), key=lambda one: str(one[0]).rjust(9)):
        folds.setdefault(names, []).append(fold)
    lacking = {names: some for names, some in folds.items() if names}
    if metric.of_class and positive is not None:
        without = [fold for names, some in lacking.items() if positive in names for fold in some]
        return [f"{_where(without)} no sample of {positive}, and so no {metric.label}."] if without else []
    if not lacking:
        return []
    parts = [f"{_where(some)} no sample of {_and(names)}" for names, some in lacking.items()]
    sizes = _and([str(size) for size in sorted({count - len(names) for names in folds}, reverse=True)])
    many = f"{what}es" if what == "class" else f"{what}s"
    mixed = f"means over folds mix metrics of {sizes} {many}" if len(folds) > 1 else f"the metric is of {sizes} {many}"
    return [f"{'; '.join(parts)}: {mixed}."]


def _where(folds: Sequence[Any]) -> str:
    if folds == [None]:
        return "The test part has"
    parts = "part of fold" if len(folds) == 1 else "parts of folds"
    return f"The test {parts} {_and(list(map(str, folds)))} {'has' if len(folds) == 1 else 'have'}"


def _and(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def _task(one: Predictions) -> Task:
    positive = one.run.get("positive")
    named = {"positive": positive} if positive in one.names else {}
    return task_of({"kind": one.task, "names": one.names, "loss": "huber", **named})


def _once(results: Results, key: object, compute: Callable[[], Found]) -> Found:
    """Compute what the page and the tables both show a single time."""
    if key not in results.computed:
        results.computed[key] = compute()
    return results.computed[key]
