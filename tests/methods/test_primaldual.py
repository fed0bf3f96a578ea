"""PrimalDual: against cooper, by hand, in any unit of the losses, and what tells it f*."""

from __future__ import annotations

import copy
import inspect
import io
import math
from typing import Any

import cooper
import pytest
import torch
from cooper.formulations import AugmentedLagrangian, Lagrangian
from cooper.multipliers import DenseMultiplier
from cooper.optim import AlternatingDualPrimalOptimizer, SimultaneousOptimizer
from cooper.penalty_coefficients import DensePenaltyCoefficient
from torch import Tensor, nn

from equipoise import MIMO, PrimalDual, Trajectory
from equipoise.balance.theory import relative_smoothing, smooth_maximum
from equipoise.methods.primaldual import DIVERGING
from equipoise.study.registry import entries
from equipoise.testing import SmallModel, batch, losses_of, names
from equipoise.util.errors import BadInput

DEFAULTS: dict[str, Any] = {
    name: one.default for name, one in inspect.signature(PrimalDual).parameters.items() if one.default is not one.empty
}
COUNTS = (1, 2, 3)


def told(balancer: PrimalDual, fused: float, **unimodal: float) -> dict[str, float]:
    """Take one step, and return the weights."""
    values = {"fused": fused, **unimodal}
    losses = {name: torch.tensor(value, dtype=torch.float64, requires_grad=True) for name, value in values.items()}
    balancer(losses).backward()
    return {name: float(balancer.table.at(name, "own heads")) for name in unimodal}


def plain(**changes: Any) -> PrimalDual:
    """A balancer whose weights can be read off without a model: heads are scaled as the Lagrangian has it."""
    arguments: dict[str, Any] = {"optimum": "zero", "heads": "scaled", **changes}
    return PrimalDual(**arguments)


# -- an independent implementation --


class Quadratics(nn.Module):
    """A point that is asked to be at one place, and near others: f_k = ½ ‖A_k (x − p_k)‖², f_mm = ½ ‖x − p_0‖²."""

    def __init__(self, count: int) -> None:
        super().__init__()
        random = torch.Generator().manual_seed(count)
        draw = torch.randn(2 * count + 2, 4, generator=random, dtype=torch.float64)
        self.point, self.places, self.stretch = nn.Parameter(4 * draw[0]), draw[1 : count + 2], draw[count + 2 :]

    def losses(self) -> dict[str, Tensor]:
        fused = 0.5 * (self.point - self.places[0]).square().sum()
        pairs = zip(self.stretch, self.places[1:], strict=True)
        others = [0.5 * (stretch * (self.point - place)).square().sum() for stretch, place in pairs]
        return dict(zip(["fused", *names(len(others))], [fused, *others], strict=True))


