"""What the paper proves, on problems small enough to check."""

import itertools
import math

import pytest
import torch
from torch import Tensor

from equipoise import Trajectory, least_squares
from equipoise.balance.theory import (
    gap_bound,
    kl_bound,
    penalty_for,
    pl_constant,
    safe_step,
    smooth_maximum,
    smoothness,
)
from equipoise.methods.mimo import mimo_objective


def quadratics(count: int, seed: int) -> tuple[list[Tensor], list[Tensor]]:
    random = torch.Generator().manual_seed(seed)
    shapes = [torch.randn(4, 4, generator=random, dtype=torch.float64) for _ in range(count + 1)]
    centres = [torch.randn(4, generator=random, dtype=torch.float64) for _ in range(count + 1)]
    return [shape.T @ shape / 4 for shape in shapes], centres


@pytest.mark.parametrize("count", [2, 3])
@pytest.mark.parametrize("smoothing", [0.05, 0.5])
def test_the_smoothness_constant_bounds_the_hessian_within_a_ball(count: int, smoothing: float) -> None:
    shapes, centres = quadratics(count, count)
    penalty, radius = 5.0, 1.5

    def objective(x: Tensor) -> Tensor:
        values = [0.5 * (x - c) @ shape @ (x - c) for shape, c in zip(shapes, centres, strict=True)]
        return mimo_objective(values[0], torch.stack(values[1:]), penalty, smoothing)

    bends = [float(torch.linalg.eigvalsh(shape)[-1]) for shape in shapes]
    slopes = [bend * (radius + float(c.norm())) for bend, c in zip(bends[1:], centres[1:], strict=True)]
    constant = smoothness(bends[0], zip(bends[1:], slopes, strict=True), penalty, smoothing)
    random = torch.Generator().manual_seed(9)
    for _ in range(30):
        x = torch.randn(4, generator=random, dtype=torch.float64)
        x = radius * x / x.norm() * torch.rand((), generator=random, dtype=torch.float64)
        hessian = torch.autograd.functional.hessian(objective, x)
        assert isinstance(hessian, Tensor)
        assert float(torch.linalg.eigvalsh(hessian).abs().max()) <= constant


def test_plain_descent_on_the_smooth_maximum_may_need_four_times_the_steps_for_half_the_error() -> None:
    """Of max(|x|, 4ε |y|) from (0, 1), with the step μ = ε / (2 log 4) of its smoothness constant 1/μ."""
    steps = []
    for error in (0.04, 0.02, 0.01):
        smoothing = error / (2 * math.log(4))
        slopes = torch.tensor([[1.0, 0], [-1, 0], [0, 4 * error], [0, -4 * error]], dtype=torch.float64)
        point, count = torch.tensor([0.0, 1.0], dtype=torch.float64, requires_grad=True), 0
        while float((slopes @ point).detach().max()) > error:
            (gradient,) = torch.autograd.grad(smooth_maximum(slopes @ point, smoothing), point)
            point = (point - smoothing * gradient).detach().requires_grad_()
            count += 1
        steps.append(count)
    assert steps[1] / steps[0] == pytest.approx(4, rel=0.1)
    assert steps[2] / steps[1] == pytest.approx(4, rel=0.1)


def test_gradient_descent_with_the_safe_step_never_rises() -> None:
    shapes, centres = quadratics(2, 0)
    x = torch.zeros(4, dtype=torch.float64, requires_grad=True)
    bends = [float(torch.linalg.eigvalsh(shape)[-1]) for shape in shapes]
    slopes = [bend * 6.0 for bend in bends[1:]]  # Lipschitz on a ball that descent does not leave
    step = safe_step(bends[0], list(zip(bends[1:], slopes, strict=True)), 2.0, 0.2)
    values = []
    for _ in range(200):
        losses = [0.5 * (x - c) @ shape @ (x - c) for shape, c in zip(shapes, centres, strict=True)]
        value = mimo_objective(losses[0], torch.stack(losses[1:]), 2.0, 0.2)
        (gradient,) = torch.autograd.grad(value, x)
        with torch.no_grad():
            x -= step * gradient
        values.append(float(value.detach()))
    assert all(later <= earlier + 1e-12 for earlier, later in itertools.pairwise(values))
    assert values[-1] < values[0]


def test_no_smoothness_without_smoothing() -> None:
    with pytest.raises(ValueError, match="smooth for μ > 0 only, found 0"):
        smoothness(1.0, [(1.0, 1.0)], 1.0, 0)


