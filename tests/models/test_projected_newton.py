import pytest
import torch
from torch import Tensor

from equipoise.models.projected_newton import Derivatives, minimise_without_negatives, stationarity


@pytest.mark.parametrize("size", [1, 2, 3, 6])
@pytest.mark.parametrize("seed", range(5))
def test_a_quadratic_meets_its_optimality_conditions(size: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    root = torch.randn(size, size, generator=generator, dtype=torch.float64)
    hessian = root @ root.T + 1e-3 * torch.eye(size, dtype=torch.float64)  # badly conditioned: blocks must not mix
    slope = torch.randn(size, generator=generator, dtype=torch.float64)

    def quadratic(point: Tensor) -> Derivatives:
        return point @ hessian @ point / 2 + slope @ point, hessian @ point + slope, hessian

    found = minimise_without_negatives(quadratic, torch.ones(size, dtype=torch.float64))
    gradient = quadratic(found)[1]
    assert (found >= 0).all()
    assert gradient[found > 0].abs().sum() < 1e-6
    assert (gradient[found == 0] > -1e-6).all()


def test_a_step_too_far_is_shortened() -> None:
    def steep(point: Tensor) -> Derivatives:  # Newton's own steps diverge from 30
        x = point - 20
        return ((1 + x.square()).sqrt().sum(), x / (1 + x.square()).sqrt(), torch.diag((1 + x.square()).pow(-1.5)))

    found = minimise_without_negatives(steep, torch.tensor([30.0], dtype=torch.float64))
    assert found.item() == pytest.approx(20, abs=1e-8)


def test_stationarity_is_zero_only_at_the_optimum() -> None:
    point = torch.tensor([0.0, 2.0])
    assert stationarity(point, torch.tensor([3.0, 0.0])) == 0
    assert stationarity(point, torch.tensor([-0.5, 0.0])) == 0.5
    assert stationarity(point, torch.tensor([3.0, 0.25])) == 0.25
