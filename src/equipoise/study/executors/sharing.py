"""Many runs on one GPU: how many fit, and a server that lets their kernels run at the same time.

Processes that use a GPU take turns, however little each of them asks for. NVIDIA's multi-process service (MPS), which
comes with the driver and which anybody may start, makes one client of them, so that small models fill the card.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import tempfile
from collections.abc import Generator, Iterable, Mapping
from contextlib import contextmanager
from pathlib import Path

import torch

from equipoise.data.splits import Splits
from equipoise.models import LateFusion
from equipoise.study.registry import Entry
from equipoise.training.step import build_model

CONTEXT = 700 * 2**20  # bytes that a process takes before it has done anything: kernels, and space for libraries
SHARE = 0.9  # of the free memory that runs may take
PIPE, LOG = "CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY"
CONTROL = "nvidia-cuda-mps-control"
NOT_INITIALISED = 3  # what CUDA answers before it is made ready


def how_many(entries: Iterable[Entry], splits: Splits, free: int, cores: int) -> int:
    """How many runs one GPU carries side by side; at least one.

    Args:
        entries: What is to be run; the largest counts.
        splits: The data.
        free: Bytes free on the GPU.
        cores: Of this machine: each run keeps one busy.
    """
    kinds = {(entry.method.name, entry.settings): entry for entry in entries}
    need = max((bytes_needed(entry, splits) for entry in kinds.values()), default=CONTEXT)
    return max(1, min(cores, int(SHARE * free / need)))


def bytes_needed(entry: Entry, splits: Splits) -> int:
    """About how much GPU memory a run takes, found without one: a step on tensors that have shapes and no content.

    Weights count five times (gradients of two passes, the optimiser, the best epoch), what is kept for the backward
    pass twice (for the recorded step, and for a last batch of another size).
    """
    data = sum(part.bytes for part in (splits.train, splits.validation, splits.test))
    sample = splits.train.take(torch.arange(1)).ready()
    model = _model_without_content(entry, splits)
    with torch.device("meta"):
        inputs = {name: one.new_empty((entry.settings.batch, *one.shape[1:])) for name, one in sample.inputs.items()}
    weights = sum(tensor.nbytes for tensor in model.state_dict().values())
    kept: dict[int, int] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        kept[storage._cdata] = storage.nbytes()
        return tensor

    batch = {name: one.to("meta") for name, one in inputs.items()}
    try:
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            outputs = model(batch)  # noqa: F841 (what it keeps is counted while it lives)
    except Exception:  # an encoder of the user's own that looks at its input may stumble over anything
        kept[0] = 64 * sum(one.nbytes for one in batch.values())
    return CONTEXT + data + 5 * weights + 2 * sum(kept.values()) + 2 * sum(one.nbytes for one in batch.values())


def _model_without_content(entry: Entry, splits: Splits) -> LateFusion:
    """The model of a run, its tensors without content; no random state changes."""
    with torch.random.fork_rng(devices=[]):
        try:
            with torch.device("meta"):
                return build_model(splits, entry.balancer(), entry.settings)
        except Exception:  # an encoder of the user's own may read numbers that it draws, which there have no values
            with torch.device("cpu"):
                return build_model(splits, entry.balancer(), entry.settings).to("meta")


def free_memory() -> int:
    """Bytes free on the fullest GPU, asked without touching it where the driver's own tool can tell."""
    seen = os.environ.get("CUDA_VISIBLE_DEVICES")
    ask = ["nvidia-smi", "--query-gpu=memory.free", "--format=csv,noheader,nounits", *(["-i", seen] if seen else [])]
    try:
        told = subprocess.run(ask, capture_output=True, check=True, text=True, timeout=30).stdout.split()
        return min(int(each) for each in told) * 2**20
    except (OSError, subprocess.SubprocessError, ValueError):
        return torch.cuda.mem_get_info()[0]


def touched_a_gpu() -> bool:
    """Whether this process, or a library in it, has begun to use GPUs: a copy of it could not do that again.

    Who counts GPUs before the driver is made ready is answered that it is not, and thereby tells.
    """
    if torch.cuda.is_initialized():
        return True
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    return driver.cuDeviceGetCount(ctypes.byref(ctypes.c_int())) != NOT_INITIALISED


@contextmanager
def multi_process_service() -> Generator[bool, None, None]:
    """Let processes that are started meanwhile share GPUs at the same time; whether that is so.

    A service that runs already is used; otherwise one is started for this study alone, and ended with it.
    """
    if os.environ.get(PIPE) or Path("/tmp/nvidia-mps/control").exists():
        yield True
        return
    if shutil.which(CONTROL) is None:
        yield False
        return
    with tempfile.TemporaryDirectory(prefix="equipoise-mps-", ignore_cleanup_errors=True) as folder:
        places = {PIPE: f"{folder}/pipe", LOG: f"{folder}/log"}
        for place in places.values():
            Path(place).mkdir()
        with _environment(places):
            started = subprocess.run([CONTROL, "-d"], capture_output=True, check=False).returncode == 0
            if not started:
                yield False
                return
            try:
                yield True
            finally:
                subprocess.run([CONTROL], input=b"quit\n", capture_output=True, check=False)


def environment_for(gpu: int | None) -> dict[str, str]:
    """What a process has to be told that uses GPUs: the service, and which of several GPUs is its own; None for all."""
    told = {name: os.environ[name] for name in (PIPE, LOG) if name in os.environ}
    if gpu is not None:
        seen = os.environ.get("CUDA_VISIBLE_DEVICES")
        told["CUDA_VISIBLE_DEVICES"] = seen.split(",")[gpu] if seen else str(gpu)
    return told


@contextmanager
def _environment(words: Mapping[str, str]) -> Generator[None, None, None]:
    before = {name: os.environ.get(name) for name in words}
    os.environ.update(words)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
