"""A study: methods × data × seeds × folds, run at the same time, resumed after any interruption, collected by rows."""

import sys
import warnings
from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from equipoise.data.source import DataSet, mark_task, mark_tokens
from equipoise.data.splits import Splits
from equipoise.models.choose import kinds_of
from equipoise.models.metrics import metric_of, metric_of_row
from equipoise.study.executors import Cluster, Executor, RunFunction
from equipoise.study.executors.local import RanksExecutor, local_executor, pending_on_ranks
from equipoise.study.job import FoldSplits, Job, Measure, pending, run_job, shipped_decision
from equipoise.study.portfolio import check_fusion, trainings_of
from equipoise.study.registry import Entry, check_trained
from equipoise.study.store import Store
from equipoise.training import components, launch
from equipoise.training.budget import affordable_steps
from equipoise.training.launch import device_of
from equipoise.training.optimisers import make_optimizer
from equipoise.training.recipe import resolved
from equipoise.training.settings import Settings
from equipoise.training.step import build_model, check_fits, losses_of, problems_of, task_for
from equipoise.training.trackers import Trackers
from equipoise.util.errors import BadInput, FailedRuns, collect, raise_all
from equipoise.util.named import told
from equipoise.util.processes import threads
from equipoise.util.progress import Progress

MOST_RUNS = 100_000
OnEvent = Callable[[str, Job, dict[str, Any]], None]
"""Called with "start", "epoch", "done" or "failed", the job, and the record, the row or the reason."""


def folds_of(source: DataSet, folds: bool | int) -> tuple[DataSet, Sequence[int | None]]:
    """Return the data with the folds that are asked for, and their numbers."""
    if not folds:
        return source, [None]
    if not source.folds:
        raise BadInput(f"{source.name} has no folds: it has no groups to cut by; leave out --folds, or give a group")
    if not isinstance(folds, bool):
        source = source.cut_into(folds)
    return source, range(source.folds)  # as many as were typed, until the data is read


def _fitting(entries: Sequence[Entry], splits: Splits) -> tuple[list[Entry], dict[str, str]]:
    """Leave out methods that "all" named and that are not for the task, the data or the model.

    Returns:
        The others, and the reasons by method.
    """
    lines = [(entry, entry.balancer()) for entry in entries if entry.by_all]
    problems = {  # by method, of which there may be several lines
        entry.method.name: "; ".join(problems_of(balancer, entry.settings, splits.task.kind, splits.modalities))
        for entry, balancer in lines
    }
    fitting = [entry for entry in entries if not (entry.by_all and problems.get(entry.method.name))]
    return fitting, {name: problem for name, problem in problems.items() if problem}


def plan(
    entries: Sequence[Entry],
    data: DataSet,
    seeds: Sequence[int],
    folds: Sequence[int | None],
    threads: int = 1,
    measure: Measure = "all",
    on: Cluster | None = None,
) -> tuple[list[Job], FoldSplits]:
    """Return every run of a comparison, and the data they share, checked.

    What leaves nothing to chance is one run on each fold, without a seed.
    """
    if (runs := len(entries) * len(seeds) * len(folds)) > MOST_RUNS:
        _ = data.load(folds[0])  # which may not have so many
        raise BadInput(f"expected at most {MOST_RUNS:,} runs in one study, found {runs:,}; take fewer seeds or folds")
    data = mark_tokens(data, [(entry.settings.encoder, entry.settings.features) for entry in entries])
    data = mark_task(data, [entry.settings.task for entry in entries])
    device = device_of if on is None else on.device_of

    def where(entry: Entry) -> str:
        return "" if on is None else device(entry.settings)

    (splits,) = collect(lambda: {fold: data.load(fold).check() for fold in folds})
    modalities, task = splits[folds[0]].modalities, splits[folds[0]].task
    entries, left_out = _fitting(entries, splits[folds[0]])
    collect(
        *(partial(device, entry.settings) for entry in entries),
        *(partial(launch.check_launch, entry.settings, entry.balancer()) for entry in entries),
        *([partial(check_trained, entries, "torchrun")] if on is None and launch.launched() else []),
        *(partial(check_fits, entry.balancer(), entry.settings, task.kind, modalities) for entry in entries),
        *(partial(check_fusion, entry) for entry in entries),
        *(partial(metric_of, entry.settings.metric, task) for entry in entries),
        *(partial(task_for, splits[folds[0]], entry.settings) for entry in entries),
        *(partial(raise_all, kinds_of(entry.settings.encoder, modalities)[1]) for entry in entries),
    )
    own = {entry.settings.model: entry for entry in entries if entry.settings.model != "auto"}
    collect(*(partial(_try_model, entry, splits[folds[0]]) for entry in own.values()))
    methods = {entry.method.name: entry for entry in entries if entry.method.own}
    collect(*(partial(_try_method, entry, splits[folds[0]]) for entry in methods.values()))
    for name, problem in left_out.items() if launch.is_main() else ():  # once nothing else is to be said
        print(f"{name} is left out: {problem}", file=sys.stderr)
    marks = {fold: parts.fingerprint() for fold, parts in splits.items()}
    jobs: list[Job] = []
    for fold in folds:
        lines = resolved_entries(entries, splits[fold])
        drawn = [bool(trainings_of(entry, task.kind)) for entry in lines]
        jobs += [
            Job(entry, data, fold, seed if by_chance else None, marks[fold], threads, measure, where(entry))
            for seed in seeds
            for entry, by_chance in zip(lines, drawn, strict=True)
            if by_chance or seed == seeds[0]
        ]
    return jobs, splits


