"""Losses of samples that lack a sensor."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from equipoise import AGM, EW, MIMO, MLB, OGM, Balancer, HybridFusion
from equipoise.balance import collectives
from equipoise.models.fusion_model import Unimodal as View
from equipoise.testing import SmallModel, attached, balanced, batch, gradients_of, losses_of, names
from everything import METHODS, SHAPES

TRUE, FALSE = True, False


def losses_by_hand() -> dict[str, Tensor]:
    """Three samples, of which the second has no audio, and the last two no video."""
    return {
        "fused": torch.tensor([1.0, 2.0, 3.0]),
        "audio": torch.tensor([math.log(2), torch.inf, math.log(4)]),
        "video": torch.tensor([math.log(8), torch.nan, -torch.inf]),
    }


MASKS = {"audio": torch.tensor([TRUE, FALSE, TRUE]), "video": torch.tensor([1, 0, 0])}


def test_mimo_by_hand() -> None:
    # f_mm = 2, f_audio = (ln 2 + ln 4) / 2 = 1.5 ln 2, f_video = 3 ln 2; with μ = ln 2 the shares are e^1.5 : e^3.
    balancer = MIMO(penalty=10.0, smoothing=math.log(2))
    value = balancer(losses_by_hand(), present=MASKS)
    video = 10 / (1 + math.exp(-1.5))
    assert float(balancer.table.at("fused", "fused head")) == 1
    assert balancer.table.values[1:, -1].tolist() == pytest.approx([10 - video, video])
    assert float(value) == pytest.approx(2 + 10 * math.log(2) * math.log(math.exp(1.5) + math.exp(3)))


def test_ogm_by_hand() -> None:
    # The probabilities of the right class: audio (1/2 + 1/4) / 2 = 3/8, video 1/8; audio is ahead by three.
    model = SmallModel(names(2)).float()
    balancer = attached(OGM(strength=0.5), model)
    anchor = torch.stack([p.sum() for p in model.parameters()]).sum() * 0
    losses = losses_by_hand()
    balancer(losses | {"fused": losses["fused"] + anchor}, present=MASKS)
    assert float(balancer.table.at("fused", "audio")) == pytest.approx(1 - math.tanh(0.5 * 3))
    assert float(balancer.table.at("fused", "video")) == 1.0


@pytest.mark.parametrize("whole", [False, True])
def test_scores_that_are_given_are_read_under_the_masks(whole: bool) -> None:
    # Audio (0.8 + 0.4) / 2 = 0.6 and video 0.3: audio is ahead by two. One number per sensor is that of its samples.
    per_sample = {"audio": torch.tensor([0.8, 0.0, 0.4]), "video": torch.tensor([0.3, torch.nan, -1.0])}
    scores = {"audio": torch.tensor(0.6), "video": torch.tensor(0.3)} if whole else per_sample
    model = SmallModel(names(2)).float()
    balancer = attached(OGM(strength=0.5), model)
    anchor = torch.stack([p.sum() for p in model.parameters()]).sum() * 0
    losses = losses_by_hand()
    balancer(losses | {"fused": losses["fused"] + anchor}, scores=scores, present=MASKS)
    assert float(balancer.table.at("fused", "audio")) == pytest.approx(1 - math.tanh(0.5 * 2))


def test_ew_by_hand_with_its_gradient() -> None:
    losses = {name: loss.requires_grad_() for name, loss in losses_by_hand().items()}
    EW(weight=2.0)(losses, present=MASKS).backward()
    assert losses["fused"].grad is not None
    assert losses["fused"].grad.tolist() == pytest.approx([1 / 3] * 3)
    assert losses["audio"].grad is not None
    assert losses["audio"].grad.tolist() == [1.0, 0.0, 1.0]  # 2 · 1/2
    assert losses["video"].grad is not None
    assert losses["video"].grad.tolist() == [2.0, 0.0, 0.0]


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("overflow", ["stable", "double"])
def test_mimo_gives_no_weight_to_a_sensor_that_no_sample_has(smoothing: float, overflow: str) -> None:
    balancer = MIMO(smoothing=smoothing, overflow=overflow, optimum={"a": -9.0, "b": 0.0, "c": 0.0})  # ty: ignore
    losses = {name: torch.ones(2) for name in ("fused", "a", "b", "c")}
    balancer(losses, present={"a": torch.zeros(2)})
    assert balancer.table.values[1:, -1].tolist() == pytest.approx([0, 5, 5])
    value = balancer(losses, present={name: torch.zeros(2) for name in "abc"})
    assert bool(balancer.table.values[1:, -1].isfinite().all())
    assert bool(value.isfinite())


def test_second_derivatives_of_mimo_are_exact_with_masks() -> None:
    balancer = MIMO(penalty=2.0, smoothing=0.5)
    mask = torch.tensor([True, True, False])
    found = []
    for masked in (False, True):
        x = torch.tensor([0.3, 0.8, 1.1], dtype=torch.float64, requires_grad=True)
        losses = {"fused": x.square(), "a": x.sin(), "b": x.exp()}
        losses["a"] = losses["a"] if masked else losses["a"][mask]
        (first,) = torch.autograd.grad(balancer(losses, present={"a": mask} if masked else None), x, create_graph=True)
        (second,) = torch.autograd.grad(first.square().sum(), x)
        found.append(second)
    torch.testing.assert_close(found[1], found[0])


@pytest.mark.parametrize("balancer", [OGM(), MLB(), AGM(form="fast")], ids=repr)
def test_a_sensor_that_no_sample_has_is_neither_ahead_nor_behind(balancer: Balancer) -> None:
    model, data = SmallModel(names(2)), batch(names(2))
    attached(balancer, model)
    balanced(balancer, losses_of(model, data), present={"video": torch.zeros(12)}).backward()
    assert balancer.table.at("fused", "audio") == balancer.table.at("fused", "video") == 1


@pytest.mark.parametrize("method", SHAPES)
def test_masks_without_gaps_change_nothing(method: str) -> None:
    found = []
    for present in (None, {name: torch.ones(12) for name in names(2)}):
        model, data = SmallModel(names(2)), batch(names(2))
        balancer = attached(METHODS[method](), model)
        balanced(balancer, losses_of(model, data), present=present).backward()
        found.append(gradients_of(model))
    torch.testing.assert_close(found[1], found[0], rtol=1e-12, atol=1e-12)


def stacked_losses(model: SmallModel, mask: Tensor, hides: str) -> dict[str, Tensor]:
    """Losses that are pieces of one tensor; the video of some samples is hidden in the model, or its loss made zero."""
    inputs, label = batch(names(2))
    places = {"everywhere": model.encoders, "when fused": model.fused}
    if hides in places:
        hook = places[hides]["video"].register_forward_hook(lambda *call: call[-1].where(mask[:, None], 0))
        outputs = model(inputs)
        hook.remove()
    else:
        outputs = model(inputs)
    stacked = torch.stack(list(outputs.values()))
    losses = cross_entropy(stacked.flatten(0, 1), label.repeat(len(stacked)), reduction="none").view(len(stacked), -1)
    named = dict(zip(outputs, losses, strict=True))
    return named if hides in places else {**named, "video": torch.where(mask, named["video"], 0)}


@pytest.mark.parametrize("hides", ["everywhere", "when fused", "its loss"])
@pytest.mark.parametrize("method", [name for name in SHAPES if METHODS[name]().at == "parameters"])
def test_a_first_batch_without_a_sensor_does_not_hide_what_its_loss_depends_on(method: str, hides: str) -> None:
    model = SmallModel(names(2))
    found = []
    for first in (torch.zeros(12).bool(), torch.ones(12).bool()):
        balancer = attached(METHODS[method](), model)
        balancer.transform = lambda modality, gradient, parts: gradient  # noqa: ARG005
        state = {name: buffer.clone() for name, buffer in balancer.named_buffers()}
        balanced(balancer, stacked_losses(model, first, hides), present={"video": first}).backward()
        for name, buffer in state.items():  # of the first batch, only what was seen of the graph counts
            balancer.get_buffer(name).copy_(buffer)
        model.zero_grad()
        mask = torch.arange(12) < 6
        balanced(balancer, stacked_losses(model, mask, hides), present={"video": mask}).backward()
        found.append((gradients_of(model), balancer.table.values))
    torch.testing.assert_close(found[0], found[1], rtol=1e-9, atol=1e-12, equal_nan=True)


@pytest.mark.parametrize("unimodal", ["masked", "head"])
@pytest.mark.parametrize("method", ["ew", "mimo", "mgda", "mmpareto", "mlb", "dgl", "msl"])
def test_a_hybrid_takes_a_first_batch_whose_masked_loss_is_set_to_zero(method: str, unimodal: View) -> None:
    """Encoders meet in its trunk, so that the graph connects every loss with every encoder."""
    random = torch.Generator().manual_seed(0)
    inputs = {name: torch.randn(8, 3, generator=random) for name in ("audio", "video")}
    label, nobody, half = torch.arange(8) % 2, torch.zeros(8).bool(), torch.arange(8) < 4
    found = []
    for masks in ((nobody, half), (half,)):
        torch.manual_seed(0)
        encoders = {name: torch.nn.Linear(3, 4) for name in inputs}
        model = HybridFusion(encoders, classes=2, unimodal=unimodal, width=8, depth=1).double()
        balancer = attached(METHODS[method](), model)
        for mask in masks:
            model.zero_grad()
            outputs = model({name: x.double() for name, x in inputs.items()})
            losses = {name: cross_entropy(z, label, reduction="none") for name, z in outputs.items()}
            losses["audio"] = torch.where(mask, losses["audio"], 0.0)
            balancer(losses, present={"audio": mask}).backward()
        found.append({name: each.grad for name, each in model.named_parameters()})
    torch.testing.assert_close(found[0], found[1], rtol=1e-9, atol=1e-12)


def test_nothing_is_computed_for_masks_that_are_not_given(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr(torch, "where", lambda *_: asked.append(1))
    EW()({"fused": torch.ones(2), "a": torch.ones(2)})
    assert not asked


def test_the_shares_travel_with_the_losses(monkeypatch: pytest.MonkeyPatch) -> None:
    messages = []

    def mean(values: Tensor, group: object) -> Tensor:  # noqa: ARG001
        messages.append(len(values))
        return values

    monkeypatch.setattr(collectives, "mean", mean)
    losses = {"fused": torch.ones(2), "a": torch.ones(2), "b": torch.ones(2)}
    EW()(losses, present={"a": torch.tensor([True, False])})
    assert messages == [5, 2]  # three losses with two shares, and the scores
