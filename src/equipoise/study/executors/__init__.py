"""Executors of the runs of a study: processes of this machine, ranks of a launcher, a Ray cluster, or Slurm."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import Any

from typing_extensions import Self

from equipoise.study.job import FoldSplits, Job
from equipoise.study.store import Store

RunFunction = Callable[..., dict[str, Any]]
"""Does a job: (job, splits, folder, on_epoch) → row."""
RunEvent = tuple[Job, str, dict[str, Any]]
"""A job, what happened to it ("epoch", "done", "failed" or "unwritable"), and the record, the row or the reason.

A run that "failed" because its process was killed is not to blame: it has "killed" set."""


class Executor(ABC):
    """Runs jobs. Use it as a context: runs that are not done at its end are stopped; their checkpoints are whole.

    Args:
        run: Does a job.
        splits: The data of each fold.
        store: Knows the folder of each run.
        limit: Runs at once; None for as many as fit.
    """

    def __init__(self, run: RunFunction, splits: FoldSplits, store: Store, limit: int | None = None) -> None:
        self.run, self.splits, self.store, self.limit = run, splits, store, limit
        self.running: dict[str, Job] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for job in list(self.running.values()):
            self.stop(job)

    @property
    def has_room(self) -> bool:
        """True where another run may start."""
        return self.limit is None or len(self.running) < self.limit

    def start(self, job: Job) -> None:
        """Start a run."""
        self.running[job.config] = job
        self._start(job)

    def stop(self, job: Job) -> None:
        """Stop a run before its end."""
        self._stop(self.running.pop(job.config))

    def events(self) -> Iterator[RunEvent]:
        """Wait until something happens to a run, and tell of it."""
        for job, kind, content in self._events():
            if kind != "epoch":
                del self.running[job.config]
            yield job, kind, content

    @abstractmethod
    def _start(self, job: Job) -> None: ...

    @abstractmethod
    def _stop(self, job: Job) -> None: ...

    @abstractmethod
    def _events(self) -> Iterator[RunEvent]: ...
