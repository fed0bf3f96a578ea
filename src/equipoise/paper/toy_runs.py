"""Training runs on the toy problem: joint training, MIMO in its variants, and the controls that belong beside it."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, final

import torch
from torch import Tensor

from equipoise.balance.balancer import Balancer
from equipoise.balance.table import FUSED
from equipoise.methods import EW, MIMO, MSL
from equipoise.paper.toy import Recipe, Toy, preference
from equipoise.paper.toy_model import Agreement, TwoLayer, compare_gradients

FAR = 1e6  # a loss that has grown by this factor will not come back


@final
@dataclass(frozen=True)
class Kind:
    """A way to train the toy.

    Args:
        title: What figures and tables call it.
        make: Its balancer, given the recipe and f*.
        faster: What its learning rate is multiplied by, given the recipe.
    """

    title: str
    make: Callable[[Recipe, dict[str, float]], Balancer]
    faster: Callable[[Recipe], float] = lambda _: 1.0


def _mimo(recipe: Recipe, optimum: dict[str, float] | None, smoothing: float) -> MIMO:
    return MIMO(recipe.penalty, smoothing, optimum)


KINDS: dict[str, Kind] = {
    "joint": Kind("joint training", lambda *_: MSL()),
    "mimo-exact": Kind("MIMO, f* exact", lambda recipe, optimum: _mimo(recipe, optimum, recipe.smoothing)),
    "mimo-zero": Kind("MIMO, f* = 0", lambda recipe, _: _mimo(recipe, None, recipe.smoothing)),
    "hard-exact": Kind("hard maximum, f* exact", lambda recipe, optimum: _mimo(recipe, optimum, 0.0)),
    "hard-zero": Kind("hard maximum, f* = 0", lambda recipe, _: _mimo(recipe, None, 0.0)),
    "ew": Kind("EW at λ/K", lambda recipe, _: EW(recipe.penalty / len(recipe.names))),
    "ew-full": Kind("EW at λ", lambda recipe, _: EW(recipe.penalty)),
    "joint-faster": Kind("joint, rate × (1 + λ)", lambda *_: MSL(), lambda recipe: 1 + recipe.penalty),
}


@final
@dataclass(frozen=True)
class Trace:
    """What a run went through. Entry t is before step t, so entry 0 is the start.

    Args:
        fused: The fused loss.
        norms: ‖θ_k‖ per modality.
        weights: λσ_k, what each uni-modal loss weighed; zero in joint training.
    """

    fused: Tensor
    norms: dict[str, Tensor]
    weights: dict[str, Tensor]

    def reached(self, level: float) -> int | None:
        """The first step after which the fused loss is at most ``level``; None if it never is."""
        there = (self.fused <= level).nonzero()
        return int(there[0]) if len(there) else None

    def learnt(self, name: str) -> int:
        """The step at which an encoder's norm is halfway from its start to the largest it has."""
        norm = self.norms[name]
        return int((norm >= (norm[0] + norm.max()) / 2).nonzero()[0])

    @property
    def diverged(self) -> bool:
        """Whether the loss went out of bounds."""
        return not bool(self.fused[-1] < FAR * self.fused[0])


def run(
    toy: Toy, recipe: Recipe, kind: str = "joint", seed: int = 0, steps: int | None = None, until: float | None = None
) -> Trace:
    """Gradient descent on all samples, through the balancer that any user would call.

    Args:
        toy: The data, whole or one modality of it.
        recipe: Learning rate, λ, μ, and the start.
        kind: One of `KINDS`.
        seed: Of the weights at the start.
        steps: How many; those of the recipe by default.
        until: Stop when the fused loss is at most this.
    """
    chosen = KINDS[kind]
    model, balancer = TwoLayer(recipe, seed, list(toy.inputs)), chosen.make(recipe, toy.optimum)
    optimizer = torch.optim.SGD(model.parameters(), lr=recipe.lr * chosen.faster(recipe))
    fused, norms, weights = [], [], []
    for _ in range(1 + (recipe.steps if steps is None else steps)):
        losses = model.losses(toy)
        # The model of joint training has no heads of its own for modalities.
        given = losses if balancer.needs_unimodal else {FUSED: losses[FUSED]}
        optimizer.zero_grad()
        balancer(given).backward()
        fused.append(losses[FUSED].detach())
        norms.append(torch.stack([encoder.detach().norm() for encoder in model.encoders.values()]))
        table = balancer.table.values[1:, -1].double()
        weights.append(table if len(table) else torch.zeros(len(toy.inputs), dtype=torch.float64))
        value = float(fused[-1])
        if (until is not None and value <= until) or not value < FAR * float(fused[0]):
            break
        optimizer.step()
    return Trace(
        torch.stack(fused),
        dict(zip(toy.inputs, torch.stack(norms).unbind(dim=1), strict=True)),
        dict(zip(toy.inputs, torch.stack(weights).unbind(dim=1), strict=True)),
    )


