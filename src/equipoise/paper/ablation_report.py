"""The report of an ablation: tables, the paper's claims beside the measurements, and the figure."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from equipoise.paper.ablation import AblationResult, Curve, Point
from equipoise.paper.claims import WIDTH, Change, Claim, Verdict, all_of, claim_lines, count, in_words, tally
from equipoise.report import drawing
from equipoise.report.aggregate import PROTOCOLS, MeanStd
from equipoise.report.differences import paired_differences
from equipoise.report.drawing import FAINT, JOINT, MODALITIES
from equipoise.report.formats import text_table

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MARGIN = 0.02
"""Two points of accuracy: what is smaller counts as flat."""

WEAK, ENOUGH, LARGEST = 1.0, 10.0, 100.0
"""The values of λ that the paper speaks of; its grid ends at the last."""

SMOOTHEST = 1.0
"""The largest μ of the paper's grid."""


FAILS = Change(-math.inf, -math.inf, -math.inf)
"""From runs that end to runs that do not."""


def claims(outcome: AblationResult) -> list[Claim]:
    """Return every claim of the paper that the runs can speak to; none for methods other than MIMO."""
    of_axis = {"penalty": _of_penalty, "smoothing": _of_smoothing} if outcome.sweep.base.method.name == "mimo" else {}
    curves = [curve for curve in outcome.sweep.curves if curve.around and len(curve.labels) > 1]
    asked = [curve for curve in curves if curve.axis == "penalty" or not curve.divided]
    return [claim for curve in asked if curve.axis in of_axis for claim in of_axis[curve.axis](outcome, curve)]


def shape(found: Sequence[Claim]) -> str:
    """Tell in one sentence whether the paper's shape came out."""
    figure = [claim for claim in found if claim.where.startswith("Figure 3")]
    verdict = all_of([claim.verdict for claim in figure] or ["agrees"])
    said = {"agrees": "reproduced", "differs": "not reproduced", "open": "neither reproduced nor refuted"}[verdict]
    return f"The paper's shape is {said} here: of {len(figure)} claims of Figure 3 {tally(figure)}."


def change(before: Point, after: Point) -> Change | None:
    """Return the difference between two settings, run by run; None where nothing can be compared."""
    if before.failed or not before.line.rows:
        return None
    if after.failed:
        return FAILS
    differences = paired_differences([*before.line.rows, *after.line.rows], before.line.label, ("test", "fused"))
    return Change.of(differences[0]) if differences else None


def _of_penalty(outcome: AblationResult, curve: Curve) -> list[Claim]:
    points = outcome.along(curve)
    if ENOUGH not in points:
        return []
    where, rate = "Figure 3, λ", ""
    if curve.divided:
        where, rate = "control to Figure 3", ", with the learning rate over 1 + λ"
    claims = []
    rise = change(points[WEAK], points[ENOUGH]) if WEAK in points else None
    if rise is not None:
        measured = f"{_levels(points, [WEAK, ENOUGH])}: {rise.points()}"
        claims.append(Claim(where, f"λ = 1 is worse than λ = 10{rate}", measured, rise.above(0, MARGIN)))
    steps = {value: change(points[ENOUGH], points[value]) for value in points if value > ENOUGH}
    above = {value: step for value, step in steps.items() if step is not None}
    flat = {value: step for value, step in above.items() if value <= LARGEST}
    if flat:
        measured = "; ".join(f"λ = {in_words(value)}: {step.points()}" for value, step in flat.items())
        says = f"above λ = 10 gains are marginal, up to the 100 where the paper's grid ends{rate}"
        claims.append(Claim(where, says, measured, all_of([stays(step) for step in flat.values()])))
    return claims if curve.divided else [*claims, *_of_step_size(outcome, curve, above)]


def _of_step_size(outcome: AblationResult, curve: Curve, above: dict[Any, Change]) -> list[Claim]:
    """Tell where λ makes the step too large, and whether a smaller learning rate undoes it."""
    where, points = "control to Figure 3", outcome.along(curve)
    fallen = [value for value, step in above.items() if step.high < 0]
    if above and not fallen:
        measured = f"no clear loss up to λ = {in_words(max(above))}"
        return [Claim(where, "where a large λ costs accuracy, the step is too large", measured, "open")]
    same = (other for other in outcome.sweep.curves if other.divided and other.axis == curve.axis)
    divided = next((other for other in same if other.others == curve.others), None)
    claims = []
    for value in fallen:
        says = f"λ = {in_words(value)} costs accuracy by its step: the learning rate over 1 + λ brings it back"
        measured = f"{_level(points[value])} and {above[value].points()} to λ = 10"
        if divided is None:
            claims.append(Claim(where, says, f"{measured}; --scaled-rate would tell", "open"))
            continue
        slow = outcome.along(divided)[value]
        rest, gain = change(points[ENOUGH], slow), change(points[value], slow)
        gained = "" if gain is None else f"{gain.points()} to the same undivided, "
        measured += f"; divided, {_level(slow)}, {gained}{rest and rest.points()} to λ = 10"
        claims.append(Claim(where, says, measured, "open" if rest is None else rest.above(-MARGIN, -MARGIN)))
    return claims