class Constrained(cooper.ConstrainedMinimizationProblem):
    """The same problem as cooper has it: f_mm subject to f_k − f*_k − ε s ≤ 0."""

    def __init__(self, model: Quadratics, limits: Tensor, rate: float, formulation: type[Any]) -> None:
        super().__init__()
        self.model, self.limits = model, limits
        coefficient = DensePenaltyCoefficient(torch.full_like(limits, rate))
        self.near = cooper.Constraint(
            constraint_type=cooper.ConstraintType.INEQUALITY,
            formulation_type=formulation,
            multiplier=DenseMultiplier(init=torch.zeros_like(limits)).double(),
            penalty_coefficient=coefficient if formulation is AugmentedLagrangian else None,
        )

    def compute_cmp_state(self) -> cooper.CMPState:
        fused, *unimodal = self.model.losses().values()
        state = cooper.ConstraintState(violation=torch.stack(unimodal) - self.limits)
        return cooper.CMPState(loss=fused, observed_constraints={self.near: state})


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("form", ["the augmented Lagrangian, both at once", "the Lagrangian, multipliers first"])
def test_multipliers_and_parameters_are_those_of_cooper(count: int, form: str) -> None:
    ours, theirs = Quadratics(count), Quadratics(count)
    start = torch.stack(list(ours.losses().values())[1:]).detach()
    optimum, tolerance, rate = 0.2 * start, 0.1, 0.3
    balancer = plain(
        optimum=dict(zip(names(count), optimum.tolist(), strict=True)),
        tolerance=tolerance, rate=rate, memory=1, ceiling=math.inf,
    )  # fmt: skip
    optimizer = torch.optim.SGD(ours.parameters(), lr=0.05)

    # Ours divides violations by the scale s: in units of the losses, the rate of the multipliers is η / s.
    scale = float(start.mean())
    augmented = form.startswith("the augmented")
    problem = Constrained(
        theirs, optimum + tolerance * scale, rate / scale, AugmentedLagrangian if augmented else Lagrangian
    )
    kind = SimultaneousOptimizer if augmented else AlternatingDualPrimalOptimizer
    reference = kind(
        problem,
        primal_optimizers=torch.optim.SGD(theirs.parameters(), lr=0.05),
        dual_optimizers=torch.optim.SGD(problem.dual_parameters(), lr=rate / scale, maximize=True),
    )
    seen = []
    for _ in range(40):
        optimizer.zero_grad()
        balancer(ours.losses()).backward()
        optimizer.step()
        reference.roll()
        expected = next(iter(problem.dual_parameters())).detach()
        # Ours keeps multipliers in single precision.
        torch.testing.assert_close(balancer.multiplier.double(), expected, rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(ours.point.detach(), theirs.point.detach(), rtol=1e-5, atol=1e-6)
        seen.append(expected.clone())
    path = torch.stack(seen)
    assert (path.amax(dim=0) > 0).any(), "a constraint has to bind, or nothing was compared"
    if count == 3:
        assert ((path[:-1] > 0) & (path[1:] == 0)).any(), "and a multiplier has to end at zero"


# -- by hand --


def test_two_steps_by_hand() -> None:
    balancer = plain(optimum={"audio": 1.0, "video": 0.5}, tolerance=0.25, rate=0.5, memory=2, ceiling=10.0)
    # s = (3 + 1) / 2. Violations (3 − 1)/2 − 0.25 = 0.75 and (1 − 0.5)/2 − 0.25 = 0.
    assert told(balancer, 1.0, audio=3.0, video=1.0) == pytest.approx({"audio": 0.375, "video": 0.0})
    assert balancer.multiplier.tolist() == pytest.approx([0.375, 0.0])
    # Now 0.25 and 0.25; means with the first, 0.5 and 0.125; λ = 0.375 + 0.5 · 0.5 and 0.5 · 0.125.
    assert told(balancer, 1.0, audio=2.0, video=1.5) == pytest.approx({"audio": 0.625, "video": 0.0625})
    # A third has a half of the mean, since two steps are remembered: −0.75 and −0.5; means −0.125 and −0.1875.
    assert told(balancer, 1.0, audio=0.0, video=0.0) == pytest.approx({"audio": 0.5625, "video": 0.0}, abs=1e-7)
    assert balancer.violation.tolist() == pytest.approx([-0.125, -0.1875])


def test_the_value_is_that_of_the_lagrangian() -> None:
    balancer = plain(optimum=0.5, tolerance=0.1, rate=1.0, memory=1)
    losses = {name: torch.tensor(value, dtype=torch.float64) for name, value in {"fused": 7.0, "a": 2.0}.items()}
    weight = (2.0 - 0.5) / 2.0 - 0.1
    assert float(balancer(losses)) == pytest.approx(7.0 + weight * (2.0 - 0.5 - 0.1 * 2.0))


@pytest.mark.parametrize("factor", [1e-6, 1e-3, 7.0, 1e3, 1e6])
def test_units_of_the_losses_change_no_weight(factor: float) -> None:
    random = torch.Generator().manual_seed(0)
    rows = (1 + torch.rand(12, 3, generator=random, dtype=torch.float64)).tolist()
    weights = {}
    for unit in (1.0, factor):
        balancer = plain(optimum={"a": 0.1 * unit, "b": 0.9 * unit})
        steps = [told(balancer, unit * fused, a=unit * a, b=unit * b) for fused, a, b in rows]
        weights[unit] = [weight for step in steps for weight in step.values()]
    assert weights[factor] == pytest.approx(weights[1.0], rel=1e-5, abs=1e-7)
    assert max(weights[1.0]) > 0


def test_a_modality_that_keeps_its_constraint_ends_without_weight() -> None:
    balancer = plain(optimum=1.0)
    before = told(balancer, 1.0, late=3.0, early=3.0)
    assert before["late"] == before["early"] > 0
    seen = []
    while not seen or seen[-1]["early"] > 0:
        seen.append(told(balancer, 1.0, late=3.0, early=0.9))
        assert len(seen) < 100 * DEFAULTS["memory"]
    assert seen[-1]["late"] > seen[0]["late"]


def test_no_multiplier_is_above_the_ceiling() -> None:
    ceiling = DEFAULTS["ceiling"]
    balancer = plain()
    seen = [told(balancer, 1.0, a=2.0, b=2.0)["a"] for _ in range(math.ceil(3 * ceiling / DEFAULTS["rate"]))]
    assert max(seen) == seen[-1] == pytest.approx(ceiling)
    assert seen == sorted(seen)


def test_a_loss_above_its_first_that_leaves_its_mean_behind_shrinks_its_multiplier() -> None:
    balancer = plain(rate=0.5)
    told(balancer, 1.0, a=2.0, b=2.0)  # s = 2, violations of 1
    edge = 2.0 + 2.0 * DIVERGING
    # Above the edge, but near the mean: 1.3 beside (1 + 1.3) / 2. A broken constraint, whose multiplier rises.
    raised = told(balancer, 1.0, a=2.6, b=2.0)["a"]
    assert edge < 2.6
    assert raised == pytest.approx(0.5 + 0.5 * 1.15)
    # Far above both, 3 beside (1 + 1.3 + 3) / 3.
    shrunk = told(balancer, 1.0, a=6.0, b=2.0)
    assert shrunk["a"] == pytest.approx(raised / 1.5, rel=1e-6)
    assert shrunk["b"] == pytest.approx(1.5)  # that of the other rises as it would have
    # The mean comes a third nearer to twice what it was, and not to 3.
    assert float(balancer.violation[0]) == pytest.approx(1.15 * (1 + 1 / 3))
    assert told(balancer, 1.0, a=1e6, b=2.0)["a"] == pytest.approx(raised / 1.5**2, rel=1e-6)


@pytest.mark.parametrize("memory", [1, 2, 20])
def test_a_loss_that_runs_away_shrinks_its_multiplier_however_long_the_memory(memory: int) -> None:
    balancer = plain(memory=memory, ceiling=math.inf)
    weights = [told(balancer, 1.0, a=4.0**step)["a"] for step in range(8)]
    rate = DEFAULTS["rate"]
    assert weights == pytest.approx([rate / (1 + rate) ** step for step in range(8)], rel=1e-6)


@pytest.mark.parametrize("memory", [1, 2, 20])
def test_after_one_loss_that_is_far_off_the_mean_is_soon_what_it_was(memory: int) -> None:
    balancer = plain(memory=memory, rate=1e-3)
    for value in (2.0, 2.0, 2.0, 1e9):
        told(balancer, 1.0, a=value)
    assert 1.0 < float(balancer.violation) <= 2.0
    for _ in range(6 * memory):
        told(balancer, 1.0, a=2.0)
    assert float(balancer.violation) == pytest.approx(1.0, abs=0.01)


def test_a_loss_that_leaves_its_mean_behind_but_is_where_it_began_raises_its_multiplier() -> None:
    balancer = plain(rate=0.5, optimum=1.0, memory=2)
    told(balancer, 1.0, a=4.0)  # s = 4, a violation of 3/4
    kept = [told(balancer, 1.0, a=1.0)["a"] for _ in range(6)][-1]  # violations of zero, whose mean goes to zero
    assert told(balancer, 1.0, a=4.0)["a"] > kept + 0.1  # 3/4 beside a mean of 3/8


# -- at rest --


@pytest.mark.parametrize("start", [0.5, 1.9, 3.0])
def test_at_rest_the_constraint_is_kept_whatever_the_start(start: float) -> None:
    """min ½(θ − 2)² subject to ½θ² ≤ ε · ½θ_0²; a start that is better than the end is no reason to give up."""
    point = nn.Parameter(torch.tensor(start, dtype=torch.float64))
    balancer = plain(optimum=0.0, tolerance=0.1, ceiling=1e6)
    optimizer = torch.optim.SGD([point], lr=0.05)
    for _ in range(2500):
        optimizer.zero_grad()
        balancer({"fused": 0.5 * (point - 2).square(), "a": 0.5 * point.square()}).backward()
        optimizer.step()
    limit = 0.1 * 0.5 * start**2
    assert 0.9 * limit < float(0.5 * point.detach().square()) <= 1.05 * limit
    # θ − 2 + λθ = 0
    assert float(balancer.multiplier) == pytest.approx(2 / math.sqrt(2 * limit) - 1, rel=0.05)


@pytest.mark.parametrize("heads", ["plain", "scaled"])
def test_heads_train_at_one_or_at_the_weight(heads: Any) -> None:
    model, data = SmallModel(names(2)), batch(names(2))
    balancer = PrimalDual(optimum="zero", heads=heads).attach(model)
    balancer(losses_of(model, data)).backward()
    for name in names(2):
        weight = float(balancer.table.at(name, name))
        assert 0 < weight < 1
        assert float(balancer.table.at(name, "own heads")) == pytest.approx(1.0 if heads == "plain" else weight)


# -- samples that lack a sensor --


def test_an_absent_sensor_keeps_its_state_and_has_no_weight() -> None:
    balancer = plain(optimum="zero", memory=1)
    full = {"fused": torch.full((4,), 1.0), "a": torch.full((4,), 2.0), "b": torch.full((4,), 2.0)}
    nobody = {"b": torch.zeros(4, dtype=torch.bool)}

    def step(present: dict[str, Tensor] | None = None) -> list[float]:
        leaves = {name: value.clone().requires_grad_() for name, value in full.items()}
        balancer(leaves, present=present).backward()
        return [float(balancer.table.at(name, "own heads")) for name in "ab"]

    first = step()
    before = {name: getattr(balancer, name).clone() for name in ("multiplier", "violation", "first")}
    absent = step(nobody)
    assert first[0] == first[1] > 0
    assert absent[1] == 0.0
    assert absent[0] > first[0]
    for name, kept in before.items():
        assert torch.equal(getattr(balancer, name)[1], kept[1]), name
    assert step()[1] > first[1]  # it goes on from where it was


def test_a_sensor_that_comes_late_is_measured_from_then_on() -> None:
    balancer = plain(tolerance=0.0, rate=0.5, memory=1)
    nobody = {"b": torch.zeros(2, dtype=torch.bool)}
    losses = {"fused": torch.ones(2), "a": torch.full((2,), 4.0), "b": torch.full((2,), torch.nan)}
    balancer({name: value.requires_grad_() for name, value in losses.items()}, present=nobody).backward()
    assert balancer.first.isnan().tolist() == [False, True]
    assert balancer.multiplier.tolist() == pytest.approx([0.5, 0.0])  # s is that of a alone: (4 − 0) / 4 · 0.5
    assert told(balancer, 1.0, a=4.0, b=2.0) == pytest.approx({"a": 0.5 + 0.5 * 4 / 3, "b": 0.5 * 2 / 3})  # s = 3
    assert balancer.first.tolist() == [4.0, 2.0]


# -- f* --


def test_the_running_mean_of_a_twin_by_hand() -> None:
    balancer = MIMO(optimum="twin")
    balancer.smooth = 2
    balancer.track({"a": torch.tensor([1.0, 3.0]), "b": torch.tensor(5.0)})
    assert balancer.optimum[:, 0].tolist() == [2.0, 5.0]
    balancer.track({"a": torch.tensor([4.0, 4.0]), "b": torch.tensor(7.0), "fused": torch.tensor(99.0)})
    assert balancer.optimum[:, 0].tolist() == [3.0, 6.0]
    masks = {"a": torch.tensor([True, False]), "b": torch.tensor([False, False])}
    balancer.track({"a": torch.tensor([1.0, torch.nan]), "b": torch.tensor([1.0, 1.0])}, masks)
    assert balancer.optimum[:, 0].tolist() == [2.0, 6.0]  # half of what was, since two are remembered; none had b
    assert float(balancer.tracked.max()) == 3
    assert balancer.optimum_now().tolist() == [2.0, 6.0]


def test_a_mean_over_fewer_losses_than_are_remembered_is_plain() -> None:
    balancer, rows = MIMO(optimum="twin"), torch.rand(30, generator=torch.Generator().manual_seed(1))
    balancer.smooth = 50
    for value in rows:
        balancer.track({"a": value})
    assert float(balancer.optimum) == pytest.approx(float(rows.mean()), rel=1e-5)


@pytest.mark.parametrize("lost", [math.nan, math.inf])
def test_a_twin_that_diverges_changes_f_no_more(lost: float) -> None:
    balancer = plain(optimum="twin")
    balancer.track({"a": torch.tensor(2.0), "b": torch.tensor(3.0)})
    balancer.track({"a": torch.tensor(lost), "b": torch.tensor(1.0)})
    assert balancer.optimum[:, 0].tolist() == [2.0, 1.0]
    assert all(math.isfinite(weight) for weight in told(balancer, 1.0, a=4.0, b=4.0).values())


def test_gaps_are_averaged_once_not_f_too() -> None:
    balancer = plain(optimum="twin", tolerance=0.0, rate=1.0, memory=2)
    for own, alone in ((4.0, 4.0), (3.0, 1.0), (2.0, 1.0)):
        balancer.track({"a": torch.tensor(alone)})
        told(balancer, 1.0, a=own)
        assert float(balancer.optimum) == alone
    assert float(balancer.violation) == pytest.approx(((0 + 2) / 2 + 1) / 2 / 4)  # of gaps 0, 2, 1 in units of 4


def test_a_trajectory_is_told_before_or_by_refer() -> None:
    trajectory = Trajectory(smooth=1)
    for step in range(3):
        trajectory.record({"a": torch.tensor(3.0 - step), "b": torch.tensor(6.0 - step)})
    given = plain(optimum=trajectory)
    later = plain(optimum="trajectory")
    later.refer(trajectory)
    ended = plain(optimum="final")
    ended.refer(trajectory)
    for balancer, expected in ((given, [3, 2, 1, 1]), (later, [3, 2, 1, 1]), (ended, [1, 1, 1, 1])):
        seen = []
        balancer.settle(["b", "a"], torch.device("cpu"))  # in whichever order they come
        for _ in range(4):
            for _ in range(2):  # looking does not move it
                seen_now = balancer.optimum_now().tolist()
            seen.append(seen_now)
            told(balancer, 1.0, a=4.0, b=8.0)
        assert [row[1] for row in seen] == expected
        assert [row[0] - row[1] for row in seen] == [3.0] * 4


def test_refer_says_which_modality_is_missing() -> None:
    trajectory = Trajectory()
    trajectory.record({"a": torch.tensor(1.0)})
    balancer = plain(optimum="trajectory")
    balancer.settle(["a", "b"], torch.device("cpu"))
    with pytest.raises(ValueError, match=r"expected one entry for each of \['a', 'b'\], found none for \['b'\]"):
        balancer.refer(trajectory)


@pytest.mark.parametrize(
    ("source", "typed"),
    [("twin", "balancer.track("), ("trajectory", "balancer.refer(trajectory)"), ("final", "balancer.refer(")],
)
@pytest.mark.parametrize("kind", [PrimalDual, MIMO])
def test_where_nobody_told_it_it_says_what_to_type(source: str, typed: str, kind: type[Any]) -> None:
    balancer = kind(optimum=source, heads="scaled")
    losses = {name: torch.ones((), requires_grad=True) for name in ("fused", "a", "b")}
    with pytest.raises(RuntimeError) as said:
        balancer(losses)
    assert typed in str(said.value)
    assert f"{kind.__name__}(optimum={source!r})" in str(said.value)


def test_all_that_is_wrong_comes_in_one_message() -> None:
    wrong: dict[str, Any] = {"tolerance": -1.0, "rate": 0.0, "ceiling": 0.0, "memory": 0, "every": 0}
    wrong["optimum"] = "twins"
    with pytest.raises(ValueError, match="optimum should be") as said:
        PrimalDual(**wrong)
    for name in wrong:
        assert f"{name} should be" in str(said.value)


def test_a_state_goes_on_from_the_middle() -> None:
    rows = (1 + torch.rand(20, 3, generator=torch.Generator().manual_seed(3), dtype=torch.float64)).tolist()

    def step(balancer: PrimalDual, fused: float, a: float, b: float) -> dict[str, float]:
        balancer.track({"a": torch.tensor(0.5 * a), "b": torch.tensor(0.9 * b)})
        return told(balancer, fused, a=a, b=b)

    whole = plain(optimum="twin", memory=5)
    for row in rows[:10]:
        step(whole, *row)
    file = io.BytesIO()
    torch.save(whole.state_dict(), file)
    file.seek(0)
    resumed = plain(optimum="twin", memory=5)
    resumed.load_state_dict(torch.load(file, weights_only=True))
    copied = copy.deepcopy(whole)
    for row in rows[10:]:
        expected = step(whole, *row)
        assert step(resumed, *row) == expected
        assert step(copied, *row) == expected


# -- words --


@pytest.mark.parametrize("method", ["primaldual", "mimo"])
@pytest.mark.parametrize(
    ("word", "expected"),
    [
        *((source, source) for source in ("twin", "trajectory", "final", "zero")),
        ("0.3", 0.3),
        ("none", None),
        ("easy:0.1,hard:0.5", {"easy": 0.1, "hard": 0.5}),
    ],
)
def test_a_word_names_the_source(method: str, word: str, expected: Any) -> None:
    (entry,) = entries([method], [f"optimum={word}"])
    assert entry.params["optimum"] == expected
    balancer = entry.balancer()
    assert isinstance(balancer, (PrimalDual, MIMO))
    assert balancer.source == (expected if isinstance(expected, str) else "zero" if expected is None else "given")


@pytest.mark.parametrize("word", ["twins", "easy:", "easy:0.1,hard", "easy=0.1", ""])
def test_a_word_that_names_none_gets_one_message(word: str) -> None:
    with pytest.raises(BadInput) as said:
        entries(["primaldual"], [f"optimum={word}"])
    assert "optimum should be zero, twin, trajectory, final, a number" in str(said.value)
    assert repr(word) in str(said.value)


# -- the relative smoothing of MIMO --


@pytest.mark.parametrize("count", [2, 3, 5])
@pytest.mark.parametrize("share", [0.01, 0.1, 1.0])
def test_the_relative_smooth_maximum_is_that_share_above_the_maximum(count: int, share: float) -> None:
    random = torch.Generator().manual_seed(count)
    gaps = torch.randn(300, count, generator=random, dtype=torch.float64)
    for unit in (1e-6, 1.0, 1e6):
        largest = (unit * gaps).abs().amax(dim=1)
        smoothing = relative_smoothing(unit * gaps, share)
        excess = torch.stack([smooth_maximum(g, m) for g, m in zip(unit * gaps, smoothing, strict=True)])
        excess = excess - (unit * gaps).amax(dim=1)
        assert (excess >= -1e-12 * largest).all()
        assert (excess <= share * largest * (1 + 1e-9)).all()
    tied = torch.ones(count, dtype=torch.float64)
    above = float(smooth_maximum(tied, relative_smoothing(tied, share))) - 1.0
    assert above == pytest.approx(share)  # the bound is met where all are equal


@pytest.mark.parametrize("unit", [1e-6, 1.0, 1e6])
def test_relative_weights_are_the_softmax_in_any_unit(unit: float) -> None:
    values = unit * torch.tensor([1.0, 2.0, 1.5, 0.5], dtype=torch.float64)
    leaves = [value.clone().requires_grad_() for value in values]
    balancer = MIMO(10.0, 0.2, optimum=0.3 * unit, relative=True)
    balancer(dict(zip(["fused", *names(3)], leaves, strict=True))).backward()
    smoothing = 0.2 * (2.0 - 0.3) / math.log(3)
    expected = 10.0 * torch.softmax((values[1:] / unit - 0.3) / smoothing, 0)
    found = torch.stack([leaf.grad for leaf in leaves[1:] if leaf.grad is not None])
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=0)


