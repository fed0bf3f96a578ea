"""Cores and memory that this process may use, child processes that end with their parent, and locked folders."""

import ctypes
import fcntl
import itertools
import math
import multiprocessing as mp
import os
import platform
import signal
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterable
from contextlib import AbstractContextManager, contextmanager, suppress
from multiprocessing import resource_tracker
from pathlib import Path
from typing import final

import torch

from equipoise.util.errors import BadInput

LOCK_SECONDS = 1.0  # the children of a process that was killed hold its folder until they too are gone

GROUPS, OWN_GROUPS = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")
MEMORY = Path("/proc/meminfo")

MUCH = 2**31  # bytes: whoever takes more says so first
FREED_BYTES = 2**28  # that a step of a small model frees and the next one allocates again
LARGEST_BLOCK = 2**25  # bytes of one block that comes from there; no more is accepted by all versions of glibc
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # in glibc's malloc.h


def keep_freed_memory() -> None:
    """Let glibc's allocator keep freed memory: given back to the system, every page of it is cleared and mapped anew.

    Where there is no glibc nothing happens.
    """
    with suppress(AttributeError, OSError, TypeError):  # other libraries, other systems
        option = ctypes.CDLL(None).mallopt
        option(_TRIM_THRESHOLD, FREED_BYTES)
        option(_MMAP_THRESHOLD, LARGEST_BLOCK)


def cores() -> int:
    """Count the cores this process may keep busy: those it is bound to, and not more than a container grants."""
    bound = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    granted = _group_limit("cpu", (["cpu.max"], ["cpu.cfs_quota_us", "cpu.cfs_period_us"]), _granted_cores)
    return max(1, math.ceil(min(bound, granted)))


def _granted_cores(*texts: str) -> float:
    quota, period = " ".join(texts).split()
    return math.inf if quota in ("max", "-1") else int(quota) / int(period)


def _group_limit(kind: str, versions: Iterable[Iterable[str]], read: Callable[..., float]) -> float:
    """Return the least limit of the control groups around this process; infinite without a limit.

    Args:
        kind: "cpu" or "memory".
        versions: The files that tell it, in version 2 of control groups and in version 1.
        read: Gives the limit from the texts of these files.
    """
    least, lines = math.inf, []
    with suppress(OSError, ValueError):  # not Linux, or another one
        lines = OWN_GROUPS.read_text(encoding="utf-8").splitlines()
    for _, kinds, place in (line.split(":", 2) for line in lines if line.count(":") > 1):
        if not kinds or kind in kinds.split(","):  # version 2 has one tree for everything, version 1 one for each kind
            top = GROUPS / kind if kinds else GROUPS
            inner = top / place.strip("/")
            folders = [folder for folder in (inner, *inner.parents) if folder.is_relative_to(top)]
            for folder, names in itertools.product(folders, versions):
                with suppress(OSError, ValueError, ZeroDivisionError):  # not there, or not to be understood
                    least = min(least, read(*((folder / name).read_text(encoding="utf-8") for name in names)))
    return least


