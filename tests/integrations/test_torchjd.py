"""TorchJD: its weightings as ours and ours as its, against each other and against numbers worked out by hand."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torchjd import aggregation
from torchjd.autojac import backward, jac_to_grad

from equipoise import MGDA, MIMO, Balancer, MMPareto
from equipoise.integrations.torchjd import FromTorchJD, ToTorchJD
from equipoise.testing import BalancerContract, SmallModel, batch, losses_of, names
from equipoise.testing.contract import attached, gradients_of


def exact_mgda() -> aggregation.MGDAWeighting:
    return aggregation.MGDAWeighting(epsilon=1e-12, max_iters=1_000)


class TestContractOfPCGrad(BalancerContract):
    def make(self) -> Balancer:
        return FromTorchJD(aggregation.PCGradWeighting())


class Entangled(nn.Module):
    """Two encoders, of which the second reads the first: every loss reaches the first."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.encoders = nn.ModuleDict({"audio": nn.Linear(3, 4), "video": nn.Linear(7, 4)})
        self.heads = nn.ModuleDict({"fused": nn.Linear(8, 3), "audio": nn.Linear(4, 3), "video": nn.Linear(4, 3)})
        self.double()

    def forward(self, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        heard = self.encoders["audio"](inputs["audio"]).tanh()
        seen = self.encoders["video"](torch.cat([inputs["video"], heard], dim=1)).tanh()
        features = {"fused": torch.cat([heard, seen], dim=1), "audio": heard, "video": seen}
        return {name: head(features[name]) for name, head in self.heads.items()}


# -- theirs as ours --


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("model", [lambda: SmallModel(names(1)), lambda: SmallModel(names(3)), Entangled])
def test_both_mgdas_agree(model: Any, seed: int) -> None:
    found = []
    for balancer in (MGDA(), FromTorchJD(exact_mgda())):
        trained = model()
        data = batch(list(trained.encoders), seed=seed)
        attached(balancer, trained)(losses_of(trained, data)).backward()
        found.append((gradients_of(trained), balancer.table.values))
    (ours, table), (theirs, their_table) = found
    torch.testing.assert_close(their_table, table, rtol=0, atol=2e-3, equal_nan=True)
    for name, gradient in ours.items():
        torch.testing.assert_close(theirs[name], gradient, rtol=0, atol=2e-3)


def test_an_aggregator_stands_for_its_weighting() -> None:
    gram = torch.tensor([[[1.0, -0.5], [-0.5, 1.0]]], dtype=torch.float64)
    whole, part = FromTorchJD(aggregation.PCGrad()), FromTorchJD(aggregation.PCGradWeighting())
    assert torch.equal(whole.mix(gram), part.mix(gram))
    assert torch.equal(whole.mix(gram), torch.tensor([[1.5, 1.5]], dtype=torch.float64))  # each loses half the other


def test_a_loss_that_does_not_reach_an_encoder_takes_no_part() -> None:
    gram = torch.zeros(2, 3, 3, dtype=torch.float64)
    gram[0, :2, :2] = torch.tensor([[4.0, 0.0], [0.0, 1.0]])
    weights = FromTorchJD(exact_mgda()).mix(gram)
    torch.testing.assert_close(weights[0], torch.tensor([0.2, 0.8, 0.0], dtype=torch.float64))
    assert weights[1].tolist() == [0.0, 0.0, 0.0]


def test_gradients_that_are_not_finite_do_not_raise() -> None:
    gram = torch.full((1, 2, 2), torch.nan)
    assert FromTorchJD(aggregation.AlignedMTLWeighting()).mix(gram).isnan().all()


def test_every_encoder_has_a_weighting_of_its_own_that_remembers() -> None:
    given = aggregation.GradVacWeighting()
    balancer = FromTorchJD(given)
    gram = torch.tensor([[[1.0, -0.9], [-0.9, 1.0]], [[1.0, 0.9], [0.9, 1.0]]])
    balancer.mix(gram)
    remembered: list[Any] = [each._phi_t for each in balancer._copies]
    assert given._phi_t is None
    assert remembered[0][0, 1] < 0 < remembered[1][0, 1]


@pytest.mark.parametrize("factor", [1e-6, 1.0, 1e6])
def test_the_scale_of_half_precision_plays_no_role(factor: float) -> None:
    found = []
    for scale in (1.0, factor):
        model, balancer = SmallModel(names(2)), FromTorchJD(aggregation.FairGradWeighting(alpha=1.0))
        (attached(balancer, model)(losses_of(model, batch(names(2)))) * scale).backward()
        found.append(balancer.table.values)
    torch.testing.assert_close(found[1], found[0], rtol=1e-4, atol=1e-6, equal_nan=True)


def test_what_is_no_weighting_is_refused() -> None:
    with pytest.raises(TypeError, match=r"expected a weighting.*found str.*Type FromTorchJD\("):
        FromTorchJD("pcgrad")  # ty: ignore[invalid-argument-type]
    with pytest.raises(TypeError, match="found ConFIG"):
        FromTorchJD(aggregation.ConFIG())  # ty: ignore[invalid-argument-type]


# -- ours as theirs --


@pytest.mark.parametrize("count", [2, 3, 4])
@pytest.mark.parametrize("seed", range(4))
def test_our_mgda_is_theirs(count: int, seed: int) -> None:
    jacobian = torch.randn(count, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    gram = jacobian @ jacobian.T
    ours, theirs = ToTorchJD(MGDA())(gram), exact_mgda()(gram)
    assert (ours >= 0).all()
    assert float(ours.sum()) == pytest.approx(1)
    assert float(ours @ gram @ ours) <= float(theirs @ gram @ theirs) + 1e-12  # theirs is found by small steps
    torch.testing.assert_close(ours, theirs, rtol=0, atol=0.02)


def test_mmpareto_is_stretched_as_by_hand() -> None:
    gram = torch.tensor([[4.0, -1.0], [-1.0, 1.0]], dtype=torch.float64)
    # The shortest mixture is (2, 5)/7; times 2γ with γ = 1.5 it has length √(27/7), and γ · |g₁ + g₂| is 1.5 · √3.
    expected = math.sqrt(7 / 4) * torch.tensor([6 / 7, 15 / 7], dtype=torch.float64)
    torch.testing.assert_close(ToTorchJD(MMPareto())(gram), expected)
    agreeing = torch.tensor([[4.0, 1.0], [1.0, 1.0]], dtype=torch.float64)
    torch.testing.assert_close(ToTorchJD(MMPareto())(agreeing), torch.full((2,), 1.5, dtype=torch.float64))


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e4])
def test_weights_do_not_depend_on_the_length_of_gradients(scale: float) -> None:
    gram = torch.tensor([[4.0, -1.0], [-1.0, 1.0]])
    for method in (MGDA(), MMPareto()):
        torch.testing.assert_close(ToTorchJD(method)(scale * gram), ToTorchJD(method)(gram))
    assert ToTorchJD(MGDA())(torch.zeros(2, 2)).isfinite().all()


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("make", [MGDA, lambda: MMPareto(rescale="encoder")])
def test_torchjd_delivers_the_gradient_that_we_deliver(make: Any, seed: int) -> None:
    gradients = []
    for theirs in (False, True):
        torch.manual_seed(seed)
        model = SmallModel(["audio"], seed=seed)
        data, label = batch(["audio"], seed=seed)
        encoder = list(model.encoders["audio"].parameters())
        losses = {name: F.cross_entropy(z, label) for name, z in model(data).items()}
        losses["audio"] = losses["audio"] - 0.8 * losses["fused"]  # so that they conflict
        if theirs:
            backward(list(losses.values()), inputs=encoder)
            jac_to_grad(encoder, aggregation.GramianWeightedAggregator(ToTorchJD(make())))
        else:
            balancer = attached(make(), model)
            balancer(losses).backward()
            assert balancer.table.at("fused", "audio") != balancer.table.at("audio", "audio")  # they do
        gradients.append([tensor.grad for tensor in encoder])
    for ours, its in zip(*gradients, strict=True):
        torch.testing.assert_close(its, ours)


def test_a_method_that_weighs_losses_is_refused() -> None:
    with pytest.raises(TypeError, match="found MIMO, which weighs losses"):
        ToTorchJD(MIMO())
