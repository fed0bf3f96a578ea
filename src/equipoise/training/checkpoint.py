"""Everything a run needs to go on as if nothing had happened, written so that a kill at any moment leaves it whole."""

from __future__ import annotations

import hashlib
import io
import os
import re
import shlex
import shutil
from pathlib import Path
from typing import Any

import torch
from torch import nn

from equipoise.util.errors import BadInput
from equipoise.util.files import inside, link_problems

KEPT = 2  # the newest, and the one before it in case the newest is damaged
MODEL, STATE, SEAL = "model.safetensors", "state.pt", "sha256"


def save(folder: Path, epoch: int, model: nn.Module, rest: dict[str, Any], batch: int = 0) -> None:
    """Write the state after an epoch, or within one: weights as safetensors, the rest as plain tensors and numbers.

    Args:
        folder: Of the run. Each checkpoint is a folder of its own, renamed into place when complete.
        epoch: How many epochs are done.
        model: Whose weights to keep.
        rest: Optimiser, schedule, balancer, random state, curves.
        batch: How many batches of the next epoch are done.
    """
    from safetensors import SafetensorError
    from safetensors.torch import save_model

    name = f"epoch-{epoch:05d}" + (f"-batch-{batch:07d}" if batch else "")
    final, unfinished = inside(folder, name), inside(folder, "unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(parents=True)
    try:
        save_model(model, str(unfinished / MODEL))
    except SafetensorError as found:  # how it says that the disk is full
        raise OSError(str(found)) from None
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
    """The checkpoints of a run, oldest first."""
    return sorted(folder.glob("epoch-[0-9]*"), key=lambda path: [int(each) for each in re.findall(r"\d+", path.name)])


def load(folder: Path, model: nn.Module) -> dict[str, Any] | None:
    """Put the newest checkpoint into a model and give the rest of it; None where there is none.

    Raises:
        BadInput: If it is damaged. No kill leaves such a one, so that the disk is in trouble, and that has to be said.
    """
    from safetensors.torch import load_model

    if damage := damage_in(folder):
        raise BadInput(damage)
    if not checkpoints(folder):
        return None
    newest = checkpoints(folder)[-1]
    rest = torch.load(newest / STATE, weights_only=True)
    load_model(model, str(newest / MODEL))
    return rest


def curves(folder: Path) -> list[dict[str, Any]]:
    """The epochs that the newest checkpoint of a run knows of; none where there is no checkpoint.

    Raises:
        BadInput: If it is damaged.
    """
    if damage := damage_in(folder):
        raise BadInput(damage)
    found = checkpoints(folder)
    return torch.load(found[-1] / STATE, map_location="cpu", weights_only=True)["curves"] if found else []


def damage_in(folder: Path) -> str:
    """What is wrong with the checkpoint that a run would go on from, and what to type; "" where nothing is."""
    if links := [each for place in (folder, *checkpoints(folder)) for each in link_problems(place)]:
        return "\n".join(links)
    problems: list[str] = []
    remove: list[Path] = []
    going_on = "To begin this run anew, type"
    for path in reversed(checkpoints(folder)):
        damaged = _damaged(path)
        if not damaged:
            going_on = f"To go on from {path.name} instead, type"
            break
        problems += damaged
        remove.append(path)
    if not remove:
        return ""
    return "\n".join([*problems, f"Nothing was changed. {going_on}: rm -r {shlex.join(map(str, remove))}"])


def _damaged(path: Path) -> list[str]:
    """What is wrong with each file of a checkpoint: neither format notices a changed number by itself."""
    try:
        lines = (path / SEAL).read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError as found:
        return [f"{path / SEAL}: expected the sums of the files beside it, found: {found.strerror}"]
    sealed = {name: digest for digest, _, name in (line.partition("  ") for line in lines)}
    problems = []
    for file in (path / MODEL, path / STATE):
        try:
            if sealed.get(file.name) != _digest(file):
                problems.append(f"{file}: expected the content whose sum is in {SEAL}, found another")
        except OSError as found:
            problems.append(f"{file}: expected part of a checkpoint, found: {found.strerror}")
    return problems


def _digest(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
