"""Everything `equipoise toy` measures, gathered in one place."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, final

import torch
from torch import Tensor

from equipoise.paper.toy import Preference, Recipe, Share, Toy, draw, preference, preference_by_samples
from equipoise.paper.toy_conflict import Conflict, Solution, draw_correlated
from equipoise.paper.toy_model import Agreement
from equipoise.paper.toy_rates import Convergence, convergence
from equipoise.paper.toy_runs import (
    KINDS,
    Manifold,
    Trace,
    delivered_gradients,
    fastest,
    manifolds,
    run,
    steps_to_level,
)
from equipoise.paper.toy_theory import (
    Curvature,
    Descent,
    Landscape,
    Tied,
    curvature_at,
    largest_gap_at,
    safe_descent,
    tied_point,
)

MULTIPLES = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0)
PENALTIES = (10.0, 100.0, 1e3, 1e4)
POINTS = 100
SMALL = Recipe(samples=100, inputs=4, hidden=5, level=0.1)  # of which whole Hessians can be taken
Tell = Callable[[str], None]


class Seed(NamedTuple):
    """One draw of the data and of the start.

    Args:
        seed: Its number.
        preference: The condition of the appendix on this data.
        places: t_mk and f_mm(M_mk).
        learnt: The step at which joint training has learnt each modality.
        steps: To the recipe's level, per way of training; None where it never got there.
    """

    seed: int
    preference: Preference
    places: dict[str, Manifold]
    learnt: dict[str, int]
    steps: dict[str, int | None]

    def ratio(self, kind: str) -> float | None:
        """Steps of a way of training over those of joint training."""
        own, joint = self.steps[kind], self.steps["joint"]
        return None if own is None or not joint else own / joint


@final
@dataclass(frozen=True)
class Theory:
    """What the theorems and propositions say, measured.

    Args:
        curvature: Proposition 1 on the small problem, at random points.
        curvature_tied: The same where gaps are equal, so that the smooth maximum bends most.
        descent: Theorem 2 on the problem itself.
        tied: Proposition 2 at random points where gaps are equal.
        lexicographic: The problem that the paper starts from, on the conflicting one.
        penalised: Under each of `PENALTIES`.
        relaxed: With the slack that each of these leaves.
        predicted: The worst gap to first order, under each of `PENALTIES`.
        rates: Convergence with the hard and with the smooth maximum.
    """

    curvature: Curvature
    curvature_tied: Curvature
    descent: Descent
    tied: list[Tied]
    lexicographic: Solution
    penalised: list[Solution]
    relaxed: list[Solution]
    predicted: list[float]
    rates: dict[str, Convergence]


@final
@dataclass(frozen=True)
class Facts:
    """All of it. What is of one draw only is of the first seed.

    Args:
        recipe: How the problem was drawn and trained.
        traces: Whole runs.
        gradients: The appendix's table beside autograd, with the smooth and with the hard maximum.
        seeds: One entry per seed.
        shares: How the condition fares as samples grow.
        quickest: Per way of training its best learning rate, and its steps with that.
        theory: Theorems and propositions; None where they were left out.
    """

    recipe: Recipe
    traces: dict[str, Trace]
    gradients: dict[str, list[Agreement]]
    seeds: list[Seed]
    shares: list[Share]
    quickest: dict[str, tuple[float, int]] = field(default_factory=dict)
    theory: Theory | None = None


def gather(recipe: Recipe, seeds: Sequence[int], *, theory: bool = True, tell: Tell = lambda _: None) -> Facts:
    """Measure everything.

    Args:
        recipe: How the problem is drawn and trained.
        seeds: Draws of data and start.
        theory: Whether to check theorems and propositions, and search learning rates, which takes most of the time.
        tell: Called with a few words before each part.
    """
    tell("training each way")
    toy = draw(recipe, seeds[0])
    traces = {kind: run(toy, recipe, kind, seeds[0]) for kind in KINDS}
    tell("comparing gradients")
    gradients = {}
    for kind in ("mimo-exact", "hard-exact"):
        halfway = (traces[kind].reached(recipe.level) or 0) // 2  # where it gets nowhere, the start will do
        gradients[kind] = delivered_gradients(toy, recipe, kind, seeds[0], after=halfway)
    drawn = []
    for seed in seeds:
        tell(f"seed {seed}: steps to a fused loss of {recipe.level:g}")
        drawn.append(measure_seed(recipe, seed))
    tell("the condition as samples grow")
    counts = [round(recipe.samples * factor) for factor in (1, 3, 5, 7, 10, 20)]
    shares = preference_by_samples(recipe, counts, seeds)
    if not theory:
        return Facts(recipe, traces, gradients, drawn, shares)
    tell("searching learning rates")
    rates = [recipe.lr * multiple for multiple in MULTIPLES]
    quickest = fastest(toy, recipe, seeds[0], rates, ("joint", "mimo-exact", "mimo-zero", "ew"))
    return Facts(recipe, traces, gradients, drawn, shares, quickest, check_theory(recipe, toy, seeds[0], tell))


def measure_seed(recipe: Recipe, seed: int) -> Seed:
    """One draw: the condition, the manifolds, the order of learning, and the steps of every way of training."""
    toy = draw(recipe, seed)
    joint = run(toy, recipe, "joint", seed)
    learnt = {name: joint.learnt(name) for name in recipe.names}
    return Seed(seed, preference(toy), manifolds(toy, recipe, seed), learnt, steps_to_level(toy, recipe, seed))


def check_theory(recipe: Recipe, toy: Toy, seed: int, tell: Tell = lambda _: None) -> Theory:
    """Theorems 1 and 2 and Propositions 1 and 2, each measured."""
    tell("Proposition 1: eigenvalues of Hessians")
    small = Landscape(draw(SMALL, seed), SMALL)
    curvature = curvature_at(small, random_points(small, seed))
    tied_curvature = curvature_at(small, torch.stack([tied_point(small, number) for number in range(POINTS)]))
    tell("Proposition 2: points where gaps are equal")
    whole = Landscape(toy, recipe)
    tied = [largest_gap_at(whole, tied_point(whole, number)) for number in range(POINTS)]
    tell("Theorem 2: gradient descent with the safe step")
    descent = safe_descent(whole, seed, recipe.steps)
    tell("Theorem 1: the lexicographic problem, its relaxation, the penalty")
    conflict = Conflict(draw_correlated(seed))
    penalised = [conflict.penalised(penalty) for penalty in PENALTIES]
    relaxed = [conflict.relaxed(each.worst) for each in penalised]
    predicted = [conflict.predicted_gap(penalty) for penalty in PENALTIES]
    tell("rates of convergence of the hard and the smooth maximum")
    rates = convergence(conflict)
    return Theory(
        curvature, tied_curvature, descent, tied, conflict.lexicographic(), penalised, relaxed, predicted, rates
    )


def random_points(landscape: Landscape, seed: int, count: int = POINTS) -> Tensor:
    """Random weights of random size, from a hundredth to about three."""
    random = torch.Generator().manual_seed(seed)
    sizes = 10 ** (2.5 * torch.rand(count, 1, generator=random, dtype=torch.float64) - 2)
    return sizes * torch.randn(count, len(landscape.start(0)), generator=random, dtype=torch.float64)
