"""Runs of the paper's experiments: a run that diverges is an answer, not an error."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from equipoise.data.splits import Splits
from equipoise.study.executors.cluster import Cluster
from equipoise.study.job import Job
from equipoise.study.store import Store
from equipoise.study.study import run_progress, run_study
from equipoise.util.errors import FailedRuns


def run_jobs(
    jobs: Sequence[Job],
    splits: Mapping[int | None, Splits],
    store: Store,
    title: str = "runs",
    *,
    workers: int | None = None,
    on: Cluster | None = None,
    quiet: bool = False,
) -> dict[str, str]:
    """Run the jobs that are not done yet, and return the reasons of those that failed, by config.

    Args:
        jobs: The runs.
        splits: The data of each fold.
        store: The rows.
        title: Of the progress bar.
        workers: Runs side by side; None for one per core, or as many as the GPUs carry.
        on: The cluster, if not this machine.
        quiet: Show no progress.
    """
    reasons: dict[str, str] = {}

    def watch(kind: str, job: Job, content: dict[str, Any]) -> None:
        if kind == "failed":
            reasons[job.config] = f"{job.name}: {content['reason']}"
        tell(kind, job, content)

    with run_progress(store.missing(job.config for job in jobs), title, quiet=quiet) as tell:
        try:
            run_study(jobs, dict(splits), store, workers=workers, on=on, on_event=watch)
        except FailedRuns:
            if not reasons:
                raise
    return reasons


def in_words(value: Any) -> str:
    """Print a value as one would type it."""
    return f"{value:g}" if isinstance(value, float) else str(value).lower() if isinstance(value, bool) else str(value)


def count(number: int, noun: str) -> str:
    """Print a number with its noun.

    Example:
        >>> count(1, "seed"), count(3, "seed")
        ('1 seed', '3 seeds')
    """
    return f"{number} {noun}{'s' if number > 1 else ''}"
