"""Runs in processes of this machine, on its cores or GPUs.

Processes that use a GPU take turns, however little each of them asks for. NVIDIA's multi-process service (MPS), which
comes with the driver and which anybody may start, makes one client of them, so that small models fill the card.
"""

import ctypes
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, final

import torch

from equipoise.balance import collectives
from equipoise.data.splits import Splits
from equipoise.models.fusion_model import FusionModel
from equipoise.study.executors import Executor, RunEvent, RunFunction
from equipoise.study.job import ERROR, FoldSplits, Job, clear_up, failure_of, pending, save_traceback
from equipoise.study.registry import Entry
from equipoise.study.store import Store, cannot_write, is_disk_error
from equipoise.training.launch import broadcast, gpus, is_main
from equipoise.training.step import build_model
from equipoise.util.errors import BadInput
from equipoise.util.pool import Pool, Tell
from equipoise.util.processes import cores

LIBRARIES = ["accelerate", "safetensors.torch", "torch._dynamo"]
"""Modules that every run would spend two seconds on; the optimisers load the last one."""
KILLED = {"reason": "the process of the run ended without a message (out of memory, or killed)", "killed": True}
CONTEXT = 700 * 2**20  # bytes that a process takes before it has done anything: kernels, and space for libraries
SHARE = 0.9  # of the free memory that runs may take
PIPE, LOG = "CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY"
CONTROL = "nvidia-cuda-mps-control"
NOT_INITIALISED = 3  # what CUDA answers before it is made ready


@final
class RunFailed(Exception):  # noqa: N818 (it says what there is)
    """A run failed in a worker; its arguments are the kind and the content of the event."""


@final
class LocalExecutor(Executor):
    """Runs jobs in worker processes.

    A worker is forked, and shares what is imported and loaded. On CPUs each run has one of its own. One that uses a
    GPU takes seconds until it can, and goes on with the next run; where this process has touched a GPU itself, it is
    forked off a server that has not, and loads the data again.

    Args:
        run: Does a job.
        splits: The data of each fold.
        store: Knows the folder of each run.
        limit: Workers at once.
        gpus: GPUs that they are dealt out to; 0 for none.
    """

    def __init__(self, run: RunFunction, splits: FoldSplits, store: Store, limit: int, gpus: int = 0) -> None:
        super().__init__(run, splits, store, limit)
        from_server = bool(gpus) and touched_gpu()
        environments = [environment_for(gpu if gpus > 1 else None) for gpu in range(gpus)]
        self._pool = Pool(
            partial(_work, run, {} if from_server else dict(splits), store, bool(gpus)),
            limit,
            reuse=bool(gpus),
            initialize=partial(_set_environment, environments) if gpus else None,
            preload=[__name__, *LIBRARIES] if from_server else None,
        )

    def __exit__(self, *_: object) -> None:
        self._pool.__exit__()

    def _start(self, job: Job) -> None:
        self._pool.submit(job)

    def _stop(self, job: Job) -> None:
        self._pool.cancel(job)

    def _events(self) -> Iterator[RunEvent]:
        for job, kind, content in self._pool.events():
            if kind in ("message", "done"):
                yield job, "epoch" if kind == "message" else kind, content
            elif kind == "died":
                yield job, "failed", KILLED
            elif isinstance(content, RunFailed):
                yield job, *content.args
            else:
                raise content


def _set_environment(environments: Sequence[dict[str, str]], slot: int) -> None:
    os.environ.update(environments[slot % len(environments)])


def _work(run: RunFunction, splits: FoldSplits, store: Store, reused: bool, job: Job, tell: Tell) -> dict[str, Any]:
    """Do a run in a worker; `splits` keeps what is loaded here for the next one."""
    folder = store.run_folder(job.config)
    try:
        if job.fold not in splits:
            splits[job.fold] = job.data.load(job.fold)
        row = run(job, splits[job.fold], folder, tell)
    except Exception as error:
        raise RunFailed(*failure_of(error, folder)) from None
    if reused:
        clear_up()
    return row


