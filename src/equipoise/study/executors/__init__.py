"""Executors of the runs of a study: processes of this machine, a Ray cluster, or array jobs of Slurm."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import Any

from typing_extensions import Self

from equipoise.data.splits import Splits
from equipoise.study.job import Job
from equipoise.study.store import Store

RunFunction = Callable[..., dict[str, Any]]
"""Does a job: (job, splits, folder, on_epoch) → row."""
RunEvent = tuple[Job, str, dict[str, Any]]
"""A job, what happened to it ("epoch", "done", "failed" or "unwritable"), and the record, the row or the reason.

A run that "failed" because its process was killed is not to blame: it has "killed" set."""


class Executor(ABC):
    """Runs jobs. Use it as a context: runs that are not done at its end are stopped.

    Args:
        run: Does a job.
        splits: The data of each fold.
        store: Knows the folder of each run.
        limit: Runs at once; None for as many as fit.
    """

    def __init__(
        self, run: RunFunction, splits: dict[int | None, Splits], store: Store, limit: int | None = None
    ) -> None:
        self.run, self.splits, self.store, self.limit = run, splits, store, limit

    def __enter__(self) -> Self:
        return self

    @abstractmethod
    def __exit__(self, *_: object) -> None: ...

    @property
    @abstractmethod
    def busy(self) -> bool:
        """Whether any run is not done."""

    @property
    @abstractmethod
    def has_room(self) -> bool:
        """Whether another run may start."""

    @abstractmethod
    def start(self, job: Job) -> None:
        """Start a run."""

    @abstractmethod
    def stop(self, job: Job) -> None:
        """Stop a run before its end."""

    @abstractmethod
    def events(self) -> Iterator[RunEvent]:
        """Wait until something happens to a run, and tell of it."""
