"""The runs of a study, one after the other, each by all ranks together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

from equipoise.balance import collectives
from equipoise.data.splits import Splits
from equipoise.study.executors import RunFunction
from equipoise.study.job import ERROR, Job, pending, save_traceback
from equipoise.study.store import Store, cannot_write, is_disk_error
from equipoise.training.launch import broadcast, is_main
from equipoise.util.errors import BadInput


def run_together(
    jobs: Sequence[Job],
    splits: dict[int | None, Splits],
    store: Store,
    run: RunFunction,
    on_event: Callable[[str, Job, dict[str, Any]], None],
) -> list[dict[str, Any]]:
    """Run what is not done yet, and return the rows of all jobs, in their order, on every rank.

    Whatever goes wrong in one process ends it, and with it the launcher ends all: then they can start again together.

    Args:
        jobs: The runs.
        splits: The data of each fold.
        store: Where rank 0 keeps rows.
        run: Does a job; the row is rank 0's.
        on_event: Called on rank 0 with everything that happens.

    Raises:
        BadInput: If the folder holds damaged results or checkpoints, cannot be written, or belongs to a study that is
            running.
    """

    def tell(kind: str, job: Job, content: dict[str, Any]) -> None:
        if is_main():
            on_event(kind, job, content)

    with store.locked() if is_main() else nullcontext():
        done, problem = broadcast(_rows_and_problem(jobs, store) if is_main() else ({}, ""))
        if problem:
            raise BadInput(problem)
        for job in {job.config: job for job in jobs if job.config not in done}.values():
            tell("start", job, {})
            folder = store.run_folder(job.config)
            try:
                row = run(job, splits[job.fold], folder, lambda record, job=job: tell("epoch", job, record))
            except Exception as error:
                if is_disk_error(error, folder):
                    raise BadInput(cannot_write(folder, error)) from error
                save_traceback(error, folder, ERROR if is_main() else f"error-rank-{collectives.rank()}.txt")
                raise
            if is_main():
                store.append(row)
            tell("done", job, row)
            done[job.config] = broadcast(row)
    return [done[job.config] for job in jobs]


def _rows_and_problem(jobs: Sequence[Job], store: Store) -> tuple[dict[str, dict[str, Any]], str]:
    """Return the rows there are, and what keeps the study from going on."""
    try:
        return pending(jobs, store)[0], ""
    except BadInput as problem:
        return {}, str(problem)
