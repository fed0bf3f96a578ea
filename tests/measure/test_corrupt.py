import pytest
import torch
from torch import Tensor

from equipoise.data import Part
from equipoise.measure import training_statistics
from equipoise.measure.corrupt import bursts, delayed, earlier_rows, frozen, noisy, time_axis

SERIES = torch.randn(50, 3, 40, generator=torch.Generator().manual_seed(0))
VIDEO = torch.randn(20, 2, 12, 4, 5, generator=torch.Generator().manual_seed(1))
VECTORS = torch.randn(200, 6, generator=torch.Generator().manual_seed(2))
IMAGES = torch.randn(40, 3, 5, 6, generator=torch.Generator().manual_seed(3))
ARRAYS = pytest.mark.parametrize("array", [SERIES, VIDEO, VECTORS, IMAGES], ids=["series", "video", "vector", "image"])
TIMED = pytest.mark.parametrize("array", [SERIES, VIDEO], ids=["series", "video"])


def draws(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def statistics(array: Tensor) -> tuple[Tensor, Tensor]:
    training = training_statistics(Part({"x": array}, torch.zeros(len(array))))
    return training.mean["x"], training.deviation["x"]


def test_time_is_the_third_axis_of_series_and_video() -> None:
    assert [time_axis(array) for array in (SERIES, VIDEO, VECTORS, IMAGES)] == [2, 2, None, None]


@ARRAYS
def test_statistics_are_the_mean_sample_and_the_deviation_of_channels(array: Tensor) -> None:
    scaled = array * torch.arange(1.0, array.shape[1] + 1).reshape(-1, *[1] * (array.dim() - 2)) + 3
    mean, deviation = statistics(scaled)
    torch.testing.assert_close(mean, scaled.mean(dim=0))
    for channel in range(array.shape[1]):
        torch.testing.assert_close(deviation[channel].reshape(()), scaled[:, channel].std(correction=0))
    assert deviation.dim() == array.dim() - 1


@ARRAYS
def test_level_zero_changes_nothing(array: Tensor) -> None:
    mean, deviation = statistics(array)
    assert torch.equal(noisy(array, 0.0, deviation, draws()), array)
    assert torch.equal(delayed(array, 0.0, None), array)
    assert torch.equal(bursts(array, 0.0, mean, deviation, draws()), array)


@ARRAYS
def test_the_array_given_stays_and_draws_repeat(array: Tensor) -> None:
    mean, deviation = statistics(array)
    before = array.clone()
    ways = [
        lambda seed: noisy(array, 1.0, deviation, draws(seed)),
        lambda seed: frozen(array, None, draws(seed)),
        lambda seed: bursts(array, 0.5, mean, deviation, draws(seed)),
    ]
    for way in ways:
        assert torch.equal(way(0), way(0))
        assert not torch.equal(way(0), array)
    chance = [ways[0], ways[2], *([ways[1]] if time_axis(array) else [])]
    assert not any(torch.equal(way(0), way(1)) for way in chance)
    delayed(array, 0.5, None)
    assert torch.equal(array, before)


@ARRAYS
@pytest.mark.parametrize("level", [0.5, 4.0])
def test_noise_is_as_strong_as_it_says_in_units_of_each_channel(array: Tensor, level: float) -> None:
    scaled = array * torch.arange(1.0, array.shape[1] + 1).reshape(-1, *[1] * (array.dim() - 2))
    _, deviation = statistics(scaled)
    noise = (noisy(scaled, level, deviation, draws()) - scaled) / deviation
    by_channel = noise.transpose(0, 1).flatten(1).std(dim=1)
    torch.testing.assert_close(by_channel, torch.full_like(by_channel, level), rtol=0.15, atol=0)


@TIMED
def test_a_frozen_signal_is_constant_from_its_time_on_and_true_before(array: Tensor) -> None:
    steps = array.shape[2]
    result = frozen(array, None, draws())
    times = array.movedim(2, 1).flatten(2), result.movedim(2, 1).flatten(2)  # [N, T, everything else]
    true = (times[0] == times[1]).all(dim=2)
    onset = true.long().cumprod(dim=1).sum(dim=1) - 1  # random numbers agree by no accident
    assert onset.min() >= 0
    assert len(onset.unique()) > 5
    for sample, start in enumerate(onset.tolist()):
        assert (times[1][sample, start:] == times[0][sample, start]).all()
    assert onset.float().mean() == pytest.approx((steps - 1) / 2, rel=0.25)


@TIMED
@pytest.mark.parametrize("share", [0.1, 0.25, 0.5])
def test_a_delayed_signal_is_the_shifted_one(array: Tensor, share: float) -> None:
    late = round(share * array.shape[2])
    result = delayed(array, share, None)
    assert late > 0
    assert torch.equal(result[:, :, late:], array[:, :, :-late])
    assert torch.equal(result[:, :, :late], array[:, :, :1].expand_as(result[:, :, :late]))


@TIMED
@pytest.mark.parametrize("share", [0.25, 0.5])
def test_bursts_cover_their_share_in_stretches_of_loud_noise(array: Tensor, share: float) -> None:
    mean, deviation = statistics(array)
    result = bursts(array, share, mean, deviation, draws())
    changed = (result != array).movedim(2, 1).flatten(2)
    hit = changed.any(dim=2)
    assert torch.equal(hit, changed.all(dim=2))  # all channels and pixels of a step, or none
    assert hit.float().mean(dim=1) == pytest.approx(share, abs=0.02)
    assert len(hit.unique(dim=0)) > len(hit) / 2  # each sample at times of its own
    noise = ((result - mean) / deviation).movedim(2, 1)[hit]
    assert noise.std() == pytest.approx(5, rel=0.1)


def test_bursts_come_in_stretches_and_grow_with_the_share() -> None:
    array = torch.zeros(30, 1, 200)
    quarter, half = (bursts(array, share, torch.zeros(1, 200), torch.ones(1, 1), draws()) for share in (0.25, 0.5))
    hit = (quarter != 0)[:, 0]
    assert (hit[:, 1:] != hit[:, :-1]).sum(dim=1).max() <= 2 * 5  # five stretches of ten steps, at most ten edges
    assert torch.equal(half[:, 0][hit], quarter[:, 0][hit])


def test_a_window_shorter_than_the_stretches() -> None:
    array = torch.zeros(8, 2, 4)
    hit = bursts(array, 0.5, torch.zeros(2, 4), torch.ones(2, 1), draws()) != 0
    assert (hit[:, 0].sum(dim=1) == 2).all()
    assert torch.equal(frozen(array[:, :, :1] + 3, None, draws()), array[:, :, :1] + 3)


def test_earlier_rows_by_hand() -> None:
    group = torch.tensor([7, 3, 7, 7, 3])
    assert earlier_rows(5, group, lag=1).tolist() == [0, 1, 0, 2, 1]
    assert earlier_rows(5, group, lag=2).tolist() == [0, 1, 0, 0, 1]
    assert earlier_rows(5, group, share=0.5).tolist() == [0, 1, 0, 0, 1]  # two of three, one of two
    assert earlier_rows(5, None, lag=1).tolist() == [0, 0, 1, 2, 3]
    assert earlier_rows(5, None, share=0.4).tolist() == [0, 0, 0, 1, 2]


@pytest.mark.parametrize("array", [VECTORS, IMAGES], ids=["vector", "image"])
def test_without_time_samples_are_the_time_line(array: Tensor) -> None:
    assert torch.equal(frozen(array, None, draws())[1:], array[:-1])
    late = round(0.25 * len(array))
    result = delayed(array, 0.25, None)
    assert torch.equal(result[late:], array[:-late])
    assert torch.equal(result[:late], array[:1].expand_as(result[:late]))
    group = torch.arange(len(array)) % 3
    assert torch.equal(frozen(array, group, draws())[3:], array[:-3])

    mean, deviation = statistics(array)
    changed = (bursts(array, 0.25, mean, deviation, draws()) != array).flatten(1)
    assert torch.equal(changed.any(dim=1), changed.all(dim=1))
    assert changed.any(dim=1).float().mean() == pytest.approx(0.25)