def import_libraries() -> None:
    """Import libraries once, before the workers are forked."""
    for name in LIBRARIES:
        import_module(name)


def _use_cuda(devices: set[str]) -> bool:
    return any(device.startswith("cuda") for device in devices) or ("auto" in devices and gpus() > 0)


@contextmanager
def local_executor(
    run: RunFunction, jobs: Sequence[Job], splits: FoldSplits, store: Store, workers: int | None
) -> Generator[LocalExecutor, None, None]:
    """Make the executor of some jobs: a worker per core, or as many as the GPUs carry at the same time."""
    if jobs:
        import_libraries()
    devices = {job.entry.settings.device for job in jobs}
    # Over how many GPUs runs are dealt out: one, where somebody chose it by its number.
    dealt = 0 if not _use_cuda(devices) else 1 if any(":" in device for device in devices) else max(1, gpus())
    with multi_process_service() if dealt and workers != 1 and len(jobs) > 1 else nullcontext(False) as shared:
        # Where processes take turns on a GPU, one is as fast as several.
        room = dealt or max(1, cores() // max((job.threads for job in jobs), default=1))
        if shared and not workers:
            entries, data = [job.entry for job in jobs], next(iter(splits.values()))
            room = max(1, min(dealt * runs_per_gpu(entries, data, free_memory(), cores()), cores()))
        limit = workers or room
        with LocalExecutor(partial(run, workers=min(limit, len(jobs))), splits, store, limit, dealt) as executor:
            yield executor


def runs_per_gpu(entries: Iterable[Entry], splits: Splits, free: int, cores: int) -> int:
    """Return how many runs one GPU carries at the same time; at least one.

    Args:
        entries: The runs; the largest counts.
        splits: The data.
        free: Bytes free on the GPU.
        cores: Of this machine: each run keeps one busy.
    """
    kinds = {(entry.method.name, entry.settings): entry for entry in entries}
    need = max((bytes_needed(entry, splits) for entry in kinds.values()), default=CONTEXT)
    return max(1, min(cores, int(SHARE * free / need)))


def bytes_needed(entry: Entry, splits: Splits) -> int:
    """Estimate how much GPU memory a run takes, without a GPU: by a step on tensors that have shapes and no content.

    Weights count five times (gradients of two passes, the optimiser, the best epoch), what is kept for the backward
    pass twice (for the recorded step, and for a last batch of another size).
    """
    data = sum(part.bytes for part in (splits.train, splits.validation, splits.test))
    sample = splits.train.take(torch.arange(1)).ready()
    model = _model_without_content(entry, splits)
    size = entry.settings.batch
    batch = {name: one.new_empty((size, *one.shape[1:]), device="meta") for name, one in sample.inputs.items()}
    weights = sum(tensor.nbytes for tensor in model.state_dict().values())
    kept: dict[int, int] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        kept[storage._cdata] = storage.nbytes()
        return tensor

    try:
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            outputs = model(batch)  # noqa: F841 (what it keeps is counted while it lives)
    except Exception:  # an encoder of the user's own that looks at its input may stumble over anything
        kept[0] = 64 * sum(one.nbytes for one in batch.values())
    return CONTEXT + data + 5 * weights + 2 * sum(kept.values()) + 2 * sum(one.nbytes for one in batch.values())


def _model_without_content(entry: Entry, splits: Splits) -> FusionModel:
    """Build the model of a run, its tensors without content; no random state changes."""
    with torch.random.fork_rng(devices=[]):
        try:
            with torch.device("meta"):
                return build_model(splits, entry.balancer(), entry.settings)
        except Exception:  # an encoder of the user's own may read numbers that it draws, which there have no values
            with torch.device("cpu"):
                return build_model(splits, entry.balancer(), entry.settings).to("meta")


def free_memory() -> int:
    """Return the bytes free on the fullest GPU, without touching it where the driver's own tool answers."""
    seen = os.environ.get("CUDA_VISIBLE_DEVICES")
    ask = ["nvidia-smi", "--query-gpu=memory.free", "--format=csv,noheader,nounits", *(["-i", seen] if seen else [])]
    try:
        answer = subprocess.run(ask, capture_output=True, check=True, text=True, timeout=30).stdout.split()
        return min(map(int, answer)) * 2**20
    except (OSError, subprocess.SubprocessError, ValueError):
        return torch.cuda.mem_get_info()[0]


def touched_gpu() -> bool:
    """Tell whether this process, or a library in it, has begun to use GPUs: a fork of it could not do that again.

    The driver refuses to count GPUs before it is initialised.
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
    """Let processes that are started inside the context share GPUs at the same time; yield whether they do.

    A service that runs already is used; otherwise one is started for this study alone, and ended with it.
    """
    if os.environ.get(PIPE) or Path("/tmp/nvidia-mps/control").exists():
        yield True
        return
    if shutil.which(CONTROL) is None:
        yield False
        return
    with tempfile.TemporaryDirectory(prefix="equipoise-mps-", ignore_cleanup_errors=True) as folder:
        before = {name: os.environ.get(name) for name in (PIPE, LOG)}
        os.environ |= {PIPE: f"{folder}/pipe", LOG: f"{folder}/log"}
        for name in before:
            Path(os.environ[name]).mkdir()
        started = subprocess.run([CONTROL, "-d"], capture_output=True, check=False).returncode == 0
        try:
            yield started
        finally:
            if started:
                subprocess.run([CONTROL], input=b"quit\n", capture_output=True, check=False)
            for name, value in before.items():
                del os.environ[name]
                os.environ |= {} if value is None else {name: value}


def environment_for(gpu: int | None) -> dict[str, str]:
    """Return the environment of a process that uses GPUs: the service, and its own of several GPUs; None for all."""
    environment = {name: os.environ[name] for name in (PIPE, LOG) if name in os.environ}
    if gpu is not None:
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        environment["CUDA_VISIBLE_DEVICES"] = visible.split(",")[gpu] if visible else str(gpu)
    return environment


@final
class RanksExecutor(Executor):
    """Runs a job on all ranks; every rank gets the row of rank 0.

    Whatever goes wrong in one process ends it, and with it the launcher ends all: then they can start again together.

    Args:
        run: Does a job; the row is rank 0's.
        splits: The data of each fold.
        store: Knows the folder of each run.
        on_event: Called after each epoch, while a run trains.
    """

    def __init__(
        self, run: RunFunction, splits: FoldSplits, store: Store, on_event: Callable[[str, Job, dict[str, Any]], None]
    ) -> None:
        super().__init__(run, splits, store, limit=1)
        self._on_event = on_event

    def _start(self, job: Job) -> None: ...

    def _stop(self, job: Job) -> None: ...

    def _events(self) -> Iterator[RunEvent]:
        (job,) = self.running.values()
        folder = self.store.run_folder(job.config)
        try:
            row = self.run(job, self.splits[job.fold], folder, partial(self._on_event, "epoch", job))
        except Exception as error:
            if is_disk_error(error, folder):
                raise BadInput(cannot_write(folder, error)) from error
            save_traceback(error, folder, ERROR if is_main() else f"error-rank-{collectives.rank()}.txt")
            raise
        yield job, "done", broadcast(row)


def pending_on_ranks(jobs: Sequence[Job], store: Store) -> tuple[dict[str, dict[str, Any]], list[Job]]:
    """Return what `pending` returns on rank 0, or raise its problem, on every rank."""
    done, problem = {}, ""
    if is_main():
        try:
            done, _ = pending(jobs, store)
        except BadInput as error:
            problem = str(error)
    done, problem = broadcast((done, problem))
    if problem:
        raise BadInput(problem)
    return done, list({job.config: job for job in jobs if job.config not in done}.values())