def test_relative_of_one_modality_and_of_gaps_that_are_zero() -> None:
    alone = MIMO(10.0, 0.1, relative=True)
    alone({"fused": torch.tensor(1.0), "a": torch.tensor(3.0)})
    assert float(alone.table.at("a", "own heads")) == pytest.approx(10.0)
    even = MIMO(10.0, 0.1, optimum={"a": 3.0, "b": 1.0}, relative=True)
    even({"fused": torch.tensor(1.0), "a": torch.tensor(3.0), "b": torch.tensor(1.0)})
    assert [float(even.table.at(name, "own heads")) for name in "ab"] == pytest.approx([5.0, 5.0])


def test_a_sensor_that_comes_later_starts_with_its_own_mean() -> None:
    """Steps are counted sensor by sensor: one that was missing at first is not averaged with nothing."""
    absent, there = torch.zeros(2, dtype=torch.bool), torch.ones(2, dtype=torch.bool)
    told = MIMO(optimum="twin")
    for mask, audio in ((absent, 9.0), (there, 2.0)):
        losses = {"audio": torch.full((2,), audio), "video": torch.ones(2)}
        told.track(losses, {"audio": mask})
    assert told.optimum[:, 0].tolist() == [2.0, 1.0]
    balancer = PrimalDual(optimum=0.0, tolerance=0.0, heads="scaled")
    for mask in (absent, there):
        losses = {"fused": torch.ones(2), "audio": torch.full((2,), 3.0), "video": torch.ones(2)}
        losses = {name: loss.requires_grad_() for name, loss in losses.items()}
        balancer(losses, present={"audio": mask}).backward()
    assert balancer.taken.tolist() == [1.0, 2.0]
    assert float(balancer.violation[0]) == pytest.approx(3.0 / 2.0)  # in units of the mean of 3 and 1
