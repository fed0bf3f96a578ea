"""How many runs one GPU carries, and what is told to processes that share it."""

from __future__ import annotations

import os
import stat
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from equipoise.data import Splits
from equipoise.data.bundled import two_sensors
from equipoise.data.source import DataSet
from equipoise.study.executors.local import (
    CONTEXT,
    CONTROL,
    LOG,
    PIPE,
    SHARE,
    LocalExecutor,
    bytes_needed,
    environment_for,
    free_memory,
    multi_process_service,
    runs_per_gpu,
    touched_gpu,
)
from equipoise.study.job import run_job
from equipoise.study.registry import entries
from equipoise.study.store import Store
from equipoise.study.study import executor_for, plan
from small_study import jobs_of


def small(_: int | None) -> Splits:
    return two_sensors(samples=60)


def pictures(size: int) -> Splits:
    return Splits.from_arrays({"image": torch.rand(40, 1, size, size)}, torch.arange(40) % 2)


def test_memory_by_hand() -> None:
    """One linear layer would be counted so: weights five times, inputs twice, what the backward pass keeps twice."""
    data = two_sensors(samples=60)
    (entry,) = entries(["mimo"], ["batch=10"])
    held = sum(part.bytes for part in data.parts.values())
    found = bytes_needed(entry, data) - CONTEXT - held
    assert found > 2 * 10 * (8 + 12) * 4  # the inputs of a batch
    assert found < 2**20


def test_a_larger_batch_needs_more_and_about_in_proportion() -> None:
    data = pictures(32)
    needs = [bytes_needed(entries(["mimo"], [f"batch={size}"])[0], data) for size in (32, 64, 128)]
    assert needs[2] - needs[1] == pytest.approx(2 * (needs[1] - needs[0]), rel=0.05)
    assert needs[1] > needs[0]


def test_an_encoder_that_looks_at_its_input_is_guessed() -> None:
    (entry,) = entries(["mimo"], ["encoder=training.test_cuda_graph.Waiting"])
    assert bytes_needed(entry, two_sensors(samples=60)) > CONTEXT


def test_as_many_as_fit_and_no_more_than_cores() -> None:
    data = two_sensors(samples=60)
    chosen = entries(["mimo", "msl"])
    need = max(bytes_needed(entry, data) for entry in chosen)
    assert runs_per_gpu(chosen, data, int(3.5 * need / SHARE), cores=16) == 3
    assert runs_per_gpu(chosen, data, int(3.5 * need / SHARE), cores=2) == 2
    assert runs_per_gpu(chosen, data, 0, cores=16) == 1