def _of_smoothing(outcome: AblationResult, curve: Curve) -> list[Claim]:
    """Compare the smallest μ with the largest of the paper's grid, and with the largest there is."""
    points = outcome.along(curve)
    small, large = min(points), max(points)
    inside = max((value for value in points if value <= SMOOTHEST), default=small)
    claims = []
    for value in dict.fromkeys([inside, large]):
        fall = change(points[small], points[value]) if value > small else None
        if fall is not None:
            verdict = Change(-fall.mean, -fall.high, -fall.low).above(0, MARGIN)
            says = f"a large μ of {in_words(value)} degrades accuracy against a small one"
            where = "Figure 3, μ" if value == inside else "control to Figure 3"
            claims.append(Claim(where, says, f"{_levels(points, [small, value])}: {fall.points()}", verdict))
    return claims


def _levels(points: dict[Any, Point], values: Sequence[Any]) -> str:
    return " and ".join(f"{_level(points[value])} at {in_words(value)}" for value in values)


def _level(point: Point) -> str:
    accuracy = point.accuracy("test")
    return "no accuracy" if accuracy is None else f"{100 * accuracy.mean:.1f} %"


def stays(step: Change) -> Verdict:
    """Agree where accuracy is surely within the margin, differ where it is surely out of it."""
    if step.low > -MARGIN and step.high < MARGIN:
        return "agrees"
    return "differs" if step.low > MARGIN or step.high < -MARGIN else "open"


# -- the report --


def text(outcome: AblationResult) -> str:
    """Return the whole report in words."""
    lines = textwrap.wrap(f"Ablation of {setting_of(outcome)}.", WIDTH)
    lines += [
        *textwrap.wrap(f"Cut: {outcome.about}.", WIDTH),
        "Accuracy in %, mean ± one standard deviation over runs.",
    ]
    if (protocol := protocol_of(outcome)) is not None:
        lines.append(f"A modality alone, on test: {PROTOCOLS[protocol]} (protocol: {protocol}).")
    for curve in outcome.sweep.curves:
        lines += ["", *_curve(outcome, curve)]
    return "\n".join([*lines, *_best_of_grid(outcome), *_claims(outcome)])


def as_dict(outcome: AblationResult) -> dict[str, Any]:
    """Return the whole report in plain values."""
    base, every_claim = outcome.sweep.base, claims(outcome)
    return {
        "data": outcome.data,
        "cut": outcome.about,
        "seeds": outcome.seeds,
        "folds": outcome.folds,
        "method": base.method.name,
        "base": {"params": base.params, "run": base.settings.as_dict()},
        "grid": outcome.sweep.grid,
        "curves": [_curve_as_dict(outcome, curve) for curve in outcome.sweep.curves],
        "claims": [claim._asdict() for claim in every_claim],
        "shape": shape(every_claim) if every_claim else None,
    }


def _curve_as_dict(outcome: AblationResult, curve: Curve) -> dict[str, Any]:
    points = [{"value": value, **_point_as_dict(point)} for value, point in outcome.along(curve).items()]
    content = {"parameter": curve.axis, "others": curve.others, "divided rate": curve.divided}
    return {**content, "chosen": outcome.chosen(curve), "points": points}


def _point_as_dict(point: Point) -> dict[str, Any]:
    content: dict[str, Any] = {"label": point.line.label, "lr": point.lr, "runs": len(point.line.rows)}
    content |= {"failed": point.failed, "protocol": point.line.protocol if point.line.rows else None}
    for part in ("validation", "test"):
        alone = {name: _mean_as_dict(mean) for name, mean in point.alone(part).items()}
        content[part] = {"fused": _mean_as_dict(point.accuracy(part)), "alone": alone}
    return content


def _mean_as_dict(mean: MeanStd | None) -> dict[str, Any] | None:
    return None if mean is None else {"mean": mean.mean, "deviation": mean.deviation, "count": mean.count}


