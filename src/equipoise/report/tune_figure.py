"""The figure of a search: the best so far, what mattered, and accuracy over each parameter."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import TYPE_CHECKING, Any

from equipoise.report import drawing
from equipoise.report.drawing import FAINT, INK, JOINT, MODALITIES
from equipoise.report.tune_report import head
from equipoise.study.tuning import Interval, SearchResult, SearchTrial, as_typed

if TYPE_CHECKING:
    from matplotlib.axes import Axes

NAME = "tune"
COLUMNS = 3  # panels of parameters in a row
GRID = "#d1d9e0"


def draw(outcome: SearchResult, folder: Path, made: str) -> list[Path]:
    """As SVG and PNG.

    Args:
        outcome: What came out.
        folder: Where to.
        made: How it was made, the first sentence of the caption.
    """
    keys = list(outcome.search.space)
    columns = min(COLUMNS, max(2, len(keys)))
    rows = -(-len(keys) // columns)
    with drawing.style():
        figure = drawing.canvas(3.1 * columns, 2.7 * (rows + 1))
        upper, lower = figure.add_gridspec(2, 1, height_ratios=[1, rows])
        above, below = upper.subgridspec(1, 2), lower.subgridspec(rows, columns)
        progress = figure.add_subplot(above[0])
        _progress(progress, outcome)
        _shares(figure.add_subplot(above[1]), outcome)
        for number, key in enumerate(keys):
            row, column = divmod(number, columns)
            axes = figure.add_subplot(below[row, column], sharey=progress)
            _over(axes, outcome, key)
            axes.tick_params(labelleft=column == 0)
            axes.set_ylabel("validation, %" if column == 0 else "")
        return drawing.save(figure, folder, NAME, f"{made} {head(outcome)} {_reading(outcome)}")


def _progress(axes: Axes, outcome: SearchResult) -> None:
    """Every trial, and the best until then."""
    from matplotlib.ticker import MaxNLocator

    _points(axes, outcome, lambda each: each.number)
    done = [each for each in outcome.trials if each.state == "finished"]
    best = list(itertools.accumulate((100 * (each.score or 0.0) for each in done), max))
    last = outcome.trials[-1].number
    axes.step([*(each.number for each in done), last], [*best, best[-1]], where="post", color=JOINT)
    axes.set(title="best so far", xlabel="trial", ylabel="validation, %")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))


def _shares(axes: Axes, outcome: SearchResult) -> None:
    """How much each parameter decides."""
    axes.set(title="what mattered")
    if not outcome.importance:
        axes.text(0.5, 0.5, "too few trials to tell", transform=axes.transAxes, ha="center", color=FAINT)
        axes.set(xticks=[], yticks=[])
        return
    keys = list(outcome.importance)[::-1]
    shares = [100 * outcome.importance[key] for key in keys]
    bars = axes.barh(keys, shares, color=[_colour(outcome, key) for key in keys], height=0.6)
    axes.bar_label(bars, [f"{share:.0f}" for share in shares], padding=3, color=INK)
    axes.set(xlabel="share, %", xlim=(0, 112))
    axes.tick_params(axis="y", length=0, labelcolor=INK)


def _over(axes: Axes, outcome: SearchResult, key: str) -> None:
    """Accuracy over one parameter; words and few values stand at equal distances."""
    space = outcome.search.space[key]
    if isinstance(space, Interval):
        _points(axes, outcome, lambda each: each.values[key], _colour(outcome, key))
        if space.log:
            axes.set_xscale("log")
    else:
        _points(axes, outcome, lambda each: space.values.index(each.values[key]), _colour(outcome, key))
        axes.set_xticks(range(len(space.values)), [as_typed(value) for value in space.values])
        axes.set_xlim(-0.5, len(space.values) - 0.5)
    axes.set_xlabel(key)


def _points(axes: Axes, outcome: SearchResult, place: Any, colour: str = FAINT) -> None:
    seen = [each for each in outcome.trials if each.score is not None]
    done, pruned = ([each for each in seen if each.state == state] for state in ("finished", "pruned"))
    best = [outcome.best]
    looks: list[tuple[list[SearchTrial], dict[str, Any]]] = [
        (done, {"color": colour}),
        (pruned, {"facecolors": "none", "edgecolors": colour, "lw": 0.8}),
    ]
    for some, look in looks:
        axes.scatter([place(each) for each in some], _scores(some), s=18, **look)
    axes.scatter([place(each) for each in best], _scores(best), s=70, facecolors="none", edgecolors=INK, lw=1.3)
    axes.grid(axis="y", color=GRID, lw=0.6)
    axes.set_axisbelow(True)


def _scores(some: list[SearchTrial]) -> list[float]:
    return [100 * (each.score or 0.0) for each in some]


def _colour(outcome: SearchResult, key: str) -> str:
    return MODALITIES[list(outcome.search.space).index(key) % len(MODALITIES)]


def _reading(outcome: SearchResult) -> str:
    pruned = any(each.state == "pruned" for each in outcome.trials)
    hollow = " Hollow: pruned, at the accuracy they had then." if pruned else ""
    left = sum(each.score is None for each in outcome.trials)
    without = f" {left} without an accuracy are left out." if left else ""
    mattered = " What mattered: PED-ANOVA's share of what decides whether a trial is among the best; rough below some "
    return f"A point is a trial, the ring the best.{hollow}{without}{mattered}fifty trials."
