"""The paper's theory as functions: the smooth maximum and its gap, constants and bounds, and estimates of the optimum.

The optimum f* is the loss that each modality could reach alone. Zero, and numbers per modality, need no code:
``MIMO(optimum=None)`` and ``MIMO(optimum={"audio": 0.3, "video": 0.1})``; `least_squares` and `Trajectory` are the
others. (A running minimum is not offered: it makes every gap zero, and MIMO a plain average.)
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import final

import torch
from torch import Tensor


def smooth_maximum(values: Tensor, smoothing: Tensor | float) -> Tensor:
    """μ · log Σ_k exp(values_k / μ) over the last dimension, computed without overflow; μ = 0 is the maximum itself.

    Example:
        >>> smooth_maximum(torch.tensor([1.0, 1.0]), 0.5)  # 1 + 0.5 · log 2
        tensor(1.3466)
    """
    if isinstance(smoothing, (int, float)) and smoothing == 0:
        return values.amax(dim=-1)
    return smoothing * torch.logsumexp(values / smoothing, dim=-1)


def smoothing_gap(modalities: int, smoothing: float) -> float:
    """The most by which the smooth maximum exceeds the maximum: μ · log K. It never falls below it.

    Example:
        >>> round(smoothing_gap(2, 0.1), 4)
        0.0693
    """
    return smoothing * math.log(modalities)


def doubled_smoothing(gaps: Tensor, smoothing: float) -> Tensor:
    """The paper's rule against overflow: μ doubled until every exponent gap_k / μ fits the dtype of ``gaps``.

    In closed form: the number of doublings is ⌈log2(max gap / (μ · limit))⌉, read off the binary exponent.

    Example:
        >>> doubled_smoothing(torch.tensor([1.79, 1.70]), 0.01)  # 179 > 88.7, 89.5 > 88.7, 44.8 fits
        tensor(0.0400)
    """
    limit = math.log(torch.finfo(gaps.dtype).max)
    mantissa, exponent = torch.frexp(gaps.amax(dim=-1).clamp(min=0) / (smoothing * limit))
    doublings = torch.where(mantissa > 0.5, exponent, exponent - 1).clamp(min=0)
    return torch.ldexp(torch.full_like(mantissa, smoothing), doublings)


def smoothness(fused: float, unimodal: Iterable[tuple[float, float]], penalty: float, smoothing: float) -> float:
    """A smoothness constant of MIMO's objective: L_mm + λ · Σ_k (L_k + G_k² / μ).

    Args:
        fused: L_mm, the smoothness constant of the fused loss.
        unimodal: Per modality L_k and G_k, the smoothness and the Lipschitz constant of its loss.
        penalty: λ.
        smoothing: μ, above zero.

    Example:
        >>> smoothness(1.0, [(2.0, 1.0), (3.0, 2.0)], penalty=10.0, smoothing=0.5)
        151.0
    """
    if smoothing <= 0:
        raise ValueError(f"smoothing: the objective is smooth for μ > 0 only, found {smoothing}")
    return fused + penalty * sum(bend + slope**2 / smoothing for bend, slope in unimodal)


def safe_step(fused: float, unimodal: Iterable[tuple[float, float]], penalty: float, smoothing: float) -> float:
    """The largest learning rate for which the paper proves descent: one over the smoothness constant.

    Example:
        >>> safe_step(1.0, [(2.0, 1.0), (3.0, 2.0)], penalty=10.0, smoothing=0.5) == 1 / 151
        True
    """
    return 1.0 / smoothness(fused, unimodal, penalty, smoothing)


def pl_constant(correlation: Tensor, encoder: Tensor, head: Tensor) -> float:
    """The Polyak–Łojasiewicz constant of a two-layer linear model where it stands: ‖∇f‖² ≥ constant · (f − f*) there.

    4 λ_min(C) (‖ϑ‖² + σ_min(θ)²) for f = mean (y − ϑᵀθᵀx)². σ_min counts as zero where the encoder is narrower than its
    input. It vanishes with the weights: no constant above zero holds everywhere.

    Args:
        correlation: C, the mean of xxᵀ, [D, D].
        encoder: θ, [D, H].
        head: ϑ, [H].

    Example:
        >>> pl_constant(torch.eye(2), torch.tensor([[1.0, 0.0], [0.0, 2.0]]), torch.tensor([3.0, 0.0]))
        40.0
    """
    least = float(torch.linalg.svdvals(encoder)[-1]) if encoder.shape[1] >= encoder.shape[0] else 0.0
    return 4 * float(torch.linalg.eigvalsh(correlation)[0]) * (float(head.square().sum()) + least**2)


def kl_bound(constant: float, modalities: int, gap: float) -> float:
    """Proposition 2: the least squared length of a subgradient of the largest gap g, (constant / K) · g.

    It follows from the Polyak–Łojasiewicz condition of every modality, with that constant; the K is for ties.

    Example:
        >>> kl_bound(4.0, 2, gap=0.5)
        1.0
    """
    return constant * gap / modalities


def gap_bound(
    penalty: float, slope: float, constant: float, modalities: int, accuracy: float = 0.0, bend: float = 0.0
) -> float:
    """Theorem 1 with its constants: the most that the largest gap can be at a solution of the penalised problem.

    (K / constant) · ((G + √(2 · accuracy · (L_mm + λ L))) / λ)². It falls as 1/λ² for an exact solution, and for one
    that is exact to the order of 1/λ.

    Args:
        penalty: λ.
        slope: G, the norm of the fused loss's gradient in the encoders at the solution.
        constant: Of the Polyak–Łojasiewicz condition, the least over modalities.
        modalities: K.
        accuracy: By how much the penalised objective is above its least value nearby.
        bend: L_mm + λ L of the penalised objective, L the largest smoothness constant of a modality.

    Example:
        >>> gap_bound(8.0, slope=1.0, constant=2.0, modalities=2)
        0.015625
    """
    return modalities / constant * ((slope + math.sqrt(2 * accuracy * bend)) / penalty) ** 2


def penalty_for(gap: float, slope: float, constant: float, modalities: int) -> float:
    """The λ from which on no modality is further than a gap from its optimum at a solution; the inverse of `gap_bound`.

    Example:
        >>> round(penalty_for(0.01, slope=1.0, constant=2.0, modalities=2), 6)
        10.0
    """
    return slope * math.sqrt(modalities / (constant * gap))


@torch.no_grad()
def least_squares(inputs: Mapping[str, Tensor], target: Tensor, *, intercept: bool = False) -> dict[str, float]:
    """The exact optimum of linear encoders with linear heads under the mean squared error.

    Args:
        inputs: Per modality an array [N, D].
        target: What is regressed on, [N] or [N, outputs].
        intercept: Whether the model has biases.

    Returns:
        Per modality the smallest mean of (target − prediction)² over samples and outputs.

    Example:
        >>> least_squares({"ruler": torch.tensor([[1.0], [2.0]])}, torch.tensor([2.0, 4.0]))["ruler"] < 1e-12
        True
    """
    optimum = {}
    wanted = target.double().reshape(len(target), -1)
    for name, array in inputs.items():
        if array.dim() != 2 or len(array) != len(target):
            shape = tuple(array.shape)
            raise ValueError(f"least_squares: {name!r} should be an array [{len(target)}, D], found {shape}")
        known = array.double()
        if intercept:
            known = torch.cat([known, torch.ones_like(known[:, :1])], dim=1)
        # The pseudo-inverse gives the optimum for dependent columns too.
        residual = wanted - known @ (torch.linalg.pinv(known) @ wanted)
        optimum[name] = float(residual.square().mean())
    return optimum


@final
class Trajectory:
    """The losses that uni-modal models reached at each step, f*_k(t), so that a hard sensor is not asked for too much.

    Record it while training uni-modally (`Unimodal`), then give it to MIMO: ``MIMO(optimum=trajectory)``. After its
    last step it stays at its final value. ``final`` gives the numbers at the end, for
    ``MIMO(optimum=trajectory.final())``.

    Args:
        smooth: Losses of single batches are noisy; each value is the mean over this many steps up to it.

    Example:
        >>> trajectory = Trajectory(smooth=2)
        >>> for step in range(3):
        ...     trajectory.record({"audio": torch.tensor(3.0 - step)})
        >>> trajectory.values()["audio"]
        tensor([3.0000, 2.5000, 1.5000])
        >>> trajectory.final()
        {'audio': 1.5}
    """

    def __init__(self, smooth: int = 20) -> None:
        if smooth < 1:
            raise ValueError(f"smooth: expected at least one step, found {smooth}")
        self.smooth = smooth
        self._losses: dict[str, list[Tensor]] = {}

    def record(self, losses: Mapping[str, Tensor]) -> None:
        """Note the losses of one step, as given to the balancer. Nothing waits for the device."""
        for name, loss in losses.items():
            if name != "fused":
                self._losses.setdefault(name, []).append(loss.detach().mean().float())

    def values(self) -> dict[str, Tensor]:
        """f*_k(t) per modality, as one tensor of all steps."""
        if not self._losses:
            raise ValueError(
                "trajectory: nothing was recorded; call trajectory.record(losses) in each step of the uni-modal run"
            )
        return {name: _moving_mean(torch.stack(losses), self.smooth) for name, losses in self._losses.items()}

    def final(self) -> dict[str, float]:
        """Return the loss that each uni-modal model had reached in the end."""
        return {name: float(values[-1]) for name, values in self.values().items()}


def _moving_mean(values: Tensor, width: int) -> Tensor:
    sums = torch.cat([values.new_zeros(1, dtype=torch.float64), values.double().cumsum(0)])
    ends = torch.arange(1, len(values) + 1, device=values.device)
    starts = (ends - width).clamp(min=0)
    return ((sums[ends] - sums[starts]) / (ends - starts)).float()
