"""Averages over the ranks of a distributed run. The only place of the core that speaks to torch.distributed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal, TypeAlias

import torch
import torch.distributed as dist
from torch import Tensor

Group: TypeAlias = "Any | Literal['world'] | None"


def size(group: Group) -> int:
    """Ranks that train one model together: 1 without torch.distributed, or where averaging was declined."""
    if group is None or not dist.is_available() or not dist.is_initialized():
        return 1
    return dist.get_world_size(_of(group))


def mean(values: Tensor, group: Group) -> Tensor:
    """The mean of a tensor over ranks."""
    ranks = size(group)
    if ranks == 1:
        return values
    total = values.clone()
    dist.all_reduce(total, group=_of(group))
    return total / ranks


def log_mean_exp(values: Tensor, group: Group) -> Tensor:
    """The logarithm of the mean of exp(values) over ranks, for quantities far below what a float can hold."""
    ranks = size(group)
    if ranks == 1:
        return values
    gathered = [torch.empty_like(values) for _ in range(ranks)]
    dist.all_gather(gathered, values.contiguous(), group=_of(group))
    return torch.logsumexp(torch.stack(gathered), dim=0) - math.log(ranks)


def mean_of_each(tensors: Sequence[Tensor], group: Group) -> list[Tensor]:
    """The mean over ranks of every tensor, in one message per dtype."""
    ranks = size(group)
    if ranks == 1 or not tensors:
        return list(tensors)
    averaged: dict[int, Tensor] = {}
    for dtype in {tensor.dtype for tensor in tensors}:
        same = [(index, tensor) for index, tensor in enumerate(tensors) if tensor.dtype == dtype]
        flat = torch.cat([tensor.reshape(-1) for _, tensor in same])
        dist.all_reduce(flat, group=_of(group))
        pieces = (flat / ranks).split([tensor.numel() for _, tensor in same])
        averaged.update((index, piece.view(tensor.shape)) for (index, tensor), piece in zip(same, pieces, strict=True))
    return [averaged[index] for index in range(len(tensors))]


def everywhere(flag: Tensor, group: Group) -> Tensor:
    """Whether a flag is true on every rank."""
    if size(group) == 1:
        return flag
    agreed = flag.to(torch.float32)
    dist.all_reduce(agreed, op=dist.ReduceOp.MIN, group=_of(group))
    return agreed > 0


def _of(group: Group) -> Any:
    return None if group == "world" else group
