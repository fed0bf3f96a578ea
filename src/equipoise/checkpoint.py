"""Everything a run needs to go on as if nothing had happened, written so that a kill at any moment leaves it whole."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import torch
from torch import nn


def save(folder: Path, epoch: int, model: nn.Module, rest: dict[str, Any]) -> None:
    """Write the state after an epoch: weights as safetensors, the rest as plain tensors and numbers.

    Args:
        folder: Of the run. Each checkpoint is a folder of its own, renamed into place when complete.
        epoch: How many epochs are done.
        model: Whose weights to keep.
        rest: Optimiser, schedule, balancer, random state, curves.
    """
    from safetensors.torch import save_model

    final, unfinished = folder / f"epoch-{epoch:05d}", folder / "unfinished"
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(parents=True)
    save_model(model, str(unfinished / "model.safetensors"))
    torch.save(rest, unfinished / "state.pt")
    for file in unfinished.iterdir():
        _flush(file)
    shutil.rmtree(final, ignore_errors=True)
    unfinished.rename(final)
    for old in checkpoints(folder)[:-1]:
        shutil.rmtree(old, ignore_errors=True)


def checkpoints(folder: Path) -> list[Path]:
    """The complete checkpoints of a run, oldest first."""
    return sorted(folder.glob("epoch-[0-9]*"))


def load(folder: Path, model: nn.Module) -> dict[str, Any] | None:
    """Put the newest readable checkpoint into a model and give the rest of it; None where there is none.

    A damaged checkpoint is passed over: the run then starts from the one before it, or anew.
    """
    from safetensors.torch import load_model

    for path in reversed(checkpoints(folder)):
        try:
            rest = torch.load(path / "state.pt", weights_only=True)
            load_model(model, str(path / "model.safetensors"))
        except (OSError, RuntimeError, ValueError, EOFError, KeyError):
            continue
        except Exception as found:  # safetensors and pickle raise their own kinds for damaged files
            if type(found).__module__.split(".")[0] not in {"safetensors", "safetensors_rust", "pickle", "_pickle"}:
                raise
            continue
        return rest
    return None


def _flush(file: Path) -> None:
    descriptor = os.open(file, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
