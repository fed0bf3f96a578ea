"""A comparison from start to rows, and the diagnosis of an imbalance from them."""

import math
import os
import sys
from collections.abc import Sequence
from datetime import datetime
from functools import partial
from pathlib import Path
from statistics import mean, stdev
from typing import Any, Literal, NamedTuple

from equipoise.data.source import DataSet, mark_task
from equipoise.models.metrics import METRICS
from equipoise.study import tuning
from equipoise.study.budget import budget_line
from equipoise.study.executors import Cluster
from equipoise.study.job import Measure, finite, pending
from equipoise.study.registry import Entry, all_methods, check_trained
from equipoise.study.store import Store, cannot_write
from equipoise.study.study import folds_of, plan, run_progress, run_study
from equipoise.training import launch
from equipoise.training.launch import device_of
from equipoise.training.trackers import Trackers
from equipoise.util.errors import BadInput, FailedRuns, collect
from equipoise.util.extras import needs
from equipoise.util.files import inside, open_inside
from equipoise.util.processes import threads

COMMAND = "command.txt"
"""The file with the commands that made the results of a folder, and their dates."""


def compare(
    chosen: Sequence[Entry], source: DataSet, seeds: Sequence[int], out: Path, *, folds: bool | int = False, **how: Any
) -> list[dict[str, Any]]:
    """Run every method with every seed, and return the rows.

    Args:
        chosen: The lines of the comparison.
        source: The data.
        seeds: One run for each, per line and fold; one for all of them where nothing is left to chance.
        out: Folder for everything that is written.
        folds: Every fold instead of the one fixed cut; a number cuts the data into as many.
        how: As for `compare_each`.
    """
    return compare_each([(source, chosen)], seeds, out, folds=folds, **how)


@threads(1)  # before data is loaded: processes that share memory must not inherit a pool of threads
def compare_each(
    studies: Sequence[tuple[DataSet, Sequence[Entry]]],
    seeds: Sequence[int],
    out: Path,
    *,
    folds: bool | int = False,
    tune: int = 0,
    quick: bool = False,
    workers: int | None = None,
    on: Cluster | None = None,
    trackers: Trackers | None = None,
    quiet: bool = False,
    command: str | None = None,
) -> list[dict[str, Any]]:
    """Run every method on each of several data sets with every seed, and return the rows.

    All data is read and checked before the first run begins.

    Args:
        studies: Each data set with the lines of its comparison.
        seeds: One run for each, per line and fold.
        out: Folder for everything that is written.
        folds: Every fold instead of the one fixed cut; a number cuts the data into as many.
        tune: Trials per method and fold.
        quick: Leave out sensor faults and the costlier protocols.
        workers: Runs at the same time; None for one per core, or as many as the GPUs carry.
        on: The cluster, if not this machine.
        trackers: Where runs are logged while they train. Trials are not: they are many, and no result.
        quiet: Show no progress.
        command: As it was typed, to be recorded beside the results; None where there is none.

    Raises:
        FailedRuns: After all others are done, if some runs failed.
    """
    if tune:
        collect(*(partial(check_trained, chosen, "--tune") for _, chosen in studies))
    cut = collect(*(partial(folds_of, source, folds) for source, _ in studies))
    if on is None and launch.launched():  # elsewhere, every run is a process of its own
        launch.init(*collect(lambda: device_of(studies[0][1][0].settings)))
    quiet = quiet or not launch.is_main()
    scope: Measure = "quick" if quick else "all"
    plans = collect(
        *(
            partial(plan, chosen, source, seeds, cuts, measure=scope, on=on)
            for (_, chosen), (source, cuts) in zip(studies, cut, strict=True)
        )
    )
    if trackers is not None and launch.is_main():
        trackers.try_out()
    with launch.one_rank_at_a_time():  # last of all: what is refused leaves no folder behind
        store = Store(out)
    if launch.is_main():
        record_command(out, command)
    rows: list[dict[str, Any]] = []
    failures: list[str] = []
    for (source, _), (jobs, splits) in zip(studies, plans, strict=True):
        where = f" on {source.name}" if len(studies) > 1 else ""
        try:
            if not quiet and (waiting := pending(jobs, store)[1]):
                lines = {(job.entry.label, job.fold): job.entry for job in jobs} if tune else {}
                trials = sum(len(tuning.trials(entry, tune)) for entry in lines.values())
                print(budget_line(waiting, splits, trials) + where, file=sys.stderr)
            if tune:
                with launch.one_rank_at_a_time():
                    kept = Store(inside(out, "tuning"))
                jobs = tuning.tune(jobs, splits, kept, tune, workers=workers, on=on, quiet=quiet)
            left = store.missing(job.config for job in jobs)
            with run_progress(left, f"runs{where}", quiet=quiet, where=where) as tell:
                rows += run_study(jobs, splits, store, workers=workers, on=on, on_event=tell, trackers=trackers)
        except FailedRuns as error:
            failures.append(str(error))
    if failures:
        raise FailedRuns("\n".join(failures))
    return rows


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
    weight = penalty / len(mark_task(source, [base.task]).load(None).modalities)
    ew = Entry("ew at λ/K", known["ew"], {"weight": weight}, base, fixed=("weight",))
    dropout = Entry("moddrop", known["moddrop"], known["moddrop"].parameters, base, by_all=True)
    return [ew] if any(entry.method.name == "moddrop" for entry in chosen) else [ew, dropout]


