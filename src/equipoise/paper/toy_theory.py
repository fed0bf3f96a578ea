"""Propositions 1 and 2 and Theorem 2 on the toy problem, with constants that hold at a point instead of everywhere."""

from typing import NamedTuple, final

import torch
from torch import Tensor

from equipoise.balance.theory import kl_bound, least_norm, pl_constant, safe_step, smoothness
from equipoise.methods.mimo import mimo_objective
from equipoise.paper.toy import ToyData, ToySettings, TwoLayer, losses


@final
class FlatObjective:
    """The losses of the toy as functions of one long vector of all parameters [d], or of many such vectors [P, d].

    Args:
        data: The data.
        settings: Sizes, λ and μ.
    """

    def __init__(self, data: ToyData, settings: ToySettings) -> None:
        self.data, self.settings = data, settings
        self._shapes = {name: tensor.shape for name, tensor in TwoLayer(settings, seed=0).named_parameters()}
        self._optimum = torch.tensor([data.optimum[name] for name in data.inputs], dtype=torch.float64)

    def start(self, seed: int) -> Tensor:
        """The weights at the start of a run with this seed."""
        return torch.cat([tensor.detach().reshape(-1) for tensor in TwoLayer(self.settings, seed).parameters()])

    def parameters(self, point: Tensor) -> dict[str, Tensor]:
        """Split the vector into parameters by name."""
        parts = point.split([shape.numel() for shape in self._shapes.values()], dim=-1)
        named = zip(self._shapes.items(), parts, strict=True)
        return {name: part.reshape(*point.shape[:-1], *shape) for (name, shape), part in named}

    def losses(self, point: Tensor) -> Tensor:
        """The fused loss, then one per modality, [..., 1 + K]."""
        return torch.stack(list(losses(self.parameters(point), self.data).values()), dim=-1)

    def objective(self, values: Tensor) -> Tensor:
        """MIMO's objective with exact f*, from the losses."""
        penalty, smoothing = self.settings.penalty, self.settings.smoothing
        return mimo_objective(values[..., 0], values[..., 1:], penalty, smoothing, self._optimum)

    @torch.no_grad()
    def value(self, point: Tensor) -> float:
        """MIMO's objective at one point."""
        return float(self.objective(self.losses(point)))

    def gaps(self, point: Tensor) -> Tensor:
        """f_k − f*_k, [..., K]."""
        return self.losses(point)[..., 1:] - self._optimum


# -- Proposition 1: MIMO's objective is smooth with L̂ = L_mm + λ Σ_k (L_k + G_k² / μ) --


class Curvature(NamedTuple):
    """Proposition 1 at points: the largest eigenvalue of the objective's Hessian, and the constant that bounds it."""

    largest: Tensor
    bound: Tensor


def curvature_at(objective: FlatObjective, points: Tensor) -> Curvature:
    """Compute eigenvalues of whole Hessians at points [P, d], so d has to be small.

    L_mm and L_k are the spectral norms of Hessians there, G_k the norms of gradients: the paper's proof holds point by
    point, although none of its constants exists everywhere.
    """
    points = points.detach().requires_grad_()
    values, settings = objective.losses(points), objective.settings
    derivatives = [_derivatives(value, points) for value in (objective.objective(values), *values.unbind(dim=-1))]
    eigenvalues = torch.linalg.eigvalsh(torch.stack([hessian for _, hessian in derivatives], dim=1))
    bends = eigenvalues[:, 1:].abs().amax(dim=-1).tolist()
    slopes = torch.stack([gradient.norm(dim=-1) for gradient, _ in derivatives[2:]], dim=1).tolist()
    bounds = [
        smoothness(bend[0], list(zip(bend[1:], slope, strict=True)), settings.penalty, settings.smoothing)
        for bend, slope in zip(bends, slopes, strict=True)
    ]
    return Curvature(eigenvalues[:, 0, -1], torch.tensor(bounds, dtype=torch.float64))


def _derivatives(values: Tensor, points: Tensor) -> tuple[Tensor, Tensor]:
    """Gradients [P, d] and Hessians [P, d, d] of a function, from its values [P] at points [P, d]."""
    (gradient,) = torch.autograd.grad(values.sum(), points, create_graph=True)
    columns = [torch.autograd.grad(column.sum(), points, retain_graph=True)[0] for column in gradient.unbind(dim=-1)]
    return gradient.detach(), torch.stack(columns, dim=-1)


def random_points(objective: FlatObjective, seed: int, count: int = 100) -> Tensor:
    """Random weights of random size, from a hundredth to about three, [count, d]."""
    random = torch.Generator().manual_seed(seed)
    sizes = 10 ** (2.5 * torch.rand(count, 1, generator=random, dtype=torch.float64) - 2)
    return sizes * torch.randn(count, len(objective.start(0)), generator=random, dtype=torch.float64)


# -- Theorem 2: with steps of at most 1/L̂, min_{t<T} ‖∇F‖² ≤ 2 (F_0 − F_T) / Σ η_t --


