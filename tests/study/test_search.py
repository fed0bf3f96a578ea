"""Searching parameters: between the limits, on validation data alone, and on after any interruption."""

import importlib
import json
import multiprocessing as mp
import os
import shlex
import signal
import sys
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import optuna
import pytest
import torch

from equipoise.cli import main as cli
from equipoise.data.bundled import two_sensors
from equipoise.data.source import DataSet
from equipoise.data.splits import Splits
from equipoise.models.metrics import METRICS
from equipoise.report import search as search_report
from equipoise.study import search as searches
from equipoise.study.job import Job, run_job
from equipoise.study.search import STARTS, run_search
from equipoise.study.store import Store
from equipoise.study.tuning import Interval, SearchResult, SearchTrial, search_of
from equipoise.util.errors import BadInput, FailedRuns

SHORT = ["epochs=4", "features=8"]
WORDS = [*SHORT, "penalty=1..100:log", "lr=0.0001..0.3:log"]


def load(fold: int | None) -> Splits:
    return two_sensors(samples=150, seed=fold or 0)


DATA = DataSet("small", load, 10, "Small.")


def test_a_missing_package_says_what_to_type(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    monkeypatch.delitem(sys.modules, "equipoise.study.search")
    with pytest.raises(ModuleNotFoundError, match=r"type: pip install .*\[tune\]'"):
        importlib.import_module("equipoise.study.search")


# -- what is printed --


def test_the_best_is_the_first_of_the_best_that_were_finished() -> None:
    tried = [
        SearchTrial(0, {"lr": 0.01}, "finished", 0.7, 4),
        SearchTrial(1, {"lr": 0.02}, "pruned", 0.9, 2),
        SearchTrial(2, {"lr": 0.03}, "finished", 0.8, 4),
        SearchTrial(3, {"lr": 0.04}, "diverged", None, 1),
        SearchTrial(4, {"lr": 0.05}, "finished", 0.8, 4),
    ]
    outcome = SearchResult(search_of("mimo", ["lr=0.01..0.1"]), "small", "", 40, 0, tried, {})
    assert outcome.best.number == 2
    assert [each.number for each in search_report.ranked(outcome)] == [2, 4, 0, 1, 3]
    text = search_report.text(outcome, "equipoise train lr=0.03")
    assert "As it stood the method had 70.0 %." in text
    assert "  2      0.03  80.0          4       best" in text.splitlines()
    assert "1 diverged, 3 finished, 1 pruned" in text
    assert text.endswith("\n  equipoise train lr=0.03")
    assert "| 3 | 0.04 | – | 1 | diverged |" in search_report.markdown(outcome, "")


def test_the_best_of_errors_is_the_smallest() -> None:
    errors = [12.5, 8.25, None, 30.0]
    tried = [
        SearchTrial(at, {"lr": 0.01 * (at + 1)}, "finished" if error else "diverged", error, 4)
        for at, error in enumerate(errors)
    ]
    space = search_of("mimo", ["lr=0.01..0.1"])
    outcome = SearchResult(space, "steering", "", 40, 0, tried, {}, METRICS["mae"])
    assert outcome.best.number == 1
    assert [each.number for each in search_report.ranked(outcome)] == [1, 0, 3, 2]
    text = search_report.text(outcome, "")
    assert "Mean absolute error on the 40 validation samples" in " ".join(text.split())
    assert "As it stood the method had 12.5." in text
    assert "validation, mae" in text
    assert "%" not in text


# -- searching --


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> tuple[SearchResult, Path]:
    folder = tmp_path_factory.mktemp("undisturbed")
    return run_search(search_of("mimo", WORDS), DATA, 12, folder, workers=1, quiet=True), folder


@pytest.mark.slow
def test_a_search_finishes_some_and_prunes_others(undisturbed: tuple[SearchResult, Path]) -> None:
    outcome, folder = undisturbed
    states = [each.state for each in outcome.trials]
    assert [each.number for each in outcome.trials] == list(range(12))
    assert states[:STARTS] == ["finished"] * STARTS, "none is pruned before there is something to compare with"
    assert states.count("pruned") >= 1
    assert outcome.trials[0].values == {"penalty": 10.0, "lr": 0.01}, "first the method as it stands"
    assert all(2 <= each.epochs < 4 for each in outcome.trials if each.state == "pruned")
    assert sum(outcome.importance.values()) == pytest.approx(1.0)
    rows = Store(folder / "trials").rows()
    assert len(rows) == states.count("finished")
    assert all("test" not in row for row in rows)
    assert {each.score for each in outcome.trials if each.state == "finished"} == {
        row["validation"]["fused"] for row in rows
    }


@pytest.mark.slow
def test_a_search_goes_on_as_if_nothing_had_happened(
    undisturbed: tuple[SearchResult, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for moment in (8, 5, 26):  # before the last epoch of the first trial is written down, and somewhere on the way
        left = [moment]

        def interrupting(verb: Any, left: list[int] = left) -> Any:
            def interrupt(*what: Any) -> None:
                left[0] -= 1
                if left[0] == 0:
                    raise KeyboardInterrupt
                verb(*what)

            return interrupt

        with monkeypatch.context() as patched:
            heard = nullcontext(interrupting(lambda *_: None))
            patched.setattr(searches, "run_progress", lambda *_, heard=heard, **__: heard)
            patched.setattr(searches, "_report", interrupting(searches._report))
            with pytest.raises(KeyboardInterrupt):
                run_search(search_of("mimo", WORDS), DATA, 12, tmp_path, workers=1, quiet=True)
    outcome = run_search(search_of("mimo", WORDS), DATA, 12, tmp_path, workers=1, quiet=True)
    assert outcome.trials == undisturbed[0].trials
    fewer = run_search(search_of("mimo", WORDS), DATA, 5, tmp_path, workers=1, quiet=True)
    assert fewer.trials == outcome.trials, "what was tried is kept"


def kill_self() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def killing(patch: pytest.MonkeyPatch, owner: Any, name: str, when: Callable[[int, Any], bool]) -> None:
    """Let the process be killed behind a call; `when` is told how many there were, and what the last one returned."""
    healthy, calls = getattr(owner, name), [0]

    def fatal(*args: Any, **options: Any) -> Any:
        found = healthy(*args, **options)
        calls[0] += 1
        if when(calls[0], found):
            kill_self()
        return found

    patch.setattr(owner, name, fatal)


FEWER = 8  # of which one is pruned; the others of the undisturbed search are not needed to tell the two apart


def search(folder: Path, trials: int = FEWER) -> SearchResult:
    return run_search(search_of("mimo", WORDS), DATA, trials, folder, workers=1, quiet=True)


MOMENTS: dict[str, tuple[Any, str, Callable[[int, Any], bool]]] = {
    "the search is written down, its first trial is not": (optuna.Study, "set_user_attr", lambda *_: True),
    "half of a trial is chosen": (Interval, "suggest", lambda calls, _: calls == 7),
    "an epoch is reported": (searches, "_report", lambda calls, _: calls == 10),
    "an epoch is judged, its trial is not pruned yet": (optuna.Trial, "should_prune", lambda _, behind: behind),
    "a row is written, its trial is not": (Store, "append", lambda calls, _: calls == 3),
    "a trial is over": (optuna.Study, "tell", lambda calls, _: calls == 4),
}


@pytest.mark.slow
@pytest.mark.parametrize("moment", MOMENTS)
def test_a_search_that_is_killed_comes_to_the_same_trials(
    moment: str, undisturbed: tuple[SearchResult, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        killing(patch, *MOMENTS[moment])
        process = mp.get_context("fork").Process(target=search, args=(tmp_path,))
        process.start()
        process.join(60)
    assert process.exitcode == -signal.SIGKILL
    assert search(tmp_path).trials == undisturbed[0].trials[:FEWER]


@pytest.mark.slow
def test_a_trial_whose_process_is_killed_is_run_again(
    undisturbed: tuple[SearchResult, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed = tmp_path / "killed"

    def once(job: Job, splits: Splits, folder: Path, on_epoch: Callable[[Any], None], **options: Any) -> Any:
        def tell(record: dict[str, Any]) -> None:
            on_epoch(record)
            if record["epoch"] == 2 and job.entry.settings.lr != 0.01 and not killed.exists():
                killed.touch()
                kill_self()

        return run_job(job, splits, folder, tell, **options)

    monkeypatch.setattr("equipoise.study.search.run_job", once)
    assert search(tmp_path / "out").trials == undisturbed[0].trials[:FEWER]
    assert killed.exists()


@pytest.mark.slow
def test_a_trial_that_was_killed_again_and_again_is_that_trial_when_the_command_is_typed_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def deadly(job: Job, *args: Any, **options: Any) -> Any:
        if job.entry.settings.lr != 0.01:
            kill_self()
        return run_job(job, *args, **options)

    with monkeypatch.context() as patch:
        patch.setattr("equipoise.study.search.run_job", deadly)
        first = search(tmp_path, trials=3)
    assert [each.state for each in first.trials] == ["finished", "killed", "killed"]
    assert "2 killed" in search_report.text(first, "")
    assert "type the same command again" in " ".join(search_report.text(first, "").split())
    second = search(tmp_path, trials=3)
    assert [each.state for each in second.trials] == ["finished"] * 3
    assert [each.values for each in second.trials] == [each.values for each in first.trials]
    assert [each.reason for each in second.trials] == [""] * 3


@pytest.mark.slow
def test_the_test_part_changes_nothing(undisturbed: tuple[SearchResult, Path], tmp_path: Path) -> None:
    def other(fold: int | None) -> Splits:
        splits = load(fold)
        noise = {name: 1e3 * torch.randn_like(array) for name, array in splits.test.inputs.items()}
        return replace(splits, test=replace(splits.test, inputs=noise, label=splits.test.label.flip(0)))

    outcome = run_search(search_of("mimo", WORDS), replace(DATA, load=other), FEWER, tmp_path, workers=1, quiet=True)
    assert outcome.trials == undisturbed[0].trials[:FEWER]


@pytest.mark.slow
def test_a_folder_keeps_to_one_search(undisturbed: tuple[SearchResult, Path]) -> None:
    for words in ([*WORDS, "batch=32"], [*SHORT, "penalty=1..10:log", "lr=0.0001..0.3:log"]):
        with pytest.raises(
            BadInput, match=r"holds another search \((run|space) .* choose another folder with --out"
        ) as said:
            run_search(search_of("mimo", words), DATA, 12, undisturbed[1], workers=1, quiet=True)
        assert "epochs" not in str(said.value), "what is the same is not named"


@pytest.mark.slow
def test_what_was_tried_is_not_run_again(tmp_path: Path) -> None:
    outcome = run_search(search_of("msl", [*SHORT, "lr=0.01,0.02"]), DATA, 7, tmp_path, workers=2, quiet=True)
    assert len(outcome.trials) == 7
    assert len(Store(tmp_path / "trials").rows()) == len({each.values["lr"] for each in outcome.trials}) <= 2
    by_rate = {each.values["lr"]: each.score for each in outcome.trials}
    assert all(each.score == by_rate[each.values["lr"]] for each in outcome.trials)


@pytest.mark.slow
def test_a_trial_that_diverges_has_lost_and_no_more(tmp_path: Path) -> None:
    outcome = run_search(search_of("msl", [*SHORT, "lr=0.01,1e30"]), DATA, 6, tmp_path, workers=1, quiet=True)
    assert {each.values["lr"]: each.state for each in outcome.trials} == {0.01: "finished", 1e30: "diverged"}
    with pytest.raises(FailedRuns, match="FloatingPointError"):
        run_search(search_of("msl", [*SHORT, "lr=1e29,1e30"]), DATA, 2, tmp_path / "all", workers=1, quiet=True)


@pytest.mark.slow
def test_the_command_that_is_printed_trains_what_was_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def equipoise(*words: str) -> str:
        monkeypatch.setattr(sys, "argv", ["equipoise", *words])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        assert ended.value.code == 0
        return capsys.readouterr().out

    out = str(tmp_path / "tune")
    asked = ["tune", "--data", "generated", "--method", "ew", "--trials", "4", "--workers", "2", "--out", out]
    found = json.loads(equipoise(*asked, "--json", *SHORT, "lr=0.001..0.1:log", "weight=1,2"))
    assert found["space"] == {"lr": "0.001..0.1:log", "weight": "1,2"}
    again = equipoise(*asked, *SHORT, "lr=0.001..0.1:log", "weight=1,2")
    assert f"  {found['command']}" in again.splitlines()
    assert all(Path(figure).stat().st_size > 10_000 for figure in found["figures"])
    assert {Path(figure).suffix for figure in found["figures"]} == {".svg", ".png"}
    assert found["command"] in (tmp_path / "tune" / "tune.md").read_text(encoding="utf-8")
    _, *words = shlex.split(found["command"])
    (row,) = json.loads(equipoise(*words, "--json"))
    assert row["validation"]["fused"] == found["best"]["score"]
    assert {**row["params"], "lr": row["run"]["lr"]} == found["best"]["values"]
