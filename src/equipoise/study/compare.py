"""A comparison from start to rows: plan it, tune where asked, run what is not done yet, and show how far it is."""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from equipoise.data.source import DataSet
from equipoise.study import tuning
from equipoise.study.executors.cluster import Cluster
from equipoise.study.registry import Entry, all_methods
from equipoise.study.store import Store, cannot_write
from equipoise.study.study import plan, run_progress, run_study
from equipoise.training import launch
from equipoise.training.launch import device_of
from equipoise.training.trackers import Trackers
from equipoise.util.errors import BadInput, collect
from equipoise.util.files import inside, open_inside
from equipoise.util.processes import threads

COMMAND = "command.txt"
"""The file with the commands that made the results of a folder, and their dates."""


@threads(1)  # before data is loaded: processes that share memory must not inherit a pool of threads
def compare(
    chosen: Sequence[Entry],
    source: DataSet,
    seeds: Sequence[int],
    out: Path,
    *,
    folds: bool = False,
    tune: int = 0,
    quick: bool = False,
    workers: int | None = None,
    on: Cluster | None = None,
    trackers: Trackers | None = None,
    quiet: bool = False,
    command: str | None = None,
) -> list[dict[str, Any]]:
    """Run every method with every seed, and return the rows.

    Args:
        chosen: The lines of the comparison.
        source: The data.
        seeds: One run for each, per line and fold.
        out: Folder for everything that is written.
        folds: Every fold instead of the one fixed cut.
        tune: Trials per method and fold.
        quick: Leave out sensor faults and the costlier protocols.
        workers: Runs at the same time; None for one per core, or as many as the GPUs carry.
        on: The cluster, if not this machine.
        trackers: Where runs are logged while they train. Trials are not: they are many, and no result.
        quiet: Show no progress.
        command: As it was typed, to be recorded beside the results; None where there is none.
    """
    if folds and not source.folds:
        raise BadInput(f"{source.name} has no folds: it has no groups to cut by; leave out --folds, or give a group")
    if on is None and launch.launched():  # elsewhere, every run is a process of its own
        launch.init(*collect(lambda: device_of(chosen[0].settings)))
    with launch.one_rank_at_a_time():
        store = Store(out)
    quiet = quiet or not launch.is_main()
    cuts = list(range(source.folds)) if folds else [None]
    jobs, splits = plan(chosen, source, seeds, cuts, measure="quick" if quick else "all", on=on)
    if launch.is_main():
        if trackers is not None:
            trackers.try_out()
        record_command(out, command)
    if tune:
        with launch.one_rank_at_a_time():
            trials = Store(inside(out, "tuning"))
        jobs = tuning.tune(chosen, jobs, splits, trials, tune, workers=workers, on=on, quiet=quiet)
    with run_progress(store.missing(job.config for job in jobs), "runs", quiet=quiet) as tell:
        return run_study(jobs, splits, store, workers=workers, on=on, on_event=tell, trackers=trackers)


def record_command(out: Path, command: str | None) -> None:
    """Add a command to those that made the results of a folder, as a line below its date."""
    if command is None:
        return
    entry = f"# {datetime.now().astimezone().isoformat(timespec='seconds')}\n{command}\n"
    try:
        with os.fdopen(open_inside(out, COMMAND, os.O_WRONLY | os.O_CREAT | os.O_APPEND), "wb") as file:
            file.write(entry.encode(errors="backslashreplace"))
    except OSError as error:
        raise BadInput(cannot_write(out / COMMAND, error)) from None


def controls(chosen: Sequence[Entry], source: DataSet) -> list[Entry]:
    """Return the lines that have to stand beside MIMO and beside every claim on missing sensors."""
    known, base = all_methods(), chosen[0].settings
    penalty = next((entry.params["penalty"] for entry in chosen if "penalty" in entry.params), 10.0)
    weight = penalty / len(source.load(None).modalities)
    ew = Entry("ew at λ/K", known["ew"], {"weight": weight}, base, fixed=("weight",))
    dropout = Entry("msl + dropout", known["msl"], {}, base.changed({"dropout": 0.3}))
    return [ew, dropout]
