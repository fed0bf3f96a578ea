"""Augmentation: small variations of training samples by the kind of sensor, which leave everything else alone."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from equipoise import MIMO
from equipoise.data import Part
from equipoise.data.augment import (
    Augmentation,
    augmentations_of,
    augmented,
    mask_spectrogram,
    shift_picture,
    shift_video,
    vary_series,
    vary_space,
)
from equipoise.data.bundled import two_sensors
from equipoise.data.feed import Feed
from equipoise.data.views import LogSTFT, Rescaled, TimeLast, VideoFrames
from equipoise.training.settings import Settings
from equipoise.training.train import train

SHAPES: dict[Augmentation, tuple[int, ...]] = {
    vary_series: (3, 40),
    vary_space: (3, 40),
    shift_picture: (3, 16, 24),
    mask_spectrogram: (1, 24, 40),
    shift_video: (2, 10, 16, 8),
}


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def part_of(**inputs: Any) -> Part:
    count = len(next(iter(inputs.values())))
    return Part(inputs, torch.arange(count) % 2)


@pytest.mark.parametrize("vary", SHAPES)
def test_each_sample_is_varied_by_itself_and_by_the_seed(vary: Augmentation) -> None:
    one = torch.randn(SHAPES[vary], generator=seeded(1))
    same = one.expand(12, *one.shape).contiguous()
    found = vary(same, None, seeded())
    assert (found.shape, found.dtype) == (same.shape, same.dtype)
    assert len(found.flatten(1).unique(dim=0)) > 4
    assert torch.equal(found, vary(same, None, seeded()))
    assert not torch.equal(found, vary(same, None, seeded(1)))
    assert torch.equal(same, one.expand_as(same))  # the stored samples are as they were
    assert found.isfinite().all()


@pytest.mark.parametrize("vary", [vary_series, vary_space, shift_video])
def test_padding_stays_and_is_never_read(vary: Augmentation) -> None:
    lengths = torch.tensor([1, 3, 7, 10, 10])
    time = torch.arange(10)[None, :] < lengths[:, None]
    shape = SHAPES[vary] if len(SHAPES[vary]) == 4 else (3, 10)
    real = time.view(5, 1, 10, *[1] * (len(shape) - 2)).expand(5, *shape)
    values = torch.randn(5, *shape, generator=seeded(2)).where(real, 1e6)
    found = vary(values, lengths, seeded())
    assert torch.equal(found[~real], values[~real])
    assert found[real].abs().max() < 100


def test_samples_that_lack_the_sensor_stay() -> None:
    present = torch.tensor([True, False, True, False])
    part = part_of(imu=torch.randn(4, 3, 40), imu_present=present, text=torch.randn(4, 6))
    found = augmented(part, augmentations_of(part), seeded())
    assert torch.equal(found.inputs["imu"][~present], part.inputs["imu"][~present])
    assert (found.inputs["imu"][present] != part.inputs["imu"][present]).any(dim=2).all()
    assert torch.equal(found.inputs["text"], part.inputs["text"])
    assert torch.equal(found.inputs["imu_present"], present)
    assert torch.equal(found.label, part.label)


def test_a_series_is_shifted_by_at_most_a_tenth_and_mirrored() -> None:
    ramp = torch.arange(40.0).expand(500, 1, 40)
    found = (vary_series(ramp, None, seeded()) / ramp.std()).squeeze(1)
    middle = found[:, 20] * ramp.std()
    assert 20 * 0.9 - 4.5 - 3 < middle.min() < 17
    assert 23 < middle.max() < 20 * 1.1 + 4.5 + 3
    falls = (found[:, 0] > found[:, 3] + 0.1).float().mean()  # those that were shifted to the right by three or four
    assert 0.1 < falls < 0.35


def test_the_scale_of_a_channel_and_the_noise_are_small() -> None:
    values = torch.randn(400, 2, 500, generator=seeded(3))
    found = vary_space(values, None, seeded())
    scale = (found * values).sum(dim=2) / values.square().sum(dim=2)
    assert 0.88 < scale.min() < 0.91 < 1.09 < scale.max() < 1.12
    noise = (found - scale[..., None] * values).std(dim=2) / values.std(dim=2)
    assert noise.mean() == pytest.approx(0.05, abs=0.002)
    still = torch.full((4, 2, 30), 5.0)
    assert (vary_space(still, None, seeded()).std(dim=2) < 1e-5).all()  # where nothing moves, nothing is added


def moves(before: Tensor, after: Tensor, axis: int) -> list[int]:
    """How far each sample was moved along an axis, seen in its middle."""
    size = before.shape[axis]
    middle = slice(size // 4, size - size // 4)
    found = []
    for one, other in zip(before, after, strict=True):
        wanted = other.movedim(axis - 1, 0)[middle]
        fits = [by for by in range(-(size // 4), size // 4 + 1) if _equal_at(one, wanted, axis - 1, middle, by)]
        found.append(fits[0])
    return found


def _equal_at(one: Tensor, wanted: Tensor, axis: int, middle: slice, by: int) -> bool:
    return torch.equal(one.movedim(axis, 0)[middle.start - by : middle.stop - by], wanted)


def test_a_picture_moves_by_up_to_an_eighth_of_each_side() -> None:
    rows = torch.arange(16.0).view(1, 1, 16, 1).expand(300, 1, 16, 24).contiguous()
    down = moves(rows, shift_picture(rows, None, seeded()), 2)
    assert {*down} == {*range(-2, 3)}
    columns = torch.arange(24.0).expand(300, 1, 16, 24).contiguous()
    assert {*moves(columns, shift_picture(columns, None, seeded()), 3)} == {*range(-3, 4)}


def test_frames_of_a_video_move_alike() -> None:
    video = torch.arange(16.0).view(1, 1, 1, 16, 1).expand(50, 1, 20, 16, 8).contiguous()
    found = shift_video(video, None, seeded())
    assert torch.equal(found, found[:, :, :1].expand_as(found))
    time = torch.arange(20.0).view(1, 1, 20, 1, 1).expand(200, 1, 20, 16, 8).contiguous()
    assert {*moves(time, shift_video(time, None, seeded()), 2)} == {*range(-2, 3)}


def test_a_spectrogram_loses_a_band_and_a_stretch() -> None:
    sound = torch.randn(200, 1, 24, 40, generator=seeded(4))
    found = mask_spectrogram(sound, None, seeded())
    gone = found != sound
    assert torch.equal(found[gone], sound.mean(dim=(1, 2, 3), keepdim=True).expand_as(sound)[gone])
    bands, stretches = gone.all(dim=3).sum(dim=2), gone.all(dim=2).sum(dim=2)
    assert bands.max() == 3
    assert stretches.max() == 5
    assert torch.equal(gone, gone.all(dim=3, keepdim=True) | gone.all(dim=2, keepdim=True))


def test_the_kind_follows_from_shape_and_view() -> None:
    inputs: dict[str, Tensor] = {
        "vector": torch.zeros(2, 5),
        "series": torch.zeros(2, 3, 9),
        "beams": torch.zeros(2, 3, 9),
        "stored": torch.zeros(2, 9, 3, dtype=torch.int16),
        "tokens": torch.zeros(2, 7, dtype=torch.long),
        "grid": torch.zeros(2, 3, 7, dtype=torch.long),
        "colours": torch.zeros(2, 3, 8, 9),
        "grey": torch.zeros(2, 1, 8, 8),
        "bytes": torch.zeros(2, 1, 8, 9, dtype=torch.uint8),
        "mel": torch.zeros(2, 1, 8, 30),
        "wave": torch.zeros(2, 900, dtype=torch.int16),
        "video": torch.zeros(2, 3, 4, 8, 8),
        "frames": torch.zeros(2, 4, 3, 8, 8, dtype=torch.uint8),
        "series_length": torch.ones(2, dtype=torch.long),
    }
    views = {
        "stored": TimeLast(),
        "bytes": Rescaled(1 / 255),
        "wave": LogSTFT(800, 64, 32),
        "frames": VideoFrames(2, 8),
    }
    part = Part(inputs, torch.zeros(2, dtype=torch.long), views=views, spatial=frozenset({"beams"}))
    assert augmentations_of(part) == {
        "series": vary_series,
        "beams": vary_space,
        "stored": vary_series,
        "colours": shift_picture,
        "grey": shift_picture,
        "bytes": shift_picture,
        "mel": mask_spectrogram,
        "wave": mask_spectrogram,
        "video": shift_video,
    }
    ready = augmented(part.ready(), augmentations_of(part), seeded())
    assert {name: array.shape for name, array in ready.inputs.items()} == {
        name: array.shape for name, array in part.ready().inputs.items()
    }


@pytest.mark.parametrize("mode", ["resident", "streamed"])
def test_a_feed_varies_batches_by_epoch_number_and_rank_and_never_evaluates_them(mode: Any) -> None:
    part = part_of(imu=torch.randn(8, 3, 40))
    rows = [torch.arange(8)]

    def made(epoch: int, number: int, rank: int = 0) -> Tensor:
        feed = Feed(part, "cpu", mode, seed=3, rank=rank, ranks=2, augment=True)
        feed.seed_views(epoch, number)
        return feed.make(next(iter(feed.batches(rows)))).inputs["imu"]

    every = [made(0, 0), made(0, 1), made(1, 0), made(0, 0, rank=1)]
    assert torch.equal(every[0], made(0, 0))
    assert len(torch.stack(every).flatten(1).unique(dim=0)) == 4
    feed = Feed(part, "cpu", mode, augment=True)
    for batch, _, numbers in Feed(part, "cpu", mode, augment=True).evaluation_batches(4):
        assert torch.equal(batch.inputs["imu"], part.inputs["imu"][numbers])
    fixed = feed.make(next(iter(feed.batches(rows))), at_random=False)
    assert torch.equal(fixed.inputs["imu"], part.inputs["imu"])


def test_training_on_vectors_is_the_same_to_the_bit() -> None:
    settings = Settings(epochs=2, batch=16, features=8)
    data = two_sensors(samples=90)
    plain, varied = (train(data, MIMO(), settings.changed({"augment": one})) for one in ("none", "auto"))
    for name, value in plain.model.state_dict().items():
        assert torch.equal(value, varied.model.state_dict()[name]), name


def test_training_on_series_changes_and_its_validation_does_not() -> None:
    data = two_sensors(samples=90)

    def as_series(part: Part) -> Part:
        return replace(part, inputs={name: array[:, None] for name, array in part.inputs.items()})

    series = replace(data, **{name: as_series(part) for name, part in data.parts.items()})
    settings = Settings(epochs=1, batch=16, lr=1e-12, features=8)
    plain, varied = (train(series, MIMO(), settings.changed({"augment": one})) for one in ("none", "auto"))
    assert plain.curves[0]["train"] != varied.curves[0]["train"]
