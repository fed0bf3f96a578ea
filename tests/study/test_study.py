"""The study: whatever happens to it, the same rows, each once."""

import contextlib
import json
import multiprocessing as mp
import os
import random
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, NoReturn

import pytest
import torch

import study_program
from equipoise import Balancer
from equipoise.data.source import all_data
from equipoise.study import store as stores
from equipoise.study.executors.local import import_libraries
from equipoise.study.job import run_job
from equipoise.study.registry import all_methods, entries
from equipoise.study.store import Store
from equipoise.study.study import plan, run_progress, run_study
from equipoise.util.errors import FailedRuns
from process_group import assert_gone, members
from small_study import DATA, SHORT, jobs_of, results

PROGRAM = str(Path(study_program.__file__))


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
def test_killed_at_six_random_moments_a_study_comes_to_the_same_rows(
    undisturbed: dict[str, dict[str, Any]], tmp_path: Path
) -> None:
    import_libraries()  # so that a study begins at once, and is killed at work
    moments, context, kills, studies = random.Random(0), mp.get_context("fork"), 0, 0
    while kills < 6:
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


# -- runs that fail --


def test_failed_runs_are_reported_and_the_others_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    end_epoch = Balancer.end_epoch

    def unlucky(self: Balancer, metrics: Any = None) -> None:
        if torch.initial_seed() == 1:
            raise RuntimeError("this seed is unlucky")
        end_epoch(self, metrics)

    jobs, splits = jobs_of("msl", "mimo", seeds=2)
    events: list[tuple[str, int | None]] = []
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


def test_a_run_that_dies_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    jobs, splits = jobs_of("msl")
    monkeypatch.setattr("equipoise.study.study.run_job", lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL))
    with pytest.raises(FailedRuns, match=r"ended without a message \(out of memory, or killed\)"):
        run_study(jobs, splits, Store(tmp_path))


def test_half_a_message_is_a_death_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def die(pipe: Any, *_: object) -> None:
        os.write(pipe.fileno(), b"\x00\x00\x10\x00half")
        os._exit(1)

    jobs, splits = jobs_of("msl")
    monkeypatch.setattr("equipoise.util.pool._serve", die)
    with pytest.raises(FailedRuns, match="ended without a message"):
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


@pytest.mark.parametrize("name", list(all_methods()))
def test_every_method_of_the_catalogue_runs_from_start_to_row(name: str, tmp_path: Path) -> None:
    (entry,) = entries([name], ["epochs=2", "batch=20", "device=cpu"])
    jobs, splits = plan([entry], all_data()["generated"], [0], [None], measure="quick")
    row = run_job(jobs[0], splits[None], tmp_path)
    assert row["status"] == "done"
    assert row["seconds"]["step"] > 0
    assert (row["test"]["fused"] is None) == (name == "unimodal")


def test_lines_of_progress_name_the_data_and_the_decision(capsys: pytest.CaptureFixture[str]) -> None:
    (job, *_), _ = jobs_of("msl")
    with run_progress(1, "runs", where=" on ward.npz") as tell:
        tell("done", job, {"validation": {"fused": 0.5}, "metric": "balanced_accuracy"})
    assert f"1/1 {job.name} on ward.npz: validation balanced accuracy 0.500 (fused)" in capsys.readouterr().err
