"""What is left of processes that were killed."""

import time
from pathlib import Path


def members(group: int, *, dead: bool = False) -> list[int]:
    """The processes of a group that are still running, or that are dead and nobody has buried yet, if asked for."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, owner = path.read_text().rpartition(")")[2].split()[:3]
        except OSError:
            continue
        if int(owner) == group and (dead or state != "Z"):
            found.append(int(path.parent.name))
    return found


def assert_gone(group: int, *, buried: bool = False) -> None:
    """Nothing of a group outlives it by more than a moment; not even dead ones, where they have to be buried."""
    deadline = time.monotonic() + 5
    while members(group, dead=buried) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert members(group, dead=buried) == []
