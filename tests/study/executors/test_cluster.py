"""Studies elsewhere: the same rows as here, whoever dies on the way."""

import fcntl
import importlib.util
import json
import os
import secrets
import subprocess
import sys
import threading
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import pytest
import torch

import imitated_slurm
import ray_program
from equipoise.data.sets.generated import two_sensors
from equipoise.data.source import DataSet
from equipoise.study.executors import remote
from equipoise.study.executors.cluster import RayCluster, SlurmCluster, cluster_of
from equipoise.study.executors.local import LocalExecutor
from equipoise.study.executors.remote import RemoteTask, unpack
from equipoise.study.job import Job, run_job
from equipoise.study.registry import entries
from equipoise.study.store import Store
from equipoise.study.study import plan, run_study
from equipoise.training.launch import device_of
from equipoise.training.settings import Settings
from equipoise.util.errors import BadInput, FailedRuns

DATA = DataSet("small", lambda fold: two_sensors(samples=150, seed=fold or 0), 10, "Small.")
SPLITS = two_sensors(samples=150)
SAME = ("test", "validation", "params", "config", "run", "selected", "split", "seed")


def job_of(*words: str) -> Job:
    jobs, _ = plan(entries(["mimo"], ["epochs=2", "features=8", *words]), DATA, [0], [None], measure="quick")
    return jobs[0]


def task_of(folder: Path, mark: Path | None = None, run: Any = run_job) -> RemoteTask:
    job = job_of()
    return RemoteTask(run, job, job.facts(), folder, mark)


def results(row: dict[str, Any]) -> dict[str, Any]:
    """What must be the same bits everywhere."""
    return {key: row[key] for key in SAME}


# -- where to --


def test_what_on_means() -> None:
    assert cluster_of(None) is None
    assert cluster_of("ray") == RayCluster()
    assert cluster_of("ray://head:10001") == RayCluster("ray://head:10001")
    assert cluster_of("slurm") == SlurmCluster()
    assert cluster_of("slurm:partition=gpu,time=90") == SlurmCluster({"partition": "gpu", "time": 90})


@pytest.mark.parametrize("text", ["", "rai", "ray://", "slurms", "slurm:partition", "slurm:=gpu", "slurm:time="])
def test_what_on_does_not_mean(text: str) -> None:
    with pytest.raises(BadInput, match=r"expected ray, ray://HOST:10001, slurm, or slurm:partition=NAME"):
        cluster_of(text)


