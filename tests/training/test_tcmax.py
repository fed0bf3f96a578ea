"""Training by TCMax: what a step is given, that it learns, and what is refused."""

from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional as F

from equipoise import AGM, MCR, MIMO, MSL, OGM, Balancer, MMPareto, ModDrop, tcmax_loss
from equipoise.data.bundled import two_sensors
from equipoise.training.settings import Settings
from equipoise.training.step import build_model, evaluate, losses_of
from equipoise.training.train import train
from tasks_made_up import splits_of

DATA = two_sensors(samples=150)
SHORT = Settings(epochs=4, batch=32, features=8, encoder="mlp", loss="tcmax", lr=0.05)


@pytest.mark.parametrize("fusion", ["concat", "sum"])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_the_fused_loss_is_that_of_the_shares_and_the_others_stay(fusion: str, smoothing: float) -> None:
    model = build_model(DATA, MSL(), SHORT.changed({"fusion": fusion, "label_smoothing": smoothing}))
    _, losses = losses_of(model, MSL(), DATA.train)
    outputs, shares = model.with_shares(DATA.train.inputs)
    torch.testing.assert_close(torch.stack(list(shares.values())).sum(dim=0), outputs["fused"])
    torch.testing.assert_close(losses["fused"], tcmax_loss(shares, DATA.train.label, smoothing))
    for name in shares:
        plain = F.cross_entropy(outputs[name], DATA.train.label, reduction="none", label_smoothing=smoothing)
        torch.testing.assert_close(losses[name], plain)


@pytest.mark.parametrize("make", [MSL, MIMO, OGM, MMPareto])
def test_it_learns_with_any_method(make: type[Balancer]) -> None:
    trained = train(DATA, make(), SHORT.changed({"epochs": 8}))
    start = build_model(DATA, make(), SHORT)
    before, after = evaluate(start, DATA.validation)["fused"], evaluate(trained.model, DATA.validation)["fused"]
    assert after["accuracy"] > before["accuracy"] + 0.2
    plain = train(DATA, make(), SHORT.changed({"epochs": 8, "loss": "auto"}))
    weights = trained.model.state_dict(), plain.model.state_dict()
    assert not all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])


def test_samples_without_a_sensor_count_as_they_are_read() -> None:
    splits = splits_of("classes", gaps=0.4)
    settings = SHORT.changed({"encoder": "auto"})
    model = build_model(splits, MSL(), settings).eval()
    _, losses = losses_of(model, MSL(), splits.train)
    assert bool(losses["fused"].isfinite().all())
    outputs, shares = model.with_shares(splits.train.inputs)
    torch.testing.assert_close(torch.stack(list(shares.values())).sum(dim=0), outputs["fused"])
    train(splits, MSL(), settings)


@pytest.mark.parametrize(
    ("make", "words", "message"),
    [
        (MSL, {"fusion": "gated"}, "a sum over modalities; type fusion=concat or fusion=sum, not gated"),
        (MSL, {"fusion": "film"}, "a sum over modalities; type fusion=concat or fusion=sum, not film"),
        (MSL, {"class_weight": "balanced"}, "class_weight=none, found balanced"),
        (MSL, {"dropout": 0.3}, r"no modality dropout, found 0\.3"),
        (ModDrop, {}, "no modality dropout, found"),
        (MSL, {"step": "safe", "momentum": 0.0}, "step=given: the smoothness of its objective is not known"),
        (MSL, {"fusion": "gated", "dropout": 0.3}, r"fusion=sum, not gated[\s\S]*no modality dropout"),
        (AGM, {}, "a method without objectives of permuted features or responses"),
        (MCR, {}, "a method without objectives of permuted features or responses"),
    ],
)
def test_what_does_not_fit_is_refused(make: type[Balancer], words: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"loss=tcmax.*{message}"):
        train(DATA, make(), SHORT.changed(words))


def test_nothing_waits_for_the_device() -> None:
    with FakeTensorMode():  # reading a value raises here, as copying one to the host would stall there
        shares = {name: torch.empty(8, 3, requires_grad=True) for name in ("audio", "video")}
        loss = tcmax_loss(shares, torch.empty(8, dtype=torch.int64), 0.1)
        loss.mean().backward()
    assert loss.shape == (8,)