def test_the_service_is_started_for_the_study_and_ended_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(PIPE, raising=False)
    control = tmp_path / CONTROL
    control.write_text(f'#!/bin/sh\necho "$@ $(if [ -z "$1" ]; then cat; fi) ${PIPE}" >> {tmp_path}/said\n')
    control.chmod(control.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with multi_process_service() as together:
        assert together
        place = os.environ[PIPE]
        assert Path(place).is_dir()
        assert Path(os.environ[LOG]).is_dir()
    assert PIPE not in os.environ
    assert not Path(place).exists()
    assert (tmp_path / "said").read_text().split("\n")[:2] == [f"-d  {place}", f" quit {place}"]


@pytest.mark.parametrize("running", [True, False])
def test_a_service_that_is_there_is_used_and_one_that_fails_is_done_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, running: bool
) -> None:
    control = tmp_path / CONTROL
    control.write_text("#!/bin/sh\nexit 1\n")
    control.chmod(control.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    if running:
        monkeypatch.setenv(PIPE, str(tmp_path))
    else:
        monkeypatch.delenv(PIPE, raising=False)
    with multi_process_service() as together:
        assert together is running


def test_without_a_gpu_driver_there_is_no_service(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(PIPE, raising=False)
    monkeypatch.setenv("PATH", "")
    with multi_process_service() as together:
        assert not together


def test_one_gpu_of_several_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setenv(PIPE, "somewhere")
    monkeypatch.delenv(LOG, raising=False)
    assert environment_for(1) == {"CUDA_VISIBLE_DEVICES": "1", PIPE: "somewhere"}
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,7")
    assert environment_for(1) == {"CUDA_VISIBLE_DEVICES": "7", PIPE: "somewhere"}
    assert environment_for(None) == {PIPE: "somewhere"}


@pytest.mark.parametrize(("chosen", "told"), [(None, 300), ("1", 500)])
def test_free_memory_is_that_of_the_fullest_gpu_among_those_that_may_be_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chosen: str | None, told: int
) -> None:
    tool = tmp_path / "nvidia-smi"
    tool.write_text('#!/bin/sh\nif [ "$3 $4" = "-i 1" ]; then echo 500; else printf "300\\n500\\n"; fi\n')
    tool.chmod(tool.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if chosen is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", chosen)
    assert free_memory() == told * 2**20


@pytest.mark.parametrize("said", [None, "echo '[N/A]'", "echo 300; echo '[Not Supported]'", "true", "echo 300; exit 9"])
def test_a_driver_that_does_not_tell_is_asked_through_torch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: str | None
) -> None:
    if said is not None:
        tool = tmp_path / "nvidia-smi"
        tool.write_text(f"#!/bin/sh\n{said}\n")
        tool.chmod(tool.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (7, 9))
    assert free_memory() == 7


@pytest.mark.parametrize(("answer", "touched"), [(3, False), (0, True)])
def test_a_driver_that_was_made_ready_is_noticed(
    monkeypatch: pytest.MonkeyPatch, answer: int, *, touched: bool
) -> None:
    class Driver:
        def __init__(self, name: str) -> None:
            assert name == "libcuda.so.1"

        def cuDeviceGetCount(self, _: object) -> int:  # noqa: N802 (NVIDIA's name)
            return answer

    monkeypatch.setattr("equipoise.study.executors.local.ctypes.CDLL", Driver)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
    assert touched_gpu() is touched
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    assert touched_gpu()


@pytest.mark.slow
@pytest.mark.parametrize("touched", [False, True])
def test_a_process_that_uses_a_gpu_goes_on_with_the_next_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, touched: bool
) -> None:
    """Forked off this process or off a server: the rows are the same, and the second run starts no process."""
    monkeypatch.setattr("equipoise.study.executors.local.touched_gpu", lambda: touched)
    started = []
    monkeypatch.setattr(
        "equipoise.util.pool.start_without_sigint", lambda process: (process.start(), started.append(process))
    )
    data = DataSet("small", small, 1, "Small.")
    jobs, splits = plan(entries(["msl", "mimo"], ["epochs=1", "device=cpu"]), data, [0], [None])
    rows = []
    with LocalExecutor(run_job, splits, Store(tmp_path), limit=1, gpus=1) as executor:
        for job in jobs:
            executor.start(job)
            while executor.running:
                rows += [content for _, kind, content in executor.events() if kind == "done"]
    assert [row["method"] for row in rows] == ["msl", "mimo"]
    assert len(started) == 1
    assert rows[1]["test"] == run_job(jobs[1], splits[None], tmp_path / "here")["test"]


@pytest.mark.slow
def test_who_is_killed_while_resting_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("equipoise.study.executors.local.touched_gpu", lambda: False)
    started: list[Any] = []
    monkeypatch.setattr(
        "equipoise.util.pool.start_without_sigint", lambda process: (process.start(), started.append(process))
    )
    jobs, splits = plan(entries(["msl", "mimo"], ["device=cpu"]), DataSet("small", small, 1, "Small."), [0], [None])
    rows = []
    with LocalExecutor(
        lambda job, *_: {"method": job.entry.method.name}, splits, Store(tmp_path), limit=1, gpus=1
    ) as executor:
        for job in jobs:
            executor.start(job)
            rows += [content for _, _, content in executor.events()]
            started[-1].kill()
            started[-1].join()
    assert rows == [{"method": "msl"}, {"method": "mimo"}]
    assert len(started) == 2


