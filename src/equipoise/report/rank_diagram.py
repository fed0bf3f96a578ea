"""Critical-difference diagrams: mean ranks over data sets on a line, methods that do not differ joined by bars."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from equipoise.report import drawing
from equipoise.report.drawing import FAINT, INK, JOINT
from equipoise.report.ranking import LEVEL, MeanRanks, every_ranks
from equipoise.report.results import Results
from equipoise.util.errors import BadInput

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDTH = 6.4  # inches
STEP = 0.22  # inches between two lines of names, or two bars
MOST = 20  # methods in a diagram, the best first: names of more do not fit
LONGEST = 20  # letters of a name


def rank_diagram(results: Results) -> Figure:
    """Draw a diagram for every measure that methods can be ranked by, below each other, under `drawing.style`.

    Args:
        results: The finished runs.

    Raises:
        BadInput: If fewer than two methods were run on two data sets or more.
    """
    every = every_ranks(results)
    if not every:
        found = f"found {', '.join(results.groups)}"
        raise BadInput(f"ranks: expected two methods or more on two data sets or more, {found}")
    heights = [STEP * (3.2 + 0.6 * len(_bars(one)) + (len(_shown(one)) + 1) // 2) for one in every]
    figure = drawing.canvas(WIDTH, sum(heights))
    for axes, one, height in zip(
        figure.subplots(len(every), 1, squeeze=False, height_ratios=heights)[:, 0], every, heights, strict=True
    ):
        _diagram(axes, one, height / STEP)
    return figure


def _shown(one: MeanRanks) -> list[str]:
    return list(one.ranks)[:MOST]


def _bars(one: MeanRanks) -> list[Sequence[float]]:
    """Return the first and last mean rank of each group of methods that do not differ, as far as they are shown."""
    shown = [[one.ranks[label] for label in labels if label in _shown(one)] for labels in one.alike]
    return [(ranks[0], ranks[-1]) for ranks in shown if len(ranks) > 1]


def _diagram(axes: Axes, one: MeanRanks, height: float) -> None:
    """Draw one diagram; below the line of ranks the unit of height is `STEP`."""
    labels, bars = _shown(one), _bars(one)
    last = max(len(one.ranks) if len(one.ranks) <= MOST else math.ceil(one.ranks[labels[-1]]), 2)
    room = 0.42 * (last - 1)  # for names on either side
    axes.set(xlim=(1 - room, last + room), ylim=(-height + 2.5, 2.5))
    axes.axis("off")
    left_out = f", best {MOST} of {len(one.ranks)}" if len(labels) < len(one.ranks) else ""
    chance = "" if one.chance is None else f", Friedman {one.chance_in_words}"
    axes.text(1 - room, 2.3, f"{one.measure}, {len(one.data)} data sets{chance}{left_out}", va="top", color=FAINT)
    axes.plot([1, last], [0, 0], color=INK, lw=1.2)
    for rank in range(1, last + 1, max(1, last // 10)):
        axes.plot([rank, rank], [0, 0.25], color=INK, lw=1)
        axes.text(rank, 0.35, str(rank), ha="center", va="bottom", fontsize=8, color=FAINT)
    width = min(one.difference, last + room - 1)
    axes.plot([last + room - width, last + room], [1.35, 1.35], color=FAINT, lw=1.6)
    text = f"critical difference {one.difference:.2f} at {LEVEL:g}"
    axes.text(last + room, 1.5, text, ha="right", va="bottom", fontsize=8, color=FAINT)
    for at, (low, high) in enumerate(bars):
        axes.plot([low - 0.04, high + 0.04], [-0.45 - 0.6 * at] * 2, color=JOINT, lw=3, solid_capstyle="round")
    half = (len(labels) + 1) // 2  # the better half on the left
    for at, label in enumerate(labels):
        line = at if at < half else len(labels) - 1 - at
        y, rank, left = -0.9 - 0.6 * len(bars) - line, one.ranks[label], at < half
        edge = 1 - 0.06 * room if left else last + 0.06 * room
        axes.plot([rank, rank, edge], [0, y, y], color=INK, lw=0.9)
        name = label if len(label) <= LONGEST else label[: LONGEST - 1] + "…"
        number = f"{rank:.2f}"
        words = f"{name}  {number}" if left else f"{number}  {name}"
        place = edge - 0.03 * room if left else edge + 0.03 * room
        axes.text(place, y, words, ha="right" if left else "left", va="center", fontsize=8.5)
