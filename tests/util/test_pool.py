"""Work in several processes: what comes back, in which order, and how it ends."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from equipoise.paper import landscape_plane
from equipoise.paper.landscape import LandscapeSettings, gather
from equipoise.study.registry import entries
from equipoise.util import pool as module
from equipoise.util.errors import BadInput
from equipoise.util.pool import Pool, Tell, parallel_workers, run_parallel
from paper.test_landscape import signals

pytestmark = pytest.mark.slow


@pytest.fixture(params=[1, 3], ids=["in turn", "at once"])
def several(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(module, "parallel_workers", lambda: request.param)
    return request.param


def working(number: int, seconds: float) -> Callable[[Tell], tuple[int, int, torch.Tensor]]:
    def work(tell: Tell) -> tuple[int, int, torch.Tensor]:
        time.sleep(seconds)
        tell(f"work {number}")
        return number, os.getpid(), torch.full((3,), float(number))

    return work


def test_results_come_in_the_order_of_the_works_and_words_are_heard(several: int) -> None:
    heard: list[str] = []
    found = run_parallel([working(0, 0.2), working(1, 0.0), working(2, 0.0)], heard.append)
    assert [number for number, _, _ in found] == [0, 1, 2]
    assert sorted(heard) == ["work 0", "work 1", "work 2"]
    assert all(torch.equal(value, torch.full((3,), float(number))) for number, _, value in found)
    processes = {process for _, process, _ in found}
    assert processes == {os.getpid()} if several == 1 else len(processes) == 3 and os.getpid() not in processes


def test_a_failure_is_raised_as_what_it_is_and_ends_the_others(several: int, tmp_path: Path) -> None:
    def failing(_: Tell) -> None:
        raise BadInput("type something else")

    def late(_: Tell) -> None:
        time.sleep(1.0)
        (tmp_path / "late").touch()

    works = [failing, late] if several > 1 else [failing]
    with pytest.raises(BadInput, match="type something else"):
        run_parallel(works)
    time.sleep(1.2)
    assert not list(tmp_path.iterdir())


def test_a_process_that_is_killed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "parallel_workers", lambda: 2)

    def dying(_: Tell) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    with pytest.raises(RuntimeError, match=r"ended without a message \(SIGKILL\)"):
        run_parallel([dying, working(1, 0.0)])


def test_children_use_one_core_each_and_have_no_children(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "parallel_workers", lambda: 2)
    found = run_parallel([lambda _: (torch.get_num_threads(), parallel_workers())] * 2)
    assert [threads for threads, _ in found] == [1, 1]
    monkeypatch.undo()
    monkeypatch.setattr(module.torch.cuda, "is_available", lambda: True)
    assert parallel_workers() == 1, "a process that may use a GPU is not doubled"
    monkeypatch.setattr(module.torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(module, "cores", lambda: 7)
    assert parallel_workers() == 7


def test_a_landscape_is_the_same_to_the_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = entries(["msl", "mimo"], ["fusion=sum", "batch=20"])
    # Convolutions are judged eight places at a time: 50 places are seven shares for three processes.
    settings = LandscapeSettings(steps=3, points=7, samples=20)
    before, found = torch.get_num_threads(), []
    torch.set_num_threads(1)
    try:
        for count in (1, 3):
            for where in (module, landscape_plane):
                monkeypatch.setattr(where, "parallel_workers", lambda count=count: count)
            found.append(gather(signals(), lines, settings))
    finally:
        torch.set_num_threads(before)
    assert found[0].as_dict() == found[1].as_dict()
    for one, other in zip(found[0].surfaces, found[1].surfaces, strict=True):
        np.testing.assert_array_equal(one.train, other.train)
        np.testing.assert_array_equal(one.test, other.test)
        for name, grid in one.accuracy.items():
            np.testing.assert_array_equal(grid, other.accuracy[name])


def outcomes(pool: Pool, *tasks: str) -> dict[str, tuple[str, object]]:
    found: dict[str, tuple[str, object]] = {}
    with pool:
        pool.submit(*tasks)
        while pool.unfinished:
            found.update({task: (kind, content) for task, kind, content in pool.events()})
    return found


def test_a_pool_tells_apart_what_becomes_of_tasks(tmp_path: Path) -> None:
    def work(task: str, _: Tell) -> str:
        if task == "dies once" and not (tmp_path / "died").exists():
            (tmp_path / "died").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        if task == "dies":
            os._exit(3)
        if task == "hangs":
            time.sleep(60)
        if task == "fails":
            raise LookupError("of no use")
        return task.upper()

    tasks = ("dies once", "dies", "hangs", "fails", *(f"task {number}" for number in range(20)))
    found = outcomes(Pool(work, 2, ahead=3, tries=2, patience=0.5), *tasks)
    kind, error = found.pop("fails")
    assert kind == "failed"
    assert isinstance(error, LookupError)
    assert "of no use" in str(error.__cause__), "the traceback of the worker"
    assert found.pop("dies") == ("died", "exit code 3")
    assert found.pop("hangs") == ("late", None)
    assert found == {task: ("done", task.upper()) for task in tasks if task not in ("dies", "hangs", "fails")}


def test_an_idle_worker_that_was_killed_is_replaced() -> None:
    with Pool(lambda _, __: os.getpid(), 1) as pool:
        processes = []
        for kill in (False, True, False):
            pool.submit(None)
            while pool.unfinished:
                processes += [content for _, _, content in pool.events()]
            if kill:
                os.kill(processes[-1], signal.SIGKILL)
                time.sleep(0.2)
    assert processes[0] == processes[1] != processes[2]


@pytest.mark.slow
def test_ctrl_c_while_workers_are_being_made_shows_no_traceback(tmp_path: Path) -> None:
    """The server that workers are forked off imports what they need, which takes seconds."""
    (tmp_path / "slow_to_import.py").write_text(
        "import pathlib, time\npathlib.Path('importing').touch()\ntime.sleep(3)\ndef work(task, tell): return task\n"
    )
    (tmp_path / "program.py").write_text(
        "import sys\n"
        "from equipoise.util.pool import Pool\n"
        "def work(task, tell):\n    return task\n"
        "if __name__ == '__main__':\n"
        "    try:\n"
        "        with Pool(work, 1, preload=['slow_to_import']) as pool:\n"
        "            pool.submit(1)\n"
        "            print(list(pool.events()))\n"
        "    except KeyboardInterrupt:\n"
        "        sys.exit(130)\n"
    )
    with subprocess.Popen(
        [sys.executable, "program.py"], cwd=tmp_path, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as program:
        end = time.monotonic() + 60
        while not (tmp_path / "importing").exists() and time.monotonic() < end:
            time.sleep(0.01)
        os.killpg(program.pid, signal.SIGINT)
        _, errors = program.communicate(timeout=60)
    assert (program.returncode, errors) == (130, "")