@pytest.mark.parametrize("extra", ["ray", "slurm"])
def test_a_missing_package_says_what_to_type(extra: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(ModuleNotFoundError, match=rf"type: pip install 'equipoise\[{extra}\]'"):
        cluster_of(extra)


def test_a_gpu_that_was_asked_for_need_not_be_here() -> None:
    place = RayCluster()
    assert place.device_of(Settings(device="cuda")) == "cuda"
    for device in ("auto", "cpu"):
        assert place.device_of(Settings(device=device)) == device_of(Settings(device=device))
    with pytest.raises(ValueError, match="type device=cuda"):
        place.device_of(Settings(device="cuda:1"))


def test_the_place_does_not_change_what_a_run_is() -> None:
    chosen = entries(["msl", "mimo"], ["device=cpu"])
    here, there = (plan(chosen, DATA, [0, 1], [None], on=on)[0] for on in (None, RayCluster()))
    assert [job.config for job in here] == [job.config for job in there]
    gpu, _ = plan(entries(["msl"], ["device=cuda"]), DATA, [0], [None], on=RayCluster())
    assert gpu[0].facts()["device"] == "cuda"


# -- one run elsewhere --


def test_a_run_in_a_shared_folder_and_in_one_of_its_own_comes_to_the_same(tmp_path: Path) -> None:
    seen: dict[str, list[int]] = {"shared": [], "own": []}
    mark = tmp_path / "mark"
    mark.touch()
    shared = task_of(tmp_path / "shared", mark).do(lambda: SPLITS, lambda it: seen["shared"].append(it["epoch"]))
    elsewhere = task_of(tmp_path / "own", tmp_path / "no mark")
    own = elsewhere.do(lambda: SPLITS, lambda it: seen["own"].append(it["epoch"]))
    assert (shared.kind, own.kind) == ("done", "done")
    assert seen == {"shared": [1, 2], "own": [1, 2]}
    assert results(shared.content) == results(own.content)
    assert results(own.content) == results(run_job(job_of(), SPLITS, tmp_path / "here"))
    assert not shared.files
    assert not (tmp_path / "own").exists()
    unpack(own.files, tmp_path / "own")
    left = {
        name: sorted(each.name for each in (tmp_path / name).iterdir() if not each.name.startswith("epoch-"))
        for name in ("shared", "own")
    }
    assert left["own"] == left["shared"]
    assert "curves.jsonl" in left["own"]
    assert not list((tmp_path / "own").glob("epoch-*"))


def test_other_data_versions_and_devices_are_refused(tmp_path: Path) -> None:
    task = task_of(tmp_path, run=pytest.fail)
    other = task.do(lambda: two_sensors(samples=150, seed=1), print)
    assert other.kind == "failed"
    assert "expected the data sha256:" in other.content["reason"]
    for fact, value in (("version", "0.0.1"), ("device", "cuda")):
        found = replace(task, facts={**task.facts, fact: value}).do(lambda: SPLITS, print)
        assert found.kind == "failed"
        assert f"expected {fact} {value}, as where the study was started, found {fact} " in found.content["reason"]


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("stumbles", ["loading", "running"])
def test_a_run_that_fails_elsewhere_leaves_its_traceback_in_its_folder(
    tmp_path: Path, stumbles: str, *, shared: bool
) -> None:
    def unlucky(*_: object) -> NoReturn:
        raise RuntimeError("no luck")

    mark, folder = tmp_path / "mark", tmp_path / "run"
    mark.touch() if shared else None
    task = task_of(folder, mark, unlucky)
    found = task.do(unlucky if stumbles == "loading" else lambda: SPLITS, print)
    assert found.kind == "failed"
    assert found.content["reason"].startswith("RuntimeError: no luck")
    assert found.content["reason"].endswith(f"; traceback in {folder / 'error.txt'}")
    unpack(found.files, folder)
    text = (folder / "error.txt").read_text(encoding="utf-8")
    assert text.startswith("Traceback (most recent call last):")
    assert text.rstrip().endswith("RuntimeError: no luck")
    assert "in unlucky" in text


def test_a_disk_that_is_full_ends_the_study_only_where_it_is_shared(tmp_path: Path) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    mark = tmp_path / "mark"
    for shared, kind in ((True, "unwritable"), (False, "failed")):
        mark.touch() if shared else mark.unlink()
        found = task_of(tmp_path / "run", mark, full).do(lambda: SPLITS, print)
        assert found.kind == kind
        assert "No space left on device" in found.content["reason"]


def test_two_never_train_in_one_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    task = task_of(tmp_path, run=lambda *_: {"at": time.monotonic()})
    descriptor = os.open(tmp_path, os.O_RDONLY)  # whoever was given up on, and is still there
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    freed: list[float] = []

    def leave() -> None:
        freed.append(time.monotonic())
        os.close(descriptor)

    threading.Timer(0.3, leave).start()
    found = task.do(lambda: SPLITS, print)
    assert found.kind == "done"
    assert found.content["at"] >= freed[0]
    monkeypatch.setattr(remote, "PATIENCE", 0.1)
    stays = os.open(tmp_path, os.O_RDONLY)
    try:
        fcntl.flock(stays, fcntl.LOCK_EX)
        refused = task.do(lambda: SPLITS, print)
    finally:
        os.close(stays)
    assert refused.kind == "failed"
    assert "another process is training in" in refused.content["reason"]


@pytest.mark.slow
def test_a_run_that_is_stopped_leaves_its_place_to_another(tmp_path: Path) -> None:
    endless, short = job_of("epochs=1000000"), job_of()
    torch.set_num_threads(1)
    with LocalExecutor(partial(run_job, checkpoint_seconds=60.0), {None: SPLITS}, Store(tmp_path), limit=1) as executor:
        executor.start(endless)
        assert next(executor.events())[1] == "epoch"
        executor.stop(endless)
        assert not executor.running
        executor.start(short)
        heard = []
        while executor.running:
            heard += [(job.config, kind) for job, kind, _ in executor.events()]
    assert heard == [(short.config, kind) for kind in ("epoch", "epoch", "done")]


# -- studies on clusters --


def check_rows(folder: Path, jobs: list[Job], here: list[dict[str, Any]]) -> None:
    """Each run once, to the bits that it has here."""
    there = Store(folder).rows()
    assert (folder / "results.jsonl").read_text(encoding="utf-8").count("\n") == len(there) == len(jobs)
    assert {row["config"] for row in there} == {job.config for job in jobs}
    by_config = {row["config"]: row for row in there}
    for row in here:
        assert results(by_config[row["config"]]) == results(row)


@pytest.mark.slow
def test_a_ray_worker_that_is_killed_costs_no_row(tmp_path: Path) -> None:
    token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}  # of this test's own cluster
    quiet = {"RAY_USAGE_STATS_ENABLED": "0", "PYTHONWARNINGS": "ignore"}
    program = subprocess.run(
        [sys.executable, str(Path(ray_program.__file__)), str(tmp_path / "ray")],
        env={**os.environ, **token, **quiet},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=240,
    )
    told = json.loads(program.stdout.splitlines()[-1])
    assert told["killed"], "nobody was killed"
    assert sorted(told["begun"])[-2:] == [1, 2], "the one run on the killed worker is begun again, and no other"
    jobs, splits = ray_program.planned()
    assert len(jobs) == 12
    torch.set_num_threads(1)
    check_rows(tmp_path / "ray", jobs, run_study(jobs, splits, Store(tmp_path / "here")))
    assert not list((tmp_path / "ray").glob(".seen-*"))


