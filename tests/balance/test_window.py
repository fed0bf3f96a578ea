"""Gradient accumulation: one decision for all micro-batches of a window, with and without masks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import final

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from equipoise import EW, MIMO, OGM, Coefficients, Losses, Weighting, Window
from equipoise.balance.needs import Needs
from equipoise.testing import SmallModel, attached, balanced, batch, gradients_of, losses_of, masks_for, names
from everything import METHODS, MIXING, SHAPES, WEIGHING, Data, assert_same, batches, opened, part, taught

WEIGHED = [name for name in SHAPES if name in WEIGHING]


@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("method", WEIGHED)
def test_a_window_gives_the_gradient_of_the_whole(method: str, count: int) -> None:
    results = []
    for pieces in (1, 3):
        model = SmallModel(names(count))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        balancer = taught(attached(METHODS[method](), model, optimizer), names(count))
        balancer.transform = lambda modality, gradient, parts: gradient  # noqa: ARG005
        window, found = Window(balancer), []
        assert window.exact
        for data in batches(names(count), 2, size=12):
            micro = [part(data, start, start + 12 // pieces) for start in range(0, 12, 12 // pieces)]
            optimizer.zero_grad()
            if pieces == 1:
                balanced(balancer, losses_of(model, data)).backward()
            else:
                with torch.no_grad():
                    ahead = [losses_of(model, one) for one in micro]
                with opened(window, ahead):
                    for one in micro:
                        (balanced(balancer, losses_of(model, one)) / pieces).backward()
            found.append(gradients_of(model))
            optimizer.step()
        results.append((found, {name: buffer.clone() for name, buffer in balancer.named_buffers()}))
    (whole, state), (pieced, pieced_state) = results
    assert_same(pieced[0], whole[0], atol=1e-9)
    assert_same(pieced[1], whole[1], atol=1e-6)  # state is kept in single precision
    for name, buffer in state.items():
        torch.testing.assert_close(pieced_state[name], buffer, rtol=1e-6, atol=1e-6, equal_nan=True)


@final
class Noting(Weighting):
    """Gives the fused loss and further objectives at one, and notes by what losses its events are decided."""

    needs = Needs(further="noted")

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[str] = []
        self.noted: list[tuple[float, list[float] | None]] = []

    def weigh(self, losses: Losses) -> Coefficients:
        self.asked.append("weigh")
        return Coefficients.shared(torch.ones(1 + 2 * len(losses.unimodal), dtype=torch.float64))

    def regulariser(self, scalars: Mapping[str, Tensor], losses: Losses, answer: Coefficients | None) -> None:  # noqa: ARG002
        self.asked.append("regulariser")
        self.noted.append((float(losses.fused), None if losses.further is None else losses.further.tolist()))

    def on_backward(self, losses: Losses, finite: Tensor) -> None:  # noqa: ARG002
        self.asked.append("on_backward")
        self.noted.append((float(losses.fused), None if losses.further is None else losses.further.tolist()))


def test_within_a_window_a_method_is_asked_once_and_its_events_read_the_losses_of_the_window() -> None:
    model, data = SmallModel(names(2)), batch(names(2))
    micro = [part(data, 0, 6), part(data, 6, 12)]
    method = Noting()
    method.attach(model)  # no optimiser tells of steps, so that each backward pass is one
    with torch.no_grad():
        ahead = [losses_of(model, one) for one in micro]
    whole = float(torch.stack([one["fused"].mean() for one in ahead]).mean())
    with Window(method).open(ahead):
        for number, one in enumerate(micro):
            losses = losses_of(model, one)
            further = {name: (10.0 + number) * losses["fused"].mean() for name in names(2)}
            (method(losses, further=further) / 2).backward()
    assert method.asked == ["weigh", "regulariser", "on_backward", "regulariser"]
    each = [(10.0 + number) * float(one["fused"].mean()) for number, one in enumerate(ahead)]
    for (fused, further), expected in zip(method.noted, (each[0], each[0], each[1]), strict=True):
        assert fused == pytest.approx(whole)
        assert further == pytest.approx([expected] * 2)  # given at each call alone


@pytest.mark.parametrize("method", [name for name in SHAPES if name in MIXING])
def test_a_window_over_mixed_gradients_is_refused(method: str) -> None:
    with pytest.raises(ValueError, match="decides by gradients"):
        Window(METHODS[method]())


def tilted(model: SmallModel, data: Data, lead: float) -> list[dict[str, Tensor]]:
    """Two micro-batches, audio behind in one and video in the other; over both of them audio is behind by ``lead``."""
    halves = [losses_of(model, part(data, 0, 6)), losses_of(model, part(data, 6, 12))]
    for half, (audio, video) in zip(halves, ((1.3, 0.7), (0.7, 1.3)), strict=True):
        half["audio"], half["video"] = audio * half["audio"], video * half["video"]
    means = {name: float(torch.stack([half[name].detach().mean() for half in halves]).mean()) for name in halves[0]}
    for half in halves:
        half["video"] = half["video"] * (means["audio"] - lead) / means["video"]
    return halves


def direction(model: nn.Module) -> Tensor:
    return torch.cat([gradient.flatten() for gradient in gradients_of(model).values()])


def test_lagged_weights_are_not_exact_and_weights_per_micro_batch_are_worse() -> None:
    cosines: dict[str, list[float]] = {"lag": [], "each": [], "exact": []}
    for seed in range(5):
        model, data = SmallModel(names(2), seed=seed), batch(names(2), seed=seed)
        directions = {}
        for way in ("whole", "exact", "lag", "each"):
            balancer = MIMO(smoothing=0.01)
            model.zero_grad()
            if way == "whole":
                halves = tilted(model, data, 0.01)
                balancer({name: torch.cat([half[name] for half in halves]) for name in halves[0]}).backward()
            elif way == "exact":
                with torch.no_grad():
                    ahead = tilted(model, data, 0.01)
                with Window(balancer).open(ahead):
                    for half in tilted(model, data, 0.01):
                        (balancer(half) / 2).backward()
            elif way == "lag":
                window = Window(balancer, lag=True)
                assert not window.exact
                for lead in (0.004, 0.01):
                    model.zero_grad()
                    with window.open():
                        for half in tilted(model, data, lead):
                            (balancer(half) / 2).backward()
            else:
                for half in tilted(model, data, 0.01):
                    (balancer(half) / 2).backward()
            directions[way] = direction(model)
        for way, found in cosines.items():
            found.append(float(F.cosine_similarity(directions[way], directions["whole"], dim=0)))
    assert min(cosines["exact"]) > 1 - 1e-12
    assert max(cosines["lag"]) < 0.999
    assert np.mean(cosines["each"]) < np.mean(cosines["lag"])


# -- masks and scores --


@pytest.mark.parametrize("method", WEIGHED)
def test_a_window_with_masks_gives_the_gradient_of_the_whole(method: str) -> None:
    whole, masks = batch(names(2)), masks_for(names(2))
    masks["video"][6:] = False  # the second micro-batch has none
    rows = [slice(0, 6), slice(6, 12)]
    found = []
    for windowed in (False, True):
        model = SmallModel(names(2))
        balancer = attached(METHODS[method](), model)
        balancer.transform = lambda modality, gradient, parts: gradient  # noqa: ARG005
        if not windowed:
            balanced(balancer, losses_of(model, whole), present=masks).backward()
        else:
            micro = [({name: x[r] for name, x in whole[0].items()}, whole[1][r]) for r in rows]
            present = [{name: mask[r] for name, mask in masks.items()} for r in rows]
            with torch.no_grad():
                measured = [losses_of(model, one) for one in micro]
            with opened(Window(balancer), measured, present=present):
                for one, own in zip(micro, present, strict=True):
                    (balanced(balancer, losses_of(model, one), present=own) / 2).backward()
        found.append(gradients_of(model))
    torch.testing.assert_close(found[1], found[0], rtol=1e-9, atol=1e-12)


def test_a_micro_batch_of_a_window_may_be_complete() -> None:
    balancer = EW()
    measured = [{"fused": torch.ones(2), "a": torch.tensor([1.0, 3.0])}] * 2
    parts = [torch.tensor([1.0, 3.0], requires_grad=True) for _ in measured]
    with Window(balancer).open(measured, present=[{"a": torch.tensor([True, False])}, None]):
        for part, present in zip(parts, [{"a": torch.tensor([True, False])}, None], strict=True):
            (balancer({"fused": torch.ones(2), "a": part}, present=present) / 2).backward()
    # Three of the four samples have the sensor: each counts a third.
    gradients = [part.grad.tolist() for part in parts if part.grad is not None]
    assert gradients == [pytest.approx([1 / 3, 0]), pytest.approx([1 / 3, 1 / 3])]


def test_a_window_says_where_masks_belong() -> None:
    balancer, losses = EW(), {"fused": torch.ones(2), "a": torch.ones(2)}
    mask = {"a": torch.tensor([True, False])}
    with Window(balancer).open([losses]), pytest.raises(ValueError, match=r"type Window\(…\)\.open\(losses, present="):
        balancer(losses, present=mask)
    with pytest.raises(ValueError, match="present for each of 2 micro-batches, found 1"):
        Window(balancer).open([losses, losses], present=[mask]).__enter__()
    with pytest.raises(ValueError, match="expected no masks here, give them to the balancer at each call"):
        Window(balancer, lag=True).open(present=[mask]).__enter__()


def test_a_window_that_lags_takes_masks_and_scores_in_every_window() -> None:
    model, data = SmallModel(names(2)), batch(names(2))
    balancer, masks = attached(OGM(), model), masks_for(names(2))
    window = Window(balancer, lag=True)
    tables = []
    for scored in ({"audio": torch.tensor(0.9), "video": torch.tensor(0.3)}, None):
        for _ in range(2):
            with window.open():
                balanced(balancer, losses_of(model, data), present=masks, scores=scored)
                tables.append(balancer.table.numbers())
    assert tables[1] == {key: pytest.approx(row) for key, row in tables[0].items()}
    balanced(balancer, losses_of(model, data), present=masks)
    expected = balancer.table.numbers()
    with window.open():
        balanced(balancer, losses_of(model, data), present=masks)
        assert balancer.table.numbers() == {key: pytest.approx(row) for key, row in expected.items()}
