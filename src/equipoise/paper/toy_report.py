"""What `equipoise toy` prints: the figures of the paper's toy problem in words, for people and for programs."""

from __future__ import annotations

import dataclasses
import math
import textwrap
from collections.abc import Iterator, Sequence
from typing import Any, get_args

from equipoise.paper.toy import Label, Recipe
from equipoise.paper.toy_claims import claims
from equipoise.paper.toy_facts import PENALTIES, Facts, Theory
from equipoise.paper.toy_rates import VARIANTS
from equipoise.paper.toy_runs import KINDS


def in_words(recipe: Recipe) -> str:
    """The problem in one sentence."""
    scales = " and ".join(f"{scale:g}" for scale in recipe.scales)
    weights = " + ".join(f"{weight:g}·x{number}" for number, weight in enumerate(recipe.coefficients, start=1))
    inputs = " + ".join([str(recipe.inputs)] * len(recipe.names))
    return (
        f"N = {recipe.samples}, {inputs} inputs with standard deviations {scales}, y the {recipe.label} of {weights}, "
        f"{recipe.hidden} hidden, start {recipe.start:g}, learning rate {recipe.lr:g}, λ = {recipe.penalty:g}, "
        f"μ = {recipe.smoothing:g}"
    )


def text(facts: Facts) -> str:
    """The whole report."""
    return "\n".join([*_head(facts), *_runs(facts), *_gradients(facts), *_theory(facts.theory), *_claims(facts)])


def as_dict(facts: Facts) -> dict[str, Any]:
    """The whole report in plain values, without curves. What is not a finite number is null."""
    found: dict[str, Any] = {
        "recipe": dataclasses.asdict(facts.recipe),
        "seeds": [
            {
                "seed": seed.seed,
                "condition": {**seed.preference._asdict(), "holds": seed.preference.superficial},
                "manifolds": {name: place._asdict() for name, place in seed.places.items()},
                "learnt": seed.learnt,
                "steps": seed.steps,
            }
            for seed in facts.seeds
        ],
        "condition by samples": [share._asdict() for share in facts.shares],
        "gradients": {kind: [row._asdict() for row in rows] for kind, rows in facts.gradients.items()},
        "quickest": {kind: {"lr": lr, "steps": steps} for kind, (lr, steps) in facts.quickest.items()},
        "claims": [claim._asdict() for claim in claims(facts)],
    }
    if facts.theory is not None:
        found["theory"] = _theory_as_dict(facts.theory)
    return _finite(found)


def _theory_as_dict(theory: Theory) -> dict[str, Any]:
    def plain(solution: Any) -> dict[str, Any]:
        return {"fused": solution.fused, "gaps": solution.gaps, "multipliers": solution.multipliers}

    return {
        "proposition 1": {
            "random": (theory.curvature.largest / theory.curvature.bound).tolist(),
            "tied": (theory.curvature_tied.largest / theory.curvature_tied.bound).tolist(),
        },
        "proposition 2": [each._asdict() for each in theory.tied],
        "theorem 1": {
            "lexicographic": plain(theory.lexicographic),
            "penalised": {
                f"{penalty:g}": plain(each) for penalty, each in zip(PENALTIES, theory.penalised, strict=True)
            },
            "relaxed": {f"{each.worst:g}": plain(each) for each in theory.relaxed},
            "predicted": theory.predicted,
        },
        "theorem 2": {
            "smallest": theory.descent.smallest.tolist(),
            "bound": theory.descent.bound.tolist(),
            "steps": theory.descent.steps.tolist(),
            "halved": theory.descent.halved,
        },
        "rates": {
            name: {
                "steps": {f"{accuracy:g}": steps for accuracy, steps in each.steps.items()},
                "exponent": each.exponent,
                "floors": {f"{rate:.2g}": floor for rate, floor in each.floors.items()},
            }
            for name, each in theory.rates.items()
        },
    }


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


# -- parts of the text --


