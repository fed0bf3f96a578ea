"""Equal tuning for a comparison, where every method gets the same number of trials; and the space of a search.

Trials are judged on validation data only.
"""

import itertools
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple, get_args

import torch

from equipoise.models.fusion_model import Unimodal
from equipoise.models.metrics import METRICS, Metric
from equipoise.study.executors import Cluster
from equipoise.study.job import FoldSplits, Job
from equipoise.study.registry import WITH_COMMAS, Entry, check_trained, own_name
from equipoise.study.registry import entries as entries_of
from equipoise.study.store import Store
from equipoise.study.study import run_progress, run_study
from equipoise.training.presets import Preset
from equipoise.util.errors import BadInput, FailedRuns, collect

RATES = (1.0, 0.3, 3.0)
"""Learning rates that every method may try, as multiples of the one in the settings."""
DIGITS = 4  # of a number that is tried, so that a person can type it
SPAN = 10.0  # the learning rate is searched between its tenth and its tenfold, where no word says otherwise
INTERVAL = re.compile(r"(?P<low>.+?)\.\.(?P<high>.+?)(?P<log>:log)?")


def trials(entry: Entry, count: int) -> list[Entry]:
    """Return the settings that a method tries: its own first, then others of its grid in an order drawn once for all.

    The grid is that of the method's tried values times three learning rates. A smaller grid is tried whole.
    """
    tried = entry.method.tried
    names = [name for name in tried if name not in entry.fixed]
    space = [tried[name] for name in names]
    grid = [
        entry.changed(dict(zip(names, values, strict=True)), {"lr": entry.settings.lr * rate})
        for rate, *values in itertools.product(RATES, *space)
    ]
    order = torch.randperm(len(grid), generator=torch.Generator().manual_seed(0)).tolist()
    different = {_key(trial): trial for trial in [entry, *(grid[place] for place in order)]}
    return list(different.values())[:count]


def tune(
    jobs: Sequence[Job],
    splits: FoldSplits,
    store: Store,
    count: int,
    *,
    workers: int | None = None,
    on: Cluster | None = None,
    quiet: bool = False,
) -> list[Job]:
    """Return the same jobs with each method's best trial of its fold in place of its entry.

    Args:
        jobs: Every run of a comparison.
        splits: The data of each fold.
        store: Where the trials are kept, apart from the results.
        count: Trials per method and fold.
        workers: Runs at the same time.
        on: The cluster, if not this machine.
        quiet: Show no progress.
    """
    planned = {
        key: [replace(job, entry=trial, seed=0, measure="validation") for trial in trials(job.entry, count)]
        for key, job in {(job.entry.label, job.fold): job for job in jobs}.items()
    }
    every = [job for some in planned.values() for job in some]
    try:
        with run_progress(store.missing(job.config for job in every), "tuning on validation data", quiet=quiet) as tell:
            run_study(every, splits, store, workers=workers, on=on, on_event=tell)
    except FailedRuns:
        # A trial that diverges has lost, no more: only a method that fails at every setting stops the comparison.
        judged = {row["config"] for row in store.rows()}
        if not all(any(job.config in judged for job in some) for some in planned.values()):
            raise
    merits = {row["config"]: merit(row) for row in store.rows()}
    best = {key: max(some, key=lambda job: merits.get(job.config, -math.inf)).entry for key, some in planned.items()}
    return [replace(job, entry=best[job.entry.label, job.fold]) for job in jobs]


def headline(validation: dict[str, Any]) -> float | None:
    """Return the score of a trial: the metric of the fused decision, or the mean of the modalities where none is fused.

    None where the metric cannot be told of the validation part.
    """
    if validation.get("fused") is not None:
        return validation["fused"]
    alone = next(validation[view] for view in get_args(Unimodal) if validation.get(view))
    known = [value for value in alone.values() if value is not None]
    return sum(known) / len(known) if known else None


