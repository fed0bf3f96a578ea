"""Spectrograms with torch, on any device: the log-STFT of OGM-GE and AGM, and Kaldi's log mel filter bank."""

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from equipoise.util.mel import mel_triangles

LOWEST_MAGNITUDE = 1e-7
FRAME_SECONDS, SHIFT_SECONDS = 0.025, 0.010
PRE_EMPHASIS = 0.97
LOWEST_ENERGY = torch.finfo(torch.float32).eps
KINETICS_FRAMES, KINETICS_MEAN, KINETICS_DEVIATION = 1024, -4.503877, 5.141276


def log_stft(wave: Tensor, n_fft: int, hop: int) -> Tensor:
    """The log-magnitude spectrogram that OGM-GE and AGM feed to their audio encoders: log(|S| + 1e-7).

    S is the short-time Fourier transform under a periodic Hann window, frame t centred at sample t · hop. Beyond its
    ends the wave is continued by its mirror image, as librosa does before 0.9 (later versions put zeros there, which
    changes the first and the last frames); where it is too short for a mirror image, by zeros.

    Args:
        wave: [..., T], clipped to [−1, 1] first, as they do.
        n_fft: Length of window and transform.
        hop: Samples from one frame to the next.

    Returns:
        [..., n_fft // 2 + 1, T // hop + 1].

    Example:
        >>> log_stft(torch.zeros(3 * 22_050), n_fft=512, hop=353).shape
        torch.Size([257, 188])
    """
    wave = (wave if wave.dtype == torch.float64 else wave.float()).clamp(-1, 1)
    flat = wave.reshape(math.prod(wave.shape[:-1]), wave.shape[-1])
    reach = n_fft // 2
    flat = F.pad(flat, (reach, reach), mode="reflect" if flat.shape[-1] > reach else "constant")
    window = torch.hann_window(n_fft, dtype=wave.dtype, device=wave.device)
    spectrum = torch.stft(flat, n_fft, hop, window=window, center=False, return_complex=True)
    return torch.log(spectrum.abs() + LOWEST_MAGNITUDE).reshape(*wave.shape[:-1], *spectrum.shape[1:])


def fbank(wave: Tensor, rate: int, bins: int = 128) -> Tensor:
    """Kaldi's log mel filter bank, without dither and energy, under a Hann window.

    Frames of 25 ms start every 10 ms, as many as fit whole. Of each frame: its mean is removed; x_i becomes
    x_i − 0.97 x_{i−1}, with x_0 before itself; the symmetric Hann window; zeros up to a power of two; the power
    spectrum; triangles that are equally wide on the mel scale, 1127 ln(1 + f / 700), from 20 Hz to the Nyquist
    frequency; the logarithm, not below that of the float32 epsilon. (What Kaldi calls htk_compat moves the energy, and
    there is none.)

    Args:
        wave: [..., T]. Papers remove its mean first; each frame's own mean is removed in any case.
        rate: Samples per second.
        bins: Triangles.

    Returns:
        [..., frames, bins]; no frames where the wave is shorter than one.

    Example:
        >>> fbank(torch.zeros(16_000), rate=16_000).shape
        torch.Size([98, 128])
    """
    wave = wave if wave.dtype == torch.float64 else wave.float()
    length, shift = int(rate * FRAME_SECONDS), int(rate * SHIFT_SECONDS)
    if wave.shape[-1] < length:
        return wave.new_empty(*wave.shape[:-1], 0, bins)
    frames = wave.unfold(-1, length, shift)
    frames = frames - frames.mean(dim=-1, keepdim=True)
    frames = frames - PRE_EMPHASIS * torch.cat([frames[..., :1], frames[..., :-1]], dim=-1)
    frames = frames * torch.hann_window(length, periodic=False, dtype=wave.dtype, device=wave.device)
    padded = 1 << (length - 1).bit_length()
    power = torch.fft.rfft(frames, n=padded).abs() ** 2
    triangles = mel_triangles(rate, padded, bins).to(wave)
    return torch.log((power @ triangles.T).clamp(min=LOWEST_ENERGY))


def kinetics_fbank(wave: Tensor, rate: int, frames: int = KINETICS_FRAMES) -> Tensor:
    """The filter bank as Kinetics-Sounds and MMPareto store it: [..., T] → [..., frames, 128].

    The mean of the wave is removed, frames beyond the count are cut and missing ones are zero, then everything, the
    missing frames included, becomes (x + 4.503877) / (2 · 5.141276).
    """
    bank = fbank(wave - wave.mean(dim=-1, keepdim=True), rate)[..., :frames, :]
    bank = F.pad(bank, (0, 0, 0, frames - bank.shape[-2]))
    return (bank - KINETICS_MEAN) / (2 * KINETICS_DEVIATION)
