"""Frozen features: random kernels that are never trained, under heads that are solved or trained.

| input | features |
|---|---|
| series [C, T] | `MiniRocket` and `Hydra` kernels, and a random layer on `Summary` |
| raw sound | the same, of the bands of its log-mel spectrogram |
| video [C, T, H, W] | the same, of the means of 8 × 8 and of 16 × 16 patches over time |
| image [C, H, W] | the same along rows and along columns, and a random layer on the means of patches |
| vector [D] | the numbers themselves, and a random layer on them |

The kernels depend on the shape of an input and on nothing else. Biases, means and deviations come from the inputs of
the training part, once, in `FrozenFeatures.fit`; labels are not read.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import cast, final

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from equipoise.models.encoders import zero_padding
from equipoise.models.kernels import BATCH, FrozenBlock, Hydra, MiniRocket, Shape, mean_of_steps
from equipoise.models.sound import BINS, LogMelSpectrogram, is_sound

UNITS = 1000  # of a random layer
SEGMENTS = 8  # of time, in a summary
PATCHES = (8, 16)  # per side
SUMMARY_SHARE = 0.3  # summaries tell people apart too: with an equal share, unseen people are told less well
LEAST_DEVIATION = 1e-3
FITTED = 512  # samples from which blocks take their biases


@final
class Summary(FrozenBlock):
    """Mean, deviation, least, largest, mean change and the means of eight segments of each channel: [B, C, T] → [B, F].

    Args:
        shape: (C, T).
    """

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        channels, steps = shape
        segments = min(SEGMENTS, steps)
        self.features = channels * (5 + segments)
        edges = np.linspace(0, steps, segments + 1).round().astype(int)
        share = np.zeros((steps, segments), dtype=np.float32)
        for number in range(segments):
            share[edges[number] : edges[number + 1], number] = 1 / (edges[number + 1] - edges[number])
        self.register_buffer("means", torch.from_numpy(share))

    def forward(self, values: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Compute the numbers."""
        values = zero_padding(values, lengths)
        mean = mean_of_steps(values, lengths)
        square = mean_of_steps((values - mean.unsqueeze(2)).square(), lengths)
        change = values.diff(dim=2).abs().sum(dim=2) / max(values.shape[2] - 1, 1)
        found = [mean, square.sqrt(), values.amin(dim=2), values.amax(dim=2), change]
        return torch.cat([*found, (values @ self.get_buffer("means")).flatten(1)], dim=1)


