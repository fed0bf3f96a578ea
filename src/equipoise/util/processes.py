"""Cores and memory that are there to use, children that end when they should, folders that one process alone has."""

from __future__ import annotations

import ctypes
import fcntl
import math
import multiprocessing as mp
import os
import platform
import signal
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from equipoise.util.errors import BadInput

PATIENCE = 1.0  # seconds: the children of a process that was killed hold its folder until they too are gone

GROUPS, OWN_GROUPS = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")
MEMORY = Path("/proc/meminfo")


def cores() -> int:
    """How many cores this process may keep busy: those it is bound to, and not more than a container grants."""
    bound = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, math.ceil(min(bound, _granted())))


def _granted() -> float:
    """How many cores' time the least of the control groups around this process may take; infinite without a limit."""
    return min((_limit(folder) for folder in _groups("cpu")), default=math.inf)


def _groups(kind: str) -> Generator[Path]:
    """The folders of the control groups around this process: those for everything, and those for cores or memory."""
    try:
        lines = OWN_GROUPS.read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError):  # not Linux, or another one
        return
    for _, kinds, place in (line.split(":", 2) for line in lines if line.count(":") > 1):
        if not kinds or kind in kinds.split(","):  # version 2 has one tree for everything, version 1 one for each kind
            top = GROUPS / kind if kinds else GROUPS
            inner = top / place.strip("/")
            yield from (folder for folder in (inner, *inner.parents) if folder.is_relative_to(top))


def _limit(group: Path) -> float:
    for files in (["cpu.max"], ["cpu.cfs_quota_us", "cpu.cfs_period_us"]):
        try:
            quota, period = " ".join((group / file).read_text(encoding="utf-8") for file in files).split()
            return math.inf if quota in ("max", "-1") else int(quota) / int(period)
        except (OSError, ValueError, ZeroDivisionError):  # not there, or not to be understood
            continue
    return math.inf


@contextmanager
def threads(count: int) -> Generator[None, None, None]:
    """Let torch use so many threads meanwhile, and as many as before afterwards."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def free_memory() -> int:
    """Return the bytes that this process may still take: free on the machine, and granted by the container."""
    try:
        described = MEMORY.read_text(encoding="utf-8")
        free = 1024 * int(described.partition("MemAvailable:")[2].split()[0])
    except (OSError, ValueError, IndexError):  # not Linux
        free = _memory_of_the_machine()
    return int(max(0, min(free, _left_in_groups())))


def beyond_memory(needed: float) -> str:
    """Say how much memory something needs and how much is free; "" where it fits."""
    return "" if needed <= (free := free_memory()) else beyond(needed, free)


def beyond(needed: float, free: float) -> str:
    """Say that something does not fit."""
    return f"needs about {needed / 2**30:,.1f} GiB of memory, and {free / 2**30:,.1f} GiB are free"


def _memory_of_the_machine() -> int:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError, AttributeError):  # no such names either
        return 2**36


def _left_in_groups() -> float:
    return min((_memory_left(folder) for folder in _groups("memory")), default=math.inf)


def _memory_left(group: Path) -> float:
    """Return the bytes that a control group may still take. Unused pages of files count as free."""
    for limit, used, unused in (
        ("memory.max", "memory.current", "inactive_file"),
        ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    ):
        try:
            granted = (group / limit).read_text(encoding="utf-8").strip()
            if granted == "max":
                return math.inf
            told = dict(line.split() for line in (group / "memory.stat").read_text(encoding="utf-8").splitlines())
            return int(granted) - int((group / used).read_text(encoding="utf-8")) + int(told.get(unused, 0))
        except (OSError, ValueError):  # not there, or not to be understood
            continue
    return math.inf


def die_with_the_parent(*, born_of_a_server: bool = False) -> None:
    """Called first in a child: a killed parent must not leave children behind that write beside the next one.

    Args:
        born_of_a_server: Whether the system takes another process for its parent, the server of multiprocessing.
    """
    parent = mp.parent_process()
    if parent is not None and born_of_a_server:
        threading.Thread(target=_end_after, args=(parent,), daemon=True).start()
        return
    if platform.system() == "Linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)
    if parent is not None and os.getppid() != parent.pid:  # it died before it could be asked for
        os._exit(1)


def _end_after(parent: Any) -> None:
    parent.join()
    os._exit(1)


def start_deaf(process: mp.Process) -> None:
    """Start a child that does not hear Ctrl-C, not even before it can say so itself: the parent ends its children."""
    heard = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        process.start()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, heard)


def ending_of(code: int | None) -> str:
    """What the exit code of a process says, in words."""
    if code is None:
        return "still running"
    if code >= 0:
        return f"exit code {code}"
    names = {each.value: each.name for each in signal.Signals}
    return names.get(-code, f"signal {-code}")


@contextmanager
def alone_in(folder: Path, doing: str, patience: float = PATIENCE) -> Generator[None, None, None]:
    """Keep a second process out of a folder, which leaves no file behind: the folder itself is locked.

    Args:
        folder: Must exist.
        doing: What another process there would be doing, for the message.
        patience: Seconds to wait for it.
    """
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        until = time.monotonic() + patience
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > until:
                    msg = f"another process is {doing} {folder}; wait for it, or choose another folder with --out"
                    raise BadInput(msg) from None
                time.sleep(0.02)
        yield
    finally:
        os.close(descriptor)
