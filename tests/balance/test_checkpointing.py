"""Activation checkpointing: it changes no gradient, or is refused where it would."""

from __future__ import annotations

import pytest
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from equipoise.testing import SmallModel, attached, balanced, batch, gradients_of, losses_of, names
from everything import METHODS, ONE_SUM, SHAPES, Data, assert_same, taught

TAKING = [name for name in SHAPES if name not in ONE_SUM]


class Checkpointed(nn.Module):
    def __init__(self, inner: nn.Module, *, use_reentrant: bool) -> None:
        super().__init__()
        self.inner, self.use_reentrant = inner, use_reentrant

    def forward(self, x: Tensor) -> Tensor:
        # Reentrant checkpointing gives no gradient at all unless an input wants one.
        return checkpoint(self.inner, x.detach().requires_grad_(), use_reentrant=self.use_reentrant)


def checkpointed(count: int, *, use_reentrant: bool) -> SmallModel:
    model = SmallModel(names(count))
    for name in names(count):
        model.encoders[name] = Checkpointed(model.encoders[name], use_reentrant=use_reentrant)
    return model


def gradients_under(method: str, model: SmallModel, data: Data) -> dict[str, Tensor]:
    balancer = taught(attached(METHODS[method](), model), list(model.encoders))
    balanced(balancer, losses_of(model, data)).backward()
    return {name.replace(".inner", ""): gradient for name, gradient in gradients_of(model).items()}


@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("method", SHAPES)
def test_non_reentrant_checkpointing_changes_nothing(method: str, count: int) -> None:
    data = batch(names(count))
    plain = gradients_under(method, SmallModel(names(count)), data)
    saved = gradients_under(method, checkpointed(count, use_reentrant=False), data)
    assert_same(saved, plain, atol=1e-12)


@pytest.mark.parametrize("method", TAKING)
def test_reentrant_checkpointing_is_refused_where_gradients_are_taken(method: str) -> None:
    with pytest.raises(RuntimeError, match="use_reentrant=False"):
        gradients_under(method, checkpointed(2, use_reentrant=True), batch(names(2)))


@pytest.mark.parametrize("method", TAKING)
def test_one_checkpointed_encoder_is_enough_to_refuse(method: str) -> None:
    model = SmallModel(names(3))
    model.encoders["text"] = Checkpointed(model.encoders["text"], use_reentrant=True)
    with pytest.raises(RuntimeError, match="use_reentrant=False"):
        gradients_under(method, model, batch(names(3)))


@pytest.mark.parametrize("method", [name for name in SHAPES if name in ONE_SUM])
def test_reentrant_checkpointing_is_fine_for_one_sum_of_losses(method: str) -> None:
    data = batch(names(2))
    plain = gradients_under(method, SmallModel(names(2)), data)
    saved = gradients_under(method, checkpointed(2, use_reentrant=True), data)
    assert_same(saved, plain, atol=1e-12)