@final
class RandomLayer(FrozenBlock):
    """A layer of random weights and ReLU on the standardised features of another block: [B, …] → [B, units].

    Args:
        block: Whose features it reads; None for vectors as they are.
        inputs: Their number.
        random: Draws the weights.
        both: Give the features that it reads too.
    """

    def __init__(
        self, block: FrozenBlock | None, inputs: int, random: np.random.Generator, *, both: bool = False
    ) -> None:
        super().__init__()
        self.block, self.both = block, both
        self.features, units = UNITS + (inputs if both else 0), UNITS
        weight = random.standard_normal((units, inputs)) / math.sqrt(inputs)
        self.register_buffer("weight", torch.from_numpy(weight.astype(np.float32)))
        self.register_buffer("bias", torch.from_numpy(random.standard_normal(units).astype(np.float32)))
        self.register_buffer("mean", torch.from_numpy(np.zeros(inputs, dtype=np.float32)))
        self.register_buffer("scale", torch.from_numpy(np.ones(inputs, dtype=np.float32)))

    def forward(self, values: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Compute the layer."""
        read = (self._read(values, lengths) - self.get_buffer("mean")) * self.get_buffer("scale")
        units = F.linear(read, self.get_buffer("weight"), self.get_buffer("bias")).relu()
        return torch.cat([read, units], dim=1) if self.both else units

    def fit(self, values: Tensor, lengths: Tensor | None, random: np.random.Generator) -> None:
        """Standardise what is read by training samples."""
        if self.block is not None:
            self.block.fit(values, lengths, random)
        _standardise(self, torch.cat([self._read(*some) for some in _batches(values, lengths)]))

    def _read(self, values: Tensor, lengths: Tensor | None) -> Tensor:
        return values if self.block is None else self.block(values, lengths)


@final
class _Seen(FrozenBlock):
    """A block that reads an input in another form: patches over time, rows, columns.

    Args:
        block: Reads the form.
        form: "columns", "rows", "pixels", or "patches".
        shape: Of the input.
        patches: Per side.
    """

    def __init__(self, block: FrozenBlock, form: str, shape: Shape, patches: int = 0) -> None:
        super().__init__()
        self.block, self._form = block, form
        self.features = block.features
        if patches:
            for name, size in (("down", shape[-2]), ("across", shape[-1])):
                self.register_buffer(name, torch.from_numpy(_means_of(size, patches)))

    def fit(self, values: Tensor, lengths: Tensor | None, random: np.random.Generator) -> None:
        """Fit the block to the form."""
        formed = torch.cat([self._formed(some) for some, _ in _batches(values, None)])
        self.block.fit(formed, lengths if self._form == "patches" else None, random)

    def forward(self, values: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Read the form."""
        return self.block(self._formed(values), lengths if self._form == "patches" else None)

    def _formed(self, values: Tensor) -> Tensor:
        if self._form == "columns":
            return values.flatten(1, 2)
        if self._form == "rows":
            return values.transpose(2, 3).flatten(1, 2)
        small = self.get_buffer("down").T @ values @ self.get_buffer("across")
        return small.flatten(1) if self._form == "pixels" else small.transpose(2, 4).transpose(2, 3).flatten(1, 3)


@final
class FrozenFeatures(nn.Module):
    """All frozen features of one input, standardised: [B, …] → [B, features].

    The mean squared length of the output is one on the training part, and every block has its share in it. Until `fit`,
    means are zero and scales one.

    Cost: on one core, a thousand samples of a sensor of 3 × 100 take about a second.

    Args:
        shape: Of one input: (D,), (C, T), (C, H, W) or (C, T, H, W).
    """

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.spectrogram = LogMelSpectrogram(shape[1]) if is_sound(shape) else None
        if self.spectrogram is not None:
            shape = (shape[0] * BINS, self.spectrogram.frames(shape[1]))
        random = np.random.default_rng(0)  # the same kernels every time: what is frozen is no part of a run's chance
        self.blocks = nn.ModuleList(_blocks_for(tuple(shape), random))
        sizes = [cast("FrozenBlock", block).features for block in self.blocks]
        self.features = sum(sizes)
        self._sizes = sizes
        self.register_buffer("mean", torch.from_numpy(np.zeros(self.features, dtype=np.float32)))
        self.register_buffer("scale", torch.from_numpy(np.ones(self.features, dtype=np.float32)))

    def forward(self, values: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Compute the features; with `lengths` [B], of that many steps of each sample."""
        if values.device.type == "cpu" and not torch.compiler.is_compiling() and len(values) > BATCH:
            return torch.cat([self(*some) for some in _batches(values, lengths)])  # a large one leaves the cache
        return (self._raw(values, lengths) - self.get_buffer("mean")) * self.get_buffer("scale")

    def _raw(self, values: Tensor, lengths: Tensor | None) -> Tensor:
        with torch.autocast(values.device.type, enabled=False):  # a share of steps above a bias has no use for speed
            read = self._seen(values, lengths)
            return torch.cat([block(*read) for block in self.blocks], dim=1)

    def _seen(self, values: Tensor, lengths: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Return what the blocks read of inputs."""
        values = zero_padding(values.float(), lengths) if values.dim() == 3 else values.float()
        if self.spectrogram is None:
            return values, lengths
        return self.spectrogram(values).flatten(1, 2), None if lengths is None else self.spectrogram.frames(lengths)

    @torch.no_grad()
    def fit(self, values: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Fit biases, means and scales to training inputs, and return their features.

        Args:
            values: The inputs of the training part, [N, …].
            lengths: Their real steps, [N], where they are ragged.
        """
        random = np.random.default_rng(1)
        rows = torch.from_numpy(random.permutation(len(values))[:FITTED]).to(values.device)
        read = self._seen(values[rows], None if lengths is None else lengths[rows])
        for block in self.blocks:
            cast("FrozenBlock", block).fit(*read, random)
        raw = torch.cat([self._raw(*some) for some in _batches(values, lengths)])
        _standardise(self, raw)
        shares = torch.tensor([cast("FrozenBlock", block).share for block in self.blocks])
        lengths_of_blocks = (shares / shares.sum() / torch.tensor(self._sizes)).sqrt()
        self.get_buffer("scale").mul_(lengths_of_blocks.repeat_interleave(torch.tensor(self._sizes)).to(raw))
        return raw.sub_(self.get_buffer("mean")).mul_(self.get_buffer("scale"))

    @torch.no_grad()
    def computed(self, values: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Compute the features of many samples, in batches."""
        return torch.cat([self(*some) for some in _batches(values, lengths)])


def _blocks_for(shape: Shape, random: np.random.Generator) -> Sequence[FrozenBlock]:
    if len(shape) == 1:
        return [RandomLayer(None, shape[0], random, both=True)]
    if len(shape) == 2:
        summary = Summary(shape)
        layer = RandomLayer(summary, summary.features, random)
        layer.share = SUMMARY_SHARE
        return [MiniRocket(shape, random), Hydra(shape, random), layer]
    channels, height, width = shape[0], shape[-2], shape[-1]
    if len(shape) == 3:
        count = min(PATCHES[1], height, width)
        pixels = RandomLayer(None, channels * count**2, random, both=True)
        return [
            _Seen(Hydra((channels * height, width), random), "columns", shape),
            _Seen(Hydra((channels * width, height), random), "rows", shape),
            _Seen(pixels, "pixels", shape, count),
        ]
    blocks: list[FrozenBlock] = []
    for count in dict.fromkeys(min(one, height, width) for one in PATCHES):
        series = (channels * count**2, shape[1])
        blocks += [_Seen(kind(series, random), "patches", shape, count) for kind in (MiniRocket, Hydra)]
    return blocks


def _means_of(size: int, parts: int) -> np.ndarray:
    """Return the matrix [size, parts] that takes the mean of each of some equal parts."""
    edges = np.linspace(0, size, parts + 1)
    place = np.arange(size)
    low, high = np.maximum(place[:, None], edges[:-1]), np.minimum(place[:, None] + 1, edges[1:])
    return ((high - low).clip(0) * parts / size).astype(np.float32)


def _standardise(module: nn.Module, values: Tensor) -> None:
    """Set the buffers mean and scale by values [N, F]; what does not vary is left out by a scale of zero."""
    deviation = values.std(dim=0) if len(values) > 1 else torch.ones_like(values[0])
    module.get_buffer("mean").copy_(values.mean(dim=0))
    module.get_buffer("scale").copy_(torch.where(deviation > LEAST_DEVIATION, 1 / deviation, 0.0))


def _batches(values: Tensor, lengths: Tensor | None) -> Iterable[tuple[Tensor, Tensor | None]]:
    ends = [None] * math.ceil(len(values) / BATCH) if lengths is None else lengths.split(BATCH)
    return zip(values.split(BATCH), ends, strict=True)
