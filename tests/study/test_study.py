"""The study: whatever happens to it, the same rows, each once."""

import contextlib
import json
import multiprocessing as mp
import os
import random
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import pytest
import torch

import study_program
from equipoise import Balancer
from equipoise.data.sets.generated import two_sensors
from equipoise.data.source import DataSet, all_data
from equipoise.measure.timing import PROTOCOL
from equipoise.study import store as stores
from equipoise.study.diagnose import diagnose
from equipoise.study.executors.local import import_libraries
from equipoise.study.job import Job, Measure, finite, run_job, save_traceback
from equipoise.study.registry import all_methods, entries
from equipoise.study.store import Store
from equipoise.study.study import plan, run_study
from equipoise.study.tuning import headline, trials, tune
from equipoise.training.step import TrainingStep
from equipoise.util.errors import FailedRuns
from process_group import assert_gone, members

SHORT = ["epochs=2", "features=8"]
DATA = DataSet("small", lambda fold: two_sensors(samples=150, seed=fold or 0), 10, "Small.")
PROGRAM = str(Path(study_program.__file__))


def jobs_of(*names: str, words: list[str] = SHORT, seeds: int = 1, measure: Measure = "quick") -> Any:
    return plan(entries(names, words), DATA, list(range(seeds)), [None], measure=measure)


def results(row: dict[str, Any]) -> dict[str, Any]:
    """What must be the same bits again."""
    return {key: row[key] for key in ("test", "validation", "params", "config", "run", "selected", "split", "seed")}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """The rows of a study that nobody disturbs."""
    folder = tmp_path_factory.mktemp("undisturbed")
    subprocess.run([sys.executable, PROGRAM, str(folder)], check=True, timeout=120)
    return {row["config"]: row for row in Store(folder).rows()}


def in_a_session_of_its_own(folder: Path, runs_began: Any) -> None:
    os.setsid()
    study_program.main(folder, on_event=lambda *_: runs_began.set())


def check_rows(folder: Path, expected: dict[str, dict[str, Any]]) -> None:
    rows = Store(folder).rows()
    text = (folder / "results.jsonl").read_text(encoding="utf-8")
    assert text.endswith("\n")
    assert text.count("\n") == len(rows) == len(expected) == 8
    assert {row["config"] for row in rows} == set(expected)
    for row in rows:
        assert results(row) == results(expected[row["config"]])
    for config in expected:
        curves = (Store(folder).run_folder(config) / "curves.jsonl").read_text().splitlines()
        assert [json.loads(line)["epoch"] for line in curves] == list(range(1, 17))


@pytest.mark.slow
def test_killed_at_ten_random_moments_a_study_comes_to_the_same_rows(
    undisturbed: dict[str, dict[str, Any]], tmp_path: Path
) -> None:
    import_libraries()  # so that a study begins at once, and is killed at work
    moments, context, kills, studies = random.Random(0), mp.get_context("fork"), 0, 0
    while kills < 10:
        folder, runs_began = tmp_path / str(studies), context.Event()
        process = context.Process(target=in_a_session_of_its_own, args=(folder, runs_began))
        process.start()
        assert runs_began.wait(30)
        process.join(0.7 * moments.random())
        if process.exitcode is not None:  # faster than the killer: the next is to meet another
            assert process.exitcode == 0
            check_rows(folder, undisturbed)
            studies += 1
            continue
        assert process.pid is not None
        if kills % 2:
            os.killpg(process.pid, signal.SIGKILL)
        else:  # the study alone: its runs must go with it
            process.kill()
        process.join()
        kills += 1
        assert_gone(process.pid)
        Store(folder).rows()  # whole at any moment
    folder = tmp_path / str(studies)
    subprocess.run([sys.executable, PROGRAM, str(folder)], check=True, timeout=120)
    check_rows(folder, undisturbed)


def endless(folder: Path, runs_began: Any) -> None:
    os.setsid()
    jobs, splits = jobs_of("msl", "mimo", words=["epochs=1000000"])

    def tell(kind: str, *_: object) -> None:
        if kind == "epoch":
            runs_began.set()

    run_study(jobs, splits, Store(folder), workers=2, on_event=tell)


