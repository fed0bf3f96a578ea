"""The device, the precision and the processes of a run.

`torchrun` and `accelerate launch` start the same program several times and give each copy its rank. Every rank does the
whole job on its share of each batch; rank 0 alone prints, and writes rows, checkpoints and logs.
"""

import atexit
import io
import os
import shlex
import sys
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils._pytree import tree_map_only

from equipoise.balance import collectives
from equipoise.balance.balancer import Balancer
from equipoise.training.settings import Settings
from equipoise.training.trackers import PROJECT, Trackers
from equipoise.util.errors import BadInput, printable, raise_all
from equipoise.util.extras import needs

TIMEOUT = timedelta(hours=2)  # that ranks wait for each other: rank 0 measures while the others do
LAUNCHED = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
GRACE = 10.0  # seconds
TOGETHER = ("train", "compare", "diagnose")

SharedState = dict[str, dict[str, Any]]
"""The state that Accelerate's objects share, by class."""
Value = TypeVar("Value")


def gpus() -> int:
    """Count the GPUs of this machine without touching them: a process that touched one cannot be forked any more.

    The driver is asked, and not whether this torch can use it; one that is too old is reported when a run begins.
    """
    os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")  # for those libraries that ask for themselves
    return torch.cuda.device_count()


def device_of(settings: Settings) -> str:
    """Return the device of a run with these settings; raise `BadInput` where this machine does not have it."""
    count = gpus()
    device = settings.device if settings.device != "auto" else "cuda" if count else "cpu"
    if device != "cpu" and int(device.partition(":")[2] or 0) >= count:
        raise BadInput(f"device={settings.device}: expected a GPU, found {count} on this machine; type device=cpu")
    if device == "cpu" and settings.precision == "fp16":
        raise BadInput("precision=fp16: expected a GPU, found device cpu; type precision=bf16 or precision=fp32")
    return device


def precision_of(settings: Settings, device: torch.device | str) -> str:
    """Return the precision of a run: the one asked for, or what suits the device."""
    if settings.precision != "auto":
        return settings.precision
    half = torch.device(device).type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)
    return "bf16" if half and not settings.deterministic else "fp32"


@contextmanager
def accelerate_state(state: SharedState) -> Generator[None, None, None]:
    """Give Accelerate another state inside the context, and the present one back afterwards.

    All of Accelerate's objects in a process share one state, a caller's own Accelerator too: a run takes a new one, and
    its caller finds theirs as it was. Used again inside, with the same state, it restores the caller's for a while.

    Args:
        state: The state to use; it holds the present one until that is given back. Empty for a new one.
    """
    _swap(state)
    try:
        yield
    finally:
        _swap(state)


def _swap(state: SharedState) -> None:
    with needs("training", "train"):
        from accelerate.state import AcceleratorState, GradientState, PartialState

    for kind in (AcceleratorState, GradientState, PartialState):
        shared = kind._shared_state  # which its objects have as their attributes: changed in place
        present = dict(shared)
        shared.clear()
        shared.update(state.get(kind.__name__, {}))
        state[kind.__name__] = present


def make_accelerator(settings: Settings, trackers: Trackers, folder: Path | None) -> Any:
    """Make Accelerate's accelerator, with the precision, device and trackers of a run."""
    with needs("training", "train"):
        from accelerate import Accelerator
        from accelerate.state import AcceleratorState, PartialState
        from accelerate.utils import patch_environment

    # A run may follow another of other precision in one process; `train` sees to it that no caller's state is there.
    AcceleratorState._reset_state(reset_partial_state=True)
    if settings.deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # without it cuBLAS may not repeat itself
        torch.use_deterministic_algorithms(mode=True, warn_only=True)
        torch.backends.cudnn.benchmark = False  # which kernel wins a race is chance
    device = device_of(settings)
    init(device)
    # What `accelerate launch` leaves for a loop of its own; ours cuts batches and models itself.
    ours = {"accelerate_gradient_accumulation_steps": "1", "accelerate_use_fsdp": "false"}
    numbered = {"accelerate_torch_device": device} if ":" in device else {}
    with patch_environment(**ours, **numbered):
        PartialState(cpu=device == "cpu")  # before trackers, which would have it made as it comes
        accelerator = Accelerator(
            mixed_precision={"fp32": "no"}.get(precision := precision_of(settings, device), precision),
            cpu=device == "cpu",
            log_with=(trackers.make(folder) if collectives.rank() == 0 else []) or None,
        )
    if trackers.names and collectives.rank() == 0:
        facts = {**settings.as_dict(), **trackers.facts}
        accelerator.init_trackers(PROJECT, config={name: str(value) for name, value in facts.items()})
    return accelerator


def launched() -> bool:
    """Return whether a launcher started this process, or its process group is initialised already."""
    return all(name in os.environ for name in LAUNCHED) or collectives.size() > 1


def is_main() -> bool:
    """Return whether this process prints and writes: rank 0, or the only one. Known before `init`."""
    rank = dist.get_rank() if dist.is_available() and dist.is_initialized() else int(os.environ.get("RANK", "0"))
    return rank == 0


