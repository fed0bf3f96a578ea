"""The report of `equipoise toy`: text, plain values for JSON, and figures."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from equipoise.paper import toy_constrained
from equipoise.paper.claims import claim_lines
from equipoise.paper.toy import VARIANTS, Label, Manifold, ToySettings, Trace
from equipoise.paper.toy_conflict import MAXIMA, ConflictSolution
from equipoise.paper.toy_results import PENALTIES, TheoryResults, ToyResults, claims
from equipoise.report import drawing
from equipoise.report.drawing import FAINT, INK, JOINT, LINE, modality_colours
from equipoise.report.formats import text_table

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PINK, GREEN, ORANGE = "#bf3989", "#1a7f37", "#bc4c00"
STYLES = {
    "joint": (INK, "-"), "mimo-exact": (JOINT, "-"), "mimo-zero": (JOINT, "--"), "hard-exact": (PINK, "-."),
    "hard-zero": (PINK, ":"), "ew": (GREEN, "-"), "ew-full": (GREEN, "--"), "joint-faster": (INK, ":"),
    "primal-dual": (ORANGE, "-"), "primal-dual-exact": (ORANGE, "--"),
}  # fmt: skip
MAXIMUM_STYLES = {"hard": (PINK, "o-"), "decaying": (PINK, "s--"), "smooth": (JOINT, "o-")}


def in_words(settings: ToySettings) -> str:
    """Describe the problem in one sentence."""
    scales = " and ".join(f"{scale:g}" for scale in settings.scales)
    weights = " + ".join(f"{weight:g}·x{number}" for number, weight in enumerate(settings.coefficients, start=1))
    inputs = " + ".join([str(settings.inputs)] * len(settings.names))
    return (
        f"N = {settings.samples}, {inputs} inputs with standard deviations {scales}, y the {settings.label} of "
        f"{weights}, {settings.hidden} hidden, start {settings.start:g}, learning rate {settings.lr:g}, "
        f"λ = {settings.penalty:g}, μ = {settings.smoothing:g}"
    )


# -- plain values --


def as_dict(results: ToyResults) -> dict[str, Any]:
    """The whole report in plain values, without curves. What is not a finite number is null."""
    content: dict[str, Any] = {
        "recipe": dataclasses.asdict(results.settings),
        "seeds": [
            {
                "seed": seed.seed,
                "condition": {**seed.preference._asdict(), "holds": seed.preference.superficial},
                "manifolds": {name: place._asdict() for name, place in seed.places.items()},
                "learnt": seed.learnt,
                "steps": seed.steps,
            }
            for seed in results.seeds
        ],
        "condition by samples": [rate._asdict() for rate in results.condition],
        "gradients": {variant: [row._asdict() for row in rows] for variant, rows in results.gradients.items()},
        "quickest": {variant: {"lr": lr, "steps": steps} for variant, (lr, steps) in results.quickest.items()},
        "claims": [
            {"where": claim.where, "says": claim.says, "measured": claim.measured, "holds": claim.verdict == "agrees"}
            for claim in claims(results)
        ],
    }
    if results.theory is not None:
        content["theory"] = _theory_as_dict(results.theory)
    return _finite(content)


def _theory_as_dict(theory: TheoryResults) -> dict[str, Any]:
    def plain(solution: ConflictSolution) -> dict[str, Any]:
        return {"fused": solution.fused, "gaps": solution.gaps, "multipliers": solution.multipliers}

    descent, penalised = theory.descent, zip(PENALTIES, theory.penalised, strict=True)
    return {
        "proposition 1": {
            "random": (theory.curvature.largest / theory.curvature.bound).tolist(),
            "tied": (theory.curvature_tied.largest / theory.curvature_tied.bound).tolist(),
        },
        "proposition 2": [point._asdict() for point in theory.tied],
        "theorem 1": {
            "lexicographic": plain(theory.lexicographic),
            "penalised": {f"{penalty:g}": plain(solution) for penalty, solution in penalised},
            "relaxed": {f"{solution.worst:g}": plain(solution) for solution in theory.relaxed},
            "predicted": theory.predicted,
        },
        "theorem 2": {
            **{name: getattr(descent, name).tolist() for name in ("smallest", "bound", "steps")},
            "halved": descent.halved,
        },
        "rates": {
            name: {
                "steps": {f"{accuracy:g}": steps for accuracy, steps in rate.steps.items()},
                "exponent": rate.exponent,
                "floors": {f"{lr:.2g}": floor for lr, floor in rate.floors.items()},
            }
            for name, rate in theory.rates.items()
        },
        "primal-dual": toy_constrained.as_dict(theory.constrained),
    }


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


# -- text --


def text(results: ToyResults) -> str:
    """The whole report in words."""
    parts = [_head(results), _runs(results), _gradients(results), _theory(results.theory, results.settings)]
    said = ["\nWhat the paper says, and what was measured:", *claim_lines(claims(results), stop="")]
    return "\n".join([*itertools.chain(*parts), *said])


def _head(results: ToyResults) -> Iterator[str]:
    settings = results.settings
    others = " or ".join(f"label={label}" for label in get_args(Label) if label != settings.label)
    yield f"The paper's toy problem (its Figure 1): {in_words(settings)}."
    yield f"The paper does not say how the vector y becomes a number (here label={settings.label}; try {others}),"
    yield f"how close to zero weights start (here start={settings.start:g}), or what f* is (here zero and exact)."
    if results.traces["joint"].reached(settings.level) is None:
        short = f"joint training does not get to {settings.level:g} in {settings.steps} steps"
        yield f"Take more steps: {short}, so who is learnt first cannot be told."


def _runs(results: ToyResults) -> Iterator[str]:
    seeds, rows = results.seeds, []
    for name, variant in VARIANTS.items():
        reached = [steps for seed in seeds if (steps := seed.steps[name]) is not None]
        ratios = results.ratios(name)
        cells = ["never", "", ""]
        if reached and ratios:
            share = f"{sum(ratios) / len(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
            note = "" if len(reached) == len(seeds) else f"not in {len(seeds) - len(reached)} seeds"
            cells = [f"{sum(reached) / len(reached):.0f}", share, note]
        rows.append([variant.title, *cells])
    count = f"{len(seeds)} seed{'s' if len(seeds) > 1 else ''}"
    yield f"\nSteps to a fused loss of {results.settings.level:g}, over {count}:"
    yield from text_table(["way of training", "steps", "of joint training's", ""], rows)
    if results.quickest:
        pairs = results.quickest.items()
        best = ", ".join(f"{VARIANTS[name].title} {steps} steps at {lr:g}" for name, (lr, steps) in pairs)
        yield f"With the best learning rate for each (seed {seeds[0].seed}): {best}."


def _gradients(results: ToyResults) -> Iterator[str]:
    yield "\nThe appendix's table of gradients beside autograd, in the middle of training (relative difference):"
    rows = [
        [row.block, VARIANTS[name].title, f"{row.corrected:.0e}", f"{row.as_printed:.2f}", f"{row.factor:.3f}"]
        for name, gradients in results.gradients.items()
        for row in gradients
    ]
    yield from text_table(["block", "maximum", "corrected", "as printed", "autograd / printed"], rows)


def _theory(theory: TheoryResults | None, settings: ToySettings) -> Iterator[str]:
    if theory is None:
        return
    yield "\nEncoders of width one on correlated modalities, where objectives conflict:"
    solved = zip(PENALTIES, theory.penalised, theory.relaxed, theory.predicted, strict=True)
    rows = [
        ["lexicographic", f"{theory.lexicographic.fused:.6f}", "", "0", ""],
        *(
            [f"λ = {penalty:g}", f"{own.fused:.6f}", f"{relaxed.fused:.6f}", f"{own.worst:.3e}", f"{predicted:.3e}"]
            for penalty, own, relaxed, predicted in solved
        ),
    ]
    yield from text_table(["problem", "fused loss", "with that gap as ε", "worst gap", "to first order"], rows)
    yield "\nSteps after which the objective stays within an accuracy, step and μ tuned for each:"
    needed = {title: theory.rates[name].steps.values() for name, title in MAXIMA.items()}
    rows = [[title, *("–" if count is None else str(count) for count in counts)] for title, counts in needed.items()]
    yield from text_table(["", *(f"{accuracy:g}" for accuracy in theory.rates["hard"].steps)], rows)
    yield from toy_constrained.lines(theory.constrained, settings)


# -- figures --


def draw_all(results: ToyResults, folder: Path, made: str) -> list[Path]:
    """Draw every figure, as SVG and PNG.

    Args:
        results: The measurements.
        folder: Where to.
        made: How it was made, the first sentence of each caption.
    """
    with drawing.style():
        paths = [*_draw_figure_1(results, folder, made), *_draw_runs(results, folder, made)]
        if results.theory is not None:
            paths += _draw_theory(results, results.theory, folder, made)
    return paths


def _draw_figure_1(results: ToyResults, folder: Path, made: str) -> list[Path]:
    """(a) joint training and (b) MIMO: the model, the fused loss, and the norms of the encoders."""
    settings, places = results.settings, results.seeds[0].places
    figure = drawing.canvas(9.2, 6.0)
    grid = figure.subplots(3, 2, height_ratios=(1.0, 1.2, 1.2), sharey="row")
    learnt = []
    for column, (variant, title) in enumerate({"joint": "(a) Joint training", "mimo-exact": "(b) MIMO"}.items()):
        trace, (model, loss, norm) = results.traces[variant], grid[:, column]
        _diagram(model, modality_colours(settings.names), heads=variant != "joint")
        model.set_title(title, fontsize=11.5, fontweight="bold")
        _losses(loss, trace, settings, places if variant == "joint" else {})
        _norms(norm, trace, settings)
        learnt.append({name: trace.learnt(name) for name in settings.names})
    for row, words in ((1, "fused loss"), (2, "norm of the encoders")):
        grid[row, 0].set(ylabel=words, ylim=(0, None))
    joint, mimo = learnt
    order = sorted(joint, key=joint.__getitem__)
    caption = (
        f"{made} Dots on the norms: halfway from the start to the largest. (a) Joint training learns "
        + ", then ".join(f"{name} (step {joint[name]})" for name in order)
        + f", and stays for a while near the loss {places[order[0]].loss:.3g} of {order[0]} alone. (b) MIMO with exact "
        "f*, from the same start with the same learning rate: "
        + ", ".join(f"{name} at step {mimo[name]}" for name in order)
        + ". A larger learning rate makes joint training fast, too: see toy-runs."
    )
    return drawing.save(figure, folder, "toy", caption)


def _losses(axes: Axes, trace: Trace, settings: ToySettings, places: dict[str, Manifold]) -> None:
    axes.plot(trace.fused, color=JOINT)
    axes.set_xlim(0, settings.steps)
    colours = modality_colours(settings.names)
    offset: Any = {"textcoords": "offset points", "fontsize": 8.5}
    for name, place in places.items():
        axes.axhline(place.loss, color=colours[name], lw=1, ls=(0, (4, 3)), zorder=1)
        words = f"{name} alone: {place.loss:.2g}" if place.loss < 1 else f"{name} alone: {place.loss:.1f}"
        axes.annotate(
            words, (1, place.loss), xycoords=("axes fraction", "data"), xytext=(0, 2), ha="right", va="bottom",
            color=colours[name], **offset,
        )  # fmt: skip
    steps = trace.reached(settings.level)
    if steps is not None:
        axes.plot([steps], [float(trace.fused[steps])], "o", color=JOINT, ms=5)
        late = steps > 0.7 * settings.steps  # then there is room on the left only, below the curve
        axes.annotate(
            f"{settings.level:g} after {steps} steps", (steps, settings.level), xytext=(-8, -1) if late else (6, 8),
            ha="right" if late else "left", va="center" if late else "bottom", **offset,
        )  # fmt: skip
    axes.tick_params(labelbottom=True)


def _norms(axes: Axes, trace: Trace, settings: ToySettings) -> None:
    for name, colour in modality_colours(settings.names).items():
        norm, learnt = trace.norms[name], trace.learnt(name)
        axes.plot(norm, color=colour, label=rf"$\Vert \theta_{{{name}}} \Vert$")
        axes.plot([learnt], [float(norm[learnt])], "o", color=colour, ms=5)
    axes.set(xlim=(0, settings.steps), xlabel="step")
    axes.legend()


def _diagram(axes: Axes, colours: dict[str, str], *, heads: bool) -> None:
    """Boxes from inputs to losses: an encoder per modality, the fused head, and under MIMO a head for each."""
    from matplotlib.patches import FancyBboxPatch

    def box(x: float, y: float, text: str, colour: str, dashes: str = "-") -> None:
        look: Any = {"boxstyle": "round,pad=0.08", "ec": colour, "fc": colour + "18", "lw": 1.3, "ls": dashes}
        axes.add_patch(FancyBboxPatch((x - 1.1, y - 0.25), 2.2, 0.5, **look))
        axes.text(x, y, text, ha="center", va="center", color=colour)

    def arrow(x: float, y: float, to_x: float, to_y: float, colour: str) -> None:
        axes.annotate("", (to_x, to_y), (x, y), arrowprops={"arrowstyle": "->", "color": colour, "lw": 1.2})

    def head(row: int, title: str, loss: str, colour: str, dashes: str = "-") -> None:
        box(5.7, row, title, colour, dashes)
        arrow(6.9, row, 7.55, row, colour)
        axes.text(7.65, row, f"$f_{{{loss}}}$", color=colour, va="center", fontsize=12)

    axes.set_axis_off()
    rows, between = len(colours) + 1, (len(colours) + 1) // 2  # the fused head has a row of its own, in the middle
    axes.set(xlim=(0, 10), ylim=(rows - 0.5, -0.5))
    for number, (name, colour) in enumerate(colours.items()):
        row = number + (number >= between)
        axes.text(0.0, row, name, color=colour, va="center", fontweight="bold")
        arrow(0.6, row, 1.2, row, colour)
        box(2.5, row, rf"encoder $\theta_{{{name}}}$", colour)
        arrow(3.75, row, 4.45, between + 0.2 * (row - between), colour)
        if heads:
            arrow(3.75, row, 4.45, row, colour)
            head(row, "own head", name, colour, "--")
    head(between, "fused head", "mm", JOINT)
    if heads:
        axes.text(9.0, between, "+ λ · maximum\nof the gaps", color=FAINT, va="center", fontsize=8.5)


def _draw_runs(results: ToyResults, folder: Path, made: str) -> list[Path]:
    """The fused loss of every way of training, the weights of the maximum, and the steps over all seeds."""
    settings = results.settings
    figure = drawing.canvas(11.0, 3.5)
    left, middle, right = figure.subplots(1, 3, width_ratios=(1.5, 1, 1.1))
    for name, trace in results.traces.items():
        colour, dashes = STYLES[name]
        left.plot(trace.fused, color=colour, ls=dashes, label=VARIANTS[name].title, lw=1.5)
    top = 1.1 * float(results.traces["joint"].fused[0])
    left.set(xlabel="step", ylabel="fused loss", xlim=(0, settings.steps), ylim=(0, top), title="Every way of training")
    left.legend(loc="upper right", handlelength=1.3, fontsize=7.8, borderaxespad=0)
    for variant, dashes in (("mimo-exact", "-"), ("mimo-zero", "--")):
        for name, colour in modality_colours(settings.names).items():
            label = f"{name}, {VARIANTS[variant].title.partition(', ')[2]}"
            middle.plot(results.traces[variant].weights[name], color=colour, ls=dashes, lw=1.5, label=label)
    middle.set(xlabel="step", ylabel="weight λσ of each modality", xlim=(0, settings.steps / 2))
    middle.set_title("What MIMO weighs")
    middle.legend(loc="center right", bbox_to_anchor=(1, 0.72), handlelength=1.6)
    variants = [name for name in VARIANTS if name != "joint"]
    for row, name in enumerate(reversed(variants)):
        ratios = results.ratios(name)
        beside, colour = right.get_yaxis_transform(), STYLES[name][0]
        right.text(-0.02, row, VARIANTS[name].title, transform=beside, ha="right", va="center", fontsize=8)
        if len(ratios) == len(results.seeds):
            right.plot([min(ratios), max(ratios)], [row, row], color=colour, lw=4, alpha=0.35)
            right.plot([sum(ratios) / len(ratios)], [row], "o", color=colour, ms=5)
        else:
            right.text(0.02, row, "not always reached", va="center", fontsize=8, color=FAINT)
    right.axvline(1, color=LINE, lw=1)
    right.set(xlim=(0, 1.05), ylim=(-0.6, len(variants) - 0.4), yticks=(), title="All seeds")
    right.set_xlabel(f"steps to {settings.level:g}, joint training = 1")
    right.spines["left"].set_visible(False)
    caption = (
        f"{made} Left and middle: the first seed. Right: steps until the fused loss is at most {settings.level:g}, "
        f"mean and range over {len(results.seeds)} seeds of data and start. EW at λ/K and joint training at a larger "
        "learning rate are the controls: λ also enlarges the step."
    )
    return drawing.save(figure, folder, "toy-runs", caption)


def _draw_theory(results: ToyResults, theory: TheoryResults, folder: Path, made: str) -> list[Path]:
    """The condition as samples grow, Theorem 1, Theorem 2, and the rates of convergence."""
    from matplotlib.ticker import LogLocator, NullFormatter

    figure = drawing.canvas(9.2, 6.2)
    (condition, first), (second, rates) = figure.subplots(2, 2)
    samples = [rate.samples for rate in results.condition]
    for name, colour in modality_colours(results.settings.names).items():
        pulls, label = [rate.pull[name] for rate in results.condition], rf"$\Vert C_{{y{name}}} \Vert$"
        condition.plot(samples, pulls, "o-", color=colour, ms=4, label=label)
    below = condition.get_xaxis_transform()
    for rate in results.condition:
        condition.text(rate.samples, 0.02, f"{rate.holds:.0%}", transform=below, ha="center", fontsize=8, color=FAINT)
    condition.set(xscale="log", xlabel="samples (percentages: seeds in which the condition holds)", ylim=(0, None))
    condition.margins(x=0.08)  # room for the percentages beside the axis
    condition.set_title("Correlation with the label, its norm")

    first.plot(PENALTIES, [solution.worst for solution in theory.penalised], "o", color=JOINT, label="penalty solution")
    first.plot(PENALTIES, theory.predicted, color=LINE, lw=1.2, zorder=0, label="(Σ s)² / 2λ²")
    first.set(xscale="log", yscale="log", xlabel="penalty λ", ylabel="worst gap")
    first.set_title("Theorem 1: the gap falls as λ⁻²")

    second.plot(theory.descent.bound, color=LINE, label=r"$2\,(F_0 - F_T)\,/\,\Sigma\,\eta$")
    second.plot(theory.descent.smallest, color=JOINT, label="smallest ‖∇F‖² so far")
    second.set(yscale="log", xlabel="steps T", title="Theorem 2: safe step, both sides")

    for maximum, title in MAXIMA.items():
        points = {accuracy: steps for accuracy, steps in theory.rates[maximum].steps.items() if steps}
        colour, marks = MAXIMUM_STYLES[maximum]
        rates.plot(list(points), list(points.values()), marks, color=colour, ms=4, label=title)
    rates.set(xscale="log", yscale="log", xlabel="accuracy of the objective", ylabel="steps, each tuned")
    rates.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    rates.yaxis.set_major_formatter("{x:g}")
    rates.yaxis.set_minor_formatter(NullFormatter())
    rates.invert_xaxis()
    rates.set_title("Hard and smooth maximum")
    for axes in (condition, first, second, rates):
        axes.legend()
    caption = (
        f"{made} Top left: mean over {len(results.seeds)} seeds of ‖C_yk‖, which decides what is learnt first. Right: "
        "another problem, with encoders of width one and correlated modalities, on which objectives conflict; s is how "
        "hard the fused loss pulls each modality from its best. Bottom left: the toy problem, MIMO with exact f* and "
        "the step 1/L̂ of each point; the start near zero is nearly stationary already."
    )
    return drawing.save(figure, folder, "toy-theory", caption)