@pytest.mark.slow
def test_runs_do_not_outlive_a_killed_study(tmp_path: Path) -> None:
    import_libraries()
    context = mp.get_context("fork")
    runs_began = context.Event()
    process = context.Process(target=endless, args=(tmp_path, runs_began))
    process.start()
    assert process.pid is not None
    assert runs_began.wait(30)
    try:
        assert len(members(process.pid)) == 3
        process.kill()
        process.join()
        assert_gone(process.pid)
        with Store(tmp_path).locked():  # and the next study finds the folder free
            pass
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


@pytest.mark.slow
def test_a_finished_study_runs_nothing_again(undisturbed: dict[str, dict[str, Any]], tmp_path: Path) -> None:
    (tmp_path / "results.jsonl").write_text("".join(json.dumps(row) + "\n" for row in undisturbed.values()))
    subprocess.run([sys.executable, PROGRAM, str(tmp_path)], check=True, timeout=60)
    assert not (tmp_path / "runs").exists()
    assert Store(tmp_path).rows() == list(undisturbed.values())


# -- rows --


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[Job], list[dict[str, Any]], Path]:
    """A complete study of two methods."""
    folder = tmp_path_factory.mktemp("whole")
    jobs, splits = jobs_of("msl", "unimodal", measure="all")
    return jobs, run_study(jobs, splits, Store(folder), workers=1), folder


def test_a_row_holds_everything_the_design_names(whole: tuple[list[Job], list[dict[str, Any]], Path]) -> None:
    jobs, (row, alone), folder = whole
    keys = "schema config status run fold threads selected data method params seed split validation test seconds"
    assert {*keys.split(), "versions", "device"} <= set(row)
    assert (row["schema"], row["status"], row["data"], row["method"], row["seed"]) == (1, "done", "small", "msl", 0)
    assert (row["fold"], row["threads"], row["device"]) == (None, 1, "cpu")
    assert row["selected"] == {"epoch": 2, "by": "last"}
    assert row["run"] == jobs[0].entry.settings.as_dict()
    assert row["config"] == jobs[0].config
    assert row["split"].startswith("sha256:")
    assert {"total", "step", "balance", "forward", "backward", "update"} <= set(row["seconds"])
    assert {"fused", "committee", "detached", "faults", "probe"} <= set(row["test"])
    assert set(row["test"]["detached"]) == {"easy", "hard"}
    assert alone["test"]["fused"] is None
    assert alone["test"]["faults"] is None
    assert set(alone["test"]["head"]) == {"easy", "hard"}
    assert Store(folder).rows() == [row, alone]  # what is given is what is stored, after a round through JSON


def test_a_row_of_another_process_is_the_row_of_this_one(
    whole: tuple[list[Job], list[dict[str, Any]], Path], tmp_path: Path
) -> None:
    jobs, rows, _ = whole
    assert results(run_job(jobs[0], DATA.load(None), tmp_path)) == results(rows[0])


def test_what_json_has_no_number_for_is_none() -> None:
    assert finite({"a": float("nan"), "b": {"c": float("inf"), "d": 1.5, "e": "x"}}) == {
        "a": None,
        "b": {"c": None, "d": 1.5, "e": "x"},
    }


def test_diagnosis_rests_on_the_probe(whole: tuple[list[Job], list[dict[str, Any]], Path]) -> None:
    _, (joint, alone), _ = whole
    found = diagnose([joint], [alone])
    assert found.answer == "unclear"
    assert all(gap.as_dict()["low"] is None and gap.alone == alone["test"]["probe"][gap.modality] for gap in found.gaps)

    def rows(*values: float) -> list[dict[str, Any]]:
        return [{"test": {"probe": {"easy": 0.9, "hard": value}}} for value in values]

    assert diagnose(rows(0.4, 0.41, 0.42), rows(0.6, 0.6, 0.63)).answer == "yes"
    assert diagnose(rows(0.6, 0.61, 0.6), rows(0.6, 0.605, 0.6)).answer == "no"
    assert diagnose(rows(0.3, 0.9), rows(0.9, 0.3)).answer == "unclear"
    yes = diagnose(rows(0.4, 0.41, 0.42), rows(0.6, 0.6, 0.63))
    assert "hard" in yes.advice
    low, high = yes.gaps[1].low, yes.gaps[1].high
    assert low < yes.gaps[1].difference < high


