"""Every method over a grid of learning rates, and over sizes of the training set: which runs, and their rows."""

import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import mean
from typing import Any, Literal, NamedTuple, final

from equipoise.data.source import DataSet, share_of
from equipoise.models.metrics import Metric, baseline, judged, metric_of
from equipoise.study.compare import record_command
from equipoise.study.executors import Cluster
from equipoise.study.job import DIVERGED, ERROR, FoldSplits, Job, Measure, diverged
from equipoise.study.registry import Entry, check_trained
from equipoise.study.store import Store
from equipoise.study.study import folds_of, plan, run_jobs
from equipoise.util.errors import BadInput, FailedRuns, collect, raise_all
from equipoise.util.processes import threads

RATES = (0.1, 0.3, 1.0, 3.0, 10.0)
"""Factors of the learning rate."""
Axis = Literal["rate", "size"]


class CurveRun(NamedTuple):
    """One run of a curve.

    Args:
        fold: Its fold; None for the data set's own cut.
        seed: Its seed.
        row: Its results; None where it diverged.
        constant: The metric of the answer that reads no sensor, on its test part.
    """

    fold: int | None
    seed: int | None
    row: dict[str, Any] | None
    constant: float


@final
@dataclass(frozen=True)
class MethodCurve:
    """The runs of one method on one data set, along one axis.

    Args:
        data: The name of the data set.
        label: The method.
        axis: What moves: "rate", a factor of the learning rate; or "size", a share of the training samples.
        runs: Those at each place, from small to large; folds and seeds are the same at all of them.
        samples: How many training samples there are at each place, on average over folds.
        lr: The learning rate at factor 1.
        metric: The metric of the numbers.
    """

    data: str
    label: str
    axis: Axis
    runs: Mapping[float, tuple[CurveRun, ...]]
    samples: Mapping[float, int]
    lr: float
    metric: Metric


def check_grid(name: str, values: Sequence[float]) -> tuple[float, ...]:
    """Return factors or shares from small to large.

    Args:
        name: "rates" or "sizes".
        values: As typed; of sizes there may be none.

    Raises:
        BadInput: If they cannot make a curve.
    """
    most, rule = (math.inf, "above 0") if name == "rates" else (1.0, "above 0 and at most 1, shares of the samples")
    known = sorted({float(f"{one:.6g}") for one in values})  # as many digits as labels have
    if not values and name == "sizes":
        return ()
    if len(known) < max(2, len(values)) or not all(0 < one <= most and one < math.inf for one in known):
        such = "0.1,0.3,1,3,10" if name == "rates" else "0.1,0.3,1"
        found = ",".join(f"{one:g}" for one in values) or "none"
        raise BadInput(f"--{name}: expected two different numbers or more {rule}, such as {such}, found {found}")
    return tuple(known)


def check_lines(chosen: Sequence[Entry]) -> list[Entry]:
    """Return the lines that have a curve; those without that "all" named are left out.

    Raises:
        BadInput: If one has no learning rate, or no fused decision.
    """
    check_trained(chosen, "robustness")
    fused = [entry for entry in chosen if entry.method.fused]
    problems = [
        f"robustness: expected methods with a fused decision, found {entry.method.name}, which has none"
        for entry in chosen
        if not entry.method.fused and not entry.by_all
    ]
    if chosen[0].settings.step == "safe":
        problems.append("robustness: step=safe sets the learning rate itself; leave it out")
    raise_all(problems)
    return fused


class _Planned(NamedTuple):
    """Runs that share their data, at places of the two axes."""

    source: DataSet
    jobs: list[Job]
    splits: FoldSplits
    places: dict[str, tuple[Entry, list[tuple[Axis, float]]]]  # by label: the method, and where its runs count


