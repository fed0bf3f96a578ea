"""Encoders of vectors, signals, images and video; each turns [B, …] into [B, features].

The small ones end in a ReLU, so that a linear head on top does not merge with their last layer into one linear map.
Samples of different lengths come in one padded tensor with `lengths` [B]; `real_steps` tells steps from padding.
"""

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import cast, final

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from equipoise.util.errors import demand, raise_all


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


def known_features(owner: str, module: nn.Module, role: str = "encoder") -> int:
    """Give the size of a module's output, or raise a ValueError in the name of the one that needs it."""
    size = features_of(module)
    if size is None:
        hint = f"{type(module).__name__} does not. Give it an integer attribute: {role}.features = 64."
        raise ValueError(f"{owner} expected the {role} to tell its output size; {hint}")
    return size


def real_steps(lengths: Tensor, values: Tensor, axis: int) -> Tensor:
    """Mark the steps of [B, …] that are no padding along an axis: booleans [B, …, T, …], one long in other axes."""
    steps = torch.arange(values.shape[axis], device=values.device) < lengths.to(values.device).unsqueeze(1)
    return steps[(slice(None), *[None] * (axis - 1), slice(None), *[None] * (values.dim() - axis - 1))]


def zero_padding(values: Tensor, lengths: Tensor | None) -> Tensor:
    """Set the padding of each sample to zero, along the last axis of [B, …, T]."""
    return values if lengths is None else values.masked_fill(~real_steps(lengths, values, values.dim() - 1), 0)


def mean_over_time(values: Tensor, lengths: Tensor | None = None) -> Tensor:
    """Average [B, T, F] over the real steps of each sample → [B, F]; a sample without any gives zeros."""
    if lengths is None:
        return values.mean(dim=1)
    total = values.masked_fill(~real_steps(lengths, values, 1), 0).sum(dim=1)
    return total / lengths.to(values.device).clamp(1, values.shape[1]).unsqueeze(1)


def mean_over_frames(encode: Callable[[Tensor], Tensor], video: Tensor, lengths: Tensor | None) -> Tensor:
    """Encode every frame of [B, C, T, H, W] alone, and average over the real frames → [B, features].

    Time is moved before the channels first: a bare reshape would mix frames with colours.
    """
    frames = encode(video.movedim(2, 1).flatten(0, 1))
    return mean_over_time(frames.unflatten(0, (video.shape[0], video.shape[2])), lengths)


def check_shape(encoder: nn.Module, values: Tensor, layout: str, size: int | None = None, axis: int = 1) -> None:
    """Raise a ValueError where an input has not the axes of a layout such as "[B, C, T]", or not the size of one."""
    axes = layout.strip("[]").split(", ")
    if values.dim() != len(axes) or size not in (None, values.shape[axis]):
        where = "" if size is None else f" with {axes[axis]} = {size}"
        hint = "Build the encoder for these arrays: encoder_for(array.shape[1:])."
        raise_all([f"{type(encoder).__name__} expected {layout}{where}; found {list(values.shape)}. {hint}"])


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
        self.features, self._inputs = features, inputs
        self.layers = nn.Sequential(*(linear_relu(*pair) for pair in pairwise([inputs, *hidden, features])))

    def forward(self, vectors: Tensor) -> Tensor:
        """Encode vectors [B, D]."""
        check_shape(self, vectors, "[B, D]", self._inputs)
        return self.layers(vectors)


