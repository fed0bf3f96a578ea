"""Views: stored samples into inputs of encoders; frames chosen, cropped, flipped and scaled, in batches, on the device.

A view has two modes: random, for training, and fixed, for everything else.
"""

import dataclasses
import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, final

import torch
from torch import Tensor
from torch.nn import functional as F

IMAGENET_MEAN, IMAGENET_DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
TRIES = 10  # boxes drawn for a crop before it falls back to the middle


class View(ABC):
    """Turns a batch as it is stored into the input of an encoder. A subclass is a frozen dataclass of plain values."""

    @abstractmethod
    def shape(self, stored: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape of one input, from that of one stored sample."""

    @abstractmethod
    def __call__(self, stored: Tensor, lengths: Tensor | None, random: torch.Generator | None) -> Tensor:
        """Return the inputs of a batch [B, …].

        Args:
            stored: The batch as it is on disk.
            lengths: How much of each sample's first axis is no padding, [B]; None where all of it.
            random: Draws for training, on the device of `stored`; None for the fixed view.
        """

    @property
    def takes_lengths(self) -> bool:
        """True if the input has no ragged time any more."""
        return False

    def as_dict(self) -> dict[str, Any]:
        """Return plain values that `view_of` reads back."""
        kind = next((name for name, view in _KINDS.items() if view is type(self)), type(self).__name__)
        return {"kind": kind, **dataclasses.asdict(self)}  # ty: ignore[invalid-argument-type]


@final
@dataclass(frozen=True)
class Rescaled(View):
    """x ↦ x · scale, as float32.

    Args:
        scale: The factor, such as 1/255 for bytes.
    """

    scale: float = 1.0

    def shape(self, stored: tuple[int, ...]) -> tuple[int, ...]:
        """As stored."""
        return stored

    def __call__(self, stored: Tensor, lengths: Tensor | None, random: torch.Generator | None) -> Tensor:
        """Multiply."""
        return stored.float() * self.scale


@final
@dataclass(frozen=True)
class TimeLast(View):
    """A series stored step by step, [T, D] → [D, T], as float32. Its lengths stay what they are."""

    def shape(self, stored: tuple[int, ...]) -> tuple[int, ...]:
        """Channels, then time."""
        return stored[::-1]

    def __call__(self, stored: Tensor, lengths: Tensor | None, random: torch.Generator | None) -> Tensor:
        """Turn."""
        return stored.transpose(1, 2).float()


@final
@dataclass(frozen=True)
class VideoFrames(View):
    """Frames of a video, stored as bytes [F, 3, H, W] → [3, count, size, size], normalised.

    A clip of L frames is cut into `count` equal segments. Training takes one frame of each at random, then a random
    resized crop (8 to 100 % of the area, ratio 3/4 to 4/3) and a flip, drawn for each frame alone; evaluation takes the
    middle of each segment, resized whole. A clip shorter than `count` repeats frames.

    Args:
        count: Frames per input.
        size: Of each side.
        mean: Of each colour, taken off after scaling to [0, 1].
        deviation: Of each colour, divided by.
    """

    count: int = 1
    size: int = 224
    mean: tuple[float, ...] = IMAGENET_MEAN
    deviation: tuple[float, ...] = IMAGENET_DEVIATION

    @property
    def takes_lengths(self) -> bool:
        """The chosen frames are all real."""
        return True

    def shape(self, stored: tuple[int, ...]) -> tuple[int, ...]:
        """Channels first, then time."""
        return (stored[1], self.count, self.size, self.size)

    def __call__(self, stored: Tensor, lengths: Tensor | None, random: torch.Generator | None) -> Tensor:
        """Choose, cut, scale."""
        batch = stored.shape[0]
        rows = self.chosen(stored, lengths, random)
        frames = stored[torch.arange(batch, device=stored.device).unsqueeze(1), rows].flatten(0, 1).float()
        if random is None:
            plane = F.interpolate(frames, size=(self.size, self.size), mode="bilinear", antialias=True)
        else:
            plane = _crops(frames, self.size, random)
        mean, deviation = _per_colour(self.mean, stored.device), _per_colour(self.deviation, stored.device)
        return ((plane - mean) / deviation).unflatten(0, (batch, self.count)).transpose(1, 2)

    def chosen(self, stored: Tensor, lengths: Tensor | None, random: torch.Generator | None) -> Tensor:
        """Return the frame that is taken of each segment, [B, count]."""
        batch, steps = stored.shape[:2]
        real = torch.full((batch,), steps, device=stored.device) if lengths is None else lengths.to(stored.device)
        real = real.clamp(min=1).unsqueeze(1)
        segment = torch.arange(self.count, device=stored.device)
        within = 0.5 if random is None else torch.rand(batch, self.count, device=stored.device, generator=random)
        return ((segment + within) * real / self.count).long().clamp(max=real - 1)


@final
@dataclass(frozen=True)
class LogSTFT(View):
    """A stretch of sound, stored as 16-bit samples [T] → log(|STFT| + 1e-7), [1, n_fft/2 + 1, frames].

    Training takes the stretch at random, evaluation from the middle.

    Args:
        samples: Length of the stretch.
        n_fft: Of the transform.
        hop: Between two frames.
    """

    samples: int
    n_fft: int
    hop: int

    def shape(self, stored: tuple[int, ...]) -> tuple[int, ...]:
        """One channel, frequencies, frames."""
        return (1, self.n_fft // 2 + 1, self.samples // self.hop + 1)

    def __call__(self, stored: Tensor, lengths: Tensor | None, random: torch.Generator | None) -> Tensor:
        """Cut, transform."""
        from equipoise.media.spectrogram import log_stft

        room = stored.shape[1] - self.samples
        start = torch.full((len(stored), 1), room // 2, device=stored.device)
        if random is not None:
            start = torch.randint(room + 1, (len(stored), 1), device=stored.device, generator=random)
        wave = stored.gather(1, start + torch.arange(self.samples, device=stored.device)).float() / 2**15
        return log_stft(wave, self.n_fft, self.hop).unsqueeze(1)


_KINDS: dict[str, Any] = {"Scaled": Rescaled, "TimeLast": TimeLast, "Frames": VideoFrames, "LogSTFT": LogSTFT}
"""Views by the name under which prepared folders and saved models hold them."""


IN_THE_GRAPH = (Rescaled, TimeLast)
"""Views that a shipped graph applies; the others choose frames or transform sound, which is left to the caller."""


def view_of(plain: dict[str, Any]) -> View:
    """Return a view from its plain values."""
    values = {key: tuple(value) if isinstance(value, list) else value for key, value in plain.items() if key != "kind"}
    return _KINDS[plain["kind"]](**values)


@lru_cache
def _per_colour(values: tuple[float, ...], device: torch.device) -> Tensor:
    """Values for bytes, [colours, 1, 1], kept: bringing them to the device waits for it."""
    return (255 * torch.tensor(values, device=device))[:, None, None]


def _crops(frames: Tensor, size: int, random: torch.Generator) -> Tensor:
    """A random resized crop of each frame, half of them flipped, in one sampling of all."""
    count, _, height, width = frames.shape
    draws = torch.rand(4, count, TRIES, device=frames.device, generator=random)
    area = (0.08 + 0.92 * draws[0]) * height * width
    ratio = torch.exp((2 * draws[1] - 1) * math.log(4 / 3))
    wide, high = (area * ratio).sqrt(), (area / ratio).sqrt()
    fits = (wide <= width) & (high <= height)
    first = fits.float().argmax(dim=1, keepdim=True)  # the first that fits; the fallback below where none does
    some = fits.any(dim=1, keepdim=True)
    square = torch.full_like(wide[:, :1], min(height, width))
    wide = torch.where(some, wide.gather(1, first), square)
    high = torch.where(some, high.gather(1, first), square)
    left = torch.where(some, draws[2].gather(1, first), 0.5) * (width - wide)
    top = torch.where(some, draws[3].gather(1, first), 0.5) * (height - high)
    flip = torch.where(torch.rand(count, 1, device=frames.device, generator=random) < 0.5, -1.0, 1.0)
    zero = torch.zeros_like(wide)
    # From the crop's [−1, 1]² to the frame's: scale, then shift to the middle of the box.
    across = torch.cat([flip * wide / width, zero, (2 * left + wide) / width - 1], dim=1)
    down = torch.cat([zero, high / height, (2 * top + high) / height - 1], dim=1)
    grid = F.affine_grid(torch.stack([across, down], dim=1), [count, frames.shape[1], size, size], align_corners=False)
    return F.grid_sample(frames, grid, mode="bilinear", padding_mode="border", align_corners=False)
