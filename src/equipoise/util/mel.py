"""The mel scale: triangles over the frequencies of a spectrum, for filter banks."""

from functools import cache

import torch
from torch import Tensor
from torch.nn import functional as F

LOWEST_HERTZ = 20.0


@cache
def mel_triangles(rate: int, padded: int, bins: int) -> Tensor:
    """The weight of each frequency of the spectrum in each bin, [bins, padded // 2 + 1], float64.

    The triangles are equally wide on the mel scale, 1127 ln(1 + f / 700), from 20 Hz to the Nyquist frequency, which
    itself belongs to no bin, as in Kaldi.

    Args:
        rate: Samples per second.
        padded: Length of the transform.
        bins: Number of triangles.
    """
    with torch.device("cpu"):  # numbers are needed, also while a model is outlined on no device
        low, high = _mel(torch.tensor([LOWEST_HERTZ, rate / 2], dtype=torch.float64)).tolist()
        width = (high - low) / (bins + 1)
        left = low + width * torch.arange(bins, dtype=torch.float64)[:, None]
        mel = _mel(torch.arange(padded // 2, dtype=torch.float64) * rate / padded)
        rising, falling = (mel - left) / width, (left + 2 * width - mel) / width
        return F.pad(torch.minimum(rising, falling).clamp(min=0), (0, 1))


def _mel(hertz: Tensor) -> Tensor:
    return 1127 * torch.log1p(hertz / 700)
