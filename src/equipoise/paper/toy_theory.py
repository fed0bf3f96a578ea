"""Theorem 2 and Propositions 1 and 2 on the toy problem, with constants that hold at a point instead of everywhere."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, final

import torch
from torch import Tensor

from equipoise.balance.theory import kl_bound, least_norm, pl_constant, safe_step, smoothness
from equipoise.methods.mimo import mimo_objective
from equipoise.paper.toy import Recipe, Toy
from equipoise.paper.toy_model import TwoLayer, losses


@final
class Landscape:
    """The losses of the toy as functions of one long vector of all parameters [d], or of many such vectors [P, d].

    Args:
        toy: The data.
        recipe: Sizes, λ and μ.
    """

    def __init__(self, toy: Toy, recipe: Recipe) -> None:
        self.toy, self.recipe = toy, recipe
        self._shapes = {name: each.shape for name, each in TwoLayer(recipe, seed=0).named_parameters()}
        self._optimum = torch.tensor([toy.optimum[name] for name in toy.inputs], dtype=torch.float64)

    def start(self, seed: int) -> Tensor:
        """Where a run with this seed starts."""
        return torch.cat([each.detach().reshape(-1) for each in TwoLayer(self.recipe, seed).parameters()])

    def pieces(self, point: Tensor) -> dict[str, Tensor]:
        """The vector as parameters by name."""
        parts = point.split([shape.numel() for shape in self._shapes.values()], dim=-1)
        named = zip(self._shapes.items(), parts, strict=True)
        return {name: part.reshape(*point.shape[:-1], *shape) for (name, shape), part in named}

    def losses(self, point: Tensor) -> Tensor:
        """The fused loss, then one per modality, [..., 1 + K]."""
        return torch.stack(list(losses(self.pieces(point), self.toy).values()), dim=-1)

    def objective(self, values: Tensor) -> Tensor:
        """MIMO's objective with exact f*, from the losses."""
        recipe = self.recipe
        return mimo_objective(values[..., 0], values[..., 1:], recipe.penalty, recipe.smoothing, self._optimum)

    def gaps(self, point: Tensor) -> Tensor:
        """f_k − f*_k, [..., K]."""
        return self.losses(point)[..., 1:] - self._optimum


# -- Proposition 1: MIMO's objective is smooth with L̂ = L_mm + λ Σ_k (L_k + G_k² / μ) --


class Curvature(NamedTuple):
    """Proposition 1 at points: the largest eigenvalue of the objective's Hessian, and the constant that bounds it."""

    largest: Tensor
    bound: Tensor


def curvature_at(landscape: Landscape, points: Tensor) -> Curvature:
    """Eigenvalues of whole Hessians at points [P, d], so d has to be small.

    L_mm and L_k are the spectral norms of Hessians there, G_k the norms of gradients: the paper's proof holds point by
    point, although none of its constants exists everywhere.
    """
    points = points.detach().requires_grad_()
    values = landscape.losses(points)
    found = [_derivatives(each, points) for each in (landscape.objective(values), *values.unbind(dim=-1))]
    eigenvalues = torch.linalg.eigvalsh(torch.stack([hessian for _, hessian in found], dim=1))
    bends = eigenvalues[:, 1:].abs().amax(dim=-1)
    slopes = torch.stack([gradient.norm(dim=-1) for gradient, _ in found[2:]], dim=1)
    bounds = [_constant(landscape.recipe, bend, slope) for bend, slope in zip(bends, slopes, strict=True)]
    return Curvature(eigenvalues[:, 0, -1], torch.tensor(bounds, dtype=torch.float64))


def _derivatives(values: Tensor, points: Tensor) -> tuple[Tensor, Tensor]:
    """Gradients [P, d] and Hessians [P, d, d] of a function, from its values [P] at points [P, d]."""
    (gradient,) = torch.autograd.grad(values.sum(), points, create_graph=True)
    columns = [torch.autograd.grad(column.sum(), points, retain_graph=True)[0] for column in gradient.unbind(dim=-1)]
    return gradient.detach(), torch.stack(columns, dim=-1)