def silence_other_ranks(words: Sequence[str]) -> None:
    """Discard what a process other than the main one prints; errors that it alone has are still shown.

    Args:
        words: Of the command line. Commands that do not train are not done by several processes at once.

    Raises:
        BadInput: In each of several processes that were asked for anything else.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        return
    if not is_main():
        sys.stdout = io.StringIO()
    other = bool(words) and not words[0].startswith("-") and words[0] not in TOGETHER
    if other or any(word == "--on" or word.startswith("--on=") for word in words):
        several = f"several can {', '.join(TOGETHER)} together, here; type equipoise {shlex.join(words)}"
        raise BadInput(f"expected one process, found {os.environ['WORLD_SIZE']}: {several}")


def print_error(problem: str, *, known_to_all: bool = True) -> None:
    """Print what is wrong: the main process alone, where all know it."""
    if is_main() or not known_to_all:
        print(printable(problem), file=sys.stderr)
    else:
        time.sleep(GRACE)  # a launcher ends all when one ends, and the first may not have come so far


def init(device: str) -> None:
    """Initialise the process group, once, where a launcher started several processes.

    Args:
        device: The kind they train on: "cpu" or "cuda".
    """
    if not launched() or dist.is_initialized():
        return
    if device != "cpu":
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    backend = "gloo" if device == "cpu" else "cpu:gloo,cuda:nccl"
    store, rank, size = next(dist.rendezvous("env://", timeout=TIMEOUT))
    # torchrun keeps the addresses of processes that have died; only on one machine do all know how often they started.
    one_machine = os.environ.get("GROUP_WORLD_SIZE", "1") == "1"
    prefix = f"start {os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}" if one_machine else "start"
    store = dist.PrefixStore(prefix, store)
    dist.init_process_group(backend, timeout=TIMEOUT, world_size=size, rank=rank, store=store)
    atexit.register(lambda: dist.destroy_process_group() if dist.is_initialized() else None)  # else torch warns


def broadcast(value: Value) -> Value:
    """Return the value of rank 0, on every rank."""
    if collectives.size() == 1:
        return value
    values = [tree_map_only(Tensor, Tensor.cpu, value) if is_main() else None]  # other ranks have other devices
    dist.broadcast_object_list(values, src=0)
    return values[0]  # ty: ignore[invalid-return-type]


def gather(value: Value) -> list[Value]:
    """Return the values of all ranks, in their order, on every rank."""
    if collectives.size() == 1:
        return [value]
    values: list[Any] = [None] * collectives.size()
    dist.all_gather_object(values, tree_map_only(Tensor, Tensor.cpu, value))
    return values


@contextmanager
def one_rank_at_a_time() -> Generator[None]:
    """Let one rank after the other enter the context, for work that must not happen at the same time."""
    rank, ranks = collectives.rank(), collectives.size()
    for _ in range(rank):
        dist.barrier()
    yield
    for _ in range(ranks - rank if ranks > 1 else 0):
        dist.barrier()


def parallel_kind(settings: Settings) -> str:
    """Return how processes share a model, "ddp" or "fsdp", as the settings or `accelerate launch --use_fsdp` say."""
    return "fsdp" if settings.parallel == "fsdp" or _set("ACCELERATE_USE_FSDP") else "ddp"


def check_launch(settings: Settings, balancer: Balancer) -> None:
    """Raise one message with everything that keeps several processes from training together as asked."""
    if not launched() or int(os.environ.get("WORLD_SIZE", collectives.size())) == 1:
        return
    here, count = int(os.environ.get("LOCAL_WORLD_SIZE", "1")), torch.cuda.device_count()
    numbered, sharded = ":" in settings.device, parallel_kind(settings) == "fsdp"
    weighs = not (balancer.needs.encoders or balancer.needs.further)
    found = type(balancer).__name__
    rules = [
        (numbered, f"device={settings.device}: every process takes a GPU of its own; type device=cuda"),
        (not numbered and settings.device != "cpu" and 0 < count < here,
         f"expected a GPU for each process of a machine, found {here} processes and {count} GPUs; start {count}, or "
         "type device=cpu"),
        (_set("ACCELERATE_USE_DEEPSPEED"),
         "expected DDP or FSDP, found DeepSpeed in the configuration of accelerate; leave it out"),
        (sharded and not weighs,
         f"parallel=fsdp: expected a method that only weighs losses (msl, ew, mimo), found {found}: it takes gradients "
         "of single losses at whole encoders, and under FSDP no process holds a whole encoder, nor are gradients that "
         "a method takes itself gathered; type parallel=ddp"),
        (sharded and settings.precision == "fp16",
         "parallel=fsdp: expected precision=bf16 or fp32, found fp16; type precision=bf16"),
        (sharded and settings.average > 0,
         f"parallel=fsdp: expected average=0, found {settings.average:g}: no process holds whole weights to average; "
         "type average=0, or parallel=ddp"),
        (sharded and settings.compile is True,
         "parallel=fsdp: expected compile=false, found true: compiled encoders are not sharded"),
    ]  # fmt: skip
    raise_all(problem for applies, problem in rules if applies)


def _set(name: str) -> bool:
    return os.environ.get(name, "false").lower() in {"1", "true", "yes"}
