import pytest
import torch
from torch import nn

from equipoise.models import ResNet18


@pytest.mark.parametrize(("channels", "parameters"), [(3, 11_176_512), (1, 11_170_240)])
def test_it_has_the_parameters_of_the_paper(channels: int, parameters: int) -> None:
    assert sum(parameter.numel() for parameter in ResNet18(channels).parameters()) == parameters


def test_initial_weights_are_kaiming_normal_by_fan_out() -> None:
    encoder = ResNet18(2)
    for module in encoder.modules():
        if isinstance(module, nn.Conv2d):
            fan_out = module.out_channels * module.kernel_size[0] * module.kernel_size[1]
            assert module.weight.std().item() == pytest.approx((2 / fan_out) ** 0.5, rel=0.05)
        if isinstance(module, nn.BatchNorm2d):
            assert (module.weight == 1).all()
            assert (module.bias == 0).all()


def test_videos_are_averaged_over_time_and_space() -> None:
    encoder = ResNet18(2).eval()
    videos = torch.randn(2, 2, 3, 33, 40)
    with torch.no_grad():
        by_hand = torch.stack([encoder(videos[:, :, t]) for t in range(3)])
        found = encoder(videos)
        cut = encoder(videos, torch.tensor([1, 3]))
        laid_out_otherwise = encoder(videos.to(memory_format=torch.channels_last_3d))
    assert found.shape == (2, encoder.features) == (2, 512)
    torch.testing.assert_close(found, by_hand.mean(dim=0), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(cut[0], by_hand[0, 0], rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(cut[1], found[1], rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(laid_out_otherwise, found, rtol=1e-4, atol=1e-4)


def test_channels_last_gives_the_same() -> None:
    encoder = ResNet18(3).eval()
    images = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        expected = encoder(images)
        encoder.to(memory_format=torch.channels_last)  # ty: ignore[no-matching-overload]
        found = encoder(images.to(memory_format=torch.channels_last))
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


def test_wrong_inputs_are_named() -> None:
    encoder = ResNet18(3)
    with pytest.raises(ValueError, match=r"where C = 3; found \[2, 1, 8, 8\]"):
        encoder(torch.zeros(2, 1, 8, 8))
    with pytest.raises(ValueError, match=r"found \[2, 3, 8, 8\] and lengths"):
        encoder(torch.zeros(2, 3, 8, 8), torch.ones(2))