def resolved_entries(entries: Sequence[Entry], splits: Splits) -> list[Entry]:
    """Return lines of a comparison with the number of epochs that "auto" stands for on some data."""
    return [replace(entry, settings=_resolved(entry, splits)) for entry in entries]


def _resolved(entry: Entry, splits: Splits) -> Settings:
    if entry.method.way == "instant":  # which no number of epochs changes
        return entry.settings.changed({"epochs": 0})
    portfolio = entry.method.way == "auto" and entry.settings.epochs == "auto"
    steps = affordable_steps(splits, entry.settings) if portfolio else None
    return resolved(entry.settings, len(splits.train), steps)


def _try_model(entry: Entry, splits: Splits) -> None:
    """Make a model of the user's own and run it on two samples, so that what is wrong with it is told once."""
    two = splits.train.take(torch.arange(min(2, len(splits.train)))).ready()
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        model = build_model(splits, entry.balancer(), entry.settings).eval()
        try:
            model(two.inputs)
        except BadInput:
            raise
        except Exception as error:  # code of the user's own may raise anything
            where = f"model {entry.settings.model!r} cannot read two samples"
            raise BadInput(f"{where}: {told(error)}") from error


def _try_method(entry: Entry, splits: Splits) -> None:
    """Take a step on two samples by a method of the user's own, so that what is wrong with it is told once."""
    two = splits.train.take(torch.arange(min(2, len(splits.train)))).ready()
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a run says the same
        balancer = entry.balancer()
        model = build_model(splits, balancer, entry.settings).eval()  # two samples are no batch to normalise by
        optimizer = make_optimizer(model, entry.settings)
        try:
            balancer.attach(model, optimizer=optimizer, group=None)
            losses_of(model, balancer, two)[0].backward()
            optimizer.step()
            balancer.end_epoch({name: dict.fromkeys(balancer.needs.metrics, 0.5) for name in splits.modalities})
        except Exception as error:  # code of the user's own may raise anything
            where = f"method {entry.method.name!r} cannot take a step on two samples"
            raise BadInput(f"{where}: {error if isinstance(error, BadInput) else told(error)}") from error


