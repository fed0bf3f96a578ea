"""What ranks do, and one process beside them. Run by test_torchrun.py, some of it by a launcher.

Ranks that try everything are forked from one process instead: it imports once the libraries that all of them need.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, final

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.multiprocessing import start_processes

from equipoise import (
    AGM,
    ARL,
    CGGM,
    DGL,
    MCR,
    MGDA,
    MLB,
    MSES,
    MSLR,
    OGM,
    OGMGE,
    SMP,
    Barrier,
    InfoReg,
    MMPareto,
    Relearn,
)
from equipoise.data.bundled import watch
from equipoise.data.splits import Part, Splits
from equipoise.study.executors.local import LIBRARIES
from equipoise.study.registry import all_methods
from equipoise.training.checkpoint import Checkpoints
from equipoise.training.launch import init
from equipoise.training.recipe import RECIPE
from equipoise.training.settings import Settings
from equipoise.training.step import TrainingStep
from equipoise.training.train import train
from equipoise.util.errors import BadInput

RANKS = (2, 4)
WITH_FOUR = ("msl", "mimo", "ogmge", "mgda", "primaldual", "arl", "cggm", "mcr", "smp", "inforeg", "relearn")
SIZES = {"train": 87, "validation": 101, "test": 30}  # five batches of 16, and one of 7, which no number of ranks cuts
PARAMS: dict[str, dict[str, Any]] = {"mses": {"patience": 0}, "mslr": {"memory": 1}, "mimo": {"smoothing": 0.05}}
PARAMS["relearn"] = {"every": 1}
PARAMS["primaldual"] = {"every": 4}  # which divides the samples of every rank
PARAMS["mcr"] = {"penalty": 0.0}  # every rank permutes its own samples
PARAMS["moddrop"] = {"dropout": 0.0}  # every rank draws for itself what it drops
PLAIN = Settings(epochs=2, batch=16, lr=0.05, features=8, encoder="torchrun_program.Plain")
_RECIPE = {name: getattr(RECIPE, name) for name in ("optimizer", "lr", "weight_decay", "schedule", "average", "clip",
           "label_smoothing")}  # fmt: skip
VARIED: dict[str, tuple[str, dict[str, Any]]] = {
    "in micro-batches that some ranks have no sample of": ("mimo", {"accumulate": 4}),
    "gradients mixed in micro-batches": ("mgda", {"accumulate": 2, "clip": 0.5}),
    "updates scaled": ("ogm", {"optimizer": "adamw", "lr": 0.003}),
    "the best epoch": ("agm", {"select": "best", "schedule": "cosine"}),
    **{
        f"hybrid fusion, {name}": (name, {"fusion": "hybrid"})
        for name in ("ew", "mimo", "mmpareto", "ogmge", "moddrop")
    },
    "hybrid fusion with heads": ("mimo", {"fusion": "hybrid", "objective": "head"}),
    "early fusion, gradients mixed in micro-batches": (
        "mgda",
        {"fusion": "early", "encoder": "auto", "accumulate": 2, "average": 0.9},
    ),
    "a safe step": ("mimo", {"step": "safe", "momentum": 0.0}),
    "the recipe": ("mimo", {**_RECIPE, "epochs": 2, "select": "loss"}),
    "a twin in micro-batches, averaged": ("primaldual:twin", {"accumulate": 2, "average": 0.9}),
    "a uni-modal run before": ("primaldual:trajectory", {"schedule": "cosine"}),
    "the best epoch by macro-F1": ("ogm", {"select": "best", "metric": "macro_f1", "class_weight": "balanced"}),
}
SHARDED: dict[str, tuple[str, dict[str, Any]]] = {
    "msl": ("msl", {}),
    "ew": ("ew", {"clip": 0.5}),
    "mimo": ("mimo", {"accumulate": 2, "optimizer": "adamw", "lr": 0.003}),
}
RESUMED: dict[str, tuple[str, dict[str, Any]]] = {
    "copies": ("ogmge", {"layer_decay": 0.7}),
    "pieces": ("mimo", {"parallel": "fsdp", "optimizer": "adamw", "lr": 0.003, "select": "best", "layer_decay": 0.7}),
}
REFUSED = (AGM, ARL, Barrier, CGGM, DGL, MCR, MGDA, MLB, MSES, MSLR, OGM, OGMGE, SMP, InfoReg, MMPareto, Relearn)
SETTINGS = ["epochs=2", "features=8", "encoder=torchrun_program.Plain"]
COMPARE = ["compare", "--methods", "ogmge", "--seeds", "1", "--quick", *SETTINGS]
KILLED = 50  # of 70 steps, 35 an epoch
LEFT = 70 - 35 - 12  # the state is kept after every fourth batch


@final
class Plain(nn.Module):
    """No statistics of batches."""

    def __init__(self, shape: tuple[int, ...], features: int) -> None:
        super().__init__()
        self.features = features
        self.convolve, self.project = nn.Conv1d(shape[0], 8, 9, stride=4), nn.Linear(8, features)

    def forward(self, signals: Tensor) -> Tensor:
        return self.project(self.convolve(signals).relu().mean(dim=2))


def data() -> Splits:
    """Some windows of every part, evenly spaced."""
    whole = watch()

    def some(name: str, part: Part) -> Part:
        return part.take(torch.linspace(0, len(part) - 1, SIZES[name]).long())

    return replace(whole, **{name: some(name, part) for name, part in whole.parts.items()})


def trained(splits: Splits, method: str, changes: dict[str, Any], folder: Path | None = None) -> dict[str, Any]:
    """The weights and the curves of a short run; behind a colon, the method's source of f*."""
    method, _, source = method.partition(":")
    balancer = all_methods()[method].make(**PARAMS.get(method, {}), **({"optimum": source} if source else {}))
    result = train(splits, balancer, PLAIN.changed(changes), folder=folder)
    curves = [{key: record[key] for key in ("train", "validation", "table")} for record in result.curves]
    return {"weights": result.model.state_dict(), "curves": curves, "epoch": result.epoch, "path": result.path}


