import copy
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from equipoise.models import (
    MLP,
    CNN1d,
    CNN2d,
    Frames,
    Inception,
    LogMel,
    RegularisedMLP,
    ResNet18,
    SequenceTransformer,
    SmallResNet,
    Video,
    encoder_for,
)
from equipoise.models.encoders import LeNet, features_of


def settled(encoder: nn.Module, *shape: int) -> nn.Module:
    """An encoder in evaluation mode whose batch statistics are not the initial zeros and ones."""
    encoder.train()
    for _ in range(3):
        encoder(torch.randn(8, *shape).to(next(encoder.parameters())) * 2 + 1)
    return encoder.eval()


@pytest.mark.parametrize(
    ("shape", "kind"),
    [
        ((6,), RegularisedMLP),
        ((3, 23), CNN1d),
        ((3, 24), Inception),
        ((2, 4000), LogMel),
        ((2, 3999), Inception),
        ((3, 4000), Inception),
        ((3, 15, 40), CNN2d),
        ((3, 16, 40), SmallResNet),
        ((3, 3, 16, 16), Frames),
        ((3, 4, 9, 16), Frames),
        ((3, 4, 16, 16), Video),
    ],
)
def test_the_shape_chooses_the_encoder(shape: tuple[int, ...], kind: type[nn.Module]) -> None:
    encoder = encoder_for(shape, features=10)
    assert isinstance(encoder, kind)
    assert encoder.features == 10
    assert encoder(torch.randn(4, *shape)).shape == (4, 10)


@pytest.mark.parametrize("shape", [(), (1, 2, 3, 4, 5), (3, 0), (0,)])
def test_other_shapes_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"\(C, T\).*found \(.*array\.shape\[1:\]"):
        encoder_for(shape)


def test_a_size_is_no_shape() -> None:
    size: Any = 40
    with pytest.raises(ValueError, match=r"the shape of one sample, \(D,\).*found 40\."):
        encoder_for(size)


@pytest.mark.parametrize("steps", range(1, 9))
def test_short_signals_in_any_batch(steps: int) -> None:
    encoder = CNN1d(2, features=5, width=4)
    assert encoder(torch.randn(3, 2, steps)).shape == (3, 5)
    assert encoder.eval()(torch.randn(1, 2, steps)).isfinite().all()


@pytest.mark.parametrize("steps", [1, 2, 7, 24])
@pytest.mark.parametrize("learning", [True, False])
def test_signals_are_read_as_the_textbook_says(steps: int, learning: bool) -> None:
    encoder = CNN1d(2, features=5, width=4).double()
    settled(encoder, 2, steps).train(learning)
    textbook = copy.deepcopy(encoder)
    signals = torch.randn(6, 2, steps, dtype=torch.float64)
    expected = signals
    for stage in textbook.stages:
        convolution, norm = cast("tuple[nn.Conv1d, nn.BatchNorm2d]", tuple(stage.children()))
        expected = F.conv1d(expected, convolution.weight, padding=2)
        running = (norm.running_mean, norm.running_var, norm.weight, norm.bias)
        expected = F.batch_norm(expected, *running, training=learning)
        expected = F.max_pool1d(expected.relu(), 2, ceil_mode=True)
    expected = textbook.project(expected.mean(dim=2))
    found = encoder(signals)
    torch.testing.assert_close(found, expected)
    for one, other in zip(_gradients(found, encoder), _gradients(expected, textbook), strict=True):
        torch.testing.assert_close(one, other)
    assert {name: tensor.shape for name, tensor in encoder.named_parameters()}["stages.0.0.weight"] == (4, 2, 5)
    if not learning:
        with torch.no_grad():
            torch.testing.assert_close(encoder(signals), expected.detach())


def _gradients(output: Tensor, encoder: nn.Module) -> tuple[Tensor, ...]:
    return torch.autograd.grad(output.square().sum(), list(encoder.parameters()))


@pytest.mark.parametrize("plane", [(1, 1), (1, 7), (5, 5), (8, 8), (3, 11)])
def test_small_images_and_videos(plane: tuple[int, int]) -> None:
    images = CNN2d(2, features=5, width=4)
    assert images(torch.randn(3, 2, *plane)).shape == (3, 5)
    assert images.eval()(torch.randn(1, 2, *plane)).isfinite().all()
    for frames in (1, 2, 3):
        assert Frames(images)(torch.randn(1, 2, frames, *plane)).shape == (1, 5)


def test_frames_are_encoded_one_by_one_and_averaged() -> None:
    images = settled(CNN2d(3, features=6, width=4), 3, 8, 6)
    videos = torch.randn(4, 3, 5, 8, 6)
    by_hand = torch.stack([images(videos[:, :, t]) for t in range(5)]).mean(dim=0)
    torch.testing.assert_close(Frames(images)(videos), by_hand)


