"""The figures of the toy problem: the paper's Figure 1, all runs beside each other, and what is proved."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from equipoise.paper.toy import Recipe
from equipoise.paper.toy_facts import PENALTIES, Facts, Theory
from equipoise.paper.toy_rates import VARIANTS
from equipoise.paper.toy_runs import KINDS, Manifold, Trace
from equipoise.report import drawing
from equipoise.report.drawing import FAINT, INK, JOINT, LINE, MODALITIES

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PINK, GREEN = "#bf3989", "#1a7f37"
STYLES = {
    "joint": (INK, "-"), "mimo-exact": (JOINT, "-"), "mimo-zero": (JOINT, "--"), "hard-exact": (PINK, "-."),
    "hard-zero": (PINK, ":"), "ew": (GREEN, "-"), "ew-full": (GREEN, "--"), "joint-faster": (INK, ":"),
}  # fmt: skip


def draw_all(facts: Facts, folder: Path, made: str) -> list[Path]:
    """Every figure, as SVG and PNG.

    Args:
        facts: What was measured.
        folder: Where to.
        made: How it was made, the first sentence of each caption.
    """
    with drawing.style():
        paths = [*overview(facts, folder, made), *all_runs(facts, folder, made)]
        if facts.theory is not None:
            paths += proved(facts, facts.theory, folder, made)
    return paths


# -- Figure 1 --


def overview(facts: Facts, folder: Path, made: str) -> list[Path]:
    """(a) joint training and (b) MIMO: the model, the fused loss, and the norms of the encoders."""
    recipe, places = facts.recipe, facts.seeds[0].places
    figure = drawing.canvas(9.2, 6.0)
    grid = figure.subplots(3, 2, height_ratios=(1.0, 1.2, 1.2), sharey="row")
    for column, (kind, title) in enumerate({"joint": "(a) Joint training", "mimo-exact": "(b) MIMO"}.items()):
        model, loss, norm = grid[:, column]
        _diagram(model, recipe.names, heads=kind != "joint")
        model.set_title(title, fontsize=11.5, fontweight="bold")
        _loss(loss, facts.traces[kind], recipe, places if kind == "joint" else {})
        _norms(norm, facts.traces[kind], recipe)
    for row, words in ((1, "fused loss"), (2, "norm of the encoders")):
        grid[row, 0].set(ylabel=words, ylim=(0, None))
    joint, mimo = ({name: facts.traces[kind].learnt(name) for name in recipe.names} for kind in ("joint", "mimo-exact"))
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


def _loss(axes: Axes, trace: Trace, recipe: Recipe, places: Mapping[str, Manifold]) -> None:
    axes.plot(trace.fused, color=JOINT)
    axes.set_xlim(0, recipe.steps)
    for number, (name, place) in enumerate(places.items()):
        colour = MODALITIES[number % len(MODALITIES)]
        axes.axhline(place.loss, color=colour, lw=1, ls=(0, (4, 3)), zorder=1)
        axes.annotate(
            f"{name} alone: {place.loss:.2g}" if place.loss < 1 else f"{name} alone: {place.loss:.1f}", (1, place.loss),
            xycoords=("axes fraction", "data"), xytext=(0, 2), textcoords="offset points", ha="right", va="bottom",
            color=colour, fontsize=8.5,
        )  # fmt: skip
    there = trace.reached(recipe.level)
    if there is not None:
        axes.plot([there], [float(trace.fused[there])], "o", color=JOINT, ms=5)
        late = there > 0.7 * recipe.steps  # then there is room on the left only, below the curve
        axes.annotate(
            f"{recipe.level:g} after {there} steps", (there, recipe.level), xytext=(-8, -1) if late else (6, 8),
            textcoords="offset points", fontsize=8.5, ha="right" if late else "left", va="center" if late else "bottom",
        )  # fmt: skip
    axes.tick_params(labelbottom=True)


def _norms(axes: Axes, trace: Trace, recipe: Recipe) -> None:
    for number, name in enumerate(recipe.names):
        colour, learnt = MODALITIES[number % len(MODALITIES)], trace.learnt(name)
        axes.plot(trace.norms[name], color=colour, label=_theta(name))
        axes.plot([learnt], [float(trace.norms[name][learnt])], "o", color=colour, ms=5)
    axes.set(xlim=(0, recipe.steps), xlabel="step")
    axes.legend()


def _diagram(axes: Axes, names: Sequence[str], *, heads: bool) -> None:
    """Boxes from inputs to losses: an encoder per modality, the fused head, and under MIMO a head for each."""
    axes.set_axis_off()
    rows, between = len(names) + 1, (len(names) + 1) // 2  # the fused head has a row of its own, in the middle
    axes.set(xlim=(0, 10), ylim=(rows - 0.5, -0.5))
    column = 5.7
    for number, name in enumerate(names):
        colour, row = MODALITIES[number % len(MODALITIES)], number + (number >= between)
        axes.text(0.0, row, name, color=colour, va="center", fontweight="bold")
        _arrow(axes, 0.6, row, 1.2, row, colour)
        _box(axes, 2.5, row, _theta(name, norm=False), colour)
        _arrow(axes, 3.75, row, column - 1.25, between + 0.2 * (row - between), colour)
        if heads:
            _arrow(axes, 3.75, row, column - 1.25, row, colour)
            _box(axes, column, row, "own head", colour, dashed=True)
            _arrow(axes, column + 1.2, row, column + 1.85, row, colour)
            axes.text(column + 1.95, row, f"$f_{{{name}}}$", color=colour, va="center", fontsize=12)
    _box(axes, column, between, "fused head", JOINT)
    _arrow(axes, column + 1.2, between, column + 1.85, between, JOINT)
    axes.text(column + 1.95, between, "$f_{mm}$", color=JOINT, va="center", fontsize=12)
    if heads:
        axes.text(9.0, between, "+ λ · maximum\nof the gaps", color=FAINT, va="center", fontsize=8.5)


def _box(axes: Axes, x: float, y: float, text: str, colour: str, *, dashed: bool = False) -> None:
    from matplotlib.patches import FancyBboxPatch

    shape: Any = FancyBboxPatch(
        (x - 1.1, y - 0.25), 2.2, 0.5, boxstyle="round,pad=0.08", ec=colour, fc=colour + "18", lw=1.3,
        ls="--" if dashed else "-",
    )  # fmt: skip
    axes.add_patch(shape)
    axes.text(x, y, text, ha="center", va="center", color=colour)


def _arrow(axes: Axes, x: float, y: float, to_x: float, to_y: float, colour: str) -> None:
    axes.annotate("", (to_x, to_y), (x, y), arrowprops={"arrowstyle": "->", "color": colour, "lw": 1.2})


def _theta(name: str, *, norm: bool = True) -> str:
    symbol = rf"\theta_{{{name}}}"
    return rf"$\Vert {symbol} \Vert$" if norm else f"encoder ${symbol}$"


# -- all runs --


def all_runs(facts: Facts, folder: Path, made: str) -> list[Path]:
    """The fused loss of every way of training, what the maximum weighs, and the steps over all seeds."""
    recipe = facts.recipe
    figure = drawing.canvas(11.0, 3.5)
    left, middle, right = figure.subplots(1, 3, width_ratios=(1.5, 1, 1.1))
    for kind, trace in facts.traces.items():
        colour, dashes = STYLES[kind]
        left.plot(trace.fused, color=colour, ls=dashes, label=KINDS[kind].title, lw=1.5)
    top = 1.1 * float(facts.traces["joint"].fused[0])
    left.set(xlabel="step", ylabel="fused loss", xlim=(0, recipe.steps), ylim=(0, top))
    left.set_title("Every way of training")
    left.legend(loc="upper right", handlelength=1.3, fontsize=7.8, borderaxespad=0)
    for kind, dashes in (("mimo-exact", "-"), ("mimo-zero", "--")):
        for number, name in enumerate(recipe.names):
            weights = facts.traces[kind].weights[name]
            middle.plot(weights, color=MODALITIES[number % len(MODALITIES)], ls=dashes, lw=1.5,
                        label=f"{name}, {KINDS[kind].title.partition(', ')[2]}")  # fmt: skip
    middle.set(xlabel="step", ylabel="weight λσ of each modality", xlim=(0, recipe.steps / 2))
    middle.set_title("What MIMO weighs")
    middle.legend(loc="center right", bbox_to_anchor=(1, 0.72), handlelength=1.6)
    kinds = [kind for kind in KINDS if kind != "joint"]
    for row, kind in enumerate(reversed(kinds)):
        ratios = [ratio for seed in facts.seeds if (ratio := seed.ratio(kind)) is not None]
        right.text(
            -0.02, row, KINDS[kind].title, transform=right.get_yaxis_transform(), ha="right", va="center", fontsize=8
        )
        if len(ratios) == len(facts.seeds):
            right.plot([min(ratios), max(ratios)], [row, row], color=STYLES[kind][0], lw=4, alpha=0.35)
            right.plot([sum(ratios) / len(ratios)], [row], "o", color=STYLES[kind][0], ms=5)
        else:
            right.text(0.02, row, "not always reached", va="center", fontsize=8, color=FAINT)
    right.axvline(1, color=LINE, lw=1)
    right.set(
        xlim=(0, 1.05),
        ylim=(-0.6, len(kinds) - 0.4),
        yticks=(),
        xlabel=f"steps to {recipe.level:g}, joint training = 1",
    )
    right.spines["left"].set_visible(False)
    right.set_title("All seeds")
    caption = (
        f"{made} Left and middle: the first seed. Right: steps until the fused loss is at most {recipe.level:g}, mean "
        f"and range over {len(facts.seeds)} seeds of data and start. EW at λ/K and joint training at a larger learning "
        "rate are the controls: λ also enlarges the step."
    )
    return drawing.save(figure, folder, "toy-runs", caption)


# -- what is proved --


def proved(facts: Facts, theory: Theory, folder: Path, made: str) -> list[Path]:
    """The condition as samples grow, Theorem 1, Theorem 2, and the rates of convergence."""
    from matplotlib.ticker import LogLocator, NullFormatter

    figure = drawing.canvas(9.2, 6.2)
    (condition, first), (second, rates) = figure.subplots(2, 2)
    for number, name in enumerate(facts.recipe.names):
        colour = MODALITIES[number % len(MODALITIES)]
        pulls = [share.pull[name] for share in facts.shares]
        condition.plot(
            [share.samples for share in facts.shares],
            pulls,
            "o-",
            color=colour,
            ms=4,
            label=rf"$\Vert C_{{y{name}}} \Vert$",
        )
    for share in facts.shares:
        condition.annotate(f"{share.holds:.0%}", (share.samples, 0.02), xycoords=("data", "axes fraction"), ha="center",
                           fontsize=8, color=FAINT)  # fmt: skip
    condition.set(xscale="log", xlabel="samples (percentages: seeds in which the condition holds)", ylim=(0, None))
    condition.margins(x=0.08)  # room for the percentages beside the axis
    condition.set_title("Correlation with the label, its norm")
    condition.legend()

    worst = [each.worst for each in theory.penalised]
    first.plot(PENALTIES, worst, "o", color=JOINT, label="penalty solution")
    first.plot(PENALTIES, theory.predicted, color=LINE, lw=1.2, zorder=0, label="(Σ s)² / 2λ²")
    first.set(xscale="log", yscale="log", xlabel="penalty λ", ylabel="worst gap")
    first.set_title("Theorem 1: the gap falls as λ⁻²")
    first.legend()

    second.plot(theory.descent.bound, color=LINE, label=r"$2\,(F_0 - F_T)\,/\,\Sigma\,\eta$")
    second.plot(theory.descent.smallest, color=JOINT, label="smallest ‖∇F‖² so far")
    second.set(yscale="log", xlabel="steps T")
    second.set_title("Theorem 2: safe step, both sides")
    second.legend()

    looks = {"hard": (PINK, "o-"), "decaying": (PINK, "s--"), "smooth": (JOINT, "o-")}
    for variant, title in VARIANTS.items():
        points = [(accuracy, steps) for accuracy, steps in theory.rates[variant].steps.items() if steps]
        colour, marks = looks[variant]
        rates.plot([each[0] for each in points], [each[1] for each in points], marks, color=colour, ms=4, label=title)
    rates.set(xscale="log", yscale="log", xlabel="accuracy of the objective", ylabel="steps, each tuned")
    rates.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    rates.yaxis.set_major_formatter("{x:g}")
    rates.yaxis.set_minor_formatter(NullFormatter())
    rates.invert_xaxis()
    rates.set_title("Hard and smooth maximum")
    rates.legend()
    caption = (
        f"{made} Top left: mean over {len(facts.seeds)} seeds of ‖C_yk‖, which decides what is learnt first. Right: "
        "another problem, with encoders of width one and correlated modalities, on which objectives conflict; s is how "
        "hard the fused loss pulls each modality from its best. Bottom left: the toy problem, MIMO with exact f* and "
        "the step 1/L̂ of each point; the start near zero is nearly stationary already."
    )
    return drawing.save(figure, folder, "toy-theory", caption)
