"""The memory that work takes at its peak, however much this process has taken before."""

import ctypes
import re
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def takes_less_than(mebibytes: float) -> Generator[None]:
    """Fail where what is done inside takes more beyond what the process holds now; an error inside is passed on."""
    ctypes.CDLL(None).malloc_trim(0)  # what is free but still held would be taken without a trace
    Path("/proc/self/clear_refs").write_text("5")  # the highest mark falls to what is held now
    before = _mebibytes("VmRSS")
    try:
        yield
    finally:
        taken = _mebibytes("VmHWM") - before
        assert taken < mebibytes, f"{taken:.0f} MiB"


def _mebibytes(name: str) -> float:
    (found,) = re.findall(rf"^{name}:\s+(\d+) kB$", Path("/proc/self/status").read_text(), re.MULTILINE)
    return int(found) / 1024