def protocol_of(outcome: AblationResult) -> str | None:
    """Return how the accuracy of a modality alone was measured."""
    protocols = (point.line.protocol for point in outcome.points.values() if point.line.rows)
    return next((protocol for protocol in protocols if protocol is not None), None)


def setting_of(outcome: AblationResult) -> str:
    """Return the data, the method's base values and the runs, in one sentence."""
    base, run = outcome.sweep.base, outcome.sweep.base.settings
    params = ", ".join(f"{name}={in_words(value)}" for name, value in base.params.items())
    folds = f" in each of {outcome.folds} folds" if outcome.folds else ""
    return (
        f"{base.method.name} ({params}) on {outcome.data}, {run.epochs} epochs, batch {run.batch}, {run.optimizer}, "
        f"learning rate {run.lr:g}, {count(outcome.seeds, 'seed')}{folds}"
    )


def _curve(outcome: AblationResult, curve: Curve) -> Iterator[str]:
    points = outcome.along(curve)
    names = list(dict.fromkeys(name for point in points.values() for name in point.alone("test")))
    chosen, rates = outcome.chosen(curve), [] if curve.axis == "lr" else ["lr"]
    rows = []
    for value, point in points.items():
        means = [point.accuracy("validation"), point.accuracy("test"), *(point.alone("test").get(n) for n in names)]
        note = f"{point.failed} of {point.failed + len(point.line.rows)} runs failed" if point.failed else ""
        note = "validation chooses this" if value == chosen else note
        rows.append([in_words(value), *([f"{point.lr:.3g}"] if rates else []), *map(_percent, means), note])
    yield f"Over {curve.title}:"
    yield from text_table([curve.axis, *rates, "validation", "test", *(f"{name} alone" for name in names), ""], rows)
    if chosen is not None:
        yield f"  {_choice(points, chosen)}"


def _choice(points: dict[Any, Point], chosen: Any) -> str:
    """Tell what the choice on validation is worth on test, beside the best there was."""
    tested = {value: mean.mean for value, point in points.items() if (mean := point.accuracy("test")) is not None}
    if chosen not in tested:
        return f"Validation chooses {in_words(chosen)}."
    best = max(tested, key=tested.__getitem__)
    words = f"Validation chooses {in_words(chosen)}, {100 * tested[chosen]:.1f} % on test"
    if best == chosen:
        return f"{words}, the best of them."
    return (
        f"{words}; the best on test, which nobody may choose by, is {in_words(best)} with {100 * tested[best]:.1f} %."
    )


def _best_of_grid(outcome: AblationResult) -> Iterator[str]:
    """In a grid, name the one combination that validation would choose."""
    scores = {label: point.score for label, point in outcome.points.items() if point.score is not None}
    if outcome.sweep.grid and scores:
        best = max(scores, key=scores.__getitem__)
        name = f"{best} (the base values)" if best == outcome.sweep.base.label else best
        yield ""
        yield f"Of the whole grid validation chooses {name}: test {_percent(outcome.points[best].accuracy('test'))} %."


def _claims(outcome: AblationResult) -> Iterator[str]:
    if every_claim := claims(outcome):
        yield ""
        yield "What the paper says (of CREMA-D), and what was measured: test accuracy, paired by run, 95 % intervals."
        yield from claim_lines(every_claim)
        yield shape(every_claim)
        near = f"{100 * MARGIN:g} points"
        yield f"differs: surely not so, or by less than {near}; flat: within {near}; open: the interval cannot tell."
        if not outcome.folds:
            yield "Seeds on one cut of the data say nothing of other cuts; --folds does."


def _percent(mean: MeanStd | None) -> str:
    if mean is None:
        return "–"
    return f"{100 * mean.mean:.1f}" + ("" if mean.deviation is None else f" ± {100 * mean.deviation:.1f}")


# -- the figure --

NAME = "ablation"
SYMBOLS = {"penalty": "penalty λ", "smoothing": "smoothing μ", "lr": "learning rate"}
PANEL = 3.3  # inches


