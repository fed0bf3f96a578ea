"""Ablations: accuracy over a method's parameters, one at a time or as a grid; which runs, and their results."""

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, final

from equipoise.data.source import DataSet
from equipoise.paper.claims import in_words
from equipoise.report.aggregate import MeanStd, Row, RunGroup, mean_std, modalities
from equipoise.study.compare import record_command
from equipoise.study.executors import Cluster
from equipoise.study.job import DIVERGED, Job, diverged
from equipoise.study.registry import WITH_COMMAS, Entry, entries, method_of, own_name
from equipoise.study.store import Store
from equipoise.study.study import folds_of, plan, resolved_entries, run_jobs
from equipoise.study.tuning import headline
from equipoise.training.presets import Preset
from equipoise.util.errors import BadInput, FailedRuns, collect
from equipoise.util.processes import threads

PAPER = {"penalty": ("1", "10", "100"), "smoothing": ("0.001", "0.01", "0.1", "1")}
"""The grid in the paper's appendix."""

ENLARGING = ("penalty", "weight")
"""Parameters that enlarge the step of the encoders, so that a learning rate divided by 1 + λ is the fair control."""


class Curve(NamedTuple):
    """Runs that differ in one parameter.

    Args:
        axis: The parameter.
        labels: Its values in order, each with the label of its runs.
        others: In a grid, where the other parameters stand.
        divided: Whether the learning rate was divided by 1 + λ.
        around: Whether all other parameters stand at the method's base values.
    """

    axis: str
    labels: dict[Any, str]
    others: dict[str, Any]
    divided: bool
    around: bool

    @property
    def title(self) -> str:
        """The parameter that varies, and those that do not."""
        rate = ", learning rate / (1 + λ)" if self.divided else ""
        fixed = ", ".join(f"{name}={in_words(value)}" for name, value in self.others.items())
        return f"{self.axis}{f' at {fixed}' if fixed else ''}{rate}"


@final
@dataclass(frozen=True)
class Sweep:
    """All runs of an ablation.

    Args:
        base: The method at its base values.
        points: One entry for each setting that is run, none twice.
        curves: How they are read.
        grid: Whether all combinations are run, or one parameter moves at a time.
    """

    base: Entry
    points: list[Entry]
    curves: list[Curve]
    grid: bool


def sweep_of(
    method: str, words: Sequence[str], preset: Preset | None = None, *, grid: bool = False, divided: bool = False
) -> Sweep:
    """Plan the ablation that words ask for, or raise one error with every problem.

    Args:
        method: Whose parameters.
        words: ``penalty=1,10,100`` varies a parameter or a setting, ``epochs=20`` sets one. Where no word varies
            anything, the paper's grid is taken for MIMO, and the method's own search space for others.
        preset: What settings and parameters are where no word sets them.
        grid: All combinations, instead of one parameter at a time around the base values.
        divided: Run each λ with the learning rate divided by 1 + λ, too.
    """
    fixed = [word for word in words if not _varies(word)]
    varied = [word for word in words if _varies(word)] or collect(partial(_usual, method, fixed))[0]
    texts = {key: value.split(",") for key, _, value in (word.partition("=") for word in varied)}
    single = [f"{key}={text}" for key, some in texts.items() for text in some]
    (base,), *_ = collect(
        partial(entries, [method], fixed, preset), *(partial(entries, [method], [word], preset) for word in single)
    )
    axes = {key: _ordered(base, key, some) for key, some in texts.items()}
    enlarging = next((key for key in axes if own_name(key) in ENLARGING and base.has_parameter(key)), None)
    if divided and enlarging is None:
        raise BadInput(
            "--scaled-rate divides the learning rate by 1 + λ for every λ that is tried; expected several values of "
            f"{' or '.join(ENLARGING)}, such as penalty=1,10,100, found {', '.join(axes)} varied"
        )
    grid = grid and len(axes) > 1
    lines = list(_grid_lines(axes)) if grid else [(key, {}) for key in axes]
    points: dict[str, Entry] = {}
    curves = []
    for key, others in lines:
        curves.append(_curve(base, key, axes[key], others, None, points))
        if divided and enlarging is not None and (grid or key == enlarging):
            curves.append(_curve(base, key, axes[key], others, enlarging, points))
    return Sweep(base, list(points.values()), curves, grid)


def _varies(word: str) -> bool:
    key, _, text = word.partition("=")
    return "," in text and own_name(key) not in WITH_COMMAS


def _usual(method: str, fixed: Sequence[str]) -> list[str]:
    """Return the words to vary where nobody says: all that is usually tried and was not set."""
    known = method_of(method)
    space: Mapping[str, Iterable[Any]] = PAPER if method == "mimo" else known.tried
    is_set = {own_name(word.partition("=")[0]) for word in fixed}
    found = [f"{method}.{name}={','.join(map(in_words, some))}" for name, some in space.items() if name not in is_set]
    if not found:
        raise BadInput(
            f"expected something to vary, such as lr=0.003,0.01,0.03, found only {' '.join(fixed) or method}"
        )
    return found


def _ordered(base: Entry, key: str, texts: Iterable[str]) -> dict[Any, Entry]:
    """Return the values of a parameter, numbers from small to large, each with the base moved there."""
    found = {}
    for text in texts:
        entry = _moved(base, key, text)
        found[entry.value_at(key)] = entry
    numbers = all(isinstance(value, (int, float)) for value in found)
    return dict(sorted(found.items())) if numbers else found


