"""The figure of a landscape: the training curves, and a panel for every plane."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from equipoise.paper.landscape import TITLES, Facts, Star, Surface
from equipoise.report import drawing
from equipoise.report.drawing import FAINT, INK, JOINT, MODALITIES

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import SubFigure

STAR, TEST = "#d1242f", "#9c0f6b"
SURE = 0.55  # how much of a modality's colour the largest lead gets
COLOURS = {"msl": INK, "mimo": JOINT}
NICE = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)
"""Levels of the loss, as far as they are reached."""


def draw(facts: Facts, folder: Path, made: str) -> list[Path]:
    """The figure, as SVG and PNG.

    Args:
        facts: What was measured.
        folder: Where to.
        made: How it was made, the first sentence of the caption.
    """
    panels = len(facts.surfaces)
    with drawing.style():
        wide = 4.5 * panels if panels > 1 else 6.6  # the keys below need that much
        figure = drawing.canvas(3.9 + wide, 5.4)
        left, right = figure.subfigures(1, 2, squeeze=False, width_ratios=(3.9, wide))[0]
        losses, accuracies = left.subplots(2, 1, sharex=True)
        _losses(losses, facts)
        _accuracies(accuracies, facts)
        planes = right.subplots(1, panels, sharey=True, squeeze=False)[0]
        levels, most = _levels(facts.surfaces), _largest_lead(facts)
        for axes, surface in zip(planes, facts.surfaces, strict=True):
            _plane(axes, surface, levels, most)
        _axis_names(planes, facts)
        _key(right, facts, most)
        return drawing.save(figure, folder, facts.recipe.stem, f"{made} {caption(facts)}")


def caption(facts: Facts) -> str:
    """How the picture was made, and what it may be off by."""
    recipe = facts.recipe
    counts = f"{facts.samples['train']:,} training and {facts.samples['test']:,} test samples"
    if recipe.plane == "both":
        where = (
            "The plane through both solutions: to the right from one to the other, up a filter-normalised random "
            "direction orthogonal to that."
        )
        frozen = ""
        statistics = (
            " Batch norm is in evaluation mode, and its statistics go from those of one solution to those of the other "
            "with x, and no further."
        )
    else:
        where = (
            "Each panel is centred on its own solution; both use the same two random draws, each filter of which is "
            "scaled to the length of that solution's own filter."
        )
        frozen = " Biases and the parameters of normalisation are not moved."
        statistics = " Batch norm is in evaluation mode, with the running statistics of the solution everywhere."
    errors = "; ".join(
        f"{TITLES[star.name]} {star.loss['train']:.3f} ± {star.error['train']:.3f} in training and "
        f"{star.loss['test']:.3f} ± {star.error['test']:.3f} in test"
        for star in facts.stars
    )
    late = ", ".join("{}: {:.3f} to {:.3f}".format(TITLES[star.name], *facts.late(star.name)) for star in facts.stars)
    reading = {
        "split": "each modality's share of the fused output (protocol split)",
        "head": "heads of their own (protocol head; beside joint training they learn on detached features)",
    }[facts.protocol]
    return (
        f"{where}{frozen}{statistics if facts.normalised else ''} {recipe.points} × {recipe.points} points. Losses of "
        f"the fused output on a fixed subset, stratified by class, of {counts}; at the stars, with the standard error "
        f"over samples taken as independent: {errors}. Test loss over the last fifth of training: {late}. Colour: "
        f"which modality has the higher training accuracy, read from {reading}. One seed ({recipe.seed}) and one "
        "draw of directions out of many: a look, and no test of anything."
    )


def _losses(axes: Axes, facts: Facts) -> None:
    for name, curves in facts.curves.items():
        steps = [look["step"] for look in curves]
        for part, dashes in (("train", "-"), ("test", (0, (3, 1.5)))):
            words = f"{TITLES[name]}, {'training' if part == 'train' else 'test'}"
            values = [look[part]["fused"]["loss"] for look in curves]
            axes.plot(steps, values, color=COLOURS[name], ls=dashes, lw=1.4, label=words)
    axes.set(ylabel="fused loss", ylim=(0, None))
    axes.set_title("Training curves")
    axes.legend(fontsize=7.5)


def _accuracies(axes: Axes, facts: Facts) -> None:
    for name, curves in facts.curves.items():
        steps = [look["step"] for look in curves]
        for number, modality in enumerate(facts.modalities):
            values = [100 * look["train"][modality]["accuracy"] for look in curves]
            axes.plot(steps, values, color=_colour(number), ls=":" if name == "msl" else "-", lw=1.5,
                      label=f"{modality}, {TITLES[name]}")  # fmt: skip
    axes.set(xlabel="step", ylabel="training accuracy alone, %", xlim=(0, facts.recipe.steps), ylim=(0, 102))
    axes.legend(fontsize=7.5, loc="lower right")


def _plane(axes: Axes, surface: Surface, levels: Sequence[float], most: float) -> None:
    half_x, half_y = (0.5 * (side[1] - side[0]) for side in (surface.x, surface.y))
    edges = (surface.x[0] - half_x, surface.x[-1] + half_x, surface.y[0] - half_y, surface.y[-1] + half_y)
    axes.imshow(tints(surface, most), origin="lower", extent=edges, aspect="auto", interpolation="nearest", zorder=0)
    for grid, colour, dashes, width in ((surface.train, INK, "solid", 1.0), (surface.test, TEST, "dashed", 1.2)):
        reached = [level for level in levels if grid.min() < level < grid.max()]
        if reached:
            lines = axes.contour(
                surface.x, surface.y, grid, reached, colors=colour, linestyles=dashes, linewidths=width
            )
            axes.clabel(lines, fmt="%g", fontsize=7, inline_spacing=2)
    for star in surface.stars:
        axes.plot([star.x], [star.y], "*", color=STAR, ms=14, mec="white", mew=0.8, zorder=5)
        if len(surface.stars) > 1:
            axes.annotate(TITLES[star.name], (star.x, star.y), xytext=(0, -17), textcoords="offset points", ha="center",
                          fontsize=9, zorder=6, bbox={"fc": "white", "ec": "none", "pad": 1.5})  # fmt: skip
    axes.set_title(_title(surface.stars))
    for spine in axes.spines.values():
        spine.set_visible(False)


def _title(stars: Sequence[Star]) -> str:
    if len(stars) > 1:
        return "Through both solutions"
    star = stars[0]
    return (
        f"Around {TITLES[star.name]}: loss {star.loss['train']:.3f} in training, {star.loss['test']:.3f} in test;\n"
        f"{100 * star.accuracy['test']['fused']:.1f} % of test samples right"
    )


def _axis_names(planes: Sequence[Axes], facts: Facts) -> None:
    both = facts.recipe.plane == "both"
    for axes in planes:
        axes.set_xlabel("from joint training (0) to MIMO (1)" if both else "first direction, lengths of filters")
    planes[0].set_ylabel("across, lengths of filters" if both else "second direction, lengths of filters")


def tints(surface: Surface, most: float) -> np.ndarray:
    """The colour of every place, [rows, columns, 3]: that of the modality that leads, paler for a smaller lead."""
    from matplotlib.colors import to_rgb

    accuracy = np.stack(list(surface.accuracy.values()), axis=-1)
    palette = np.array([to_rgb(_colour(number)) for number in range(accuracy.shape[-1])])
    strength = SURE * lead(accuracy)[..., None] / max(most, 1e-9)
    return 1 - strength * (1 - palette[accuracy.argmax(axis=-1)])


def lead(accuracy: np.ndarray) -> np.ndarray:
    """By how much the best modality, along the last axis, is ahead of the next; zero where there is one only."""
    if accuracy.shape[-1] < 2:
        return np.zeros(accuracy.shape[:-1])
    best = np.sort(accuracy, axis=-1)
    return best[..., -1] - best[..., -2]


def _largest_lead(facts: Facts) -> float:
    """Over all panels, so that a colour means the same in each."""
    leads = [lead(np.stack(list(surface.accuracy.values()), axis=-1)).max() for surface in facts.surfaces]
    return float(max(leads))


def _levels(surfaces: Sequence[Surface]) -> list[float]:
    """The same levels of loss for every panel and for both parts."""
    lowest = min(min(surface.train.min(), surface.test.min()) for surface in surfaces)
    return [level for level in NICE if level > lowest]


def _key(place: SubFigure, facts: Facts, most: float) -> None:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    handles: list[Artist] = [
        Line2D([], [], color=INK, lw=1.0, label="training loss"),
        Line2D([], [], color=TEST, lw=1.2, ls="dashed", label="test loss"),
        Line2D([], [], color=STAR, marker="*", ms=10, ls="", label="the solution"),
    ]
    if len(facts.modalities) > 1:
        handles += [
            Patch(color=_colour(number), alpha=SURE, label=f"{name} leads by {100 * most:.0f} points")
            for number, name in enumerate(facts.modalities)
        ]
    place.legend(
        handles=handles,
        loc="outside lower center",
        ncols=5 if len(facts.surfaces) > 1 else 3,
        fontsize=8,
        labelcolor=FAINT,
    )


def _colour(number: int) -> str:
    return MODALITIES[number % len(MODALITIES)]
