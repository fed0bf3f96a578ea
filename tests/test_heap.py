import ctypes
import resource

import pytest
import torch

from equipoise import heap

WITH_GLIBC = hasattr(ctypes.CDLL(None), "mallopt")


def steps(count: int) -> int:
    """Pages that are mapped anew while so many steps take memory and give it back, as training does."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(count):
        kept = [torch.zeros(2**17 + 4096 * number) for number in range(40)]
        kept.clear()
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


@pytest.mark.skipif(not WITH_GLIBC, reason="needs glibc")
def test_the_next_step_finds_its_memory_mapped() -> None:
    for option in (-1, -3):
        ctypes.CDLL(None).mallopt(option, 2**17)  # what glibc begins with
    assert steps(10) > 10_000
    heap.keep_freed_memory()
    steps(3)
    assert steps(10) < 100


def test_nothing_happens_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda _: object())
    heap.keep_freed_memory()