def remembering(job: Any, *_: object) -> dict[str, Any]:
    """Says where it is, and what the run before has left behind; and leaves something behind."""
    found = {"gpu": os.environ["CUDA_VISIBLE_DEVICES"], "strict": torch.are_deterministic_algorithms_enabled()}
    torch.use_deterministic_algorithms(mode=True)
    return {"method": job.entry.method.name, "process": os.getpid(), **found}


@pytest.mark.slow
def test_runs_are_dealt_out_to_several_gpus_and_leave_nothing_to_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("equipoise.study.executors.local.touched_gpu", lambda: False)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,7")
    data = DataSet("small", small, 1, "Small.")
    jobs, splits = plan(entries(["msl", "mimo"], ["device=cpu"]), data, [0, 1], [None])
    with LocalExecutor(remembering, splits, Store(tmp_path), limit=4, gpus=2) as executor:
        rounds = []
        for _ in range(2):
            for job in jobs:
                executor.start(job)
            assert not executor.has_room
            rows = []
            while executor.running:
                rows += [content for _, _, content in executor.events()]
            rounds.append(rows)
    for rows in rounds:
        assert sorted(row["gpu"] for row in rows) == ["4", "4", "7", "7"]
        assert [row["strict"] for row in rows] == [False] * 4
    assert len({row["process"] for rows in rounds for row in rows}) == 4


@pytest.mark.parametrize(
    ("there", "device", "together", "expected"),
    [
        (0, "auto", True, 3),
        (1, "auto", False, 1),
        (2, "auto", False, 2),
        (1, "auto", True, 2),
        (2, "auto", True, 4),
        (4, "auto", True, 6),
        (4, "cpu", True, 3),
        (4, "cuda:1", False, 1),
        (4, "cuda:1", True, 2),
    ],
)
def test_how_many_processes_there_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, there: int, device: str, *, together: bool, expected: int
) -> None:
    """Six cores, two threads a run, and memory for two runs on each GPU: the scarcest of them decides."""
    jobs, splits = plan(entries(["msl", "mimo"]), DataSet("small", small, 1, "Small."), range(8), [None], threads=2)
    jobs = [replace(job, entry=job.entry.changed({}, {"device": device})) for job in jobs]
    monkeypatch.setattr("equipoise.study.executors.local.cores", lambda: 6)
    monkeypatch.setattr("equipoise.study.executors.local.gpus", lambda: there)
    monkeypatch.setattr("equipoise.study.executors.local.multi_process_service", lambda: nullcontext(together))
    need = max(bytes_needed(job.entry, splits[None]) for job in jobs)
    monkeypatch.setattr("equipoise.study.executors.local.free_memory", lambda: int(2.5 * need / SHARE))
    with executor_for(run_job, jobs, splits, Store(tmp_path), None, None) as executor:
        assert executor.limit == expected
    with executor_for(run_job, jobs, splits, Store(tmp_path), 5, None) as executor:
        assert executor.limit == 5


@pytest.mark.slow
def test_a_run_that_is_stopped_leaves_its_place_to_another(tmp_path: Path) -> None:
    (endless,), splits = jobs_of("mimo", words=["epochs=1000000", "features=8"])
    (short,), _ = jobs_of("mimo")
    torch.set_num_threads(1)
    with LocalExecutor(partial(run_job, checkpoint_seconds=60.0), splits, Store(tmp_path), limit=1) as executor:
        executor.start(endless)
        assert next(executor.events())[1] == "epoch"
        executor.stop(endless)
        assert not executor.running
        executor.start(short)
        heard = []
        while executor.running:
            heard += [(job.config, kind) for job, kind, _ in executor.events()]
    assert heard == [(short.config, kind) for kind in ("epoch", "epoch", "done")]
