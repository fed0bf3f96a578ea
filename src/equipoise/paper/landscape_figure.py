"""The figure of a landscape: the training curves, and a panel for every plane."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from equipoise.paper.landscape import TITLES, LandscapeResults, LossSurface
from equipoise.report import drawing
from equipoise.report.drawing import FAINT, INK, JOINT, modality_colours

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import SubFigure

STAR, TEST = "#d1242f", "#9c0f6b"
STRONGEST = 0.55  # how much of a modality's colour the largest lead gets
COLOURS = {"msl": INK, "mimo": JOINT}
LEVELS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)
"""Levels of the loss, as far as they are reached."""

READINGS = {
    "split": "each modality's share of the fused output (protocol split)",
    "masked": "the model with the other sensors masked (protocol masked)",
    "head": "heads of their own (protocol head; beside joint training they learn on detached features)",
}
PLANES = {
    "own": (
        "Each panel is centred on its own solution; both use the same two random draws, each filter of which is "
        "scaled to the length of that solution's own filter. Biases and the parameters of normalisation are not moved.",
        " Batch norm is in evaluation mode, with the running statistics of the solution everywhere.",
    ),
    "both": (
        "The plane through both solutions: to the right from one to the other, up a filter-normalised random "
        "direction orthogonal to that.",
        " Batch norm is in evaluation mode, and its statistics go from those of one solution to those of the other "
        "with x, and no further.",
    ),
}
"""Words on each kind of plane, and on its statistics of batch norm, for the caption."""


def draw(results: LandscapeResults, folder: Path, made: str) -> list[Path]:
    """Draw the figure, as SVG and PNG.

    Args:
        results: The measurements.
        folder: Where to.
        made: How it was made, the first sentence of the caption.
    """
    panels, both = len(results.surfaces), results.settings.plane == "both"
    with drawing.style():
        wide = 4.5 * panels if panels > 1 else 6.6  # the keys below need that much
        figure = drawing.canvas(3.9 + wide, 5.4)
        left, right = figure.subfigures(1, 2, squeeze=False, width_ratios=(3.9, wide))[0]
        _curves(*left.subplots(2, 1, sharex=True), results)
        planes = right.subplots(1, panels, sharey=True, squeeze=False)[0]
        # One scale for all panels, so that a level and a colour mean the same in each.
        lowest = min(min(surface.train.min(), surface.test.min()) for surface in results.surfaces)
        most = float(max(lead(_stacked(surface)).max() for surface in results.surfaces))
        for axes, surface in zip(planes, results.surfaces, strict=True):
            _plane(axes, surface, [level for level in LEVELS if level > lowest], most)
            axes.set_xlabel("from joint training (0) to MIMO (1)" if both else "first direction, lengths of filters")
        planes[0].set_ylabel("across, lengths of filters" if both else "second direction, lengths of filters")
        _key(right, results, most)
        return drawing.save(figure, folder, results.settings.stem, f"{made} {caption(results)}")


def caption(results: LandscapeResults) -> str:
    """Say how the picture was made, and what it may be off by."""
    settings = results.settings
    plane, statistics = PLANES[settings.plane]
    counts = f"{results.samples['train']:,} training and {results.samples['test']:,} test samples"
    errors = "; ".join(
        f"{TITLES[star.name]} {star.loss['train']:.3f} ± {star.error['train']:.3f} in training and "
        f"{star.loss['test']:.3f} ± {star.error['test']:.3f} in test"
        for star in results.stars
    )
    ranges = {TITLES[star.name]: results.late(star.name) for star in results.stars}
    late = ", ".join(f"{title}: {low:.3f} to {high:.3f}" for title, (low, high) in ranges.items())
    return (
        f"{plane}{statistics if results.normalised else ''} {settings.side} × {settings.side} points. Losses of "
        f"the fused output on a fixed subset, stratified by class, of {counts}; at the stars, with the standard error "
        f"over samples taken as independent: {errors}. Test loss over the last fifth of training: {late}. Colour: "
        f"which modality has the higher training accuracy, read from {READINGS[results.protocol]}. One seed "
        f"({settings.seed}) and one draw of directions out of many: a look, and no test of anything."
    )


def _curves(losses: Axes, accuracies: Axes, results: LandscapeResults) -> None:
    for name, curve in results.curves.items():
        steps = [point["step"] for point in curve]
        for part, words, dashes in (("train", "training", "-"), ("test", "test", (0, (3, 1.5)))):
            values, label = [point[part]["fused"]["loss"] for point in curve], f"{TITLES[name]}, {words}"
            losses.plot(steps, values, color=COLOURS[name], ls=dashes, lw=1.4, label=label)
        for modality, colour in modality_colours(results.modalities).items():
            values = [100 * point["train"][modality]["accuracy"] for point in curve]
            look: Any = {"color": colour, "ls": ":" if name == "msl" else "-", "lw": 1.5}
            accuracies.plot(steps, values, label=f"{modality}, {TITLES[name]}", **look)
    losses.set(ylabel="fused loss", ylim=(0, None), title="Training curves")
    losses.legend(fontsize=7.5)
    accuracies.set(xlabel="step", ylabel="training accuracy alone, %", xlim=(0, results.settings.steps), ylim=(0, 102))
    accuracies.legend(fontsize=7.5, loc="lower right")


def _plane(axes: Axes, surface: LossSurface, levels: Sequence[float], most: float) -> None:
    x, y, stars = surface.x, surface.y, surface.stars
    half_x, half_y = (0.5 * (side[1] - side[0]) for side in (x, y))
    edges = (x[0] - half_x, x[-1] + half_x, y[0] - half_y, y[-1] + half_y)
    axes.imshow(tints(surface, most), origin="lower", extent=edges, aspect="auto", interpolation="nearest", zorder=0)
    for grid, colour, dashes, width in ((surface.train, INK, "solid", 1.0), (surface.test, TEST, "dashed", 1.2)):
        reached = [level for level in levels if grid.min() < level < grid.max()]
        if reached:
            lines = axes.contour(x, y, grid, reached, colors=colour, linestyles=dashes, linewidths=width)
            axes.clabel(lines, fmt="%g", fontsize=7, inline_spacing=2)
    for star in stars:
        axes.plot([star.x], [star.y], "*", color=STAR, ms=14, mec="white", mew=0.8, zorder=5)
        if len(stars) > 1:
            box: Any = {"fc": "white", "ec": "none", "pad": 1.5}
            axes.annotate(TITLES[star.name], (star.x, star.y), xytext=(0, -17), textcoords="offset points", ha="center",
                          fontsize=9, zorder=6, bbox=box)  # fmt: skip
    title, star = "Through both solutions", stars[0]
    if len(stars) == 1:
        title = (
            f"Around {TITLES[star.name]}: loss {star.loss['train']:.3f} in training, {star.loss['test']:.3f} in test;\n"
            f"{100 * star.accuracy['test']['fused']:.1f} % of test samples right"
        )
    axes.set_title(title)
    for spine in axes.spines.values():
        spine.set_visible(False)


def tints(surface: LossSurface, most: float) -> np.ndarray:
    """The colour of every point, [rows, columns, 3]: that of the modality that leads, paler for a smaller lead."""
    from matplotlib.colors import to_rgb

    accuracy = _stacked(surface)
    palette = np.array([to_rgb(colour) for colour in modality_colours(surface.accuracy).values()])
    strength = STRONGEST * lead(accuracy)[..., None] / max(most, 1e-9)
    return 1 - strength * (1 - palette[accuracy.argmax(axis=-1)])


def lead(accuracy: np.ndarray) -> np.ndarray:
    """The lead of the best modality, along the last axis, over the next; zero where there is one only."""
    if accuracy.shape[-1] < 2:
        return np.zeros(accuracy.shape[:-1])
    best = np.sort(accuracy, axis=-1)
    return best[..., -1] - best[..., -2]


def _stacked(surface: LossSurface) -> np.ndarray:
    return np.stack(list(surface.accuracy.values()), axis=-1)


def _key(place: SubFigure, results: LandscapeResults, most: float) -> None:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    handles: list[Artist] = [
        Line2D([], [], color=INK, lw=1.0, label="training loss"),
        Line2D([], [], color=TEST, lw=1.2, ls="dashed", label="test loss"),
        Line2D([], [], color=STAR, marker="*", ms=10, ls="", label="the solution"),
    ]
    if len(results.modalities) > 1:
        ahead = f"leads by {100 * most:.0f} points"
        for name, colour in modality_colours(results.modalities).items():
            handles.append(Patch(color=colour, alpha=STRONGEST, label=f"{name} {ahead}"))
    columns = 5 if len(results.surfaces) > 1 else 3
    place.legend(handles=handles, loc="outside lower center", ncols=columns, fontsize=8, labelcolor=FAINT)