def _curve(
    base: Entry,
    key: str,
    values: Mapping[Any, Entry],
    others: Mapping[str, Any],
    divided_by: str | None,
    points: dict[str, Entry],
) -> Curve:
    """Return the runs along one line, and add them to the points."""
    labels = {}
    for value in values:
        entry = base
        for each, at in {**others, key: value}.items():
            entry = entry.with_value(each, at)
        if divided_by is not None:
            entry = entry.changed({}, {"lr": entry.settings.lr / (1 + entry.value_at(divided_by))})
        entry = entry.changed({}, {}, _label(base, entry))
        known = points.setdefault(entry.label, entry)
        if known != entry:
            raise BadInput(f"two of the values look alike when six digits are shown ({entry.label}); leave one out")
        labels[value] = entry.label
    around = all(base.value_at(each) == at for each, at in others.items())
    return Curve(
        own_name(key), labels, {own_name(each): at for each, at in others.items()}, divided_by is not None, around
    )


def _grid_lines(axes: Mapping[str, Mapping[Any, Entry]]) -> Iterable[tuple[str, dict[str, Any]]]:
    """Yield every line through the grid that is parallel to an axis."""
    for key in axes:
        rest = [each for each in axes if each != key]
        for values in itertools.product(*(axes[each] for each in rest)):
            yield key, dict(zip(rest, values, strict=True))


def _label(base: Entry, entry: Entry) -> str:
    """Return what differs from the base, so that a run has the same label in every ablation and is done once."""
    params = {name: value for name, value in entry.params.items() if value != base.params[name]}
    before = base.settings.as_dict()
    run = {
        f"run.{name}" if name in base.params else name: value
        for name, value in entry.settings.as_dict().items()
        if value != before[name]
    }
    return " ".join(f"{name}={in_words(value)}" for name, value in {**params, **run}.items()) or base.label


def _moved(base: Entry, key: str, text: str) -> Entry:
    (one,) = entries([base.method.name], [f"{key}={text}"])
    return base.with_value(key, one.value_at(key))


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
        """Return that of the fused decision on "validation" or "test"; None unless every run was finished."""
        return None if self.failed else self.line.of(part, "fused")

    def alone(self, part: str) -> dict[str, MeanStd]:
        """Return the accuracy of each modality, under the protocol of the method."""
        protocol = self.line.protocol if self.line.rows else None
        if self.failed or protocol is None:
            return {}
        found = {name: self.line.of(part, protocol, name) for name in modalities(self.line.rows)}
        return {name: each for name, each in found.items() if each is not None}

    @property
    def score(self) -> float | None:
        """Validation accuracy, averaged over runs, by which a setting is chosen."""
        found = None if self.failed else mean_std(headline(row["validation"]) for row in self.line.rows)
        return found.mean if found else None


@final
@dataclass(frozen=True)
class AblationResult:
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
        """Return the points of a curve, by the value of its parameter."""
        return {value: self.points[label] for value, label in curve.labels.items()}

    def chosen(self, curve: Curve) -> Any:
        """Return the value that validation would choose, the first of equals; None where no run was finished."""
        scores = {value: point.score for value, point in self.along(curve).items() if point.score is not None}
        return max(scores, key=scores.__getitem__, default=None)


@threads(1)  # before data is loaded: processes that share memory must not inherit a pool of threads
def run(
    sweep: Sweep,
    source: DataSet,
    seeds: int,
    out: Path,
    *,
    folds: bool | int = False,
    workers: int | None = None,
    on: Cluster | None = None,
    quiet: bool = False,
    command: str | None = None,
) -> AblationResult:
    """Run what is not done yet, and collect everything that was asked for.

    Args:
        sweep: What to run.
        source: The data.
        seeds: One run each, for every point and fold.
        out: Folder for everything that is written.
        folds: Every fold instead of the one fixed cut; a number cuts the data into as many.
        workers: Runs side by side; None for one per core, or as many as the GPUs carry.
        on: Where they take place, if not on this machine.
        quiet: Show no progress.
        command: What was typed, to be recorded beside the results; None where nothing was.

    Raises:
        FailedRuns: If not a single run was finished, or one failed for another reason than a loss that is no number.
            That some settings diverge is part of the answer.
    """
    source, cuts = folds_of(source, folds)
    store = Store(out)
    jobs, splits = plan(sweep.points, source, range(seeds), cuts, measure="quick", on=on)
    record_command(out, command)
    reasons = run_jobs(jobs, splits, store, workers=workers, on=on, quiet=quiet)
    done = {row["config"] for row in store.rows()}
    if not all(DIVERGED in reason for reason in reasons.values()) or not any(job.config in done for job in jobs):
        raise FailedRuns("\n".join(reasons.values()))
    about = splits[cuts[0]].about if not folds else f"{source.folds} folds"
    points = points_of(sweep, jobs, store.rows())
    (base,) = resolved_entries([sweep.base], splits[cuts[0]])
    return AblationResult(replace(sweep, base=base), source.name, about, seeds, len(cuts) if folds else 0, points)


def points_of(sweep: Sweep, jobs: Sequence[Job], rows: Sequence[Row]) -> dict[str, Point]:
    """Return the rows of each point. A folder may hold other runs as well, which are left alone."""
    by_config = {row["config"]: row for row in rows}
    found = {}
    for entry in sweep.points:
        own = [by_config.get(job.config) for job in jobs if job.entry.label == entry.label]
        finished = tuple(row for row in own if row is not None and not diverged(row))
        found[entry.label] = Point(RunGroup(entry.label, finished), len(own) - len(finished), entry.settings.lr)
    return found
