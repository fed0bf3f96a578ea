"""Frozen features: values by hand, an independent MiniRocket and Hydra, padding, and what a fit sets."""

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from equipoise.models.choose import build_encoders
from equipoise.models.frozen import FrozenFeatures, Summary
from equipoise.models.kernels import Hydra, MiniRocket

SHAPES = [(5,), (3, 20), (12, 30), (1, 300), (1, 9, 7), (2, 4, 9, 8), (1, 4000)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_features_of_the_training_part_have_mean_zero_and_mean_squared_length_one(shape: tuple[int, ...]) -> None:
    random = torch.Generator().manual_seed(0)
    values = torch.randn(30, *shape, generator=random)
    frozen = FrozenFeatures(shape)
    features = frozen.fit(values)
    assert features.shape == (30, frozen.features)
    torch.testing.assert_close(features.mean(dim=0), torch.zeros(frozen.features), atol=1e-4, rtol=0)
    assert 0.5 < features.square().sum(dim=1).mean() <= 1.01  # what does not vary is left out
    torch.testing.assert_close(frozen(values[:7]), features[:7], atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(frozen.computed(values), features, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("shape", SHAPES[:5], ids=str)
def test_the_same_data_gives_the_same_features_whatever_was_drawn_before(shape: tuple[int, ...]) -> None:
    values = torch.randn(12, *shape, generator=torch.Generator().manual_seed(3))
    first = FrozenFeatures(shape).fit(values)
    torch.rand(17)
    assert torch.equal(FrozenFeatures(shape).fit(values), first)


@pytest.mark.parametrize("shape", [(3, 40), (2, 300), (1, 5000)], ids=str)
def test_padding_changes_nothing(shape: tuple[int, int]) -> None:
    random = torch.Generator().manual_seed(1)
    values = torch.randn(10, *shape, generator=random)
    lengths = torch.randint(shape[1] // 2, shape[1], (10,), generator=random)
    frozen = FrozenFeatures(shape)
    features = frozen.fit(values, lengths)
    for row, end in enumerate(lengths):
        values[row, :, end:] = 9.0
    torch.testing.assert_close(frozen(values, lengths), features, atol=1e-5, rtol=1e-4)
    assert features.isfinite().all()


def test_minirocket_counts_steps_above_biases() -> None:
    block = MiniRocket((2, 30), np.random.default_rng(0))
    values = torch.randn(6, 2, 30, generator=torch.Generator().manual_seed(2))
    block.fit(values, None, np.random.default_rng(1))
    found, expected = block(values), []
    for number, (dilation, count) in enumerate(block._plan):
        weight, bias = block.get_buffer(f"weight{number}"), block.get_buffer(f"bias{number}")
        ramp = block.get_buffer(f"ramp{number}")
        assert set(weight.unique().tolist()) <= {-1.0, 0.0, 2.0}
        assert (weight.sum(dim=2) == 0).all()  # three of 2 and six of −1, or none
        padded = F.pad(values, (4 * dilation, 4 * dilation)).numpy()
        for column in range(count):
            for kernel in range(84):
                taps = [padded[:, :, 0 + dilation * tap : 30 + dilation * tap] for tap in range(9)]
                response = sum(np.einsum("c,bct->bt", weight[kernel, :, tap].numpy(), taps[tap]) for tap in range(9))
                least = bias[kernel, column].item() - ramp[kernel].item() / 2
                expected.append(np.interp(response, [least, least + ramp[kernel].item()], [0, 1]).mean(axis=1))
                assert 0 < ramp[kernel] < 0.03 * response.std()
    np.testing.assert_allclose(found.numpy(), np.stack(expected, axis=1), atol=1e-4)
    assert 0.3 < found.mean() < 0.7  # biases are quantiles


def test_hydra_gives_every_step_to_one_kernel_of_a_group() -> None:
    block = Hydra((3, 24), np.random.default_rng(0))
    values = torch.randn(4, 3, 24, generator=torch.Generator().manual_seed(2))
    block.fit(values, None, np.random.default_rng(1))
    counted = block(values).square().reshape(4, -1, 2, 16, 8)  # dilations and sources; won and lost; groups; kernels
    steps = counted[:, :, 1].sum(dim=3)  # how often each group had a loser: once for each step
    for source, length in enumerate((24, 23)):  # there are fewer differences than steps
        assert (steps[:, source] > length - 1e-2).all()
        assert (steps[:, source] < length + 1).all()  # two that are nearly equal may both have lost, in part
        assert (steps[:, source] - length).mean() < 0.1
    for number, source in enumerate((values, values.diff(dim=2))):
        responses = F.conv1d(source, block.get_buffer(f"weight{number}"), padding=4).unflatten(1, (16, 8))
        top, index = responses.max(dim=2)
        won = torch.zeros(4, 16, 8).scatter_add_(2, index, top).clamp(min=0)
        far = (counted[:, number, 0] - won).abs() > 2e-3 * (1 + won)
        assert far.float().mean() < 0.03  # but for steps that nearly tie, as an arg-max has it


LEVELS = {
    "of many levels": lambda x: x,
    "of few levels": lambda x: (2 * x).round() / 2,
    "flat at times": lambda x: x.where(torch.arange(x.shape[2]) % 20 < 8, 0.7),
    "flat": lambda x: torch.full_like(x, 0.7),
}


@pytest.mark.parametrize("kind", LEVELS)
@pytest.mark.parametrize("shape", [(1, 40), (3, 100), (12, 60)], ids=str)
def test_rounding_changes_features_by_next_to_nothing(shape: tuple[int, int], kind: str) -> None:
    """Every value is moved by about a unit in its last place, as another runtime's order of summation moves sums."""
    random = torch.Generator().manual_seed(4)
    frozen = FrozenFeatures(shape)
    frozen.fit(LEVELS["of few levels" if kind == "flat" else kind](torch.randn(200, *shape, generator=random)))
    values = LEVELS[kind](torch.randn(100, *shape, generator=random))
    moved = values * (1 + 1e-7 * torch.randn(values.shape, generator=random))
    difference = frozen(moved) - frozen(values)
    assert difference.norm(dim=1).max() < 3e-4  # of features whose length is about one


def test_no_value_of_few_levels_lies_on_a_ramp() -> None:
    random = torch.Generator().manual_seed(5)
    values = torch.randint(-3, 4, (50, 2, 60), generator=random) / 3
    block = MiniRocket((2, 60), np.random.default_rng(0))
    block.fit(values, None, np.random.default_rng(1))
    shares = block(values) * 60
    torch.testing.assert_close(shares, shares.round(), atol=1e-3, rtol=0)  # a whole number of steps lies above


def test_a_summary_by_hand() -> None:
    values = torch.tensor([[[1.0, 3.0, 2.0, 2.0]]])
    mean, deviation, least, largest, change, *parts = Summary((1, 4))(values)[0].tolist()
    assert (mean, least, largest, parts) == (2.0, 1.0, 3.0, [1.0, 3.0, 2.0, 2.0])
    assert deviation == pytest.approx(0.5**0.5)
    assert change == pytest.approx(1.0)


def test_frozen_features_can_be_outlined_and_loaded() -> None:
    values = torch.randn(20, 4, 50)
    frozen = FrozenFeatures((4, 50))
    frozen.fit(values)
    with torch.device("meta"):
        outline = build_encoders("frozen", {"imu": (4, 50)}, 64)["imu"]
    shapes = {name: tensor.shape for name, tensor in outline.state_dict().items()}
    assert shapes == {name: tensor.shape for name, tensor in frozen.state_dict().items()}
    again = FrozenFeatures((4, 50))
    again.load_state_dict(frozen.state_dict())
    assert torch.equal(again(values), frozen(values))
    assert not list(frozen.parameters())