@threads(1)  # before data is loaded: processes that share memory must not inherit a pool of threads
def run_robustness(
    studies: Sequence[tuple[DataSet, Sequence[Entry]]],
    seeds: Sequence[int],
    out: Path,
    *,
    rates: Sequence[float] = RATES,
    sizes: Sequence[float] = (),
    folds: bool | int = False,
    quick: bool = False,
    workers: int | None = None,
    on: Cluster | None = None,
    quiet: bool = False,
    command: str | None = None,
) -> list[MethodCurve]:
    """Run what is not done yet, and return every curve.

    Learning rates move with all training samples, sizes at the given learning rate.

    Args:
        studies: Each data set with the methods, at the learning rate that factors multiply.
        seeds: One run for each, per method, place and fold.
        out: Folder for everything that is written.
        rates: Factors of the learning rate.
        sizes: Shares of the training samples; none for no such curve.
        folds: Every fold instead of the one fixed cut; a number cuts the data into as many.
        quick: Leave out sensor faults and the costlier protocols.
        workers: Runs side by side; None for one per core, or as many as the GPUs carry.
        on: The cluster, if not this machine.
        quiet: Show no progress.
        command: What was typed, to be recorded beside the results; None where nothing was.

    Raises:
        FailedRuns: If no run was finished, or one failed for another reason than a loss that is no number: that some
            learning rates diverge is part of the answer.
    """
    rates, sizes, *lines = collect(
        partial(check_grid, "rates", rates),
        partial(check_grid, "sizes", sizes),
        *(partial(check_lines, chosen) for _, chosen in studies),
    )
    cut = collect(*(partial(folds_of, source, folds) for source, _ in studies))
    measure: Measure = "quick" if quick else "all"
    plans = collect(
        *(
            partial(
                _plan, own, source, share, rates, sizes, partial(plan, seeds=seeds, folds=cuts, measure=measure, on=on)
            )
            for own, (source, cuts) in zip(lines, cut, strict=True)
            for share in dict.fromkeys((1.0, *sizes))
        )
    )
    store = Store(out)
    record_command(out, command)
    every = {job.config: job for one in plans for job in one.jobs}
    gone = {config for config, job in every.items() if has_diverged(job, store)}
    if not quiet:
        left = store.missing(every.keys() - gone)
        print(f"planned: {len(every):,} runs, {left:,} of them not done yet", file=sys.stderr)
    failures: list[str] = []
    for one in plans:
        waiting = [job for job in one.jobs if job.config not in gone]
        where = f" on {one.source.name}" if len(studies) > 1 else ""
        how: dict[str, Any] = {"where": where, "workers": workers, "on": on, "quiet": quiet}
        reasons = run_jobs(waiting, one.splits, store, f"runs{where}", **how)
        failures += [reason for reason in reasons.values() if DIVERGED not in reason]
    rows = {row["config"]: row for row in store.rows()}
    if failures or not every.keys() & rows.keys():
        raise FailedRuns(
            "\n".join(failures) or "not a single run was finished: at every learning rate the loss diverged"
        )
    return _curves(plans, rows)


def has_diverged(job: Job, store: Store) -> bool:
    """Tell whether an earlier attempt at a run diverged; the same run again would do the same."""
    path = store.run_folder(job.config) / ERROR
    return path.is_file() and f"\n{DIVERGED}: " in path.read_text("utf-8", "replace")


def _plan(
    lines: Sequence[Entry],
    source: DataSet,
    share: float,
    rates: Sequence[float],
    sizes: Sequence[float],
    planned: Callable[..., tuple[list[Job], FoldSplits]],
) -> _Planned:
    """Plan the runs on a share of the training samples: all learning rates on the whole, one on less."""
    points: dict[str, Entry] = {}
    places: dict[str, tuple[Entry, list[tuple[Axis, float]]]] = {}
    for entry in lines:
        for rate in dict.fromkeys((*rates, 1.0)) if share == 1 else (1.0,):
            where: list[tuple[Axis, float]] = [("rate", rate)] if share == 1 and rate in rates else []
            where += [("size", share)] if rate == 1 and share in sizes else []
            if where:
                lr = float(f"{entry.settings.lr * rate:.12g}")  # 0.3, and not 0.30000000000000004
                point = entry.changed({}, {"lr": lr}, _label(entry, rate, share))
                points[point.label], places[point.label] = point, (entry, where)
    source = share_of(source, share)
    return _Planned(source, *planned(list(points.values()), source), places)


def _label(entry: Entry, rate: float, share: float) -> str:
    """Name a line as its method, and what differs; unchanged, its runs are those of `compare` in the same folder."""
    moved = [f"lr × {rate:g}"] if rate != 1 else []
    moved += [f"{share:g} of the training samples"] if share != 1 else []
    return ", ".join([entry.label, *moved])


def _curves(plans: Sequence[_Planned], rows: Mapping[str, dict[str, Any]]) -> list[MethodCurve]:
    """Collect the runs of each curve, those that diverged among them."""
    found: dict[tuple[str, str, Axis], MethodCurve] = {}
    for one in plans:
        first = one.jobs[0]
        settings = first.entry.settings
        tasks = {fold: judged(splits.task, settings.positive) for fold, splits in one.splits.items()}
        metric = metric_of(settings.metric, tasks[first.fold])
        constants = {
            fold: baseline(splits.train.label, splits.test.label, metric, tasks[fold])
            for fold, splits in one.splits.items()
        }
        samples = round(mean(len(splits.train) for splits in one.splits.values()))
        for job in one.jobs:
            row = rows.get(job.config)
            run = CurveRun(job.fold, job.seed, None if row is None or diverged(row) else row, constants[job.fold])
            entry, places = one.places[job.entry.label]
            for axis, at in places:
                key = (one.source.name, entry.label, axis)
                curve = found.get(key) or MethodCurve(*key, {}, {}, entry.settings.lr, metric)
                runs = dict(sorted({**curve.runs, at: (*curve.runs.get(at, ()), run)}.items()))
                found[key] = replace(curve, runs=runs, samples={**curve.samples, at: samples})
    return sorted(found.values(), key=lambda curve: curve.axis)  # all rates, then all sizes
