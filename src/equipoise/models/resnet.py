"""ResNet-18, the encoder of the papers on balanced audio-visual learning."""

from typing import final

from torch import Tensor, nn

from equipoise.models.ragged import fold_frames, mean_over_time


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
        self.layer1 = nn.Sequential(_BasicBlock(64, 64, 1), _BasicBlock(64, 64, 1))
        self.layer2 = nn.Sequential(_BasicBlock(64, 128, 2), _BasicBlock(128, 128, 1))
        self.layer3 = nn.Sequential(_BasicBlock(128, 256, 2), _BasicBlock(256, 256, 1))
        self.layer4 = nn.Sequential(_BasicBlock(256, 512, 2), _BasicBlock(512, 512, 1))
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, images: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Encode images or videos; with `lengths` [B], only that many frames of each video count."""
        video = images.dim() == 5
        if images.dim() not in (4, 5) or images.shape[1] != self._channels or (lengths is not None and not video):
            found = f"{list(images.shape)}{'' if lengths is None else ' and lengths'}"
            raise ValueError(
                f"ResNet18 expected [B, C, H, W], or [B, C, T, H, W] with lengths if any, where C = {self._channels}; "
                f"found {found}. Bring the channels to axis 1 with array.movedim, or write ResNet18(channels=…)."
            )
        if not video:
            return self._encode(images)
        frames = self._encode(fold_frames(images))
        return mean_over_time(frames.unflatten(0, (images.shape[0], images.shape[2])), lengths)

    def _encode(self, images: Tensor) -> Tensor:
        maps = self.maxpool(self.relu(self.bn1(self.conv1(images))))
        maps = self.layer4(self.layer3(self.layer2(self.layer1(maps))))
        return maps.mean(dim=(2, 3))


@final
class _BasicBlock(nn.Module):
    """Two 3×3 convolutions beside a shortcut, which has weights of its own only where the shape changes."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.downsample: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.downsample = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride=stride, bias=False), nn.BatchNorm2d(outputs)
            )

    def forward(self, maps: Tensor) -> Tensor:
        residual = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(maps)))))
        return self.relu(residual + self.downsample(maps))
