"""Everything that `equipoise toy` measures, and the paper's claims on it."""

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from typing import NamedTuple

import torch
from torch import Tensor

from equipoise.paper import toy, toy_conflict, toy_constrained, toy_theory
from equipoise.paper.claims import Claim, verdict_of
from equipoise.paper.toy import NamedTensors, ToyData, ToySettings
from equipoise.paper.toy_conflict import MAXIMA, Conflict, ConflictSolution
from equipoise.paper.toy_theory import Curvature, FlatObjective, curvature_at, tied_point

MULTIPLES = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0)
PENALTIES = (10.0, 100.0, 1e3, 1e4)
POINTS = 100
SMALL = ToySettings(samples=100, inputs=4, hidden=5, level=0.1)  # of which whole Hessians can be taken
Tell = Callable[[str], None]


# -- the appendix's table of gradients --


def closed_form(parameters: NamedTensors, data: ToyData, weights: Mapping[str, float]) -> dict[str, Tensor]:
    """The gradient of f_mm + Σ_k a_k f_k, where weights a are held; for MIMO they are a_k = λσ_k.

    With Ψ_k = C_yk − Σ_j C_kj θ_j ϑ_mm,j and Ψ̌_k = C_yk − C_k θ_k ϑ_k, columns of D numbers:
    ∇θ_k = −2 (Ψ_k ϑ_mm,kᵀ + a_k Ψ̌_k ϑ_kᵀ), ∇ϑ_mm,k = −2 θ_kᵀ Ψ_k, ∇ϑ_k = −2 a_k θ_kᵀ Ψ̌_k.
    """
    correlations, gradients = data.correlations, {}
    for name, column in correlations.target.items():
        encoder, shared, head = (parameters[f"{block}.{name}"] for block in ("encoders", "fused", "heads"))
        fused = column.clone()
        for other in correlations.target:
            fused -= correlations.inputs[name, other] @ (parameters[f"encoders.{other}"] @ parameters[f"fused.{other}"])
        own = column - correlations.inputs[name, name] @ (encoder @ head)
        gradients[f"encoders.{name}"] = -2 * (torch.outer(fused, shared) + weights[name] * torch.outer(own, head))
        gradients[f"fused.{name}"] = -2 * encoder.T @ fused
        gradients[f"heads.{name}"] = -2 * weights[name] * encoder.T @ own
    return gradients


def printed_form(parameters: NamedTensors, data: ToyData, weights: Mapping[str, float]) -> dict[str, Tensor]:
    """The appendix's table to the letter, with λ_k from ``weights``, transposed to our shapes at the very end.

    The table takes C_yk and heads as rows and encoders as [H, D], against the [D, H] of the text.
    """
    correlations, gradients = data.correlations, {}
    rows = {name: column[None, :] for name, column in correlations.target.items()}
    encoders = {name: parameters[f"encoders.{name}"].T for name in rows}
    shared, heads = ({name: parameters[f"{block}.{name}"][None, :] for name in rows} for block in ("fused", "heads"))
    for name, row in rows.items():
        fused = row - torch.stack([shared[j] @ encoders[j] @ correlations.inputs[j, name] for j in rows]).sum(dim=0)
        own = row - heads[name] @ encoders[name] @ correlations.inputs[name, name]
        gradients[f"encoders.{name}"] = (shared[name].T @ fused + weights[name] * heads[name].T @ own).T
        gradients[f"fused.{name}"] = (fused @ encoders[name].T)[0]
        gradients[f"heads.{name}"] = (weights[name] * own @ encoders[name].T)[0]
    return gradients


class GradientRow(NamedTuple):
    """One row of the appendix's table of gradients, beside autograd.

    Args:
        block: The parameter.
        corrected: ‖closed form − autograd‖ / ‖autograd‖, with our corrections.
        as_printed: The same for the table to the letter, in the right shape.
        factor: The number that brings the printed row closest to autograd.
    """

    block: str
    corrected: float
    as_printed: float
    factor: float