def test_least_squares_is_the_loss_no_linear_model_can_beat() -> None:
    random = torch.Generator().manual_seed(0)
    inputs = {"a": torch.randn(50, 5, generator=random), "b": torch.randn(50, 60, generator=random)}
    target = inputs["a"] @ torch.randn(5, generator=random) + torch.randn(50, generator=random)
    optimum = least_squares(inputs, target)
    assert optimum["b"] < 1e-10  # more columns than rows
    weights = torch.zeros(5, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.LBFGS([weights], max_iter=200, tolerance_grad=1e-12, tolerance_change=1e-14)

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = (target.double() - inputs["a"].double() @ weights).square().mean()
        loss.backward()
        return loss

    optimizer.step(closure)
    assert optimum["a"] == pytest.approx(float(closure().detach()), rel=1e-8)
    shifted = least_squares({"a": inputs["a"]}, target + 100, intercept=True)
    assert shifted["a"] <= optimum["a"] + 1e-6


def test_least_squares_names_the_array_that_does_not_fit() -> None:
    with pytest.raises(ValueError, match=r"'b' should be an array \[3, D\], found \(2, 2\)"):
        least_squares({"a": torch.ones(3, 1), "b": torch.ones(2, 2)}, torch.ones(3))


def test_a_trajectory_is_a_trailing_mean() -> None:
    trajectory = Trajectory(smooth=3)
    losses = [5.0, 4.0, 3.0, 2.0, 1.0]
    for value in losses:
        trajectory.record({"fused": torch.tensor(0.0), "a": torch.tensor([value, value])})
    expected = [sum(losses[max(0, t - 2) : t + 1]) / len(losses[max(0, t - 2) : t + 1]) for t in range(5)]
    assert trajectory.values()["a"].tolist() == pytest.approx(expected)
    assert set(trajectory.values()) == {"a"}
    assert trajectory.final() == pytest.approx({"a": 2.0})


def test_an_empty_trajectory_and_a_wrong_width_say_what_to_do() -> None:
    with pytest.raises(ValueError, match=r"nothing was recorded; call trajectory\.record"):
        Trajectory().values()
    with pytest.raises(ValueError, match="smooth: expected at least one step, found 0"):
        Trajectory(smooth=0)


def test_the_limit_of_single_precision_is_what_the_paper_runs_into() -> None:
    assert math.isclose(math.log(torch.finfo(torch.float32).max), 88.72, rel_tol=1e-3)


# -- Theorem 1 with its constants: f_mm = ½‖θ − a‖² against modalities f_k = ½ m_k θ_k² --


@pytest.mark.parametrize("penalty", [0.5, 3.0, 40.0])
@pytest.mark.parametrize(("bend", "wish"), [(1.0, 1.0), (0.2, 3.0)])
def test_the_bound_on_the_gap_is_met_by_one_modality(penalty: float, bend: float, wish: float) -> None:
    solution = wish / (1 + penalty * bend)
    gap = bend * solution**2 / 2
    slope = wish - solution
    assert gap_bound(penalty, slope, 2 * bend, modalities=1) == pytest.approx(gap)
    assert penalty_for(gap, slope, 2 * bend, modalities=1) == pytest.approx(penalty)


def penalised(wishes: Tensor, bends: Tensor, penalty: float) -> Tensor:
    """The solution for two modalities under the hard maximum: its weights are those at which neither is worse."""
    low, high = 0.0, 1.0
    for _ in range(200):
        share = (low + high) / 2
        point = wishes / (1 + penalty * bends * torch.tensor([share, 1 - share], dtype=torch.float64))
        first, second = bends * point.square() / 2
        low, high = (share, high) if first > second else (low, share)
    return point


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("penalty", [1.0, 10.0, 1000.0])
def test_no_gap_is_larger_than_theorem_1_allows(seed: int, penalty: float) -> None:
    random = torch.Generator().manual_seed(seed)
    wishes = 1 + torch.rand(2, generator=random, dtype=torch.float64)
    bends = 0.3 + torch.rand(2, generator=random, dtype=torch.float64)
    best = penalised(wishes, bends, penalty)

    def objective(point: Tensor) -> Tensor:
        return (point - wishes).square().sum() / 2 + penalty * (bends * point.square() / 2).amax()

    constant, curve = 2 * float(bends.min()), 1 + penalty * float(bends.max())
    for size in (0.0, 1e-4, 1e-2):
        point = best + size * torch.randn(2, generator=random, dtype=torch.float64)
        accuracy = float(objective(point) - objective(best))
        assert accuracy >= -1e-12, "the solution is the best point"
        slope, gap = float((point - wishes).norm()), float((bends * point.square() / 2).amax())
        assert gap <= gap_bound(penalty, slope, constant, 2, max(accuracy, 0.0), curve) * (1 + 1e-9)
        if size == 0:
            assert gap >= 0.1 * gap_bound(penalty, slope, constant, 2), "the bound is no idle one"


def test_a_hundred_times_the_penalty_is_a_ten_thousandth_of_the_gap() -> None:
    assert gap_bound(1000.0, 1.0, 2.0, 2) == pytest.approx(1e-4 * gap_bound(10.0, 1.0, 2.0, 2))
    # So it is, to within a constant, where the solution is exact to the order of 1/λ.
    loose = [gap_bound(penalty, 1.0, 2.0, 2, accuracy=1 / penalty, bend=1 + 3 * penalty) for penalty in (10.0, 1000.0)]
    assert loose[1] == pytest.approx(1e-4 * loose[0], rel=0.1)


@pytest.mark.parametrize("hidden", [1, 3, 5])
@pytest.mark.parametrize("seed", range(4))
def test_two_layers_satisfy_the_condition_with_their_own_constant(hidden: int, seed: int) -> None:
    random = torch.Generator().manual_seed(seed)

    def drawn(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=random, dtype=torch.float64)

    inputs, target = drawn(40, 3), drawn(40)
    encoder, head = drawn(3, hidden).requires_grad_(), drawn(hidden).requires_grad_()
    correlation = inputs.T @ inputs / len(inputs)
    loss = (target - inputs @ encoder @ head).square().mean()
    least = (target - inputs @ torch.linalg.lstsq(inputs, target[:, None]).solution[:, 0]).square().mean()
    squared = sum(each.square().sum() for each in torch.autograd.grad(loss, (encoder, head)))
    constant, gap = pl_constant(correlation, encoder.detach(), head.detach()), float((loss - least).detach())
    assert constant > 0
    assert float(squared) >= kl_bound(constant, 1, gap) == constant * gap
