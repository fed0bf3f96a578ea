"""A table of the paper, run again: its methods, the settings they share, the grid for λ and μ, and the results."""

from __future__ import annotations

import itertools
import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, final

from equipoise.data.prepare.prepared import Prepared
from equipoise.data.sets import PUBLISHED
from equipoise.data.source import DataSet, PreparedFolder, data_set
from equipoise.data.splits import Splits
from equipoise.measure.timing import BARE
from equipoise.paper.claims import in_words
from equipoise.paper.published import GRID, SMALL_GRID, TABLES, PaperTable, small_preset, stand_in
from equipoise.report.aggregate import Row, RunGroup, dig, mean_std
from equipoise.study.compare import record_command
from equipoise.study.executors import cluster_of
from equipoise.study.job import SEE, Job, diverged
from equipoise.study.registry import Entry, all_methods, entries
from equipoise.study.store import Store
from equipoise.study.study import plan, run_jobs
from equipoise.study.tuning import headline
from equipoise.training.presets import Preset, all_presets, preset_for
from equipoise.util.errors import BadInput, FailedRuns, collect
from equipoise.util.files import inside, write_atomic
from equipoise.util.processes import threads

NO_DEPARTURE = ("device", "feed", "deterministic", "compile", "capture")
"""Settings that decide where and how fast, not what is computed."""

MIMO, CONTROL = "mimo", "EW at λ/K"
SEARCHED = tuple(GRID)
PLAN, GRID_FOLDER = "plan.json", "grid"

Params = dict[str, Any]
Configs = list[str]


# -- what is run --


@final
@dataclass(frozen=True)
class Reproduction:
    """All that is run for a table.

    Args:
        table: The table of the paper.
        scale: "full" on the data itself, "small" on a stand-in.
        source: The data.
        entries: One per method, in the paper's order; MIMO's λ and μ are replaced where a grid is searched.
        trials: MIMO at each point of the grid; none where nothing is searched.
        choice: Where λ and μ come from.
        departures: What differs from the settings of the paper, in words.
        control: Run EW at MIMO's λ/K beside it: λ also enlarges the step, and this tells the two apart.
    """

    table: PaperTable
    scale: Literal["full", "small"]
    source: DataSet
    entries: list[Entry]
    trials: list[Entry]
    choice: Literal["grid", "paper", "words"]
    departures: list[str]
    control: bool = False

    def control_at(self, penalty: float) -> Entry:
        """Return equal weights that are as large together as MIMO's."""
        params = {"weight": penalty / len(self.table.modalities)}
        return Entry(CONTROL, all_methods()["ew"], params, self.entries[0].settings, fixed=("weight",))


def full_reproduction(
    table: PaperTable, words: Sequence[str], data: str | None, split: str | None, preset: str, *, grid: bool
) -> Reproduction:
    """Plan the runs on the data itself, or raise one error with every problem.

    Args:
        table: The table of the paper.
        words: ``epochs=10`` changes the settings of the preset, and is shown as a departure from the paper.
        data: What ``--data`` says; None for the data set of the table.
        split: How prepared data is cut; None for the paper's way, where the data has it.
        preset: By name; "auto" is that of the table.
        grid: Search λ and μ, instead of taking the paper's.

    Raises:
        BadInput: With what to get and to type, where the data is not there.
    """
    name = table.name if preset == "auto" else preset
    source, lines = collect(
        lambda: _data(table, data, split),
        lambda: entries(table.methods, words, _as_published(preset_for(name, table.name), table)),
    )
    published = entries(table.methods, (), _as_published(all_presets()[table.name], table))
    trials, choice = _trials(lines, words, GRID if grid else {})
    return Reproduction(table, "full", source, lines, trials, choice, _departures(lines, published, trials))


def small_reproduction(table: PaperTable, words: Sequence[str], *, grid: bool) -> Reproduction:
    """Plan the same runs on a made-up stand-in for the data, with tiny encoders and a small grid."""
    (lines,) = collect(lambda: entries(table.methods, words, _as_published(small_preset(table), table)))
    trials, choice = _trials(lines, words, SMALL_GRID if grid else {})
    return Reproduction(table, "small", stand_in(table), lines, trials, choice, [])