def delivered_gradients(data: ToyData, settings: ToySettings, variant: str, seed: int, after: int) -> list[GradientRow]:
    """Compare the appendix's table with the gradients that MIMO delivers through autograd, after some steps."""
    model, balancer, _ = next(islice(toy.training_steps(data, settings, variant, seed), after, None))
    parameters = {name: tensor.detach() for name, tensor in model.named_parameters()}
    weights = dict(zip(data.inputs, balancer.table.values[1:, -1].tolist(), strict=True))
    # The printed table gives λ to the modality that is furthest behind.
    furthest = max(weights, key=weights.__getitem__)
    hard = {name: settings.penalty if name == furthest else 0.0 for name in weights}
    ours, theirs, rows = closed_form(parameters, data, weights), printed_form(parameters, data, hard), []
    for block, tensor in model.named_parameters():
        if (wanted := tensor.grad) is not None:
            size = float(wanted.norm()) or 1.0  # the hard maximum leaves all heads but one where they are
            differences = [float((form[block] - wanted).norm()) / size for form in (ours, theirs)]
            along = float((theirs[block] * wanted).sum() / theirs[block].square().sum()) if theirs[block].any() else 0.0
            rows.append(GradientRow(block, *differences, along))
    return rows


# -- all measurements --


class SeedResults(NamedTuple):
    """One draw of the data and of the start.

    Args:
        seed: Its number.
        preference: The condition of the appendix on this data.
        places: t_mk and f_mm(M_mk).
        learnt: The step at which joint training has learnt each modality.
        steps: Steps to the settings' level, per way of training; None where it never got there.
    """

    seed: int
    preference: toy.Preference
    places: dict[str, toy.Manifold]
    learnt: dict[str, int]
    steps: dict[str, int | None]

    def ratio(self, variant: str) -> float | None:
        """Steps of a way of training over those of joint training."""
        own, joint = self.steps[variant], self.steps["joint"]
        return None if own is None or not joint else own / joint


class TheoryResults(NamedTuple):
    """The theorems and propositions, measured.

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
        constrained: PrimalDual on both problems.
    """

    curvature: Curvature
    curvature_tied: Curvature
    descent: toy_theory.Descent
    tied: list[toy_theory.TiedPoint]
    lexicographic: ConflictSolution
    penalised: list[ConflictSolution]
    relaxed: list[ConflictSolution]
    predicted: list[float]
    rates: dict[str, toy_conflict.Convergence]
    constrained: toy_constrained.ConstrainedResults


class ToyResults(NamedTuple):
    """All of it. What is of one draw only is of the first seed.

    Args:
        settings: The problem, and how it was trained.
        traces: Whole runs.
        gradients: The appendix's table beside autograd, with the smooth and with the hard maximum.
        seeds: One entry per seed.
        condition: The condition as samples grow.
        quickest: The best learning rate of each way of training, and its steps with that.
        theory: Theorems and propositions; None where they were left out.
    """

    settings: ToySettings
    traces: dict[str, toy.Trace]
    gradients: dict[str, list[GradientRow]]
    seeds: list[SeedResults]
    condition: list[toy.ConditionRate]
    quickest: dict[str, tuple[float, int]]
    theory: TheoryResults | None = None

    def ratios(self, variant: str) -> list[float]:
        """Steps of a way of training over those of joint training, of the seeds in which both got to the level."""
        return [ratio for seed in self.seeds if (ratio := seed.ratio(variant)) is not None]


