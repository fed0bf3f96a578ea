"""Equal tuning: every method gets the same number of trials, and they are judged on validation data only."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from equipoise.data.splits import Splits
from equipoise.study.executors import Place
from equipoise.study.job import Job
from equipoise.study.registry import Entry
from equipoise.study.store import Store
from equipoise.study.study import Event, run_study
from equipoise.util.errors import FailedRuns

RATES = (1.0, 0.3, 3.0)
"""Learning rates that every method may try, as multiples of the one in the settings."""


def trials(entry: Entry, count: int) -> list[Entry]:
    """The settings a method tries: its own first, then others of its grid in an order drawn once for all.

    The grid is the method's `search` space times three learning rates. A method with a smaller grid tries all of it.
    """
    names = [name for name in entry.method.make.search if name not in entry.fixed]
    space = [entry.method.make.search[name] for name in names]
    grid = [
        entry.changed(dict(zip(names, values, strict=True)), {"lr": entry.settings.lr * rate})
        for rate, *values in itertools.product(RATES, *space)
    ]
    order = torch.randperm(len(grid), generator=torch.Generator().manual_seed(0)).tolist()
    different = {_key(trial): trial for trial in [entry, *(grid[place] for place in order)]}
    return list(different.values())[:count]


def plan_trials(entries: Sequence[Entry], jobs: Sequence[Job], count: int) -> dict[tuple[str, int | None], list[Job]]:
    """The runs that are tried for each label and fold.

    Args:
        entries: The lines of the comparison.
        jobs: Every run of it.
        count: Trials per method and fold.
    """
    of_fold = {job.fold: job for job in jobs}
    return {
        (entry.label, fold): [replace(job, entry=trial, seed=0, measure="validation") for trial in trials(entry, count)]
        for entry in entries
        for fold, job in of_fold.items()
    }


def tune(
    entries: Sequence[Entry],
    jobs: Sequence[Job],
    splits: dict[int | None, Splits],
    store: Store,
    count: int,
    *,
    workers: int | None = None,
    on: Place | None = None,
    on_event: Event | None = None,
) -> list[Job]:
    """The same jobs with each method's best trial of its fold in place of its entry.

    Args:
        entries: The lines of the comparison.
        jobs: Every run of it.
        splits: The data of each fold.
        store: Where the trials are kept, apart from the results.
        count: Trials per method and fold.
        workers: Runs side by side.
        on: Where they take place, if not on this machine.
        on_event: Told of everything that happens.
    """
    planned = plan_trials(entries, jobs, count)
    every = [job for some in planned.values() for job in some]
    try:
        run_study(every, splits, store, workers=workers, on=on, on_event=on_event)
    except FailedRuns:
        # A trial that diverges has lost, no more: only a method that fails at every setting stops the comparison.
        judged = {row["config"] for row in store.rows()}
        if not all(any(job.config in judged for job in some) for some in planned.values()):
            raise
    scores = {row["config"]: headline(row["validation"]) for row in store.rows()}
    best = {key: max(some, key=lambda job: scores.get(job.config, -math.inf)).entry for key, some in planned.items()}
    return [replace(job, entry=best[job.entry.label, job.fold]) for job in jobs]


def headline(validation: dict[str, Any]) -> float:
    """What a trial is judged by: the fused accuracy, or the mean of the modalities where none is fused."""
    if validation.get("fused") is not None:
        return validation["fused"]
    alone = next(validation[view] for view in ("head", "detached", "split") if validation.get(view))
    return sum(alone.values()) / len(alone)


def _key(entry: Entry) -> str:
    return repr((sorted(entry.params.items()), sorted(entry.settings.as_dict().items(), key=lambda item: item[0])))
