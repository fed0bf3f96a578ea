"""Pictures and video: any size, order of frames, fields of equal size."""

import pytest
import torch
from torch.nn import functional as F

from equipoise.models import Frames, SmallResNet, Video
from equipoise.models.vision import _fields


@pytest.mark.parametrize("plane", [(1, 1), (1, 7), (8, 8), (3, 11), (48, 40)])
@pytest.mark.parametrize("side", [1, 28, 48, 224])
def test_pictures_and_videos_of_any_size(plane: tuple[int, int], side: int) -> None:
    pictures = SmallResNet(2, side, features=8, width=2).eval()
    assert pictures(torch.randn(3, 2, *plane)).isfinite().all()
    videos = Video(2, side, features=5, width=2).eval()
    for frames in (1, 2, 5):
        assert videos(torch.randn(3, 2, frames, *plane)).shape == (3, 5)


@pytest.mark.parametrize(("side", "left"), [(16, 16), (28, 28), (32, 32), (48, 24), (64, 32), (96, 24), (224, 28)])
def test_only_large_pictures_are_read_in_strides(side: int, left: int) -> None:
    encoder = SmallResNet(1, side, width=4)
    assert encoder.stem(torch.randn(2, 1, side, side)).shape == (2, 4, left, left)
    assert encoder.stem[0].stride == ((1, 1) if side <= 64 else (2, 2) if side <= 128 else (4, 4))


def test_video_is_read_in_order_and_an_average_of_frames_is_not() -> None:
    torch.manual_seed(0)
    videos = torch.randn(2, 1, 6, 16, 16)
    video = Video(1, 16, features=8, width=4).eval()
    assert not torch.allclose(video(videos), video(videos.flip(2)), atol=1e-3)
    average = Frames(SmallResNet(1, 16, features=8, width=2)).eval()
    torch.testing.assert_close(average(videos), average(videos.flip(2)))


def test_video_tells_places_apart() -> None:
    video = Video(1, 24, features=8, width=4).eval()
    left = torch.zeros(1, 1, 4, 24, 24)
    left[..., 8:16, 2:6] = 1
    assert not torch.allclose(video(left), video(left.flip(4)), atol=1e-4)


@pytest.mark.parametrize("plane", [(3, 6), (9, 3), (6, 12)])
def test_fields_are_those_of_torch_where_sides_are_multiples(plane: tuple[int, int]) -> None:
    maps = torch.randn(2, 4, *plane)
    torch.testing.assert_close(_fields(maps, 3), F.adaptive_avg_pool2d(maps, 3))


@pytest.mark.parametrize("plane", [(1, 1), (2, 5), (4, 7)])
def test_fields_of_any_plane_share_its_mean(plane: tuple[int, int]) -> None:
    maps = torch.randn(2, 4, *plane)
    torch.testing.assert_close(_fields(maps, 3).mean(dim=(2, 3)), maps.mean(dim=(2, 3)))
    by_hand = F.interpolate(maps, scale_factor=3, mode="nearest").reshape(2, 4, 3, plane[0], 3, plane[1])
    torch.testing.assert_close(_fields(maps, 3), by_hand.mean(dim=(3, 5)))