def gather(settings: ToySettings, seeds: Sequence[int], *, theory: bool, tell: Tell = lambda _: None) -> ToyResults:
    """Measure everything.

    Args:
        settings: The problem, and how it is trained.
        seeds: Draws of data and start.
        theory: Check theorems and propositions, and search learning rates, which takes most of the time.
        tell: Called with a few words before each part.
    """
    tell("training each way")
    data = toy.generate(settings, seeds[0])
    traces = {variant: toy.run(data, settings, variant, seeds[0]) for variant in toy.VARIANTS}
    tell("comparing gradients")
    gradients = {}
    for variant in ("mimo-exact", "hard-exact"):
        halfway = (traces[variant].reached(settings.level) or 0) // 2  # where it gets nowhere, the start will do
        gradients[variant] = delivered_gradients(data, settings, variant, seeds[0], after=halfway)
    by_seed = []
    for seed in seeds:
        tell(f"seed {seed}: steps to a fused loss of {settings.level:g}")
        by_seed.append(measure_seed(settings, seed))
    tell("the condition as samples grow")
    counts = [round(settings.samples * factor) for factor in (1, 3, 5, 7, 10, 20)]
    condition = toy.preference_by_samples(settings, counts, seeds)
    if not theory:
        return ToyResults(settings, traces, gradients, by_seed, condition, {})
    tell("searching learning rates")
    rates = [settings.lr * multiple for multiple in MULTIPLES]
    quickest = fastest(data, settings, seeds[0], rates, ("joint", "mimo-exact", "mimo-zero", "ew", "primal-dual-exact"))
    checked = check_theory(settings, data, seeds[0], tell)
    return ToyResults(settings, traces, gradients, by_seed, condition, quickest, checked)


def fastest(
    data: ToyData, settings: ToySettings, seed: int, rates: Sequence[float], variants: Sequence[str]
) -> dict[str, tuple[float, int]]:
    """Find per way of training the learning rate with the fewest steps to the level, without diverging later."""
    best: dict[str, tuple[float, int]] = {}
    for name in variants:
        for rate in rates:
            trace = toy.run(data, dataclasses.replace(settings, lr=rate), name, seed)
            steps = trace.reached(settings.level)
            if steps is not None and not trace.diverged and (name not in best or steps < best[name][1]):
                best[name] = (rate, steps)
    return best


def measure_seed(settings: ToySettings, seed: int) -> SeedResults:
    """Measure the condition, the manifolds, the order of learning, and the steps of every way of training."""
    data = toy.generate(settings, seed)
    joint = toy.run(data, settings, "joint", seed)
    learnt = {name: joint.learnt(name) for name in settings.names}
    places, steps = toy.manifolds(data, settings, seed), toy.steps_to_level(data, settings, seed, toy.VARIANTS)
    return SeedResults(seed, toy.preference(data), places, learnt, steps)


def check_theory(settings: ToySettings, data: ToyData, seed: int, tell: Tell) -> TheoryResults:
    """Measure Theorems 1 and 2 and Propositions 1 and 2."""
    tell("Proposition 1: eigenvalues of Hessians")
    small, whole = FlatObjective(toy.generate(SMALL, seed), SMALL), FlatObjective(data, settings)
    curvature = curvature_at(small, toy_theory.random_points(small, seed, POINTS))
    curvature_tied = curvature_at(small, torch.stack([tied_point(small, number) for number in range(POINTS)]))
    tell("Proposition 2: points where gaps are equal")
    tied = [toy_theory.largest_gap_at(whole, tied_point(whole, number)) for number in range(POINTS)]
    tell("Theorem 2: gradient descent with the safe step")
    descent = toy_theory.safe_descent(whole, seed, settings.steps)
    tell("Theorem 1: the lexicographic problem, its relaxation, the penalty")
    conflict = Conflict(toy_conflict.generate_correlated(seed))
    penalised = [conflict.penalised(penalty) for penalty in PENALTIES]
    relaxed = [conflict.relaxed(solution.worst) for solution in penalised]
    predicted = [conflict.predicted_gap(penalty) for penalty in PENALTIES]
    tell("rates of convergence of the hard and the smooth maximum")
    solutions = (conflict.lexicographic(), penalised, relaxed, predicted)
    rates = toy_conflict.convergence(conflict)
    tell("PrimalDual at rest, and over learning rates")
    constrained = toy_constrained.measure(settings, data, conflict, seed)
    return TheoryResults(curvature, curvature_tied, descent, tied, *solutions, rates, constrained)


# -- the paper's claims --


def claims(results: ToyResults) -> list[Claim]:
    """Compare every claim that was measured."""
    parts = [_on_data(results), _on_training(results), _on_balance(results), _on_speed(results), _on_gradients(results)]
    if results.theory is not None:
        parts += [_on_theory(results.theory), toy_constrained.claims(results.theory.constrained)]
    return [Claim(*words, verdict_of(bool(holds))) for part in parts for *words, holds in part]


