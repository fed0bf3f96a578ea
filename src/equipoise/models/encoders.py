"""Small encoders, one for each shape of array; each turns [B, …] into [B, features].

Every one but the transformer ends in a ReLU, so that a linear head on top does not merge with its last layer into one
linear map.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import cast, final

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from equipoise.models.ragged import fold_frames, mean_over_time, real_steps
from equipoise.util.errors import raise_all


def encoder_for(shape: Sequence[int], features: int = 64) -> nn.Module:
    """Choose an encoder by the shape of one sample.

    Args:
        shape: (D,) → `MLP`, (C, T) → `CNN1d`, (C, H, W) → `CNN2d`, (C, T, H, W) → `Frames` of a `CNN2d`.
        features: The size of the encoder's output vector.

    Returns:
        A fresh encoder.

    Raises:
        ValueError: If the shape has another number of axes, or an axis without length.
    """
    expected = "the shape of one sample, (D,), (C, T), (C, H, W) or (C, T, H, W), every axis at least 1"
    if isinstance(shape, int) or not 1 <= len(shape) <= 4 or any(size < 1 for size in shape):
        raise ValueError(
            f"encoder_for expected {expected}; found {shape if isinstance(shape, int) else tuple(shape)}. "
            "Pass array.shape[1:], or write an encoder of your own: any nn.Module with an integer attribute `features`."
        )
    if len(shape) == 1:
        return MLP(shape[0], features)
    if len(shape) == 2:
        return CNN1d(shape[0], features)
    if len(shape) == 3:
        return CNN2d(shape[0], features)
    return Frames(CNN2d(shape[0], features))


def features_of(encoder: nn.Module) -> int | None:
    """Tell the size of an encoder's output, or None where it cannot be told.

    It is the attribute `features`, `out_features` or `num_features`, or else the size of the last Linear inside.
    """
    for attribute in ("features", "out_features", "num_features"):
        size = getattr(encoder, attribute, None)
        if isinstance(size, int) and not isinstance(size, bool):  # in VGG, `features` is a module
            return size
    linears = [module for module in encoder.modules() if isinstance(module, nn.Linear)]
    return linears[-1].out_features if linears else None


@final
class MLP(nn.Module):
    """Fully connected layers for vectors: [B, D] → [B, features].

    Args:
        inputs: D.
        features: The size of the output vector.
        hidden: The sizes of the layers between.
    """

    def __init__(self, inputs: int, features: int = 64, hidden: Sequence[int] = (128,)) -> None:
        super().__init__()
        self.features = features
        self._inputs = inputs
        sizes = [inputs, *hidden, features]
        self.layers = nn.Sequential(*(_linear_relu(*pair) for pair in pairwise(sizes)))

    def forward(self, vectors: Tensor) -> Tensor:
        """Encode vectors [B, D]."""
        _expect(self, vectors, "[B, D]", self._inputs)
        return self.layers(vectors)


@final
class CNN1d(nn.Module):
    """A small 1-D CNN for signals: [B, C, T] → [B, features], any T ≥ 1.

    Three times convolution, batch norm, ReLU and pooling by 2, then the average over time and one linear layer.

    Args:
        channels: C.
        features: The size of the output vector.
        width: Channels after the first convolution; the next two have twice and four times as many.
    """

    def __init__(self, channels: int, features: int = 64, width: int = 16) -> None:
        super().__init__()
        self.features = features
        self._channels = channels
        widths = [channels, width, 2 * width, 4 * width]
        self.stages = nn.ModuleList(_Stage(before, after) for before, after in pairwise(widths))
        self.project = _linear_relu(4 * width, features)

    def forward(self, signals: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Encode signals [B, C, T]; with `lengths` [B], in evaluation, as if each were cut there."""
        _expect(self, signals, "[B, C, T]", self._channels)
        maps = _laid_out(signals.unsqueeze(2))  # images of one row: their operations know more layouts
        for stage in self.stages:
            maps = stage(maps, lengths)
            lengths = None if lengths is None else (lengths + 1) // 2
        return self.project(mean_over_time(maps.squeeze(2).transpose(1, 2), lengths))


