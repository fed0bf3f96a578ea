"""Pieces of HTML. Every text that comes from data passes ``escape`` here or in ``charts``."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from equipoise.report.table import MISSING, Cell, ResultColumn, ResultTable

FIGURE_SPACE = "\N{FIGURE SPACE}"


def section(identity: str, title: str, *content: str) -> str:
    """A part of the page with its heading; nothing where there is no content."""
    inside = "".join(content)
    return (
        f'<section aria-labelledby="{identity}"><h2 id="{identity}">{escape(title)}</h2>{inside}</section>'
        if inside
        else ""
    )


def paragraph(text: str, style: str = "") -> str:
    """A paragraph of plain text."""
    return f'<p class="{style}">{escape(text)}</p>' if style else f"<p>{escape(text)}</p>"


def folded(summary: str, content: str) -> str:
    """Content that opens on demand."""
    return f"<details><summary>{escape(summary)}</summary>{content}</details>" if content else ""


def html_table(table: ResultTable, *, sortable: bool = False) -> str:
    """A table whose wide lines scroll in their own box; nothing where there are no columns."""
    if not table.columns:
        return ""
    head = "".join(f'<th scope="col"{_words(column)}>{_heading(column)}</th>' for column in table.columns)
    asides = [max(len(cells[at].aside) for cells in table.cells) for at in range(len(table.columns))]
    body = "".join(
        f'<tr><th scope="row">{escape(label)}</th>{"".join(map(_cell, table.columns, cells, asides))}</tr>'
        for label, cells in zip(table.labels, table.cells, strict=True)
    )
    notes = "".join(f"<li>{escape(note)}</li>" for note in table.notes)
    return _scrolling(
        table.title, f'<th scope="col"><span class="name">method</span></th>{head}', body, sortable=sortable
    ) + (f'<ul class="notes">{notes}</ul>' if notes else "")


def data_table(caption: str, head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A plain table: the text alternative of a figure, or a list of settings."""
    rows = [list(row) for row in rows]
    # A column of words is read from the left, one of numbers from the right.
    words = [any(row[at][:1].isalpha() for row in rows) for at in range(len(head))]
    styles = [' class="words"' if each else "" for each in words]
    top = "".join(f'<th scope="col"{style}>{escape(each)}</th>' for style, each in zip(styles, head, strict=True))
    body = "".join(
        f'<tr><th scope="row">{escape(first)}</th>'
        + "".join(f"<td{style}>{escape(each)}</td>" for style, each in zip(styles[1:], rest, strict=True))
        + "</tr>"
        for first, *rest in rows
    )
    return _scrolling(caption, top, body)


def figure(
    caption: str, charts: Sequence[str], legend: Sequence[tuple[str, str]] = (), data: str = "", *, pairs: bool = False
) -> str:
    """Charts side by side with one caption, one legend of (class, name), and their numbers as a table.

    Charts that come in ``pairs`` stand two in a row at most.
    """
    if not charts:
        return ""
    keys = "".join(f"<li>{swatch(style)}{escape(name)}</li>" for style, name in legend)
    legend_list = f'<ul class="legend">{keys}</ul>' if keys else ""
    side_by_side = f'<div class="charts{" pairs" if pairs else ""}">{"".join(charts)}</div>'
    as_table = folded("The same as a table", data)
    return f"<figure><figcaption>{escape(caption)}</figcaption>{legend_list}{side_by_side}{as_table}</figure>"


def swatch(style: str) -> str:
    """A short piece of a line in a series' colour and dashes; the name beside it says the rest."""
    bar = style.startswith("bar ")
    inside = '<rect class="{}" width="14" height="10" y="1"/>' if bar else '<path class="line {}" d="M0 6H26"/>'
    return (
        f'<svg class="swatch" width="{14 if bar else 26}" height="12" aria-hidden="true">{inside.format(style)}</svg>'
    )


def _scrolling(caption: str, head: str, body: str, *, sortable: bool = False) -> str:
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
    return f'<span class="name">{escape(title)}</span>{unit}'


def _words(column: ResultColumn) -> str:
    return ' class="words"' if column.kind == "words" else ""


def _cell(column: ResultColumn, cell: Cell, aside_width: int) -> str:
    if column.kind == "words":
        return f'<td class="words">{escape(cell.main)}</td>'
    main = escape(cell.main.replace("-", "−"))
    main = f"<strong>{main}</strong>" if cell.best else main
    main = f"<u>{main}</u>" if cell.fastest else main
    # Figure spaces are as wide as digits: numbers stand below one another, however wide their deviations are.
    aside = escape(cell.aside_in(aside_width, FIGURE_SPACE).replace("-", "−"))
    number = "" if cell.value is None else f' data-value="{cell.value!r}"'
    spoken = ' aria-label="missing"' if cell.main == MISSING else ""
    beside = f' <span class="aside">{aside}</span>' if aside_width else ""
    return f"<td{number}{spoken}>{main}{beside}</td>"