@pytest.mark.parametrize(
    ("encoder", "shape", "time"),
    [
        (CNN1d(2, features=6, width=4), (2, 13), 1),
        (Inception(2, 13, features=8), (2, 13), 1),
        (Inception(2, 9, features=6), (2, 13), 1),
        (Inception(2, 400, features=8), (2, 13), 1),
        (SequenceTransformer(3, features=8, heads=2), (13, 3), 0),
        (Video(2, 5, features=16, width=4), (2, 13, 5, 5), 1),
        (Frames(CNN2d(2, features=6, width=4)), (2, 13, 5, 5), 1),
    ],
)
@pytest.mark.parametrize("with_gradients", [True, False])  # torch has a fast path of its own without
def test_padding_changes_nothing(encoder: nn.Module, shape: tuple[int, ...], time: int, with_gradients: bool) -> None:
    encoder = settled(encoder, *shape)
    samples = torch.randn(13, *shape) * 100  # garbage behind the end too
    lengths = torch.arange(1, 14)
    with torch.set_grad_enabled(with_gradients):
        together = encoder(samples, lengths)
        alone = [encoder(sample.narrow(time, 0, t).unsqueeze(0)) for t, sample in enumerate(samples, start=1)]
    torch.testing.assert_close(together, torch.cat(alone), rtol=1e-4, atol=1e-4)


def test_lengths_beyond_the_tensor_mean_no_padding_and_zero_is_finite() -> None:
    for encoder, samples in (
        (settled(CNN1d(2, width=4), 2, 9), torch.randn(2, 2, 9)),
        (settled(Inception(2, 9, features=8), 2, 9), torch.randn(2, 2, 9)),
        (settled(LogMel(2, 9, features=8), 2, 9), torch.randn(2, 2, 9)),
        (settled(Video(2, 5, width=4), 2, 9, 5, 5), torch.randn(2, 2, 9, 5, 5)),
        (settled(SequenceTransformer(3, features=8), 9, 3), torch.randn(2, 9, 3)),
    ):
        torch.testing.assert_close(encoder(samples, torch.tensor([9, 99])), encoder(samples))
        assert encoder(samples, torch.tensor([0, 4])).isfinite().all()
        with torch.no_grad():
            assert encoder(samples, torch.tensor([0, 4])).isfinite().all()


def test_the_transformer_sees_order() -> None:
    encoder = SequenceTransformer(3, features=8, heads=2).eval()
    sequences = torch.randn(2, 6, 3)
    assert not torch.allclose(encoder(sequences), encoder(sequences.flip(1)), atol=1e-3)
    assert SequenceTransformer(3, features=5, heads=1)(sequences).shape == (2, 5)


def test_heads_must_divide_features() -> None:
    with pytest.raises(ValueError, match=r"features=10, heads=4.*features=12"):
        SequenceTransformer(3, features=10)


@pytest.mark.parametrize(
    ("encoder", "wrong", "message"),
    [
        (MLP(4), torch.zeros(2, 5), r"MLP expected \[B, D\] with D = 4; found \[2, 5\]"),
        (CNN1d(4), torch.zeros(2, 4), r"CNN1d expected \[B, C, T\]"),
        (RegularisedMLP(4), torch.zeros(2, 5), r"RegularisedMLP expected \[B, D\] with D = 4; found \[2, 5\]"),
        (Inception(4, 9), torch.zeros(2, 3, 9), r"Inception expected \[B, C, T\] with C = 4"),
        (LogMel(1, 9), torch.zeros(2, 9), r"LogMel expected \[B, C, T\]"),
        (CNN2d(4), torch.zeros(2, 3, 8, 8), r"CNN2d expected .* with C = 4"),
        (SmallResNet(4, 8), torch.zeros(2, 3, 8, 8), r"SmallResNet expected .* with C = 4"),
        (Video(4, 8), torch.zeros(2, 4, 8, 8), r"Video expected \[B, C, T, H, W\]"),
        (Frames(CNN2d(4)), torch.zeros(2, 4, 8, 8), r"Frames expected \[B, C, T, H, W\]; found"),
        (SequenceTransformer(4), torch.zeros(2, 4, 9), r"SequenceTransformer expected .* with D = 4"),
    ],
)
def test_a_wrong_shape_is_named(encoder: nn.Module, wrong: Tensor, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        encoder(wrong)


def test_frames_needs_a_size() -> None:
    with pytest.raises(ValueError, match=r"Conv2d does not.*encoder\.features = 64"):
        Frames(nn.Conv2d(3, 8, 3))


def test_sizes_are_read_off_an_encoder() -> None:
    class Told(nn.Module):
        num_features = 7

    vgg_like = nn.Module()
    vgg_like.features = nn.Sequential(nn.Conv2d(3, 8, 3))
    vgg_like.classifier = nn.Linear(8, 9)
    assert features_of(Told()) == 7
    assert features_of(nn.Linear(2, 3)) == 3
    assert features_of(nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 5), nn.ReLU())) == 5
    assert features_of(vgg_like) == 9
    assert features_of(nn.ReLU()) is None


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


def test_wrong_inputs_of_lenet_are_named() -> None:
    encoder = LeNet(1, 4)
    for shape in [(2, 3, 28, 28), (2, 1, 15, 28), (2, 1, 28), (28, 28)]:
        with pytest.raises(ValueError, match=r"C = 1 and sides of at least 16; found \["):
            encoder(torch.zeros(shape))


def test_wrong_sizes_come_in_one_message() -> None:
    with pytest.raises(
        ValueError, match=r"channels: at least 1, found 0; blocks: at least 1, found 0; width: .* found -1"
    ):
        LeNet(0, 0, -1)


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


def test_wrong_inputs_of_resnet_are_named() -> None:
    encoder = ResNet18(3)
    with pytest.raises(ValueError, match=r"where C = 3; found \[2, 1, 8, 8\]"):
        encoder(torch.zeros(2, 1, 8, 8))
    with pytest.raises(ValueError, match=r"found \[2, 3, 8, 8\] and lengths"):
        encoder(torch.zeros(2, 3, 8, 8), torch.ones(2))
