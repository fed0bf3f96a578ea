"""The paper's theory as functions: the smooth maximum and its gap, constants and bounds, and estimates of the optimum.

The optimum f* is the loss that each modality could reach alone. Zero, and numbers per modality, need no code:
``optimum=None`` and ``optimum={"audio": 0.3, "video": 0.1}``; `least_squares` and `Trajectory` are the others. (A
running minimum is not offered: it makes every gap zero, and the maximum of gaps a plain average.)
"""

import math
from collections.abc import Iterable, Mapping
from typing import final

import torch
from torch import Tensor

from equipoise.balance.tensors import wide


def least_norm(gram: Tensor) -> Tensor:
    """Weights of the shortest vector in the convex hull of some gradients, from their inner products.

    Two gradients have a closed form. Up to nine are solved exactly, by trying every support at once (2ⁿ − 1 linear
    systems of size n); more by a fixed number of steps of an interior-point method. None of them waits for the device.
    The mixture is longer than the shortest by at most 1e-6 of the longest gradient, or by 1e-3 for a Gramian in single
    precision: about the square root of what rounding does to inner products.

    Of three or more gradients, one of length zero is that of a loss that does not reach the block: it takes no part.

    Args:
        gram: Inner products, shape [..., n, n].

    Returns:
        Weights on the simplex, shape [..., n].

    Example:
        >>> least_norm(torch.tensor([[4.0, 0.0], [0.0, 1.0]]))
        tensor([0.2000, 0.8000])
    """
    count = gram.shape[-1]
    if count == 1:
        return torch.ones_like(gram[..., 0])
    if count == 2:
        first, second, inner = gram[..., 0, 0], gram[..., 1, 1], gram[..., 0, 1]
        apart = first + second - 2 * inner
        share = torch.where(apart == 0, 0.5, (second - inner) / apart).clamp(0, 1)
        return torch.stack([share, 1 - share], dim=-1)
    products = gram.to(wide([gram]))
    # In units of each gradient's own length, so that short gradients count as much as long ones: with weights y / d for
    # gradients of lengths d, the squared length of the mixture is yᵀ C y with C the cosines.
    squared = products.diagonal(dim1=-2, dim2=-1)
    zero = squared <= 0
    absent = zero > zero.all(dim=-1, keepdim=True)
    length = torch.where(zero, 1.0, squared).sqrt().masked_fill(absent, torch.inf)
    cosines = products / length[..., :, None] / length[..., None, :]
    inverse = length.amin(dim=-1, keepdim=True) / length  # at most one
    # Up to a factor above zero, solutions of (C + a aᵀ) y = a with a = 1/d are those of C y ∝ a. The factor depends on
    # the squared length of the mixture, which may be zero, or below zero by rounding.
    bordered = cosines + inverse[..., :, None] * inverse[..., None, :]
    solution = _over_all_supports(cosines, bordered, inverse) if count <= 9 else _interior_point(bordered, inverse)
    raw = solution * inverse
    return (raw / raw.sum(dim=-1, keepdim=True)).to(gram.dtype)


_RIDGE = 1e-13  # far below the data; it makes equal gradients solvable, and moves the answer by as little


def _over_all_supports(cosines: Tensor, bordered: Tensor, inverse: Tensor) -> Tensor:
    """Solve for every support, and return the solution of the shortest mixture without negative weights."""
    count = cosines.shape[-1]
    numbers = torch.arange(1, 2**count, device=cosines.device)
    support = ((numbers[:, None] >> torch.arange(count, device=cosines.device)) & 1).to(cosines.dtype)
    outside = torch.eye(count, device=cosines.device, dtype=cosines.dtype) * (1 + _RIDGE - support)[:, None, :]
    systems = bordered[..., None, :, :] * (support[:, :, None] * support[:, None, :]) + outside
    solution, _ = torch.linalg.solve_ex(systems, (inverse[..., None, :] * support)[..., None])
    solution = solution[..., 0]
    feasible = (solution >= -1e-9 * solution.abs().amax(dim=-1, keepdim=True)).all(dim=-1)
    solution = solution.clamp(min=0)
    lengths = (solution @ cosines * solution).sum(dim=-1) / (solution @ inverse[..., None])[..., 0].square()
    best = torch.where(feasible & (lengths < torch.inf), lengths, torch.inf).argmin(dim=-1)
    return torch.gather(solution, -2, best[..., None, None].expand(*best.shape, 1, count)).squeeze(-2)


