"""Pieces of the page: HTML tables and figures, SVG charts. Every text that comes from data passes ``escape`` here."""

import math
from collections.abc import Callable, Iterable, Sequence
from html import escape
from typing import NamedTuple

from equipoise.report.columns import MISSING, Cell, ResultColumn, aligned
from equipoise.report.differences import Difference
from equipoise.report.table import ResultTable

FIGURE_SPACE = "\N{FIGURE SPACE}"
# User units; a chart is drawn a little larger or smaller than this by the page.
WIDTH, HEIGHT = 340, 220
LEFT, RIGHT, TOP, BOTTOM = 46, 12, 28, 40
ROW = 24
LETTER, WIDE_LETTER = 7.0, 11.0  # at the size charts use, in the widest of the usual fonts
LONGEST_LABEL = 20
FEW = 8

Transform = Callable[[float], float]


def section(identity: str, title: str, *content: str) -> str:
    """Write a part of the page with its heading; nothing where there is no content."""
    inside, heading = "".join(content), f'<h2 id="{identity}">{escape(title)}</h2>'
    return f'<section aria-labelledby="{identity}">{heading}{inside}</section>' if inside else ""


def paragraph(text: str, style: str = "") -> str:
    """Write a paragraph of plain text; nothing where there is none."""
    opening = f'<p class="{style}">' if style else "<p>"
    return f"{opening}{escape(text)}</p>" if text else ""


def folded(summary: str, content: str) -> str:
    """Write content that opens on demand."""
    return f"<details><summary>{escape(summary)}</summary>{content}</details>" if content else ""


def html_table(table: ResultTable, *, sortable: bool = False) -> str:
    """Write a table whose wide lines scroll in their own box; nothing where there are no columns."""
    if not table.columns:
        return ""
    head = '<th scope="col"><span class="name">method</span></th>' + "".join(map(_heading, table.columns))
    # Figure spaces are as wide as digits: numbers are aligned, however wide their deviations are.
    asides = zip(*(aligned(cells, FIGURE_SPACE) for cells in zip(*table.cells, strict=True)), strict=True)
    body = "".join(
        f'<tr><th scope="row">{escape(label)}</th>{"".join(map(_cell, table.columns, cells, own))}</tr>'
        for label, cells, own in zip(table.labels, table.cells, asides, strict=True)
    )
    notes = "".join(f"<li>{escape(note)}</li>" for note in table.notes)
    return _scrolling(table.title, head, body, sortable) + (f'<ul class="notes">{notes}</ul>' if notes else "")


