"""One run on another machine: the same row as here, or a reason."""

import fcntl
import os
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import pytest

from equipoise.data.bundled import two_sensors
from equipoise.study.executors import remote
from equipoise.study.executors.remote import RemoteTask, unpack
from equipoise.study.job import Job, run_job
from equipoise.study.registry import entries
from equipoise.study.study import plan
from small_study import DATA, results

SPLITS = two_sensors(samples=150)


def job_of(*words: str) -> Job:
    jobs, _ = plan(entries(["mimo"], ["epochs=2", "features=8", *words]), DATA, [0], [None], measure="quick")
    return jobs[0]


def task_of(folder: Path, mark: Path | None = None, run: Any = run_job) -> RemoteTask:
    job = job_of()
    return RemoteTask(run, job, job.facts(), folder, mark)


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