def merit(row: dict[str, Any]) -> float:
    """Return the score of a row, as a number of which larger is better, whatever its metric."""
    return METRICS[row.get("metric", "accuracy")].merit(headline(row["validation"]))


def _key(entry: Entry) -> str:
    return repr((sorted(entry.params.items()), sorted(entry.settings.as_dict().items(), key=lambda item: item[0])))


class Interval(NamedTuple):
    """Numbers between two limits, both of which count.

    Args:
        low: The least.
        high: The largest.
        log: Whether each power of ten is tried as often as the next.
    """

    low: float
    high: float
    log: bool

    def suggest(self, trial: Any, name: str) -> Any:
        """Draw a number for a trial of Optuna."""
        if isinstance(self.low, int) and isinstance(self.high, int):
            return trial.suggest_int(name, self.low, self.high, log=self.log)
        value = trial.suggest_float(name, self.low, self.high, log=self.log)
        return min(max(float(f"{value:.{DIGITS}g}"), self.low), self.high)

    def holds(self, value: Any) -> bool:
        """Tell whether a value lies within."""
        return isinstance(value, (int, float)) and self.low <= value <= self.high

    def __str__(self) -> str:
        return f"{as_typed(self.low)}..{as_typed(self.high)}{':log' if self.log else ''}"


class Choice(NamedTuple):
    """Some values.

    Args:
        values: All of them.
    """

    values: tuple[Any, ...]

    def suggest(self, trial: Any, name: str) -> Any:
        """Draw a value for a trial of Optuna."""
        return trial.suggest_categorical(name, self.values)

    def holds(self, value: Any) -> bool:
        """Tell whether a value is among them."""
        return value in self.values

    def __str__(self) -> str:
        return ",".join(map(as_typed, self.values))


class Search(NamedTuple):
    """A search of parameters and settings.

    Args:
        base: The method with everything that is not searched; its own values are tried first.
        space: The values that are searched, by the names one types.
    """

    base: Entry
    space: dict[str, Interval | Choice]

    def suggest(self, trial: Any) -> dict[str, Any]:
        """Draw values for a trial of Optuna.

        Raises:
            BadInput: If the file of a search that is resumed has a value for this trial that was not asked for.
        """
        values = {key: one.suggest(trial, key) for key, one in self.space.items()}
        if wrong := [f"{key}={values[key]!r}" for key, one in self.space.items() if not one.holds(values[key])]:
            raise BadInput(f"a trial has {', '.join(wrong)}, which was not asked for; choose another folder with --out")
        return values

    def at(self, values: dict[str, Any]) -> Entry:
        """Return the method with these values."""
        entry = self.base
        for key, value in values.items():
            entry = entry.with_value(key, value)
        return entry.changed({}, {}, " ".join(f"{key}={as_typed(value)}" for key, value in values.items()))

    def start(self) -> dict[str, Any] | None:
        """Return the method's own values; None where they are outside the space."""
        values = {key: self.base.value_at(key) for key in self.space}
        return values if all(one.holds(values[key]) for key, one in self.space.items()) else None


class SearchTrial(NamedTuple):
    """One trial of a search.

    Args:
        number: In the order they were begun.
        values: That were tried.
        state: "finished", "pruned", "diverged", "failed", or "killed": its process was, and the same command runs it
            again.
        score: The metric on validation, at the end or when it was pruned; None where there is none.
        epochs: That it trained.
        reason: Why it failed or was killed.
    """

    number: int
    values: dict[str, Any]
    state: str
    score: float | None
    epochs: int
    reason: str = ""


class SearchResult(NamedTuple):
    """The result of a search.

    Args:
        search: The space.
        data: The name of the data set.
        about: How it was cut, in words.
        judged_on: Validation samples.
        seed: Of every run.
        trials: In their order.
        importance: The share of each parameter in what decides whether a trial is among the best; none where there are
            too few trials to tell.
        metric: By which trials are judged.
    """

    search: Search
    data: str
    about: str
    judged_on: int
    seed: int
    trials: list[SearchTrial]
    importance: dict[str, float]
    metric: Metric = METRICS["accuracy"]

    @property
    def best(self) -> SearchTrial:
        """The first of the best that were finished."""
        finished = (one for one in self.trials if one.state == "finished")
        return max(finished, key=lambda one: self.metric.merit(one.score))


