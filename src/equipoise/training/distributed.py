"""Several processes that train one model: how they find each other, and how they agree.

`torchrun` and `accelerate launch` start the same program several times and tell each copy its rank. Every rank does the
whole job on its share of each batch; rank 0 alone prints, and writes rows, checkpoints and logs.
"""

from __future__ import annotations

import atexit
import io
import os
import shlex
import sys
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from equipoise.balance import collectives
from equipoise.balance.balancer import Balancer
from equipoise.training.settings import Settings
from equipoise.util.errors import BadInput, printable, raise_all

PATIENCE = timedelta(hours=2)  # that ranks wait for each other: rank 0 measures while the others do
LAUNCHED = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
HEARD = 10.0  # seconds
TOGETHER = ("train", "compare", "diagnose")

Value = TypeVar("Value")


def launched() -> bool:
    """Whether a launcher started this process, or it has met others already."""
    return all(name in os.environ for name in LAUNCHED) or collectives.size() > 1


def leads() -> bool:
    """Whether this is the process that prints and writes: rank 0, or the only one. Known before the others are met."""
    told = dist.get_rank() if dist.is_available() and dist.is_initialized() else int(os.environ.get("RANK", "0"))
    return told == 0


def only_the_first_speaks(words: Sequence[str]) -> None:
    """Make this process silent, unless it is the first; errors that it alone has are still heard.

    Args:
        words: Of the command line. What is no training is not done by several processes at once.

    Raises:
        BadInput: In each of several processes that were asked for anything else.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        return
    if not leads():
        sys.stdout = io.StringIO()
    other = bool(words) and not words[0].startswith("-") and words[0] not in TOGETHER
    if other or any(word == "--on" or word.startswith("--on=") for word in words):
        several = (
            f"expected one process, found {os.environ['WORLD_SIZE']}: several can {', '.join(TOGETHER)} together, here"
        )
        raise BadInput(f"{several}; type equipoise {shlex.join(words)}")


def say(problem: str, *, known_to_all: bool = True) -> None:
    """Print what is wrong: the first process alone, where all know it."""
    if leads() or not known_to_all:
        print(printable(problem), file=sys.stderr)
    else:
        time.sleep(HEARD)  # a launcher ends all when one ends, and the first may not have come so far


def meet(device: str) -> None:
    """Meet the other processes, once, where there are any.

    Args:
        device: What kind they train on: "cpu" or "cuda".
    """
    if not launched() or dist.is_initialized():
        return
    backend = "gloo"
    if device != "cpu":
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
        backend = "cpu:gloo,cuda:nccl"
    store, rank, size = next(dist.rendezvous("env://", timeout=PATIENCE))
    store = dist.PrefixStore(_sitting(), store)
    dist.init_process_group(backend, timeout=PATIENCE, world_size=size, rank=rank, store=store)
    atexit.register(part)


def _sitting() -> str:
    """Where processes leave their addresses: torchrun keeps those of processes that have died.

    Only on one machine do all know how often they were started.
    """
    machines = os.environ.get("GROUP_WORLD_SIZE", "1")
    return f"sitting {os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}" if machines == "1" else "sitting"


def part() -> None:
    """Leave the others; a process that did not would be warned of it."""
    if dist.is_initialized():
        dist.destroy_process_group()


def agreed(value: Value) -> Value:
    """What rank 0 says, on every rank."""
    if collectives.size() == 1:
        return value
    said = [on_cpu(value) if leads() else None]
    dist.broadcast_object_list(said, src=0)
    return said[0]  # ty: ignore[invalid-return-type]


def gathered(value: Value) -> list[Value]:
    """What every rank says, in their order, on every rank."""
    if collectives.size() == 1:
        return [value]
    said: list[Any] = [None] * collectives.size()
    dist.all_gather_object(said, on_cpu(value))
    return said


@contextmanager
def one_by_one() -> Generator[None]:
    """Let one rank after the other do something that they would be in each other's way at."""
    for _ in range(collectives.rank()):
        _wait()
    yield
    for _ in range(collectives.size() - collectives.rank()):
        _wait()


def _wait() -> None:
    if collectives.size() > 1:
        dist.barrier()


def mapped(tree: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """Nested dictionaries, lists and tuples with every tensor changed."""
    if isinstance(tree, Tensor):
        return change(tree)
    if isinstance(tree, dict):
        return {key: mapped(each, change) for key, each in tree.items()}
    if isinstance(tree, (list, tuple)) and not hasattr(tree, "_fields"):
        return type(tree)(mapped(each, change) for each in tree)
    return tree


def on_cpu(tree: Any) -> Any:
    """The same with every tensor on the CPU: other processes have other devices."""
    return mapped(tree, lambda tensor: tensor.cpu())


def way(settings: Settings) -> str:
    """How processes share a model: "ddp" or "fsdp", as the settings or `accelerate launch --use_fsdp` say."""
    return "fsdp" if settings.parallel == "fsdp" or _set("ACCELERATE_USE_FSDP") else "ddp"


def check(settings: Settings, balancer: Balancer) -> None:
    """Raise one message with everything that keeps several processes from training together as asked."""
    if not launched() or int(os.environ.get("WORLD_SIZE", collectives.size())) == 1:
        return
    problems = [*_launch_problems(settings)]
    if way(settings) == "fsdp":
        problems += _sharding_problems(settings, balancer)
    raise_all(problems)


def _launch_problems(settings: Settings) -> list[str]:
    problems = []
    here = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    gpus = torch.cuda.device_count()
    if ":" in settings.device:
        problems.append(f"device={settings.device}: every process takes a GPU of its own; type device=cuda")
    elif settings.device != "cpu" and 0 < gpus < here:
        problems.append(
            f"expected a GPU for each process of a machine, found {here} processes and {gpus} GPUs; start {gpus}, or "
            "type device=cpu"
        )
    if _set("ACCELERATE_USE_DEEPSPEED"):
        problems.append("expected DDP or FSDP, found DeepSpeed in the configuration of accelerate; leave it out")
    return problems


def _sharding_problems(settings: Settings, balancer: Balancer) -> list[str]:
    problems = []
    if balancer.route != "loss" and (balancer.route != "fused" or balancer.needs_encoders):
        problems.append(
            f"parallel=fsdp: expected a method that only weighs losses (msl, ew, mimo), found "
            f"{type(balancer).__name__}: it takes gradients of single losses at whole encoders, and under FSDP no "
            "process holds a whole encoder, nor are gradients that a method takes itself gathered; type parallel=ddp"
        )
    if settings.precision == "fp16":
        problems.append("parallel=fsdp: expected precision=bf16 or fp32, found fp16; type precision=bf16")
    if settings.compile is True:
        problems.append("parallel=fsdp: expected compile=false, found true: compiled encoders are not cut")
    return problems


def _set(name: str) -> bool:
    return os.environ.get(name, "false").lower() in {"1", "true", "yes"}