def _constant(recipe: Recipe, bends: Tensor, slopes: Tensor) -> float:
    pairs = list(zip(bends[1:].tolist(), slopes.tolist(), strict=True))
    return smoothness(float(bends[0]), pairs, recipe.penalty, recipe.smoothing)


# -- Theorem 2: with steps of at most 1/L̂, min_{t<T} ‖∇F‖² ≤ 2 (F_0 − F_T) / Σ η_t --


@final
@dataclass(frozen=True)
class Descent:
    """A run of gradient descent with the local safe step.

    Args:
        values: F_0 … F_T.
        squares: ‖∇F‖² at 0 … T − 1.
        steps: η_0 … η_{T−1}.
        halved: How often a step was halved because the objective rose.
    """

    values: Tensor
    squares: Tensor
    steps: Tensor
    halved: int

    @property
    def smallest(self) -> Tensor:
        """The left side of the theorem for every T: the smallest squared gradient norm so far."""
        return self.squares.cummin(dim=0).values

    @property
    def bound(self) -> Tensor:
        """The right side for every T: 2 (F_0 − F_T) / Σ η_t."""
        return 2 * (self.values[0] - self.values[1:]) / self.steps.cumsum(dim=0)


def safe_descent(landscape: Landscape, seed: int, steps: int, rounds: int = 2) -> Descent:
    """Gradient descent on MIMO's objective with η = 1/L̂ of where it stands, halved where the objective would rise.

    The constants come from power iteration on Hessian-vector products, which approaches them from below; and they hold
    at a point, not along the step. Hence the halving.

    Args:
        landscape: The objective.
        seed: Of the start.
        steps: T.
        rounds: Rounds of power iteration per step; each continues where the step before ended.
    """
    point, recipe = landscape.start(seed), landscape.recipe
    random = torch.Generator().manual_seed(seed)
    directions = torch.randn(1 + len(recipe.names), len(point), generator=random, dtype=point.dtype)
    values, squares, taken, halved = [], [], [], 0
    for step in range(steps):
        local, directions = local_constants(landscape, point, directions, rounds if step else 10 * rounds)
        rate = safe_step(local.bends[0], list(zip(local.bends[1:], local.slopes, strict=True)), recipe.penalty,
                         recipe.smoothing)  # fmt: skip
        while _value(landscape, point - rate * local.gradient) > local.value:
            rate, halved = rate / 2, halved + 1
        point = point - rate * local.gradient
        values.append(local.value)
        squares.append(float(local.gradient.square().sum()))
        taken.append(rate)
    values.append(_value(landscape, point))
    return Descent(*(torch.tensor(each, dtype=torch.float64) for each in (values, squares, taken)), halved)


class Local(NamedTuple):
    """MIMO's objective at a point.

    Args:
        value: F.
        gradient: ∇F.
        bends: L_mm, L_1, …, L_K: spectral norms of Hessians, from below.
        slopes: G_1, …, G_K: norms of gradients.
    """

    value: float
    gradient: Tensor
    bends: list[float]
    slopes: list[float]


def local_constants(landscape: Landscape, point: Tensor, directions: Tensor, rounds: int) -> tuple[Local, Tensor]:
    """What the safe step needs, by power iteration.

    Args:
        landscape: The objective.
        point: Where, [d].
        directions: One per loss to start the iteration from, [1 + K, d].
        rounds: Hessian-vector products per loss.

    Returns:
        The constants, and the directions for the next point to go on from.
    """
    point = point.detach().requires_grad_()
    values = landscape.losses(point)
    objective = landscape.objective(values)
    (gradient,) = torch.autograd.grad(objective, point, retain_graph=True)
    slopes = [torch.autograd.grad(value, point, create_graph=True)[0] for value in values]
    bends = [0.0] * len(slopes)
    directions = directions / directions.norm(dim=1, keepdim=True)
    for _ in range(rounds):
        products = [
            torch.autograd.grad(slope, point, direction, retain_graph=True)[0]
            for slope, direction in zip(slopes, directions, strict=True)
        ]
        bends = [float(product.norm()) for product in products]
        directions = torch.stack([product / (size or 1.0) for product, size in zip(products, bends, strict=True)])
    norms = [float(slope.detach().norm()) for slope in slopes[1:]]
    return Local(float(objective.detach()), gradient, bends, norms), directions