@contextmanager
def threads(count: int) -> Generator[None, None, None]:
    """Let torch use this many threads inside the context."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def free_memory() -> int:
    """Return the bytes that this process may still take: free on the machine, and granted by the container."""
    free = 2**36
    with suppress(ValueError, OSError, AttributeError):  # where there are such names
        free = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    with suppress(OSError, ValueError, IndexError):  # on Linux
        free = 1024 * int(MEMORY.read_text(encoding="utf-8").partition("MemAvailable:")[2].split()[0])
    stat = "memory.stat"
    versions = (["memory.max", "memory.current", stat], ["memory.limit_in_bytes", "memory.usage_in_bytes", stat])
    return int(max(0, min(free, _group_limit("memory", versions, _memory_left))))


def _memory_left(granted: str, used: str, stat: str) -> float:
    if granted.strip() == "max":
        return math.inf
    pages = dict(line.split() for line in stat.splitlines())  # unused ones of files count as free
    return int(granted) - int(used) + int(pages.get("total_inactive_file", pages.get("inactive_file", 0)))


def memory_problem(needed: float, free: float | None = None, of: str = "") -> str:
    """Say how much memory something needs and how much is free; "" where it fits.

    Args:
        needed: Bytes.
        free: Bytes that are free; found out where not given.
        of: What needs them: where that is much and fits, the user is told before it is taken.
    """
    free = free_memory() if free is None else free
    if needed <= free:
        if of and needed > MUCH:
            print(f"{of} takes about {needed / 2**30:,.1f} GiB of memory", file=sys.stderr, flush=True)
        return ""
    return f"needs about {needed / 2**30:,.1f} GiB of memory, and {free / 2**30:,.1f} GiB are free"


@final
class Reserve:
    """Memory that the threads of this process share: each waits until there is room for what it is going to take.

    Args:
        most: Bytes that they may take together; what needs more by itself waits until it is alone.
    """

    def __init__(self, most: int) -> None:
        self._most, self._taken, self._changed = most, 0, threading.Condition()

    @contextmanager
    def of(self, needed: int) -> Generator[None, None, None]:
        """Take so many bytes inside of the context."""
        with self._changed:
            self._changed.wait_for(lambda: not self._taken or self._taken + needed <= self._most)
            self._taken += needed
        try:
            yield
        finally:
            if needed > LARGEST_BLOCK:  # glibc keeps what a thread has freed for that thread
                with suppress(AttributeError, OSError, TypeError):
                    ctypes.CDLL(None).malloc_trim(0)
            with self._changed:
                self._taken -= needed
                self._changed.notify_all()


decoding = Reserve(2**30)
"""Of threads that decode pictures and videos."""


def exit_with_parent(*, from_server: bool = False) -> None:
    """End this child when its parent ends: children of a killed parent must not write beside those of the next one.

    Args:
        from_server: Whether the server of multiprocessing started it, which the system takes for its parent.
    """
    parent = mp.parent_process()
    if parent is not None and from_server:
        threading.Thread(target=lambda: (parent.join(), os._exit(1)), daemon=True).start()
        return
    if platform.system() == "Linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)
    if parent is not None and os.getppid() != parent.pid:  # it died before it could be asked for
        os._exit(1)


def start_without_sigint(process: mp.process.BaseProcess) -> None:
    """Start a child that ignores Ctrl-C from its first instruction on: the parent ends its children."""
    if getattr(process, "_start_method", "fork") != "fork":
        resource_tracker.ensure_running()  # which lets Ctrl-C through again once it has started
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        process.start()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def exit_reason(code: int | None) -> str:
    """Say in words what the exit code of a process means."""
    if code is None or code >= 0:
        return "still running" if code is None else f"exit code {code}"
    return {one.value: one.name for one in signal.Signals}.get(-code, f"signal {-code}")


@contextmanager
def lock(
    descriptor: int, problem: str, patience: float, errors: type[OSError] = BlockingIOError
) -> Generator[None, None, None]:
    """Lock an open file or folder against other processes, and close it at the end.

    Args:
        descriptor: Of the file.
        problem: The message where another process holds the lock.
        patience: Seconds to wait for it.
        errors: Exceptions that mean so; others pass through.
    """
    try:
        until = time.monotonic() + patience
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except errors:
                if time.monotonic() > until:
                    raise BadInput(problem) from None
                time.sleep(0.02)
        yield
    finally:
        os.close(descriptor)


def lock_folder(folder: Path, doing: str, patience: float = LOCK_SECONDS) -> AbstractContextManager[None]:
    """Lock a folder against other processes; the lock is on the folder itself and leaves no file behind.

    Args:
        folder: Must exist.
        doing: The work of another process there, for the message.
        patience: Seconds to wait for the lock.
    """
    msg = f"another process is {doing} {folder}; wait for it, or choose another folder with --out"
    return lock(os.open(folder, os.O_RDONLY), msg, patience)
