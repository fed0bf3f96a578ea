"""What is left of processes that were killed."""

import time
from pathlib import Path


def members(group: int) -> list[int]:
    """The processes of a group that are still running."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, owner = path.read_text().rpartition(")")[2].split()[:3]
        except OSError:
            continue
        if int(owner) == group and state != "Z":
            found.append(int(path.parent.name))
    return found


def assert_gone(group: int) -> None:
    """Nothing of a group outlives it by more than a moment."""
    deadline = time.monotonic() + 5
    while members(group) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert members(group) == []
