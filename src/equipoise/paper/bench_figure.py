"""The figure of `equipoise bench`: what a step costs against the number of modalities."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from equipoise.paper.bench import Row
from equipoise.paper.bench_lines import BARE, JOINT, TORCHJD
from equipoise.report import drawing
from equipoise.report.drawing import FAINT, INK, MODALITIES

if TYPE_CHECKING:
    from matplotlib.axes import Axes

NAME = "bench"
OTHERS = "#c4ccd4"
LOOKS = {
    BARE: (FAINT, "s:"),
    JOINT: (INK, "o-"),
    "mimo": (drawing.JOINT, "o-"),
    "mgda": (MODALITIES[0], "o-"),
    "mgda-features": (MODALITIES[0], "^--"),
    "mmpareto": (MODALITIES[1], "o-"),
    "mmpareto-features": (MODALITIES[1], "^--"),
    TORCHJD: (MODALITIES[3], "x-"),
}


def draw(rows: Sequence[Row], folder: Path, made: str) -> list[Path]:
    """Milliseconds and ratios against K, one row of panels for each way that steps ran; nothing where K was not varied.

    Args:
        rows: Of any number of cases; the first encoder and batch size of which K was varied are drawn.
        folder: Where to.
        made: How it was made, the first sentence of the caption.
    """
    shown = _first_sweep(rows)
    if not shown:
        return []
    ways = list(dict.fromkeys(way for row in shown for way in row.whole))
    with drawing.style():
        figure = drawing.canvas(8.4, 3.4 * len(ways) + 0.6)
        grid = figure.subplots(len(ways), 2, squeeze=False, sharex=True)
        for way, (left, right) in zip(ways, grid, strict=True):
            _panel(left, shown, way, ratios=False)
            _panel(right, shown, way, ratios=True)
        for axes in grid[-1]:
            axes.set_xlabel("modalities K")
        handles = dict(zip(*reversed(grid[0][0].get_legend_handles_labels()), strict=True))
        figure.legend(handles.values(), handles.keys(), loc="outside upper left", ncols=5)
        return drawing.save(figure, folder, NAME, f"{made} {_caption(shown)}")


def _first_sweep(rows: Sequence[Row]) -> list[Row]:
    for first in rows:
        same = [row for row in rows if row.case._replace(modalities=0) == first.case._replace(modalities=0)]
        if len({row.case.modalities for row in same}) > 1:
            return same
    return []


def _panel(axes: Axes, rows: Sequence[Row], way: str, *, ratios: bool) -> None:
    counts = sorted({row.case.modalities for row in rows})
    for line in sorted(dict.fromkeys(row.line for row in rows), key=lambda line: line in LOOKS):
        own = sorted((row.case.modalities, row) for row in rows if row.line == line and way in row.whole)
        values = [(row.to_joint if ratios else row.whole)[way] for _, row in own]
        colour, look = LOOKS.get(line, (OTHERS, "-"))
        name = line if line in LOOKS else "other methods"
        width = 1.7 if line in LOOKS else 1.0
        axes.plot([count for count, _ in own], values, look, color=colour, lw=width, ms=4, label=name)
    axes.set_title(f"× joint training, {way}" if ratios else f"milliseconds per step, {way}")
    axes.set_xticks(counts)
    axes.set_xlim(counts[0] - 0.25, counts[-1] + 0.25)
    axes.set_ylim(bottom=0)
    axes.grid(axis="y", color="#d1d9e0", lw=0.6)


def _caption(rows: Sequence[Row]) -> str:
    first = rows[0].case
    return (
        f"Cost of a whole training step against the number of modalities: {first.encoder} encoders, batch "
        f"{first.batch}; medians over rounds that measure every line in turn. Left in milliseconds, right as the ratio "
        "to joint training (msl) of the same round."
    )
