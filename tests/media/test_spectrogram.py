"""Spectrograms against transforms written out, and against values worked out by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from equipoise.media.spectrogram import fbank, kinetics_fbank, log_stft
from media.made import tone


def noise(samples: int, seed: int = 0) -> np.ndarray:
    return 0.3 * np.random.default_rng(seed).standard_normal(samples)


def written_out_stft(wave: np.ndarray, n_fft: int, hop: int) -> np.ndarray:
    """log(|S| + 1e-7) by the definition: a sum over samples for each frequency and frame."""
    padded = np.pad(wave.clip(-1, 1), n_fft // 2, mode="reflect")
    place = np.arange(n_fft)
    window = 0.5 - 0.5 * np.cos(2 * np.pi * place / n_fft)
    waves = np.exp(-2j * np.pi * np.outer(np.arange(n_fft // 2 + 1), place) / n_fft)
    starts = range(0, len(wave) // hop * hop + 1, hop)
    return np.stack([np.log(np.abs(waves @ (window * padded[s : s + n_fft])) + 1e-7) for s in starts], axis=1)


def written_out_fbank(wave: np.ndarray, rate: int, bins: int) -> np.ndarray:
    """The published filter bank, frame by frame, bin by bin, frequency by frequency."""

    def mel(hertz: float) -> float:
        return 1127 * math.log(1 + hertz / 700)

    length, shift = rate * 25 // 1000, rate * 10 // 1000
    padded = 1
    while padded < length:
        padded *= 2
    edges = np.linspace(mel(20), mel(rate / 2), bins + 2)
    rows = []
    for start in range(0, len(wave) - length + 1, shift):
        frame = wave[start : start + length] - wave[start : start + length].mean()
        frame = np.array([frame[i] - 0.97 * frame[max(i - 1, 0)] for i in range(length)])
        frame *= [0.5 - 0.5 * math.cos(2 * math.pi * i / (length - 1)) for i in range(length)]
        power = np.abs(np.fft.fft(np.concatenate([frame, np.zeros(padded - length)]))) ** 2
        row = []
        for left, centre, right in zip(edges, edges[1:], edges[2:], strict=False):
            energy = 0.0
            for i in range(padded // 2):
                at = mel(i * rate / padded)
                if left < at < right:
                    energy += power[i] * (
                        (at - left) / (centre - left) if at <= centre else (right - at) / (right - centre)
                    )
            row.append(math.log(max(energy, 2.0**-23)))
        rows.append(row)
    return np.array(rows)


class TestLogSTFT:
    @pytest.mark.parametrize(
        ("seconds", "rate", "n_fft", "hop", "shape"),
        [(3, 22_050, 512, 353, (257, 188)), (5, 16_000, 256, 128, (129, 626)), (20, 22_050, 512, 353, (257, 1250))],
    )
    def test_shapes_of_the_papers(self, seconds: int, rate: int, n_fft: int, hop: int, shape: tuple[int, int]) -> None:
        assert log_stft(torch.zeros(seconds * rate), n_fft, hop).shape == shape

    @pytest.mark.parametrize(("n_fft", "hop"), [(512, 353), (256, 128), (64, 7), (16, 40)])
    @pytest.mark.parametrize("samples", [257, 1000, 2001])
    def test_equals_the_transform_written_out(self, n_fft: int, hop: int, samples: int) -> None:
        wave = noise(samples, seed=n_fft + samples)
        ours = log_stft(torch.from_numpy(wave), n_fft, hop).numpy()
        np.testing.assert_allclose(ours, written_out_stft(wave, n_fft, hop), atol=1e-8)
        single = log_stft(torch.from_numpy(wave).float(), n_fft, hop).numpy()
        np.testing.assert_allclose(np.exp(single), np.exp(ours), atol=1e-5)

    def test_a_tone_by_hand(self) -> None:
        """Height a at bin k: a/2 times the sum of the window, N/2; half as much beside it, the lobe of the window."""
        spectrogram = log_stft(torch.from_numpy(tone(1, 16_000, 1000, height=0.5)), 256, 128)[:, 5:-5]
        assert (spectrogram.argmax(dim=0) == 16).all()  # 1000 · 256 / 16000
        np.testing.assert_allclose(spectrogram[16].exp(), 0.5 * 256 / 4, rtol=1e-4)
        np.testing.assert_allclose(spectrogram[15].exp(), 0.5 * 256 / 8, rtol=1e-4)
        np.testing.assert_allclose(spectrogram[17].exp(), 0.5 * 256 / 8, rtol=1e-4)
        assert spectrogram[20:].max() < math.log(1e-3)

    def test_the_ends_are_mirrored(self) -> None:
        """A constant stays one, so that every frame is c times the sum of the window; zeros would halve the first."""
        spectrogram = log_stft(torch.full((2000,), 0.25), 512, 353)
        np.testing.assert_allclose(spectrogram[0], math.log(0.25 * 256), rtol=1e-5)

    def test_silence_is_the_floor(self) -> None:
        assert log_stft(torch.zeros(1000), 512, 353).unique().tolist() == pytest.approx([math.log(1e-7)])

    def test_loud_sounds_are_clipped(self) -> None:
        wave = torch.from_numpy(noise(1000)) * 10
        torch.testing.assert_close(log_stft(wave, 64, 32), log_stft(wave.clamp(-1, 1), 64, 32))
        assert not torch.equal(log_stft(wave, 64, 32), log_stft(wave / 10, 64, 32) + math.log(10))

    @pytest.mark.parametrize("samples", [0, 1, 2, 255, 256, 257, 353])
    def test_short_sounds(self, samples: int) -> None:
        spectrogram = log_stft(torch.ones(samples), 512, 353)
        assert spectrogram.shape == (257, samples // 353 + 1)
        assert spectrogram.isfinite().all()

    def test_one_sample_by_hand(self) -> None:
        """One sample in the middle of the window, where it is 1: all frequencies alike."""
        np.testing.assert_allclose(log_stft(torch.tensor([0.5]), 512, 353), math.log(0.5), rtol=1e-5)

    def test_batches_and_types(self) -> None:
        waves = torch.from_numpy(noise(6 * 700)).view(2, 3, 700)
        together = log_stft(waves, 64, 32)
        assert together.shape == (2, 3, 33, 22)
        torch.testing.assert_close(together[1, 2], log_stft(waves[1, 2], 64, 32))
        assert log_stft(waves.half(), 64, 32).dtype == torch.float32


class TestFbank:
    @pytest.mark.parametrize(("rate", "bins"), [(16_000, 128), (22_050, 40), (8_000, 23), (44_100, 128)])
    def test_equals_the_algorithm_written_out(self, rate: int, bins: int) -> None:
        wave = noise(rate * 60 // 1000, seed=rate) + 0.1
        slow = written_out_fbank(wave, rate, bins)
        np.testing.assert_allclose(fbank(torch.from_numpy(wave), rate, bins), slow, atol=1e-9)
        np.testing.assert_allclose(fbank(torch.from_numpy(wave).float(), rate, bins), slow, atol=2e-3)

    @pytest.mark.parametrize(
        ("samples", "rate", "frames"),
        [(16_000, 16_000, 98), (400, 16_000, 1), (559, 16_000, 1), (560, 16_000, 2), (22_050, 22_050, 98)],
    )
    def test_frames_that_fit_whole(self, samples: int, rate: int, frames: int) -> None:
        """1 + (samples − 25 ms) // 10 ms, with 25 ms and 10 ms in whole samples: 400 and 160, or 551 and 220."""
        assert fbank(torch.zeros(samples), rate).shape == (frames, 128)

    @pytest.mark.parametrize("samples", [0, 1, 399])
    def test_no_frame_where_none_fits(self, samples: int) -> None:
        assert fbank(torch.zeros(samples), 16_000).shape == (0, 128)

    @pytest.mark.parametrize(("hertz", "place"), [(3000, 84), (440, 23), (5000, 106)])
    def test_a_tone_peaks_in_its_bin(self, hertz: float, place: int) -> None:
        """Bin b peaks at edge b + 1, and 3000 Hz is 84.74 edges from the lowest.

        20, 440, 3000, 5000 and 8000 Hz are 31.75, 549.64, 1876.46, 2363.48 and 2840.04 mel; 128 bins make 129 steps of
        2808.29 / 129 = 21.77 mel; and (1876.46 − 31.75) / 21.77 = 84.74.

        """
        bank = fbank(torch.from_numpy(tone(1, 16_000, hertz)), 16_000)
        assert (bank.argmax(dim=1) == place).all()

    def test_a_click_by_hand(self) -> None:
        """Pre-emphasis makes 1 into 1, −0.97: power 1 + 0.97² − 1.94 cos ω, which is 1.9409 at half of Nyquist.

        The triangle at 4 kHz (mel 2146.06, (2146.06 − 31.75) / 21.77 = 97.12 edges up) sums to its area: 21.77 mel are
        21.77 · (700 + 4000) / 1127 Hz = 90.8 Hz, and a frequency every 31.25 Hz makes that 2.9 of them.
        """
        wave = torch.zeros(400, dtype=torch.float64)
        wave[200] = 1
        bank = fbank(wave, 16_000)
        assert float(bank[0, 96]) == pytest.approx(math.log(1.9409 * 90.8 / 31.25), abs=0.05)

    def test_silence_and_constants_are_the_floor(self) -> None:
        """Each frame loses its mean, and the floor is log 2⁻²³."""
        for level in (0.0, 0.5):
            bank = fbank(torch.full((1600,), level), 16_000)
            np.testing.assert_allclose(bank, -23 * math.log(2), rtol=1e-6)

    def test_batches(self) -> None:
        waves = torch.from_numpy(noise(3 * 800)).view(3, 800)
        torch.testing.assert_close(fbank(waves, 16_000)[2], fbank(waves[2], 16_000))


class TestKineticsFbank:
    def test_by_hand(self) -> None:
        """Silence: (−15.942385 + 4.503877) / 10.282552; frames that are missing: 4.503877 / 10.282552."""
        bank = kinetics_fbank(torch.zeros(16_000), 16_000)
        assert bank.shape == (1024, 128)
        np.testing.assert_allclose(bank[:98], -1.1124192, rtol=1e-5)
        np.testing.assert_allclose(bank[98:], 0.4380116, rtol=1e-5)

    def test_long_sounds_are_cut(self) -> None:
        wave = torch.from_numpy(noise(11 * 16_000)).float()
        assert kinetics_fbank(wave, 16_000).shape == (1024, 128)
        short = kinetics_fbank(wave, 16_000, frames=10)
        expected = (fbank(wave - wave.mean(), 16_000)[:10] + 4.503877) / (2 * 5.141276)
        torch.testing.assert_close(short, expected)

    @pytest.mark.parametrize("samples", [0, 1])
    def test_short_sounds_are_all_missing(self, samples: int) -> None:
        np.testing.assert_allclose(kinetics_fbank(torch.zeros(samples), 16_000), 0.4380116, rtol=1e-5)