class StoppedError(Exception):
    """A run was given up half way."""


@contextmanager
def patched(owner: Any, name: str, change: Callable[..., Any]) -> Generator[None]:
    before = getattr(owner, name)
    setattr(owner, name, change)
    try:
        yield
    finally:
        setattr(owner, name, before)


@contextmanager
def ending(call: int, end: Callable[[], None]) -> Generator[Iterator[int]]:
    """Write the state after every fourth batch, and end at this step."""
    step, steps = TrainingStep.__call__, iter(range(10**6))

    def ends(self: TrainingStep, *batch: Any) -> None:
        if next(steps) == call:
            end()
        step(self, *batch)

    due = patched(Checkpoints, "due_within", lambda self: self._state.batch % 4 == 0)
    with contextlib.suppress(StoppedError), due, patched(TrainingStep, "__call__", ends):
        yield steps


def stop() -> None:
    raise StoppedError


def leave_half_done(splits: Splits, folder: Path) -> None:
    """Runs that were stopped in the second epoch, after its fourth batch was kept."""
    for name, (method, changes) in RESUMED.items():
        with ending(10, stop):
            trained(splits, method, changes, folder / name)


def refused(splits: Splits, method: str) -> str:
    try:
        trained(splits, method, {"parallel": "fsdp"})
    except BadInput as problem:
        return str(problem)
    return ""


