"""The runs of a study, one after the other, each by all processes together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from equipoise.balance import collectives
from equipoise.data.splits import Splits
from equipoise.study.job import ERROR, Job, keep_traceback
from equipoise.study.store import Store, cannot_write, is_of_the_disk
from equipoise.training.checkpoint import damage_in
from equipoise.training.launch import broadcast, is_main
from equipoise.util.errors import BadInput


def run_together(
    jobs: Sequence[Job],
    splits: dict[int | None, Splits],
    store: Store,
    run: Callable[..., dict[str, Any]],
    tell: Callable[[str, Job, dict[str, Any]], None],
) -> list[dict[str, Any]]:
    """Run what is not done yet, and give the rows of all jobs, in their order, on every rank.

    Whatever goes wrong in one process ends it, and with it the launcher ends all: then they can start again together.

    Args:
        jobs: What is wanted.
        splits: The data of each fold.
        store: Where rank 0 keeps rows.
        run: Does a job: (job, splits, folder, on_epoch) → row, which is rank 0's.
        tell: Told on rank 0 of everything that happens.

    Raises:
        BadInput: If the folder holds damaged results or checkpoints, cannot be written, or belongs to a study that is
            running.
    """
    with store.locked() if is_main() else nullcontext():
        done, problem = broadcast(_found(jobs, store) if is_main() else ({}, ""))
        if problem:
            raise BadInput(problem)
        for job in {job.config: job for job in jobs if job.config not in done}.values():
            if is_main():
                tell("start", job, {})
            folder = store.run_folder(job.config)
            row = _attempt(job, splits[job.fold], folder, run, tell)
            if is_main():
                store.append(row)
                tell("done", job, row)
            done[job.config] = broadcast(row)
    return [done[job.config] for job in jobs]


def _found(jobs: Sequence[Job], store: Store) -> tuple[dict[str, dict[str, Any]], str]:
    """The rows there are, and what keeps the study from going on."""
    try:
        done = {row["config"]: row for row in store.rows()}
        waiting = [job for job in jobs if job.config not in done]
        return done, "\n".join(each for job in waiting if (each := damage_in(store.run_folder(job.config))))
    except BadInput as problem:
        return {}, str(problem)


def _attempt(
    job: Job,
    splits: Splits,
    folder: Path,
    run: Callable[..., dict[str, Any]],
    tell: Callable[[str, Job, dict[str, Any]], None],
) -> dict[str, Any]:
    try:
        return run(job, splits, folder, lambda record: tell("epoch", job, record))
    except Exception as found:
        if is_of_the_disk(found, folder):
            raise BadInput(cannot_write(folder, found)) from found
        keep_traceback(found, folder, ERROR if is_main() else f"error-rank-{collectives.rank()}.txt")
        raise
