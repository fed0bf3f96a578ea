"""timm: any of its image models as an encoder."""

from torch import nn

from equipoise.integrations import ImageEncoder, channels_of
from equipoise.util.extras import needs

with needs(__name__):
    import timm  # ty: ignore[import-not-found]


def image(shape: tuple[int, ...] | None = None, name: str = "resnet18", pretrained: bool = False) -> nn.Module:
    """Make an image model by its name in timm, without its classifier.

    Args:
        shape: Of one input, (C, H, W) or (C, T, H, W), for the number of channels; three where it is not given.
        name: See `timm.list_models()`.
        pretrained: Start from published weights, which timm downloads; a number of channels other than
            three is adapted to.
    """
    model = timm.create_model(name, pretrained=pretrained, num_classes=0, in_chans=channels_of(shape))
    return ImageEncoder(model, model.num_features)