def search_of(method: str, words: Sequence[str], preset: Preset | None = None) -> Search:
    """Return the search that words ask for, or raise one message with everything that is wrong with them.

    Args:
        method: Whose parameters.
        words: ``penalty=1..100:log`` searches between two limits, ``smoothing=0.01,0.1`` among some values,
            ``epochs=20`` sets one. Where no word searches, the method's own search space is taken, and the learning
            rate.
        preset: Settings and parameters where no word sets them.
    """
    searched = [word for word in words if _searches(word)]
    fixed = [word for word in words if word not in searched]
    (base,) = collect(lambda: entries_of([method], fixed, preset)[0])
    check_trained([base], "tune")
    read = partial(_read, method, preset)
    return Search(base, dict(collect(*(partial(read, word) for word in searched or _default_words(base, fixed)))))


def as_typed(value: Any) -> str:
    """Write a value as one types it, with all its digits."""
    if isinstance(value, float):
        return repr(int(value)) if value.is_integer() and abs(value) < 1e6 else repr(value)
    return str(value).lower() if isinstance(value, bool) or value is None else str(value)


def _searches(word: str) -> bool:
    key, _, text = word.partition("=")
    return (".." in text or "," in text) and own_name(key) not in WITH_COMMAS


def _default_words(base: Entry, fixed: Iterable[str]) -> list[str]:
    """Return the words of a usual search: the values that the method's author tries, and the learning rate."""
    is_set = {own_name(word.partition("=")[0]) for word in fixed}
    words = [
        f"{base.method.name}.{name}={_spanned(some)}" for name, some in base.method.tried.items() if name not in is_set
    ]
    if "lr" not in is_set:
        low, high = (
            as_typed(float(f"{rate:.{DIGITS}g}")) for rate in (base.settings.lr / SPAN, base.settings.lr * SPAN)
        )
        words.append(f"lr={low}..{high}:log")
    if not words:
        raise BadInput("expected something to look for, such as lr=0.001..0.1:log, found every usual parameter set")
    return words


def _spanned(values: Sequence[Any]) -> str:
    """Write the range that positive numbers span, and other values as they are."""
    numbers = [one for one in values if isinstance(one, (int, float)) and not isinstance(one, bool) and one > 0]
    if len({*numbers}) > 1 and len(numbers) == len(values):
        return f"{as_typed(min(values))}..{as_typed(max(values))}:log"
    return ",".join(map(as_typed, values))


def _read(method: str, preset: Preset | None, word: str) -> tuple[str, Interval | Choice]:
    key, _, text = word.partition("=")

    def value(text: str) -> Any:
        return entries_of([method], [f"{key}={text}"], preset)[0].value_at(key)

    if ".." not in text:
        return key, Choice(tuple(dict.fromkeys(collect(*(partial(value, one) for one in text.split(","))))))
    limits = INTERVAL.fullmatch(text)
    if limits is None:
        raise BadInput(f"{word}: expected limits such as {key}=0.001..0.1, with :log behind them where powers count")
    low, high = collect(partial(value, limits["low"]), partial(value, limits["high"]))
    if any(isinstance(end, bool) or not isinstance(end, (int, float)) or not math.isfinite(end) for end in (low, high)):
        raise BadInput(f"{word}: expected numbers as limits; name the values instead, with commas between")
    if low >= high:
        raise BadInput(f"{word}: expected the smaller limit first, found {as_typed(low)} and {as_typed(high)}")
    if limits["log"] and low <= 0:
        raise BadInput(f"{word}: expected limits above zero for :log, found {as_typed(low)}")
    return key, Interval(low, high, bool(limits["log"]))
