"""The components that `Rocket` encoders read, computed once per data set and shared by all runs on it.

Runs of a study are forked off a process that holds those of the training and the validation part. What is read after
training, the test part with every fault, goes through a folder: the first run that reads a batch leaves its components
for the others. A run by itself computes its own.
"""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
from collections.abc import Generator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from equipoise.data.part import LENGTH, Part
from equipoise.data.splits import Splits
from equipoise.models.choose import kinds_of
from equipoise.models.fusion_model import FusionModel
from equipoise.models.rocket import Rocket
from equipoise.training.settings import Settings
from equipoise.util.errors import BadInput
from equipoise.util.processes import lock_folder

KIND = "rocket"
PREFIX = "equipoise-components-"
MOST_KEPT = 64


class _Kept(NamedTuple):
    """The fitted tensors of an encoder, the components of two parts, the data, and the folder that runs share.

    The data is kept so that no other gets its number.
    """

    state: dict[str, Tensor]
    train: Tensor
    validation: Tensor
    splits: Splits
    folder: Path | None


_kept: dict[tuple[int, str], _Kept] = {}
_folders: list[Path] = []


@contextmanager
def shared() -> Generator[None]:
    """Let the runs that are forked off inside of the context share what they compute, in a folder that then goes."""
    _remove_stale()
    try:
        folder = Path(tempfile.mkdtemp(prefix=PREFIX))
    except OSError:  # a full disk, or no folder at all: every run computes its own
        yield
        return
    with lock_folder(folder, "using"):  # until this process ends, and all that were forked off it
        _folders.append(folder)
        try:
            yield
        finally:
            _folders.pop()
            shutil.rmtree(folder, ignore_errors=True)


def _remove_stale() -> None:
    """Remove the folders of processes that were killed."""
    with suppress(OSError):
        for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
            with suppress(OSError, BadInput):  # BadInput: somebody still uses it
                own = folder.lstat()
                if stat.S_ISDIR(own.st_mode) and own.st_uid == os.getuid():
                    with lock_folder(folder, "using", patience=0):
                        shutil.rmtree(folder, ignore_errors=True)


def prepare(splits: Splits, settings: Settings) -> None:
    """Compute the components of some data before runs are forked off, if the settings name encoders that read them."""
    kinds, _ = kinds_of(settings.encoder, splits.shapes)
    for name, kind in kinds.items():
        if kind == KIND and settings.model == "auto":
            _components(splits, name)


def with_components(model: FusionModel, splits: Splits) -> Splits:
    """Fit the `Rocket` encoders of a model, and return the data with components in the place of what they would read.

    From then on they read components, until `read_inputs`. The test part stays as it is.
    """
    train, validation = splits.train, splits.validation
    for name, encoder in model.encoders.items():
        if isinstance(encoder, Rocket):
            kept = _components(splits, name)
            encoder.load_state_dict(kept.state, strict=False)
            encoder.reads_components, encoder.shared = True, kept.folder
            train, validation = _replaced(train, name, kept.train), _replaced(validation, name, kept.validation)
    return splits if train is splits.train else replace(splits, train=train, validation=validation)


def as_read(model: FusionModel, part: Part) -> Part:
    """Return samples as a model reads them in training: components in the place of what `Rocket` encoders would read.

    Args:
        model: After `with_components`.
        part: The samples, as encoders read them in evaluation.
    """
    for name, encoder in model.encoders.items():
        if isinstance(encoder, Rocket) and encoder.reads_components:
            part = _replaced(part, name, encoder.components_of(part.inputs[name], part.inputs.get(name + LENGTH)))
    return part


def read_inputs(model: FusionModel) -> None:
    """Let the `Rocket` encoders of a model read inputs, as they do everywhere but in training."""
    for encoder in model.encoders.values():
        if isinstance(encoder, Rocket):
            encoder.reads_components = False


@torch.no_grad()
def _components(splits: Splits, name: str) -> _Kept:
    key = (id(splits), name)
    if key not in _kept:
        while len(_kept) >= MOST_KEPT:
            del _kept[next(iter(_kept))]
        with torch.random.fork_rng(devices=[]):  # its network is not used
            encoder = Rocket(splits.shapes[name])
        train, validation = (part.in_memory().ready() for part in (splits.train, splits.validation))
        found = encoder.fit(train.inputs[name], train.inputs.get(name + LENGTH))
        checked = encoder.components_of(validation.inputs[name], validation.inputs.get(name + LENGTH))
        state = {key: value for key, value in encoder.state_dict().items() if not key.startswith("network.")}
        folder = None
        with suppress(OSError):
            folder = Path(tempfile.mkdtemp(dir=_folders[-1])) if _folders else None
        _kept[key] = _Kept(state, found, checked, splits, folder)
    return _kept[key]


def _replaced(part: Part, name: str, components: Tensor) -> Part:
    """Return a part whose modality is its components: vectors, without lengths and views."""
    part = part.in_memory()
    inputs = {key: value for key, value in part.inputs.items() if key != name + LENGTH} | {name: components}
    return replace(part, inputs=inputs, views={key: view for key, view in part.views.items() if key != name})
