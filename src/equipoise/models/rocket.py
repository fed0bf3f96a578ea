"""An encoder on frozen features: random kernels, their principal components, and a small network that is trained."""

import hashlib
import os
from contextlib import suppress
from pathlib import Path
from typing import final

import numpy as np
import torch
from torch import Tensor, nn

from equipoise.models.encoders import RegularisedMLP
from equipoise.models.frozen import FrozenFeatures, Shape

COMPONENTS = 128
FITTED = 1000  # samples whose components are found: it takes their third power
MOST_SHARED = 2**30  # bytes on disk


@final
class Rocket(nn.Module):
    """Frozen kernels under a trained network: [B, …] → [B, features], for inputs of any shape.

    `FrozenFeatures` (MiniRocket, Dempster et al., 2021, and Hydra, Dempster et al., 2023), the first 128 principal
    components of their values on the training part, and a `RegularisedMLP`, which alone is trained. The components of
    every sample are computed once per data set (`training/components.py`), so that a step takes as long as one on
    vectors. Chosen by name only: for little data, and where many runs share their data.

    Args:
        shape: Of one input.
        features: The size of the output vector.
    """

    def __init__(self, shape: Shape, features: int = 64) -> None:
        super().__init__()
        self.features = features
        self.frozen = FrozenFeatures(shape)
        self.register_buffer("components", torch.from_numpy(np.zeros((self.frozen.features, COMPONENTS), np.float32)))
        self.network = RegularisedMLP(COMPONENTS, features)
        self.reads_components = False
        """True while inputs are components that were computed before."""
        self.shared: Path | None = None
        """A folder where processes whose kernels are the same leave the components of batches for each other."""

    def forward(self, values: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Encode inputs; with `lengths` [B], only that many steps of each."""
        return self.network(values if self.reads_components else self.components_of(values, lengths))

    def components_of(self, values: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Return the principal components of the frozen features of inputs, [B, 128]."""
        plain = values.device.type == "cpu" and not values.requires_grad and not torch.compiler.is_compiling()
        if self.shared is None or not plain:
            return self._computed(values, lengths)
        file = self.shared / f"{_digest(values, lengths)}.npy"
        with suppress(OSError, ValueError, EOFError):  # not there yet, or gone, or damaged: it is computed
            return torch.from_numpy(np.load(file))
        found = self._computed(values, lengths)
        with suppress(OSError):  # the disk may be full: others compute it too
            _leave(file, found)
        return found

    def _computed(self, values: Tensor, lengths: Tensor | None) -> Tensor:
        return self.frozen(values, lengths) @ self.get_buffer("components")

    @torch.no_grad()
    def fit(self, values: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Fit kernels and components to training inputs, and return the components of these.

        The spread of a component is the square root of what it was: the first do not drown the others, and the last are
        not as loud as the first.
        """
        features = self.frozen.fit(values, lengths)
        rows = np.random.default_rng(0).permutation(len(features))[:FITTED]
        some = features[torch.from_numpy(np.sort(rows)).to(features.device)]
        some = some - some.mean(dim=0)
        spread, directions = torch.linalg.eigh((some @ some.T).double() / len(some))
        kept = spread.flip(0)[:COMPONENTS].clamp(min=1e-9)
        found = (some.T @ directions.flip(1)[:, :COMPONENTS].to(some)) / (kept * len(some)).sqrt().to(some)
        scaled = found * kept.pow(-0.25).to(some)
        scaled = torch.where(kept > 1e-5 * kept[0], scaled, 0.0)  # fewer samples than components
        total = (kept.sqrt().sum() / COMPONENTS).sqrt().clamp(min=1e-6)
        buffer = self.get_buffer("components")
        buffer.zero_()[:, : scaled.shape[1]] = scaled / total.to(some)
        return features @ buffer


def _leave(file: Path, found: Tensor) -> None:
    """Write components for other processes, as long as all together are not too many."""
    if not file.parent.is_dir() or _bytes_in(file.parent.parent) + found.nbytes >= MOST_SHARED:
        return
    own = file.with_suffix(f".{os.getpid()}")  # the second to come leaves the same
    try:
        with own.open("wb") as stream:
            np.save(stream, found.numpy())
        own.replace(file)
    finally:
        own.unlink(missing_ok=True)


def _digest(values: Tensor, lengths: Tensor | None) -> str:
    """Name a batch by its content."""
    name = hashlib.blake2b(str((values.shape, values.dtype)).encode(), digest_size=16)
    for array in (values, lengths):
        if array is not None:
            name.update(array.detach().contiguous().numpy())
    return name.hexdigest()


def _bytes_in(folder: Path) -> int:
    total = 0
    for file in folder.glob("*/*"):
        with suppress(FileNotFoundError):  # another run has given it its name since
            total += file.stat().st_size
    return total
