"""What the paper claims of its toy problem and proves, each beside what was measured."""

from __future__ import annotations

from typing import NamedTuple

from equipoise.paper.toy import samples_where_noise_ends
from equipoise.paper.toy_conflict import slope
from equipoise.paper.toy_facts import PENALTIES, Facts, Theory
from equipoise.paper.toy_rates import VARIANTS
from equipoise.paper.toy_runs import Manifold


class Claim(NamedTuple):
    """One claim.

    Args:
        where: Where the paper makes it.
        says: The claim.
        measured: What was found.
        holds: Whether it agrees.
    """

    where: str
    says: str
    measured: str
    holds: bool


def claims(facts: Facts) -> list[Claim]:
    """Every claim that was measured."""
    found = [*_of_the_data(facts), *_of_training(facts), *_of_gradients(facts)]
    return found if facts.theory is None else [*found, *_of_theory(facts.theory)]


def _of_the_data(facts: Facts) -> list[Claim]:
    first = facts.seeds[0].preference
    pulls, explained = (
        " and ".join(f"{value:.3g}" for value in part.values()) for part in (first.pull, first.explained)
    )
    holding = sum(seed.preference.superficial for seed in facts.seeds)
    by_samples = ", ".join(f"{share.samples:,}: {share.holds:.0%}" for share in facts.shares)
    expected = ""
    if len(facts.recipe.names) == 2 and facts.recipe.label == "sum":
        expected = f"; by expectation it ends near N = {samples_where_noise_ends(facts.recipe):,.0f}"
    return [
        Claim(
            "appendix, condition",
            "the data satisfies the condition for superficial preference",
            f"in {holding} of {len(facts.seeds)} seeds (the first: ‖C_yk‖ {pulls}, explained {explained})",
            holding == len(facts.seeds),
        ),
        Claim(
            "appendix, condition",
            "it does so because of how the data is generated",
            f"seeds in which it holds, by samples: {by_samples}{expected}",
            facts.shares[-1].holds == 1.0,
        ),
    ]


def _of_training(facts: Facts) -> list[Claim]:
    seeds, places = facts.seeds, facts.seeds[0].places
    as_predicted = sum(
        min(seed.learnt, key=seed.learnt.__getitem__) == seed.preference.first != seed.preference.most_useful
        for seed in seeds
    )
    times = ", ".join(
        f"t_{name} = {'never' if place.measured is None else place.measured} (predicted {place.predicted:.0f}), "
        f"f_mm(M_{name}) = {place.loss:.3g}"
        for name, place in places.items()
    )
    in_order = sum(_superficial(seed.places) for seed in seeds)
    rows = [
        Claim(
            "section II, appendix",
            "joint training first learns a modality that is not the most useful one",
            f"in {as_predicted} of {len(seeds)} seeds",
            as_predicted == len(seeds),
        ),
        Claim(
            "appendix, t and f at the manifolds",
            "what is reached sooner has the larger loss",
            f"in {in_order} of {len(seeds)} seeds (seed {seeds[0].seed}: {times})",
            in_order == len(seeds),
        ),
    ]
    rows += _of_balance(facts)
    for kind, limit, reading in (("mimo-exact", 0.4, "exact f*"), ("mimo-zero", 0.75, "f* = 0")):
        ratios = [seed.ratio(kind) for seed in seeds]
        reached = [ratio for ratio in ratios if ratio is not None]
        rows.append(
            Claim(
                "Figure 1",
                f"MIMO converges faster (we ask, with {reading}: at most {limit:g} of the steps of joint training)",
                f"{sum(reached) / len(reached):.2f} on average, at most {max(reached):.2f}"
                if reached
                else "not reached",
                len(reached) == len(ratios) and max(reached) <= limit,
            )
        )
    if facts.quickest.keys() >= {"joint", "mimo-exact"}:
        joint, mimo = facts.quickest["joint"], facts.quickest["mimo-exact"]
        rows.append(
            Claim(
                "control to Figure 1",
                "MIMO stays faster where each has the best of its learning rates",
                f"joint training {joint[1]} steps at {joint[0]:g}, MIMO {mimo[1]} at {mimo[0]:g}",
                mimo[1] < joint[1],
            )
        )
    return rows


def _of_balance(facts: Facts) -> list[Claim]:
    """What MIMO does to the order of learning, on the first seed."""
    joint, mimo = (_spread(facts, kind) for kind in ("joint", "mimo-exact"))
    useful = facts.seeds[0].preference.most_useful
    at_first = {kind: float(facts.traces[kind].weights[useful][0]) for kind in ("mimo-exact", "mimo-zero")}
    return [
        Claim(
            "section I",
            "with MIMO the encoders are learnt at similar rates",
            f"the last is learnt at {mimo:.1f} times the step of the first, against {joint:.1f} in joint training",
            mimo < joint,
        ),
        Claim(
            "section III",
            "the penalty first goes to the modality that joint training neglects",
            f"weight of {useful} at the start {at_first['mimo-exact']:.1f} with exact f*, {at_first['mimo-zero']:.1f} "
            f"with f* = 0, of λ = {facts.recipe.penalty:g}",
            at_first["mimo-exact"] > 0.9 * facts.recipe.penalty,
        ),
    ]


