"""A spoken digit, a noise at a stated ratio to it, and the picture of both: numpy alone, the same every time.

A picture is a power spectrogram of one second at 8 kHz. The transform is chosen so that it has 112 × 112 cells by
itself and nothing is resized: windows of 224 samples, one every 70, of which the 112 frequencies above zero are kept.
"""

from __future__ import annotations

import numpy as np

from equipoise.util.errors import BadInput

RATE = 8_000  # hertz
WINDOW, HOP = 224, 70
ROWS, COLUMNS = WINDOW // 2, 112
SAMPLES = (COLUMNS - 1) * HOP + WINDOW  # 7,994: one second but for six samples
BLOCK = 160  # samples, 20 ms: the grain in which silence is told
SPEECH_RANGE, NOISE_RANGE = 30.0, 40.0  # decibels below the loudest block: what is softer is silence
LEVEL = 0.01  # power of every spoken part: as loud as a sine of height 0.14
LOWEST, HIGHEST = -100.0, 0.0  # decibels, black and white; a sine of height 1 has 0
SHORTEST = 2 * BLOCK  # a stretch as long holds a whole block of a noise, so it has power

_HANN = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(WINDOW) / WINDOW)
_FULL_SCALE = _HANN.sum() / 2  # what the transform makes of a sine of height 1


def spoken_part(wave: np.ndarray) -> np.ndarray:
    """What is spoken in a recording, at a power of `LEVEL`, at most `SAMPLES` long.

    It reaches from the first block that is at most 30 dB softer than the loudest one to the last. Of a longer part, the
    stretch with most energy is kept: in a few recordings the middle holds nothing but the room.

    Raises:
        BadInput: If there is nothing in it.
    """
    wave = _sane(wave)
    loud = np.flatnonzero(_loud_blocks(wave, SPEECH_RANGE))
    end = len(wave) if loud[-1] + 1 == len(wave) // BLOCK else (loud[-1] + 1) * BLOCK
    part = wave[loud[0] * BLOCK : end]
    if len(part) > SAMPLES:
        energy = np.concatenate([[0.0], np.cumsum(part**2)])
        start = int(np.argmax(energy[SAMPLES:] - energy[:-SAMPLES]))
        part = part[start : start + SAMPLES]
    _demand_length(part)
    return (part * np.sqrt(LEVEL / np.mean(part**2))).astype(np.float32)


def endless_noise(wave: np.ndarray) -> np.ndarray:
    """A noise without its silent blocks, continued by its own beginning: a second can start at any of its samples.

    Many published clips are padded with zeros, and no factor makes a ratio of speech to silence.

    Returns:
        What is left, and `SAMPLES` more.

    Raises:
        BadInput: If there is nothing in it.
    """
    wave = _sane(wave)
    blocks = wave[: len(wave) // BLOCK * BLOCK].reshape(-1, BLOCK)[_loud_blocks(wave, NOISE_RANGE)]
    return np.resize(blocks, blocks.size + SAMPLES).astype(np.float32)


def mixed(spoken: np.ndarray, noise: np.ndarray, ratio: float) -> np.ndarray:
    """A spoken part in the middle of a second of noise.

    Args:
        spoken: At most `SAMPLES` long.
        noise: `SAMPLES` long.
        ratio: Power of the spoken part over the power of the noise during it, in decibels; infinity for no noise.

    Returns:
        `SAMPLES` numbers.
    """
    start = (SAMPLES - len(spoken)) // 2
    during = slice(start, start + len(spoken))
    speech, noise = spoken.astype(np.float64), noise.astype(np.float64)
    power = np.mean(speech**2) / np.mean(noise[during] ** 2)
    wave = noise * np.sqrt(power * 10 ** (-ratio / 10))
    wave[during] += speech
    return wave


def spectrogram(wave: np.ndarray) -> np.ndarray:
    """The picture of `SAMPLES` numbers: decibels between fixed limits, as bytes [112, 112].

    Row r is the frequency (r + 1) · 8000/224 Hz, so the lowest comes first; column c starts at sample 70 c.
    """
    frames = np.lib.stride_tricks.sliding_window_view(wave, WINDOW)[::HOP]
    spectra = np.fft.rfft(frames * _HANN)[:, 1:]
    power = (spectra.real**2 + spectra.imag**2) / _FULL_SCALE**2
    decibels = 10 * np.log10(np.maximum(power, 10 ** (LOWEST / 10)))
    bytes_ = np.rint((decibels - LOWEST) * (255 / (HIGHEST - LOWEST)))
    return np.minimum(bytes_, 255).astype(np.uint8).T


def _sane(wave: np.ndarray) -> np.ndarray:
    _demand_length(wave)
    if not np.isfinite(wave).all():
        raise BadInput("expected finite numbers, found NaN or infinity")
    if not wave[: len(wave) // BLOCK * BLOCK].any():
        raise BadInput("expected a sound, found silence")
    return wave.astype(np.float64)


def _demand_length(wave: np.ndarray) -> None:
    if len(wave) < SHORTEST:
        least, found = 1000 * SHORTEST / RATE, 1000 * len(wave) / RATE
        raise BadInput(f"expected at least {least:g} ms of sound, found {found:.3g} ms")


def _loud_blocks(wave: np.ndarray, decibels: float) -> np.ndarray:
    """Which of the whole blocks are at most so much softer than the loudest one."""
    power = np.mean(wave[: len(wave) // BLOCK * BLOCK].reshape(-1, BLOCK) ** 2, axis=1)
    return power >= power.max() * 10 ** (-decibels / 10)
