import ctypes
import subprocess
import sys

import pytest

from equipoise.util import processes

# A process of its own: what glibc keeps depends on all that was freed before.
PROGRAM = """
import ctypes, resource, sys, torch
from equipoise.util import processes

for option in (-1, -3):
    ctypes.CDLL(None).mallopt(option, 2**17)  # what glibc begins with

def steps(count):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(count):
        kept = [torch.zeros(2**17 + 4096 * number) for number in range(40)]
        kept.clear()
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

if sys.argv[1] == "keeping":
    processes.keep_freed_memory()
steps(3)
print(steps(10))
"""


def pages_mapped(how: str) -> int:
    """Pages that are mapped anew while ten steps take memory and give it back, as training does."""
    done = subprocess.run([sys.executable, "-c", PROGRAM, how], capture_output=True, text=True, check=True)
    return int(done.stdout)


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallopt"), reason="needs glibc")
def test_the_next_step_finds_its_memory_mapped() -> None:
    # Some pages are mapped for reasons of the system's own, up to 200 were seen; what is not kept are 76,000.
    assert pages_mapped("keeping") < pages_mapped("as it is") / 100


def test_nothing_happens_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda _: object())
    processes.keep_freed_memory()