# -- what decides a run --


def test_a_changed_configuration_never_meets_old_rows(tmp_path: Path) -> None:
    store = Store(tmp_path)
    jobs, splits = jobs_of("ew")
    (first,) = run_study(jobs, splits, store, workers=1)
    (label,) = jobs
    same_by_another_name = replace(label, entry=replace(label.entry, label="ew at λ/K"))
    changed = [
        *jobs_of("ew", words=[*SHORT, "weight=2"])[0],
        *jobs_of("ew", words=["epochs=1", "features=8"])[0],
        replace(label, seed=1),
        replace(label, threads=2),
        same_by_another_name,
    ]
    rows = run_study(changed, splits, store, workers=2)
    assert len({row["config"] for row in [first, *rows]}) == 6
    assert len({store.run_folder(row["config"]) for row in [first, *rows]}) == 6
    assert [row["label"] for row in rows] == ["ew"] * 4 + ["ew at λ/K"]
    assert rows[-1]["test"] == first["test"]
    assert rows[0]["test"] != first["test"]
    assert run_study([*jobs, *changed], splits, store) == [first, *rows]
    assert len(store.rows()) == 6


@pytest.mark.parametrize("name", ["data", "split", "fold", "seed", "threads", "measure"])
def test_every_fact_changes_the_configuration(name: str) -> None:
    (job,) = jobs_of("mimo")[0]
    other = {
        "data": replace(DATA, name="other"),
        "split": "sha256:0",
        "fold": 3,
        "seed": 9,
        "threads": 4,
        "measure": "all",
    }[name]
    assert replace(job, **{name: other}).config != job.config == replace(job).config


def test_where_a_run_takes_place_is_a_fact(monkeypatch: pytest.MonkeyPatch) -> None:
    (job,) = jobs_of("mimo")[0]
    config = job.config
    monkeypatch.setattr("equipoise.study.job.device_of", lambda _: "cuda")
    assert job.config != config


def test_equal_jobs_are_run_once(tmp_path: Path) -> None:
    jobs, splits = jobs_of("msl")
    events: list[str] = []
    rows = run_study([*jobs, *jobs], splits, Store(tmp_path), on_event=lambda kind, *_: events.append(kind))
    assert rows[0] == rows[1]
    assert events == ["start", "epoch", "epoch", "done"]
    assert len(Store(tmp_path).rows()) == 1


def test_bad_data_is_refused_before_anything_runs() -> None:
    good = two_sensors(samples=60)
    inputs = {**good.train.inputs, "hard": torch.full_like(good.train.inputs["hard"], torch.nan)}
    bad = replace(good, train=replace(good.train, inputs=inputs), classes=(*good.classes, "never seen"))
    data = DataSet("bad", lambda _: bad, 1, "Bad.")
    with pytest.raises(ValueError, match="cannot be trained on") as found:
        plan(entries(["msl"]), data, [0], [None])
    assert "NaN" in str(found.value)
    assert "never seen" in str(found.value)


# -- times, and heads that nothing trains --