def delivered_gradients(toy: Toy, recipe: Recipe, kind: str, seed: int, after: int) -> list[Agreement]:
    """The appendix's table of gradients beside autograd, after some steps of a run."""
    model, balancer = TwoLayer(recipe, seed), KINDS[kind].make(recipe, toy.optimum)
    optimizer = torch.optim.SGD(model.parameters(), lr=recipe.lr)
    for _ in range(after):
        optimizer.zero_grad()
        balancer(model.losses(toy)).backward()
        optimizer.step()
    optimizer.zero_grad()
    balancer(model.losses(toy)).backward()
    parameters = {name: each.detach() for name, each in model.named_parameters()}
    gradients = {name: each.grad for name, each in model.named_parameters() if each.grad is not None}
    weights = dict(zip(toy.inputs, balancer.table.values[1:, -1].tolist(), strict=True))
    return compare_gradients(parameters, toy, gradients, weights, recipe.penalty)


class Manifold(NamedTuple):
    """The stationary points M_k of joint training at which modality k is learnt and the others are zero.

    Args:
        loss: f_mm(M_k).
        predicted: t_k in steps, from the exponential growth near zero.
        measured: t_k in steps: nine tenths of the way from the start to f_mm(M_k), the others held at zero.
    """

    loss: float
    predicted: float
    measured: int | None


def manifolds(toy: Toy, recipe: Recipe, seed: int) -> dict[str, Manifold]:
    """The paper's own quantities: t_mk and f_mm(M_mk).

    Near zero the product θ_k ϑ_mm,k grows along C_yk, by the factor 1 + 2η‖C_yk‖ a step in each of its two parts, from
    what the start holds of that direction to the size that the least-squares solution w_k needs, √‖w_k‖ in each.
    """
    pull, found = preference(toy).pull, {}
    start = TwoLayer(recipe, seed)
    for name, column in toy.correlations.target.items():
        along = start.encoders[name].detach().T @ (column / column.norm())
        seed_size = float((along + start.fused[name].detach()).norm() / 2)
        solution = torch.linalg.solve(toy.correlations.inputs[name, name], column)
        growth = math.log1p(2 * recipe.lr * pull[name])
        predicted = max(0.0, math.log(math.sqrt(float(solution.norm())) / seed_size) / growth)
        loss = toy.optimum[name]
        target = loss + 0.1 * (toy.correlations.square - loss)
        trace = run(toy.only(name), recipe, "joint", seed, steps=round(4 * predicted) + 100, until=target)
        found[name] = Manifold(loss, predicted, trace.reached(target))
    return found


def steps_to_level(toy: Toy, recipe: Recipe, seed: int, kinds: Sequence[str] = tuple(KINDS)) -> dict[str, int | None]:
    """How many steps each way of training needs to the level of the recipe; None where it does not get there."""
    return {
        kind: run(toy, recipe, kind, seed, steps=20 * recipe.steps, until=recipe.level).reached(recipe.level)
        for kind in kinds
    }


def fastest(
    toy: Toy, recipe: Recipe, seed: int, rates: Sequence[float], kinds: Sequence[str]
) -> dict[str, tuple[float, int]]:
    """Per way of training the learning rate that is quickest to the level without diverging later, and its steps."""
    found: dict[str, tuple[float, int]] = {}
    for kind in kinds:
        for rate in rates:
            trace = run(toy, dataclasses.replace(recipe, lr=rate), kind, seed)
            there = trace.reached(recipe.level)
            if there is not None and not trace.diverged and (kind not in found or there < found[kind][1]):
                found[kind] = (rate, there)
    return found
