"""torchvision: any of its image classifiers as an encoder."""

from typing import Any

from torch import nn

from equipoise.integrations import ImageEncoder, channels_of
from equipoise.util.extras import needs

with needs(__name__):
    from torchvision import models  # ty: ignore[import-not-found]


def image(shape: tuple[int, ...] | None = None, name: str = "resnet18", weights: str | None = None) -> nn.Module:
    """Make an image classifier by its name in torchvision, without the last layer, which would name classes.

    Args:
        shape: Of one input, (C, H, W) or (C, T, H, W). Of other than three channels the first convolution is made anew.
        name: See `torchvision.models.list_models(module=torchvision.models)`.
        weights: "DEFAULT", or others by their name, to start from published weights, which torchvision downloads.
    """
    model = models.get_model(name, weights=weights)
    place, last = [pair for pair in model.named_modules() if isinstance(pair[1], nn.Linear)][-1]
    model.set_submodule(place, nn.Identity())
    channels = channels_of(shape)
    if channels != 3:
        place, first = next(pair for pair in model.named_modules() if isinstance(pair[1], nn.Conv2d))
        same: dict[str, Any] = {name: getattr(first, name) for name in ("kernel_size", "stride", "padding")}
        model.set_submodule(place, nn.Conv2d(channels, first.out_channels, **same, bias=first.bias is not None))
    return ImageEncoder(model, last.in_features)
