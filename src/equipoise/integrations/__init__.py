"""Other libraries. Each has a module of its own here, which loads that library; nothing else of the package does."""

from collections.abc import Callable, Mapping
from typing import Any, final

from torch import Tensor, nn

from equipoise.balance.balancer import Balancer
from equipoise.models.encoders import mean_over_frames


@final
class ImageEncoder(nn.Module):
    """A backbone for images, and for video frame by frame: [B, C, H, W] or [B, C, T, H, W] → [B, features].

    Args:
        backbone: Reads images.
        features: The size of its output vector.
        read: Makes that vector of the backbone's output; None where the output is that vector.
    """

    def __init__(self, backbone: nn.Module, features: int, read: Callable[[object], Tensor] | None = None) -> None:
        super().__init__()
        self.backbone, self.features, self._read = backbone, features, read

    def forward(self, images: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Encode images, or the frames of videos, averaged; with `lengths` [B], only that many frames of each count."""
        return self._encode(images) if images.dim() == 4 else mean_over_frames(self._encode, images, lengths)

    def _encode(self, images: Tensor) -> Tensor:
        output = self.backbone(images)
        return output if self._read is None else self._read(output)


def channels_of(shape: tuple[int, ...] | None) -> int:
    """Give the number of channels of images of this shape; three where it is not known."""
    if shape is not None and len(shape) not in (3, 4):
        raise ValueError(f"expected images (C, H, W) or video (C, T, H, W), found {tuple(shape)}")
    return 3 if shape is None else shape[0]


def table_entries(balancer: Balancer, prefix: str = "balance/") -> dict[str, Tensor]:
    """Give the table of the last step as one entry per coefficient, ``balance/objective/block``, still on its device.

    A loss that does not reach a block has no entry.
    """
    table = balancer.table
    cells = [(objective, block) for objective, row in table.numbers().items() for block in row]
    return {f"{prefix}{objective}/{block}": table.at(objective, block) for objective, block in cells}


def epoch_metrics(balancer: Balancer, logged: Mapping[str, Any], pattern: str) -> dict[str, dict[str, float]]:
    """Select from a trainer's metrics those that the method learns from at the end of an epoch.

    Args:
        balancer: The method.
        logged: The trainer's metrics by name.
        pattern: Their names, such as "val/{modality}/{metric}".

    Raises:
        ValueError: If the method needs a metric that is not there.
    """
    names = {
        modality: {metric: pattern.format(modality=modality, metric=metric) for metric in balancer.metrics_due}
        for modality in balancer.modalities
    }
    absent = [name for row in names.values() for name in row.values() if name not in logged]
    if absent:
        raise ValueError(
            f"{type(balancer).__name__} learns from validation metrics of each modality; expected {', '.join(absent)}, "
            f"found {', '.join(logged) or 'none'}. Log them under these names, or say metrics=… for other names"
        )
    return {modality: {need: float(logged[name]) for need, name in row.items()} for modality, row in names.items()}
