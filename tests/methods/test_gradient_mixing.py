"""MGDA and MMPareto: against conditions of optimality, against TorchJD, and against numbers worked out by hand.

How long a shortest mixture is may be found in `test_least_norm.py`.
"""

import math
from collections.abc import Sequence
from typing import Literal

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torchjd import aggregation

from equipoise import MGDA, Balancer, Gram, HybridFusion, LateFusion, MMPareto
from equipoise.balance.tensors import gram_matrix
from equipoise.balance.theory import least_norm
from equipoise.testing import SmallModel, attached, batch, gradients_of, losses_of, names


def gram_of(vectors: Tensor) -> Tensor:
    return vectors @ vectors.T


def sampled_gradients() -> list[Tensor]:
    random = torch.Generator().manual_seed(0)
    found = []
    for count in (2, 3, 4, 6):
        found += [torch.randn(count, 10, generator=random, dtype=torch.float64) for _ in range(8)]
        close = torch.randn(1, 10, generator=random, dtype=torch.float64)
        found.append(close + 0.1 * torch.randn(count, 10, generator=random, dtype=torch.float64))  # nearly parallel
        low = torch.randn(count, 2, generator=random, dtype=torch.float64)
        found.append(low @ torch.randn(2, 10, generator=random, dtype=torch.float64))  # dependent
        scales = torch.logspace(-4, 4, count, dtype=torch.float64)[:, None]
        found.append(scales * torch.randn(count, 10, generator=random, dtype=torch.float64))
    return found


@pytest.mark.parametrize("number", range(len(sampled_gradients())))
def test_the_shortest_mixture_satisfies_the_conditions_of_optimality(number: int) -> None:
    vectors = sampled_gradients()[number]
    gram = gram_of(vectors / vectors.norm(dim=1).max())
    weights = least_norm(gram)
    assert float(weights.min()) >= 0
    assert float(weights.sum()) == pytest.approx(1.0)
    # Karush-Kuhn-Tucker: along the mixture every gradient has at least its squared length, those with weight just it.
    along, length = gram @ weights, weights @ gram @ weights
    assert float((along - length).min()) >= -1e-8
    assert float(((along - length) * weights).abs().max()) <= 1e-8


@pytest.mark.parametrize("number", range(len(sampled_gradients())))
def test_the_shortest_mixture_agrees_with_torchjd(number: int) -> None:
    vectors = sampled_gradients()[number]
    vectors = vectors / vectors.norm(dim=1).max()
    theirs = aggregation.MGDA(epsilon=1e-10, max_iters=5000)(vectors)
    ours = least_norm(gram_of(vectors)) @ vectors
    assert float(ours.norm()) <= float(theirs.norm()) + 1e-7  # ours is exact, theirs iterates
    torch.testing.assert_close(ours, theirs, rtol=0, atol=5e-3)


def test_degenerate_gradients_give_weights_all_the_same() -> None:
    for gram in (torch.zeros(2, 2), torch.ones(2, 2), torch.zeros(3, 3).double(), torch.ones(3, 3).double()):
        weights = least_norm(gram)
        assert bool(weights.isfinite().all())
        assert float(weights.sum()) == pytest.approx(1.0)
    assert least_norm(torch.tensor([[1.0, 2.0], [2.0, 4.0]])).tolist() == [1.0, 0.0]  # no clamp at 0.999


@pytest.mark.parametrize("count", [1, 2, 3, 5])
def test_mgda_never_raises_either_loss_of_an_encoder(count: int) -> None:
    for seed in range(3):
        model = SmallModel(names(count), seed=seed)
        data = batch(names(count), seed=seed)
        attached(MGDA(), model)(losses_of(model, data)).backward()
        moved = gradients_of(model)
        for name in names(count):
            for objective in ("fused", name):
                model.zero_grad()
                losses_of(model, data)[objective].mean().backward()
                alone = gradients_of(model)
                keys = [key for key in moved if key.startswith(f"encoders.{name}.")]
                inner = torch.stack([(moved[key] * alone[key]).sum() for key in keys]).sum()
                length = torch.stack([moved[key].square().sum() for key in keys]).sum()
                assert float(inner) >= float(length) - 1e-12


class Two(nn.Module):
    """Two encoders of two scalars each, so that gradients can be chosen by hand."""

    def __init__(self) -> None:
        super().__init__()
        self.audio, self.video = Bare(2), Bare(1)
        self.encoders = {"audio": self.audio, "video": self.video}

    def losses(self, fused: Sequence[float], own: Sequence[float], video: tuple[float, float]) -> dict[str, Tensor]:
        """Linear losses: the gradient of f_mm on the audio encoder is ``fused``, that of f_audio is ``own``."""
        audio, other = list(self.audio.tensors), self.video.tensors[0]
        return {
            "fused": torch.stack([a * t for a, t in zip(fused, audio, strict=True)]).sum() + video[0] * other,
            "audio": torch.stack([a * t for a, t in zip(own, audio, strict=True)]).sum(),
            "video": video[1] * other,
        }

    def gradients(self) -> list[float]:
        return [float(tensor.grad) for tensor in self.audio.tensors if tensor.grad is not None]


