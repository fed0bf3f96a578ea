"""Comparisons of modalities by their scores, in log space so that nothing overflows."""

from __future__ import annotations

import torch
from torch import Tensor

# exp of anything beyond is as good as infinite for a hyperbolic tangent, and still a number.
_LARGEST = 80.0


def ratios(scores: Tensor) -> Tensor:
    """ρ_m = mean over j ≠ m of s_m / s_j, from log scores [K]; one for a single modality."""
    count = len(scores)
    if count == 1:
        return torch.ones_like(scores)
    pairs = (scores[:, None] - scores[None, :]).clamp(-_LARGEST, _LARGEST).exp()
    return (pairs.sum(dim=1) - 1) / (count - 1)  # the diagonal is one


def mean_of_others(values: Tensor) -> Tensor:
    """For each entry the mean of the others; itself where there are none."""
    count = len(values)
    return values if count == 1 else (values.sum() - values) / (count - 1)