def test_the_time_of_a_step_is_that_of_the_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By hand: 107 samples of the training part make 4 batches of 32, of which each takes at least 30 ms."""
    step = TrainingStep.__call__

    def slow(self: TrainingStep, *batch: Any) -> None:
        time.sleep(0.03)
        step(self, *batch)

    monkeypatch.setattr(TrainingStep, "__call__", slow)
    jobs, splits = jobs_of("msl", "mimo", words=["epochs=3", "features=8", "batch=32"])
    steps = -(-len(splits[None].train) // 32)
    rows = run_study(jobs, splits, Store(tmp_path), workers=2)
    for row in rows:
        curves = (Store(tmp_path).run_folder(row["config"]) / "curves.jsonl").read_text(encoding="utf-8")
        seconds = [json.loads(line)["seconds"] for line in curves.splitlines()]
        assert row["seconds"]["step"] == pytest.approx(sum(seconds[1:]) / 2 / steps)
        assert row["seconds"]["step"] > 0.03
        parts = sum(row["seconds"][name] for name in ("forward", "backward", "balance", "update"))
        assert parts < 0.03, "which are timed apart"
        assert row["timing"] == {
            "step": f"wall clock of epochs 2 to 3, median, by {steps} steps",
            "parts": PROTOCOL,
            "workers": 2,
        }
    (alone,), splits = jobs_of("ew")
    (row,) = run_study([alone], splits, Store(tmp_path), workers=2)
    assert row["timing"]["workers"] == 1, "there was no other to share with"


@pytest.mark.parametrize("name", ["ensemble", "unimodal"])
def test_a_fused_head_that_nothing_trains_is_in_no_curve(name: str, tmp_path: Path) -> None:
    jobs, splits = jobs_of(name)
    (row,) = run_study(jobs, splits, Store(tmp_path))
    curves = (Store(tmp_path).run_folder(row["config"]) / "curves.jsonl").read_text(encoding="utf-8")
    for record in map(json.loads, curves.splitlines()):
        assert set(record["validation"]) == {"easy", "hard"}
        assert set(record["train"]) == {"easy", "hard"}
    for part in ("validation", "test"):
        assert (row[part]["fused"] is None) == (name == "unimodal"), "the vote of an ensemble is a result"


# -- runs that fail --


def test_failed_runs_are_reported_and_the_others_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    end_epoch = Balancer.end_epoch

    def unlucky(self: Balancer, metrics: Any = None) -> None:
        if torch.initial_seed() == 1:
            raise RuntimeError("this seed is unlucky")
        end_epoch(self, metrics)

    jobs, splits = jobs_of("msl", "mimo", seeds=2)
    events: list[tuple[str, int]] = []
    with monkeypatch.context() as patch:
        patch.setattr(Balancer, "end_epoch", unlucky)
        with pytest.raises(FailedRuns, match="msl, seed 1: RuntimeError: this seed is unlucky") as found:
            run_study(jobs, splits, Store(tmp_path), on_event=lambda kind, job, _: events.append((kind, job.seed)))
    assert len(str(found.value).splitlines()) == 2
    assert sorted(each for each in events if each[0] in ("done", "failed")) == [("done", 0)] * 2 + [("failed", 1)] * 2
    assert {row["seed"] for row in Store(tmp_path).rows()} == {0}
    for job in jobs:
        kept = Store(tmp_path).run_folder(job.config) / "error.txt"
        assert kept.exists() == (job.seed == 1)
        if job.seed == 1:
            assert f"{job.name}: RuntimeError: this seed is unlucky; traceback in {kept}" in str(found.value)
            text = kept.read_text(encoding="utf-8")
            assert text.startswith("Traceback (most recent call last):")
            assert "in unlucky" in text, "where it happened"
    assert len(run_study(jobs, splits, Store(tmp_path))) == 4  # whatever was wrong is mended
    assert not list(tmp_path.glob("runs/*/error.txt"))


def test_the_traceback_of_an_encoder_of_ones_own_leads_into_its_code(tmp_path: Path) -> None:
    jobs, splits = plan(entries(["msl"], ["encoder=study.test_study.Broken", "epochs=1"]), DATA, [0], [None])
    with pytest.raises(FailedRuns) as found:
        run_study(jobs, splits, Store(tmp_path))
    kept = Store(tmp_path).run_folder(jobs[0].config) / "error.txt"
    told = "msl, seed 0: encoder of 'easy', 'study.test_study.Broken', for inputs of shape (8,): of no use"
    assert str(found.value).startswith(told)
    assert str(found.value).endswith(f"; traceback in {kept}")
    assert 'raise LookupError("of no use")' in kept.read_text(encoding="utf-8")


class Broken(torch.nn.Module):
    """An encoder of a user's own with a mistake in it."""

    def __init__(self) -> None:
        raise LookupError("of no use")


def test_a_link_in_place_of_the_traceback_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "precious").write_text("here first")
    (tmp_path / "run" / "error.txt").symlink_to(tmp_path / "precious")
    save_traceback(RuntimeError("no luck: \udcff"), tmp_path / "run")
    assert (tmp_path / "precious").read_text() == "here first"
    assert (tmp_path / "run" / "error.txt").read_text().endswith("RuntimeError: no luck: \\udcff\n")


def test_a_run_that_dies_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    jobs, splits = jobs_of("msl")
    monkeypatch.setattr("equipoise.study.study.run_job", lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL))
    with pytest.raises(FailedRuns, match=r"ended without a word \(out of memory, or killed\)"):
        run_study(jobs, splits, Store(tmp_path))


