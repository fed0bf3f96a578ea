"""Sound: the spectrogram beside one by numpy, masks in training alone, padding, silence."""

import numpy as np
import pytest
import torch

from equipoise.models import LogMel
from equipoise.models.evaluation import varies_in_training
from equipoise.models.sound import _Masks
from equipoise.util.mel import mel_triangles


def by_numpy(sound: np.ndarray) -> np.ndarray:
    """Frame, window, transform, filter, one frame after the other: [T] → [bands, frames]."""
    padded = np.pad(sound, (120, 279))
    window = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(400) / 400)
    frames = []
    for start in range(0, len(sound), 160):
        power = np.abs(np.fft.rfft(padded[start : start + 400] * window, n=512)) ** 2 / (window**2).sum()
        frames.append(mel_triangles(16_000, 512, 64).numpy() @ power)
    return np.stack(frames, axis=1)


@pytest.mark.parametrize("steps", [1, 159, 160, 161, 400, 1000])
def test_the_spectrogram_is_that_of_numpy(steps: int) -> None:
    sounds = torch.randn(3, 2, steps, dtype=torch.float64)
    found = LogMel(2, steps).double().spectrogram(sounds)
    expected = np.log(np.stack([[by_numpy(channel.numpy()) for channel in sound] for sound in sounds]) + 1e-6)
    assert found.shape == (3, 2, 64, -(-steps // 160))
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-4, atol=1e-5)  # the waves are stored in float32


def test_energies_of_neighbouring_frames_are_averaged_in_a_long_sound() -> None:
    sounds = torch.randn(1, 1, 61_000)
    found = LogMel(1, 61_000).spectrogram(sounds)[0, 0].exp() - 1e-6
    frames = by_numpy(sounds[0, 0].double().numpy())  # 382, so three and three
    assert found.shape == (64, 128)
    np.testing.assert_allclose(found[:, :127].numpy(), frames[:, :381].reshape(64, 127, 3).mean(axis=2), rtol=1e-3)


@pytest.mark.parametrize("steps", [1, 2000, 60_000])
def test_padding_changes_nothing(steps: int) -> None:
    encoder = LogMel(2, steps, features=8, width=4)
    for _ in range(2):
        encoder(torch.randn(4, 2, 3000))
    encoder.eval()
    sounds = torch.randn(4, 2, 3000) * 100
    lengths = torch.tensor([1, 700, 1601, 3000])
    alone = [encoder(sound[None, :, :length]) for sound, length in zip(sounds, lengths, strict=True)]
    torch.testing.assert_close(encoder(sounds, lengths), torch.cat(alone), rtol=1e-4, atol=1e-4)


def test_silence_is_read_in_training_too() -> None:
    assert LogMel(1, 4000)(torch.zeros(1, 1, 4000)).isfinite().all()


def test_masks_cover_bands_and_frames_of_each_sample_in_training_alone() -> None:
    masks = _Masks(0.2)
    maps = torch.ones(50, 2, 64, 100)
    assert masks.eval()(maps) is maps
    torch.manual_seed(0)
    masked = masks.train()(maps) == 0
    assert torch.equal(masked[:, 0], masked[:, 1])
    bands, frames = masked[:, 0].all(dim=2), masked[:, 0].all(dim=1)
    assert torch.equal(masked[:, 0], bands[:, :, None] | frames[:, None, :])
    for hit in (bands, frames):  # at most two masks of a fifth
        assert hit.sum(dim=1).max() <= 0.4 * hit.shape[1] + 2
        assert 0.1 < hit.float().mean() < 0.25
        assert hit.float().mean(dim=0).min() < 0.5
        assert len(hit.unique(dim=0)) > 40
    torch.manual_seed(0)
    assert torch.equal(masks(maps) == 0, masked)
    assert varies_in_training(masks)
