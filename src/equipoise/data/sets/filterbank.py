"""The filter bank of Kinetics-Sounds: what several audio-visual benchmarks hear."""

from __future__ import annotations

import numpy as np

from equipoise.util.errors import Unreadable

RATE = 16_000
SHAPE = (1, 1024, 128)  # one channel, time, mel bins
SHORTEST = 400  # samples, one frame of 25 ms


def filter_bank(wave: np.ndarray, name: str) -> np.ndarray:
    """A Kaldi filter bank of 1024 frames, normalised as published; frames that are missing hold 0.438, a shifted zero.

    Args:
        wave: Mono, at 16 kHz.
        name: Of the clip, for the message.
    """
    import torch

    from equipoise.media.spectrogram import kinetics_fbank

    if len(wave) < SHORTEST:
        raise Unreadable(f"{name}: expected a sound of 25 ms or more, found {len(wave)} samples at {RATE} Hz")
    return kinetics_fbank(torch.from_numpy(wave), RATE).reshape(SHAPE).numpy()
