"""What encoders read of what is stored: frames by segment, crops inside the picture, no chance in evaluation."""

import json
import math

import pytest
import torch

from equipoise.data import Part
from equipoise.data.views import LogSTFT, Rescaled, TimeLast, VideoFrames, View, view_of

PLAIN = {"mean": (0.0, 0.0, 0.0), "deviation": (1 / 255, 1 / 255, 1 / 255)}  # bytes stay what they are


def numbered(batch: int, frames: int, size: int = 8) -> torch.Tensor:
    """Videos whose frame t is filled with the number t."""
    stored = torch.arange(frames, dtype=torch.uint8).reshape(1, -1, 1, 1, 1)
    return stored.expand(batch, frames, 3, size, size).clone()


def draws(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize(
    ("length", "count", "expected"),
    [(10, 1, [5]), (10, 2, [2, 7]), (9, 3, [1, 4, 7]), (3, 3, [0, 1, 2]), (1, 3, [0, 0, 0]), (2, 4, [0, 0, 1, 1])],
)
def test_evaluation_takes_the_middle_of_each_segment(length: int, count: int, expected: list[int]) -> None:
    seen = VideoFrames(count, 8, **PLAIN)(numbered(2, 12), torch.tensor([length, 12]), None)
    assert seen.shape == (2, 3, count, 8, 8)
    assert seen[0, 0, :, 4, 4].round().int().tolist() == expected


def test_training_takes_every_frame_of_a_segment_alike_and_none_of_the_padding() -> None:
    view, stored, lengths = VideoFrames(3, 8, **PLAIN), numbered(2000, 12), torch.full((2000,), 9)
    rows = view.chosen(stored, lengths, draws())
    for segment, column in enumerate(rows.unbind(dim=1)):
        counts = column.bincount(minlength=12)
        assert counts.nonzero().flatten().tolist() == [3 * segment, 3 * segment + 1, 3 * segment + 2]
        assert (counts[3 * segment : 3 * segment + 3] / 2000 - 1 / 3).abs().max() < 0.05


def test_training_differs_from_batch_to_batch_and_evaluation_never() -> None:
    view, stored = VideoFrames(2, 16), torch.randint(256, (4, 6, 3, 20, 30), dtype=torch.uint8)
    assert torch.equal(view(stored, None, None), view(stored, None, None))
    assert torch.equal(view(stored, None, draws(1)), view(stored, None, draws(1)))
    assert not torch.equal(view(stored, None, draws(1)), view(stored, None, draws(2)))


def test_crops_cover_what_they_should_and_flip_half_of_the_time() -> None:
    """On a picture whose values are its coordinates a crop tells where it was cut."""
    across, down = torch.meshgrid(torch.arange(200), torch.arange(200), indexing="xy")
    picture = torch.stack([across, down, across]).to(torch.uint8)
    stored = picture.expand(3000, 1, 3, 200, 200)
    seen = VideoFrames(1, 32, **PLAIN)(stored, None, draws())[:, :, 0]
    left, right = seen[:, 0, 16, 0], seen[:, 0, 16, -1]
    wide = (right - left).abs() * 32 / 31
    high = (seen[:, 1, -1, 16] - seen[:, 1, 0, 16]) * 32 / 31
    assert abs((left > right).float().mean().item() - 0.5) < 0.04
    assert (high > 0).all()  # never upside down
    assert seen.min() >= 0
    assert seen.max() <= 199
    area, ratio = wide * high / 200**2, wide / high
    assert 0.07 < area.min() < 0.12
    assert 0.9 < area.max() <= 1.02
    assert 0.72 < ratio.min() < 0.80
    assert 1.25 < ratio.max() < 1.39
    assert abs(area.mean().item() - 0.5) < 0.06  # uniform between 8 and 100 %, the largest of odd ratio drawn again


def test_a_frame_of_its_own_size_is_not_changed_in_evaluation() -> None:
    stored = torch.randint(256, (2, 1, 3, 24, 24), dtype=torch.uint8)
    torch.testing.assert_close(VideoFrames(1, 24, **PLAIN)(stored, None, None)[:, :, 0], stored[:, 0].float())


def test_colours_are_normalised_as_imagenet_has_them() -> None:
    stored = torch.tensor([124, 116, 104], dtype=torch.uint8).reshape(1, 1, 3, 1, 1).expand(1, 1, 3, 9, 9)
    seen = VideoFrames(1, 9)(stored, None, None)[0, :, 0, 0, 0]
    expected = [(124 / 255 - 0.485) / 0.229, (116 / 255 - 0.456) / 0.224, (104 / 255 - 0.406) / 0.225]
    torch.testing.assert_close(seen, torch.tensor(expected), atol=1e-5, rtol=0)


def test_a_stretch_of_sound_is_the_middle_one_in_evaluation() -> None:
    rate, view = 1000, LogSTFT(samples=1000, n_fft=100, hop=50)
    time = torch.arange(3 * rate) / rate
    tones = torch.cat([torch.sin(2 * math.pi * hertz * time[:rate]) for hertz in (100, 200, 300)])
    stored = (tones * 2**14).short().expand(2, -1)
    seen = view(stored, None, None)
    assert seen.shape == (2, *view.shape((3000,))) == (2, 1, 51, 21)
    assert (seen[:, 0, :, 5:15].argmax(dim=1) == 20).all()  # 200 Hz in bins of 10 Hz: the second of three seconds
    found = {int(view(stored, None, draws(seed))[0, 0, :, 10].argmax()) for seed in range(40)}
    assert found >= {10, 20, 30}


@pytest.mark.parametrize("view", [Rescaled(1 / 255), TimeLast(), VideoFrames(3, 32), LogSTFT(80, 16, 8)])
def test_a_view_survives_being_written_down(view: View) -> None:
    assert view_of(json.loads(json.dumps(view.as_dict()))) == view


def test_a_part_is_made_ready_with_its_lengths() -> None:
    inputs = {
        "video": numbered(4, 6),
        "video_length": torch.tensor([6, 1, 2, 3]),
        "text": torch.arange(4 * 5 * 2, dtype=torch.float16).reshape(4, 5, 2),
        "text_length": torch.tensor([5, 4, 3, 2]),
        "plain": torch.randn(4, 7),
    }
    part = Part(inputs, torch.arange(4), views={"video": VideoFrames(1, 8, **PLAIN), "text": TimeLast()})
    ready = part.ready()
    assert set(ready.inputs) == {"video", "text", "text_length", "plain"}
    assert ready.inputs["video"][:, 0, 0, 0, 0].tolist() == [3, 0, 1, 1]
    assert ready.inputs["text"].shape == (4, 2, 5)
    assert ready.inputs["text"][0, 1].tolist() == [1, 3, 5, 7, 9]
    assert ready.ready() is ready