def test_half_a_message_is_a_death_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def die(pipe: Any, *_: object) -> None:
        os.write(pipe.fileno(), b"\x00\x00\x10\x00half")
        os._exit(1)

    jobs, splits = jobs_of("msl")
    monkeypatch.setattr("equipoise.util.pool._serve", die)
    with pytest.raises(FailedRuns, match="ended without a word"):
        run_study(jobs, splits, Store(tmp_path))


def test_a_full_disk_stops_the_study_with_one_message(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    jobs, splits = jobs_of("msl", "mimo", seeds=2)
    store = Store(tmp_path)
    run_study(jobs[:1], splits, store)

    def full(*_: object) -> NoReturn:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("equipoise.training.checkpoint._flush", full)
        with pytest.raises(ValueError, match=r"cannot write to .*No space left on device; finished runs are safe"):
            run_study(jobs, splits, store, workers=1)
    assert len(store.rows()) == 1
    with monkeypatch.context() as patch:
        patch.setattr(stores.os, "write", full)
        with pytest.raises(ValueError, match=r"cannot write to .*No space left on device"):
            Store(tmp_path).append({"config": "x"})
    assert len(run_study(jobs, splits, store)) == 4


def test_an_interrupted_study_leaves_no_run_behind(tmp_path: Path) -> None:
    jobs, splits = jobs_of("msl", "mimo", words=["epochs=500"])

    def interrupt(kind: str, *_: object) -> None:
        if kind == "epoch":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_study(jobs, splits, Store(tmp_path), workers=2, on_event=interrupt)
    assert mp.active_children() == []
    with Store(tmp_path).locked():
        pass


@pytest.mark.slow
def test_runs_can_be_spawned_as_a_gpu_wants_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second run follows the first in its process, and is none the worse for it."""
    chosen = entries(["msl", "ogmge"], SHORT)
    jobs, splits = plan(chosen, all_data()["generated"], [0], [None], measure="quick")
    forked = run_study(jobs, splits, Store(tmp_path / "forked"))
    monkeypatch.setattr("equipoise.study.executors.local._use_cuda", lambda _: True)
    started: list[int] = []
    monkeypatch.setattr(
        "equipoise.util.pool.start_without_sigint", lambda process: (process.start(), started.append(process.pid))
    )
    spawned = run_study(jobs, splits, Store(tmp_path / "spawned"), workers=1)
    assert [results(row) for row in forked] == [results(row) for row in spawned]
    assert len(started) == 1


# -- tuning --


def test_a_method_tries_its_own_settings_first_and_none_twice() -> None:
    for entry in entries(["all"]):
        found = trials(entry, 1000)
        assert found[0] == entry
        size = 3
        for values in entry.method.make.search.values():
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
    tuned = tune(chosen, jobs, closed, store, 3)
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
        best = max(headline(row["validation"]) for row in tried)
        (winner, *_) = [
            row for row in tried if row["params"] == after.entry.params and row["run"] == after.entry.settings.as_dict()
        ]
        assert headline(winner["validation"]) == best
    assert tune(chosen, jobs, closed, store, 3) == tuned
    assert len(store.rows()) == len(rows)


def test_a_small_grid_is_tried_whole() -> None:
    (msl,) = entries(["msl"])
    assert sorted(round(each.settings.lr, 5) for each in trials(msl, 10)) == [0.003, 0.01, 0.03]


def test_a_trial_row_of_a_method_without_fused_decision_has_a_headline() -> None:
    assert headline({"fused": 0.5, "head": {"a": 0.1}}) == 0.5
    assert headline({"fused": None, "head": {"a": 0.2, "b": 0.4}}) == pytest.approx(0.3)


@pytest.mark.parametrize("name", all_methods())
def test_every_method_of_the_catalogue_runs_from_start_to_row(name: str, tmp_path: Path) -> None:
    (entry,) = entries([name], ["epochs=2", "batch=20", "device=cpu"])
    jobs, splits = plan([entry], all_data()["generated"], [0], [None], measure="quick")
    row = run_job(jobs[0], splits[None], tmp_path)
    assert row["status"] == "done"
    assert row["seconds"]["step"] > 0
    assert (row["test"]["fused"] is None) == (name == "unimodal")