Claimed = Iterator[tuple[str, str, str, bool | Tensor]]
"""The fields of claims; last, whether each holds."""


def _on_data(results: ToyResults) -> Claimed:
    settings, seeds, first = results.settings, results.seeds, results.seeds[0].preference
    pulls, explained = (" and ".join(f"{value:.3g}" for value in part.values()) for part in first)
    holding = sum(seed.preference.superficial for seed in seeds)
    measured = f"in {holding} of {len(seeds)} seeds (the first: ‖C_yk‖ {pulls}, explained {explained})"
    place = "appendix, condition"
    yield place, "the data satisfies the condition for superficial preference", measured, holding == len(seeds)
    by_samples = ", ".join(f"{rate.samples:,}: {rate.holds:.0%}" for rate in results.condition)
    measured = f"seeds in which it holds, by samples: {by_samples}"
    if len(settings.names) == 2 and settings.label == "sum":
        measured += f"; by expectation it ends near N = {toy.samples_where_noise_ends(settings):,.0f}"
    yield place, "it does so because of how the data is generated", measured, results.condition[-1].holds == 1.0


def _on_training(results: ToyResults) -> Claimed:
    seeds, count = results.seeds, len(results.seeds)
    first = [(min(seed.learnt, key=seed.learnt.__getitem__), seed.preference) for seed in seeds]
    predicted = sum(name == preference.first != preference.most_useful for name, preference in first)
    says = "joint training first learns a modality that is not the most useful one"
    yield "section II, appendix", says, f"in {predicted} of {count} seeds", predicted == count
    times = ", ".join(
        f"t_{name} = {'never' if place.measured is None else place.measured} (predicted {place.predicted:.0f}), "
        f"f_mm(M_{name}) = {place.loss:.3g}"
        for name, place in seeds[0].places.items()
    )
    ordered = sum(_sooner_is_worse(seed.places) for seed in seeds)
    measured = f"in {ordered} of {count} seeds (seed {seeds[0].seed}: {times})"
    yield "appendix, t and f at the manifolds", "what is reached sooner has the larger loss", measured, ordered == count


def _sooner_is_worse(places: dict[str, toy.Manifold]) -> bool:
    reached = {name: place.measured for name, place in places.items() if place.measured is not None}
    sooner = min(reached, key=reached.__getitem__, default=None)
    return sooner is not None and places[sooner].loss > min(place.loss for place in places.values())


def _on_balance(results: ToyResults) -> Claimed:
    """MIMO and the order of learning, on the first seed."""
    penalty, spread = results.settings.penalty, {}
    for variant in ("joint", "mimo-exact"):
        learnt = [results.traces[variant].learnt(name) for name in results.settings.names]
        spread[variant] = max(learnt) / max(min(learnt), 1)
    joint, mimo = spread.values()
    measured = f"the last is learnt at {mimo:.1f} times the step of the first, against {joint:.1f} in joint training"
    yield "section I", "with MIMO the encoders are learnt at similar rates", measured, mimo < joint
    useful = results.seeds[0].preference.most_useful
    exact, zero = (float(results.traces[variant].weights[useful][0]) for variant in ("mimo-exact", "mimo-zero"))
    says = "the penalty first goes to the modality that joint training neglects"
    measured = f"weight of {useful} at the start {exact:.1f} with exact f*, {zero:.1f} with f* = 0, of λ = {penalty:g}"
    yield "section III", says, measured, exact > 0.9 * penalty


def _on_speed(results: ToyResults) -> Claimed:
    for variant, limit, reading in (("mimo-exact", 0.4, "exact f*"), ("mimo-zero", 0.75, "f* = 0")):
        ratios = results.ratios(variant)
        says = f"MIMO converges faster (we ask, with {reading}: at most {limit:g} of the steps of joint training)"
        measured, holds = "not reached", len(ratios) == len(results.seeds) and max(ratios) <= limit
        if ratios:
            measured = f"{sum(ratios) / len(ratios):.2f} on average, at most {max(ratios):.2f}"
        yield "Figure 1", says, measured, holds
    if results.quickest.keys() >= {"joint", "mimo-exact"}:
        joint, mimo = results.quickest["joint"], results.quickest["mimo-exact"]
        says = "MIMO stays faster where each has the best of its learning rates"
        measured = f"joint training {joint[1]} steps at {joint[0]:g}, MIMO {mimo[1]} at {mimo[0]:g}"
        yield "control to Figure 1", says, measured, mimo[1] < joint[1]


