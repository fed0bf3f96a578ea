"""Keeping the memory that tensors on the CPU leave behind for those of the next step."""

from __future__ import annotations

import ctypes

KEPT = 2**28  # bytes: what a step of a small model frees and the next one asks for again
LARGEST = 2**25  # bytes of one block that comes from there; no more is accepted by all versions
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # in glibc's malloc.h


def keep_freed_memory() -> None:
    """Let glibc keep freed memory in this process: handed back, every page of it is cleared and mapped anew.

    Where there is no glibc nothing happens.
    """
    try:
        option = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):  # other libraries, other systems
        return
    option(_TRIM_THRESHOLD, KEPT)
    option(_MMAP_THRESHOLD, LARGEST)
