"""Running a table of the paper: first λ and μ on validation data, then every method; what is done is kept."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, final

from equipoise.data.splits import Splits
from equipoise.paper.published import PaperTable
from equipoise.paper.reproduce import MIMO, Recipe
from equipoise.report.aggregate import Row, mean_std
from equipoise.study.compare import record_command
from equipoise.study.executors import Place, place_of
from equipoise.study.job import Job
from equipoise.study.progress import Progress
from equipoise.study.registry import Entry
from equipoise.study.store import Store
from equipoise.study.study import plan, run_study
from equipoise.study.tuning import headline
from equipoise.util.errors import BadInput, FailedRuns
from equipoise.util.files import inside, write_atomic
from equipoise.util.processes import threads

PLAN, GRID_FOLDER = "plan.json", "grid"
DIVERGED = FloatingPointError.__name__

Parameters = dict[str, Any]
Configs = list[str]


@final
@dataclass(frozen=True)
class Plan:
    """What was asked for, kept beside the results, so that a table can be printed from any part of them.

    Args:
        table: Its name.
        scale: "full" or "small".
        data: The name of the data.
        about: How it was cut, in words.
        command: How it was started.
        workers: Runs side by side, as asked for; None for one per core, or as many as the GPUs carry.
        seeds: How many.
        grid_seeds: Runs per point of the grid.
        choice: Where λ and μ come from: "grid", "paper" or "words".
        settings: How every model is trained.
        params: Of each method.
        departures: From the paper's settings.
        jobs: Per method the configs of its runs, by seed; those of MIMO and its control are known when λ and μ are.
        trials: Per point of the grid its parameters and the configs of its runs.
        failures: Why runs came to no end, by config.
        on: Where runs take place, as asked for; None for this machine.
    """

    table: str
    scale: str
    data: str
    about: str
    command: str
    workers: int | None
    seeds: int
    grid_seeds: int
    choice: str
    settings: Parameters
    params: dict[str, Parameters]
    departures: list[str]
    jobs: dict[str, Configs]
    trials: list[tuple[Parameters, Configs]]
    failures: dict[str, str] = field(default_factory=dict)
    on: str | None = None

    def save(self, out: Path) -> Plan:
        """Write it, whole or not at all."""
        write_atomic(out, PLAN, json.dumps(asdict(self), indent=1) + "\n")
        return self

    @classmethod
    def load(cls, out: Path) -> Plan:
        """Read it back.

        Raises:
            BadInput: If the folder holds none.
        """
        try:
            found: dict[str, Any] = json.loads((out / PLAN).read_text(encoding="utf-8"))
            trials: Any = [(params, configs) for params, configs in found.pop("trials")]
            return cls(**found, trials=trials)
        except (OSError, ValueError, TypeError, KeyError):
            raise BadInput(
                f"{out}: expected {PLAN}, as `equipoise reproduce NAME --out {shlex.quote(str(out))}` writes it at its "
                "start, found none that can be read; leave out --only-report to run what is missing"
            ) from None


@threads(1)  # before data is loaded: processes that share memory must not inherit a pool of threads
def run(
    recipe: Recipe,
    seeds: int,
    out: Path,
    *,
    command: str,
    grid_seeds: int = 1,
    workers: int | None = None,
    on: str | None = None,
    quiet: bool = False,
    typed: str | None = None,
) -> Plan:
    """Run what is not done yet. Every run ends in a row of its own, so that nothing is lost by an interruption.

    Args:
        recipe: What to run.
        seeds: One run each, for every method.
        out: Folder for everything that is written.
        command: How it was started, for captions.
        grid_seeds: Runs per point of the grid.
        workers: Runs side by side; None for one per core, or as many as the GPUs carry.
        on: Where they take place, as after ``--on``; None for this machine.
        quiet: Show no progress.
        typed: What was typed, to be recorded beside the results; None where nothing was.

    Raises:
        FailedRuns: If no run at all was finished, or none of the grid.
        BadInput: If the data does not fit, or there is no such place.
    """
    place = place_of(on)
    store = Store(out)
    jobs, splits = plan(recipe.entries, recipe.source, range(seeds), [None], measure="quick", on=place)
    _check_modalities(recipe.table, splits[None])
    record_command(out, typed)
    trials = [
        [replace(jobs[0], entry=trial, seed=seed, measure="validation") for seed in range(grid_seeds)]
        for trial in recipe.trials
    ]
    made = Plan(
        table=recipe.table.name,
        scale=recipe.scale,
        data=recipe.source.name,
        about=splits[None].about,
        command=command,
        workers=workers,
        seeds=seeds,
        grid_seeds=grid_seeds,
        choice=recipe.choice,
        settings=recipe.entries[0].settings.as_dict(),
        params={entry.label: entry.params for entry in recipe.entries},
        departures=recipe.departures,
        jobs=_configs(jobs, without=MIMO if trials else None),
        trials=[(_searched(some[0].entry), [job.config for job in some]) for some in trials],
        on=on,
    ).save(out)
    work = partial(_work, splits=splits, workers=workers, on=place, quiet=quiet)
    if trials:
        grid = Store(inside(out, GRID_FOLDER))
        failed = work([job for some in trials for job in some], grid, "λ and μ on validation data")
        made = replace(made, failures=failed).save(out)
        best = _best(made, grid.rows())
        jobs = [job if job.entry.label != MIMO else replace(job, entry=job.entry.changed(best, {})) for job in jobs]
        params = {**made.params, MIMO: {**made.params[MIMO], **best}}
        made = replace(made, jobs=_configs(jobs), params=params).save(out)
    if recipe.control:
        control = recipe.control_at(made.params[MIMO]["penalty"])
        jobs += [replace(job, entry=control) for job in jobs if job.entry.label == MIMO]
        made = replace(made, jobs=_configs(jobs), params={**made.params, control.label: control.params}).save(out)
    failed = work(jobs, store, "runs")
    made = replace(made, failures={**made.failures, **failed}).save(out)
    done = {row["config"] for row in store.rows()}
    if not any(job.config in done for job in jobs):
        raise FailedRuns("\n".join(dict.fromkeys(failed.values())))
    return made


def scores_of(made: Plan, rows: Sequence[Row]) -> list[tuple[Parameters, float | None]]:
    """What each point of the grid is judged by, validation accuracy over its seeds; None where a run came to no end."""
    known = {row["config"]: row for row in rows if not diverged(row)}
    found = []
    for params, configs in made.trials:
        there = [known[config] for config in configs if config in known]
        middle = mean_std(headline(row["validation"]) for row in there) if len(there) == len(configs) else None
        found.append((params, middle.mean if middle else None))
    return found


def diverged(row: Row) -> bool:
    """Whether the fused loss of a finished run is no number any more; its answers are the first class then."""
    validation = row["validation"]
    return validation.get("fused") is not None and validation.get("fused_loss") is None


def _work(
    jobs: Sequence[Job],
    store: Store,
    title: str,
    *,
    splits: dict[int | None, Splits],
    workers: int | None,
    on: Place | None,
    quiet: bool,
) -> dict[str, str]:
    """Run jobs; why some failed, by config."""
    done = {row["config"] for row in store.rows()}
    failed: dict[str, str] = {}
    with Progress(sum(job.config not in done for job in jobs), title, quiet=quiet) as progress:
        try:
            run_study(jobs, splits, store, workers=workers, on=on, on_event=_watching(failed, progress.event))
        except FailedRuns:
            if not failed:
                raise
    return failed


def _watching(failed: dict[str, str], tell: Callable[..., None]) -> Callable[[str, Job, dict[str, Any]], None]:
    def watch(kind: str, job: Job, content: dict[str, Any]) -> None:
        if kind == "failed":
            failed[job.config] = f"{job.name}: {content['reason']}"
        tell(kind, job, content)

    return watch


def _best(made: Plan, rows: Sequence[Row]) -> Parameters:
    """The point of the grid that validation chooses, the first of equals."""
    scores = [(score, params) for params, score in scores_of(made, rows) if score is not None]
    if not scores:
        reasons = "\n".join(dict.fromkeys(made.failures.values())) or "the loss is no number at the end of each"
        raise FailedRuns(f"no point of the grid for λ and μ came to an end; a smaller lr=… may help\n{reasons}")
    return max(scores, key=lambda each: each[0])[1]


def _searched(trial: Entry) -> Parameters:
    return {name: trial.params[name] for name in ("penalty", "smoothing")}


def _configs(jobs: Sequence[Job], without: str | None = None) -> dict[str, Configs]:
    found: dict[str, Configs] = {}
    for job in jobs:
        own = found.setdefault(job.entry.label, [])
        if job.entry.label != without:
            own.append(job.config)
    return found


def _check_modalities(table: PaperTable, splits: Splits) -> None:
    if set(splits.modalities) != set(table.modalities):
        raise BadInput(
            f"{splits.name}: expected the modalities of the paper's table, {', '.join(table.modalities)}, found "
            f"{', '.join(splits.modalities)}; give the {table.title} data with --data, or type: equipoise compare"
        )
