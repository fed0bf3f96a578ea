"""PrimalDual on the toy problem and on the conflicting one: where it comes to rest, and how long it takes."""

import dataclasses
import math
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import NamedTuple

import torch
from torch import Tensor
from torch.autograd.functional import jacobian

from equipoise.balance.coefficients import FUSED
from equipoise.balance.theory import penalty_for
from equipoise.methods import PrimalDual
from equipoise.paper import toy
from equipoise.paper.toy import VARIANTS, ToyData, ToySettings
from equipoise.paper.toy_conflict import Conflict
from equipoise.report.formats import text_table

COMPARED = ("joint", "ew-full", "mimo-exact", "mimo-zero", "primal-dual", "primal-dual-exact")
MULTIPLES = (0.1, 0.3, 1.0, 3.0, 10.0)
TOLERANCES = (0.05, 0.03, 0.02)  # ε: at zero the multipliers of conflicting objectives have no end


class RestingPoint(NamedTuple):
    """A point that the iteration came to, and the conditions of Karush, Kuhn and Tucker there.

    Args:
        fused: f_mm.
        gaps: f_k − f*_k.
        limit: ε s, the most that gaps may be.
        multipliers: λ_k.
        stationary: ‖∇f_mm + Σ_k λ_k ∇f_k‖: relative to ‖∇f_mm‖ where objectives conflict, so that this is not zero.
        slack: max_k |λ_k − [λ_k + v_k]| with v_k = (gap_k − ε s) / s and [·] cut to [0, Λ]: zero where the constraint
            and complementary slackness hold, or, at the ceiling Λ, where the exact penalty is at its least.
    """

    fused: float
    gaps: list[float]
    limit: float
    multipliers: list[float]
    stationary: float
    slack: float


class ConflictRest(NamedTuple):
    """PrimalDual at rest on the conflicting problem, beside what Newton's method finds.

    Args:
        tolerance: ε.
        found: Where it came to rest.
        multipliers: Those of the relaxed problem with the same limit, by Newton's method.
        fused: The fused loss there.
        bound: The λ that Theorem 1 asks of the penalty for that gap, by `penalty_for`; the multipliers sum to no more.
    """

    tolerance: float
    found: RestingPoint
    multipliers: list[float]
    fused: float
    bound: float

    @property
    def apart(self) -> float:
        """The largest difference of a multiplier from Newton's, relative to their sum."""
        pairs = zip(self.found.multipliers, self.multipliers, strict=True)
        return max(abs(own - exact) for own, exact in pairs) / sum(self.multipliers)


class ConstrainedResults(NamedTuple):
    """All that is measured here.

    Args:
        conflict: At rest on the conflicting problem, for each of `TOLERANCES`.
        capped: The first of them, with a ceiling of half the largest multiplier.
        toy: At rest on the toy problem.
        begun: The gradient's length at the start of that, in the same unit.
        found: Per modality f*, and the step at which a twin is within a tenth of it, and of what the loss began with.
        steps: To the settings' level, by way of training and multiple of the learning rate; None where it is not
            reached, or not kept.
    """

    conflict: list[ConflictRest]
    capped: RestingPoint
    toy: RestingPoint
    begun: float
    found: dict[str, tuple[float, int | None, int | None]]
    steps: dict[str, dict[float, int | None]]


def residuals(
    slope: Tensor, slopes: Tensor, gaps: Tensor, multipliers: Tensor, limit: float, ceiling: float, scale: float = 1.0
) -> tuple[float, float]:
    """Compute both residuals of `RestingPoint`.

    Args:
        slope: ∇f_mm, [d].
        slopes: ∇f_k, [K, d].
        gaps: f_k − f*_k, [K].
        multipliers: λ_k, [K].
        limit: ε s.
        ceiling: Λ.
        scale: s.

    Example:
        >>> residuals(torch.tensor([2.0]), torch.tensor([[-1.0]]), torch.tensor([0.5]), torch.tensor([2.0]), 0.5, 10.0)
        (0.0, 0.0)
    """
    stationary = float((slope + multipliers @ slopes).norm()) / (float(slope.norm()) or 1.0)
    moved = (multipliers + (gaps - limit) / scale).clamp(0, ceiling)
    return stationary, float((moved - multipliers).abs().max())