@pytest.mark.slow
def test_an_array_job_outlives_whoever_submitted_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    imitated_slurm.install(tmp_path / "bin")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    out, words = tmp_path / "out", ["epochs=60", "features=8"]
    asked = ["--data", "generated", "--methods", "msl,mimo", "--seeds", "1", "--quick", "--json", *words]
    program = "import equipoise_command; equipoise_command.main()"
    command = [sys.executable, "-c", program, "compare", "--on", "slurm:partition=tiny", "--out", str(out), *asked]
    first = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        submitted = out / "slurm" / "submitted.jsonl"
        until = time.monotonic() + 60
        while not submitted.exists() or submitted.read_text().count("\n") < 2:
            assert time.monotonic() < until
            assert first.poll() is None
            time.sleep(0.05)
    finally:
        first.kill()
        first.wait()
    assert not (out / "results.jsonl").exists()
    again = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, timeout=120)
    assert (tmp_path / "bin" / "arrays.txt").read_text().split() == ["2"], "one array of two tasks, and no other"
    script = next((out / "slurm").glob("*/*.sh")).read_text()
    assert "#SBATCH --partition=tiny" in script
    assert "#SBATCH --cpus-per-task=1" in script
    rows = json.loads(again.stdout)
    jobs, splits = plan(entries(["msl", "mimo"], words), generated(), [0], [None], measure="quick")
    torch.set_num_threads(1)
    check_rows(out, jobs, run_study(jobs, splits, Store(tmp_path / "here")))
    assert [row["method"] for row in rows] == ["msl", "mimo"]


@pytest.mark.slow
def test_a_run_that_fails_in_an_array_leaves_its_traceback(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    imitated_slurm.install(tmp_path / "bin")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", f"{Path(__file__).parents[2]}:{os.environ.get('PYTHONPATH', '')}")
    jobs, splits = plan(
        entries(["msl"], ["epochs=1", "encoder=study.test_study.Broken"]), generated(), [0, 1], [None], measure="quick"
    )
    with pytest.raises(FailedRuns, match="of no use") as found:
        run_study(jobs, splits, Store(tmp_path / "out"), on=SlurmCluster())
    for job in jobs:
        kept = Store(tmp_path / "out").run_folder(job.config) / "error.txt"
        assert str(kept) in str(found.value)
        assert 'raise LookupError("of no use")' in kept.read_text(encoding="utf-8")


def generated() -> DataSet:
    from equipoise.data.source import all_data

    return all_data()["generated"]
