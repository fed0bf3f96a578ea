"""Settings of the whole suite: one thread per process, since the processes share the cores."""

import signal
from collections.abc import Generator

import pytest
import torch

torch.set_num_threads(1)


@pytest.fixture
def heard_signals() -> Generator[None, None, None]:
    """Let a child hear Ctrl-C: a suite that was started in the background ignores it, and children inherit that."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)
