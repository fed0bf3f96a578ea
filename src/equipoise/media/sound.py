"""Sound files in, one channel of float32 samples out."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch.nn import functional as F

from equipoise.media.container import MISSING_AT_MOST, check_header, decoded, opened
from equipoise.util.errors import Unreadable
from equipoise.util.files import reading

if TYPE_CHECKING:
    from av import AudioFrame
    from soundfile import SoundFile

MOST_SAMPLES = 3600 * 48_000  # an hour, 0.7 GB: a header may claim anything
LOWEST_RATE, HIGHEST_RATE = 1_000, 1_000_000
BLOCK = 65_536

ZERO_CROSSINGS = 6  # of the sinc to each side
ROLLOFF = 0.99  # where the filter cuts, as a part of the lower Nyquist frequency
PHASES_AT_ONCE = 64


def read_sound(path: str | Path, rate: int | None = None) -> tuple[np.ndarray, int]:
    """Read a sound, or the sound track of a video.

    Args:
        path: wav, flac, ogg or aiff through soundfile; the rest (mp3, flv, mp4, avi, webm) through PyAV.
        rate: Samples per second wanted; None keeps what the file has.

    Returns:
        float32 [T], the mean of the channels, with full scale at ±1; and its rate.

    Raises:
        Unreadable: If it is broken, cut short, without sound, or longer than an hour at 48 kHz.
    """
    if rate is not None and not LOWEST_RATE <= rate <= HIGHEST_RATE:
        raise ValueError(f"expected a rate of {LOWEST_RATE} to {HIGHEST_RATE} samples per second, found {rate}")
    with reading(path) as path:
        wave, own_rate = _through_soundfile(path) or _through_av(path)
        if not np.isfinite(wave).all():
            raise Unreadable(f"{path}: {np.count_nonzero(~np.isfinite(wave))} of its samples are no finite numbers")
        if rate is None or rate == own_rate:
            return wave, own_rate
        _check_length(path, len(wave) * rate // own_rate)
        return resample(wave, own_rate, rate), rate


def tile(wave: np.ndarray, samples: int) -> np.ndarray:
    """Repeat a sound until it has that many samples, or cut it to as many.

    Example:
        >>> tile(np.array([1, 2, 3]), 7).tolist()
        [1, 2, 3, 1, 2, 3, 1]
    """
    if not len(wave):
        raise ValueError("expected a sound of at least one sample to repeat, found none")
    return np.resize(wave, samples)


def resample(wave: np.ndarray, before: int, after: int) -> np.ndarray:
    """Change the rate of a sound by a windowed sinc: [T] → [⌈T · after / before⌉], float32.

    Output n is Σ_k x_k g(n / after − k / before), where g is the low-pass sinc that cuts at 0.99 of the lower Nyquist
    frequency, under a squared cosine (Hann) that ends at its sixth zero crossing. Beyond its ends x is zero.

    Args:
        wave: The samples.
        before: Their rate.
        after: The rate wanted.
    """
    wave = np.ascontiguousarray(wave, dtype=np.float32)
    common = math.gcd(before, after)
    before, after = before // common, after // common
    if before == after or not len(wave):
        return wave.copy()
    cut = min(before, after) * ROLLOFF
    reach = math.ceil(ZERO_CROSSINGS * before / cut)  # how many inputs to each side matter
    count = math.ceil(len(wave) * after / before)
    rounds = math.ceil(count / after)  # every `before` inputs and `after` outputs, both grids meet and all repeats
    padded = F.pad(torch.from_numpy(wave), (reach, reach + rounds * before - len(wave)))
    out = torch.empty(rounds, after)
    # Neighbouring outputs look at nearly the same inputs: a kernel for a few of them at a time stays small even where
    # the rates have no common divisor, and one for all would take gigabytes.
    for first in range(0, after, PHASES_AT_ONCE):
        phase = torch.arange(first, min(first + PHASES_AT_ONCE, after), dtype=torch.float64)
        start, end = first * before // after, int(phase[-1]) * before // after
        place = torch.arange(start - reach, end + reach + 1, dtype=torch.float64)
        distance = ((place / before - phase[:, None] / after) * cut).clamp(-ZERO_CROSSINGS, ZERO_CROSSINGS)
        kernel = torch.sinc(distance) * torch.cos(distance * math.pi / (2 * ZERO_CROSSINGS)) ** 2 * cut / before
        stretch = padded[start : start + (rounds - 1) * before + len(place)]
        out[:, first : first + len(phase)] = F.conv1d(stretch[None, None], kernel.float()[:, None], stride=before)[0].T
    return out.flatten()[:count].numpy()


def _through_soundfile(path: Path) -> tuple[np.ndarray, int] | None:
    """Read a sound; None where it is not of a format for libsndfile."""
    import soundfile

    with path.open("rb") as start:
        head = start.read(12)
    # MP3 is not among them: the decoder in libsndfile writes what it dislikes to the terminal.
    if head[:4] not in {b"fLaC", b"OggS", b"RF64"} and head[:4] + head[8:] not in {
        b"RIFFWAVE",
        b"FORMAIFF",
        b"FORMAIFC",
    }:
        return None
    check_header(path)
    try:
        file = soundfile.SoundFile(path)
    except (soundfile.LibsndfileError, TypeError):  # a codec that it does not know, or a suffix that it takes amiss
        return None
    with file:
        if file.subtype.startswith("MPEG"):
            return None
        return _joined(path, _blocks(file))


def _blocks(file: SoundFile) -> Iterator[tuple[np.ndarray, int]]:
    while len(block := file.read(BLOCK, dtype="float32", always_2d=True)):  # file.blocks would believe the header
        yield block.mean(axis=1), file.samplerate


def _through_av(path: Path) -> tuple[np.ndarray, int]:
    with opened(path, "audio") as (container, stream):
        wave, rate = _joined(path, ((_mono(frame), frame.sample_rate) for frame in decoded(container, stream)))
        # Of the formats that come here, mp3 alone has the length of its sound as the only sign that some is missing.
        if container.format.name == "mp3" and stream.duration is not None and stream.time_base is not None:
            stated = float(stream.duration * stream.time_base)
            if len(wave) / rate < (1 - MISSING_AT_MOST) * stated:
                raise Unreadable(f"{path}: cut short, {len(wave) / rate:.2f} s of the {stated:.2f} its header states")
        return wave, rate


def _mono(frame: AudioFrame) -> np.ndarray:
    samples = frame.to_ndarray()
    if not frame.format.is_planar:
        samples = samples.reshape(-1, frame.layout.nb_channels).T
    mean = samples.mean(axis=0, dtype=np.float64)
    if samples.dtype == np.uint8:
        mean = mean / 128 - 1
    elif samples.dtype.kind == "i":
        mean = mean / 2 ** (8 * samples.dtype.itemsize - 1)
    return mean.astype(np.float32)


def _joined(path: Path, blocks: Iterable[tuple[np.ndarray, int]]) -> tuple[np.ndarray, int]:
    """Join the blocks of a sound, and return its rate, which has to be that of each."""
    waves: list[np.ndarray] = []
    first = count = 0
    for wave, rate in blocks:
        first = first or rate
        if not LOWEST_RATE <= rate <= HIGHEST_RATE:
            raise Unreadable(f"{path}: expected {LOWEST_RATE} to {HIGHEST_RATE} samples per second, it states {rate}")
        if rate != first:
            raise Unreadable(f"{path}: its rate changes from {first} to {rate} samples per second")
        waves.append(wave)
        count += len(wave)
        _check_length(path, count)
    if not count:
        raise Unreadable(f"{path}: a sound without samples")
    return np.concatenate(waves), first


def _check_length(path: Path, samples: int) -> None:
    if samples > MOST_SAMPLES:
        raise Unreadable(f"{path}: longer than {MOST_SAMPLES} samples, an hour at 48 kHz; cut it into clips")
