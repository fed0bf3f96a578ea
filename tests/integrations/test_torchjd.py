"""TorchJD: its weightings and scalarizers as ours, ours as its, against each other and numbers worked out by hand."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, multiprocessing, nn
from torch.nn import functional as F
from torchjd import aggregation, scalarization
from torchjd.autojac import backward, jac_to_grad

from equipoise import MGDA, MIMO, Balancer, Barrier, Gram, Losses, MMPareto, Window
from equipoise.integrations.torchjd import TorchJDScalarizer, TorchJDWeighting, ToTorchJD, from_torchjd
from equipoise.testing import BalancerContract, SmallModel, attached, batch, gradients_of, losses_of, names


def exact_mgda() -> aggregation.MGDAWeighting:
    return aggregation.MGDAWeighting(epsilon=1e-12, max_iters=1_000)


class TestContractOfPCGrad(BalancerContract):
    def make(self) -> Balancer:
        return from_torchjd(aggregation.PCGradWeighting())


class TestContractOfSTCH(BalancerContract):
    def make(self) -> Balancer:
        return from_torchjd(scalarization.STCH(mu=0.1))


class TestContractOfGeometricMean(BalancerContract):
    def make(self) -> Balancer:
        return from_torchjd(scalarization.GeometricMean())


class TestContractOfMean(BalancerContract):
    def make(self) -> Balancer:
        return from_torchjd(scalarization.Mean())


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


def mixed(balancer: Balancer, products: Tensor) -> Tensor:
    """The coefficients of a method for inner products; it reads no losses."""
    assert isinstance(balancer, TorchJDWeighting)
    unread = torch.zeros(products.shape[-1])
    objectives = tuple(range(products.shape[-1]))
    return balancer.mix(Gram(products, (objectives,) * len(products)), Losses(unread[0], unread[1:], unread[1:]))


@pytest.mark.filterwarnings("ignore:attach. the losses of 'video' reach the encoders of other modalities")
@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("model", [lambda: SmallModel(names(1)), lambda: SmallModel(names(3)), Entangled])
def test_both_mgdas_agree(model: Any, seed: int) -> None:
    found = []
    for balancer in (MGDA(), from_torchjd(exact_mgda())):
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
    whole, part = from_torchjd(aggregation.PCGrad()), from_torchjd(aggregation.PCGradWeighting())
    assert torch.equal(mixed(whole, gram), mixed(part, gram))
    assert torch.equal(mixed(whole, gram), torch.tensor([[1.5, 1.5]], dtype=torch.float64))  # each loses half the other


def test_a_loss_that_does_not_reach_an_encoder_takes_no_part() -> None:
    gram = torch.zeros(2, 3, 3, dtype=torch.float64)
    gram[0, :2, :2] = torch.tensor([[4.0, 0.0], [0.0, 1.0]])
    weights = mixed(from_torchjd(exact_mgda()), gram)
    torch.testing.assert_close(weights[0], torch.tensor([0.2, 0.8, 0.0], dtype=torch.float64))
    assert weights[1].tolist() == [0.0, 0.0, 0.0]


def test_gradients_that_are_not_finite_do_not_raise() -> None:
    gram = torch.full((1, 2, 2), torch.nan)
    assert mixed(from_torchjd(aggregation.AlignedMTLWeighting()), gram).isnan().all()


def test_every_encoder_has_a_weighting_of_its_own_that_remembers() -> None:
    given = aggregation.GradVacWeighting()
    balancer = from_torchjd(given)
    gram = torch.tensor([[[1.0, -0.9], [-0.9, 1.0]], [[1.0, 0.9], [0.9, 1.0]]])
    assert isinstance(balancer, TorchJDWeighting)
    mixed(balancer, gram)
    remembered: list[Any] = [each._phi_t for each in balancer._weightings]
    assert given._phi_t is None
    assert remembered[0][0, 1] < 0 < remembered[1][0, 1]


@pytest.mark.parametrize("factor", [1e-6, 1.0, 1e6])
def test_the_scale_of_half_precision_plays_no_role(factor: float) -> None:
    found = []
    for scale in (1.0, factor):
        model, balancer = SmallModel(names(2)), from_torchjd(aggregation.FairGradWeighting(alpha=1.0))
        (attached(balancer, model)(losses_of(model, batch(names(2)))) * scale).backward()
        found.append(balancer.table.values)
    torch.testing.assert_close(found[1], found[0], rtol=1e-4, atol=1e-6, equal_nan=True)


# -- their scalarizers --


def weights_of(balancer: Balancer) -> Tensor:
    """The weight of every loss, the fused one first."""
    table = balancer.table
    own = [table.at(name, "own heads") for name in balancer.modalities]
    return torch.stack([table.at("fused", "fused head"), *own])


SCALARIZERS: dict[str, Callable[[int], scalarization.Scalarizer]] = {
    "Mean": lambda _: scalarization.Mean(),
    "Sum": lambda _: scalarization.Sum(),
    "Constant": lambda count: scalarization.Constant(torch.linspace(0.5, 2, count)),
    "GeometricMean": lambda _: scalarization.GeometricMean(),
    "STCH": lambda count: scalarization.STCH(0.05, torch.linspace(1, 2, count), torch.linspace(0, 0.5, count)),
    "COSMOS": lambda count: scalarization.COSMOS(2.0, torch.linspace(0.2, 1, count)),
    "PBI": lambda count: scalarization.PBI(5.0, torch.linspace(0.2, 1, count, dtype=torch.float64)),
    "UW": scalarization.UW,
    "IMTLL": scalarization.IMTLL,
    "DWA": lambda _: scalarization.DWA(),
    "FAMO": lambda count: scalarization.FAMO(count, lr=0.2),
}


def run(model: SmallModel, scalarizer: scalarization.Scalarizer, *, ours: bool) -> list[float]:
    """Train for four epochs of three steps, by TorchJD's own loop or with the scalarizer as a balancer."""
    modalities = list(model.encoders)
    own = [p for p in scalarizer.parameters() if not isinstance(scalarizer, scalarization.FAMO)]
    optimizer = torch.optim.SGD([*model.parameters(), *own], lr=0.3)
    balancer = from_torchjd(scalarizer).attach(model, optimizer=optimizer) if ours else None
    values = []
    for _ in range(4):
        for seed in range(3):
            data = batch(modalities, seed=seed)
            optimizer.zero_grad()
            losses = losses_of(model, data)
            vector = torch.stack([loss.mean() for loss in losses.values()])
            loss = scalarizer(vector) if balancer is None else balancer(losses)
            loss.backward()
            optimizer.step()
            values.append(float(loss.detach()))
            if isinstance(scalarizer, scalarization.FAMO):
                with torch.no_grad():
                    after = losses_of(model, data)
                if balancer is None:
                    scalarizer.update(torch.stack([loss.mean() for loss in after.values()]))
                else:
                    assert isinstance(balancer, TorchJDScalarizer)
                    balancer.update(after)
        if balancer is not None:
            balancer.end_epoch()
        elif isinstance(scalarizer, scalarization.DWA):
            scalarizer.step()
    return values


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("name", SCALARIZERS)
def test_a_scalarizer_trains_as_in_a_loop_of_torchjd(name: str, count: int) -> None:
    models, scalarizers, values = [], [], []
    for ours in (False, True):
        models.append(SmallModel(names(count)))
        scalarizers.append(SCALARIZERS[name](count + 1))
        values.append(run(models[-1], scalarizers[-1], ours=ours))
    assert values[1] == pytest.approx(values[0], rel=1e-9)
    torch.testing.assert_close(models[1].state_dict(), models[0].state_dict(), rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(scalarizers[1].state_dict(), scalarizers[0].state_dict(), rtol=1e-6, atol=1e-9)
    if list(scalarizers[0].parameters()):  # what is learnt has moved
        assert all(bool(p.any()) for p in scalarizers[1].parameters())


def test_weights_are_the_derivative_by_hand() -> None:
    balancer = from_torchjd(scalarization.UW(3))
    loss = balancer({"fused": torch.tensor(1.0), "audio": torch.tensor(2.0), "video": torch.tensor(5.0)})
    assert float(loss.detach()) == 4.0  # half of the sum
    assert weights_of(balancer).tolist() == [0.5, 0.5, 0.5]


def test_a_learnt_scalarizer_gets_its_gradient_from_above_and_in_windows() -> None:
    whole, parts = scalarization.UW(3), scalarization.UW(3)
    model = SmallModel(names(2))
    inputs, label = batch(names(2))
    (from_torchjd(whole)(losses_of(model, (inputs, label))) * 8).backward()
    halves = [({name: x[rows] for name, x in inputs.items()}, label[rows]) for rows in (slice(6), slice(6, 12))]
    with torch.no_grad():
        measured = [losses_of(model, half) for half in halves]
    balancer = from_torchjd(parts)
    with Window(balancer).open(measured):
        for half in halves:
            (balancer(losses_of(model, half)) * 8 / 2).backward()
    assert whole.log_var.grad is not None
    assert bool(whole.log_var.grad.any())
    torch.testing.assert_close(parts.log_var.grad, whole.log_var.grad)


def test_second_derivatives_are_those_of_the_scalarizer() -> None:
    found = []
    for ours in (False, True):
        model = SmallModel(names(2))
        losses = {name: loss.mean() for name, loss in losses_of(model, batch(names(2))).items()}
        scalarizer = scalarization.STCH(mu=0.2)
        value = from_torchjd(scalarizer)(losses) if ours else scalarizer(torch.stack(list(losses.values())))
        gradients = torch.autograd.grad(value, list(model.parameters()), create_graph=True)
        torch.stack([g.square().sum() for g in gradients]).sum().backward()
        found.append(gradients_of(model))
    torch.testing.assert_close(found[1], found[0], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", SCALARIZERS)
def test_an_evaluation_leaves_no_trace_in_a_scalarizer(name: str) -> None:
    scalarizer = SCALARIZERS[name](3)
    balancer, model = from_torchjd(scalarizer), SmallModel(names(2))
    balancer(losses_of(model, batch(names(2)))).backward()
    before = copy.deepcopy(vars(scalarizer))
    for context in (torch.no_grad(), torch.inference_mode()):
        with context:
            assert not balancer(losses_of(model, batch(names(2), seed=1))).requires_grad
    assert repr(vars(scalarizer)) == repr(before)


def test_what_runs_on_the_host_is_never_the_same_step_again() -> None:
    balancer = from_torchjd(scalarization.DWA())
    assert balancer.host_values() != balancer.host_values()  # so that no step is recorded


@pytest.mark.parametrize("name", SCALARIZERS)
def test_what_a_scalarizer_has_learnt_follows_the_names(name: str) -> None:
    count, forth = 3, names(3)
    scalarizer, model = SCALARIZERS[name](count + 1), SmallModel(forth)
    own = [p for p in scalarizer.parameters() if not isinstance(scalarizer, scalarization.FAMO)]
    for moved in own:
        nn.init.normal_(moved, generator=torch.Generator().manual_seed(0))
    first = attached(from_torchjd(scalarizer), model, torch.optim.SGD([*model.parameters(), *own], lr=0.1))
    first(losses_of(model, batch(forth)))
    turned, again = SmallModel(forth[::-1]), SCALARIZERS[name](count + 1)
    turned.load_state_dict(model.state_dict())
    second = from_torchjd(again).attach(turned)
    second.load_state_dict(first.state_dict())
    second(losses_of(turned, batch(forth)))
    for objective, row in first.table.numbers().items():
        assert second.table.numbers()[objective] == pytest.approx(row, rel=1e-6)


def test_one_that_nobody_trains_is_told() -> None:
    model = SmallModel(names(2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    balancer = from_torchjd(scalarization.UW(3)).attach(model, optimizer=optimizer)
    with pytest.warns(UserWarning, match=r"UW has parameters, which no attached optimiser moves: type SGD\(\[\*model"):
        balancer(losses_of(model, batch(names(2))))
    balancer(losses_of(model, batch(names(2))))  # once
    famo = from_torchjd(scalarization.FAMO(3)).attach(model, optimizer=optimizer)
    optimizer.step()
    with pytest.warns(UserWarning, match=r"FAMO learns .* type balancer\.update\(losses\) after each"):
        optimizer.step()
    famo.eval()
    assert isinstance(balancer, TorchJDScalarizer)
    with pytest.raises(TypeError, match="expected FAMO, which reads losses after a step; found UW"):
        balancer.update(losses_of(model, batch(names(2))))


def _on_one_of_two_ranks(rank: int, folder: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{folder}/group", rank=rank, world_size=2)
    whole = batch(names(2))
    half = {name: x[6 * rank : 6 * rank + 6] for name, x in whole[0].items()}, whole[1][6 * rank : 6 * rank + 6]
    for name in ("UW", "STCH", "GeometricMean"):
        shared, alone = SmallModel(names(2)), SmallModel(names(2))
        scalarizers = [SCALARIZERS[name](3), SCALARIZERS[name](3)]
        wrapped = nn.parallel.DistributedDataParallel(shared)
        from_torchjd(scalarizers[0]).attach(wrapped)(losses_of(wrapped, half)).backward()
        from_torchjd(scalarizers[1]).attach(alone, group=None)(losses_of(alone, whole)).backward()
        torch.testing.assert_close(gradients_of(shared), gradients_of(alone))
        learnt = [[parameter.grad for parameter in one.parameters()] for one in scalarizers]
        torch.testing.assert_close(learnt[0], learnt[1])
    torch.manual_seed(rank)  # what is drawn differs between ranks
    balancer = from_torchjd(scalarization.Random())
    balancer(losses_of(SmallModel(names(2)), half))
    weights = weights_of(balancer)
    gathered = [torch.zeros_like(weights) for _ in range(2)]
    dist.all_gather(gathered, weights)
    assert torch.equal(*gathered)
    dist.destroy_process_group()


@pytest.mark.slow
def test_two_ranks_do_what_one_process_does(tmp_path: Path) -> None:
    multiprocessing.spawn(_on_one_of_two_ranks, (str(tmp_path),), nprocs=2)


def test_a_loss_of_zero_is_told_where_a_scalarizer_has_no_derivative_there() -> None:
    losses = {"fused": torch.tensor(1.0), "audio": torch.tensor(0.0), "video": torch.tensor(5.0)}
    with pytest.raises(FloatingPointError, match=r"TorchJDScalarizer\.weigh: expected finite weights"):
        from_torchjd(scalarization.GeometricMean())(losses)


def test_what_is_no_weighting_is_refused() -> None:
    with pytest.raises(TypeError, match=r"expected a weighting.*found str.*Type from_torchjd\("):
        from_torchjd("pcgrad")  # ty: ignore[invalid-argument-type]
    with pytest.raises(TypeError, match="found ConFIG"):
        from_torchjd(aggregation.ConFIG())  # ty: ignore[invalid-argument-type]


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
    with pytest.raises(TypeError, match="Barrier reads values of losses, which TorchJD does not give"):
        ToTorchJD(Barrier())
