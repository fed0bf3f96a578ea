"""The budget of a command, told before it starts."""

from collections.abc import Sequence

from equipoise.balance.optimum import RECORDED
from equipoise.data.feed import epoch_steps
from equipoise.study.job import FoldSplits, Job
from equipoise.study.portfolio import CANDIDATES, trainings_of


def budget_line(waiting: Sequence[Job], splits: FoldSplits, trials: int = 0) -> str:
    """Say how many trainings and steps some runs take, and what nothing is chosen by.

    Args:
        waiting: The runs that are not done.
        splits: The data of each fold.
        trials: Trainings that tune the runs before.
    """
    trainings = [(job, epochs) for job in waiting for epochs in trainings_of(job.entry, splits[job.fold].task.kind)]
    # One uni-modal run serves all that compare with it on the same data with the same settings.
    compared = [job for job in waiting if job.entry.params.get("optimum") in RECORDED]
    trainings += [
        (job, job.entry.settings.passes) for job in {(j.fold, j.entry.settings): j for j in compared}.values()
    ]
    steps = sum(
        epochs * epoch_steps(len(splits[job.fold].train), job.entry.settings.batch) for job, epochs in trainings
    )
    ways = {job.entry.method.way for job in waiting}
    instant = "heads in closed form, " if ways & {"instant", "auto"} else ""
    tuning = f"{trials:,} trials on validation data, " if trials else ""
    auto = f" ({', '.join(CANDIDATES)} by successive halving on validation data)" if "auto" in ways else ""
    count = len(trainings)
    work = (
        f"{count:,} training{'s' if count > 1 else ''}{auto}, at most {steps:,} optimiser steps"
        if count
        else "no training"
    )
    on_test = any(splits[job.fold].selects_on_test for job in waiting)
    chosen = "epochs are" if on_test else "nothing is"
    where = "on the test part" + (", as its protocol was published" if on_test else "")
    return f"budget: {tuning}{instant}{work}; {chosen} chosen {where}"