def _as_published(preset: Preset | None, table: PaperTable) -> Preset | None:
    """Add what the paper took from AGM's code, and its rule that μ doubles until exponents fit.

    That code is in single precision throughout.
    """
    if preset is None:
        return None
    added = {**table.borrowed, MIMO: {"overflow": "double"}}
    both = {name: {**added.get(name, {}), **preset.params.get(name, {})} for name in {**added, **preset.params}}
    return replace(preset, settings=preset.settings.changed({"precision": "fp32"}), params=both)


def _data(table: PaperTable, data: str | None, split: str | None) -> DataSet:
    """Return the data, cut as in the paper where nobody says otherwise and it can be."""
    try:
        source = data_set(data or table.name, split)
    except BadInput as error:
        if data is not None and (Path(data).exists() or Path(data).suffix):
            raise
        how = "" if data is None else f"\nTo prepare it there: equipoise prepare {table.name} --source DIR --out {data}"
        raise BadInput(
            f"{error}{how}\nDIR is the folder of the originals. {PUBLISHED[table.name].layout}\n"
            f"Without them, the same runs on a made-up stand-in: equipoise reproduce {table.name} --scale small"
        ) from None
    prepared = Prepared.open(source.load.folder) if isinstance(source.load, PreparedFolder) else None
    if split is None and prepared is not None and table.split in prepared.protocols:
        return data_set(data or table.name, table.split)
    return source


def _trials(lines: Sequence[Entry], words: Sequence[str], grid: Mapping[str, Sequence[float]]) -> tuple[Any, Any]:
    """Return MIMO at each point of the grid, and where λ and μ come from; what a word sets is not searched."""
    is_set = {word.partition("=")[0].removeprefix(f"{MIMO}.") for word in words}
    free = {name: values for name, values in grid.items() if name not in is_set}
    if not free:
        return [], "words" if is_set & set(GRID) else "paper"
    base = next(entry for entry in lines if entry.label == MIMO)
    points = [dict(zip(free, values, strict=True)) for values in itertools.product(*free.values())]
    labels = [" ".join([MIMO, *(f"{name}={in_words(value)}" for name, value in point.items())]) for point in points]
    return [base.changed(point, {}, label) for point, label in zip(points, labels, strict=True)], "grid"


def _departures(lines: Sequence[Entry], published: Sequence[Entry], trials: Sequence[Entry]) -> list[str]:
    """List every setting and parameter that is not that of the paper's preset."""
    before, after = published[0].settings.as_dict(), lines[0].settings.as_dict()
    changes = [(name, after[name], before[name]) for name in before if name not in NO_DEPARTURE]
    for own, paper in zip(lines, published, strict=True):
        searched = {name for name in GRID if own.label == MIMO and len({trial.params[name] for trial in trials}) > 1}
        params = {name: value for name, value in paper.params.items() if name not in searched}
        changes += [(f"{own.label}.{name}", own.params[name], value) for name, value in params.items()]
    return [f"{name}={in_words(own)} instead of {in_words(old)}" for name, own, old in changes if own != old]


# -- running it --


