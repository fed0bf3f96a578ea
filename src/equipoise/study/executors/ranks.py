"""The runs of a study, one after the other, each by all ranks of a launcher together."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, final

from equipoise.balance import collectives
from equipoise.study.executors import Executor, RunEvent, RunFunction
from equipoise.study.job import ERROR, FoldSplits, Job, pending, save_traceback
from equipoise.study.store import Store, cannot_write, is_disk_error
from equipoise.training.launch import broadcast, is_main
from equipoise.util.errors import BadInput


@final
class RanksExecutor(Executor):
    """Runs a job on all ranks; every rank gets the row of rank 0.

    Whatever goes wrong in one process ends it, and with it the launcher ends all: then they can start again together.

    Args:
        run: Does a job; the row is rank 0's.
        splits: The data of each fold.
        store: Knows the folder of each run.
        on_event: Called after each epoch, while a run trains.
    """

    def __init__(
        self, run: RunFunction, splits: FoldSplits, store: Store, on_event: Callable[[str, Job, dict[str, Any]], None]
    ) -> None:
        super().__init__(run, splits, store, limit=1)
        self._on_event = on_event

    def _start(self, job: Job) -> None: ...

    def _stop(self, job: Job) -> None: ...

    def _events(self) -> Iterator[RunEvent]:
        (job,) = self.running.values()
        folder = self.store.run_folder(job.config)
        try:
            row = self.run(job, self.splits[job.fold], folder, partial(self._on_event, "epoch", job))
        except Exception as error:
            if is_disk_error(error, folder):
                raise BadInput(cannot_write(folder, error)) from error
            save_traceback(error, folder, ERROR if is_main() else f"error-rank-{collectives.rank()}.txt")
            raise
        yield job, "done", broadcast(row)


def pending_on_ranks(jobs: Sequence[Job], store: Store) -> tuple[dict[str, dict[str, Any]], list[Job]]:
    """Return what `pending` returns on rank 0, or raise its problem, on every rank."""
    done, problem = {}, ""
    if is_main():
        try:
            done, _ = pending(jobs, store)
        except BadInput as error:
            problem = str(error)
    done, problem = broadcast((done, problem))
    if problem:
        raise BadInput(problem)
    return done, list({job.config: job for job in jobs if job.config not in done}.values())
