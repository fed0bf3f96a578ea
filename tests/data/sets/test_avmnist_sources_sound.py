"""A spoken digit in noise and its picture: powers, ratios and rows worked out by hand."""

import numpy as np
import pytest

from equipoise.data.sets.avmnist_sources import (
    BLOCK,
    HOP,
    RATE,
    SAMPLES,
    SHORTEST,
    WINDOW,
    endless_noise,
    mixed,
    spectrogram,
    spoken_part,
)
from media.made import tone


def random_noise(seed: int, samples: int = SAMPLES) -> np.ndarray:
    """NoiseRecording whose power rises and falls."""
    random = np.random.default_rng(seed)
    return random.standard_normal(samples) * np.exp(np.cumsum(random.standard_normal(samples)) / 50)


# -- the mixture --


@pytest.mark.parametrize("ratio", [-20.0, -3.0, 0.0, 7.5, 40.0])
@pytest.mark.parametrize("length", [SHORTEST, 3001, SAMPLES])
def test_the_ratio_can_be_measured_back(ratio: float, length: int) -> None:
    spoken, noise = random_noise(1, length).astype(np.float32), random_noise(2).astype(np.float32)
    start = (SAMPLES - length) // 2
    wave = mixed(spoken, noise, ratio)
    assert wave.shape == (SAMPLES,)
    rest = wave.copy()
    rest[start : start + length] -= spoken
    measured = 10 * np.log10(np.mean(spoken**2.0) / np.mean(rest[start : start + length] ** 2))
    assert measured == pytest.approx(ratio, abs=0.01)
    # All that is left is the noise, at one loudness from end to end.
    factors = rest / noise
    assert np.allclose(factors, factors[0], rtol=1e-3)


def test_without_noise_there_is_silence_around_the_digit() -> None:
    spoken = np.ones(1000, np.float32)
    wave = mixed(spoken, random_noise(3), float("inf"))
    assert np.flatnonzero(wave).tolist() == list(range(3497, 4497))  # (7994 − 1000) / 2 = 3497
    assert spectrogram(wave)[:, 0].max() == 0


# -- the spoken part --


def test_silent_ends_are_cut_and_the_power_is_set() -> None:
    wave = np.concatenate([np.zeros(5 * BLOCK), tone(0.2, RATE, 500.0, 0.02), 1e-4 * np.ones(7 * BLOCK)])
    part = spoken_part(wave)
    assert len(part) == 1600  # 0.2 s
    assert np.mean(part**2.0) == pytest.approx(0.01, rel=1e-5)


def test_what_ends_within_a_block_ends_there() -> None:
    assert len(spoken_part(tone(0.2, RATE)[:-3])) == 1597


def test_of_a_longer_part_the_stretch_with_most_energy_is_kept() -> None:
    """In 7_theo_36.wav the digit comes first, and the middle second holds a thousandth of the energy."""
    random = np.random.default_rng(0)
    digit, room = 0.5 * np.sign(tone(0.3, RATE, 310.0) + 1e-6), 0.03 * random.standard_normal(15_000)
    part = spoken_part(np.concatenate([digit, room]))
    assert len(part) == SAMPLES
    scale = part[100] / digit[100]
    np.testing.assert_allclose(part[: len(digit)], scale * digit, atol=1e-4)
    part = spoken_part(np.concatenate([room, digit, room]))
    held = np.sum(part[np.abs(part) > 0.4 * np.abs(part).max()] ** 2) / np.sum(part**2)
    assert held > 0.8


@pytest.mark.parametrize(
    ("wave", "why"),
    [
        (np.ones(1), "at least 40 ms of sound, found 0.125 ms"),
        (np.zeros(4000), "found silence"),
        (np.full(4000, np.nan), "found NaN"),
        (np.r_[np.zeros(12 * BLOCK), tone(0.02, RATE), np.zeros(2000)], "at least 40 ms of sound, found 20 ms"),
    ],
)
def test_what_cannot_be_a_spoken_digit(wave: np.ndarray, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        spoken_part(wave)


# -- noise --


@pytest.mark.parametrize("seed", range(5))
def test_a_noise_has_power_wherever_one_starts(seed: int) -> None:
    """Of the clips of ESC-50 many are mostly zeros."""
    random = np.random.default_rng(seed)
    wave = random_noise(seed, 40_000)
    for start in random.integers(0, 40_000, 20):
        wave[start : start + 1500] = 0
    noise = endless_noise(wave)
    sums = np.concatenate([[0.0], np.cumsum(noise.astype(float) ** 2)])
    powers = (sums[SHORTEST:] - sums[:-SHORTEST]) / SHORTEST
    assert powers.min() > 1e-5 * powers.max()
    assert SAMPLES < len(noise) < len(wave) + SAMPLES


def test_a_short_noise_is_repeated() -> None:
    wave = np.arange(1, 401) / 400
    noise = endless_noise(wave)
    assert len(noise) == 320 + SAMPLES  # two whole blocks, then a second more
    assert np.array_equal(noise[320:640], noise[:320])
    np.testing.assert_allclose(noise[:320], wave[:320], rtol=1e-6)


def test_silence_is_no_noise() -> None:
    with pytest.raises(ValueError, match="found silence"):
        endless_noise(np.zeros(40_000))


# -- the picture --


@pytest.mark.parametrize("frequency", [1, 14, 60, 111])
@pytest.mark.parametrize("height", [1.0, 0.1])
def test_a_tone_is_one_bright_row(frequency: int, height: float) -> None:
    """A tone of k · 8000/224 Hz is row k − 1; its height of 1 is 0 dB, byte 255, and of 0.1 is −20 dB, byte 204."""
    picture = spectrogram(tone(1.0, RATE, frequency * RATE / WINDOW, height)[:SAMPLES])
    assert picture.shape == (112, 112)
    assert (picture.argmax(axis=0) == frequency - 1).all()
    assert (picture[frequency - 1] == (255 if height == 1 else 204)).all()


def test_columns_are_moments() -> None:
    """A click at sample 4000 is within the windows that start at 3777 to 3999: columns 54 (3780) to 57 (3990)."""
    wave = np.zeros(SAMPLES)
    wave[4000] = 1
    lit = np.flatnonzero(spectrogram(wave).max(axis=0))
    assert lit.tolist() == [54, 55, 56, 57]


def test_the_picture_by_the_definition_of_the_transform() -> None:
    wave = 0.1 * random_noise(4)
    assert (RATE, WINDOW, HOP) == (8000, 224, 70)
    time = np.arange(WINDOW)
    window = np.sin(np.pi * time / WINDOW) ** 2
    transform = np.exp(-2j * np.pi * np.outer(np.arange(1, 113), time) / WINDOW) * window
    columns = [transform @ wave[HOP * column : HOP * column + WINDOW] for column in range(112)]
    decibels = 20 * np.log10(np.abs(np.stack(columns, axis=1)) / (WINDOW / 4))
    expected = np.clip(np.round(2.55 * (decibels + 100)), 0, 255)
    assert np.abs(spectrogram(wave) - expected).max() <= 1
    assert np.mean(spectrogram(wave) != expected) < 1e-3


def test_what_is_too_loud_is_white_and_too_soft_is_black() -> None:
    assert spectrogram(np.zeros(SAMPLES)).max() == 0
    assert spectrogram(1e3 * random_noise(5)).max() == 255
