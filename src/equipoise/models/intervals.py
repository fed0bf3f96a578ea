"""Prediction intervals of a regression: split conformal, calibrated for every subset of the sensors.

The answer ± its radius holds the target of a new sample with the given probability where samples are exchangeable with
those of calibration. The radius is the k-th smallest absolute error there, k = ⌈(n + 1) · coverage⌉ of n samples.
Paper: Lei et al., "Distribution-Free Predictive Inference for Regression" (JASA 2018).
"""

import math

import torch
from torch import Tensor

COVERAGE = 0.9
EXACT = 8
"""The most sensors of which every subset has radii of its own."""


def subset_masks(sensors: int) -> Tensor:
    """Return the subsets of the sensors that have radii of their own, booleans [S, K].

    Up to eight sensors all subsets, in the order of binary numbers, the first sensor being the lowest digit; of more,
    all sensors, then all but one each, and last none of them, which stands for all that is left.
    """
    if sensors <= EXACT:
        return (torch.arange(2**sensors)[:, None] >> torch.arange(sensors)) % 2 == 1
    return torch.cat([torch.ones(1, sensors), 1 - torch.eye(sensors), torch.zeros(1, sensors)]).bool()


def new_radii(sensors: int, columns: int) -> Tensor:
    """Return radii that are not calibrated yet, infinite: of the fused head and the committee, [2, S, D]."""
    return torch.full((2, len(subset_masks(sensors)), columns), math.inf)


def rows_of(present: Tensor) -> Tensor:
    """Return the row of the radii that each sample needs, [B], from the sensors it has, booleans [B, K]."""
    sensors = present.shape[1]
    if sensors <= EXACT:
        return (present.long() * 2 ** torch.arange(sensors, device=present.device)).sum(dim=1)
    missing = (~present).long()
    one = 1 + missing.argmax(dim=1)
    count = missing.sum(dim=1)
    return torch.where(count == 0, 0, torch.where(count == 1, one, sensors + 1))


def conformal_radius(errors: Tensor, coverage: float = COVERAGE) -> Tensor:
    """Return the radius of each column, [D], from absolute errors [N, D]; infinite where there are too few of them."""
    count = len(errors)
    rank = math.ceil((count + 1) * coverage)
    if rank > count:
        return torch.full_like(errors[0] if count else errors.new_zeros(errors.shape[1]), math.inf)
    return errors.kthvalue(rank, dim=0).values


def widened_by_missing(radii: Tensor, masks: Tensor) -> Tensor:
    """Raise the radius of each subset to the largest of all subsets that hold it: less is known there.

    Args:
        radii: [S, D].
        masks: The subsets, [S, K].
    """
    holds = (masks[None] | ~masks[:, None]).all(dim=2)  # [S, S]: the second has every sensor of the first
    return torch.where(holds[..., None], radii[None], -math.inf).amax(dim=1)
