"""Checkpoints of a run: a killed run goes on from the newest as if nothing had happened.

They are written so that a kill at any moment leaves them whole, seldom enough to cost little, and at the same moment in
all processes of a run.
"""

import hashlib
import io
import itertools
import math
import os
import re
import shlex
import shutil
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, final

import torch
from torch import Tensor, nn

from equipoise.balance import collectives
from equipoise.training.launch import broadcast, gather
from equipoise.training.parallel import ParallelModel
from equipoise.util.errors import BadInput
from equipoise.util.extras import needs
from equipoise.util.files import inside, link_problems

WITHIN_EPOCH = 1.0  # seconds an epoch lasts at least before a checkpoint is written inside it
KEPT = 2  # the newest, and the one before it in case the newest is damaged
MODEL, STATE, SEAL = "model.safetensors", "state.pt", "sha256"


def _write(folder: Path, epoch: int, model: nn.Module, rest: dict[str, Any], batch: int = 0) -> None:
    """Write the state after an epoch, or within one: weights as safetensors, the rest as plain tensors and numbers.

    Args:
        folder: Of the run. Each checkpoint is a folder of its own, renamed into place when complete.
        epoch: How many epochs are done.
        model: Whose weights to write.
        rest: Optimiser, schedule, balancer, random state, curves.
        batch: How many batches of the next epoch are done.
    """
    with needs("a checkpoint", "train"):
        from safetensors import SafetensorError
        from safetensors.torch import save_model

    name = f"epoch-{epoch:05d}" + (f"-batch-{batch:07d}" if batch else "")
    final, unfinished = inside(folder, name), inside(folder, "unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(parents=True)
    try:
        save_model(model, str(unfinished / MODEL))
    except SafetensorError as problem:  # how it says that the disk is full
        raise OSError(str(problem)) from None
    buffer = io.BytesIO()  # first to memory: torch's own writer does not say what is wrong with a disk
    torch.save(rest, buffer)
    (unfinished / STATE).write_bytes(buffer.getbuffer())
    seals = [f"{_digest(unfinished / file)}  {file}\n" for file in (MODEL, STATE)]
    (unfinished / SEAL).write_text("".join(seals), encoding="ascii")  # what `sha256sum --check` reads
    for written in [*unfinished.iterdir(), unfinished]:
        _flush(written)
    unfinished.rename(final)
    for old in checkpoints(folder)[:-KEPT]:
        old.rename(unfinished)  # a kill must not leave half a checkpoint under the name of a whole one
        shutil.rmtree(unfinished)


def checkpoints(folder: Path) -> list[Path]:
    """List the checkpoints of a run, oldest first."""
    return sorted(folder.glob("epoch-[0-9]*"), key=lambda path: [*map(int, re.findall(r"\d+", path.name))])


def curves(folder: Path) -> list[dict[str, Any]]:
    """Return the records of the epochs in the newest checkpoint of a run; none where there is no checkpoint.

    Raises:
        BadInput: If it is damaged.
    """
    newest = _newest(folder)
    return torch.load(newest / STATE, map_location="cpu", weights_only=True)["curves"] if newest else []


def _newest(folder: Path) -> Path | None:
    if damage := damage_in(folder):
        raise BadInput(damage)
    return checkpoints(folder)[-1] if checkpoints(folder) else None


def damage_in(folder: Path) -> str:
    """Say what is wrong with the checkpoint that a run would go on from, and what to type; "" where nothing is."""
    if links := [link for place in (folder, *checkpoints(folder)) for link in link_problems(place)]:
        return "\n".join(links)
    newest_first = ((path, _damaged(path)) for path in reversed(checkpoints(folder)))
    damaged = dict(itertools.takewhile(lambda one: one[1], newest_first))
    if not damaged:
        return ""
    whole = checkpoints(folder)[: -len(damaged)]
    going_on = f"To go on from {whole[-1].name} instead, type" if whole else "To begin this run anew, type"
    remove = f"Nothing was changed. {going_on}: rm -r {shlex.join(map(str, damaged))}"
    return "\n".join([*itertools.chain.from_iterable(damaged.values()), remove])


def _damaged(path: Path) -> list[str]:
    """List what is wrong with each file of a checkpoint: neither format notices a changed number by itself."""
    try:
        lines = (path / SEAL).read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError as problem:
        return [f"{path / SEAL}: expected the sums of the files beside it, found: {problem.strerror}"]
    problems = []
    for file in (path / MODEL, path / STATE):
        try:
            if f"{_digest(file)}  {file.name}" not in lines:
                problems.append(f"{file}: expected the content whose sum is in {SEAL}, found another")
        except OSError as problem:
            problems.append(f"{file}: expected part of a checkpoint, found: {problem.strerror}")
    return problems


def _digest(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@final
@dataclass
class RunState:
    """Progress of a run, besides its weights and the states of its optimiser and method.

    Args:
        shuffle: Draws the order of the samples of every epoch.
        epoch: Epochs that are done.
        seconds: Spent in them.
        curves: One record per epoch.
        best: Merit (see `Metric.merit`), number and weights of the best epoch.
        batch: Batches that are done of the present epoch.
        samples: Of these batches.
        sums: Of their losses by objective, over the samples of this process.
        seconds_before: Spent in the present epoch before the run was resumed.
        started: When the present epoch began, or would have, had it not been interrupted.
        shuffle_before: The state of `shuffle` before it drew the order of the present epoch.
    """

    shuffle: torch.Generator
    epoch: int = 0
    seconds: float = 0.0
    curves: list[dict[str, Any]] = field(default_factory=list)
    best: tuple[float, int, dict[str, Tensor]] = (-math.inf, 0, {})
    batch: int = 0
    samples: int = 0
    sums: dict[str, Tensor] = field(default_factory=dict)
    seconds_before: float = 0.0
    started: float = 0.0
    shuffle_before: Tensor | None = None


@final
class Checkpoints:
    """Writes the checkpoints of a run when they are due, and resumes from the newest.

    Args:
        folder: Of the run; None writes nothing.
        seconds: Least time between two checkpoints.
        model: As the ranks hold it.
        state: Of the run.
        parts: By name the optimiser and all else that has a state_dict, or is None.
    """

    def __init__(
        self, folder: Path | None, seconds: float, model: ParallelModel, state: RunState, parts: Mapping[str, Any]
    ) -> None:
        self._folder, self._seconds, self._model, self._state, self._parts = folder, seconds, model, state, parts
        self._written, self._cost, self._next_question = time.perf_counter(), 0.0, 0

    def due(self) -> bool:
        """Return whether to write after an epoch. All processes have to ask together."""
        return broadcast(time.perf_counter() - self._written >= self._seconds)

    def due_within(self) -> bool:
        """Return whether to write inside an epoch: short ones need no checkpoint, and writing should cost little.

        Several processes ask each other about once a second: at every step it would cost as much as the step.
        """
        now, batch = time.perf_counter(), self._state.batch
        due = now - self._written >= max(self._seconds, WITHIN_EPOCH, 30 * self._cost)
        if collectives.size() == 1:
            return due
        if 1 < batch < self._next_question:
            return False
        seconds = (now - self._state.started) / batch
        due, self._next_question = broadcast((due, batch + max(1, int(1.0 / seconds))))
        return due

    def save(self) -> None:
        """Write a checkpoint. All processes have to do so together."""
        started = time.perf_counter()
        if self._folder is not None:
            content, model = self._content(), self._model.full_model()
            if collectives.rank() == 0:
                _write(self._folder, self._state.epoch, model, content, batch=self._state.batch)
        self._written = time.perf_counter()
        self._cost = self._written - started

    def _content(self) -> dict[str, Any]:
        """Return everything that the rest of the run depends on, but the weights."""
        state, model = self._state, self._model
        return {
            **{name: getattr(state, name) for name in _PLAIN},
            "sums": gather(state.sums),
            "seconds_before": time.perf_counter() - state.started if state.batch else 0.0,
            "best": model.gather(state.best),
            "shuffle": state.shuffle_before if state.batch else state.shuffle.get_state(),
            **{name: None if part is None else part.state_dict() for name, part in self._parts.items()},
            "optimizer": model.gather(self._parts["optimizer"].state_dict()),
            "random": torch.get_rng_state(),
            "random_cuda": torch.cuda.get_rng_state_all() if model.device.type == "cuda" else [],
        }

    def resume(self) -> None:
        """Go on from the newest checkpoint, if there is one, whatever the number of processes that wrote it.

        Raises:
            BadInput: If it is damaged. No kill leaves such a one: the disk is in trouble, and the user has to know.
        """
        if self._folder is None:
            return
        with needs("a checkpoint", "train"):
            from safetensors.torch import load_model

        state, whole, content = self._state, self._model.full_model(), None
        if collectives.rank() == 0 and (newest := _newest(self._folder)) is not None:
            content = torch.load(newest / STATE, weights_only=True)
            load_model(whole, str(newest / MODEL))
        content = broadcast(content)
        if content is None:
            return
        if collectives.size() > 1:
            self._model.model.load_state_dict(self._model.shard(broadcast(whole.state_dict())))
        for name in (*_PLAIN, "seconds_before"):
            setattr(state, name, content[name])
        score, best, weights = content["best"]
        state.best = (score, best, dict(self._model.shard(weights)))
        state.sums.update(_own_sums(content["sums"], self._model.device))
        state.shuffle.set_state(content["shuffle"])
        content["optimizer"] = self._model.shard_optimizer(content["optimizer"], self._parts["optimizer"])
        for name, part in self._parts.items():
            if part is not None:
                part.load_state_dict(content[name])
        torch.set_rng_state(content["random"])
        if content["random_cuda"]:
            torch.cuda.set_rng_state_all(content["random_cuda"][: torch.cuda.device_count()])


_PLAIN = ("epoch", "seconds", "curves", "batch", "samples")


def _own_sums(stored: list[dict[str, Tensor]], device: torch.device) -> dict[str, Tensor]:
    """Return the sums of this process; where other processes wrote them, the first takes those of all."""
    if len(stored) == collectives.size():
        return {name: total.to(device) for name, total in stored[collectives.rank()].items()}
    taken = float(collectives.rank() == 0)
    return {name: taken * torch.stack([one[name] for one in stored]).sum(dim=0).to(device) for name in stored[0]}