@final
class RegularisedMLP(nn.Module):
    """Fully connected layers for vectors that do not learn few samples by heart: [B, D] → [B, features].

    Two layers, each with layer norm ("Layer Normalization", Ba et al., 2016; unlike batch norm it takes a batch of one)
    and ReLU, and dropout behind the first ("Dropout: A Simple Way to Prevent Neural Networks from Overfitting",
    Srivastava et al., 2014). Cost: D · hidden + hidden · features multiplications. Chosen for vectors.

    Args:
        inputs: D.
        features: The size of the output vector.
        hidden: The size of the layer between.
        dropout: The probability with which a number between the layers is zeroed in training.
    """

    def __init__(self, inputs: int, features: int = 64, hidden: int = 128, dropout: float = 0.3) -> None:
        super().__init__()
        self.features, self._inputs = features, inputs
        first = (nn.Linear(inputs, hidden), nn.LayerNorm(hidden), nn.ReLU(), nn.Dropout(dropout))
        self.layers = nn.Sequential(*first, nn.Linear(hidden, features), nn.LayerNorm(features), nn.ReLU())

    def forward(self, vectors: Tensor) -> Tensor:
        """Encode vectors [B, D]."""
        check_shape(self, vectors, "[B, D]", self._inputs)
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
        self.features, self._channels = features, channels
        self.stages = nn.ModuleList(_Stage(*pair) for pair in pairwise([channels, width, 2 * width, 4 * width]))
        self.project = linear_relu(4 * width, features)

    def forward(self, signals: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Encode signals [B, C, T]; with `lengths` [B], in evaluation, as if each were cut there."""
        check_shape(self, signals, "[B, C, T]", self._channels)
        maps = laid_out(signals.unsqueeze(2))  # images of one row: their operations know more layouts
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
        self.features, self._channels = features, channels

        def stage(before: int, after: int) -> nn.Sequential:
            convolution = nn.Conv2d(before, after, 3, padding=1, bias=False)
            pooling = nn.MaxPool2d(2, ceil_mode=True)  # ceil: a single pixel survives
            return nn.Sequential(convolution, nn.BatchNorm2d(after), pooling, nn.ReLU())

        self.stages = nn.Sequential(*(stage(*pair) for pair in pairwise([channels, width, 2 * width, 4 * width])))
        self.project = linear_relu(4 * width, features)

    def forward(self, images: Tensor) -> Tensor:
        """Encode images [B, C, H, W]."""
        check_shape(self, images, "[B, C, H, W]", self._channels)
        return self.project(self.stages(laid_out(images)).mean(dim=(2, 3)))


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
        self.features = known_features("Frames", encoder)
        self.encoder = encoder

    def forward(self, videos: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Encode videos [B, C, T, H, W]; with `lengths` [B], only that many frames of each count."""
        check_shape(self, videos, "[B, C, T, H, W]")
        return mean_over_frames(self.encoder, videos, lengths)


@final
class LeNet(nn.Module):
    """A small CNN whose planes halve while its channels double: [B, C, H, W] → [B, features].

    Each block is a convolution that keeps the plane (5 × 5 in the first block, 3 × 3 in the others), batch norm, ReLU
    and pooling by 2. What is left of the plane is averaged. Four blocks bring 28 × 28 to one cell, six bring 112 × 112
    there, so the 48 and 192 features of AV-MNIST are the last channels, one number each. From "CentralNet: a Multilayer
    Approach for Multimodal Fusion" (Vielzeuf et al., 2018), with the sizes that MultiBench gives it.

    Args:
        channels: C.
        blocks: Number of blocks; a side of the input has to be at least 2 to that power.
        width: Channels after the first block; every further one doubles them.

    Example:
        >>> LeNet(channels=1, blocks=4)(torch.zeros(2, 1, 28, 28)).shape, LeNet(channels=1, blocks=6).features
        (torch.Size([2, 48]), 192)
    """

    def __init__(self, channels: int, blocks: int, width: int = 6) -> None:
        super().__init__()
        given = {"channels": channels, "blocks": blocks, "width": width}
        demand("LeNet", *((value >= 1, f"{name}: at least 1", value) for name, value in given.items()))
        self.features = width * 2 ** (blocks - 1)
        self._channels, self._least = channels, 2**blocks

        def block(before: int, after: int, kernel: int) -> nn.Sequential:
            convolution = nn.Conv2d(before, after, kernel, padding=kernel // 2, bias=False)
            return nn.Sequential(convolution, nn.BatchNorm2d(after), nn.ReLU(), nn.MaxPool2d(2))

        pairs = pairwise([channels, *(width * 2**number for number in range(blocks))])
        self.blocks = nn.Sequential(*(block(*pair, kernel=3 if number else 5) for number, pair in enumerate(pairs)))

    def forward(self, images: Tensor) -> Tensor:
        """Encode images [B, C, H, W]."""
        if images.dim() != 4 or images.shape[1] != self._channels or min(images.shape[2:]) < self._least:
            hint = "Build it for these: LeNet(channels=C, blocks=…), one block per halving."
            expected = f"[B, C, H, W] with C = {self._channels} and sides of at least {self._least}"
            raise ValueError(f"LeNet expected {expected}; found {list(images.shape)}. {hint}")
        return self.blocks(images).mean(dim=(2, 3))


@final
class ResNet18(nn.Module):
    """ResNet-18 without its classifier: [B, C, H, W] or [B, C, T, H, W] → [B, 512].

    Frames of a video are folded into the batch, and their feature maps averaged over time and space. Parameters are
    called as in torchvision, so its weights load with `strict=False`. From "Deep Residual Learning for Image
    Recognition" (He et al., 2016).

    Args:
        channels: C: 3 for colour, 2 for optical flow, 1 for a spectrogram.
    """

    features = 512

    def __init__(self, channels: int = 3) -> None:
        super().__init__()
        self._channels = channels
        self.conv1 = nn.Conv2d(channels, 64, 7, stride=2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(3, stride=2, padding=1)
        self.layer1, self.layer2, self.layer3, self.layer4 = (
            nn.Sequential(ResidualBlock(before, after, 1 if after == 64 else 2), ResidualBlock(after, after, 1))
            for before, after in pairwise([64, 64, 128, 256, 512])
        )
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, images: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Encode images or videos; with `lengths` [B], only that many frames of each video count."""
        video = images.dim() == 5
        if images.dim() not in (4, 5) or images.shape[1] != self._channels or (lengths is not None and not video):
            hint = "Bring the channels to axis 1 with array.movedim, or write ResNet18(channels=…)."
            expected = f"[B, C, H, W], or [B, C, T, H, W] with lengths if any, where C = {self._channels}"
            given = f"{list(images.shape)}{'' if lengths is None else ' and lengths'}"
            raise ValueError(f"ResNet18 expected {expected}; found {given}. {hint}")
        return mean_over_frames(self._encode, images, lengths) if video else self._encode(images)

    def _encode(self, images: Tensor) -> Tensor:
        maps = self.maxpool(self.relu(self.bn1(self.conv1(images))))
        return self.layer4(self.layer3(self.layer2(self.layer1(maps)))).mean(dim=(2, 3))


@final
class ResidualBlock(nn.Module):
    """Two 3×3 convolutions beside a shortcut, which has weights of its own only where the shape changes."""

    def __init__(self, inputs: int, outputs: int, stride: int = 1) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.downsample: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            shortcut = nn.Conv2d(inputs, outputs, 1, stride=stride, bias=False)
            self.downsample = nn.Sequential(shortcut, nn.BatchNorm2d(outputs))

    def forward(self, maps: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Read maps [B, C, H, T]; with `lengths` [B], those after the stride, what lies behind is zero."""
        inside = zero_padding(self.relu(self.bn1(self.conv1(maps))), lengths)
        return zero_padding(self.relu(self.bn2(self.conv2(inside)) + self.downsample(maps)), lengths)


@final
class _Stage(nn.Sequential):
    """Convolution over time, batch norm, pooling by 2 and ReLU, for images of one row: [B, C, 1, T] → [B, C', 1, T/2].

    Pooling before the ReLU gives the same with half the work.
    """

    def __init__(self, before: int, after: int) -> None:
        super().__init__(nn.Conv1d(before, after, 5, padding=2, bias=False), nn.BatchNorm2d(after))

    def forward(self, maps: Tensor, lengths: Tensor | None = None) -> Tensor:  # ty: ignore[lost-keyword-for-regular-parameter]
        convolution, norm = cast("tuple[nn.Conv1d, nn.BatchNorm2d]", tuple(self))
        maps, weight = zero_padding(maps, lengths), convolution.weight.unsqueeze(2)
        if norm.training or torch.is_grad_enabled():
            maps = norm(F.conv2d(maps, weight, padding=(0, 2)))
            return torch.max_pool2d(zero_padding(maps, lengths), (1, 2), ceil_mode=True).relu()
        # No gradient is needed: the norm joins the convolution, and the places of the maxima need not be stored.
        mean, variance = cast("tuple[Tensor, Tensor]", (norm.running_mean, norm.running_var))
        scale = norm.weight * (variance + norm.eps).rsqrt()
        maps = F.conv2d(maps, weight * scale.reshape(-1, 1, 1, 1), norm.bias - mean * scale, padding=(0, 2))
        maps, pairs = zero_padding(maps, lengths), maps.shape[3] // 2
        larger = torch.maximum(maps[..., 0 : 2 * pairs : 2], maps[..., 1 : 2 * pairs : 2])
        return torch.cat([larger, maps[..., 2 * pairs :]], dim=3).relu()  # a single step at the end survives


def laid_out(maps: Tensor) -> Tensor:
    """Put the channels of a place side by side on a CPU, where everything that follows is then twice as fast."""
    return maps.contiguous(memory_format=torch.channels_last) if maps.device.type == "cpu" else maps


def linear_relu(inputs: int, outputs: int) -> nn.Sequential:
    """Make a linear layer and its ReLU."""
    return nn.Sequential(nn.Linear(inputs, outputs), nn.ReLU())


def projection(inside: int, features: int) -> nn.Module:
    """Make the last layer of an encoder, a linear one and ReLU: nothing where the size is right already."""
    return nn.Identity() if inside == features else linear_relu(inside, features)
