"""Pieces of HTML. Every text that comes from data passes ``escape`` here or in ``charts``."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from equipoise.report.table import MISSING, Cell, ResultColumn, ResultTable

FIGURE_SPACE = "\N{FIGURE SPACE}"


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
    asides = [max(len(cells[at].aside) for cells in table.cells) for at in range(len(table.columns))]
    body = "".join(
        f'<tr><th scope="row">{escape(label)}</th>{"".join(map(_cell, table.columns, cells, asides))}</tr>'
        for label, cells in zip(table.labels, table.cells, strict=True)
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


def _cell(column: ResultColumn, cell: Cell, aside_width: int) -> str:
    if column.kind == "words":
        return f'<td class="words">{escape(cell.main)}</td>'
    main = escape(cell.main.replace("-", "−"))
    main = f"<strong>{main}</strong>" if cell.best else main
    main = f"<u>{main}</u>" if cell.fastest else main
    # Figure spaces are as wide as digits: numbers are aligned, however wide their deviations are.
    aside = escape(cell.aside_in(aside_width, FIGURE_SPACE).replace("-", "−"))
    value = "" if cell.value is None else f' data-value="{cell.value!r}"'
    spoken = ' aria-label="missing"' if cell.main == MISSING else ""
    return f"<td{value}{spoken}>{main}" + (f' <span class="aside">{aside}</span></td>' if aside_width else "</td>")