def _on_gradients(results: ToyResults) -> Claimed:
    place = "appendix, table of gradients"
    corrected = max(row.corrected for rows in results.gradients.values() for row in rows)
    says = "with factor −2, transposed, and λσ_k for λ_k, it is the gradient"
    yield place, says, f"differs from autograd by at most {corrected:.0e}", corrected <= 1e-5
    factors = sorted({round(row.factor, 6) for row in results.gradients["hard-exact"] if row.factor})
    times = ", ".join(f"{factor:g}" for factor in factors)
    measured = f"with the hard maximum autograd is {times} times the printed row"
    yield place, "it is the gradient as printed", measured, factors == [1.0]


def _on_theory(theory: TheoryResults) -> Claimed:
    ratio, tied = (points.largest / points.bound for points in (theory.curvature, theory.curvature_tied))
    measured = (
        f"largest eigenvalue at most {float(ratio.max()):.2f} of L̂ at {len(ratio)} random points, "
        f"{float(tied.max()):.2f} where gaps are equal"
    )
    holds = (ratio <= 1).all() and (tied <= 1).all()
    yield "Proposition 1", "the Hessian of the objective is at most L̂", measured, holds

    share = theory.descent.smallest / theory.descent.bound
    says = "with the safe step, min ‖∇F‖² ≤ 2 (F_0 − F_T) / Σ η for every T"
    measured = (
        f"left side at most {float(share.max()):.2f} of the right for T = 1 … {len(share)}; a step was halved "
        f"{theory.descent.halved} times"
    )
    yield "Theorem 2", says, measured, (share <= 1).all()

    margin = min(point.distance / point.bound for point in theory.tied)
    measured = f"left side at least {margin:.2f} of the right at {len(theory.tied)} tied points"
    yield "Proposition 2", "dist(0, ∂g)² ≥ (μ/K) g with the local μ", measured, margin >= 1

    worst = [solution.worst for solution in theory.penalised]
    slope = toy_conflict.log_slope(PENALTIES, worst)
    measured = f"slope {slope:.3f}; gaps {', '.join(f'{gap:.2g}' for gap in worst)} at λ = 10, 100, 1,000, 10,000"
    says = "the worst gap falls as λ⁻² where objectives conflict"
    yield "Theorem 1", says, measured, abs(slope + 2) <= 0.05

    apart = max(abs(a.fused - b.fused) for a, b in zip(theory.penalised, theory.relaxed, strict=True))
    missing = theory.lexicographic.fused - theory.penalised[-1].fused
    says = "a solution under the penalty solves the relaxed problem with its own gap as ε"
    measured = f"fused losses differ by at most {apart:.0e}; the lexicographic one is {missing:.1e} above λ = 10,000"
    yield "Theorem 1", says, measured, apart <= 1e-9

    hard, smooth = theory.rates["hard"], theory.rates["smooth"]
    # The finest accuracy that both kinds of maximum reached with a fixed step.
    both = [accuracy for accuracy, steps in hard.steps.items() if None not in (steps, smooth.steps[accuracy])]
    finest = min(both)
    needed = "; ".join(f"{title} {theory.rates[name].steps[finest]}" for name, title in MAXIMA.items())
    measured = f"{needed} (to an accuracy of {finest:g}, each tuned)"
    says = "the smooth maximum needs fewer steps than the hard one"
    yield "section III", says, measured, (smooth.steps[finest] or 0) < (hard.steps[finest] or 0)

    says = "steps are at most of the order 1/ε with the smooth maximum, 1/ε² with the hard one"
    powers = ", ".join(f"{title} {theory.rates[name].exponent:.2f}" for name, title in MAXIMA.items())
    measured = f"measured exponents: {powers}; neither bound is attained on this problem"
    yield "section III", says, measured, smooth.exponent <= 1.25 and hard.exponent <= 2
