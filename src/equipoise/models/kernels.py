"""Random kernels for series: MiniRocket and Hydra, with comparisons that rounding does not decide."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator
from itertools import combinations, product
from typing import Any, cast, final

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from equipoise.models.encoders import real_steps, zero_padding

Shape = tuple[int, ...]
KERNEL = 9
ROCKET_FEATURES = 4000
HYDRA_GROUPS, HYDRA_KERNELS = 32, 8
MOST_CHANNELS = 8  # that one random kernel reads
POSITIONS = 128  # of a long series at which kernels are placed, about
RAMP = 3e-3  # of the deviation of what is compared: so much of a comparison is gradual
REACH = 128  # roundings of a convolution that a ramp is wide, at least
LEAST_RAMP = 1e-6
LEAST_SUM = 1e-4  # of responses: rounding alone gives a sum, and the root of a smaller one would enlarge it
BATCH = 64


class FrozenBlock(nn.Module, ABC):
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
class MiniRocket(FrozenBlock):
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
                mean_of_steps((climbed - foot[:, column, None]).clamp(0, 1), lengths) for column in range(count)
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
class Hydra(FrozenBlock):
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


def _ramp(deviation: Tensor, values: Tensor) -> Tensor:
    """Return how wide a ramp is: a small share of a deviation, and far beyond the rounding of a convolution."""
    rounding = torch.finfo(torch.float32).eps * KERNEL * values.abs().mean()
    return (RAMP * deviation).maximum(REACH * rounding).clamp(min=LEAST_RAMP)


def mean_of_steps(values: Tensor, lengths: Tensor | None) -> Tensor:
    """Average [B, C, T] over the real steps of each sample."""
    if lengths is None:
        return values.mean(dim=2)
    return zero_padding(values, lengths).sum(dim=2) / lengths.to(values).clamp(min=1).unsqueeze(1)


def _placed(lengths: Tensor | None, stride: int) -> Tensor | None:
    """Return how many places of a kernel lie in the real steps of each sample."""
    return None if lengths is None else (lengths + stride - 1) // stride
