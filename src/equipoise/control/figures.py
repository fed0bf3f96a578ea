"""Figures of the peg-in-hole study, as SVG files and as pieces of a page that follow its theme."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import partial
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from equipoise.control.cloning import SENSORS
from equipoise.control.film import FilmedEpisode
from equipoise.control.interventions import PHASES
from equipoise.control.lines import is_joint, joint_line, paired, success, success_rate, titled, tried
from equipoise.control.scene import CONTROL_STEP, FORCE_SAMPLES, JAM_FORCE
from equipoise.control.simulator import LIMIT
from equipoise.control.tables import swap
from equipoise.report import drawing
from equipoise.report.aggregate import RunGroup
from equipoise.report.drawing import FAINT, INK, LINE, MODALITIES

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BLUE, ORANGE = MODALITIES[:2]
VERDICTS = {
    "joint": (INK, "joint training"),
    "better": (BLUE, "clearly better than joint training"),
    "worse": (ORANGE, "clearly worse"),
    "unclear": (LINE, "no clear difference"),
}
"""Colour and name of how a line compares with joint training."""
ACROSS = 4  # panels in a row
SCALE = 1.2  # pixels of a page for a point of a figure
THEME = {"#ffffff": "paper", INK: "ink", FAINT: "quiet", LINE: "quiet", BLUE: "c0", ORANGE: "c1", "#d1d9e0": "rule"}
"""Variables of the page's style sheet for colours of a figure."""
GRID = "#d1d9e0"


class Drawn(NamedTuple):
    """A figure on disk.

    Args:
        path: Of the SVG file.
        title: Its name.
        caption: What is to be seen.
    """

    path: Path
    title: str
    caption: str


def draw_all(lines: Sequence[RunGroup], recordings: Sequence[FilmedEpisode], folder: Path) -> dict[str, Drawn]:
    """Draw every figure that there are numbers for, by name."""
    told = (
        " Colours tell how a line compares with joint training, by the paired interval."
        if any(map(is_joint, lines))
        else ""
    )
    clean = [one for one in recordings if one.condition == "clean"]
    swapped = [line for line in lines if _swaps(line).size]
    wanted: list[tuple[str, str, str, Callable[[], Figure] | None]] = [
        (
            "success",
            "Success by line and condition",
            f"Episodes that succeed, with 95 % intervals.{told}",
            partial(_draw_success, lines) if tried(lines) else None,
        ),
        (
            "swap",
            "Which sensor is followed in which phase",
            "How far the next action moves when one sensor is swapped for that of another episode, in one phase only "
            "(root mean square, in units of the action's deviation; mean over training seeds). 0: the sensor is not "
            "followed there.",
            partial(_draw_swaps, swapped) if swapped else None,
        ),
        (
            "force",
            "Force at the wrist",
            f"Size of the force at the wrist in clean episodes of the film. Broken line: {JAM_FORCE:g} N, the push to "
            "which a jam gives way if it lasts.",
            partial(_draw_forces, clean) if clean else None,
        ),
    ]
    drawn = {}
    for name, title, caption, draw in wanted:
        if draw is not None:
            with drawing.style():
                drawn[name] = Drawn(drawing.save_as(draw(), folder, f"control-{name}", "svg"), title, caption)
    return drawn


# -- success --


def _draw_success(lines: Sequence[RunGroup]) -> Figure:
    """Draw a panel per condition with a row per line."""
    conditions = tried(lines)
    across = min(ACROSS, len(conditions))
    down = -(-len(conditions) // across)
    figure = drawing.canvas(1.6 + 2.1 * across, 0.5 + down * (0.75 + 0.21 * len(lines)))
    grid = figure.subplots(down, across, squeeze=False, sharex=True, sharey=True)
    used = dict.fromkeys(name for place, one in enumerate(conditions) for name in _rates(grid.flat[place], one, lines))
    for axes in grid.flat[len(conditions) :]:
        axes.set_axis_off()
    for column in range(across):
        lowest = (len(conditions) - 1 - column) // across
        grid[lowest, column].set_xlabel("success (%)")
        grid[lowest, column].tick_params(labelbottom=True)
    order = [name for name in VERDICTS if name in used]
    dots = [figure.axes[0].plot([], [], "o", ms=5, color=VERDICTS[name][0])[0] for name in order]
    if "joint" in order:
        figure.legend(dots, [VERDICTS[name][1] for name in order], loc="outside upper left", ncols=len(order))
    return figure


def _rates(axes: Axes, condition: str, lines: Sequence[RunGroup]) -> list[str]:
    """Draw the rates of one condition; return the names of the colours that are used."""
    used = []
    for place, line in enumerate(lines):
        rate = success(line, condition)
        if rate is None:
            continue
        used.append(_verdict(line, lines, condition))
        colour = VERDICTS[used[-1]][0]
        if rate.low is not None and rate.high is not None:
            axes.plot([100 * rate.low, 100 * rate.high], [place, place], color=colour, lw=1.6, solid_capstyle="butt")
        axes.plot(100 * rate.mean, place, "o", ms=4.5, color=colour)
        if used[-1] == "joint":
            axes.axvline(100 * rate.mean, color=FAINT, lw=0.8, ls=":", zorder=0)
    axes.set(xlim=(-3, 103), xticks=[0, 25, 50, 75, 100], ylim=(len(lines) - 0.4, -0.6), title=titled(condition))
    axes.set_yticks(range(len(lines)), [line.label for line in lines], color=INK)
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="x", color=GRID, lw=0.6)
    axes.set_axisbelow(True)
    return used


