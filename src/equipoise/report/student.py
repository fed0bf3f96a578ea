"""Student's t distribution, as far as an interval needs it."""

from __future__ import annotations

import math
from functools import cache


@cache  # every line of a table asks for the same few
def two_sided_quantile(confidence: float, freedom: int) -> float:
    """The t with P(|T| ≤ t) = ``confidence`` for a T of Student's distribution, found by bisection.

    Args:
        confidence: Between 0 and 1, for example 0.95.
        freedom: Degrees of freedom, at least 1.

    Example:
        >>> round(two_sided_quantile(0.95, 9), 3)
        2.262
    """
    if not 0 < confidence < 1 or freedom < 1:
        msg = f"expected 0 < confidence < 1 and freedom ≥ 1, found {confidence} and {freedom}"
        raise ValueError(msg)
    low, high = 0.0, 1.0
    while _inside(high, freedom) < confidence:
        low, high = high, 2 * high
    while True:
        middle = (low + high) / 2
        if middle in (low, high):
            return middle
        low, high = (middle, high) if _inside(middle, freedom) < confidence else (low, middle)


def _inside(t: float, freedom: int) -> float:
    """P(|T| ≤ t) = 1 − I_x(ν/2, 1/2) with x = ν / (ν + t²)."""
    return 1 - _incomplete_beta(freedom / 2, 0.5, freedom / (freedom + t * t))


def _incomplete_beta(a: float, b: float, x: float) -> float:
    """The regularised incomplete beta function I_x(a, b)."""
    if x <= 0 or x >= 1:
        return float(x >= 1)
    # The continued fraction converges fast on one side of the mean only; the symmetry I_x(a, b) = 1 − I_{1−x}(b, a)
    # brings every x to that side.
    if x > (a + 1) / (a + b + 2):
        return 1 - _incomplete_beta(b, a, 1 - x)
    log_factor = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)
    return math.exp(log_factor) / (a * _fraction(a, b, x))


def _fraction(a: float, b: float, x: float) -> float:
    """The continued fraction 1 + d₁/(1 + d₂/(1 + …)) of I_x(a, b), by Lentz's method."""
    tiny = 1e-300
    value, numerator, denominator = 1.0, 1.0, 0.0
    for step in range(1, 100_000):
        m = step // 2
        if step % 2:
            d = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        else:
            d = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        numerator = 1 + d / numerator or tiny
        denominator = 1 / (1 + d * denominator or tiny)
        value *= numerator * denominator
        if abs(numerator * denominator - 1) < 1e-15:
            break
    return value
