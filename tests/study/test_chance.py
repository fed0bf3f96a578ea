"""What leaves nothing to chance is run once on each fold, whatever the seeds of the others."""

from pathlib import Path
from typing import Any

import pytest

from equipoise.deploy import Predictor, load_saved_model
from equipoise.measure.faults import accuracy_under_faults, training_statistics
from equipoise.study.budget import budget_line
from equipoise.study.compare import compare
from equipoise.study.job import shipped_decision
from equipoise.study.registry import entries
from equipoise.study.store import Store
from equipoise.study.study import plan
from small_study import DATA, SHORT, results

QUIET: dict[str, Any] = {"workers": 1, "quiet": True}


@pytest.mark.parametrize(
    ("method", "words", "by_chance"),
    [
        ("instant", [], False),
        ("auto", ["epochs=0"], False),  # as where so few steps are affordable that nothing is trained
        ("auto", ["epochs=0", "refit=true"], False),
        ("auto", ["epochs=2"], True),
        ("ew", ["epochs=0"], True),  # the weights it starts from are drawn
        ("ensemble", ["epochs=2"], True),
    ],
)
@pytest.mark.parametrize("folds", [[None], [0, 1, 2]])
def test_a_run_for_each_seed_only_where_something_is_drawn(
    method: str, words: list[str], by_chance: bool, folds: list[int | None]
) -> None:
    jobs, splits = plan(entries([method], words), DATA, [3, 4], folds, measure="quick")
    seeds = [3, 4] if by_chance else [None]
    assert [(job.fold, job.seed) for job in jobs] == [(fold, seed) for fold in folds for seed in seeds]
    assert len({job.config for job in jobs}) == len(jobs)
    assert all(("seed" in job.name) == by_chance for job in jobs)
    assert ("no training" in budget_line(jobs, splits)) == (not by_chance)


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[dict[str, Any]]]:
    folder = tmp_path_factory.mktemp("both")
    return folder, compare(entries(["instant", "ew"], SHORT), DATA, [0, 1], folder, **QUIET)


def test_rows_are_as_many_as_runs(both: tuple[Path, list[dict[str, Any]]]) -> None:
    _, rows = both
    assert [(row["label"], row["seed"]) for row in rows] == [("instant", None), ("ew", 0), ("ew", 1)]


def test_rows_say_the_decision_by_which_predict_and_an_exported_graph_answer(
    both: tuple[Path, list[dict[str, Any]]],
) -> None:
    folder, rows = both
    for row in rows:
        run = Store(folder).run_folder(row["config"])
        answers = Predictor(load_saved_model(run)).predict({"easy": [0.0] * 8})
        assert row["ships"] == load_saved_model(run).deployable().output_names[0] == answers.decision


@pytest.mark.parametrize(
    ("numbers", "decision"),
    [
        ({"fused": 0.5, "committee": 0.4}, "committee"),
        ({"fused": None, "committee": 0.4}, "committee"),
        ({"fused": 0.5, "committee": None}, "fused"),
        ({"fused": 0.5}, "fused"),
    ],
)
def test_what_has_no_committee_ships_its_fused_decision(numbers: dict[str, Any], decision: str) -> None:
    assert shipped_decision({"validation": numbers, "test": {}}) == decision
    assert shipped_decision({"test": numbers}) == decision
    assert shipped_decision({"validation": None, "test": numbers}) == decision


def test_more_seeds_and_other_seeds_are_no_further_run_of_it(both: tuple[Path, list[dict[str, Any]]]) -> None:
    folder, rows = both
    again = compare(entries(["instant", "ew"], SHORT), DATA, [0, 1, 2], folder, **QUIET)
    assert again[:3] == rows
    assert [(row["label"], row["seed"]) for row in again[3:]] == [("ew", 2)]
    alone = compare(entries(["instant"], [*SHORT, "epochs=9"]), DATA, [17], folder, **QUIET)  # as it trains none
    assert alone == rows[:1]
    assert len(Store(folder).rows()) == 4


def test_a_run_whose_row_is_lost_is_made_again_to_the_same_bits(
    both: tuple[Path, list[dict[str, Any]]], tmp_path: Path
) -> None:
    _, rows = both
    (again,) = compare(entries(["instant"], SHORT), DATA, [5, 6], tmp_path, **QUIET)
    assert results(again) == results(rows[0])


def test_its_faults_are_drawn_as_those_of_seed_0(both: tuple[Path, list[dict[str, Any]]]) -> None:
    folder, rows = both
    splits = DATA.load(None)
    model = load_saved_model(Store(folder).run_folder(rows[0]["config"])).model
    training = training_statistics(splits.train)
    first, second = (accuracy_under_faults(model, splits.test.ready(), training, seed) for seed in (0, 1))
    assert rows[0]["test"]["faults"] == first
    assert first != second
