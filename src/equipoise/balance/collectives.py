"""Averages over the ranks of a distributed run. The only place of the core that speaks to torch.distributed."""

from __future__ import annotations

import math
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import Any, Literal, TypeAlias

import torch
import torch.distributed as dist
from torch import Tensor

Group: TypeAlias = "Any | Literal['world'] | None"

# No context variables: backward passes on a GPU run in a thread of their own, which would not see them.
_alone = False
_weight = 1.0


def size(group: Group = "world") -> int:
    """Ranks that train one model together: 1 without torch.distributed, or where averaging was declined."""
    if _alone or group is None or not dist.is_available() or not dist.is_initialized():
        return 1
    return dist.get_world_size(_of(group))


def rank() -> int:
    """The number of this rank among all; 0 where there is one."""
    return dist.get_rank() if size() > 1 else 0


@contextmanager
def single_rank() -> Generator[None]:
    """As if there was one rank, for what each does by itself, or one does while the others wait."""
    global _alone
    before, _alone = _alone, True
    try:
        yield
    finally:
        _alone = before


@contextmanager
def rank_weight(weight: float) -> Generator[None]:
    """Let the values of this rank count so much in means: where ranks have unequal numbers of samples.

    Means of gradients are not changed by this: there the weight belongs on the loss that is differentiated.

    Args:
        weight: The share of this rank in all samples, times the number of ranks.
    """
    global _weight
    before, _weight = _weight, weight
    try:
        yield
    finally:
        _weight = before


def mean(values: Tensor, group: Group) -> Tensor:
    """The mean of a tensor over ranks, each with its weight."""
    ranks = size(group)
    if ranks == 1:
        return values
    total = values * _weight
    dist.all_reduce(total, group=_of(group))
    return total / ranks


def total(values: Tensor, group: Group = "world") -> Tensor:
    """The sum of a tensor over ranks."""
    if size(group) == 1:
        return values
    summed = values.clone()
    dist.all_reduce(summed, group=_of(group))
    return summed


def log_mean_exp(values: Tensor, group: Group) -> Tensor:
    """The logarithm of the mean of exp(values) over ranks, for quantities far below what a float can hold."""
    ranks = size(group)
    if ranks == 1:
        return values
    values = values + (math.log(_weight) if _weight > 0 else -math.inf)
    gathered = [torch.empty_like(values) for _ in range(ranks)]
    dist.all_gather(gathered, values, group=_of(group))
    return torch.logsumexp(torch.stack(gathered), dim=0) - math.log(ranks)


def mean_of_each(tensors: Sequence[Tensor], group: Group) -> list[Tensor]:
    """The mean over ranks of every tensor, in one message per dtype."""
    ranks = size(group)
    if ranks == 1 or not tensors:
        return list(tensors)
    averaged: dict[int, Tensor] = {}
    for dtype in dict.fromkeys(tensor.dtype for tensor in tensors):  # a set has another order on every rank
        same = [(index, tensor) for index, tensor in enumerate(tensors) if tensor.dtype == dtype]
        flat = torch.cat([tensor.reshape(-1) for _, tensor in same])
        dist.all_reduce(flat, group=_of(group))
        pieces = (flat / ranks).split([tensor.numel() for _, tensor in same])
        averaged.update((index, piece.view(tensor.shape)) for (index, tensor), piece in zip(same, pieces, strict=True))
    return [averaged[index] for index in range(len(tensors))]


def broadcast(tensors: Sequence[Tensor]) -> None:
    """Give every rank the values of rank 0, in place, in one message per dtype."""
    if size() == 1:
        return
    for dtype in dict.fromkeys(tensor.dtype for tensor in tensors):
        same = [tensor for tensor in tensors if tensor.dtype == dtype]
        flat = torch.cat([tensor.detach().reshape(-1) for tensor in same])
        dist.broadcast(flat, 0)
        for tensor, piece in zip(same, flat.split([tensor.numel() for tensor in same]), strict=True):
            tensor.detach().copy_(piece.view(tensor.shape))


def all_true(flag: Tensor, group: Group) -> Tensor:
    """Whether a flag is true on every rank."""
    if size(group) == 1:
        return flag
    agreed = flag.to(torch.float32)
    dist.all_reduce(agreed, op=dist.ReduceOp.MIN, group=_of(group))
    return agreed > 0


def _of(group: Group) -> Any:
    return None if group == "world" else group
