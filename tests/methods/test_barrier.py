"""Barrier: by hand for two encoders, and the rate of descent that it promises, for gradients of any kind."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from equipoise import Barrier
from equipoise.balance.theory import smooth_maximum
from equipoise.testing import SmallModel, attached, batch, gradients_of, losses_of, masks_for, names
from equipoise.testing.models import hybrid_model


class Bare(nn.Module):
    """Encoders of some numbers, so that the gradients of losses can be chosen."""

    def __init__(self, sizes: Sequence[int]) -> None:
        super().__init__()
        self.encoders = nn.ModuleDict({name: nn.Module() for name in names(len(sizes))})
        for encoder, size in zip(self.encoders.values(), sizes, strict=True):
            encoder.register_parameter("numbers", nn.Parameter(torch.zeros(size, dtype=torch.float64)))

    def losses(self, fused: Sequence[Tensor], own: Sequence[Tensor], values: Sequence[float]) -> dict[str, Tensor]:
        """Linear losses, by their gradients at each encoder; the values are those of the uni-modal ones."""
        numbers = [encoder.get_parameter("numbers") for encoder in self.encoders.values()]
        inner = [
            [(slope * one).sum() for slope, one in zip(slopes, numbers, strict=True)] for slopes in (list(fused), own)
        ]
        unimodal = [value + one for value, one in zip(values, inner[1], strict=True)]
        return {"fused": torch.stack(inner[0]).sum(), **dict(zip(self.encoders, unimodal, strict=True))}

    def moved(self) -> list[Tensor]:
        return [torch.zeros(0) if p.grad is None else p.grad for p in self.parameters()]


def along_both(
    losses: Mapping[str, Tensor], tensors: Sequence[Tensor], smoothing: float, here: Sequence[str]
) -> tuple[Tensor, Tensor]:
    """∇f_mm and ∇q at some tensors, side by side; q is the smooth maximum of the modalities that are here."""
    q = smooth_maximum(torch.stack([losses[name] for name in here]), smoothing)
    found = []
    for loss in (losses["fused"], q):
        slopes = torch.autograd.grad(loss, tensors, retain_graph=True, allow_unused=True, materialize_grads=True)
        found.append(torch.cat([slope.flatten() for slope in slopes]))
    return found[0], found[1]


def nearest(fused: Tensor, q: Tensor, strength: float) -> tuple[Tensor, float]:
    """The direction nearest to the fused gradient along which q falls at the rate, and λ."""
    squared = float(q @ q)
    penalty = max(0.0, strength - float(fused @ q) / squared) if squared else strength
    return fused + penalty * q, penalty


def gradient_at(tensors: Sequence[Tensor]) -> Tensor:
    return torch.cat([torch.zeros_like(t).flatten() if t.grad is None else t.grad.flatten() for t in tensors])


EXACT: dict[str, Any] = {"rtol": 1e-9, "atol": 1e-12}


# -- by hand --


def test_two_encoders_by_hand() -> None:
    # σ = (½, ½): ∇q = (−½, ½ | 3/2), ‖∇q‖² = 2.75, ⟨∇f_mm, ∇q⟩ = −1 + 3/2, λ = 1 − 0.5/2.75
    model = Bare([2, 1])
    balancer = attached(Barrier(strength=1.0, smoothing=0.3), model)
    fused, own = [torch.tensor([2.0, 0.0]), torch.tensor([1.0])], [torch.tensor([-1.0, 1.0]), torch.tensor([3.0])]
    loss = balancer(model.losses(fused, own, [0.7, 0.7]))
    loss.backward()
    penalty = 1 - 0.5 / 2.75
    assert model.moved()[0].tolist() == pytest.approx([2 - penalty / 2, penalty / 2])
    assert model.moved()[1].tolist() == pytest.approx([1 + 3 * penalty / 2])
    assert balancer.table.numbers() == {
        "fused": {"audio": 1.0, "video": 1.0},
        "audio": {"audio": pytest.approx(penalty / 2)},
        "video": {"video": pytest.approx(penalty / 2)},
    }


def test_the_smooth_maximum_by_hand() -> None:
    # (f_audio − f_video) / μ = log 3: σ = (¾, ¼), ∇q = (−3/4 | 1/4), ‖∇q‖² = 5/8, ⟨∇f_mm, ∇q⟩ = −3/4 + 1/4
    model = Bare([1, 1])
    balancer = attached(Barrier(strength=2.0, smoothing=0.5), model)
    ones = [torch.ones(1), torch.ones(1)]
    values = [1.0 + 0.5 * float(torch.tensor(3.0, dtype=torch.float64).log()), 1.0]
    balancer(model.losses(ones, [-torch.ones(1), torch.ones(1)], values)).backward()
    penalty = 2.0 + 0.5 / 0.625
    assert [float(one) for one in model.moved()] == pytest.approx([1 - 0.75 * penalty, 1 + 0.25 * penalty])


def test_where_the_gradients_agree_enough_the_fused_loss_alone_counts() -> None:
    # ∇q = ½ (1, 1): ⟨∇f_mm, ∇q⟩ / ‖∇q‖² = 2c for f_mm of gradient (c, c)
    for size, penalty in ((0.5, 0.0), (5.0, 0.0), (0.4375, 0.125), (0.0, 1.0), (-1.0, 3.0)):
        model = Bare([1, 1])
        balancer = attached(Barrier(), model)
        ones = [torch.ones(1), torch.ones(1)]
        balancer(model.losses([size * one for one in ones], ones, [1.0, 1.0])).backward()
        for name in names(2):
            assert float(balancer.table.at(name, name)) == pytest.approx(penalty / 2, abs=1e-12)
        assert [float(one) for one in model.moved()] == pytest.approx([size + penalty / 2] * 2)


def test_a_strength_of_zero_asks_only_that_q_does_not_rise() -> None:
    for sign in (1.0, -1.0):
        model = SmallModel(names(2))
        balancer = attached(Barrier(strength=0.0), model)
        losses = {name: loss.mean() for name, loss in losses_of(model, batch(names(2))).items()}
        losses["fused"] = sign * (losses["audio"] + losses["video"])
        tensors = list(model.encoders.parameters())
        fused, q = along_both(losses, tensors, 0.1, names(2))
        balancer(losses).backward(retain_graph=True)
        found = gradient_at(tensors)
        expected = fused if sign > 0 else fused - (fused @ q) / (q @ q) * q
        torch.testing.assert_close(found, expected, **EXACT)


# -- what it promises --


def sampled(seed: int) -> tuple[Bare, dict[str, Tensor]]:
    """Encoders of one to six numbers, and gradients of all lengths that agree, conflict or vanish."""
    random = torch.Generator().manual_seed(seed)

    def drawn(size: int) -> Tensor:
        return torch.randn(size, generator=random, dtype=torch.float64)

    count = int(torch.randint(1, 5, (), generator=random))
    sizes = torch.randint(1, 7, (count,), generator=random).tolist()
    model = Bare(sizes)
    own = [10.0 ** float(4 * torch.rand((), generator=random) - 2) * drawn(size) for size in sizes]
    agreement = 4 * float(torch.rand((), generator=random)) - 2
    fused = [agreement * one + 0.3 * drawn(len(one)) for one in own]
    if seed % 5 == 0:
        fused = [torch.zeros_like(one) for one in fused]
    if seed % 7 == 0:
        own = [torch.zeros_like(one) for one in own]
    values = (1 + 0.3 * drawn(count)).tolist()
    return model, model.losses(fused, own, values)


@pytest.mark.parametrize("strength", [0.5, 1.0, 5.0])
def test_q_falls_at_the_rate_and_the_direction_is_the_nearest_that_does(strength: float) -> None:
    kinds = set()
    for seed in range(60):
        model, losses = sampled(seed)
        tensors = list(model.parameters())
        fused, q = along_both(losses, tensors, 0.1, list(model.encoders))
        balancer = attached(Barrier(strength), model)
        balancer(losses).backward(retain_graph=True)
        found, scale = gradient_at(tensors), float(q.norm() * (fused.norm() + strength * q.norm()))
        assert float(found @ q) >= strength * float(q @ q) - 1e-9 * scale
        # Karush-Kuhn-Tucker: what was added is along ∇q, never against it, and only up to the rate.
        penalty = nearest(fused, q, strength)[1]
        torch.testing.assert_close(found, fused + penalty * q, **EXACT)
        if penalty > 0:
            assert float(found @ q) == pytest.approx(strength * float(q @ q), abs=1e-9 * scale)
        kinds.add((bool(q.any()), penalty > 0))
    assert kinds == {(True, True), (True, False), (False, True)}


@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_one_penalty_serves_all_encoders_and_heads_follow_their_own_losses(count: int) -> None:
    apart = []
    for seed in range(5):
        model, data = SmallModel(names(count), seed=seed), batch(names(count), seed=seed)
        losses = {name: loss.mean() for name, loss in losses_of(model, data).items()}
        balancer = attached(Barrier(strength=2.0, smoothing=0.2), model)
        balancer(losses).backward(retain_graph=True)
        tensors = list(model.encoders.parameters())
        expected, penalty = nearest(*along_both(losses, tensors, 0.2, names(count)), 2.0)
        torch.testing.assert_close(gradient_at(tensors), expected, **EXACT)
        shares = torch.softmax(torch.stack([losses[name].detach() for name in names(count)]) / 0.2, dim=0)
        cells = torch.stack([balancer.table.at(name, name) for name in names(count)])
        torch.testing.assert_close(cells, penalty * shares, **EXACT)
        for name, gradient in gradients_of(model).items():
            if not name.startswith("encoders."):
                own = losses[name.split(".")[1] if name.startswith("heads.") else "fused"]
                torch.testing.assert_close(
                    gradient, torch.autograd.grad(own, model.get_parameter(name), retain_graph=True)[0]
                )
        alone = [
            nearest(*along_both(losses, list(model.encoders[name].parameters()), 0.2, names(count)), 2.0)[1]
            for name in names(count)
        ]
        apart.append(max(alone) - min(alone))
    assert count == 1 or min(apart) > 1e-3  # encoder by encoder, it would be another number for each


# -- models and batches of all kinds --


def test_a_frozen_encoder_takes_no_part_in_the_rate() -> None:
    model, data = SmallModel(names(3)), batch(names(3))
    model.encoders["video"].requires_grad_(False)
    losses = {name: loss.mean() for name, loss in losses_of(model, data).items()}
    attached(Barrier(smoothing=0.2), model)(losses).backward(retain_graph=True)
    tensors = [p for p in model.encoders.parameters() if p.requires_grad]
    expected, _ = nearest(*along_both(losses, tensors, 0.2, names(3)), 1.0)
    torch.testing.assert_close(gradient_at(tensors), expected, **EXACT)
    assert all(parameter.grad is None for parameter in model.encoders["video"].parameters())


@pytest.mark.parametrize("shared", ["whole", "a layer"])
def test_what_encoders_share_counts_once(shared: str) -> None:
    model, data = SmallModel(names(3)), batch(names(3))
    if shared == "whole":
        model.encoders["video"] = model.encoders["audio"]
    else:
        model.encoders["video"][0] = model.encoders["audio"][0]  # ty: ignore[invalid-assignment]
    losses = {name: loss.mean() for name, loss in losses_of(model, data).items()}
    balancer = attached(Barrier(strength=3.0), model)
    balancer(losses).backward(retain_graph=True)
    tensors = list(model.encoders.parameters())  # each once
    fused, q = along_both(losses, tensors, 0.1, names(3))
    expected, penalty = nearest(fused, q, 3.0)
    assert penalty > 0
    torch.testing.assert_close(gradient_at(tensors), expected, **EXACT)
    assert float(gradient_at(tensors) @ q) == pytest.approx(3.0 * float(q @ q))


@pytest.mark.parametrize("gone", [["audio"], ["audio", "text"], ["audio", "video", "text"]])
def test_a_sensor_that_no_sample_has_takes_no_part_in_the_maximum(gone: list[str]) -> None:
    model, data, masks = SmallModel(names(3)), batch(names(3)), masks_for(names(3))
    masks |= {name: torch.zeros(12, dtype=torch.bool) for name in gone}
    given = losses_of(model, data)
    balancer = attached(Barrier(strength=2.0, smoothing=0.2), model)
    absent = {name: torch.where(masks[name], given[name], torch.nan) for name in gone}
    value = balancer({**given, **absent}, present=masks)
    value.backward(retain_graph=True)
    means = {name: torch.where(mask, given[name], 0.0).sum() / mask.sum().clamp(min=1) for name, mask in masks.items()}
    means["fused"] = given["fused"].mean()
    here = [name for name in names(3) if name not in gone]
    tensors = list(model.encoders.parameters())
    expected = torch.cat([g.flatten() for g in torch.autograd.grad(means["fused"], tensors, retain_graph=True)])
    if here:
        expected, _ = nearest(*along_both(means, tensors, 0.2, here), 2.0)
        assert all(float(balancer.table.at(name, name)) == 0.0 for name in gone)
    torch.testing.assert_close(gradient_at(tensors), expected, **EXACT)
    assert bool(value.detach().isfinite())


def test_a_trunk_that_unimodal_losses_reach_has_a_penalty_of_its_own() -> None:
    model, data = hybrid_model(names(2)), batch(names(2))
    losses = {name: loss.mean() for name, loss in losses_of(model, data).items()}
    balancer = attached(Barrier(strength=2.0, smoothing=0.2), model)
    balancer(losses).backward(retain_graph=True)
    assert balancer.attachment is not None
    penalties = []
    for tensors in (list(model.encoders.parameters()), balancer.attachment.trunk()):
        expected, penalty = nearest(*along_both(losses, tensors, 0.2, names(2)), 2.0)
        torch.testing.assert_close(gradient_at(tensors), expected, **EXACT)
        penalties.append(penalty)
    assert abs(penalties[0] - penalties[1]) > 1e-3
    shares = torch.softmax(torch.stack([losses[name].detach() for name in names(2)]) / 0.2, dim=0)
    found = [float(balancer.table.at(name, "trunk")) for name in names(2)]
    assert found == pytest.approx((penalties[1] * shares).tolist())


@pytest.mark.parametrize("scale", [1e-30, 1e-22, 1e20, 1e30])
def test_the_scale_of_gradients_in_single_precision_plays_no_role(scale: float) -> None:
    model = Bare([2, 1]).float()
    fused, own = [torch.tensor([2.0, 0.0]), torch.tensor([1.0])], [torch.tensor([-1.0, 1.0]), torch.tensor([3.0])]
    balancer = attached(Barrier(), model)
    balancer(model.losses([scale * one for one in fused], [scale * one for one in own], [0.7, 0.7])).backward()
    penalty = 1 - 0.5 / 2.75
    found = torch.cat(model.moved()) / scale
    torch.testing.assert_close(found, torch.tensor([2 - penalty / 2, penalty / 2, 1 + 3 * penalty / 2]))


def test_arguments_that_make_no_sense_are_refused_together() -> None:
    with pytest.raises(ValueError, match=r"strength should be zero or more, found -1; smoothing should be above zero"):
        Barrier(strength=-1, smoothing=0)
