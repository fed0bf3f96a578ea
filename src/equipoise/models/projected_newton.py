"""Minimise a smooth convex function over vectors without negative entries."""

from collections.abc import Callable

import torch
from torch import Tensor

Derivatives = tuple[Tensor, Tensor, Tensor]
"""A function's value [], gradient [M] and positive definite Hessian [M, M]."""


def minimise_without_negatives(function: Callable[[Tensor], Derivatives], start: Tensor) -> Tensor:
    """Find the w ≥ 0 of least value, by Newton steps projected onto w ≥ 0.

    Entries at zero that the gradient holds there step along the gradient, all others along the Newton direction of
    their own
    block: Newton's step through the whole Hessian, once projected, may go uphill. From "Projected Newton Methods for
    Optimization Problems with Simple Constraints" (Bertsekas, 1982).

    Args:
        function: Gives value, gradient and Hessian at w, in float64.
        start: Where to begin, [M] in float64, w ≥ 0.

    Returns:
        The minimiser, [M].
    """
    point = start
    value, gradient, hessian = function(point)
    for _ in range(200):
        residual = float(stationarity(point, gradient))
        if residual < 1e-10:
            break
        held = (point <= min(residual, 1e-3)) & (gradient > 0)
        direction = gradient.clone()
        direction[~held] = torch.linalg.solve(hessian[~held][:, ~held], gradient[~held])

        step = 1.0
        while step > 1e-12:
            candidate = (point - step * direction).clamp(min=0)
            derivatives = function(candidate)
            promised = step * (gradient * direction)[~held].sum() + (gradient * (point - candidate))[held].sum()
            rounding = 1e-15 * (1 + value.abs())
            if derivatives[0] <= value - 1e-4 * promised + rounding:
                break
            step /= 2
        else:
            break  # nothing lower within rounding
        point, (value, gradient, hessian) = candidate, derivatives
    return point


def stationarity(point: Tensor, gradient: Tensor) -> Tensor:
    """Say how far a point is from optimal: the gradient's size where w > 0, its negative part where w = 0."""
    return (point - (point - gradient).clamp(min=0)).abs().max()