def data_table(caption: str, head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Write a plain table: the text alternative of a figure, or a list of settings."""
    rows = list(rows)
    # A column of words is read from the left, one of numbers from the right.
    styles = [_words(any(row[at][:1].isalpha() for row in rows)) for at in range(len(head))]
    top = "".join(f'<th scope="col"{style}>{escape(title)}</th>' for style, title in zip(styles, head, strict=True))
    body = "".join(
        f'<tr><th scope="row">{escape(row[0])}</th>'
        + "".join(f"<td{style}>{escape(text)}</td>" for style, text in zip(styles[1:], row[1:], strict=True))
        + "</tr>"
        for row in rows
    )
    return _scrolling(caption, top, body)


def figure(
    caption: str, charts: Sequence[str], legend: Sequence[tuple[str, str]] = (), data: str = "", *, pairs: bool = False
) -> str:
    """Write charts side by side with one caption, one legend of (class, name), and their numbers as a table.

    Charts that come in ``pairs`` stand two in a row at most.
    """
    if not charts:
        return ""
    keys = "".join(f"<li>{_swatch(style)}{escape(name)}</li>" for style, name in legend)
    legend_list = f'<ul class="legend">{keys}</ul>' if keys else ""
    side_by_side = f'<div class="charts{" pairs" if pairs else ""}">{"".join(charts)}</div>'
    as_table = folded("The same as a table", data)
    return f"<figure><figcaption>{escape(caption)}</figcaption>{legend_list}{side_by_side}{as_table}</figure>"


def _swatch(style: str) -> str:
    """Draw a short piece of a line in a series' colour and dashes; the name beside it says the rest."""
    width, shape = 26, f'<path class="line {style}" d="M0 6H26"/>'
    if style.startswith("bar "):
        width, shape = 14, f'<rect class="{style}" width="14" height="10" y="1"/>'
    return f'<svg class="swatch" width="{width}" height="12" aria-hidden="true">{shape}</svg>'


def _scrolling(caption: str, head: str, body: str, sortable: bool = False) -> str:
    # A box that scrolls has to be reachable by keyboard, and then needs a name.
    return (
        f'<div class="scroll" role="region" tabindex="0" aria-label="{escape(caption)}">'
        f"<table{' data-sortable' if sortable else ''}><caption><span>{escape(caption)}</span></caption>"
        f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def _heading(column: ResultColumn) -> str:
    unit = f' <span class="unit">({escape(column.unit)})</span>' if column.unit else ""
    # A short title is not worth two lines.
    title = column.title.replace(" ", "\N{NO-BREAK SPACE}") if len(column.title) <= 12 else column.title
    return f'<th scope="col"{_words(column.kind == "words")}><span class="name">{escape(title)}</span>{unit}</th>'


def _words(holds: bool) -> str:
    return ' class="words"' if holds else ""


def _cell(column: ResultColumn, cell: Cell, aside: str) -> str:
    if column.kind == "words":
        return f'<td class="words">{escape(cell.main)}</td>'
    main = escape(cell.main.replace("-", "−"))
    main = f"<strong>{main}</strong>" if cell.best else main
    main = f"<u>{main}</u>" if cell.fastest else main
    aside = escape(aside.replace("-", "−"))
    value = "" if cell.value is None else f' data-value="{cell.value!r}"'
    spoken = ' aria-label="missing"' if cell.main == MISSING else ""
    return f"<td{value}{spoken}>{main}" + (f' <span class="aside">{aside}</span></td>' if aside else "</td>")


# -- charts; colours come from the page's style sheet --


class Series(NamedTuple):
    """One line of a chart.

    Args:
        name: Its name.
        style: Class that gives it colour and dashes: ``ink`` or ``s0`` to ``s7``.
        points: Its (x, y).
        band: (x, low, high) around it; empty for none.
    """

    name: str
    style: str
    points: Sequence[tuple[float, float]]
    band: Sequence[tuple[float, float, float]] = ()


class Bar(NamedTuple):
    """One row of a bar chart.

    Args:
        label: Its name.
        parts: The class and length of each part.
        end: The text at its end.
    """

    label: str
    parts: Sequence[tuple[str, float]]
    end: str


class Axis(NamedTuple):
    """An axis of a chart.

    Args:
        title: Its name with unit.
        low: Its lower end.
        high: Its upper end.
    """

    title: str
    low: float
    high: float

    def ticks(self, about: int) -> list[float]:
        """Return round numbers inside the axis, about so many."""
        span = self.high - self.low
        if span <= 0:
            return [self.low]  # a single epoch
        step = 10 ** math.floor(math.log10(span / about))
        step = next(step * factor for factor in (1, 2, 5, 10, 20) if span / (step * factor) <= about)
        first = math.ceil(self.low / step - 1e-9)
        return [count * step for count in range(first, math.floor(self.high / step + 1e-9) + 1)]

    def onto(self, start: float, end: float) -> Transform:
        """Return the function from values to places between two ends."""
        return lambda value: start + (value - self.low) / (self.high - self.low or 1.0) * (end - start)


def axis(title: str, values: Sequence[float], *, include: Sequence[float] = ()) -> Axis:
    """Build an axis that holds these values with a little room."""
    low, high = min([*values, *include]), max([*values, *include])
    room = 0.05 * (high - low) or 0.05 * abs(high) or 1.0
    # No room beyond what has to be included: zero is where bars and levels start.
    return Axis(title, low if low in include else low - room, high if high in include else high + room)


def line_chart(identity: str, title: str, description: str, x: Axis, y: Axis, series: Sequence[Series]) -> str:
    """Draw lines with bands over a common axis."""
    across, up = x.onto(LEFT, WIDTH - RIGHT), y.onto(HEIGHT - BOTTOM, TOP)

    def path(points: Sequence[tuple[float, float]]) -> str:
        return "L".join(f"{across(at):.1f} {up(value):.1f}" for at, value in points)

    parts = [_y_axis(y, up), _x_axis(x, across, HEIGHT - BOTTOM, HEIGHT)]
    for _, style, _, band in series:
        if band:
            rim = [(at, high) for at, _, high in band] + [(at, low) for at, low, _ in reversed(band)]
            parts.append(f'<path class="band {style}" d="M{path(rim)}Z"/>')
    for name, style, points, _ in series:
        if len(points) > 1:
            line = f'<path class="line {style}" d="M{path(points)}">'
            parts.append(f"{line}<title>{escape(name)}</title></path>")
        # Few points are measurements one by one: show where they are.
        for at, value in points if len(points) <= FEW else ():
            radius = 2 if len(points) > 1 else 3
            parts.append(f'<circle class="dot {style}" cx="{across(at):.1f}" cy="{up(value):.1f}" r="{radius}"/>')
    return _svg(identity, title, description, HEIGHT, parts)


def dot_plot(
    identity: str, title: str, description: str, x: Axis, differences: Sequence[Difference], scale: float = 100.0
) -> str:
    """Draw a difference, times a scale, and its interval per row, against a line at zero."""
    left, bottom = _label_width([difference.label for difference in differences]), TOP + ROW * len(differences)
    across = x.onto(left, WIDTH - RIGHT)
    parts = [_x_axis(x, across, bottom, bottom + BOTTOM, grid_from=TOP)]
    parts.append(f'<path class="zero" d="M{across(0):.1f} {TOP}V{bottom}"/>')
    for row, difference in enumerate(differences):
        middle = TOP + ROW * (row + 0.5)
        parts.append(_row_label(difference.label, left, middle))
        style = "s0" if difference.verdict in ("better", "worse") else "quiet"
        if difference.low is not None and difference.high is not None:
            low, high = across(scale * difference.low), across(scale * difference.high)
            parts.append(f'<path class="line {style} solid" d="M{low:.1f} {middle:.1f}H{high:.1f}"/>')
        mean = across(scale * difference.mean)
        parts.append(f'<circle class="dot {style}" cx="{mean:.1f}" cy="{middle:.1f}" r="4"/>')
    return _svg(identity, title, description, bottom + BOTTOM, parts)


def bar_chart(identity: str, title: str, description: str, x: Axis, bars: Sequence[Bar]) -> str:
    """Draw stacked horizontal bars, one per row."""
    left, bottom = _label_width([bar.label for bar in bars]), TOP + ROW * len(bars)
    across = x.onto(left, WIDTH - 10 - max(_width(bar.end) for bar in bars))
    parts = [_x_axis(x, across, bottom, bottom + BOTTOM, grid_from=TOP)]
    for row, bar in enumerate(bars):
        top, height, start = TOP + ROW * row + 5, ROW - 10, 0.0
        parts.append(_row_label(bar.label, left, top + height / 2))
        for style, length in bar.parts:
            at, width = across(start), across(start + length) - across(start)
            parts.append(f'<rect class="bar {style}" x="{at:.1f}" y="{top}" width="{width:.1f}" height="{height}"/>')
            start += length
        parts.append(f'<text x="{across(start) + 6:.1f}" y="{top + ROW / 2 - 1:.1f}">{escape(bar.end)}</text>')
    return _svg(identity, title, description, bottom + BOTTOM, parts)


# -- parts of charts --


def _svg(identity: str, title: str, description: str, height: float, parts: Sequence[str]) -> str:
    return (
        f'<svg role="img" viewBox="0 0 {WIDTH} {height:g}" aria-labelledby="{identity}-t" '
        f'aria-describedby="{identity}-d"><title id="{identity}-t">{escape(title)}</title>'
        f'<desc id="{identity}-d">{escape(description)}</desc>'
        f'<text class="title" x="0" y="14" aria-hidden="true">{escape(_shortened(title, 46))}</text>'
        f"{''.join(parts)}</svg>"
    )


def _x_axis(x: Axis, across: Transform, bottom: float, lowest: float, grid_from: float | None = None) -> str:
    marks, ticks = [f'<path class="rule" d="M{across(x.low):.1f} {bottom}H{across(x.high):.1f}"/>'], x.ticks(6)
    for tick in ticks:
        at = across(tick)
        marks.append(f'<path class="grid" d="M{at:.1f} {grid_from or bottom}V{bottom + 4}"/>')
        marks.append(f'<text class="middle" x="{at:.1f}" y="{bottom + 16}">{_tick(tick, ticks)}</text>')
    middle = (across(x.low) + across(x.high)) / 2
    return "".join(marks) + f'<text class="axis middle" x="{middle:.1f}" y="{lowest - 6}">{escape(x.title)}</text>'


def _y_axis(y: Axis, up: Transform) -> str:
    marks, ticks = [], y.ticks(5)
    for tick in ticks:
        at = up(tick)
        marks.append(f'<path class="grid" d="M{LEFT} {at:.1f}H{WIDTH - RIGHT}"/>')
        marks.append(f'<text class="end" x="{LEFT - 6}" y="{at + 4:.1f}">{_tick(tick, ticks)}</text>')
    middle = (up(y.low) + up(y.high)) / 2
    turned = f'transform="rotate(-90 10 {middle:.1f})"'
    return "".join(marks) + f'<text class="axis middle" x="10" y="{middle:.1f}" {turned}>{escape(y.title)}</text>'


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
