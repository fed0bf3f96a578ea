"""Raw sound: a log-mel spectrogram, computed inside the model, and an encoder with a residual network over it."""

import math
from contextlib import nullcontext
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from equipoise.models.encoders import ResidualBlock, check_shape, laid_out, mean_over_time, projection, zero_padding
from equipoise.util.mel import mel_triangles

RATE, WINDOW, HOP, PADDED, BINS = 16_000, 400, 160, 512, 64
"""Frames of 25 ms every 10 ms at 16 kHz. At other rates they last as many samples, and the bands move with the rate."""
FRAMES, LONGEST = 128, 256
"""Of a sound of more than `LONGEST` frames, energies of neighbours are averaged, so that about `FRAMES` are left."""
LOWEST_ENERGY = 1e-6
EARS, SOUND_STEPS = 2, 4000
"""Series of at most so many channels and at least so many steps are taken for sound: half a second at 8 kHz."""
MASKED, MASKS = 0.2, 2
"""The largest part of an axis that one mask covers, and the number of masks along each."""


def is_sound(shape: tuple[int, ...]) -> bool:
    """Tell whether one sample of a shape is taken for raw sound."""
    return len(shape) == 2 and shape[0] <= EARS and shape[1] >= SOUND_STEPS


@final
class LogMelSpectrogram(nn.Module):
    """The log-mel spectrogram of raw sound, [B, C, T] → [B, C, bands, frames], ⌈T / 160⌉ of them or their means.

    "Comparison of Parametric Representations for Monosyllabic Word Recognition" (Davis and Mermelstein, 1980): frames
    under a Hann window, their power spectrum, 64 triangles on the mel scale, the logarithm. All of it is convolutions
    with fixed weights, so it is part of an exported graph. Silence lies before and behind a sound.

    Args:
        steps: T of most sounds, by which frames are averaged; others can be read too.
    """

    def __init__(self, steps: int) -> None:
        super().__init__()
        frames = math.ceil(steps / HOP)
        self._averaged = round(frames / FRAMES) if frames > LONGEST else 1
        triangles = mel_triangles(RATE, PADDED, BINS).unsqueeze(2) / self._averaged
        self.waves: Tensor
        self.register_buffer("waves", _constant(_waves()))
        self.triangles: Tensor
        self.register_buffer("triangles", _constant(triangles.expand(-1, -1, self._averaged)))

    def forward(self, sounds: Tensor) -> Tensor:
        """Compute the spectrogram, whatever precision is around: a spectrum needs more digits than bfloat16 has."""
        lowered = torch.is_autocast_enabled(sounds.device.type)
        with torch.autocast(sounds.device.type, enabled=False) if lowered else nullcontext():
            side = (WINDOW - HOP) // 2
            framed = F.pad(sounds.flatten(0, 1).unsqueeze(1).to(self.waves.dtype), (side, WINDOW - side - 1))
            power = F.conv1d(framed, self.waves, stride=HOP).square().unflatten(1, (2, -1)).sum(dim=1)
            energy = F.conv1d(F.pad(power, (0, self._averaged - 1)), self.triangles, stride=self._averaged)
            return torch.log(energy + LOWEST_ENERGY).unflatten(0, sounds.shape[:2])

    def frames(self, steps: Any) -> Any:
        """Return how many frames a number of steps has; of numbers and of tensors."""
        return _parts(_parts(steps, HOP), self._averaged)


