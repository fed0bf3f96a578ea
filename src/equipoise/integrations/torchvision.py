"""torchvision: any of its image classifiers as an encoder."""

from __future__ import annotations

from typing import Any

from torch import nn

from equipoise.integrations.pictures import Pictures, channels_of

try:
    from torchvision import models  # ty: ignore[import-not-found]
except ModuleNotFoundError as missing:
    msg = f"equipoise.integrations.torchvision needs {missing.name}, which is not installed; "
    raise ModuleNotFoundError(msg + "type: pip install torchvision") from None


def image(shape: tuple[int, ...] | None = None, name: str = "resnet18", weights: str | None = None) -> nn.Module:
    """An image classifier by its name in torchvision, without the last layer, which would name classes.

    Args:
        shape: Of one input, (C, H, W) or (C, T, H, W). Of other than three channels the first convolution is made anew.
        name: See `torchvision.models.list_models(module=torchvision.models)`.
        weights: "DEFAULT", or others by their name, to start from published weights, which torchvision downloads.
    """
    model = models.get_model(name, weights=weights)
    place, last = [(name, module) for name, module in model.named_modules() if isinstance(module, nn.Linear)][-1]
    _replace(model, place, nn.Identity())
    channels = channels_of(shape)
    if channels != 3:
        place, first = next(pair for pair in model.named_modules() if isinstance(pair[1], nn.Conv2d))
        _replace(model, place, _for_channels(first, channels))
    return Pictures(model, last.in_features)


def _for_channels(old: nn.Conv2d, channels: int) -> nn.Conv2d:
    """A convolution like another, for a different number of input channels."""
    same: dict[str, Any] = {name: getattr(old, name) for name in ("kernel_size", "stride", "padding")}
    return nn.Conv2d(channels, old.out_channels, **same, bias=old.bias is not None)


def _replace(model: nn.Module, place: str, module: nn.Module) -> None:
    parent, _, name = place.rpartition(".")
    setattr(model.get_submodule(parent), name, module)
