"""PrimalDual on the toy problems: the conditions for a minimum at rest, a twin's f*, steps over learning rates."""

import dataclasses
import math
from functools import cache

import pytest
import torch

from equipoise.balance.theory import penalty_for
from equipoise.paper import toy_constrained
from equipoise.paper.toy import ToySettings, generate, run, twin_losses
from equipoise.paper.toy_conflict import Conflict, generate_correlated
from equipoise.paper.toy_constrained import (
    ConflictRest,
    RestingPoint,
    residuals,
    rest_on_conflict,
    rest_on_toy,
    steps_by_rate,
    steps_of_twin,
)

SMALL = ToySettings(samples=60, inputs=4, hidden=6, level=0.5, lr=0.05, start=0.05, steps=60)


@cache
def conflict() -> Conflict:
    return Conflict(generate_correlated(seed=0))


def test_residuals_by_hand() -> None:
    # One unknown x: f_mm = ½ (x − 3)², f_1 = x², a limit of 1. At x = 1: ∇f_mm = −2, ∇f_1 = 2, so λ = 1.
    slope, slopes, gap = torch.tensor([-2.0]), torch.tensor([[2.0]]), torch.tensor([1.0])
    assert residuals(slope, slopes, gap, torch.tensor([1.0]), 1.0, 10.0) == (0.0, 0.0)
    assert residuals(slope, slopes, gap, torch.tensor([0.5]), 1.0, 10.0) == (0.5, 0.0)
    # A gap of 2 breaks the limit by 1: not at rest below the ceiling, at rest on it.
    assert residuals(slope, slopes, gap + 1, torch.tensor([1.0]), 1.0, 10.0)[1] == 1.0
    assert residuals(slope, slopes, gap + 1, torch.tensor([1.0]), 1.0, 1.0)[1] == 0.0
    # One that keeps it by half has a multiplier of zero, or is not at rest.
    assert residuals(slope, slopes, gap - 0.5, torch.tensor([0.25]), 1.0, 10.0)[1] == 0.25
    assert residuals(slope, slopes, gap - 0.5, torch.tensor([0.0]), 1.0, 10.0)[1] == 0.0


def test_with_one_modality_the_bound_on_the_multiplier_is_met() -> None:
    # f_1 = x², f_mm = ½ (x − 3)² and a limit of 1: λ = 1; G = 2, and ‖∇f_1‖² = 4 f_1 everywhere.
    assert penalty_for(1.0, slope=2.0, constant=4.0, modalities=1) == pytest.approx(1.0)


@pytest.mark.parametrize("seed", range(3))
def test_multipliers_of_the_relaxed_problem_sum_to_no_more_than_theorem_1_asks(seed: int) -> None:
    problem = Conflict(generate_correlated(seed))
    for slack in (1e-2, 1e-4, 1e-6):
        exact = problem.relaxed(slack)
        slopes = torch.autograd.functional.jacobian(problem.gaps, exact.offset)
        slope = torch.autograd.functional.jacobian(problem.fused, exact.offset)
        constant = float((slopes.square().sum(dim=1) / torch.tensor(exact.gaps)).min())
        bound = penalty_for(slack, float(slope.norm()), constant, 2)
        assert 0.5 * bound < sum(exact.multipliers) <= bound
        # The penalty that leaves this gap is their sum.
        assert problem.penalised(sum(exact.multipliers)).worst == pytest.approx(slack, rel=1e-6)


# That it comes to rest at Newton's solution without one is in test_toy_report.py, where it is computed anyway.


def test_at_the_ceiling_it_minimises_the_exact_penalty() -> None:
    ceiling = 0.3
    found = rest_on_conflict(conflict(), 0.05, ceiling, lr=0.3, steps=200)
    assert max(found.multipliers) == pytest.approx(ceiling)
    assert found.stationary < 1e-3
    assert found.slack < 1e-3
    assert max(found.gaps) > found.limit  # it cannot keep what it is asked for


def test_on_the_toy_all_gaps_close() -> None:
    data = generate(SMALL, seed=0)
    rest, begun = rest_on_toy(data, SMALL, seed=0, steps=250)
    assert rest.stationary < 0.05 * begun
    assert max(rest.gaps) < 0.05 * data.correlations.square
    assert min(rest.gaps) > -1e-9


def test_a_twin_comes_to_the_exact_optimum() -> None:
    data = generate(SMALL, seed=0)
    found = steps_of_twin(data, SMALL, seed=0, steps=300)
    rows = [next(row) for row in [twin_losses(data, SMALL, 0)] for _ in range(300)]
    assert set(found) == {"m1", "m2"}
    for name, (exact, close, most) in found.items():
        assert exact == data.optimum[name]
        assert close is not None
        assert float(rows[close][name]) <= 1.1 * exact
        assert close == 0 or float(rows[close - 1][name]) > 1.1 * exact
        assert most is not None


def test_steps_by_rate_are_those_of_runs() -> None:
    short = dataclasses.replace(SMALL, steps=20, lr=0.15)
    data = generate(short, seed=0)
    found = steps_by_rate(data, short, 0, ("primal-dual",))["primal-dual"]
    assert list(found) == list(toy_constrained.MULTIPLES)
    for multiple, most in ((0.3, 400), (1.0, 20)):
        changed = dataclasses.replace(short, lr=multiple * short.lr)
        trace = run(data, changed, "primal-dual", 0, steps=most, until=short.level if multiple < 1 else 0.0)
        assert found[multiple] == trace.reached(short.level) is not None


def test_claims_say_where_they_do_not_hold() -> None:
    point = RestingPoint(0.2, [0.1, 0.1], 0.1, [1.0, 0.5], stationary=1e-6, slack=1e-6)
    good = ConflictRest(0.05, point, [1.0, 0.5], 0.2, bound=2.0)
    results = toy_constrained.ConstrainedResults([good], point, point, 1.0, {"m1": (1.0, 2, None)}, {"joint": {1.0: 3}})
    assert [holds for *_, holds in toy_constrained.claims(results)] == [True] * 4
    bad = good._replace(found=point._replace(stationary=0.5, multipliers=[2.0, 0.5]), bound=1.0)
    worse = results._replace(conflict=[bad], capped=point._replace(slack=0.5))
    assert [holds for *_, holds in toy_constrained.claims(worse)] == [False] * 4
    text = "\n".join(toy_constrained.lines(worse, SMALL))
    assert "at step 2, nine tenths there at None" in text
    assert toy_constrained.as_dict(results)["steps by rate"] == {"joint": {"1": 3}}
    assert not math.isnan(good.apart)
