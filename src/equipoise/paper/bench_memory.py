"""The most memory that tensors take at once during some work, on any device."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any, final

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

MEBIBYTE = 2**20


def peak_of(work: Callable[[], Any], device: torch.device) -> float:
    """MiB that were taken at once during some work, beyond what was taken before it.

    On a GPU its allocator knows. Elsewhere every tensor that an operation makes is counted until it dies: what kernels
    take inside and give back is not seen.

    Args:
        work: What is done, once.
        device: Where.

    Example:
        >>> peak_of(lambda: torch.ones(2**20) + torch.ones(2**20), torch.device("cpu"))  # three times four bytes
        12.0
    """
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        before = torch.cuda.memory_allocated(device)
        torch.cuda.reset_peak_memory_stats(device)
        work()
        torch.cuda.synchronize(device)
        return (torch.cuda.max_memory_allocated(device) - before) / MEBIBYTE
    with _Meter() as meter:
        work()
    return meter.peak / MEBIBYTE


@final
class _Meter(TorchDispatchMode):
    """Adds up the memory of tensors as operations make them and as they die."""

    def __init__(self) -> None:
        super().__init__()
        self.live = self.peak = 0
        self._known: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        given = {_memory(tensor) for tensor in tree_leaves((args, kwargs)) if isinstance(tensor, Tensor)}
        for tensor in tree_leaves(made):
            if isinstance(tensor, Tensor) and _memory(tensor) not in given | self._known:  # neither a view nor in place
                self._add(tensor.untyped_storage())
        return made

    def _add(self, storage: torch.UntypedStorage) -> None:
        self._known.add(storage._cdata)
        self.live += storage.nbytes()
        self.peak = max(self.peak, self.live)
        weakref.finalize(storage, self._remove, storage._cdata, storage.nbytes())

    def _remove(self, key: int, size: int) -> None:
        self._known.discard(key)
        self.live -= size


def _memory(tensor: Tensor) -> int:
    return tensor.untyped_storage()._cdata