def rest_on_conflict(
    conflict: Conflict, tolerance: float, ceiling: float = math.inf, lr: float = 0.05, steps: int = 3000
) -> RestingPoint:
    """Minimise the fused loss of the conflicting problem by PrimalDual with exact f*, from a random start.

    The unknowns are encoders alone, since heads are the best for each; so heads are those of the Lagrangian.
    """
    random, optimum = torch.Generator().manual_seed(0), conflict.data.optimum
    size = sum(encoder.shape[0] - 1 for encoder in conflict.data.correlations.target.values())
    offset = (0.3 * torch.randn(size, generator=random, dtype=torch.float64)).requires_grad_()
    balancer = PrimalDual(optimum, tolerance=tolerance, ceiling=ceiling, heads="scaled")
    optimizer = torch.optim.SGD([offset], lr=lr)
    least = torch.tensor([optimum[name] for name in conflict.names], dtype=torch.float64)
    for _ in range(steps):
        values = dict(zip(conflict.names, conflict.gaps(offset) + least, strict=True))
        optimizer.zero_grad()
        balancer({FUSED: conflict.fused(offset), **values}).backward()
        optimizer.step()
    point, multipliers, scale = offset.detach(), balancer.multiplier.double(), float(balancer.first.mean())
    gaps, limit = conflict.gaps(point), tolerance * scale
    slopes = jacobian(conflict.fused, point), jacobian(conflict.gaps, point)
    told = residuals(*slopes, gaps, multipliers, limit, ceiling, scale)
    return RestingPoint(float(conflict.fused(point)), gaps.tolist(), limit, multipliers.tolist(), *told)


def beside_newton(conflict: Conflict, tolerance: float) -> ConflictRest:
    """Compare where PrimalDual comes to rest with the relaxed problem's solution, and with the penalty's λ."""
    found = rest_on_conflict(conflict, tolerance)
    exact = conflict.relaxed(found.limit)
    slope, slopes = jacobian(conflict.fused, exact.offset), jacobian(conflict.gaps, exact.offset)
    # The Polyak–Łojasiewicz constant of that point: the least ‖∇f_k‖² / gap_k.
    constant = float((slopes.square().sum(dim=1) / torch.tensor(exact.gaps)).min())
    bound = penalty_for(found.limit, float(slope.norm()), constant, len(exact.gaps))
    return ConflictRest(tolerance, found, exact.multipliers, exact.fused, bound)


def rest_on_toy(data: ToyData, settings: ToySettings, seed: int, steps: int) -> tuple[RestingPoint, float]:
    """Train the toy by PrimalDual with exact f*; return where it is in the end, and the first gradient's length."""
    lengths = []
    for model, balancer, values in islice(toy.training_steps(data, settings, "primal-dual-exact", seed), steps):
        # What is delivered is ∇f_mm + Σ λ_k ∇f_k in encoders, ∇f_mm in the fused head and ∇f_k in each own one.
        gradients = [tensor.grad for tensor in model.parameters() if tensor.grad is not None]
        lengths.append(float(torch.stack([gradient.norm() for gradient in gradients]).norm()))
        state = balancer, {name: float(value.detach()) for name, value in values.items()}
    balancer, losses = state
    assert isinstance(balancer, PrimalDual)
    scale, multipliers = float(balancer.first.mean()), balancer.multiplier.double()
    gaps = torch.tensor([losses[name] - data.optimum[name] for name in data.inputs], dtype=torch.float64)
    limit, nothing = balancer.tolerance * scale, torch.zeros(1, dtype=torch.float64)
    slack = residuals(nothing, nothing.expand(len(gaps), 1), gaps, multipliers, limit, balancer.ceiling, scale)[1]
    return RestingPoint(losses[FUSED], gaps.tolist(), limit, multipliers.tolist(), lengths[-1], slack), lengths[0]


def steps_of_twin(
    data: ToyData, settings: ToySettings, seed: int, steps: int
) -> dict[str, tuple[float, int | None, int | None]]:
    """Find the step at which a twin's loss is within a tenth of the exact f*; and of that plus a tenth of its first."""
    rows = list(islice(toy.twin_losses(data, settings, seed), steps))
    found = {}
    for name, exact in data.optimum.items():
        column = torch.stack([row[name] for row in rows])
        hits = [(column <= level).nonzero() for level in (1.1 * exact, exact + 0.1 * (float(column[0]) - exact))]
        close, most = (int(hit[0]) if len(hit) else None for hit in hits)
        found[name] = (exact, close, most)
    return found


def steps_by_rate(
    data: ToyData, settings: ToySettings, seed: int, variants: Sequence[str] = COMPARED
) -> dict[str, dict[float, int | None]]:
    """Count the steps to the settings' level at multiples of the learning rate; a run that leaves it later has none."""
    found: dict[str, dict[float, int | None]] = {name: {} for name in variants}
    for name in variants:
        for multiple in MULTIPLES:
            slow = multiple < 1  # nothing leaves it later, and all take longer
            changed = dataclasses.replace(settings, lr=settings.lr * multiple)
            until, steps = (settings.level, 20 * settings.steps) if slow else (0.0, settings.steps)
            trace = toy.run(data, changed, name, seed, steps=steps, until=until)
            kept = float(trace.fused[-1]) <= settings.level
            found[name][multiple] = trace.reached(settings.level) if kept else None
    return found


