"""What `equipoise ablate` prints: accuracy over each parameter, what validation chooses, and what the paper says."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from typing import Any

from equipoise.paper.ablation import Curve, in_words
from equipoise.paper.ablation_claims import MARGIN, claims, shape
from equipoise.paper.ablation_runs import Outcome, Point
from equipoise.paper.claims import claim_lines, text_table
from equipoise.report.aggregate import PROTOCOLS, MeanStd

PARTS = ("validation", "test")


def text(outcome: Outcome) -> str:
    """The whole report."""
    lines = [*_head(outcome)]
    for curve in outcome.sweep.curves:
        lines += ["", *_curve(outcome, curve)]
    return "\n".join([*lines, *_best_of_grid(outcome), *_claims(outcome)])


def as_dict(outcome: Outcome) -> dict[str, Any]:
    """The whole report in plain values."""
    base, found = outcome.sweep.base, claims(outcome)
    return {
        "data": outcome.data,
        "cut": outcome.about,
        "seeds": outcome.seeds,
        "folds": outcome.folds,
        "method": base.method.name,
        "base": {"params": base.params, "run": base.settings.as_dict()},
        "grid": outcome.sweep.grid,
        "curves": [
            {
                "parameter": curve.axis,
                "others": curve.others,
                "divided rate": curve.divided,
                "chosen": outcome.chosen(curve),
                "points": [_point_as_dict(value, point) for value, point in outcome.along(curve).items()],
            }
            for curve in outcome.sweep.curves
        ],
        "claims": [claim._asdict() for claim in found],
        "shape": shape(found) if found else None,
    }


def protocol_of(outcome: Outcome) -> str | None:
    """How the accuracy of a modality alone was measured."""
    found = (point.line.protocol for point in outcome.points.values() if point.line.rows)
    return next((each for each in found if each is not None), None)


def setting_of(outcome: Outcome) -> str:
    """The data, the method's base values and the runs, in one sentence."""
    base = outcome.sweep.base
    params = ", ".join(f"{name}={in_words(value)}" for name, value in base.params.items())
    run = base.settings
    runs = f"{outcome.seeds} seed{'s' if outcome.seeds > 1 else ''}"
    runs += f" in each of {outcome.folds} folds" if outcome.folds else ""
    return (
        f"{base.method.name} ({params}) on {outcome.data}, {run.epochs} epochs, batch {run.batch}, {run.optimizer}, "
        f"learning rate {run.lr:g}, {runs}"
    )


def _point_as_dict(value: Any, point: Point) -> dict[str, Any]:
    parts = {
        part: {
            "fused": _spread_as_dict(point.accuracy(part)),
            "alone": {name: _spread_as_dict(each) for name, each in point.alone(part).items()},
        }
        for part in PARTS
    }
    return {
        "value": value,
        "label": point.line.label,
        "lr": point.lr,
        "runs": len(point.line.rows),
        "failed": point.failed,
        "protocol": point.line.protocol if point.line.rows else None,
        **parts,
    }


def _spread_as_dict(found: MeanStd | None) -> dict[str, Any] | None:
    return None if found is None else {"mean": found.mean, "deviation": found.deviation, "count": found.count}


# -- words --


def _head(outcome: Outcome) -> Iterator[str]:
    yield from textwrap.wrap(f"Ablation of {setting_of(outcome)}.", 118)
    yield from textwrap.wrap(f"Cut: {outcome.about}.", 118)
    yield "Accuracy in %, mean ± one standard deviation over runs."
    protocol = protocol_of(outcome)
    if protocol is not None:
        yield f"A modality alone, on test: {PROTOCOLS[protocol]} (protocol: {protocol})."


def _curve(outcome: Outcome, curve: Curve) -> Iterator[str]:
    points = outcome.along(curve)
    names = list(dict.fromkeys(name for point in points.values() for name in point.alone("test")))
    chosen, rates = outcome.chosen(curve), [] if curve.axis == "lr" else ["lr"]
    rows = []
    for value, point in points.items():
        numbers = [
            point.accuracy("validation"),
            point.accuracy("test"),
            *(point.alone("test").get(each) for each in names),
        ]
        note = f"{point.failed} of {point.failed + len(point.line.rows)} runs failed" if point.failed else ""
        note = "validation chooses this" if value == chosen else note
        rows.append([in_words(value), *([f"{point.lr:.3g}"] if rates else []), *map(_percent, numbers), note])
    yield f"Over {curve.title}:"
    yield from text_table([curve.axis, *rates, "validation", "test", *(f"{name} alone" for name in names), ""], rows)
    if chosen is not None:
        yield f"  {_choice(points, chosen)}"


def _choice(points: dict[Any, Point], chosen: Any) -> str:
    """What the choice on validation is worth on test, beside the best there was."""
    tested = {value: each.mean for value, point in points.items() if (each := point.accuracy("test")) is not None}
    if chosen not in tested:
        return f"Validation chooses {in_words(chosen)}."
    best = max(tested, key=tested.__getitem__)
    words = f"Validation chooses {in_words(chosen)}, {100 * tested[chosen]:.1f} % on test"
    if best == chosen:
        return f"{words}, the best of them."
    return (
        f"{words}; the best on test, which nobody may choose by, is {in_words(best)} with {100 * tested[best]:.1f} %."
    )


def _best_of_grid(outcome: Outcome) -> Iterator[str]:
    """In a grid, the one combination that validation would choose."""
    if not outcome.sweep.grid:
        return
    scores = {label: point.score for label, point in outcome.points.items() if point.score is not None}
    if scores:
        best = max(scores, key=scores.__getitem__)
        name = f"{best} (the base values)" if best == outcome.sweep.base.label else best
        yield ""
        yield f"Of the whole grid validation chooses {name}: test {_percent(outcome.points[best].accuracy('test'))} %."


def _claims(outcome: Outcome) -> Iterator[str]:
    found = claims(outcome)
    if not found:
        return
    yield ""
    yield "What the paper says (of CREMA-D), and what was measured: test accuracy, paired by run, 95 % intervals."
    yield from claim_lines(found)
    yield shape(found)
    points = f"{100 * MARGIN:g} points"
    yield f"differs: surely not so, or by less than {points}; flat: within {points}; open: the interval cannot tell."
    if not outcome.folds:
        yield "Seeds on one cut of the data say nothing of other cuts; --folds does."


def _percent(found: MeanStd | None) -> str:
    if found is None:
        return "–"
    return f"{100 * found.mean:.1f}" + ("" if found.deviation is None else f" ± {100 * found.deviation:.1f}")