WORTH = 0.02
"""A loss of two points is worth treating; less is not."""
WORTH_OF_ERROR = 0.05
"""Of an error, which has its own units, a twentieth."""


class Gap(NamedTuple):
    """The loss of a modality in joint training, in the metric of the runs.

    Args:
        modality: Its name.
        alone: Its number when trained alone.
        joint: Its number after joint training.
        low: Lower end of the 95 % interval of what is lost; minus infinity from a single run.
        high: Upper end.
        higher: Whether larger numbers are better.
    """

    modality: str
    alone: float
    joint: float
    low: float
    high: float
    higher: bool = True

    @property
    def difference(self) -> float:
        """The loss: above zero where joint training is worse."""
        return self.alone - self.joint if self.higher else self.joint - self.alone

    @property
    def worth(self) -> float:
        """The least loss that is worth treating."""
        return WORTH if self.higher else WORTH_OF_ERROR * self.alone

    def as_dict(self) -> dict[str, Any]:
        """Return it for JSON, which has no infinity: an end that a single run cannot tell is None."""
        return finite({**self._asdict(), "difference": self.difference})


class Diagnosis(NamedTuple):
    """The answer, and the gaps that it rests on.

    Args:
        answer: Whether there is an imbalance worth treating.
        gaps: One per modality.
        advice: What to try.
    """

    answer: Literal["yes", "no", "unclear"]
    gaps: list[Gap]
    advice: str


def diagnose(joint: Sequence[dict[str, Any]], alone: Sequence[dict[str, Any]]) -> Diagnosis:
    """Compare rows of joint training with rows of uni-modal training, by the probe protocol, on the same splits.

    Args:
        joint: Rows of method msl.
        alone: Rows of method unimodal, in the same order.
    """
    gaps = []
    higher = METRICS[joint[0].get("metric", "accuracy")].higher
    for name in joint[0]["test"]["probe"]:
        single, together = ([row["test"]["probe"][name] for row in rows] for rows in (alone, joint))
        sign = 1 if higher else -1
        low, high = _interval([sign * (one - other) for one, other in zip(single, together, strict=True)])
        gaps.append(Gap(name, mean(single), mean(together), low, high, higher))
    worst = max(gaps, key=lambda gap: gap.difference / gap.worth if gap.worth else gap.difference)
    if worst.low > 0 and worst.difference >= worst.worth:
        advice = f"joint training neglects {worst.modality}: try mimo, then compare with ew and mmpareto on your folds"
        return Diagnosis("yes", gaps, advice)
    if all(gap.high < gap.worth for gap in gaps):
        return Diagnosis("no", gaps, "every sensor is used about as well as alone: keep joint training (msl)")
    return Diagnosis(
        "unclear", gaps, "the runs scatter too much to tell: use more seeds or folds (--seeds 10, --folds)"
    )


def _interval(values: Sequence[float]) -> tuple[float, float]:
    if len(values) < 2:
        return -math.inf, math.inf
    with needs("an interval", "train"):
        from scipy.special import stdtrit  # a quarter of a second that other commands need not wait

    half = float(stdtrit(len(values) - 1, 0.975)) * stdev(values) / math.sqrt(len(values))
    return mean(values) - half, mean(values) + half