def _head(facts: Facts) -> Iterator[str]:
    recipe = facts.recipe
    others = " or ".join(f"label={label}" for label in get_args(Label) if label != recipe.label)
    yield f"The paper's toy problem (its Figure 1): {in_words(recipe)}."
    yield f"The paper does not say how the vector y becomes a number (here label={recipe.label}; try {others}),"
    yield f"how close to zero weights start (here start={recipe.start:g}), or what f* is (here zero and exact)."
    if facts.traces["joint"].reached(recipe.level) is None:
        short = f"joint training does not get to {recipe.level:g} in {recipe.steps} steps"
        yield f"Take more steps: {short}, so who is learnt first cannot be told."


def _runs(facts: Facts) -> Iterator[str]:
    yield ""
    count = len(facts.seeds)
    yield f"Steps to a fused loss of {facts.recipe.level:g}, over {count} seed{'s' if count > 1 else ''}:"
    rows = []
    for kind, chosen in KINDS.items():
        steps = [seed.steps[kind] for seed in facts.seeds]
        reached = [count for count in steps if count is not None]
        ratios = [ratio for seed in facts.seeds if (ratio := seed.ratio(kind)) is not None]
        if not reached or not ratios:
            rows.append([chosen.title, "never", "", ""])
            continue
        spread = f"{min(ratios):.2f} to {max(ratios):.2f}"
        note = "" if len(reached) == len(steps) else f"not in {len(steps) - len(reached)} seeds"
        rows.append(
            [chosen.title, f"{sum(reached) / len(reached):.0f}", f"{sum(ratios) / len(ratios):.2f} ({spread})", note]
        )
    yield from _table(["way of training", "steps", "of joint training's", ""], rows)
    if facts.quickest:
        best = ", ".join(f"{KINDS[kind].title} {steps} steps at {lr:g}" for kind, (lr, steps) in facts.quickest.items())
        yield f"With the best learning rate for each (seed {facts.seeds[0].seed}): {best}."


def _gradients(facts: Facts) -> Iterator[str]:
    yield ""
    yield "The appendix's table of gradients beside autograd, in the middle of training (relative difference):"
    rows = [
        [row.block, KINDS[kind].title, f"{row.corrected:.0e}", f"{row.as_printed:.2f}", f"{row.factor:.3f}"]
        for kind, listed in facts.gradients.items()
        for row in listed
    ]
    yield from _table(["block", "maximum", "corrected", "as printed", "autograd / printed"], rows)


def _theory(theory: Theory | None) -> Iterator[str]:
    if theory is None:
        return
    yield ""
    yield "Encoders of width one on correlated modalities, where objectives conflict:"
    rows = [["lexicographic", f"{theory.lexicographic.fused:.6f}", "", "0", ""]]
    for penalty, own, relaxed, predicted in zip(
        PENALTIES, theory.penalised, theory.relaxed, theory.predicted, strict=True
    ):
        rows.append(
            [f"λ = {penalty:g}", f"{own.fused:.6f}", f"{relaxed.fused:.6f}", f"{own.worst:.3e}", f"{predicted:.3e}"]
        )
    yield from _table(["problem", "fused loss", "with that gap as ε", "worst gap", "to first order"], rows)
    yield ""
    yield "Steps after which the objective stays within an accuracy, step and μ tuned for each:"
    accuracies = list(theory.rates["hard"].steps)
    rows = [
        [title, *("–" if steps is None else str(steps) for steps in theory.rates[name].steps.values())]
        for name, title in VARIANTS.items()
    ]
    yield from _table(["", *(f"{accuracy:g}" for accuracy in accuracies)], rows)


def _claims(facts: Facts) -> Iterator[str]:
    yield ""
    yield "What the paper says, and what was measured:"
    for claim in claims(facts):
        verdict = "agrees" if claim.holds else "differs"
        yield textwrap.fill(f"{verdict:<8} {claim.where}: {claim.says}.", 118, subsequent_indent=" " * 9)
        yield textwrap.fill(claim.measured, 118, initial_indent=" " * 9, subsequent_indent=" " * 9)


def _table(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    widths = [max(len(row[at]) for row in [titles, *rows]) for at in range(len(titles))]
    for row in [titles, *rows]:
        yield "  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
