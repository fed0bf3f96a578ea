"""Runs in processes of this machine, on its cores or GPUs."""

from __future__ import annotations

import os
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from importlib import import_module
from typing import Any, final

from equipoise.study.executors import Executor, RunEvent, RunFunction
from equipoise.study.executors.gpu_sharing import (
    environment_for,
    free_memory,
    multi_process_service,
    runs_per_gpu,
    touched_gpu,
)
from equipoise.study.job import FoldSplits, Job, clear_up, failure_of
from equipoise.study.store import Store
from equipoise.training.launch import gpus
from equipoise.util.pool import Pool, Tell
from equipoise.util.processes import cores

LIBRARIES = ["accelerate", "safetensors.torch", "torch._dynamo"]
"""Modules that every run would spend two seconds on; the optimisers load the last one."""
KILLED = {"reason": "the process of the run ended without a word (out of memory, or killed)", "killed": True}


@final
class RunFailed(Exception):  # noqa: N818 (it says what there is)
    """A run failed in a worker; its arguments are the kind and the content of the event."""


@final
class LocalExecutor(Executor):
    """Runs jobs in worker processes.

    A worker is forked, and shares what is imported and loaded. On CPUs each run has one of its own. One that uses a
    GPU takes seconds until it can, and goes on with the next run; where this process has touched a GPU itself, it is
    forked off a server that has not, and loads the data again.

    Args:
        run: Does a job.
        splits: The data of each fold.
        store: Knows the folder of each run.
        limit: Workers at once.
        gpus: GPUs that they are dealt out to; 0 for none.
    """

    def __init__(self, run: RunFunction, splits: FoldSplits, store: Store, limit: int, gpus: int = 0) -> None:
        super().__init__(run, splits, store, limit)
        from_server = bool(gpus) and touched_gpu()
        environments = [environment_for(gpu if gpus > 1 else None) for gpu in range(gpus)]
        self._pool = Pool(
            partial(_work, run, {} if from_server else dict(splits), store, bool(gpus)),
            limit,
            reuse=bool(gpus),
            initialize=partial(_set_environment, environments) if gpus else None,
            preload=[__name__, *LIBRARIES] if from_server else None,
        )

    def __exit__(self, *_: object) -> None:
        self._pool.__exit__()

    def _start(self, job: Job) -> None:
        self._pool.submit(job)

    def _stop(self, job: Job) -> None:
        self._pool.cancel(job)

    def _events(self) -> Iterator[RunEvent]:
        for job, kind, content in self._pool.events():
            if kind in ("message", "done"):
                yield job, "epoch" if kind == "message" else kind, content
            elif kind == "died":
                yield job, "failed", KILLED
            elif isinstance(content, RunFailed):
                yield job, *content.args
            else:
                raise content


def _set_environment(environments: Sequence[dict[str, str]], slot: int) -> None:
    os.environ.update(environments[slot % len(environments)])


def _work(run: RunFunction, splits: FoldSplits, store: Store, reused: bool, job: Job, tell: Tell) -> dict[str, Any]:
    """Do a run in a worker; `splits` keeps what is loaded here for the next one."""
    folder = store.run_folder(job.config)
    try:
        if job.fold not in splits:
            splits[job.fold] = job.data.load(job.fold)
        row = run(job, splits[job.fold], folder, tell)
    except Exception as error:
        raise RunFailed(*failure_of(error, folder)) from None
    if reused:
        clear_up()
    return row


def import_libraries() -> None:
    """Import libraries once, before the workers are forked."""
    for name in LIBRARIES:
        import_module(name)


def _use_cuda(devices: set[str]) -> bool:
    return any(device.startswith("cuda") for device in devices) or ("auto" in devices and gpus() > 0)


@contextmanager
def local_executor(
    run: RunFunction, jobs: Sequence[Job], splits: FoldSplits, store: Store, workers: int | None
) -> Generator[LocalExecutor, None, None]:
    """Make the executor of some jobs: a worker per core, or as many as the GPUs carry at the same time."""
    if jobs:
        import_libraries()
    devices = {job.entry.settings.device for job in jobs}
    # Over how many GPUs runs are dealt out: one, where somebody chose it by its number.
    dealt = 0 if not _use_cuda(devices) else 1 if any(":" in device for device in devices) else max(1, gpus())
    with multi_process_service() if dealt and workers != 1 and len(jobs) > 1 else nullcontext(False) as shared:
        # Where processes take turns on a GPU, one is as fast as several.
        room = dealt or max(1, cores() // max((job.threads for job in jobs), default=1))
        if shared and not workers:
            entries, data = [job.entry for job in jobs], next(iter(splits.values()))
            room = max(1, min(dealt * runs_per_gpu(entries, data, free_memory(), cores()), cores()))
        limit = workers or room
        with LocalExecutor(partial(run, workers=min(limit, len(jobs))), splits, store, limit, dealt) as executor:
            yield executor
