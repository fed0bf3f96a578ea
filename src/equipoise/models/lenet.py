"""LeNet, the encoder of the papers that brought AV-MNIST."""

from itertools import pairwise
from typing import final

from torch import Tensor, nn

from equipoise.util.errors import demand


@final
class LeNet(nn.Module):
    """A small CNN whose planes halve while its channels double: [B, C, H, W] → [B, features].

    Each block is a convolution that keeps the plane (5 × 5 in the first block, 3 × 3 in the others), batch norm, ReLU
    and pooling by 2. What is left of the plane is averaged. Four blocks bring 28 × 28 to one cell, six bring 112 × 112
    there, so the 48 and 192 features of AV-MNIST are the last channels, one number each. From "CentralNet: a Multilayer
    Approach for Multimodal Fusion" (Vielzeuf et al., 2018), with the sizes that MultiBench gives it.

    Args:
        channels: C.
        blocks: How many; a side of the input has to be at least 2 to that power.
        width: Channels after the first block; every further one doubles them.

    Example:
        >>> LeNet(channels=1, blocks=4)(torch.zeros(2, 1, 28, 28)).shape, LeNet(channels=1, blocks=6).features
        (torch.Size([2, 48]), 192)
    """

    def __init__(self, channels: int, blocks: int, width: int = 6) -> None:
        super().__init__()
        demand(
            "LeNet",
            (channels >= 1, "channels: at least 1", channels),
            (blocks >= 1, "blocks: at least 1", blocks),
            (width >= 1, "width: at least 1", width),
        )
        self.features = width * 2 ** (blocks - 1)
        self._channels, self._least = channels, 2**blocks
        widths = [channels, *(width * 2**block for block in range(blocks))]
        self.blocks = nn.Sequential(
            *(_block(*pair, kernel=3 if number else 5) for number, pair in enumerate(pairwise(widths)))
        )

    def forward(self, images: Tensor) -> Tensor:
        """Encode images [B, C, H, W]."""
        sides = images.shape[2:]
        if images.dim() != 4 or images.shape[1] != self._channels or min(sides) < self._least:
            raise ValueError(
                f"LeNet expected [B, C, H, W] with C = {self._channels} and sides of at least {self._least}; found "
                f"{list(images.shape)}. Build it for these: LeNet(channels=C, blocks=…), one block per halving."
            )
        return self.blocks(images).mean(dim=(2, 3))


def _block(before: int, after: int, kernel: int) -> nn.Sequential:
    convolution = nn.Conv2d(before, after, kernel, padding=kernel // 2, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm2d(after), nn.ReLU(), nn.MaxPool2d(2))
