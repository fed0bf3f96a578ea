"""Charts as SVG text: lines, dots with intervals, stacked bars. Colours come from the page's style sheet."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from typing import final

# User units; a chart is drawn a little larger or smaller than this by the page.
WIDTH, HEIGHT = 340, 220
LEFT, RIGHT, TOP, BOTTOM = 46, 12, 28, 40
ROW = 24
LETTER, WIDE_LETTER = 7.0, 11.0  # at the size charts use, in the widest of the usual fonts
LONGEST_LABEL = 20
FEW = 8

Scale = Callable[[float], float]


@final
@dataclass(frozen=True)
class Series:
    """One line of a chart.

    Args:
        name: What it shows.
        style: Class that gives it colour and dashes: ``ink`` or ``s0`` to ``s7``.
        points: Its (x, y).
        band: (x, low, high) around it; empty for none.
    """

    name: str
    style: str
    points: Sequence[tuple[float, float]]
    band: Sequence[tuple[float, float, float]] = ()


@final
@dataclass(frozen=True)
class Axis:
    """What an axis shows and from where to where.

    Args:
        title: Its name with unit.
        low: Its lower end.
        high: Its upper end.
    """

    title: str
    low: float
    high: float

    def ticks(self, about: int) -> list[float]:
        """Round numbers inside the axis, about so many."""
        span = self.high - self.low
        if span <= 0:
            return [self.low]  # a single epoch
        step = 10 ** math.floor(math.log10(span / about))
        step = next(step * factor for factor in (1, 2, 5, 10, 20) if span / (step * factor) <= about)
        first = math.ceil(self.low / step - 1e-9)
        return [count * step for count in range(first, math.floor(self.high / step + 1e-9) + 1)]


def axis(title: str, values: Sequence[float], *, include: Sequence[float] = ()) -> Axis:
    """An axis that holds these values with a little room."""
    low, high = min([*values, *include]), max([*values, *include])
    room = 0.05 * (high - low) or 0.05 * abs(high) or 1.0
    # No room beyond what has to be included: zero is where bars and levels start.
    return Axis(title, low if low in include else low - room, high if high in include else high + room)


def line_chart(identity: str, title: str, description: str, x: Axis, y: Axis, series: Sequence[Series]) -> str:
    """Lines with bands over a common axis."""
    across, up = _scale(x, LEFT, WIDTH - RIGHT), _scale(y, HEIGHT - BOTTOM, TOP)
    parts = [_y_axis(y, up), _x_axis(x, across, HEIGHT - BOTTOM, HEIGHT)]
    for each in series:
        if each.band:
            rim = [(at, high) for at, _, high in each.band] + [(at, low) for at, low, _ in reversed(each.band)]
            parts.append(f'<path class="band {each.style}" d="M{_path(rim, across, up)}Z"/>')
    for each in series:
        if len(each.points) == 1:
            (at, value) = each.points[0]
            parts.append(f'<circle class="dot {each.style}" cx="{across(at):.1f}" cy="{up(value):.1f}" r="3"/>')
        elif each.points:
            path = f'<path class="line {each.style}" d="M{_path(each.points, across, up)}">'
            parts.append(f"{path}<title>{escape(each.name)}</title></path>")
            # Few points are measurements one by one: show where they are.
            for at, value in each.points if len(each.points) <= FEW else ():
                parts.append(f'<circle class="dot {each.style}" cx="{across(at):.1f}" cy="{up(value):.1f}" r="2"/>')
    return _svg(identity, title, description, HEIGHT, parts)


@final
@dataclass(frozen=True)
class Dot:
    """One row of a dot plot: a mean with its interval."""

    label: str
    mean: float
    low: float | None
    high: float | None


def dot_plot(identity: str, title: str, description: str, x: Axis, dots: Sequence[Dot]) -> str:
    """A mean and its interval per row, against a line at zero."""
    left = _label_width([dot.label for dot in dots])
    bottom = TOP + ROW * len(dots)
    across = _scale(x, left, WIDTH - RIGHT)
    parts = [_x_axis(x, across, bottom, bottom + BOTTOM, grid_from=TOP)]
    parts.append(f'<path class="zero" d="M{across(0):.1f} {TOP}V{bottom}"/>')
    for row, dot in enumerate(dots):
        middle = TOP + ROW * (row + 0.5)
        parts.append(_row_label(dot.label, left, middle))
        clear = dot.low is not None and dot.high is not None and (dot.low > 0 or dot.high < 0)
        style = "s0" if clear else "quiet"
        if dot.low is not None and dot.high is not None:
            parts.append(
                f'<path class="line {style} solid" d="M{across(dot.low):.1f} {middle:.1f}H{across(dot.high):.1f}"/>'
            )
        parts.append(f'<circle class="dot {style}" cx="{across(dot.mean):.1f}" cy="{middle:.1f}" r="4"/>')
    return _svg(identity, title, description, bottom + BOTTOM, parts)


@final
@dataclass(frozen=True)
class Bar:
    """One row of a bar chart: parts, each with its class and length, and what is written at the end."""

    label: str
    parts: Sequence[tuple[str, float]]
    end: str


def bar_chart(identity: str, title: str, description: str, x: Axis, bars: Sequence[Bar]) -> str:
    """Stacked horizontal bars, one per row."""
    left = _label_width([bar.label for bar in bars])
    room = 10 + max(_width(bar.end) for bar in bars)
    bottom = TOP + ROW * len(bars)
    across = _scale(x, left, WIDTH - room)
    parts = [_x_axis(x, across, bottom, bottom + BOTTOM, grid_from=TOP)]
    for row, bar in enumerate(bars):
        top = TOP + ROW * row + 5
        parts.append(_row_label(bar.label, left, top + (ROW - 10) / 2))
        start = 0.0
        for style, length in bar.parts:
            width = across(start + length) - across(start)
            parts.append(
                f'<rect class="bar {style}" x="{across(start):.1f}" y="{top}" width="{width:.1f}" height="{ROW - 10}"/>'
            )
            start += length
        parts.append(f'<text x="{across(start) + 6:.1f}" y="{top + ROW / 2 - 1:.1f}">{escape(bar.end)}</text>')
    return _svg(identity, title, description, bottom + BOTTOM, parts)


# -- what charts are made of --


def _svg(identity: str, title: str, description: str, height: float, parts: Sequence[str]) -> str:
    return (
        f'<svg role="img" viewBox="0 0 {WIDTH} {height:g}" aria-labelledby="{identity}-t" '
        f'aria-describedby="{identity}-d"><title id="{identity}-t">{escape(title)}</title>'
        f'<desc id="{identity}-d">{escape(description)}</desc>'
        f'<text class="title" x="0" y="14" aria-hidden="true">{escape(_shortened(title, 46))}</text>'
        f"{''.join(parts)}</svg>"
    )


def _scale(of: Axis, start: float, end: float) -> Scale:
    return lambda value: start + (value - of.low) / (of.high - of.low or 1.0) * (end - start)


def _x_axis(x: Axis, across: Scale, bottom: float, lowest: float, grid_from: float | None = None) -> str:
    marks, ticks = [], x.ticks(6)
    for tick in ticks:
        at = across(tick)
        marks.append(f'<path class="grid" d="M{at:.1f} {grid_from or bottom}V{bottom + 4}"/>')
        marks.append(f'<text class="middle" x="{at:.1f}" y="{bottom + 16}">{_tick(tick, ticks)}</text>')
    middle = (across(x.low) + across(x.high)) / 2
    name = f'<text class="axis middle" x="{middle:.1f}" y="{lowest - 6}">{escape(x.title)}</text>'
    return f'<path class="rule" d="M{across(x.low):.1f} {bottom}H{across(x.high):.1f}"/>' + "".join(marks) + name


def _y_axis(y: Axis, up: Scale) -> str:
    marks, ticks = [], y.ticks(5)
    for tick in ticks:
        at = up(tick)
        marks.append(f'<path class="grid" d="M{LEFT} {at:.1f}H{WIDTH - RIGHT}"/>')
        marks.append(f'<text class="end" x="{LEFT - 6}" y="{at + 4:.1f}">{_tick(tick, ticks)}</text>')
    middle = (up(y.low) + up(y.high)) / 2
    turned = f'transform="rotate(-90 10 {middle:.1f})"'
    return "".join(marks) + f'<text class="axis middle" x="10" y="{middle:.1f}" {turned}>{escape(y.title)}</text>'


def _path(points: Sequence[tuple[float, float]], across: Scale, up: Scale) -> str:
    return "L".join(f"{across(at):.1f} {up(value):.1f}" for at, value in points)


def _tick(value: float, ticks: Sequence[float]) -> str:
    step = abs(ticks[1] - ticks[0]) if len(ticks) > 1 else abs(value) or 1.0
    decimals = max(0, -math.floor(math.log10(step) + 1e-9))
    return f"{value:.{decimals}f}".replace("-", "−")


def _label_width(labels: Sequence[str]) -> float:
    return 8 + max(_width(_shortened(label, LONGEST_LABEL)) for label in labels)


def _width(text: str) -> float:
    return sum(WIDE_LETTER if letter in "mwMW@%…" or ord(letter) > 0x2E80 else LETTER for letter in text)


def _row_label(label: str, left: float, middle: float) -> str:
    text = escape(_shortened(label, LONGEST_LABEL))
    return f'<text class="end" x="{left - 8:.1f}" y="{middle + 4:.1f}">{text}<title>{escape(label)}</title></text>'


def _shortened(text: str, longest: int) -> str:
    return text if len(text) <= longest else text[: longest - 1] + "…"
