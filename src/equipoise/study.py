"""The study: methods × data × seeds × folds, run side by side, resumed after any interruption, collected row by row."""

from __future__ import annotations

import ctypes
import multiprocessing as mp
import os
import platform
import signal
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, final

import torch

from equipoise.catalogue import DataSet, Entry
from equipoise.data.splits import Splits
from equipoise.job import Job as Job
from equipoise.job import Measure, run_job
from equipoise.store import Store, cannot_write

Event = Callable[[str, Job, dict[str, Any]], None]
"""Called with "start", "epoch", "done" or "failed", the job, and what there is to say."""


@final
class FailedRuns(RuntimeError):  # noqa: N818 (it says what there is)
    """Some runs of a study failed; the message says which and why. The others are kept."""


def plan(
    entries: Sequence[Entry],
    data: DataSet,
    seeds: Sequence[int],
    folds: Sequence[int | None],
    threads: int = 1,
    measure: Measure = "all",
) -> tuple[list[Job], dict[int | None, Splits]]:
    """Every run of a comparison, and the data they share, checked."""
    splits = {fold: data.load(fold).check() for fold in folds}
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
) -> list[dict[str, Any]]:
    """Run what is not done yet, and give the rows of all jobs, in their order.

    Args:
        jobs: What is wanted.
        splits: The data of each fold.
        store: Where rows are kept.
        workers: Runs side by side; None for one per core.
        on_event: Told of everything that happens.
        checkpoint_seconds: Least time between two checkpoints of a run.

    Raises:
        FailedRuns: After all others are done, if some runs failed.
        ValueError: If the folder holds damaged results, cannot be written, or belongs to a study that is running.
    """
    tell = on_event or (lambda *_: None)
    with store.locked():
        done = {row["config"]: row for row in store.rows()}
        waiting = list({job.config: job for job in jobs if job.config not in done}.values())
        if waiting:
            _import_for_all()
        failures: list[str] = []
        running: dict[Connection, tuple[mp.Process, Job]] = {}
        context: Any = mp.get_context("spawn" if _wants_cuda(jobs) else "fork")
        limit = workers or max(1, (os.cpu_count() or 1) // max((job.threads for job in jobs), default=1))
        try:
            while waiting or running:
                while waiting and len(running) < limit:
                    job = waiting.pop(0)
                    ours, theirs = context.Pipe(duplex=False)
                    arguments = (theirs, job, splits[job.fold], store.run_folder(job.config), checkpoint_seconds)
                    process = context.Process(target=_worker, args=arguments, daemon=True)
                    _start_deaf(process)
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
                        raise ValueError(content["reason"])
                    else:
                        failures.append(f"{job.entry.label}, seed {job.seed}, fold {job.fold}: {content['reason']}")
                    tell(kind, job, content)
        finally:
            for process, _ in running.values():
                process.kill()  # checkpoints are whole at any moment
            for process, _ in running.values():
                process.join()
    if failures:
        raise FailedRuns("\n".join(failures))
    return [done[job.config] for job in jobs]


def _worker(pipe: Connection, job: Job, splits: Splits, folder: Path, checkpoint_seconds: float) -> None:
    _die_with_the_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent hears Ctrl-C and ends its children
    try:
        row = run_job(job, splits, folder, lambda record: pipe.send(("epoch", record)), checkpoint_seconds)
        pipe.send(("done", row))
    except OSError as found:  # the next run would meet the same disk
        pipe.send(("unwritable", {"reason": cannot_write(folder, found)}))
    except Exception as found:  # whatever went wrong in a run belongs into the report of the study
        pipe.send(("failed", {"reason": f"{type(found).__name__}: {found}"}))


def _die_with_the_parent() -> None:
    """A killed study must not leave runs behind that write beside the next one."""
    if platform.system() == "Linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)
    parent = mp.parent_process()
    if parent is not None and os.getppid() != parent.pid:  # it died before it could be asked for
        os._exit(1)


def _import_for_all() -> None:
    """Load once, before the processes part, what every run would spend two seconds on."""
    import accelerate  # noqa: F401
    import safetensors.torch  # noqa: F401
    import torch._dynamo  # noqa: F401 (the optimisers load it)


def _start_deaf(process: mp.Process) -> None:
    """Start a run that does not hear Ctrl-C, not even before it can say so itself."""
    heard = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        process.start()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, heard)


def _receive(pipe: Any) -> tuple[str, dict[str, Any]]:
    try:
        return pipe.recv()
    except (EOFError, OSError):  # nothing, or half a message
        return "failed", {"reason": "the process of the run ended without a word (out of memory, or killed)"}


def _wants_cuda(jobs: Sequence[Job]) -> bool:
    wanted = {job.entry.settings.device for job in jobs}
    return any(device.startswith("cuda") for device in wanted) or ("auto" in wanted and torch.cuda.is_available())
