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
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from itertools import combinations, product
from typing import Any, cast, final

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from equipoise.models.encoders import real_steps, zero_padding
from equipoise.models.sound import BINS, LogMelSpectrogram, is_sound

Shape = tuple[int, ...]
KERNEL = 9
ROCKET_FEATURES = 4000
HYDRA_GROUPS, HYDRA_KERNELS = 32, 8
MOST_CHANNELS = 8  # that one random kernel reads
POSITIONS = 128  # of a long series at which kernels are placed, about
UNITS = 1000  # of a random layer
SEGMENTS = 8  # of time, in a summary
PATCHES = (8, 16)  # per side
SUMMARY_SHARE = 0.3  # summaries tell people apart too: with an equal share, unseen people are told less well
LEAST_DEVIATION = 1e-3
FITTED = 512  # samples from which blocks take their biases
BATCH = 64
RAMP = 3e-3  # of the deviation of what is compared: so much of a comparison is gradual
REACH = 128  # roundings of a convolution that a ramp is wide, at least
LEAST_RAMP = 1e-6
LEAST_SUM = 1e-4  # of responses: rounding alone gives a sum, and the root of a smaller one would enlarge it


class _Block(nn.Module, ABC):
    """One kind of features of one input, [B, …] → [B, features]."""

    features: int
    share: float = 1.0
    """In the mean squared length of all features, beside the shares of other blocks."""

    @abstractmethod
    def forward(self, values: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Compute the features; with `lengths` [B], of that many steps of each sample."""

    def fit(self, values: Tensor, lengths: Tensor | None, random: np.random.Generator) -> None:
        """Set what depends on the training inputs."""


@final
class MiniRocket(_Block):
    """Shares of time that convolutions with 84 fixed kernels lie above biases: [B, C, T] → [B, features].

    "MiniRocket: A Very Fast (Almost) Deterministic Transform for Time Series Classification" (Dempster, Schmidt and
    Webb, KDD 2021). The kernels have nine weights, three of 2 and six of −1; dilations grow geometrically up to the
    length of a series; biases are quantiles of the convolutions of training samples; each kernel reads the sum of a
    random choice of channels. Every convolution is padded, where the paper pads every other one.

    A step counts from 0 to 1 as its convolution climbs a narrow ramp around the bias, where the paper has a jump: a
    rounding in another runtime then changes next to nothing, where it would flip a comparison.

    Args:
        shape: (C, T).
        random: Draws the channels.
    """

    def __init__(self, shape: Shape, random: np.random.Generator) -> None:
        super().__init__()
        channels, steps = shape
        self._wide = channels > MOST_CHANNELS + 1
        self._plan, self._stride = _dilations(steps, ROCKET_FEATURES // 84), max(1, steps // POSITIONS)
        self.features = 84 * sum(count for _, count in self._plan)
        kernels = np.full((84, KERNEL), -1.0, dtype=np.float32)
        for row, columns in enumerate(combinations(range(KERNEL), 3)):
            kernels[row, list(columns)] = 2
        for number, (_, count) in enumerate(self._plan):
            chosen = _choice_of_channels(84, channels, random)
            # Many channels are summed first: most weights of a dense kernel would be zero.
            first = chosen if self._wide else chosen[:, :, None] * kernels[:, None, :]
            self.register_buffer(f"weight{number}", torch.from_numpy(first))
            self.register_buffer(f"bias{number}", torch.from_numpy(np.zeros((84, count), dtype=np.float32)))
            self.register_buffer(f"ramp{number}", torch.from_numpy(np.ones(84, dtype=np.float32)))
        if self._wide:
            self.register_buffer("kernels", torch.from_numpy(kernels[:, None, :]))

    def forward(self, values: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Compute the share of steps above each bias."""
        above, lengths = [], _placed(lengths, self._stride)
        for number, (_, count) in enumerate(self._plan):
            ramp = self.get_buffer(f"ramp{number}")
            climbed = self._convolved(values, number) / ramp[:, None]
            foot = self.get_buffer(f"bias{number}") / ramp[:, None] - 0.5
            above += [  # one after the other: all at once would not fit into a cache
                _mean_of_steps((climbed - foot[:, column, None]).clamp(0, 1), lengths) for column in range(count)
            ]
        return torch.cat(above, dim=1)

    def fit(self, values: Tensor, lengths: Tensor | None, random: np.random.Generator) -> None:
        """Take the biases from a training sample for each kernel and dilation."""
        level = (np.arange(1, self.features + 1) * (math.sqrt(5) + 1) / 2 % 1).astype(np.float32)
        start = 0
        for number, (_, count) in enumerate(self._plan):
            rows = torch.from_numpy(random.integers(len(values), size=84)).to(values.device)
            every = self._convolved(values[rows], number)
            ramp = _ramp(every.transpose(0, 1).flatten(1).std(dim=1), values[rows])
            ends = torch.full((84,), every.shape[2], device=values.device)
            ends = ends if lengths is None else cast("Tensor", _placed(lengths, self._stride))[rows]
            # Padding goes to the end of the order, beyond what the levels reach.
            every = every.masked_fill(~real_steps(ends, every, 2), torch.inf).transpose(0, 1)
            ordered = every[torch.arange(84), torch.arange(84)].sort(dim=1).values
            at = torch.from_numpy(level[start : start + 84 * count].reshape(84, count)).to(values)
            below = ordered.gather(1, (at * (ends.clamp(min=1) - 1)[:, None]).long())
            for column, least in enumerate((below + ramp[:, None]).unbind(dim=1)):
                # Between two neighbouring values, with none on the ramp: the values of a sensor with few levels are
                # equal but for rounding.
                beyond = every.where(every >= least[:, None, None], torch.inf).amin(dim=(1, 2))
                biases = (below[:, column] + beyond.where(beyond.isfinite(), least + ramp)) / 2
                self.get_buffer(f"bias{number}")[:, column].copy_(biases.nan_to_num(posinf=0.0))
            self.get_buffer(f"ramp{number}").copy_(ramp)
            start += 84 * count

    def _convolved(self, values: Tensor, number: int) -> Tensor:
        weight, dilation = self.get_buffer(f"weight{number}"), self._plan[number][0]
        where: Any = {"dilation": dilation, "padding": dilation * (KERNEL // 2), "stride": self._stride}
        if not self._wide:
            return F.conv1d(values, weight, **where)
        return F.conv1d(torch.einsum("kc,bct->bkt", weight, values), self.get_buffer("kernels"), groups=84, **where)


@final
class Hydra(_Block):
    """Competing random kernels: [B, C, T] → [B, features].

    "HYDRA: Competing convolutional kernels for fast and accurate time series classification" (Dempster, Schmidt and
    Webb, 2023): in each group of eight kernels, the largest response of every step counts for the kernel that gives it,
    and so does the smallest; half of the groups read differences between steps. Square roots are taken of the counts.

    Kernels within a narrow ramp of the largest count too, the less the further they lie below it: on a flat stretch
    all are equal but for rounding, which would choose another winner in another runtime.

    Args:
        shape: (C, T).
        random: Draws kernels and channels.
    """

    def __init__(self, shape: Shape, random: np.random.Generator) -> None:
        super().__init__()
        channels, steps = shape
        self._groups, read = HYDRA_GROUPS // 2, min(channels, MOST_CHANNELS)
        self._chosen, self._stride = channels > read, max(1, steps // POSITIONS)
        self._dilations = [2**power for power in range(int(math.log2(max((steps - 1) / 8, 1))) + 1)]
        sources = 2 if steps > 1 else 1
        for number in range(sources * len(self._dilations)):
            weight = random.standard_normal((self._groups * HYDRA_KERNELS, read, KERNEL))
            weight -= weight.mean(axis=2, keepdims=True)
            weight /= np.abs(weight).sum(axis=2, keepdims=True)
            self.register_buffer(f"weight{number}", torch.from_numpy(weight.astype(np.float32)))
            self.register_buffer(f"ramp{number}", torch.ones(()))
            if self._chosen:
                rows = random.random((self._groups, channels)).argsort(axis=1)[:, :read]
                self.register_buffer(f"channels{number}", torch.from_numpy(rows.reshape(-1)))
        self._sources = sources
        self.features = 2 * self._groups * HYDRA_KERNELS * sources * len(self._dilations)

    def forward(self, values: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Add up the responses of the kernels that win, and count those that lose most."""
        found = []
        for number, responses, ends in self._responses(values, lengths):
            ramp = self.get_buffer(f"ramp{number}")
            climbed = responses / ramp
            won = (climbed - (climbed.amax(dim=2, keepdim=True) - 1)).clamp(min=0) * responses
            lost = (climbed.amin(dim=2, keepdim=True) + 1 - climbed).clamp(min=0)
            found += [zero_padding(each, ends).sum(dim=3).flatten(1) for each in (won, lost)]
        return torch.cat(found, dim=1).clamp(min=LEAST_SUM).sqrt()

    def fit(self, values: Tensor, lengths: Tensor | None, random: np.random.Generator) -> None:  # noqa: ARG002
        """Measure how wide the ramps have to be on training samples."""
        for number, responses, _ in self._responses(values[:BATCH], None if lengths is None else lengths[:BATCH]):
            self.get_buffer(f"ramp{number}").copy_(_ramp(responses.std(), values[:BATCH]))

    def _responses(self, values: Tensor, lengths: Tensor | None) -> Iterator[tuple[int, Tensor, Tensor | None]]:
        """Yield the number, the responses [B, groups, 8, steps] and their real steps for each dilation and source."""
        sources = [(values, lengths)]
        if self._sources == 2:
            sources.append((values.diff(dim=2), None if lengths is None else (lengths - 1).clamp(min=0)))
        for number, (dilation, (source, ends)) in enumerate(product(self._dilations, sources)):
            where: Any = {"dilation": dilation, "padding": dilation * (KERNEL // 2), "stride": self._stride}
            weight = self.get_buffer(f"weight{number}")
            if self._chosen:
                read = source[:, self.get_buffer(f"channels{number}")]
                responses = F.conv1d(read, weight, groups=self._groups, **where)
            else:
                responses = F.conv1d(source, weight, **where)
            yield number, responses.unflatten(1, (self._groups, HYDRA_KERNELS)), _placed(ends, self._stride)


@final
class Summary(_Block):
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
        mean = _mean_of_steps(values, lengths)
        square = _mean_of_steps((values - mean.unsqueeze(2)).square(), lengths)
        change = values.diff(dim=2).abs().sum(dim=2) / max(values.shape[2] - 1, 1)
        found = [mean, square.sqrt(), values.amin(dim=2), values.amax(dim=2), change]
        return torch.cat([*found, (values @ self.get_buffer("means")).flatten(1)], dim=1)


@final
class RandomLayer(_Block):
    """A layer of random weights and ReLU on the standardised features of another block: [B, …] → [B, units].

    Args:
        block: Whose features it reads; None for vectors as they are.
        inputs: Their number.
        random: Draws the weights.
        both: Give the features that it reads too.
    """

    def __init__(self, block: _Block | None, inputs: int, random: np.random.Generator, *, both: bool = False) -> None:
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
class _Seen(_Block):
    """A block that reads an input in another form: patches over time, rows, columns.

    Args:
        block: Reads the form.
        form: "columns", "rows", "pixels", or "patches".
        shape: Of the input.
        patches: Per side.
    """

    def __init__(self, block: _Block, form: str, shape: Shape, patches: int = 0) -> None:
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
        sizes = [cast("_Block", block).features for block in self.blocks]
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
            cast("_Block", block).fit(*read, random)
        raw = torch.cat([self._raw(*some) for some in _batches(values, lengths)])
        _standardise(self, raw)
        shares = torch.tensor([cast("_Block", block).share for block in self.blocks])
        lengths_of_blocks = (shares / shares.sum() / torch.tensor(self._sizes)).sqrt()
        self.get_buffer("scale").mul_(lengths_of_blocks.repeat_interleave(torch.tensor(self._sizes)).to(raw))
        return raw.sub_(self.get_buffer("mean")).mul_(self.get_buffer("scale"))

    @torch.no_grad()
    def computed(self, values: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Compute the features of many samples, in batches."""
        return torch.cat([self(*some) for some in _batches(values, lengths)])


def _blocks_for(shape: Shape, random: np.random.Generator) -> Sequence[_Block]:
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
    blocks: list[_Block] = []
    for count in dict.fromkeys(min(one, height, width) for one in PATCHES):
        series = (channels * count**2, shape[1])
        blocks += [_Seen(kind(series, random), "patches", shape, count) for kind in (MiniRocket, Hydra)]
    return blocks


def _dilations(steps: int, features: int, most: int = 32) -> list[tuple[int, int]]:
    """List dilations up to the length of a series, with the number of features of each, per kernel."""
    count = min(features, most)
    largest = math.log2(max((steps - 1) / (KERNEL - 1), 1))
    values, times = np.unique(np.logspace(0, largest, count, base=2).astype(int), return_counts=True)
    times = (times * (features / count)).astype(int)
    for number in range(features - int(times.sum())):
        times[number % len(times)] += 1
    return list(zip(values.tolist(), times.tolist(), strict=True))


def _choice_of_channels(kernels: int, channels: int, random: np.random.Generator) -> np.ndarray:
    """Draw the channels that each kernel sums, ones and zeros [kernels, channels]; their number is log-uniform."""
    most = min(channels, KERNEL)
    count = np.floor(2 ** (random.random(kernels) * math.log2(most + 1))).clip(1, most)
    rank = random.random((kernels, channels)).argsort(axis=1).argsort(axis=1)
    return (rank < count[:, None]).astype(np.float32)


def _means_of(size: int, parts: int) -> np.ndarray:
    """Return the matrix [size, parts] that takes the mean of each of some equal parts."""
    edges = np.linspace(0, size, parts + 1)
    place = np.arange(size)
    low, high = np.maximum(place[:, None], edges[:-1]), np.minimum(place[:, None] + 1, edges[1:])
    return ((high - low).clip(0) * parts / size).astype(np.float32)


def _ramp(deviation: Tensor, values: Tensor) -> Tensor:
    """Return how wide a ramp is: a small share of a deviation, and far beyond the rounding of a convolution."""
    rounding = torch.finfo(torch.float32).eps * KERNEL * values.abs().mean()
    return (RAMP * deviation).maximum(REACH * rounding).clamp(min=LEAST_RAMP)


def _mean_of_steps(values: Tensor, lengths: Tensor | None) -> Tensor:
    """Average [B, C, T] over the real steps of each sample."""
    if lengths is None:
        return values.mean(dim=2)
    return zero_padding(values, lengths).sum(dim=2) / lengths.to(values).clamp(min=1).unsqueeze(1)


def _placed(lengths: Tensor | None, stride: int) -> Tensor | None:
    """Return how many places of a kernel lie in the real steps of each sample."""
    return None if lengths is None else (lengths + stride - 1) // stride


def _standardise(module: nn.Module, values: Tensor) -> None:
    """Set the buffers mean and scale by values [N, F]; what does not vary is left out by a scale of zero."""
    deviation = values.std(dim=0) if len(values) > 1 else torch.ones_like(values[0])
    module.get_buffer("mean").copy_(values.mean(dim=0))
    module.get_buffer("scale").copy_(torch.where(deviation > LEAST_DEVIATION, 1 / deviation, 0.0))


def _batches(values: Tensor, lengths: Tensor | None) -> Iterable[tuple[Tensor, Tensor | None]]:
    ends = [None] * math.ceil(len(values) / BATCH) if lengths is None else lengths.split(BATCH)
    return zip(values.split(BATCH), ends, strict=True)