class Bare(nn.Module):
    def __init__(self, count: int) -> None:
        super().__init__()
        self.tensors = nn.ParameterList([nn.Parameter(torch.ones((), dtype=torch.float64)) for _ in range(count)])


def run(balancer: Balancer, fused: Sequence[float], own: Sequence[float]) -> tuple[list[float], Balancer]:
    model = Two()
    balancer.attach(model, optimizer=torch.optim.SGD(model.parameters(), 0.1))
    balancer(model.losses(fused, own, (1.0, 1.0))).backward()
    return model.gradients(), balancer


def test_mgda_by_hand() -> None:
    # g1 = (2, 0), g2 = (0, 1): γ = (1 − 0) / (4 + 1) = 0.2, direction (0.4, 0.8)
    found, balancer = run(MGDA(), (2.0, 0.0), (0.0, 1.0))
    assert found == pytest.approx([0.4, 0.8])
    assert float(balancer.table.at("fused", "audio")) == pytest.approx(0.2)
    assert float(balancer.table.at("audio", "audio")) == pytest.approx(0.8)
    assert math.isnan(float(balancer.table.at("video", "audio")))  # it does not get there
    # g1 = (1, 1), g2 = (3, 3): the shorter one alone
    assert run(MGDA(), (1.0, 1.0), (3.0, 3.0))[0] == pytest.approx([1.0, 1.0])
    # opposite: (1, 0) and (−3, 0) cancel, γ = (9 + 3) / 16
    found, balancer = run(MGDA(), (1.0, 0.0), (-3.0, 0.0))
    assert found == pytest.approx([0.0, 0.0], abs=1e-15)
    assert float(balancer.table.at("fused", "audio")) == pytest.approx(0.75)


def test_mmpareto_without_conflict_is_one_and_a_half_times_the_sum() -> None:
    found, balancer = run(MMPareto(), (2.0, 1.0), (1.0, 3.0))  # cosine above zero
    assert found == pytest.approx([1.5 * 3.0, 1.5 * 4.0])
    assert float(balancer.table.at("fused", "audio")) == pytest.approx(1.5)


def test_mmpareto_with_conflict_by_hand() -> None:
    # g1 = (2, 1), g2 = (−2, 1): dot −3, ‖·‖² = 5 both: α = ½, u = (0, 2), plain sum (0, 2): no stretch
    assert run(MMPareto(), (2.0, 1.0), (-2.0, 1.0))[0] == pytest.approx([0.0, 3.0])
    # g1 = (2, 0), g2 = (−1, 1): dot −2, ‖g1‖² 4, ‖g2‖² 2, apart 10: α = (2 + 2) / 10 = 0.4
    # u = 0.8·(2, 0) + 1.2·(−1, 1) = (0.4, 1.2); plain sum (1, 1)
    # per tensor: 1/0.4 > 1 stretches the first to 1; 1/1.2 < 1 leaves the second: (1, 1.2) · 1.5
    assert run(MMPareto(), (2.0, 0.0), (-1.0, 1.0))[0] == pytest.approx([1.5, 1.8])
    # per encoder: ‖(1, 1)‖ / ‖(0.4, 1.2)‖ = 1.41421 / 1.26491 = 1.11803
    found, _ = run(MMPareto(rescale="encoder"), (2.0, 0.0), (-1.0, 1.0))
    assert found == pytest.approx([1.5 * 0.4 * 1.118034, 1.5 * 1.2 * 1.118034], rel=1e-6)


def test_mmpareto_that_cancels_exactly_stays_finite() -> None:
    # the reference divides by zero here: x/0 = inf, inf·0 = NaN
    assert run(MMPareto(), (1.0, 0.0), (-1.0, 0.0))[0] == [0.0, 0.0]
    assert run(MMPareto(rescale="encoder"), (1.0, 0.0), (-1.0, 0.0))[0] == [0.0, 0.0]