def _interior_point(bordered: Tensor, inverse: Tensor, steps: int = 20) -> Tensor:
    """Minimise ½ yᵀ (C + a aᵀ) y − aᵀ y over y ≥ 0 by Mehrotra's predictor and corrector, from y = z = 1.

    z = (C + a aᵀ) y − a is the slack of each condition of optimality, and y z goes to zero. Twenty steps leave 1e-8 of
    the longest gradient, whatever the number of gradients; one that is not finite is not taken.
    """
    wanted = torch.where(inverse > 0, inverse, -1.0)  # what is absent stays outside
    y, z = torch.ones_like(inverse), torch.ones_like(inverse)
    for _ in range(steps):
        residual = (bordered @ y[..., None])[..., 0] - wanted
        systems = bordered + torch.diag_embed(z / y + _RIDGE)
        along = -_solve(systems, residual)
        slack = -z - z * along / y
        size = _step(along / y, slack / z)
        left = ((y + size * along) * (z + size * slack)).mean(dim=-1, keepdim=True)
        centre = (y * z).mean(dim=-1, keepdim=True)
        aim = (centre * (left / centre) ** 3 - along * slack) / y
        along = _solve(systems, aim - residual)
        slack = aim - z - z * along / y
        size = 0.99 * _step(along / y, slack / z)
        moved = torch.stack([y + size * along, z + size * slack])
        taken = ((moved > 0) & moved.isfinite()).all(dim=0).all(dim=-1, keepdim=True)
        y, z = torch.where(taken, moved, torch.stack([y, z])).unbind()
    return y


def _solve(systems: Tensor, right: Tensor) -> Tensor:
    """Solve each system twice: for a batch of one, CUDA takes a solver that may not be recorded in a graph."""
    twice = torch.stack([systems, systems]), torch.stack([right, right])
    return torch.linalg.solve_ex(twice[0], twice[1][..., None])[0][0, ..., 0]


def _step(*relative: Tensor) -> Tensor:
    """Return the largest step of at most one that leaves nothing below zero, from changes relative to the values."""
    return 1 / (-torch.stack(relative)).amax(dim=0).amax(dim=-1, keepdim=True).clamp(min=1)


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


def relative_smoothing(gaps: Tensor, share: float) -> Tensor:
    """A smoothing in proportion to the gaps: μ = share · max_k |gap_k| / log K.

    The smooth maximum then exceeds the maximum by at most that share of the largest gap, and no exponent gap_k / μ
    exceeds log K / share, whatever the scale of the losses: nothing overflows. Gaps of minus infinity, of sensors that
    no sample has, do not count. Where all gaps are zero, or K is one, any μ gives the same weights: one.

    Example:
        >>> relative_smoothing(torch.tensor([2.0, 1.0]), 0.1)  # 0.1 · 2 / log 2
        tensor(0.2885)
    """
    largest = torch.where(gaps.isfinite(), gaps.abs(), 0.0).amax(dim=-1)
    smoothing = largest * (share / math.log(max(gaps.shape[-1], 2)))
    return torch.where(smoothing > 0, smoothing, 1.0)


def smoothness(fused: float, unimodal: Iterable[tuple[float, float]], penalty: float, smoothing: float) -> float:
    """A smoothness constant of the penalised objective: L_mm + λ · Σ_k (L_k + G_k² / μ).

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

    Record it while training uni-modally, then give it to a method: ``optimum=trajectory``. After its
    last step it stays at its final value. ``final`` gives the numbers at the end, for
    ``optimum=trajectory.final()``.

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

    def losses(self) -> dict[str, Tensor]:
        """Return what was recorded, per modality one value per step."""
        if not self._losses:
            raise ValueError(
                "trajectory: nothing was recorded; call trajectory.record(losses) in each step of the uni-modal run"
            )
        return {name: torch.stack(losses) for name, losses in self._losses.items()}

    def values(self) -> dict[str, Tensor]:
        """f*_k(t) per modality, as one tensor of all steps."""
        return {name: _moving_mean(losses, self.smooth) for name, losses in self.losses().items()}

    def final(self) -> dict[str, float]:
        """Return the loss that each uni-modal model had reached in the end."""
        return {name: float(values[-1]) for name, values in self.values().items()}

    def state_dict(self) -> dict[str, Tensor]:
        """Return what was recorded, to be saved with a run."""
        return {name: torch.stack(losses) for name, losses in self._losses.items()}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Load what `state_dict` returned, in place of what was recorded."""
        self._losses = {name: list(losses.unbind()) for name, losses in state.items()}


def _moving_mean(values: Tensor, width: int) -> Tensor:
    sums = torch.cat([values.new_zeros(1, dtype=torch.float64), values.double().cumsum(0)])
    ends = torch.arange(1, len(values) + 1, device=values.device)
    starts = (ends - width).clamp(min=0)
    return ((sums[ends] - sums[starts]) / (ends - starts)).float()
