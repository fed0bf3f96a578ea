"""What backbones of other libraries have in common when they read pictures."""

from __future__ import annotations

from collections.abc import Callable
from typing import final

from torch import Tensor, nn

from equipoise.models.encoders import mean_over_frames


@final
class Pictures(nn.Module):
    """A backbone for images, and for video frame by frame: [B, C, H, W] or [B, C, T, H, W] → [B, features].

    Args:
        backbone: Reads images.
        features: The size of its output vector.
        read: Makes that vector of what the backbone gives; None where it gives it.
    """

    def __init__(self, backbone: nn.Module, features: int, read: Callable[[object], Tensor] | None = None) -> None:
        super().__init__()
        self.backbone, self.features, self._read = backbone, features, read

    def forward(self, pictures: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Encode images, or the frames of videos, averaged; with `lengths` [B], only that many frames of each count."""
        return self._vector(pictures) if pictures.dim() == 4 else mean_over_frames(self._vector, pictures, lengths)

    def _vector(self, images: Tensor) -> Tensor:
        given = self.backbone(images)
        return given if self._read is None else self._read(given)


def channels_of(shape: tuple[int, ...] | None) -> int:
    """How many channels pictures of this shape have; three where nothing is known."""
    if shape is None:
        return 3
    if len(shape) not in (3, 4):
        raise ValueError(f"expected images (C, H, W) or video (C, T, H, W), found {tuple(shape)}")
    return shape[0]
