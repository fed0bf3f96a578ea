"""CGGM: factors by hand and within bounds, and the direction term beside a plain second derivative."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from equipoise import CGGM, MSL, LateFusion, Window
from equipoise.balance.reading import GivenStep
from equipoise.data.splits import Part
from equipoise.testing import SmallModel, attached, batch, gradients_of, losses_of, names
from equipoise.training.step import losses_of as training_loss


def stepped(balancer: CGGM, model: nn.Module, accuracies: list[float]) -> list[float]:
    """The factors of one step whose classifiers have these accuracies."""
    modalities = names(len(accuracies))
    scores = {
        name: torch.tensor(value, dtype=torch.float64) for name, value in zip(modalities, accuracies, strict=True)
    }
    balancer(losses_of(model, batch(modalities)), scores=scores).backward()
    return [float(balancer.table.at("fused", name)) for name in modalities]


def ready(count: int, strength: float = 1.0) -> tuple[CGGM, SmallModel]:
    model = SmallModel(names(count), detached=True)
    balancer = CGGM(strength)
    attached(balancer, model)
    return balancer, model


def test_two_modalities_by_hand() -> None:
    balancer, model = ready(2, 1.3)
    assert stepped(balancer, model, [0.6, 0.2]) == pytest.approx([1.3 * 0.25, 1.3 * 0.75])  # from zero
    # Δ = 0.1 and 0.3: (0.4 − 0.1) / 0.4 and (0.4 − 0.3) / 0.4
    assert stepped(balancer, model, [0.7, 0.5]) == pytest.approx([1.3 * 0.75, 1.3 * 0.25], rel=1e-6)


@pytest.mark.parametrize("count", [2, 3, 4, 6])
def test_where_all_rose_it_is_the_published_quotient(count: int) -> None:
    draw = torch.Generator().manual_seed(count)
    balancer, model = ready(count)
    before = torch.zeros(count, dtype=torch.float64)
    for _ in range(5):
        now = before + 0.01 + 0.1 * torch.rand(count, generator=draw, dtype=torch.float64)
        rise = now - before
        expected = (rise.sum() - rise) / rise.sum()
        assert stepped(balancer, model, now.tolist()) == pytest.approx(expected.tolist(), rel=1e-5)
        before = now


@pytest.mark.parametrize("count", [1, 2, 3, 6])
def test_factors_stay_within_bounds_whatever_accuracies_do(count: int) -> None:
    """Published, the quotient of changes whose sum is next to nothing, or negative, has no bounds."""
    draw = torch.Generator().manual_seed(count)
    balancer, model = ready(count, 1.3)
    for step in range(40):
        size = 10.0 ** -(step % 9)
        now = (0.5 + size * (torch.rand(count, generator=draw) - 0.5)).tolist()
        found = stepped(balancer, model, now)
        assert all(0 <= factor <= 1.3 for factor in found)
        assert sum(found) == pytest.approx(1.0 if count == 1 else 1.3 * (count - 1), rel=1e-4)


def test_a_fall_counts_as_no_rise_and_where_nobody_rose_factors_are_even() -> None:
    balancer, model = ready(3)
    stepped(balancer, model, [0.5, 0.5, 0.5])
    assert stepped(balancer, model, [0.6, 0.4, 0.5]) == pytest.approx([0.0, 1.0, 1.0], abs=1e-6)
    assert stepped(balancer, model, [0.5, 0.4, 0.5]) == pytest.approx([2 / 3] * 3)
    assert stepped(balancer, model, [0.5, 0.4, 0.5]) == pytest.approx([2 / 3] * 3)


def test_a_sensor_that_no_sample_has_keeps_its_accuracy() -> None:
    balancer, model = ready(2)
    stepped(balancer, model, [0.5, 0.5])
    scores = {name: torch.full((12,), 0.7) for name in names(2)}
    balancer(losses_of(model, batch(names(2))), scores=scores, present={"video": torch.zeros(12)}).backward()
    assert balancer.accuracy.tolist() == pytest.approx([0.7, 0.5])
    assert [float(balancer.table.at("fused", n)) for n in names(2)] == pytest.approx([0.5, 0.5])


def fusion_model(count: int, fusion: str = "concat") -> LateFusion:
    torch.manual_seed(0)
    encoders = {name: nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 4)) for name in names(count)}
    return LateFusion(encoders, 3, fusion=fusion, unimodal="detached").double()


def plain_step(model: LateFusion, part: Part, factors: list[float], strength: float, weight: float) -> Tensor:
    """The method in plain torch: returns the direction term, and leaves gradients behind."""
    modalities = list(model.encoders)
    outputs = model(part.inputs)
    losses = {name: F.cross_entropy(output, part.label) for name, output in outputs.items()}
    head = model.fusion.get_parameter("head.weight")
    (fused,) = torch.autograd.grad(losses["fused"], head, create_graph=True)
    cosines = []
    for place, name in enumerate(modalities):
        (own,) = torch.autograd.grad(losses[name], model.heads[name].get_parameter("weight"), retain_graph=True)
        columns = fused[:, 4 * place : 4 * place + 4]
        cosines.append((own * columns).sum() / own.norm() / columns.norm())
    quotients = [factor / strength for factor in factors]
    terms = [abs(b) - b * cosine for b, cosine in zip(quotients, cosines, strict=True)]
    term = weight * torch.stack(terms).sum() / len(modalities)
    model.zero_grad()
    torch.stack(list(losses.values())).sum().backward(retain_graph=True)  # heads of their own are beside
    for name, factor in zip(modalities, factors, strict=True):
        for parameter in model.encoders[name].parameters():
            assert parameter.grad is not None
            parameter.grad *= factor
    term.backward()
    return term.detach()


@pytest.mark.parametrize("count", [2, 3])
def test_the_direction_term_is_that_of_a_plain_second_derivative(count: int) -> None:
    model = fusion_model(count)
    part = Part(*batch(names(count)))
    balancer = CGGM(strength=1.3, direction=0.7)
    attached(balancer, model)
    loss, losses = training_loss(model, balancer, part)
    loss.backward()
    found, factors = gradients_of(model), [float(balancer.table.at("fused", name)) for name in names(count)]
    term = plain_step(model, part, factors, 1.3, 0.7)
    assert float(loss.detach()) == pytest.approx(float(losses["fused"].detach().mean() + term))
    torch.testing.assert_close(found, gradients_of(model), rtol=1e-9, atol=1e-12)
    assert balancer.remarks == {}


def test_without_the_direction_term_encoders_have_their_factor_alone() -> None:
    model, part = fusion_model(2), Part(*batch(names(2)))
    results = []
    for balancer in (CGGM(direction=0.0), MSL()):
        model.zero_grad()
        attached(balancer, model)
        training_loss(model, balancer, part)[0].backward()
        results.append(gradients_of(model))
        if isinstance(balancer, CGGM):
            factor = {name: float(balancer.table.at("fused", name)) for name in names(2)}
    for name, gradient in results[1].items():
        expected = factor[name.split(".")[1]] * gradient if name.startswith("encoders.") else gradient
        torch.testing.assert_close(results[0][name], expected)


def test_it_turns_the_fused_head_towards_the_classifiers() -> None:
    """Steps along the term alone make the gradients of the fused head more like those of the classifiers."""
    model, part = fusion_model(2), Part(*batch(names(2), size=48))
    first = float(attached_term(model, part).detach())
    optimizer = torch.optim.SGD([*model.encoders.parameters(), *model.fusion.parameters()], lr=0.05)
    for _ in range(20):
        optimizer.zero_grad()
        attached_term(model, part).backward()
        optimizer.step()
    assert float(attached_term(model, part).detach()) < first


def attached_term(model: LateFusion, part: Part) -> Tensor:
    balancer = CGGM(direction=1.0).attach(model, optimizer=torch.optim.SGD(model.parameters(), 0.1))
    losses = {name: F.cross_entropy(output, part.label) for name, output in model(part.inputs).items()}
    known = balancer.read(GivenStep(losses, {name: torch.tensor(0.5) for name in names(2)})).losses
    term = balancer.regulariser(losses, known, balancer.decide(known))
    assert term is not None
    return term


@pytest.mark.parametrize("fusion", ["sum", "concat"])
def test_additive_fusions_have_output_layers(fusion: str) -> None:
    layers = fusion_model(3, fusion).output_layers()
    assert list(layers) == names(3)
    for own, (tensor, columns) in layers.values():
        assert own.shape == (tensor if columns is None else tensor[:, columns]).shape


def test_other_models_do_without_the_direction_term_and_say_so() -> None:
    balancer, model = ready(2)
    stepped(balancer, model, [0.5, 0.4])
    assert "left out" in balancer.remarks["direction"]
    assert CGGM(direction=0.0).remarks == {}
    encoders = {name: nn.Linear(3, 4) for name in names(2)}
    nested = LateFusion(encoders, head=lambda size: nn.Sequential(nn.Linear(size, 3)), unimodal="detached")
    for model in (LateFusion(encoders, 3, fusion="gated", unimodal="detached"), nested):
        assert model.output_layers() == {}
        balancer = CGGM().attach(model, optimizer=torch.optim.SGD(model.parameters(), 0.1))
        assert "left out" in balancer.remarks["direction"]


def test_frozen_heads_and_losses_from_elsewhere_have_no_direction() -> None:
    model, (inputs, label) = fusion_model(2), batch(names(2))
    for parameter in model.heads.parameters():
        parameter.requires_grad_(False)
    balancer = CGGM()
    attached(balancer, model)
    losses = {name: F.cross_entropy(z, label, reduction="none") for name, z in model(inputs).items()}
    loss = balancer(losses, scores={name: torch.tensor(0.5) for name in names(2)})
    loss.backward()
    # cosines of nothing are zero: λ/K · Σ B_k
    assert float(loss.detach()) == pytest.approx(float(losses["fused"].detach().mean()) + 0.2 / 2 * 1.0)
    assert all(bool(gradient.isfinite().all()) for gradient in gradients_of(model).values())


def test_a_window_moves_the_accuracies_once() -> None:
    balancer, model = ready(2)
    data = batch(names(2))
    with torch.no_grad():
        losses = losses_of(model, data)
    halves = [{name: loss[rows] for name, loss in losses.items()} for rows in (slice(6), slice(6, 12))]
    scores = [{"audio": torch.tensor(0.2), "video": torch.tensor(0.6)}, {name: torch.tensor(0.4) for name in names(2)}]
    with Window(balancer).open(halves, scores=scores):
        for rows in (slice(6), slice(6, 12)):
            some = {name: x[rows] for name, x in data[0].items()}, data[1][rows]
            (balancer(losses_of(model, some)) / 2).backward()
    assert balancer.accuracy.tolist() == pytest.approx([0.3, 0.5])
