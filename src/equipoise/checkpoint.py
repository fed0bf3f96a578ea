"""Everything a run needs to go on as if nothing had happened, written so that a kill at any moment leaves it whole."""

from __future__ import annotations

import hashlib
import io
import logging
import os
import shutil
from pathlib import Path
from typing import Any

import torch
from torch import nn

KEPT = 2  # the newest, and the one before it in case the newest is damaged
MODEL, STATE, SEAL = "model.safetensors", "state.pt", "sha256"


def save(folder: Path, epoch: int, model: nn.Module, rest: dict[str, Any]) -> None:
    """Write the state after an epoch: weights as safetensors, the rest as plain tensors and numbers.

    Args:
        folder: Of the run. Each checkpoint is a folder of its own, renamed into place when complete.
        epoch: How many epochs are done.
        model: Whose weights to keep.
        rest: Optimiser, schedule, balancer, random state, curves.
    """
    from safetensors import SafetensorError
    from safetensors.torch import save_model

    final, unfinished = folder / f"epoch-{epoch:05d}", folder / "unfinished"
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(parents=True)
    try:
        save_model(model, str(unfinished / MODEL))
    except SafetensorError as found:  # how it says that the disk is full
        raise OSError(str(found)) from None
    buffer = io.BytesIO()  # first to memory: torch's own writer does not say what is wrong with a disk
    torch.save(rest, buffer)
    (unfinished / STATE).write_bytes(buffer.getbuffer())
    (unfinished / SEAL).write_text(_digest(unfinished), encoding="ascii")
    for file in unfinished.iterdir():
        _flush(file)
    shutil.rmtree(final, ignore_errors=True)
    unfinished.rename(final)
    for old in checkpoints(folder)[:-KEPT]:
        shutil.rmtree(old, ignore_errors=True)


def checkpoints(folder: Path) -> list[Path]:
    """The checkpoints of a run, oldest first."""
    return sorted(folder.glob("epoch-[0-9]*"))


def load(folder: Path, model: nn.Module) -> dict[str, Any] | None:
    """Put the newest whole checkpoint into a model and give the rest of it; None where there is none.

    A damaged checkpoint is passed over, with a word: the run then starts from the one before it, or anew, and comes to
    the same result.
    """
    from safetensors.torch import load_model

    for path in reversed(checkpoints(folder)):
        if not _whole(path):
            logging.getLogger("equipoise").warning("the checkpoint %s is damaged and is passed over", path)
            continue
        rest = torch.load(path / STATE, weights_only=True)
        load_model(model, str(path / MODEL))
        return rest
    return None


def _whole(path: Path) -> bool:
    try:
        return (path / SEAL).read_bytes() == _digest(path).encode()
    except OSError:
        return False


def _digest(path: Path) -> str:
    """A hash over both files: neither format notices a changed number by itself."""
    digest = hashlib.sha256()
    for name in (MODEL, STATE):
        digest.update((path / name).read_bytes())
    return digest.hexdigest()


def _flush(file: Path) -> None:
    descriptor = os.open(file, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
