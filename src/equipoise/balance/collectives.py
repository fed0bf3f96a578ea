"""Averages over the ranks of a distributed run. The only place of the core that speaks to torch.distributed."""

import math
from collections.abc import Generator, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Literal, TypeAlias

import torch
import torch.distributed as dist
from torch import Tensor

Group: TypeAlias = "Any | Literal['world'] | None"

# No context variables: backward passes on a GPU run in a thread of their own, which would not see them.
_settings: dict[str, float] = {"single": False, "weight": 1.0}


def size(group: Group = "world") -> int:
    """Return the number of ranks that train one model: 1 without torch.distributed, or where averaging was declined."""
    if _settings["single"] or group is None or not dist.is_available() or not dist.is_initialized():
        return 1
    return dist.get_world_size(_of(group))


def rank() -> int:
    """Return the number of this rank among all; 0 where there is one."""
    return dist.get_rank() if size() > 1 else 0


@contextmanager
def _changed(setting: str, value: float) -> Generator[None]:
    before, _settings[setting] = _settings[setting], value
    try:
        yield
    finally:
        _settings[setting] = before


def single_rank() -> AbstractContextManager[None]:
    """Act as if there was one rank, for what each does by itself, or one does while the others wait."""
    return _changed("single", True)


def rank_weight(weight: float) -> AbstractContextManager[None]:
    """Let the values of this rank count so much in means: where ranks have unequal numbers of samples.

    Means of gradients are not changed by this: there the weight belongs on the loss that is differentiated.

    Args:
        weight: The share of this rank in all samples, times the number of ranks.
    """
    return _changed("weight", weight)


def total(values: Tensor, group: Group = "world") -> Tensor:
    """Return the sum of a tensor over ranks."""
    if size(group) == 1:
        return values
    summed = values.clone()
    dist.all_reduce(summed, group=_of(group))
    return summed


def mean(values: Tensor, group: Group) -> Tensor:
    """Return the mean of a tensor over ranks, each with its weight."""
    ranks = size(group)
    return values if ranks == 1 else total(values * _settings["weight"], group) / ranks


def log_mean_exp(values: Tensor, group: Group) -> Tensor:
    """Return the logarithm of the mean of exp(values) over ranks, for quantities far below what a float can hold."""
    ranks = size(group)
    if ranks == 1:
        return values
    weight = _settings["weight"]
    values = values + (math.log(weight) if weight > 0 else -math.inf)
    gathered = [torch.empty_like(values) for _ in range(ranks)]
    dist.all_gather(gathered, values, group=_of(group))
    return torch.logsumexp(torch.stack(gathered), dim=0) - math.log(ranks)


def mean_of_each(tensors: Sequence[Tensor], group: Group) -> list[Tensor]:
    """Return the mean over ranks of every tensor, in one message per dtype."""
    ranks = size(group)
    if ranks == 1:
        return list(tensors)
    messages = _by_dtype(tensors)
    for message in messages.values():
        dist.all_reduce(message, group=_of(group))
    return _split({dtype: message / ranks for dtype, message in messages.items()}, tensors)


def broadcast(tensors: Sequence[Tensor]) -> None:
    """Give every rank the values of rank 0, in place, in one message per dtype."""
    if size() == 1:
        return
    messages = _by_dtype([tensor.detach() for tensor in tensors])
    for message in messages.values():
        dist.broadcast(message, 0)
    for tensor, received in zip(tensors, _split(messages, tensors), strict=True):
        tensor.detach().copy_(received)


def all_true(flag: Tensor, group: Group) -> Tensor:
    """Return a flag that is true where it is on every rank."""
    if size(group) == 1:
        return flag
    least = flag.to(torch.float32)
    dist.all_reduce(least, op=dist.ReduceOp.MIN, group=_of(group))
    return least > 0


def _by_dtype(tensors: Sequence[Tensor]) -> dict[torch.dtype, Tensor]:
    """Flatten tensors into one per dtype, in an order that all ranks have: that of a set differs between them."""
    dtypes = dict.fromkeys(tensor.dtype for tensor in tensors)
    return {dtype: torch.cat([t.reshape(-1) for t in tensors if t.dtype == dtype]) for dtype in dtypes}


def _split(messages: dict[torch.dtype, Tensor], tensors: Sequence[Tensor]) -> list[Tensor]:
    """Undo `_by_dtype`."""
    sizes = {dtype: [t.numel() for t in tensors if t.dtype == dtype] for dtype in messages}
    pieces: dict[torch.dtype, Iterator[Tensor]] = {d: iter(message.split(sizes[d])) for d, message in messages.items()}
    return [next(pieces[tensor.dtype]).view(tensor.shape) for tensor in tensors]


def _of(group: Group) -> Any:
    return None if group == "world" else group