def measure(settings: ToySettings, data: ToyData, conflict: Conflict, seed: int) -> ConstrainedResults:
    """Measure all of it."""
    rests = [beside_newton(conflict, tolerance) for tolerance in TOLERANCES]
    capped = rest_on_conflict(conflict, TOLERANCES[0], ceiling=max(rests[0].multipliers) / 2)
    at_rest, begun = rest_on_toy(data, settings, seed, 10 * settings.steps)
    found = steps_of_twin(data, settings, seed, 3 * settings.steps)
    return ConstrainedResults(rests, capped, at_rest, begun, found, steps_by_rate(data, settings, seed))


# -- in words --


def claims(results: ConstrainedResults) -> Iterator[tuple[str, str, str, bool]]:
    """Yield what the conditions say, what was measured, and whether it holds."""
    place = "PrimalDual"
    stationary = max(rest.found.stationary for rest in results.conflict)
    slack = max(rest.found.slack for rest in results.conflict)
    measured = f"stationarity to {stationary:.0e} of ‖∇f_mm‖, constraints and slackness to {slack:.0e} of s"
    says = "it comes to rest where the conditions of Karush, Kuhn and Tucker hold"
    yield place, says, measured, stationary <= 0.01 and slack <= 1e-3
    apart = max(rest.apart for rest in results.conflict)
    says = "its multipliers are those of the relaxed problem"
    yield place, says, f"they differ from Newton's by at most {apart:.1e} of their sum", apart <= 0.01
    shares = [sum(rest.multipliers) / rest.bound for rest in results.conflict]
    says = "multipliers sum to at most the λ that Theorem 1 asks of the penalty"
    yield place, says, f"{min(shares):.2f} to {max(shares):.2f} of it", max(shares) <= 1
    capped = results.capped
    measured = f"stationarity to {capped.stationary:.0e}, the rest to {capped.slack:.0e}"
    says = "with a ceiling below them it minimises the exact penalty"
    yield place, says, measured, capped.stationary <= 0.01 and capped.slack <= 1e-3


def _row(numbers: Sequence[float], form: str) -> str:
    return " ".join(format(number, form) for number in numbers)


def lines(results: ConstrainedResults, settings: ToySettings) -> Iterator[str]:
    """Yield the tables of the report."""
    yield "\nPrimalDual at rest where objectives conflict, beside Newton's method on the relaxed problem:"
    rows = [
        [
            *(f"ε = {rest.tolerance:g}", f"{rest.found.limit:.3e}", _row(rest.found.gaps, ".3e")),
            *(_row(rest.found.multipliers, ".3f"), _row(rest.multipliers, ".3f")),
            *(f"{rest.bound:.3f}", f"{rest.found.stationary:.0e}"),
        ]
        for rest in results.conflict
    ]
    titles = ["", "ε s", "gaps", "multipliers", "Newton's", "Theorem 1's λ", "stationarity"]
    yield from text_table(titles, rows)
    rest = results.toy
    yield (
        f"On the toy, after {10 * settings.steps} steps: multipliers {_row(rest.multipliers, '.2g')}, gaps "
        f"{_row(rest.gaps, '.2g')}, the gradient {rest.stationary:.2g} long (at the start {results.begun:.2g})."
    )
    for name, (exact, close, most) in results.found.items():
        yield f"A twin of {name}, f* = {exact:.4g}: within a tenth of it at step {close}, nine tenths there at {most}."
    yield f"\nSteps to a fused loss of {settings.level:g} by learning rate (–: not reached, or not kept):"
    rows = [
        [VARIANTS[name].title, *("–" if steps is None else str(steps) for steps in by_rate.values())]
        for name, by_rate in results.steps.items()
    ]
    multiples = next(iter(results.steps.values()))
    yield from text_table(["", *(f"× {multiple:g}" for multiple in multiples)], rows)


def as_dict(results: ConstrainedResults) -> dict[str, object]:
    """Return it in plain values."""
    rests = [{**rest._asdict(), "found": rest.found._asdict()} for rest in results.conflict]
    found = {
        name: {"exact": exact, "within a tenth": close, "nine tenths there": most}
        for name, (exact, close, most) in results.found.items()
    }
    steps = {name: {f"{multiple:g}": count for multiple, count in row.items()} for name, row in results.steps.items()}
    at_rest = {"conflict": rests, "capped": results.capped._asdict(), "toy": results.toy._asdict()}
    return {**at_rest, "first gradient": results.begun, "twin": found, "steps by rate": steps}