def _verdict(line: RunGroup, lines: Sequence[RunGroup], condition: str) -> str:
    """Name how a line compares with joint training in a condition."""
    base, rate = joint_line(line, lines), partial(success_rate, condition)
    if base is None:
        return "joint" if is_joint(line) else "unclear"
    difference = paired(line, rate, base, rate)
    return difference.verdict if difference and difference.verdict in ("better", "worse") else "unclear"


# -- what sensors are followed for --


def _swaps(line: RunGroup) -> np.ndarray:
    """Return how far actions move, sensors × phases; NaN where it was not measured, empty where nothing was."""
    found = [[swap(line, sensor, phase) for phase in PHASES] for sensor in SENSORS]
    means = np.array([[np.nan if one is None else one.mean for one in row] for row in found])
    return means if np.isfinite(means).any() else np.zeros(0)


def _draw_swaps(lines: Sequence[RunGroup]) -> Figure:
    """Draw sensors × phases for each line, the darker the further the action moves."""
    every = [_swaps(line) for line in lines]
    most = max(float(np.nanmax(means)) for means in every) or 1.0
    across = min(ACROSS, len(lines))
    down = -(-len(lines) // across)
    figure = drawing.canvas(1.3 + 2.25 * across, 0.3 + 1.25 * down)
    grid = figure.subplots(down, across, squeeze=False, sharex=True, sharey=True)
    for axes, line, means in zip(grid.flat, lines, every, strict=False):
        for row, column in np.argwhere(np.isfinite(means)).tolist():
            value = float(means[row, column])
            look: Any = {"facecolor": BLUE, "alpha": 0.7 * value / most, "edgecolor": "none", "lw": 0}
            axes.fill(
                [column - 0.48, column + 0.48, column + 0.48, column - 0.48],
                [row - 0.46] * 2 + [row + 0.46] * 2,
                **look,
            )
            axes.text(column, row, f"{value:.2f}", ha="center", va="center", fontsize=8)
        axes.set(xlim=(-0.5, len(PHASES) - 0.5), ylim=(len(SENSORS) - 0.5, -0.5), title=line.label)
        axes.set_xticks(range(len(PHASES)), PHASES, fontsize=8)
        axes.set_yticks(range(len(SENSORS)), SENSORS, color=INK)
        axes.tick_params(length=0)
        axes.spines[:].set_visible(False)
    for axes in grid.flat[len(lines) :]:
        axes.set_axis_off()
    for column in range(across):
        grid[(len(lines) - 1 - column) // across, column].tick_params(labelbottom=True)
    return figure


# -- force --


def _draw_forces(recordings: Sequence[FilmedEpisode]) -> Figure:
    """Draw the force over time, one episode above the other."""
    figure = drawing.canvas(7.5, 0.5 + 1.35 * len(recordings))
    grid = figure.subplots(len(recordings), 1, squeeze=False, sharex=True, sharey=True)
    most = max(JAM_FORCE, *(float(one.force.max(initial=0)) for one in recordings))
    for axes, recording in zip(grid.flat, recordings, strict=True):
        time = (np.arange(len(recording.force)) + 1) * CONTROL_STEP / FORCE_SAMPLES
        colour = BLUE if recording.success else ORANGE
        axes.plot(time, recording.force, color=colour, lw=1)
        axes.axhline(JAM_FORCE, color=FAINT, lw=0.8, ls="--")
        ended = "the peg is in" if recording.success else "out of time"
        axes.axvline(recording.seconds, color=colour, lw=1, ls=":")
        about = f"{'a success' if recording.success else 'a failure'}: {ended} after {recording.seconds:.2f} s"
        axes.set(title=": ".join(filter(None, (recording.line, about))), ylabel="force (N)")
        axes.set(xlim=(0, LIMIT * CONTROL_STEP), ylim=(0, 1.08 * most))
        axes.grid(axis="y", color=GRID, lw=0.6)
        axes.set_axisbelow(True)
    grid[-1, 0].set_xlabel("time (s)")
    return figure


# -- into a page --


def inline(name: str, drawn: Drawn) -> str:
    """Return a figure as SVG inside a page: its colours follow the page's theme, its names are its own.

    A page that allows no style but its own refuses the style attributes that matplotlib writes; the same as
    presentation attributes are no style.
    """
    text = drawn.path.read_text(encoding="utf-8")
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>|<style.*?</style>|<!--.*?-->", "", text, flags=re.DOTALL)
    text = re.sub(r' style="([^"]*)"', _attributes, text)
    for colour, variable in THEME.items():
        text = text.replace(f'"{colour}"', f'"var(--{variable})"')
    text = re.sub(r'(\bid="|url\(#|xlink:href="#)', rf"\g<1>{name}-", text)
    width, height = (float(number) for number in re.findall(r' (?:width|height)="([\d.]+)pt"', text)[:2])
    head = (
        f'<svg width="{SCALE * width:.0f}" height="{SCALE * height:.0f}" viewBox="0 0 {width:g} {height:g}" role="img" '
        f'stroke-linejoin="round" aria-labelledby="{name}-t" aria-describedby="{name}-d">'
        f'<title id="{name}-t">{escape(drawn.title)}</title><desc id="{name}-d">{escape(drawn.caption)}</desc>'
    )
    return re.sub(r"<svg[^>]*>", lambda _: head, text, count=1)


def _attributes(style: re.Match[str]) -> str:
    pairs = (declaration.split(":", 1) for declaration in style[1].split(";") if ":" in declaration)
    return "".join(f' {key.strip()}="{value.strip()}"' for key, value in pairs)