@final
class CNN2d(nn.Module):
    """A small 2-D CNN for images: [B, C, H, W] → [B, features], any H, W ≥ 1.

    Three times convolution, batch norm, ReLU and pooling by 2, then the average over the plane and one linear layer.

    Args:
        channels: C.
        features: The size of the output vector.
        width: Channels after the first convolution; the next two have twice and four times as many.
    """

    def __init__(self, channels: int, features: int = 64, width: int = 16) -> None:
        super().__init__()
        self.features = features
        self._channels = channels
        widths = [channels, width, 2 * width, 4 * width]
        self.stages = nn.Sequential(
            *(
                nn.Sequential(
                    nn.Conv2d(before, after, 3, padding=1, bias=False),
                    nn.BatchNorm2d(after),
                    nn.MaxPool2d(2, ceil_mode=True),  # ceil: a single pixel survives
                    nn.ReLU(),
                )
                for before, after in pairwise(widths)
            )
        )
        self.project = _linear_relu(4 * width, features)

    def forward(self, images: Tensor) -> Tensor:
        """Encode images [B, C, H, W]."""
        _expect(self, images, "[B, C, H, W]", self._channels)
        return self.project(self.stages(_laid_out(images)).mean(dim=(2, 3)))


@final
class Frames(nn.Module):
    """An image encoder for video: [B, C, T, H, W] → [B, features], every frame encoded alone, then averaged over time.

    Args:
        encoder: Turns [B, C, H, W] into [B, features] and says how many `features` there are.

    Raises:
        ValueError: If the encoder does not tell its output size.
    """

    def __init__(self, encoder: nn.Module) -> None:
        super().__init__()
        features = features_of(encoder)
        if features is None:
            raise ValueError(
                f"Frames expected an encoder that tells its output size; {type(encoder).__name__} does not. "
                "Give it an integer attribute: encoder.features = 64."
            )
        self.features = features
        self.encoder = encoder

    def forward(self, videos: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Encode videos [B, C, T, H, W]; with `lengths` [B], only that many frames of each count."""
        _expect(self, videos, "[B, C, T, H, W]")
        frames = self.encoder(fold_frames(videos))
        return mean_over_time(frames.unflatten(0, (videos.shape[0], videos.shape[2])), lengths)


@final
class SequenceTransformer(nn.Module):
    """A small transformer for sequences of vectors: [B, T, D] → [B, features], any T ≥ 1.

    A linear layer, sinusoids for the positions, pre-norm transformer layers, and the average over the real steps.

    Args:
        inputs: D.
        features: The width of the transformer, and the size of the output vector; a multiple of `heads`.
        layers: How many transformer layers.
        heads: Attention heads of each.
        dropout: Of every layer.

    Raises:
        ValueError: If `features` is no multiple of `heads`.
    """

    def __init__(self, inputs: int, features: int = 64, layers: int = 2, heads: int = 4, dropout: float = 0.1) -> None:
        super().__init__()
        if features % heads:
            wider = (features // heads + 1) * heads
            raise ValueError(
                f"SequenceTransformer expected features to be a multiple of heads; found features={features}, "
                f"heads={heads}. Write features={wider} or heads=1."
            )
        self.features = features
        self._inputs = inputs
        self.embed = nn.Linear(inputs, features)
        layer = nn.TransformerEncoderLayer(features, heads, 4 * features, dropout, batch_first=True, norm_first=True)
        # Nested tensors would drop the padding's columns from the output; and pre-norm cannot use them.
        self.layers = nn.TransformerEncoder(layer, layers, nn.LayerNorm(features), enable_nested_tensor=False)

    def forward(self, sequences: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Encode sequences [B, T, D]; with `lengths` [B], what lies behind the end of each is ignored."""
        _expect(self, sequences, "[B, T, D]", self._inputs, axis=2)
        steps = sequences.shape[1]
        padding = None
        if lengths is not None:
            # Attention to nothing at all is NaN, so even an empty sequence keeps one step, of zeros.
            padding = ~real_steps(lengths.to(sequences.device).clamp(min=1), steps)
            sequences = _silence_padding(sequences.transpose(1, 2), lengths).transpose(1, 2)
        embedded = self.embed(sequences)
        embedded = embedded + _sinusoids(steps, self.features, embedded)
        return mean_over_time(self.layers(embedded, src_key_padding_mask=padding), lengths)


@final
class _Stage(nn.Sequential):
    """Convolution over time, batch norm, pooling by 2 and ReLU, for images of one row: [B, C, 1, T] → [B, C', 1, T/2].

    Pooling before the ReLU gives the same with half the work.
    """

    def __init__(self, before: int, after: int) -> None:
        super().__init__(nn.Conv1d(before, after, 5, padding=2, bias=False), nn.BatchNorm2d(after))

    def forward(self, maps: Tensor, lengths: Tensor | None = None) -> Tensor:  # ty: ignore[lost-keyword-for-regular-parameter]
        convolution, norm = cast("tuple[nn.Conv1d, nn.BatchNorm2d]", tuple(self))
        maps, weight = _silence_padding(maps, lengths), convolution.weight.unsqueeze(2)
        if norm.training or torch.is_grad_enabled():
            maps = norm(F.conv2d(maps, weight, padding=(0, 2)))
            return torch.max_pool2d(_silence_padding(maps, lengths), (1, 2), ceil_mode=True).relu()
        # Nobody learns from this: the norm joins the convolution, and it need not be known where the maxima were.
        mean, variance = cast("tuple[Tensor, Tensor]", (norm.running_mean, norm.running_var))
        scale = norm.weight * (variance + norm.eps).rsqrt()
        maps = F.conv2d(maps, weight * scale.reshape(-1, 1, 1, 1), norm.bias - mean * scale, padding=(0, 2))
        maps, pairs = _silence_padding(maps, lengths), maps.shape[3] // 2
        larger = torch.maximum(maps[..., 0 : 2 * pairs : 2], maps[..., 1 : 2 * pairs : 2])
        return torch.cat([larger, maps[..., 2 * pairs :]], dim=3).relu()  # a single step at the end survives


def _laid_out(maps: Tensor) -> Tensor:
    """Put the channels of a place side by side on a CPU, where everything that follows is then twice as fast."""
    return maps.contiguous(memory_format=torch.channels_last) if maps.device.type == "cpu" else maps


def _linear_relu(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(inputs, outputs), nn.ReLU())


def _silence_padding(signals: Tensor, lengths: Tensor | None) -> Tensor:
    """Zero what lies behind the length of each sample along the last axis."""
    if lengths is None:
        return signals
    padding = ~real_steps(lengths.to(signals.device), signals.shape[-1])
    return signals.masked_fill(padding.reshape(signals.shape[0], *[1] * (signals.dim() - 2), -1), 0)


def _sinusoids(steps: int, width: int, like: Tensor) -> Tensor:
    """Positions as sines and cosines of geometrically falling frequency, [steps, width], alternating."""
    position = torch.arange(steps, device=like.device, dtype=torch.float32).unsqueeze(1)
    exponent = torch.arange(0, width, 2, device=like.device, dtype=torch.float32) / width
    angle = position * 10_000.0**-exponent
    return torch.stack([angle.sin(), angle.cos()], dim=2).flatten(1)[:, :width].to(like.dtype)


def _expect(encoder: nn.Module, values: Tensor, layout: str, size: int | None = None, axis: int = 1) -> None:
    axes = layout.strip("[]").split(", ")
    if values.dim() == len(axes) and size in (None, values.shape[axis]):
        return
    where = "" if size is None else f" with {axes[axis]} = {size}"
    raise_all(
        [
            f"{type(encoder).__name__} expected {layout}{where}; found {list(values.shape)}. "
            "Build the encoder for these arrays: encoder_for(array.shape[1:])."
        ]
    )