def everything(folder: Path, resumes: Path | None) -> dict[str, Any]:
    """Train in every way; of four ranks, which take turns on few cores, not in all."""
    splits, few = data(), dist.get_world_size() > 2
    found: dict[str, Any] = {
        f"method/{name}": trained(splits, name, {}) for name in (WITH_FOUR if few else all_methods())
    }
    found |= {f"varied/{name}": trained(splits, *VARIED[name]) for name in list(VARIED)[: 1 if few else None]}
    for name in ["mimo"] if few else SHARDED:
        method, changes = SHARDED[name]
        found[f"sharded/{name}"] = trained(splits, method, {**changes, "parallel": "fsdp"})
    found["normalised"] = with_statistics(splits)
    if not few:
        found["refused"] = {name: refused(splits, name) for name, each in all_methods().items() if each.make in REFUSED}
    leave_half_done(splits, folder / f"left by {dist.get_world_size()}")
    return found if resumes is None else found | went_on(splits, resumes)


def with_statistics(splits: Splits) -> dict[str, Any]:
    """A run with batch norm, and its running statistics whenever the model was called."""
    step, loop = sys.modules[TrainingStep.__module__], sys.modules[train.__module__]
    seen: list[Tensor] = []

    def spied(work: Callable[..., Any], model: nn.Module, *rest: Any, **how: Any) -> Any:
        buffers = model.buffers() if isinstance(model, nn.Module) else model.ddp.buffers()
        seen.append(torch.cat([buffer.double().flatten() for buffer in buffers]))
        return work(model, *rest, **how)

    training = patched(step, "step_arguments", partial(spied, step.step_arguments))
    with training, patched(loop, "evaluate", partial(spied, loop.evaluate)):
        found = trained(splits, "mimo", {"encoder": "auto", "epochs": 1})
    return {**found, "statistics": torch.stack(seen)}


def went_on(splits: Splits, folder: Path) -> dict[str, Any]:
    return {f"resumed/{name}": trained(splits, *one, folder / name) for name, one in RESUMED.items()}


def killed(folder: Path, resumes: Path) -> dict[str, Any]:
    """Go on where four ranks stopped; then the command, and one rank is gone in the middle of its second epoch."""
    from equipoise.cli import main as cli

    first, found = os.environ["TORCHELASTIC_RESTART_COUNT"] == "0", {}
    if first:
        torch.save(went_on(data(), resumes), folder / f"went on {dist.get_rank()}.pt")
    last = first and os.environ["RANK"] == "1"
    with ending(KILLED, lambda: os.kill(os.getpid(), signal.SIGKILL) if last else None) as steps:
        sys.argv = ["equipoise", *COMPARE, "--out", str(folder / "killed")]
        try:
            cli.main()
        except SystemExit as ended:
            found["code"] = ended.code
    return {**found, "steps": next(steps)}


def write(task: str, found: dict[str, Any], folder: Path) -> None:
    torch.save(found, folder / f"{task} {dist.get_world_size()} {dist.get_rank()}.pt")


def one_of_several(rank: int, ranks: int, port: int, folder: Path) -> None:
    """Try everything as a rank that learns from the environment, as a launcher's ranks do, which it is."""
    meeting = {"MASTER_ADDR": "localhost", "MASTER_PORT": port, "TORCHELASTIC_USE_AGENT_STORE": True}
    place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": ranks, "LOCAL_WORLD_SIZE": ranks}
    os.environ |= {name: str(value) for name, value in {**meeting, **place}.items()}
    init("cpu")
    left = [folder / f"left by {before}" for before in RANKS if before < ranks]
    write("everything", everything(folder, left[-1] if left else None), folder)
    dist.barrier()
    dist.destroy_process_group()


def main(task: str, folder: Path, *names: str) -> None:
    torch.set_num_threads(1)
    if task == "everything":
        for library in (*LIBRARIES, "sklearn.metrics"):
            import_module(library)
        for ranks in RANKS:  # one number after the other: the second goes on with what the first left
            store = dist.TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
            start_processes(one_of_several, (ranks, store.port, folder), ranks, start_method="fork")
    else:
        init("cpu")
        write(task, killed(folder, folder / names[0]), folder)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), *sys.argv[3:])