def run_study(
    jobs: Sequence[Job],
    splits: FoldSplits,
    store: Store,
    *,
    workers: int | None = None,
    on: Cluster | None = None,
    on_event: OnEvent | None = None,
    checkpoint_seconds: float = 10.0,
    trackers: Trackers | None = None,
) -> list[dict[str, Any]]:
    """Run what is not done yet, and return the rows of all jobs, in their order.

    Where this process is one of several that a launcher started, all of them do one run after the other together.

    Args:
        jobs: The runs.
        splits: The data of each fold.
        store: Where rows are kept.
        workers: Runs at the same time; None for one per core, or as many as the GPUs carry.
        on: The cluster, if not this machine.
        on_event: Called with everything that happens.
        checkpoint_seconds: Least time between two checkpoints of a run.
        trackers: Where each run is logged while it trains, under its own name.

    Raises:
        FailedRuns: After all others are done, if some runs failed.
        BadInput: If the folder holds damaged results or checkpoints, cannot be written, or belongs to a study that is
            running.
    """
    together = on is None and launch.launched()
    main = not together or launch.is_main()
    tell = on_event if on_event is not None and main else lambda *_: None
    run = partial(run_job, checkpoint_seconds=checkpoint_seconds, trackers=trackers)
    # Each run sets its threads: here where ranks run it, elsewhere in a process of its own. Setting them starts some,
    # which a fork does not copy.
    own_threads = threads(torch.get_num_threads()) if together else nullcontext()
    with store.locked() if main else nullcontext(), own_threads, components.shared():
        done, waiting = (pending_on_ranks if together else pending)(jobs, store)
        if on is None:  # workers are forked off this process, and share what it has computed
            for job in waiting:
                if job.entry.method.way != "instant":
                    components.prepare(splits[job.fold], job.entry.settings)
        failures: list[str] = []
        with (
            RanksExecutor(partial(run, workers=1), splits, store, tell)
            if together
            else executor_for(run, waiting, splits, store, workers, on)
        ) as executor:
            while waiting or executor.running:
                while waiting and executor.has_room:
                    job = waiting.pop(0)
                    executor.start(job)
                    tell("start", job, {})
                for job, kind, content in executor.events():
                    if kind == "done":
                        if main:
                            store.append(content)
                        done[job.config] = content
                    elif kind == "unwritable":
                        raise BadInput(content["reason"])
                    elif kind == "failed":
                        failures.append(f"{job.name}: {content['reason']}")
                    tell(kind, job, content)
    if failures:
        raise FailedRuns("\n".join(failures))
    return [done[job.config] for job in jobs]


def executor_for(
    run: RunFunction, jobs: Sequence[Job], splits: FoldSplits, store: Store, workers: int | None, on: Cluster | None
) -> AbstractContextManager[Executor]:
    """Make the executor of some jobs: of a cluster, or of this machine's cores or GPUs."""
    if on is not None and jobs:
        return on.executor(run, splits, store, workers)
    return local_executor(run, jobs, splits, store, workers)


@contextmanager
def run_progress(total: int, title: str, *, quiet: bool = False, where: str = "") -> Generator[OnEvent]:
    """Show how far a study is, and yield the function to call with its events.

    Args:
        total: Runs that are to be done.
        title: Of the bar.
        quiet: Show nothing at all, for programs that read the output.
        where: Words behind the name of a run: " on DATA", where a study has several data sets.
    """
    finished = 0

    def event(kind: str, job: Job, content: dict[str, Any]) -> None:
        nonlocal finished
        if kind in ("start", "epoch"):
            # A resumed run begins in the middle, and a portfolio counts the epochs of all its trainings.
            done, epochs = content.get("overall") or (content.get("epoch", 0), job.entry.settings.passes)
            stage = f": {content['stage']}" if "stage" in content else ""
            text = f"  {job.name}{where}{', measuring' if done == epochs else stage}"
            progress.bar(job.config, text, done, epochs)
            return
        finished += 1
        progress.remove(job.config)
        progress.bar("", title, finished, total)
        decision = shipped_decision(content)
        value = None if kind == "failed" else content["validation"].get(decision)
        label = metric_of_row(content).label
        score = "done" if value is None else f"validation {label} {value:.3f} ({decision})"
        progress.line(f"{finished}/{total} {job.name}{where}: {content['reason'] if kind == 'failed' else score}")

    with Progress(quiet=quiet) as progress:
        progress.bar("", title, 0, total)
        yield event


def run_jobs(
    jobs: Sequence[Job],
    splits: FoldSplits,
    store: Store,
    title: str = "runs",
    *,
    where: str = "",
    workers: int | None = None,
    on: Cluster | None = None,
    quiet: bool = False,
) -> dict[str, str]:
    """Run the jobs that are not done yet, and return the reasons of those that failed, by config.

    For commands to which a run that diverges is an answer, and no reason to end.

    Args:
        jobs: The runs.
        splits: The data of each fold.
        store: The rows.
        title: Of the progress bar.
        where: Words behind the name of a run, as for `run_progress`.
        workers: Runs side by side; None for one per core, or as many as the GPUs carry.
        on: The cluster, if not this machine.
        quiet: Show no progress.
    """
    reasons: dict[str, str] = {}

    def watch(kind: str, job: Job, content: dict[str, Any]) -> None:
        if kind == "failed":
            reasons[job.config] = f"{job.name}: {content['reason']}"
        tell(kind, job, content)

    with run_progress(store.missing(job.config for job in jobs), title, quiet=quiet, where=where) as tell:
        try:
            run_study(jobs, splits, store, workers=workers, on=on, on_event=watch)
        except FailedRuns:
            if not reasons:
                raise
    return reasons
