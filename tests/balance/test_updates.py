"""Factors on what an optimiser does to encoders, where a factor on their gradients would be divided out again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, final

import pytest
import torch
from torch import Tensor, nn

from equipoise import Coefficients, Losses, Weighting
from equipoise.balance.needs import Needs
from equipoise.balance.updates import ParameterPart, moves_with_the_gradient
from equipoise.testing import SmallModel, batch, losses_of, names
from everything import assert_same, parameters_of

ADAM: dict[str, Any] = {
    "adam": lambda parameters: torch.optim.Adam(parameters, lr=0.05),
    "adamw": lambda parameters: torch.optim.AdamW(parameters, lr=0.05, weight_decay=0.1),
    "rmsprop": lambda parameters: torch.optim.RMSprop(parameters, lr=0.05),
}


def test_a_factor_on_the_gradient_is_one_on_the_step_for_sgd_only() -> None:
    for kind in (torch.optim.SGD, torch.optim.ASGD, torch.optim.Adam, torch.optim.AdamW, torch.optim.RMSprop):
        moves = []
        for factor in (1.0, 0.25):
            parameter = nn.Parameter(torch.tensor([1.0, 2.0]))
            optimizer = kind([parameter], lr=0.1)
            parameter.grad = factor * torch.tensor([0.3, -0.7])
            before = parameter.detach().clone()
            optimizer.step()
            moves.append(parameter.detach() - before)
        proportional = torch.allclose(moves[1], 0.25 * moves[0], rtol=1e-3)
        assert proportional == moves_with_the_gradient(optimizer), kind


@final
class Told(Weighting):
    """Joint training, whose factors of a step are those it was told, one row after the other."""

    needs = Needs(learns_from_own=False, factors=True)

    def __init__(self, rows: Sequence[Sequence[float]]) -> None:
        super().__init__()
        self.rows = [torch.tensor(row, dtype=torch.float64) for row in rows]

    def weigh(self, losses: Losses) -> Coefficients:
        return Coefficients.joint(losses, self.rows.pop(0))


def moved(
    kind: str, rows: Sequence[Sequence[float]], events: str, optimizers: int = 1
) -> tuple[SmallModel, dict[str, Tensor], dict[str, Tensor]]:
    """A model after some events: b(ackward), z(eroed in place), n(ulled), s(tep). Also how a step moved, and would."""
    model, plain = SmallModel(names(2)), SmallModel(names(2))
    parts = [model.encoders["audio"], nn.ModuleList([model.encoders["video"], model.heads, model.fused])]
    held = [list(model.parameters())] if optimizers == 1 else [list(one.parameters()) for one in parts]
    steppers = [ADAM[kind](one) for one in held]
    balancer = Told(rows).attach(model, optimizer=steppers)
    plainly = ADAM[kind](plain.parameters())
    before, data = parameters_of(model), iter(range(99))
    for event in events:
        if event == "b":
            one = batch(names(2), seed=next(data))
            balancer(losses_of(model, one)).backward()
            _joint(losses_of(plain, one)).backward()
        elif event == "s":
            for one in (*steppers, plainly):
                one.step()
        else:
            for one in (*steppers, plainly):
                one.zero_grad(set_to_none=event == "n")
    by = {name: tensor.detach() - before[name] for name, tensor in model.named_parameters()}
    would = {name: tensor.detach() - before[name] for name, tensor in plain.named_parameters()}
    return model, by, would


def _joint(losses: dict[str, Tensor]) -> Tensor:
    """What joint training is: heads that learn beside do not reach encoders."""
    return losses["fused"].mean()


@pytest.mark.parametrize("optimizers", [1, 2])
@pytest.mark.parametrize(
    ("rows", "events", "factors"),
    [
        ([(0.5, 0.0)], "bs", (0.5, 0.0)),
        ([(1.0, 0.25)], "bs", (1.0, 0.25)),
        ([(0.5, 0.0), (0.1, 1.0)], "bbs", (0.3, 0.5)),  # several micro-batches: their mean
        ([(0.5, 0.0), (0.1, 1.0)], "bnbs", (0.1, 1.0)),  # gradients that were dropped take their factors along
        ([(0.5, 0.0), (0.1, 1.0)], "bzbs", (0.1, 1.0)),
        ([(0.5, 0.0), (0.1, 1.0), (0.3, 0.2)], "bnbbs", (0.2, 0.6)),
        ([(0.5, 0.0), (0.1, 1.0), (0.3, 0.2)], "bzbbs", (0.2, 0.6)),
    ],
)
@pytest.mark.parametrize("kind", ADAM)
def test_an_update_is_scaled_by_the_mean_factor_of_what_it_is_made_of(
    kind: str, rows: list[tuple[float, float]], events: str, factors: tuple[float, float], optimizers: int
) -> None:
    _, by, would = moved(kind, rows, events, optimizers)
    for name, move in by.items():
        factor = factors[names(2).index(name.split(".")[1])] if name.startswith("encoders.") else 1.0
        if not name.startswith("heads."):  # these learn from losses of their own
            torch.testing.assert_close(move, factor * would[name], rtol=1e-9, atol=1e-12)
            assert bool(would[name].any())


def test_factors_of_one_and_of_zero_are_exact() -> None:
    for factor in (1.0, 0.0):
        model, _, _ = moved("adamw", [(factor, factor)] * 3, "bsnbsnbs")
        expected, _, _ = moved("adamw", [(1.0, 1.0)] * 3, "bsnbsnbs")
        whole = parameters_of(expected if factor else SmallModel(names(2)))
        found = {name: tensor for name, tensor in parameters_of(model).items() if name.startswith("encoders.")}
        assert_same(found, {name: whole[name] for name in found})


def test_an_optimiser_that_is_let_go_scales_nothing() -> None:
    model = SmallModel(names(2))
    optimizer = ADAM["adam"](model.parameters())
    balancer = Told([(0.0, 0.0)] * 2).attach(model, optimizer=optimizer)
    balancer(losses_of(model, batch(names(2)))).backward()
    before = parameters_of(model)
    other = SmallModel(names(2))
    balancer.attach(other, optimizer=ADAM["adam"](other.parameters()))
    optimizer.step()
    after = parameters_of(model)
    assert all(not torch.equal(after[name], before[name]) for name in after if name.startswith("encoders."))


def test_a_part_of_a_parameter_is_a_view() -> None:
    weight = torch.arange(6.0).view(2, 3)
    part = ParameterPart(weight, slice(1, 3))
    assert part.of(weight).tolist() == [[1, 2], [4, 5]]
    part.of(weight).zero_()
    assert weight.tolist() == [[0, 0, 0], [3, 0, 0]]
    assert ParameterPart(weight).of(weight) is weight
    assert part.key == (id(weight), 1)