@torch.no_grad()
def _value(landscape: Landscape, point: Tensor) -> float:
    return float(landscape.objective(landscape.losses(point)))


# -- Proposition 2: dist(0, ∂g)² ≥ (μ/K) g for the largest gap g --


class Tied(NamedTuple):
    """Proposition 2 at a point where the gaps of all modalities are equal.

    Args:
        gaps: The gap of each modality.
        distance: dist(0, ∂g)², the shortest convex combination of the gradients, squared.
        bound: μ g / K with the local μ = min_k 4 λ_min(C_k) (‖ϑ_k‖² + σ_min(θ_k)²).
    """

    gaps: list[float]
    distance: float
    bound: float


def tied_point(landscape: Landscape, seed: int) -> Tensor:
    """Random weights, with heads stretched or shrunk until the gaps of all modalities agree."""
    random = torch.Generator().manual_seed(seed)
    count = len(landscape.start(0))
    weights = torch.randn(count, generator=random, dtype=torch.float64) / landscape.recipe.hidden**0.5
    pieces = landscape.pieces(weights)
    lines = {name: _gap_along_head(landscape.toy, name, pieces) for name in landscape.toy.inputs}
    # Along its head a gap can grow without end but not fall below its least: tie them above the largest of these.
    common = 1.5 * max(float(least) for least, _, _ in lines.values())
    for name, (least, middle, bend) in lines.items():
        pieces[f"heads.{name}"] = pieces[f"heads.{name}"] * (middle + ((common - least) / bend).sqrt())
    return torch.cat([piece.reshape(-1) for piece in pieces.values()])


def largest_gap_at(landscape: Landscape, point: Tensor) -> Tied:
    """Both sides of Proposition 2 at a point where gaps are equal."""
    pieces, gaps = landscape.pieces(point), landscape.gaps(point)
    gradients = torch.autograd.functional.jacobian(landscape.gaps, point)
    assert isinstance(gradients, Tensor)
    gram = gradients @ gradients.T
    shares = least_norm(gram)
    constant = min(_pl_constant(landscape.toy, name, pieces) for name in landscape.toy.inputs)
    bound = kl_bound(constant, len(gaps), float(gaps.max()))
    return Tied(gaps.tolist(), float(shares @ gram @ shares), bound)


def _gap_along_head(toy: Toy, name: str, pieces: dict[str, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    """The gap as a function of a factor s on the head is least + bend · (s − middle)²."""
    inputs, target = toy.correlations.inputs[name, name], toy.correlations.target[name]
    weights = pieces[f"encoders.{name}"] @ pieces[f"heads.{name}"]
    bend = weights @ inputs @ weights
    middle = (weights @ target) / bend
    rest = torch.linalg.solve(inputs, target) - middle * weights
    return rest @ inputs @ rest, middle, bend


def _pl_constant(toy: Toy, name: str, pieces: dict[str, Tensor]) -> float:
    """μ with ‖∇f_k‖² ≥ μ (f_k − f*_k) here: 4 λ_min(C_k) (‖ϑ_k‖² + σ_min(θ_k)²), σ_min being zero where H < D.

    With p = 2 C_k (θ_k ϑ_k − w_k), w_k the least-squares solution: ‖∇f_k‖² = ‖p‖² ‖ϑ_k‖² + ‖θ_kᵀ p‖², and the gap is
    ¼ pᵀ C_k⁻¹ p.
    """
    return pl_constant(toy.correlations.inputs[name, name], pieces[f"encoders.{name}"], pieces[f"heads.{name}"])
