import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from equipoise.data import Part
from equipoise.measure import conflict
from equipoise.models import LateFusion
from measure.constructed import linear, random_model, random_part, series_model, series_part, share_of


def constructed(signs: dict[str, float]) -> tuple[LateFusion, Part]:
    """Encoders at zero, so that every head gives even chances; a head that is the fused one's share times a sign."""
    torch.manual_seed(0)
    model = LateFusion({name: nn.Linear(3, 4) for name in signs}, classes=2, fusion="sum")
    with torch.no_grad():
        for name, sign in signs.items():
            share, own = share_of(model, name), linear(model.heads, name)
            for parameter in (*model.encoders[name].parameters(), share.bias, own.bias):
                parameter.zero_()
            own.weight.copy_(sign * share.weight)
    label = torch.tensor([0, 1, 1, 0, 1])
    return model, Part({name: torch.randn(5, 3) for name in signs}, label)


def test_agreement_and_conflict_by_construction() -> None:
    found = conflict(*constructed({"audio": 1.0, "video": -1.0, "text": 3.0}))
    assert found["cosine"] == pytest.approx({"audio": 1.0, "video": -1.0, "text": 1.0})
    assert found["conflicting"] == pytest.approx(1 / 3)


@pytest.mark.parametrize("view", ["head", "split"])
def test_cosine_is_that_of_the_gradients(view: str) -> None:
    model, part = random_model(2, unimodal=view), random_part(2)
    found = conflict(model, part)
    for name, encoder in model.encoders.items():
        flat = []
        for objective in ("fused", name):
            loss = F.cross_entropy(model(part.inputs)[objective], part.label)
            gradients = torch.autograd.grad(loss, list(encoder.parameters()))
            flat.append(torch.cat([gradient.flatten() for gradient in gradients]))
        assert found["cosine"][name] == pytest.approx(F.cosine_similarity(*flat, dim=0).item(), abs=1e-5)


def test_nothing_of_the_model_changes() -> None:
    model, part = series_model(dropout=0.5), series_part()
    marked = next(model.parameters())
    marked.grad = torch.ones_like(marked)
    before = copy.deepcopy(model.state_dict())
    state = torch.get_rng_state()
    with torch.no_grad():
        conflict(model, part)
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    assert torch.equal(marked.grad, torch.ones_like(marked))
    assert all(parameter.grad is None for parameter in model.parameters() if parameter is not marked)
    assert torch.equal(torch.get_rng_state(), state)
    assert model.training


def test_the_batch_is_drawn_by_the_seed() -> None:
    model, part = random_model(2), random_part(2)
    assert conflict(model, part, batch=8, seed=0) == conflict(model, part, batch=8, seed=0)
    assert conflict(model, part, batch=8, seed=0) != conflict(model, part, batch=8, seed=1)


def test_frozen_encoders_have_no_conflict() -> None:
    model, part = constructed({"audio": -1.0, "video": -1.0})
    model.encoders["audio"].requires_grad_(False)
    assert conflict(model, part) == {"cosine": pytest.approx({"audio": 0.0, "video": -1.0}), "conflicting": 0.5}


@pytest.mark.parametrize("view", ["detached", None])
def test_losses_that_do_not_reach_encoders_are_refused(view: str | None) -> None:
    with pytest.raises(ValueError, match=rf"found unimodal={view!r}\. Build it with LateFusion\(…, unimodal='head'\)"):
        conflict(random_model(2, unimodal=view), random_part(2))
