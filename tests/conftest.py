"""Settings of the whole suite: one thread per process, since the processes share the cores; bytecode is kept."""

import gc
import os
import signal
import sys
from collections.abc import Callable, Generator
from pathlib import Path

import pytest

from ended import Ended

# Tests start many processes. Where no bytecode is kept, each compiles all that it imports: two thirds of its start.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
STARTED = str(Path(__file__).parent / "started")  # see its sitecustomize.py
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (STARTED, os.environ.get("PYTHONPATH"))))
sys.path.append(STARTED)  # for those who are given a path of their own, made of this one


def pytest_collection() -> None:
    """Prepare a process that collects: with workers, the first process does not, and need not load torch."""
    import torch

    gc.disable()
    torch.set_num_threads(1)
    _seed_processor_only()


def pytest_collection_finish() -> None:
    """Let the garbage collector pass over what is there by now, libraries and tests: nothing of it becomes garbage."""
    gc.freeze()
    gc.enable()


def _seed_processor_only() -> None:
    """Let `torch.manual_seed` leave out devices that are not here: for each it would format the stack, a deep one here.

    It keeps the stack for the error that a later start of the device might raise.
    """
    import torch

    for device in (torch.cuda, torch.xpu, torch.mtia):
        if not device.is_available():
            vars(device)["manual_seed_all"] = _seed_nothing


def _seed_nothing(seed: int) -> None:
    """Seed none of no devices."""


@pytest.fixture
def heard_signals() -> Generator[None, None, None]:
    """Let a child hear Ctrl-C: a suite that was started in the background ignores it, and children inherit that."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def equipoise(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Ended]:
    """Runs the command in this process."""
    from equipoise.cli import main as cli

    def run(*words: str | Path) -> Ended:
        monkeypatch.setattr(sys, "argv", ["equipoise", *map(str, words)])
        code = 0
        try:
            cli.main()
        except SystemExit as done:
            code = done.code if isinstance(done.code, int) else 1
        return Ended(code, *capsys.readouterr())

    return run