@final
@dataclass(frozen=True)
class Plan:
    """The runs that were asked for, kept beside the results, so that a table can be printed from any part of them.

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
        on: The cluster, as asked for; None for this machine.
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
    settings: Params
    params: dict[str, Params]
    departures: list[str]
    jobs: dict[str, Configs]
    trials: list[tuple[Params, Configs]]
    failures: dict[str, str] = field(default_factory=dict)
    on: str | None = None

    def save(self, out: Path) -> Plan:
        """Write it, whole or not at all."""
        write_atomic(out, PLAN, json.dumps(asdict(self), indent=1) + "\n")
        return self

    @classmethod
    def load(cls, out: Path) -> Plan:
        """Read it back; an error says what to type where the folder holds none."""
        try:
            content: dict[str, Any] = json.loads((out / PLAN).read_text(encoding="utf-8"))
            trials: Any = [(params, configs) for params, configs in content.pop("trials")]
            return cls(**content, trials=trials)
        except (OSError, ValueError, TypeError, KeyError):
            raise BadInput(
                f"{out}: expected {PLAN}, as `equipoise reproduce NAME --out {shlex.quote(str(out))}` writes it at its "
                "start, found none that can be read; leave out --only-report to run what is missing"
            ) from None


@threads(1)  # before data is loaded: processes that share memory must not inherit a pool of threads
def run(
    asked: Reproduction,
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
        asked: What to run.
        seeds: One run each, for every method.
        out: Folder for everything that is written.
        command: How it was started, for captions.
        grid_seeds: Runs per point of the grid.
        workers: Runs side by side; None for one per core, or as many as the GPUs carry.
        on: The cluster, as after ``--on``; None for this machine.
        quiet: Show no progress.
        typed: The command, to be recorded beside the results; None where nothing was typed.

    Raises:
        FailedRuns: If no run at all was finished, or none of the grid.
        BadInput: If the data does not fit, or there is no such cluster.
    """
    cluster = cluster_of(on)
    store = Store(out)
    jobs, splits = plan(asked.entries, asked.source, range(seeds), [None], measure="quick", on=cluster)
    _check_modalities(asked.table, splits[None])
    record_command(out, typed)
    trials = [
        [replace(jobs[0], entry=trial, seed=seed, measure="validation") for seed in range(grid_seeds)]
        for trial in asked.trials
    ]
    made = Plan(
        table=asked.table.name,
        scale=asked.scale,
        data=asked.source.name,
        about=splits[None].about,
        command=command,
        workers=workers,
        seeds=seeds,
        grid_seeds=grid_seeds,
        choice=asked.choice,
        settings=asked.entries[0].settings.as_dict(),
        params={entry.label: entry.params for entry in asked.entries},
        departures=asked.departures,
        jobs=_configs(jobs, without=MIMO if trials else None),
        trials=[
            ({name: some[0].entry.params[name] for name in SEARCHED}, [job.config for job in some]) for some in trials
        ],
        on=on,
    ).save(out)
    work = partial(run_jobs, splits=splits, workers=workers, on=cluster, quiet=quiet)
    if trials:
        grid = Store(inside(out, GRID_FOLDER))
        failed = work([job for some in trials for job in some], store=grid, title="λ and μ on validation data")
        made = replace(made, failures=failed).save(out)
        best = _best(made, grid.rows())
        jobs = [job if job.entry.label != MIMO else replace(job, entry=job.entry.changed(best, {})) for job in jobs]
        params = {**made.params, MIMO: {**made.params[MIMO], **best}}
        made = replace(made, jobs=_configs(jobs), params=params).save(out)
    if asked.control:
        control = asked.control_at(made.params[MIMO]["penalty"])
        jobs += [replace(job, entry=control) for job in jobs if job.entry.label == MIMO]
        made = replace(made, jobs=_configs(jobs), params={**made.params, control.label: control.params}).save(out)
    failed = work(jobs, store=store)
    made = replace(made, failures={**made.failures, **failed}).save(out)
    done = {row["config"] for row in store.rows()}
    if not any(job.config in done for job in jobs):
        raise FailedRuns("\n".join(dict.fromkeys(failed.values())))
    return made


def scores_of(made: Plan, rows: Sequence[Row]) -> list[tuple[Params, float | None]]:
    """Return each point of the grid with its validation accuracy over seeds; None where a run came to no end."""
    known = {row["config"]: row for row in rows if not diverged(row)}
    scores = []
    for params, configs in made.trials:
        there = [known[config] for config in configs if config in known]
        mean = mean_std(headline(row["validation"]) for row in there) if len(there) == len(configs) else None
        scores.append((params, mean.mean if mean else None))
    return scores


def _best(made: Plan, rows: Sequence[Row]) -> Params:
    """Return the point of the grid that validation chooses, the first of equals."""
    scores = [(score, params) for params, score in scores_of(made, rows) if score is not None]
    if not scores:
        reasons = "\n".join(dict.fromkeys(made.failures.values())) or "the loss is no number at the end of each"
        raise FailedRuns(f"no point of the grid for λ and μ came to an end; a smaller lr=… may help\n{reasons}")
    return max(scores, key=lambda pair: pair[0])[1]


def _configs(jobs: Sequence[Job], without: str | None = None) -> dict[str, Configs]:
    configs: dict[str, Configs] = {job.entry.label: [] for job in jobs}
    for job in jobs:
        if job.entry.label != without:
            configs[job.entry.label].append(job.config)
    return configs


def _check_modalities(table: PaperTable, splits: Splits) -> None:
    if set(splits.modalities) != set(table.modalities):
        raise BadInput(
            f"{splits.name}: expected the modalities of the paper's table, {', '.join(table.modalities)}, found "
            f"{', '.join(splits.modalities)}; give the {table.title} data with --data, or type: equipoise compare"
        )


# -- what came out --


