"""Studies elsewhere: the same rows as here, whoever dies on the way."""

import importlib.util
import json
import os
import secrets
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

import imitated_slurm
import ray_program
from equipoise.data.source import DataSet
from equipoise.study.executors import RayCluster, SlurmCluster, cluster_of
from equipoise.study.job import Job
from equipoise.study.registry import entries
from equipoise.study.store import Store
from equipoise.study.study import plan, run_study
from equipoise.training.launch import device_of
from equipoise.training.settings import Settings
from equipoise.util.errors import BadInput, FailedRuns
from small_study import DATA, results

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
    with pytest.raises(ModuleNotFoundError, match=rf"type: pip install .*\[{extra}\]'"):
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
    asked = ["--data", "generated", "--methods", "msl,mimo", "--seeds", "1", "--quick", "--preset", "none", "--json"]
    program = "import equipoise_command; equipoise_command.main()"
    command = [
        sys.executable,
        "-c",
        program,
        "compare",
        "--on",
        "slurm:partition=tiny",
        "--out",
        str(out),
        *asked,
        *words,
    ]
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