def _spread(facts: Facts, kind: str) -> float:
    learnt = [facts.traces[kind].learnt(name) for name in facts.recipe.names]
    return max(learnt) / max(min(learnt), 1)


def _superficial(places: dict[str, Manifold]) -> bool:
    reached = {name: place.measured for name, place in places.items() if place.measured is not None}
    sooner = min(reached, key=reached.__getitem__, default=None)
    return sooner is not None and places[sooner].loss > min(place.loss for place in places.values())


def _of_gradients(facts: Facts) -> list[Claim]:
    corrected = max(row.corrected for rows in facts.gradients.values() for row in rows)
    factors = sorted({round(row.factor, 6) for row in facts.gradients["hard-exact"] if row.factor})
    return [
        Claim(
            "appendix, table of gradients",
            "with factor −2, transposed, and λσ_k for λ_k, it is the gradient",
            f"differs from autograd by at most {corrected:.0e}",
            corrected <= 1e-5,
        ),
        Claim(
            "appendix, table of gradients",
            "it is the gradient as printed",
            f"with the hard maximum autograd is {', '.join(f'{factor:g}' for factor in factors)} times the printed row",
            factors == [1.0],
        ),
    ]


def _of_theory(theory: Theory) -> list[Claim]:
    ratio, tied_ratio = (each.largest / each.bound for each in (theory.curvature, theory.curvature_tied))
    share = theory.descent.smallest / theory.descent.bound
    margin = min(each.distance / each.bound for each in theory.tied)
    worst = [each.worst for each in theory.penalised]
    found = slope(list(PENALTIES), worst)
    apart = max(abs(a.fused - b.fused) for a, b in zip(theory.penalised, theory.relaxed, strict=True))
    missing = theory.lexicographic.fused - theory.penalised[-1].fused
    exponents = {name: theory.rates[name].exponent for name in VARIANTS}
    finest = _finest(theory)
    return [
        Claim(
            "Proposition 1",
            "the Hessian of the objective is at most L̂",
            f"largest eigenvalue at most {float(ratio.max()):.2f} of L̂ at {len(ratio)} random points, "
            f"{float(tied_ratio.max()):.2f} where gaps are equal",
            bool((ratio <= 1).all() and (tied_ratio <= 1).all()),
        ),
        Claim(
            "Theorem 2",
            "with the safe step, min ‖∇F‖² ≤ 2 (F_0 − F_T) / Σ η for every T",
            f"left side at most {float(share.max()):.2f} of the right for T = 1 … {len(share)}; a step was halved "
            f"{theory.descent.halved} times",
            bool((share <= 1).all()),
        ),
        Claim(
            "Proposition 2",
            "dist(0, ∂g)² ≥ (μ/K) g with the local μ",
            f"left side at least {margin:.2f} of the right at {len(theory.tied)} tied points",
            margin >= 1,
        ),
        Claim(
            "Theorem 1",
            "the worst gap falls as λ⁻² where objectives conflict",
            f"slope {found:.3f}; gaps {', '.join(f'{gap:.2g}' for gap in worst)} at λ = 10, 100, 1,000, 10,000",
            abs(found + 2) <= 0.05,
        ),
        Claim(
            "Theorem 1",
            "a solution under the penalty solves the relaxed problem with its own gap as ε",
            f"fused losses differ by at most {apart:.0e}; the lexicographic one is {missing:.1e} above λ = 10,000",
            apart <= 1e-9,
        ),
        Claim(
            "section III",
            "the smooth maximum needs fewer steps than the hard one",
            "; ".join(f"{VARIANTS[name]} {theory.rates[name].steps[finest]}" for name in VARIANTS)
            + f" (to an accuracy of {finest:g}, each tuned)",
            (theory.rates["smooth"].steps[finest] or 0) < (theory.rates["hard"].steps[finest] or 0),
        ),
        Claim(
            "section III",
            "steps are at most of the order 1/ε with the smooth maximum, 1/ε² with the hard one",
            "measured exponents: "
            + ", ".join(f"{VARIANTS[name]} {power:.2f}" for name, power in exponents.items())
            + "; neither bound is attained on this problem",
            exponents["smooth"] <= 1.25 and exponents["hard"] <= 2,
        ),
    ]


def _finest(theory: Theory) -> float:
    """The finest accuracy that both kinds of maximum reached with a fixed step."""
    both = (theory.rates[name].steps for name in ("hard", "smooth"))
    reached = [{accuracy for accuracy, steps in each.items() if steps is not None} for each in both]
    return min(set.intersection(*reached))
