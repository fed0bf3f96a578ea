"""The encoder of AV-MNIST: sizes, blocks and what it refuses."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from equipoise.models.encoders import features_of
from equipoise.models.lenet import LeNet


@pytest.mark.parametrize(("side", "blocks", "features"), [(28, 4, 48), (112, 6, 192)])
def test_the_planes_of_av_mnist_shrink_to_one_cell(side: int, blocks: int, features: int) -> None:
    encoder = LeNet(1, blocks).eval()
    images = torch.randn(3, 1, side, side)
    with torch.no_grad():
        planes = encoder.blocks(images)
        found = encoder(images)
    assert planes.shape == (3, features, 1, 1)  # so flattening, as others do, and averaging are one
    assert torch.equal(found, planes.flatten(1))
    assert encoder.features == features == features_of(encoder)


def test_it_has_the_layers_of_the_paper() -> None:
    """Weights of the convolutions: 25·6, then 9·6·12, 9·12·24, 9·24·48; two numbers a channel for batch norm."""
    encoder = LeNet(1, 4)
    convolutions = [module for module in encoder.modules() if isinstance(module, nn.Conv2d)]
    assert [module.kernel_size for module in convolutions] == [(5, 5), (3, 3), (3, 3), (3, 3)]
    assert [module.out_channels for module in convolutions] == [6, 12, 24, 48]
    by_hand = 25 * 6 + 9 * (6 * 12 + 12 * 24 + 24 * 48) + 2 * (6 + 12 + 24 + 48)
    assert sum(parameter.numel() for parameter in encoder.parameters()) == by_hand


def test_a_block_is_convolution_norm_relu_and_pooling() -> None:
    encoder = LeNet(2, 1, width=3)
    images = torch.randn(4, 2, 6, 8)
    convolution = next(module for module in encoder.modules() if isinstance(module, nn.Conv2d))
    maps = F.conv2d(images, convolution.weight, padding=2)
    maps = (maps - maps.mean((0, 2, 3), keepdim=True)) / (
        maps.var((0, 2, 3), unbiased=False, keepdim=True) + 1e-5
    ).sqrt()
    pooled = maps.relu().unfold(2, 2, 2).unfold(3, 2, 2).amax((4, 5))
    torch.testing.assert_close(encoder(images), pooled.mean((2, 3)))


@pytest.mark.parametrize("width", [1, 5])
@pytest.mark.parametrize("blocks", [1, 2, 3])
def test_any_size_that_can_be_halved_so_often(width: int, blocks: int) -> None:
    for sides in [(2**blocks, 2**blocks), (2**blocks, 19), (31, 2**blocks)]:
        found = LeNet(3, blocks, width)(torch.randn(2, 3, *sides))
        assert found.shape == (2, width * 2 ** (blocks - 1))


def test_a_batch_of_one_stays_a_batch() -> None:
    """In a public version it does not: all axes of length one are squeezed."""
    assert LeNet(1, 4).eval()(torch.zeros(1, 1, 28, 28)).shape == (1, 48)


def test_wrong_inputs_are_named() -> None:
    encoder = LeNet(1, 4)
    for shape in [(2, 3, 28, 28), (2, 1, 15, 28), (2, 1, 28), (28, 28)]:
        with pytest.raises(ValueError, match=r"C = 1 and sides of at least 16; found \["):
            encoder(torch.zeros(shape))


def test_wrong_sizes_come_in_one_message() -> None:
    with pytest.raises(
        ValueError, match=r"channels: at least 1, found 0; blocks: at least 1, found 0; width: .* found -1"
    ):
        LeNet(0, 0, -1)