def draw(outcome: AblationResult, folder: Path, made: str) -> list[Path]:
    """Draw one panel per parameter, and one where the learning rate was divided, as SVG and PNG.

    Args:
        outcome: The results.
        folder: Where to.
        made: How it was made, the first sentence of the caption.
    """
    panels: dict[tuple[str, bool], list[Curve]] = {}
    for curve in outcome.sweep.curves:
        panels.setdefault((curve.axis, curve.divided), []).append(curve)
    with drawing.style():
        figure = drawing.canvas(max(6.4, PANEL * len(panels)), 3.6)
        row = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
        for axes, curves in zip(row, panels.values(), strict=True):
            _panel(axes, outcome, curves)
        row[0].set_ylabel("accuracy in %")
        if not outcome.sweep.grid:  # above the panels, since curves may be anywhere in them
            columns = 5 if len(panels) > 1 else 2  # as many as are no wider than the panels
            figure.legend(*row[0].get_legend_handles_labels(), loc="outside upper left", ncols=columns)
        return drawing.save(figure, folder, NAME, _caption(outcome, made))


def _panel(axes: Axes, outcome: AblationResult, curves: Sequence[Curve]) -> None:
    """Draw the curves of one parameter, its values at equal distances: they are words or powers more often than not."""
    first = curves[0]
    grid = outcome.sweep.grid and first.others
    if grid:
        for number, curve in enumerate(curves):
            name = ", ".join(f"{other} {in_words(value)}" for other, value in curve.others.items())
            means = [point.accuracy("test") for point in outcome.along(curve).values()]
            shift = 0.24 * ((number + 0.5) / len(curves) - 0.5)
            _error_bars(axes, means, MODALITIES[number % len(MODALITIES)], "o-", name, shift)
    else:
        _one_curve(axes, outcome, first)
    values = list(first.labels)
    axes.set_xticks(range(len(values)), [in_words(value) for value in values])
    axes.set(xlabel=SYMBOLS.get(first.axis, first.axis), xlim=(-0.4, len(values) - 0.6))
    if first.axis != "lr":
        axes.set_title(f"learning rate {outcome.sweep.base.settings.lr:g}" + (" / (1 + λ)" if first.divided else ""))
    axes.grid(axis="y", color="#d1d9e0", lw=0.6)
    if grid:
        axes.legend()


def _one_curve(axes: Axes, outcome: AblationResult, curve: Curve) -> None:
    points = list(outcome.along(curve).values())
    for number, name in enumerate(dict.fromkeys(name for point in points for name in point.alone("test"))):
        alone = [point.alone("test").get(name) for point in points]
        colour = MODALITIES[number % len(MODALITIES)]
        _error_bars(axes, alone, colour, "^:", f"{name} alone, test", 0.05 * (number + 1))
    _error_bars(axes, [point.accuracy("validation") for point in points], FAINT, "s--", "fused, validation", -0.05)
    _error_bars(axes, [point.accuracy("test") for point in points], JOINT, "o-", "fused, test", 0.0)
    words: Any = {"xycoords": ("data", "axes fraction"), "fontsize": 8, "color": FAINT, "rotation": 90}
    if (chosen := outcome.chosen(curve)) is not None:
        at = list(curve.labels).index(chosen)
        axes.axvline(at, color=FAINT, lw=0.8, ls=(0, (2, 3)), zorder=0)
        axes.annotate("chosen", (at, 0), xytext=(3, 4), textcoords="offset points", va="bottom", **words)
    for at, point in enumerate(points):
        if point.failed:
            axes.annotate("runs fail", (at, 0.5), ha="center", va="center", **words)


def _error_bars(axes: Axes, means: Sequence[MeanStd | None], colour: str, look: str, name: str, shift: float) -> None:
    there: list[tuple[int, MeanStd]] = [(at, mean) for at, mean in enumerate(means) if mean is not None]
    bars: Any = [100 * (mean.deviation or 0.0) for _, mean in there]
    style: Any = {"ms": 4, "lw": 1.6 if look == "o-" else 1.1, "elinewidth": 1.0, "capsize": 2.5, "label": name}
    places, heights = [at + shift for at, _ in there], [100 * mean.mean for _, mean in there]
    axes.errorbar(places, heights, yerr=bars, fmt=look, color=colour, **style)


def _caption(outcome: AblationResult, made: str) -> str:
    protocol = protocol_of(outcome)
    alone = f" Modalities alone: {PROTOCOLS[protocol]} (protocol {protocol})." if protocol is not None else ""
    shown = "One parameter moves, the others stay; the dotted line is what validation chooses."
    if outcome.sweep.grid:
        shown, alone = "All combinations; fused accuracy on test.", ""
    failed = " A point is left out where a run failed." if any(p.failed for p in outcome.points.values()) else ""
    return (
        f"{made} Ablation of {setting_of(outcome)}; {outcome.about}. {shown}{alone} Mean and one standard deviation "
        f"over runs.{failed}"
    )
