"""Running an ablation through the study's engine, and what came out, point by point."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

from equipoise.data.source import DataSet
from equipoise.paper.ablation import Curve, Sweep
from equipoise.report.aggregate import MeanStd, Row, RunGroup, mean_std, modalities
from equipoise.study.compare import record_command
from equipoise.study.executors import Place
from equipoise.study.job import Job
from equipoise.study.progress import Progress
from equipoise.study.store import Store
from equipoise.study.study import plan, run_study
from equipoise.study.tuning import headline
from equipoise.util.errors import BadInput, FailedRuns
from equipoise.util.processes import threads


@final
@dataclass(frozen=True)
class Point:
    """All runs of one setting.

    Args:
        line: Those that were finished.
        failed: How many were not: a step that is too large ends in a loss that is no number.
        lr: The learning rate.
    """

    line: RunGroup
    failed: int
    lr: float

    def accuracy(self, part: str) -> MeanStd | None:
        """Of the fused decision on "validation" or "test"; None unless every run was finished."""
        return None if self.failed else self.line.of(part, "fused")

    def alone(self, part: str) -> dict[str, MeanStd]:
        """Of each modality, under the protocol of the method."""
        protocol = self.line.protocol if self.line.rows else None
        if self.failed or protocol is None:
            return {}
        found = {name: self.line.of(part, protocol, name) for name in modalities(self.line.rows)}
        return {name: each for name, each in found.items() if each is not None}

    @property
    def score(self) -> float | None:
        """What the setting is chosen by: accuracy on validation, averaged over runs."""
        found = None if self.failed else mean_std(headline(row["validation"]) for row in self.line.rows)
        return found.mean if found else None


@final
@dataclass(frozen=True)
class Outcome:
    """An ablation that was run.

    Args:
        sweep: What was asked.
        data: The name of the data set.
        about: How the data was cut, in words.
        seeds: How many.
        folds: How many; 0 for the one fixed cut.
        points: What came out, by label.
    """

    sweep: Sweep
    data: str
    about: str
    seeds: int
    folds: int
    points: Mapping[str, Point]

    def along(self, curve: Curve) -> dict[Any, Point]:
        """The points of a curve, by the value of its parameter."""
        return {value: self.points[label] for value, label in curve.labels.items()}

    def chosen(self, curve: Curve) -> Any:
        """The value that validation would choose, the first of equals; None where no run was finished."""
        scores = {value: point.score for value, point in self.along(curve).items() if point.score is not None}
        return max(scores, key=scores.__getitem__, default=None)


@threads(1)  # before data is loaded: processes that share memory must not inherit a pool of threads
def run(
    sweep: Sweep,
    source: DataSet,
    seeds: int,
    out: Path,
    *,
    folds: bool = False,
    workers: int | None = None,
    on: Place | None = None,
    quiet: bool = False,
    command: str | None = None,
) -> Outcome:
    """Run what is not done yet, and collect everything that was asked for.

    Args:
        sweep: What to run.
        source: The data.
        seeds: One run each, for every point and fold.
        out: Folder for everything that is written.
        folds: Every fold instead of the one fixed cut.
        workers: Runs side by side; None for one per core, or as many as the GPUs carry.
        on: Where they take place, if not on this machine.
        quiet: Show no progress.
        command: What was typed, to be recorded beside the results; None where nothing was.

    Raises:
        FailedRuns: If not a single run was finished, or one failed for another reason than a loss that is no number.
            That some settings diverge is part of the answer.
    """
    if folds and not source.folds:
        raise BadInput(f"{source.name} has no folds: it has no groups to cut by; leave out --folds, or give a group")
    store = Store(out)
    cuts = list(range(source.folds)) if folds else [None]
    jobs, splits = plan(sweep.points, source, range(seeds), cuts, measure="quick", on=on)
    record_command(out, command)
    done = {row["config"] for row in store.rows()}
    reasons: list[str] = []

    def watch(kind: str, job: Job, content: dict[str, Any]) -> None:
        reasons.extend([content["reason"]] if kind == "failed" else [])
        progress.event(kind, job, content)

    with Progress(sum(job.config not in done for job in jobs), "runs", quiet=quiet) as progress:
        try:
            run_study(jobs, splits, store, workers=workers, on=on, on_event=watch)
        except FailedRuns:
            known = {row["config"] for row in store.rows()}
            diverged = all(reason.startswith(FloatingPointError.__name__) for reason in reasons)
            if not diverged or not any(job.config in known for job in jobs):
                raise
    about = splits[cuts[0]].about if not folds else f"{source.folds} folds"
    points = collect(sweep, jobs, store.rows())
    return Outcome(sweep, source.name, about, seeds, len(cuts) if folds else 0, points)


def collect(sweep: Sweep, jobs: Sequence[Job], rows: Sequence[Row]) -> dict[str, Point]:
    """The rows of each point. A folder may hold other runs as well, which are left alone."""
    by_config = {row["config"]: row for row in rows}
    found = {}
    for entry in sweep.points:
        own = [by_config.get(job.config) for job in jobs if job.entry.label == entry.label]
        finished = tuple(row for row in own if row is not None and not _diverged(row))
        found[entry.label] = Point(RunGroup(entry.label, finished), len(own) - len(finished), entry.settings.lr)
    return found


def _diverged(row: Row) -> bool:
    """Whether the fused loss of a finished run is no number any more; its answers are the first class then."""
    validation = row["validation"]
    return validation.get("fused") is not None and validation.get("fused_loss") is None