class Descent(NamedTuple):
    """A run of gradient descent with the local safe step.

    Args:
        values: F_0 … F_T.
        squares: ‖∇F‖² at 0 … T − 1.
        steps: η_0 … η_{T−1}.
        halved: Number of times that a step was halved because the objective rose.
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


def safe_descent(objective: FlatObjective, seed: int, steps: int, rounds: int = 2) -> Descent:
    """Minimise MIMO's objective by gradient descent with η = 1/L̂ at each point, halved where the objective would rise.

    The constants come from power iteration on Hessian-vector products, which approaches them from below; and they hold
    at a point, not along the step. Hence the halving.

    Args:
        objective: The objective.
        seed: Of the start.
        steps: T.
        rounds: Rounds of power iteration per step; each continues where the step before ended.
    """
    point, settings = objective.start(seed), objective.settings
    random = torch.Generator().manual_seed(seed)
    directions = torch.randn(1 + len(settings.names), len(point), generator=random, dtype=point.dtype)
    values, squares, rates, halved = [], [], [], 0
    for step in range(steps):
        local = local_constants(objective, point, directions, rounds if step else 10 * rounds)
        directions = local.directions
        pairs = list(zip(local.bends[1:], local.slopes, strict=True))
        rate = safe_step(local.bends[0], pairs, settings.penalty, settings.smoothing)
        while objective.value(point - rate * local.gradient) > local.value:
            rate, halved = rate / 2, halved + 1
        point = point - rate * local.gradient
        values.append(local.value)
        squares.append(float(local.gradient.square().sum()))
        rates.append(rate)
    values.append(objective.value(point))
    return Descent(*(torch.tensor(numbers, dtype=torch.float64) for numbers in (values, squares, rates)), halved)


class LocalConstants(NamedTuple):
    """MIMO's objective at a point.

    Args:
        value: F.
        gradient: ∇F.
        bends: L_mm, L_1, …, L_K: spectral norms of Hessians, from below.
        slopes: G_1, …, G_K: norms of gradients.
        directions: For the next point to go on from, [1 + K, d].
    """

    value: float
    gradient: Tensor
    bends: list[float]
    slopes: list[float]
    directions: Tensor


def local_constants(objective: FlatObjective, point: Tensor, directions: Tensor, rounds: int) -> LocalConstants:
    """Estimate the constants of the safe step by power iteration.

    Args:
        objective: The objective.
        point: A point, [d].
        directions: One per loss to start the iteration from, [1 + K, d].
        rounds: Hessian-vector products per loss.

    """
    point = point.detach().requires_grad_()
    values = objective.losses(point)
    total = objective.objective(values)
    (gradient,) = torch.autograd.grad(total, point, retain_graph=True)
    slopes = [torch.autograd.grad(value, point, create_graph=True)[0] for value in values]
    bends = [0.0] * len(slopes)
    directions = directions / directions.norm(dim=1, keepdim=True)
    for _ in range(rounds):
        pairs = zip(slopes, directions, strict=True)
        products = [torch.autograd.grad(slope, point, way, retain_graph=True)[0] for slope, way in pairs]
        bends = [float(product.norm()) for product in products]
        directions = torch.stack([product / (size or 1.0) for product, size in zip(products, bends, strict=True)])
    norms = [float(slope.detach().norm()) for slope in slopes[1:]]
    return LocalConstants(float(total.detach()), gradient, bends, norms, directions)


# -- Proposition 2: dist(0, ∂g)² ≥ (μ/K) g for the largest gap g --


class TiedPoint(NamedTuple):
    """Proposition 2 at a point where the gaps of all modalities are equal.

    Args:
        gaps: The gap of each modality.
        distance: dist(0, ∂g)², the shortest convex combination of the gradients, squared.
        bound: μ g / K with the local μ = min_k 4 λ_min(C_k) (‖ϑ_k‖² + σ_min(θ_k)²).
    """

    gaps: list[float]
    distance: float
    bound: float


def tied_point(objective: FlatObjective, seed: int) -> Tensor:
    """Draw random weights, and scale heads until the gaps of all modalities agree."""
    random = torch.Generator().manual_seed(seed)
    weights = torch.randn(len(objective.start(0)), generator=random, dtype=torch.float64)
    parameters = objective.parameters(weights / objective.settings.hidden**0.5)
    lines = {name: _gap_along_head(objective.data, name, parameters) for name in objective.data.inputs}
    # Along its head a gap can grow without end but not fall below its least: tie them above the largest of these.
    common = 1.5 * max(float(least) for least, _, _ in lines.values())
    for name, (least, middle, bend) in lines.items():
        parameters[f"heads.{name}"] = parameters[f"heads.{name}"] * (middle + ((common - least) / bend).sqrt())
    return torch.cat([tensor.reshape(-1) for tensor in parameters.values()])


def _gap_along_head(data: ToyData, name: str, parameters: dict[str, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    """The gap as a function of a factor s on the head is least + bend · (s − middle)²."""
    inputs, target = data.correlations.inputs[name, name], data.correlations.target[name]
    weights = parameters[f"encoders.{name}"] @ parameters[f"heads.{name}"]
    bend = weights @ inputs @ weights
    middle = (weights @ target) / bend
    rest = data.solution(name) - middle * weights
    return rest @ inputs @ rest, middle, bend


def largest_gap_at(objective: FlatObjective, point: Tensor) -> TiedPoint:
    """Compute both sides of Proposition 2 at a point where gaps are equal.

    The local μ has ‖∇f_k‖² ≥ μ (f_k − f*_k), σ_min being zero where H < D. With p = 2 C_k (θ_k ϑ_k − w_k), w_k the
    least-squares solution: ‖∇f_k‖² = ‖p‖² ‖ϑ_k‖² + ‖θ_kᵀ p‖², and the gap is ¼ pᵀ C_k⁻¹ p.
    """
    parameters, gaps = objective.parameters(point), objective.gaps(point)
    gradients = torch.autograd.functional.jacobian(objective.gaps, point)
    gram = gradients @ gradients.T
    shares = least_norm(gram)
    inputs = objective.data.correlations.inputs
    names = objective.data.inputs
    layers = [(inputs[name, name], parameters[f"encoders.{name}"], parameters[f"heads.{name}"]) for name in names]
    bound = kl_bound(min(pl_constant(*layer) for layer in layers), len(gaps), float(gaps.max()))
    return TiedPoint(gaps.tolist(), float(shares @ gram @ shares), bound)
