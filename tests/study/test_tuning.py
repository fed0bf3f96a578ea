"""Equal tuning, and the words that say what a search looks for."""

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from equipoise.study.registry import all_methods, entries
from equipoise.study.store import Store
from equipoise.study.study import plan
from equipoise.study.tuning import Choice, Interval, Search, as_typed, headline, merit, search_of, trials, tune
from equipoise.util.errors import BadInput
from small_study import DATA

# -- tuning --


def test_a_method_tries_its_own_settings_first_and_none_twice() -> None:
    for entry in entries(["all"]):
        found = trials(entry, 1000)
        assert found[0] == entry
        size = 3
        for values in entry.method.tried.values():
            size *= len(values)
        assert size <= len(found) <= size + 1
        assert len({repr(each) for each in found}) == len(found)
        assert trials(entry, 4) == found[:4]
        assert all(each.balancer() is not None for each in found)


def test_tuning_is_equal_and_never_sees_the_test_part(tmp_path: Path) -> None:
    chosen = entries(["ew", "msl", "unimodal"], ["epochs=1", "features=8"])
    jobs, splits = plan(chosen, DATA, [0, 1], [None, 1], measure="quick")
    closed = {fold: replace(each, test=None) for fold, each in splits.items()}
    store = Store(tmp_path)
    tuned = tune(jobs, closed, store, 3)
    rows = store.rows()
    counts = {(name, fold): 0 for name in ("ew", "msl", "unimodal") for fold in (None, 1)}
    for row in rows:
        counts[row["method"], row["fold"]] += 1
    assert set(counts.values()) == {3}
    assert not any("test" in row for row in rows)
    assert len(tuned) == len(jobs)
    for before, after in zip(jobs, tuned, strict=True):
        assert (before.fold, before.seed, before.split, before.measure) == (
            after.fold,
            after.seed,
            after.split,
            after.measure,
        )
        tried = [row for row in rows if (row["label"], row["fold"]) == (before.entry.label, before.fold)]
        best = max(merit(row) for row in tried)
        (winner, *_) = [
            row for row in tried if row["params"] == after.entry.params and row["run"] == after.entry.settings.as_dict()
        ]
        assert merit(winner) == best == headline(winner["validation"])
    assert tune(jobs, closed, store, 3) == tuned
    assert len(store.rows()) == len(rows)


def test_a_small_grid_is_tried_whole() -> None:
    (msl,) = entries(["msl"])
    assert sorted(round(each.settings.lr, 5) for each in trials(msl, 10)) == [0.003, 0.01, 0.03]


def test_a_trial_row_of_a_method_without_fused_decision_has_a_headline() -> None:
    assert headline({"fused": 0.5, "head": {"a": 0.1}}) == 0.5
    assert headline({"fused": None, "head": {"a": 0.2, "b": 0.4}}) == pytest.approx(0.3)


def test_smaller_errors_have_more_merit_and_what_cannot_be_told_has_least() -> None:
    def row(value: float | None) -> dict[str, Any]:
        return {"metric": "mae", "validation": {"fused": value, "head": {"a": value}}}

    low, high, untold = map(row, (1.5, 2.5, None))
    assert merit(low) > merit(high) > merit(untold)
    assert headline(untold["validation"]) is None
    older = {"validation": {"fused": 0.5}}  # a row without a metric is of accuracies
    assert merit(older) == 0.5 < merit({"metric": "auroc", "validation": {"fused": 0.6}})


# -- what is looked for --


def test_words_say_what_is_looked_for_and_what_is_set() -> None:
    words = ["penalty=1..100:log", "smoothing=0.01,0.1", "run.batch=16..64", "select=last,best", "epochs=7"]
    search = search_of("mimo", words)
    assert search.space == {
        "penalty": Interval(1.0, 100.0, log=True),
        "smoothing": Choice((0.01, 0.1)),
        "run.batch": Interval(16, 64, log=False),
        "select": Choice(("last", "best")),
    }
    assert search.base.settings.epochs == 7
    entry = search.at({"penalty": 3.0, "smoothing": 0.1, "run.batch": 20, "select": "best"})
    assert (entry.params["penalty"], entry.params["smoothing"]) == (3.0, 0.1)
    assert (entry.settings.batch, entry.settings.select, entry.settings.epochs) == (20, "best", 7)


@pytest.mark.parametrize("method", sorted(all_methods()))
def test_every_method_has_something_to_look_for(method: str) -> None:
    search = search_of(method, [])
    assert search.space["lr"] == Interval(0.001, 0.1, log=True)
    assert {key.rpartition(".")[2] for key in search.space} - {"lr"} == set(all_methods()[method].tried)
    assert search.start() is not None, "what the method is by itself lies in its own space"
    assert "lr" not in search_of("mimo", ["lr=0.01"]).space


def test_all_that_is_wrong_is_said_at_once() -> None:
    words = ["penalty=100..1", "lr=0..1:log", "select=last..best", "smoothing=1..x", "rate=1,2", "batch=1..2:exp"]
    with pytest.raises(BadInput) as found:
        search_of("mimo", words)
    for part in (
        "expected the smaller limit first, found 100 and 1",
        "lr should be above zero",
        "select=last..best: expected numbers as limits",
        "smoothing should be a number, found 'x'",
        "unknown setting 'rate'",
        "batch should be a whole number, found '2:exp'",
    ):
        assert part in str(found.value)
    with pytest.raises(BadInput, match="expected limits above zero for :log, found 0"):
        search_of("mimo", ["dropout=0..0.5:log"])


class Anywhere:
    """Suggests any number that Optuna may suggest."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def suggest_float(self, _: str, low: float, high: float, *, log: bool) -> float:
        assert log in (True, False)
        return self.random.choice([low, high, self.random.uniform(low, high)])

    def suggest_int(self, _: str, low: int, high: int, *, log: bool) -> int:
        assert log in (True, False)
        return self.random.randint(low, high)


@pytest.mark.parametrize("seed", range(20))
def test_what_is_suggested_lies_within_and_is_what_one_types(seed: int) -> None:
    draw = random.Random(seed)
    low = 10 ** draw.uniform(-6, 3)
    search = Search(entries(["mimo"])[0], {"lr": Interval(low, low * draw.uniform(1.0001, 50), log=True)})
    for attempt in range(20):
        values = search.suggest(Anywhere(attempt))
        assert search.space["lr"].holds(values["lr"])
        (typed,) = entries(["mimo"], [f"{key}={as_typed(value)}" for key, value in values.items()])
        assert typed.settings.lr == values["lr"] == search.at(values).settings.lr


@pytest.mark.parametrize(
    ("value", "text"), [(10.0, "10"), (0.1, "0.1"), (1e-7, "1e-07"), (True, "true"), (None, "none"), ("sgd", "sgd")]
)
def test_values_as_one_types_them(value: Any, text: str) -> None:
    assert as_typed(value) == text