@final
@dataclass(frozen=True)
class ReproducedTable:
    """Everything that a report of a table is made from.

    Args:
        plan: The runs that were asked for.
        table: The table of the paper.
        lines: The runs of each row of the table that were finished, by the paper's name; empty where none was. A
            control, which the paper has not got, comes after them.
        missing: What is not there, by the same names, in words.
        scores: Validation accuracy of each point of the grid; None where it came to no end, or not yet.
    """

    plan: Plan
    table: PaperTable
    lines: Mapping[str, RunGroup]
    missing: Mapping[str, str]
    scores: Sequence[tuple[Params, float | None]]

    @property
    def beside_paper(self) -> bool:
        """True where the numbers are about the paper's data, and may stand beside the paper's."""
        return self.plan.scale == "full"

    @property
    def chosen(self) -> Params | None:
        """MIMO's λ and μ; None as long as the grid is not searched."""
        if self.plan.trials and not self.plan.jobs[MIMO]:
            return None
        return {name: self.plan.params[MIMO][name] for name in SEARCHED}


def reproduced(out: Path, name: str) -> ReproducedTable:
    """Read what a folder holds of a table, finished or not; neither data nor a GPU is needed.

    Args:
        out: A folder that `run` wrote.
        name: Of the table.

    Raises:
        BadInput: If it holds another table, or none.
    """
    made = Plan.load(out)
    if made.table != name:
        raise BadInput(f"{out}: expected runs for {name}, found those for {made.table}; give their folder with --out")
    return lines_of(made, Store(out).rows(), Store(inside(out, GRID_FOLDER)).rows() if made.trials else [])


def lines_of(made: Plan, rows: Sequence[Row], trials: Sequence[Row]) -> ReproducedTable:
    """Return the rows of each line of the table. A folder may hold other runs as well, which are left alone."""
    table = TABLES[made.table]
    known = {row["config"]: row for row in rows}
    lines, missing = {}, {}
    printed = [(row.name, row.method, row.sensor) for row in table.rows]
    for name, method, sensor in [
        *printed,
        *((other, other, None) for other in made.jobs if other not in table.methods),
    ]:
        configs = made.jobs[method]
        there = [known[config] for config in configs if config in known and not diverged(known[config])]
        lines[name] = RunGroup(name, tuple(_as_row(row, name, sensor) for row in there))
        if words := _missing(made, configs, known):
            missing[name] = words
    return ReproducedTable(made, table, lines, missing, scores_of(made, trials))


def _as_row(row: Row, name: str, sensor: str | None) -> Row:
    """Return a row under the paper's name: its own uni-modal protocol, and its times; of a sensor, that one alone."""
    test = row["test"]
    view = test["view"]
    own = {"fused": test["fused"], "view": view, view: test[view] if sensor is None else {sensor: test[view][sensor]}}
    if sensor is not None:
        return {**row, "label": name, "test": own, "time": {}}
    return {**row, "label": name, "test": {**own, "disparity": test["disparity"]}, "time": _times(row)}


def _times(row: Row) -> dict[str, dict[str, dict[str, float]]]:
    """Return t of the run and of both baselines, and the paper's time by two readings: with and without backward.

    Nothing for a run of an earlier version, whose baselines were not timed.
    """
    if dig(row, "timing", "t") is None:
        return {}
    after, update = ({line: clocks["wall"] for line, clocks in row["timing"][name].items()} for name in ("t", "update"))
    with_backward = {line: after[line] + update[line] for line in after}
    # A bare step balances nothing: what a line takes beyond its t is balancing.
    balancing = {line: max(after[line] - after[BARE], 0.0) + update[line] for line in after}
    times = {"t": after, "with backward": with_backward, "without backward": balancing}
    return {name: {line: {"wall": seconds} for line, seconds in each.items()} for name, each in times.items()}


def _missing(made: Plan, configs: Sequence[str], known: Mapping[str, Row]) -> str:
    """Say which runs are not there."""
    ended = sum(config in known and diverged(known[config]) for config in configs)
    failed = [config for config in configs if config not in known and config in made.failures]
    waiting = made.seeds - sum(config in known for config in configs) - len(failed)
    reasons = dict.fromkeys(made.failures[config].partition(": ")[2].partition(SEE)[0] for config in failed)
    counts = [(ended, "diverged"), (len(failed), f"failed ({'; '.join(reasons)})"), (waiting, "not run yet")]
    return ", ".join(f"{number} of {made.seeds} {words}" for number, words in counts if number)
