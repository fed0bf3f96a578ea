"""The study: methods × data × seeds × folds, run side by side, resumed after any interruption, collected row by row."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from importlib import import_module
from typing import Any

import torch

from equipoise.data.source import DataSet, mark_tokens
from equipoise.data.splits import Splits
from equipoise.models.choose import kinds_of
from equipoise.study.executors import Place, Workforce
from equipoise.study.executors.distributed_study import run_together
from equipoise.study.executors.hands import LIBRARIES, Hands
from equipoise.study.executors.sharing import free_memory, how_many, multi_process_service
from equipoise.study.job import Job as Job
from equipoise.study.job import Measure, run_job
from equipoise.study.registry import Entry
from equipoise.study.store import Store
from equipoise.training import launch
from equipoise.training.checkpoint import damage_in
from equipoise.training.launch import device_of, gpus
from equipoise.training.trackers import Trackers
from equipoise.util.errors import BadInput, collect, raise_all
from equipoise.util.errors import FailedRuns as FailedRuns
from equipoise.util.names import unknown_name
from equipoise.util.processes import cores, threads

Event = Callable[[str, Job, dict[str, Any]], None]
"""Called with "start", "epoch", "done" or "failed", the job, and what there is to say."""


def plan(
    entries: Sequence[Entry],
    data: DataSet,
    seeds: Sequence[int],
    folds: Sequence[int | None],
    threads: int = 1,
    measure: Measure = "all",
    on: Place | None = None,
) -> tuple[list[Job], dict[int | None, Splits]]:
    """Every run of a comparison, and the data they share, checked."""
    data = mark_tokens(data, [(entry.settings.encoder, entry.settings.features) for entry in entries])
    device = device_of if on is None else on.device_of
    (splits,) = collect(lambda: {fold: data.load(fold).check() for fold in folds})
    modalities = splits[folds[0]].modalities
    collect(
        *(partial(device, entry.settings) for entry in entries),
        *(partial(launch.check_launch, entry.settings, entry.balancer()) for entry in entries),
        *(partial(_check_modality, entry, modalities) for entry in entries),
        *(partial(_check_encoders, entry, modalities) for entry in entries),
    )
    marks = {fold: parts.fingerprint() for fold, parts in splits.items()}
    jobs = [
        Job(entry, data, fold, seed, marks[fold], threads, measure, "" if on is None else device(entry.settings))
        for fold in folds
        for seed in seeds
        for entry in entries
    ]
    return jobs, splits


def run_study(
    jobs: Sequence[Job],
    splits: dict[int | None, Splits],
    store: Store,
    *,
    workers: int | None = None,
    on: Place | None = None,
    on_event: Event | None = None,
    checkpoint_seconds: float = 10.0,
    trackers: Trackers | None = None,
) -> list[dict[str, Any]]:
    """Run what is not done yet, and give the rows of all jobs, in their order.

    Where this process is one of several that a launcher started, all of them do one run after the other together.

    Args:
        jobs: What is wanted.
        splits: The data of each fold.
        store: Where rows are kept.
        workers: Runs side by side; None for one per core, or as many as the GPUs carry.
        on: Where they take place, if not on this machine.
        on_event: Told of everything that happens.
        checkpoint_seconds: Least time between two checkpoints of a run.
        trackers: Where each run is logged while it trains, under its own name.

    Raises:
        FailedRuns: After all others are done, if some runs failed.
        BadInput: If the folder holds damaged results or checkpoints, cannot be written, or belongs to a study that is
            running.
    """
    tell = on_event or (lambda *_: None)
    if on is None and launch.launched():
        how = partial(run_job, checkpoint_seconds=checkpoint_seconds, trackers=trackers, workers=1)
        with threads(torch.get_num_threads()):  # each run sets its own
            return run_together(jobs, splits, store, how, tell)
    with store.locked():
        done = {row["config"]: row for row in store.rows()}
        waiting = list({job.config: job for job in jobs if job.config not in done}.values())
        if damaged := [each for job in waiting if (each := damage_in(store.run_folder(job.config)))]:
            raise BadInput("\n".join(damaged))
        failures: list[str] = []
        with crew_for(waiting, splits, store, workers, on, checkpoint_seconds, trackers) as crew:
            while waiting or crew.busy:
                while waiting and crew.has_room:
                    job = waiting.pop(0)
                    crew.start(job)
                    tell("start", job, {})
                for job, kind, content in crew.news():
                    if kind == "done":
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


def _check_modality(entry: Entry, modalities: Sequence[str]) -> None:
    """Refuse a parameter that names a modality which the data does not have."""
    wanted = entry.params.get("modality")
    if wanted is not None and wanted not in modalities:
        raise BadInput(f"{entry.method.name}.modality: {unknown_name(wanted, modalities)}")


def _check_encoders(entry: Entry, modalities: Sequence[str]) -> None:
    """Refuse words for encoders that no run could follow."""
    raise_all(kinds_of(entry.settings.encoder, modalities)[1])


@contextmanager
def crew_for(
    jobs: Sequence[Job],
    splits: dict[int | None, Splits],
    store: Store,
    workers: int | None,
    on: Place | None = None,
    checkpoint_seconds: float = 10.0,
    trackers: Trackers | None = None,
) -> Generator[Workforce, None, None]:
    """Who does these jobs: processes, one per core or as many as the GPUs carry at the same time; or a cluster."""
    how = partial(run_job, checkpoint_seconds=checkpoint_seconds, trackers=trackers)
    with ExitStack() as stack:
        if on is not None and jobs:
            yield stack.enter_context(on.workforce(how, splits, store, workers))
            return
        if jobs:
            _import_for_all()
        if not _wants_cuda(jobs):
            limit = workers or max(1, cores() // max((job.threads for job in jobs), default=1))
            how = partial(how, workers=min(limit, len(jobs)))
            yield stack.enter_context(Hands(how, splits, store, limit))
            return
        several = workers != 1 and len(jobs) > 1
        together = several and stack.enter_context(multi_process_service())
        limit = workers or _room(jobs, splits, together=together)
        how = partial(how, workers=min(limit, len(jobs)))
        yield stack.enter_context(Hands(how, splits, store, limit, gpus=_gpus(jobs)))


def _room(jobs: Sequence[Job], splits: dict[int | None, Splits], *, together: bool) -> int:
    """How many runs the GPUs carry. Where processes take turns on a GPU, one is as fast as several."""
    if not jobs or not together:
        return _gpus(jobs)
    each = how_many([job.entry for job in jobs], next(iter(splits.values())), free_memory(), cores())
    return max(1, min(each * _gpus(jobs), cores()))


def _gpus(jobs: Sequence[Job]) -> int:
    """Over how many GPUs runs are dealt out: one, where somebody chose it by its number."""
    chosen = any(":" in job.entry.settings.device for job in jobs)
    return 1 if chosen else max(1, gpus())


def _import_for_all() -> None:
    """Load libraries once, before the processes part."""
    for name in LIBRARIES:
        import_module(name)


def _wants_cuda(jobs: Sequence[Job]) -> bool:
    wanted = {job.entry.settings.device for job in jobs}
    return any(device.startswith("cuda") for device in wanted) or ("auto" in wanted and gpus() > 0)
