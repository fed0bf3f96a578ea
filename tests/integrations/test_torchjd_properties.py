"""What TorchJD asks of an aggregator, asked of ours: structure, no conflict, permutations, conditions of optimality."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torchjd.aggregation import GramianWeightedAggregator

from equipoise import MGDA, Balancer, MMPareto
from equipoise.integrations.torchjd import ToTorchJD

METHODS: dict[str, Callable[[], Balancer]] = {"MGDA": MGDA, "MMPareto": lambda: MMPareto(boost=1.0, rescale="encoder")}
SHAPES = [(1, 3), (2, 5), (3, 3), (4, 3), (7, 50), (9, 5), (12, 2), (17, 9), (20, 10), (20, 55)]
SCALES = [1e-10, 1e-5, 1.0, 1e5, 1e10]
ROUNDING = {torch.float32: 2e-3, torch.float64: 1e-6}  # of the longest row


def matrices(dtype: torch.dtype) -> list[Tensor]:
    """Matrices of full and of low rank, around a common row and around zero; the longest row has length one."""
    random = torch.Generator().manual_seed(0)
    found = []
    for count, size in SHAPES:
        rows = torch.randn(count, size, dtype=torch.float64, generator=random)
        rank = max(1, min(count, size) // 2)
        mixer = torch.randn(count, rank, dtype=torch.float64, generator=random)
        shifted = rows + torch.randn(1, size, dtype=torch.float64, generator=random)
        found += [rows, shifted, mixer @ rows[:rank]]
        if count > 1:
            found.append(rows - rows.mean(dim=0))  # zero is a mixture with positive weights of all rows
    return [(rows / rows.norm(dim=1).max()).to(dtype) for rows in found]


def aggregated(method: str, matrix: Tensor) -> Tensor:
    return GramianWeightedAggregator(ToTorchJD(METHODS[method]()))(matrix)


@pytest.fixture(params=[torch.float32, torch.float64], ids=str)
def dtype(request: pytest.FixtureRequest) -> torch.dtype:
    return request.param


@pytest.mark.parametrize("method", METHODS)
def test_a_mixture_has_the_shape_of_a_row_and_is_finite_at_any_scale(method: str, dtype: torch.dtype) -> None:
    for matrix in matrices(dtype):
        for scale in SCALES:
            mixture = aggregated(method, scale * matrix)
            assert mixture.shape == matrix.shape[1:]
            assert mixture.dtype == dtype
            assert bool(mixture.isfinite().all())
    assert aggregated(method, torch.zeros(20, 4, dtype=dtype)).tolist() == [0, 0, 0, 0]


@pytest.mark.parametrize("scale", SCALES)
def test_a_mixture_grows_with_its_gradients(scale: float, dtype: torch.dtype) -> None:
    for matrix in matrices(dtype):
        expected = aggregated("MGDA", matrix)
        torch.testing.assert_close(aggregated("MGDA", scale * matrix) / scale, expected, rtol=0, atol=ROUNDING[dtype])


@pytest.mark.parametrize("method", METHODS)
def test_no_loss_rises_along_a_mixture(method: str, dtype: torch.dtype) -> None:
    """MMPareto's, where gradients conflict, is longer by a factor."""
    for matrix in matrices(dtype):
        conflict = bool((matrix @ matrix.T < 0).any())
        if method == "MMPareto" and not conflict:
            continue  # a plain sum of gradients of which no two conflict
        mixture = aggregated(method, matrix).double()
        along = matrix.double() @ mixture
        assert float(along.min()) >= -ROUNDING[dtype] * max(1, len(matrix) * float(mixture.norm()))


@pytest.mark.parametrize("method", METHODS)
def test_the_order_of_rows_plays_no_role(method: str, dtype: torch.dtype) -> None:
    random = torch.Generator().manual_seed(0)
    for matrix in matrices(dtype):
        turned = matrix[torch.randperm(len(matrix), generator=random)]
        expected, found = aggregated(method, matrix), aggregated(method, turned)
        torch.testing.assert_close(found, expected, rtol=0, atol=len(matrix) * ROUNDING[dtype])


def test_the_conditions_of_karush_kuhn_and_tucker_hold(dtype: torch.dtype) -> None:
    for matrix in matrices(dtype):
        gram = matrix @ matrix.T
        weights = ToTorchJD(MGDA())(gram)
        assert bool((weights >= 0).all())
        assert float(weights.sum()) == pytest.approx(1)
        along = gram.double() @ weights.double()
        multiplier = weights.double() @ along
        slack = {torch.float32: 1e-5, torch.float64: 1e-12}[dtype]  # Gramians are of squared lengths, and so is this
        assert float((along - multiplier).min()) >= -slack
        assert float((weights.double() * (along - multiplier)).abs().max()) <= slack


def test_four_gradients_of_three_numbers_whose_mixture_is_all_but_zero() -> None:
    """More rows than columns: rounding in single precision leaves such a Gramian with an eigenvalue below zero."""
    random = torch.Generator().manual_seed(0)
    met = 0
    for _ in range(300):
        matrix = torch.randn(4, 3, generator=random)
        matrix = matrix / matrix.norm(dim=1).max()
        signs = torch.linalg.svd(matrix.double().T).Vh[-1]  # the one dependence of the four rows
        if bool((signs > 0).all()) or bool((signs < 0).all()):
            met += 1
            assert float(aggregated("MGDA", matrix).norm()) < 1e-3
    assert met > 20