@pytest.mark.parametrize("scale", [1e-30, 1e-26, 1e-22, 1e-18, 1e20, 1e30])
def test_the_scale_of_gradients_in_single_precision_plays_no_role(scale: float) -> None:
    """Products of such gradients vanish in float32, or overflow."""
    model = Two().float()
    for balancer, fused, own, expected in (
        (MGDA(), (2.0, 0.0), (0.0, 1.0), (0.4, 0.8)),
        (MMPareto(), (2.0, 0.0), (-1.0, 1.0), (1.5, 1.8)),
        (MMPareto(rescale="encoder"), (2.0, 0.0), (-1.0, 1.0), (0.6 * 1.118034, 1.8 * 1.118034)),
        (MMPareto(), (2.0, 1.0), (1.0, 3.0), (4.5, 6.0)),
    ):
        model.zero_grad()
        balancer.attach(model, optimizer=torch.optim.SGD(model.parameters(), 0.1))
        losses = model.losses([scale * x for x in fused], [scale * x for x in own], (scale, scale))
        balancer(losses).backward()
        assert model.gradients() == pytest.approx([scale * x for x in expected], rel=1e-6, abs=0)


@pytest.mark.parametrize("scale", [1e-26, 1e20, 1e30])
@pytest.mark.parametrize("at", ["parameters", "features"])
@pytest.mark.parametrize("method", [MGDA, MMPareto])
@pytest.mark.parametrize("hybrid", [False, True])
def test_every_table_is_that_of_double_precision(
    method: type[MGDA | MMPareto], at: Literal["parameters", "features"], hybrid: bool, scale: float
) -> None:
    """Of separate encoders, and of those that meet in a trunk, where three gradients are mixed."""
    random = torch.Generator().manual_seed(0)
    inputs = {name: torch.randn(8, 3, generator=random) for name in ("audio", "video")}
    labels = dict(zip(("fused", *inputs), torch.randint(0, 2, (3, 8), generator=random), strict=True))  # they conflict
    tables = []
    for dtype, factor in ((torch.float64, 1.0), (torch.float32, scale)):
        torch.manual_seed(0)
        encoders = {name: nn.Linear(3, 4) for name in inputs}
        model = HybridFusion(encoders, 2, width=8, depth=1) if hybrid else LateFusion(encoders, 2)
        balancer = method(at=at).attach(model.to(dtype))
        outputs = model({name: x.to(dtype) for name, x in inputs.items()})
        balancer({name: factor * F.cross_entropy(z, labels[name]) for name, z in outputs.items()}).backward()
        assert all(bool(p.grad.isfinite().all()) for p in model.parameters() if p.grad is not None)
        tables.append(balancer.table.values)
    assert not torch.equal(tables[0][0, :2], tables[0][1, :2])
    torch.testing.assert_close(tables[1], tables[0], rtol=1e-4, atol=1e-4, equal_nan=True, check_dtype=False)


@pytest.mark.parametrize("scale", [0.0, 1e-38, 1e-20, 1.0, 1e20, 1e37])
def test_inner_products_of_single_precision_are_those_of_double_precision(scale: float) -> None:
    first, second = scale * torch.tensor([1.0, 2.0]), scale * torch.tensor([3.0, -1.0])
    rows = torch.stack([first, second]).double()
    torch.testing.assert_close(gram_matrix([[first], [second]]), rows @ rows.T, rtol=1e-6, atol=0)
    halves = gram_matrix([[*first.split(1)], [*second.split(1)]])  # over two tensors each
    torch.testing.assert_close(halves, rows @ rows.T, rtol=1e-6, atol=0)


@pytest.mark.parametrize("scale", [0.0, 1e-70, 1e-20, 1.0, 1e20, 1e70])
def test_relative_products_are_in_units_of_the_largest_of_each_block(scale: float) -> None:
    products = torch.tensor([[[4.0, 1.0], [1.0, 2.0]], [[1.0, -2.0], [-2.0, 8.0]]], dtype=torch.float64)
    blocks = torch.tensor([scale, 3 * scale], dtype=torch.float64)[:, None, None]
    found = Gram(blocks * products, ((0, 1), (0, 2))).relative()
    expected = products / torch.tensor([4.0, 8.0])[:, None, None] if scale else torch.zeros_like(products)
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("method", [MGDA, MMPareto])
def test_heads_follow_the_plain_sum(method: type[Balancer]) -> None:
    model, data = SmallModel(names(3)), batch(names(3))
    attached(method(), model)(losses_of(model, data)).backward()
    delivered = gradients_of(model)
    model.zero_grad()
    torch.stack([loss.mean() for loss in losses_of(model, data).values()]).sum().backward()
    for name, gradient in gradients_of(model).items():
        if not name.startswith("encoders."):
            torch.testing.assert_close(delivered[name], gradient)


def test_mmpareto_refuses_wrong_arguments_together() -> None:
    with pytest.raises(ValueError, match=r"boost .* found 0; rescale .* found 'layer'"):
        MMPareto(boost=0, rescale="layer")  # ty: ignore[invalid-argument-type]