@final
class LogMel(nn.Module):
    """A residual network over the log-mel spectrogram of raw sound: [B, C, T] → [B, features], any T ≥ 1.

    The spectrogram is that of "Comparison of Parametric Representations for Monosyllabic Word Recognition in
    Continuously Spoken Sentences" (Davis and Mermelstein, 1980): frames under a Hann window, their power spectrum, 64
    triangles on the mel scale, the logarithm; then each band is brought to mean zero and deviation one, by batch norm.
    All of it is convolutions with fixed weights, so it is part of an exported graph. In training, bands of frequency
    and time are masked, as in "SpecAugment: A Simple Data Augmentation Method for Automatic Speech Recognition" (Park
    et al., 2019). Then come a convolution, pooling by 2 and one residual block for each of three stages ("Deep Residual
    Learning for Image Recognition", He et al., 2016), and the average over bands and time.

    Cost: for a second at 16 kHz about 20 million multiplications for the spectrogram, which needs no gradient, and 20
    million for the network. Chosen for one or two channels of at least 4,000 steps.

    Args:
        channels: C.
        steps: T of most sounds, by which frames are averaged; others can be read too.
        features: The size of the output vector.
        width: Channels of the first stage; the next two have twice and four times as many.
    """

    def __init__(self, channels: int, steps: int, features: int = 64, width: int = 16) -> None:
        super().__init__()
        self.features, self._channels = features, channels
        self.spectrogram = LogMelSpectrogram(steps)
        self.bands_norm = nn.BatchNorm2d(channels * BINS)
        self.masks = _Masks(MASKED)
        self.stem = nn.Sequential(nn.Conv2d(channels, width, 3, padding=1, bias=False), nn.BatchNorm2d(width))
        self.first = ResidualBlock(width, width)
        self.second = ResidualBlock(width, 2 * width, stride=2)
        self.third = ResidualBlock(2 * width, 4 * width, stride=2)
        self.project = projection(4 * width, features)

    def forward(self, sounds: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Encode sounds [B, C, T]; with `lengths` [B], in evaluation, as if each were cut there."""
        check_shape(self, sounds, "[B, C, T]", self._channels)
        lowered = torch.is_autocast_enabled(sounds.device.type)  # a spectrum needs more digits than bfloat16 has
        with torch.autocast(sounds.device.type, enabled=False) if lowered else nullcontext():
            bands = self.spectrogram(zero_padding(sounds, lengths))
            lengths = None if lengths is None else self.spectrogram.frames(lengths)
            bands = self.bands_norm(bands.flatten(1, 2).unsqueeze(2)).reshape(bands.shape)
        maps = self.stem(laid_out(self.masks(zero_padding(bands, lengths))))
        maps = torch.max_pool2d(zero_padding(maps, lengths), 2, ceil_mode=True).relu()
        lengths = None if lengths is None else _parts(lengths, 2)
        maps = self.first(maps, lengths)
        for stage in (self.second, self.third):
            lengths = None if lengths is None else _parts(lengths, 2)
            maps = stage(maps, lengths)
        return self.project(mean_over_time(maps.mean(dim=2).transpose(1, 2), lengths))


@final
class _Masks(nn.modules.dropout._DropoutNd):
    """Zero bands of frequency and of time of [B, C, bands, frames] in training; `p` is the largest part of each."""

    def forward(self, maps: Tensor) -> Tensor:
        if not self.training:
            return maps
        bands, frames = (self._hit(maps, axis) for axis in (2, 3))
        return maps.masked_fill(bands[:, None, :, None] | frames[:, None, None, :], 0)

    def _hit(self, maps: Tensor, axis: int) -> Tensor:
        """Draw which places along an axis are masked, booleans [B, size]."""
        size = maps.shape[axis]
        wide, early = torch.rand(2, maps.shape[0], MASKS, 1, device=maps.device).unbind(0)
        width = wide * (self.p * size)
        start = early * (size - width)
        places = torch.arange(size, device=maps.device)
        return ((places >= start) & (places < start + width)).any(dim=1)


def _parts(lengths: Any, size: int) -> Any:
    return (lengths + size - 1) // size


def _waves() -> Tensor:
    """Give cosines and sines of all frequencies under a Hann window, [2 · (PADDED / 2 + 1), 1, WINDOW].

    White noise of variance one has a power of one at each frequency.
    """
    with torch.device("cpu"):  # numbers are needed, also where a model is outlined without any
        window = torch.hann_window(WINDOW, dtype=torch.float64)
        angles = (
            torch.arange(PADDED // 2 + 1, dtype=torch.float64)[:, None] * torch.arange(WINDOW) * (math.tau / PADDED)
        )
        waves = torch.cat([angles.cos(), angles.sin()]) * (window / window.square().sum().sqrt())
    return waves.unsqueeze(1)


def _constant(values: Tensor) -> Tensor:
    """Copy numbers to where the model is made, in its precision."""
    return torch.empty(values.shape).copy_(values)
