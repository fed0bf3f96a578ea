"""Paired differences, with intervals: what the studies of this folder print."""

import math
from collections.abc import Sequence

import numpy as np
from scipy import stats


def interval(differences: Sequence[float]) -> str:
    """Return the mean of differences with its 95 % interval by Student's t, in words."""
    mean, error = np.mean(differences), np.std(differences, ddof=1) / math.sqrt(len(differences))
    half = float(stats.t.ppf(0.975, len(differences) - 1)) * error
    return f"{mean:+.1f} ({mean - half:+.1f} to {mean + half:+.1f})"
