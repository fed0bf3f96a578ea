import math

import pytest
import torch
from torch import Tensor
from torchjd.scalarization import STCH

from equipoise import EW, MIMO, MSL, Trajectory, Unimodal, mimo_objective
from equipoise.balance.theory import doubled_smoothing, smooth_maximum, smoothing_gap
from equipoise.testing import SmallModel, attached, batch, gradients_of, losses_of, names

COUNTS = (1, 2, 3, 5)


def leaves(count: int, seed: int, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    random = torch.Generator().manual_seed(seed)
    return [(3 * torch.rand((), generator=random, dtype=dtype)).requires_grad_() for _ in range(count + 1)]


def as_losses(values: list[Tensor]) -> dict[str, Tensor]:
    return dict(zip(["fused", *names(len(values) - 1)], values, strict=True))


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("smoothing", [1e-3, 0.1, 1.0, 100.0])
@pytest.mark.parametrize("penalty", [0.0, 1.0, 100.0])
def test_value_and_gradient_are_those_of_the_formula(count: int, smoothing: float, penalty: float) -> None:
    for seed in range(5):
        values, twins = leaves(count, seed), leaves(count, seed)
        optimum = {name: 0.1 * place for place, name in enumerate(names(count))}
        loss = MIMO(penalty, smoothing, optimum=optimum)(as_losses(values))
        gaps = torch.stack(twins[1:]) - 0.1 * torch.arange(count, dtype=torch.float64)
        formula = twins[0] + penalty * smoothing * torch.logsumexp(gaps / smoothing, 0)
        loss.backward()
        formula.backward()
        torch.testing.assert_close(loss.detach(), formula.detach(), rtol=0, atol=1e-10)
        for mine, theirs in zip(values, twins, strict=True):
            torch.testing.assert_close(mine.grad, theirs.grad, rtol=0, atol=1e-10)


@pytest.mark.parametrize("smoothing", [1e-3, 0.1, 1.0])
def test_in_single_precision_the_error_is_the_rounding_of_the_exponents(smoothing: float) -> None:
    for seed in range(20):
        single, double = leaves(3, seed, torch.float32), leaves(3, seed, torch.float32)
        double = [value.detach().double().requires_grad_() for value in double]
        loss = MIMO(1.0, smoothing)(as_losses(single))
        exact = double[0] + smoothing * torch.logsumexp(torch.stack(double[1:]) / smoothing, 0)
        loss.backward()
        exact.backward()
        bound = 1e-6 + 2 * torch.finfo(torch.float32).eps * max(float(v.detach()) for v in single) / smoothing
        torch.testing.assert_close(loss.detach().double(), exact.detach(), rtol=1e-6, atol=bound)
        for mine, theirs in zip(single, double, strict=True):
            assert mine.grad is not None
            torch.testing.assert_close(mine.grad.double(), theirs.grad, rtol=0, atol=bound)


@pytest.mark.parametrize("count", [2, 3, 5])
def test_weights_tend_to_the_maximum_and_to_equality(count: int) -> None:
    losses = as_losses([value.detach() for value in leaves(count, 3)])
    worst = max(names(count), key=lambda name: float(losses[name]))
    tables = {}
    for smoothing in (0.0, 1e-6, 1e6):
        balancer = MIMO(10.0, smoothing)
        balancer(losses)
        tables[smoothing] = balancer.table
    for name in names(count):
        wanted = 10.0 if name == worst else 0.0
        assert float(tables[0.0].at(name, "own heads")) == wanted
        assert float(tables[1e-6].at(name, "own heads")) == pytest.approx(wanted, abs=1e-12)
        assert float(tables[1e6].at(name, "own heads")) == pytest.approx(10.0 / count, rel=1e-5)


def test_the_hard_maximum_shares_a_tie() -> None:
    balancer = MIMO(6.0, 0.0)
    loss = balancer(
        {"fused": torch.tensor(1.0), "a": torch.tensor(2.0), "b": torch.tensor(2.0), "c": torch.tensor(1.0)}
    )
    assert float(loss) == 13.0
    assert [float(balancer.table.at(name, "own heads")) for name in "abc"] == [3.0, 3.0, 0.0]


@pytest.mark.parametrize("count", COUNTS)
def test_the_smoothing_gap_lies_between_zero_and_mu_log_k(count: int) -> None:
    random = torch.Generator().manual_seed(0)
    for smoothing in (1e-3, 0.1, 10.0):
        values = torch.randn(200, count, generator=random, dtype=torch.float64)
        gap = smooth_maximum(values, smoothing) - values.amax(dim=1)
        assert float(gap.min()) >= -1e-12
        assert float(gap.max()) <= smoothing_gap(count, smoothing) + 1e-12
    equal = torch.zeros(count, dtype=torch.float64)
    assert float(smooth_maximum(equal, 0.1)) == pytest.approx(0.1 * math.log(count))


@pytest.mark.parametrize("count", [2, 3, 5])
@pytest.mark.parametrize("smoothing", [0.05, 0.5])
def test_the_smooth_maximum_is_torchjds_smooth_tchebycheff_with_weights_one(count: int, smoothing: float) -> None:
    random = torch.Generator().manual_seed(count)
    for _ in range(10):
        gaps = torch.rand(count, generator=random, dtype=torch.float64)
        theirs = STCH(smoothing, weights=torch.ones(count, dtype=torch.float64))(gaps)
        torch.testing.assert_close(smooth_maximum(gaps, smoothing), theirs, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("smoothing", [1e-3, 1e-2, 0.1, 1.0])
def test_doubling_equals_the_papers_loop(smoothing: float) -> None:
    random = torch.Generator().manual_seed(1)
    worst = torch.cat([10 ** (8 * torch.rand(200, generator=random) - 3), torch.zeros(1), -torch.ones(1)])
    limit = math.log(torch.finfo(torch.float32).max)
    worst = torch.cat([worst, smoothing * limit * 2.0 ** torch.arange(8)])  # exactly at the edges
    for value in worst.tolist():
        looped = smoothing
        while value / looped > limit:
            looped *= 2
        found = float(doubled_smoothing(torch.tensor([value, value - 1.0]), smoothing))
        doublings = math.log2(max(value, 1e-30) / (smoothing * limit))
        on_the_edge = abs(doublings - round(doublings)) < 1e-5  # the last bit of a float32 decides
        assert found == pytest.approx(looped, rel=1e-6) or (
            on_the_edge and min(abs(found / looped - r) for r in (0.5, 2)) < 1e-6
        )


def test_doubling_on_cremad_starts_at_four_times_the_smoothing() -> None:
    start = math.log(6)
    assert float(doubled_smoothing(torch.full((2,), start), 0.01)) == pytest.approx(0.04)
    assert float(doubled_smoothing(torch.full((2,), math.log(309)), 0.01)) == pytest.approx(0.08)
    assert float(doubled_smoothing(torch.full((2,), math.log(2)), 0.001)) == pytest.approx(0.008)
    assert float(doubled_smoothing(torch.full((2,), start, dtype=torch.float64), 0.01)) == pytest.approx(0.01)


def test_doubling_changes_the_optimisation_and_stable_does_not() -> None:
    losses = {"fused": torch.tensor(1.0), "a": torch.tensor(1.79), "b": torch.tensor(1.75)}
    tables = {}
    for overflow in ("stable", "double"):
        balancer = MIMO(1.0, 0.01, overflow=overflow)
        balancer(losses)
        tables[overflow] = float(balancer.table.at("a", "own heads"))
    assert tables["stable"] == pytest.approx(1 / (1 + math.exp(-0.04 / 0.01)), rel=1e-3)
    assert tables["double"] == pytest.approx(1 / (1 + math.exp(-0.04 / 0.04)), rel=1e-3)


def test_the_pure_function_has_the_objectives_hessian() -> None:
    values = torch.tensor([0.4, 1.0, 1.3, 0.7], dtype=torch.float64)
    hessian = torch.autograd.functional.hessian(lambda v: mimo_objective(v[0], v[1:], 10.0, 0.3), values)
    assert isinstance(hessian, Tensor)
    share = torch.softmax(values[1:] / 0.3, 0)
    expected = torch.zeros(4, 4, dtype=torch.float64)
    expected[1:, 1:] = 10.0 / 0.3 * (torch.diag(share) - share[:, None] * share)
    torch.testing.assert_close(hessian, expected, rtol=1e-10, atol=1e-12)


def test_a_floor_of_one_is_ew_plus_mimo() -> None:
    results = {}
    for key, balancer in {
        "both": MIMO(10.0, 0.1, floor=1.0),
        "mimo": MIMO(10.0, 0.1),
        "ew": EW(),
        "msl": MSL(),
    }.items():
        model = SmallModel(names(3))
        value = attached(balancer, model)(losses_of(model, batch(names(3))))
        value.backward()
        results[key] = (gradients_of(model), float(value.detach()))
    assert results["both"][1] == pytest.approx(results["mimo"][1] + results["ew"][1] - results["msl"][1])
    for name, gradient in results["both"][0].items():
        if not name.startswith("heads."):  # MSL trains them for measuring
            parts = [results[key][0][name] for key in ("mimo", "ew", "msl")]
            torch.testing.assert_close(gradient, parts[0] + parts[1] - parts[2], rtol=1e-9, atol=1e-12)


def test_plain_heads_train_at_weight_one_and_encoders_as_before() -> None:
    results = {}
    for heads in ("scaled", "plain"):
        model = SmallModel(names(3))
        attached(MIMO(100.0, 0.1, heads=heads), model)(losses_of(model, batch(names(3)))).backward()
        results[heads] = gradients_of(model)
    model = SmallModel(names(3))
    torch.stack([f.mean() for f in losses_of(model, batch(names(3))).values()]).sum().backward()
    alone = gradients_of(model)
    for name in alone:
        same = alone if name.startswith("heads.") else results["scaled"]
        torch.testing.assert_close(results["plain"][name], same[name], rtol=1e-9, atol=1e-12)


def test_an_optimum_shifts_the_weights() -> None:
    losses = {"fused": torch.tensor(1.0), "easy": torch.tensor(0.3), "hard": torch.tensor(1.5)}
    balancer = MIMO(10.0, 0.1, optimum={"easy": 0.0, "hard": 1.4})
    balancer(losses)
    # gaps 0.3 and 0.1: the hard sensor is nearly where it can be
    share = float(torch.sigmoid(torch.tensor(2.0)))
    assert float(balancer.table.at("easy", "own heads")) == pytest.approx(10 * share, rel=1e-5)


def test_an_optimum_for_other_modalities_is_refused() -> None:
    balancer = MIMO(optimum={"audio": 0.1})
    for _ in range(2):  # again too: it is not half settled
        with pytest.raises(
            ValueError, match=r"optimum should have one entry for each of \['a', 'b'\], found \['audio'\]"
        ):
            balancer({"fused": torch.tensor(1.0), "a": torch.tensor(0.3), "b": torch.tensor(1.5)})
        assert balancer.modalities == ()


def test_a_trajectory_is_followed_step_by_step_and_stays_at_its_end() -> None:
    trajectory = Trajectory(smooth=1)
    for value in (2.0, 1.0):
        trajectory.record({"fused": torch.tensor(9.0), "a": torch.tensor(value), "b": torch.tensor(0.0)})
    balancer = MIMO(1.0, 1.0, optimum=trajectory)
    losses = {name: torch.tensor(value, requires_grad=True) for name, value in (("fused", 0.0), ("a", 2.0), ("b", 0.0))}
    found = []
    for _ in range(3):
        for _ in range(2):  # looking does not move it
            with torch.no_grad():
                balancer(losses)
            balancer(losses)
        balancer(losses).backward()
        found.append(float(balancer.table.at("a", "own heads")))
    # gaps of a: 2 − 2, then 2 − 1 for good
    assert found == pytest.approx([0.5, 1 / (1 + math.exp(-1)), 1 / (1 + math.exp(-1))], rel=1e-5)


def test_a_trajectory_counts_steps_of_the_optimiser_when_it_sees_one() -> None:
    trajectory = Trajectory(smooth=1)
    for value in (1.0, 0.5, 0.25):
        trajectory.record({name: torch.tensor(value) for name in names(2)})
    model = SmallModel(names(2))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    balancer = MIMO(optimum=trajectory).attach(model, optimizer=optimizer)
    for _ in range(4):  # four micro-batches, one step
        balancer(losses_of(model, batch(names(2)))).backward()
    assert balancer.step.tolist() == [0]
    optimizer.step()
    assert balancer.step.tolist() == [1]


def test_a_recorded_unimodal_run_makes_gaps_small() -> None:
    model = SmallModel(names(2))
    optimizer = torch.optim.SGD(model.parameters(), 0.5)
    alone, trajectory = Unimodal(), Trajectory(smooth=1)
    for _ in range(30):
        losses = losses_of(model, batch(names(2)))
        optimizer.zero_grad()
        alone(losses).backward()
        optimizer.step()
        trajectory.record(losses)
    ends = trajectory.final()
    assert all(ends[name] < float(trajectory.values()[name][0]) for name in names(2))
    balancer = MIMO(10.0, 0.1, optimum=ends)
    balancer({"fused": torch.tensor(1.0), **{name: torch.tensor(value) for name, value in ends.items()}})
    assert float(balancer.table.at("audio", "own heads")) == pytest.approx(5.0, rel=1e-4)


def test_every_wrong_argument_is_named_at_once() -> None:
    with pytest.raises(ValueError, match=r"MIMO: penalty .* found -1; smoothing .* found -2; overflow .* found 'x'"):
        MIMO(penalty=-1, smoothing=-2, overflow="x")  # ty: ignore[invalid-argument-type]


def test_a_smoothing_that_losses_divided_by_it_do_not_fit_is_named() -> None:
    losses = {"fused": torch.tensor(1.0), "audio": torch.tensor(1e10), "video": torch.tensor(2e10)}
    with pytest.raises(
        FloatingPointError, match=r"an argument that does not fit losses of this size: MIMO\(.*smoothing=1e-30"
    ):
        MIMO(smoothing=1e-30)(losses)
