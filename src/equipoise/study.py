"""The study: methods × data × seeds × folds, run side by side, resumed after any interruption, collected row by row."""

from __future__ import annotations

import multiprocessing as mp
import os
import signal
from collections.abc import Callable, Sequence
from functools import partial
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import torch

from equipoise.catalogue import DataSet, Entry
from equipoise.checkpoint import damage_in
from equipoise.data.splits import Splits
from equipoise.errors import BadInput, answers
from equipoise.errors import FailedRuns as FailedRuns
from equipoise.job import Job as Job
from equipoise.job import Measure, run_job
from equipoise.machinery import device_of
from equipoise.models.names import unknown_name
from equipoise.processes import die_with_the_parent, start_deaf
from equipoise.store import Store, cannot_write
from equipoise.tracking import Trackers

Event = Callable[[str, Job, dict[str, Any]], None]
"""Called with "start", "epoch", "done" or "failed", the job, and what there is to say."""


def plan(
    entries: Sequence[Entry],
    data: DataSet,
    seeds: Sequence[int],
    folds: Sequence[int | None],
    threads: int = 1,
    measure: Measure = "all",
) -> tuple[list[Job], dict[int | None, Splits]]:
    """Every run of a comparison, and the data they share, checked."""
    (splits,) = answers(lambda: {fold: data.load(fold).check() for fold in folds})
    modalities = splits[folds[0]].modalities
    answers(
        *(partial(device_of, entry.settings) for entry in entries),
        *(partial(_check_modality, entry, modalities) for entry in entries),
    )
    marks = {fold: parts.fingerprint() for fold, parts in splits.items()}
    jobs = [
        Job(entry, data, fold, seed, marks[fold], threads, measure)
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
    on_event: Event | None = None,
    checkpoint_seconds: float = 10.0,
    trackers: Trackers | None = None,
) -> list[dict[str, Any]]:
    """Run what is not done yet, and give the rows of all jobs, in their order.

    Args:
        jobs: What is wanted.
        splits: The data of each fold.
        store: Where rows are kept.
        workers: Runs side by side; None for one per core, or one per GPU.
        on_event: Told of everything that happens.
        checkpoint_seconds: Least time between two checkpoints of a run.
        trackers: Where each run is logged while it trains, under its own name.

    Raises:
        FailedRuns: After all others are done, if some runs failed.
        BadInput: If the folder holds damaged results or checkpoints, cannot be written, or belongs to a study that is
            running.
    """
    tell = on_event or (lambda *_: None)
    with store.locked():
        done = {row["config"]: row for row in store.rows()}
        waiting = list({job.config: job for job in jobs if job.config not in done}.values())
        if damaged := [each for job in waiting if (each := damage_in(store.run_folder(job.config)))]:
            raise BadInput("\n".join(damaged))
        if waiting:
            _import_for_all()
        failures: list[str] = []
        running: dict[Connection, tuple[mp.Process, Job]] = {}
        apart = _wants_cuda(jobs)  # a process that uses a GPU cannot share this one's memory: it loads its own data
        context: Any = mp.get_context("spawn" if apart else "fork")
        limit = workers or max(1, torch.cuda.device_count() if apart else _cores(jobs))
        try:
            while waiting or running:
                while waiting and len(running) < limit:
                    job = waiting.pop(0)
                    ours, theirs = context.Pipe(duplex=False)
                    folder = store.run_folder(job.config)
                    shared = None if apart else splits[job.fold]
                    arguments = (theirs, job, shared, folder, checkpoint_seconds, trackers)
                    process = context.Process(target=_worker, args=arguments, daemon=True)
                    start_deaf(process)
                    theirs.close()
                    running[ours] = (process, job)
                    tell("start", job, {})
                for ready in wait(list(running)):
                    job = running[ready][1]  # ty: ignore[invalid-argument-type]
                    kind, content = _receive(ready)
                    if kind == "epoch":
                        tell("epoch", job, content)
                        continue
                    process, _ = running.pop(ready)  # ty: ignore[invalid-argument-type]
                    process.join()
                    if kind == "done":
                        store.append(content)
                        done[job.config] = content
                    elif kind == "unwritable":
                        raise BadInput(content["reason"])
                    else:
                        failures.append(f"{job.name}: {content['reason']}")
                    tell(kind, job, content)
        finally:
            for process, _ in running.values():
                process.kill()  # checkpoints are whole at any moment
            for process, _ in running.values():
                process.join()
    if failures:
        raise FailedRuns("\n".join(failures))
    return [done[job.config] for job in jobs]


def _check_modality(entry: Entry, modalities: Sequence[str]) -> None:
    """Refuse a parameter that names a modality which the data does not have."""
    wanted = entry.params.get("modality")
    if wanted is not None and wanted not in modalities:
        raise ValueError(f"{entry.method.name}.modality: {unknown_name(wanted, modalities)}")


def _worker(
    pipe: Connection,
    job: Job,
    splits: Splits | None,
    folder: Path,
    checkpoint_seconds: float,
    trackers: Trackers | None,
) -> None:
    die_with_the_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent hears Ctrl-C and ends its children
    try:
        parts = job.data.load(job.fold) if splits is None else splits
        row = run_job(job, parts, folder, lambda record: pipe.send(("epoch", record)), checkpoint_seconds, trackers)
        pipe.send(("done", row))
    except OSError as found:  # the next run would meet the same disk
        pipe.send(("unwritable", {"reason": cannot_write(folder, found)}))
    except Exception as found:  # whatever went wrong in a run belongs into the report of the study
        pipe.send(("failed", {"reason": f"{type(found).__name__}: {found}"}))


def _import_for_all() -> None:
    """Load once, before the processes part, what every run would spend two seconds on."""
    import accelerate  # noqa: F401
    import safetensors.torch  # noqa: F401
    import torch._dynamo  # noqa: F401 (the optimisers load it)


def _receive(pipe: Any) -> tuple[str, dict[str, Any]]:
    try:
        return pipe.recv()
    except (EOFError, OSError):  # nothing, or half a message
        return "failed", {"reason": "the process of the run ended without a word (out of memory, or killed)"}


def _cores(jobs: Sequence[Job]) -> int:
    """How many runs the cores of this machine can carry. A GPU takes one: processes wait for each other there."""
    return (os.cpu_count() or 1) // max((job.threads for job in jobs), default=1)


def _wants_cuda(jobs: Sequence[Job]) -> bool:
    wanted = {job.entry.settings.device for job in jobs}
    return any(device.startswith("cuda") for device in wanted) or ("auto" in wanted and torch.cuda.is_available())
