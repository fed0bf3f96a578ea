"""A table in the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from equipoise.report.table import Cell, ResultColumn, ResultTable

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table as RichTable
    from rich.text import Text

_LABEL_WIDTH = 28
_GAP = 2  # between columns: one space, and the place of a rule that is not drawn


def print_table(table: ResultTable, console: Console | None = None) -> None:
    """Print a table with rich: best bold, fastest of the three best underlined, notes below.

    Columns that do not fit the width go into further blocks below, each with the labels again, so that numbers are
    never cut.

    Args:
        table: What to print.
        console: Where; None is the standard output.
    """
    try:
        from rich.console import Console
    except ImportError as error:
        msg = "a table in the terminal needs rich, which is not installed. Type: pip install rich"
        raise ImportError(msg) from error
    console = console or Console()
    # Text objects throughout: a label may hold square brackets, which rich would take for its own mark-up.
    console.print(_text(table.title, "bold"))
    for columns in _blocks(table, console.width):
        console.print(_block(table, columns))
        console.print()
    for note in table.notes:
        console.print(_text(note, "dim"))


def _blocks(table: ResultTable, width: int) -> list[list[int]]:
    """Columns by number, in as few blocks as the width allows, and then in blocks as narrow as these can be."""
    label = min(_LABEL_WIDTH, max(len(label) for label in ("method", *table.labels))) + _GAP
    needed = [max(map(len, _texts(table, at, column))) + _GAP for at, column in enumerate(table.columns)]
    fewest = _packed(label, needed, width)
    while len(narrower := _packed(label, needed, width - 1)) == len(fewest) > 1 and width > 1:
        fewest, width = narrower, width - 1
    return fewest


def _packed(label: int, needed: Sequence[int], width: int) -> list[list[int]]:
    blocks: list[list[int]] = [[]]
    used = label
    for at, own in enumerate(needed):
        if blocks[-1] and used + own > width:
            blocks.append([])
            used = label
        blocks[-1].append(at)
        used += own
    return blocks


def _texts(table: ResultTable, at: int, column: ResultColumn) -> list[str]:
    mains, asides = ([getattr(cells[at], part) for cells in table.cells] for part in ("main", "aside"))
    widest = max(mains, key=len) + " " + max(asides, key=len)
    return [column.title, column.unit, widest.strip()]


def _block(table: ResultTable, columns: Sequence[int]) -> RichTable:
    from rich import box
    from rich.table import Table as RichTable

    block = RichTable(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False)
    block.add_column(_text("method"), max_width=_LABEL_WIDTH, overflow="fold")
    asides = {at: max(len(cells[at].aside) for cells in table.cells) for at in columns}
    for at in columns:
        column = table.columns[at]
        heading = _text(column.title).append(f"\n{column.unit}", style="dim")
        block.add_column(heading, justify="left" if column.kind == "words" else "right", no_wrap=True)
    for label, cells in zip(table.labels, table.cells, strict=True):
        block.add_row(_text(label), *(_cell(cells[at], asides[at]) for at in columns))
    return block


def _cell(cell: Cell, aside_width: int) -> Text:
    """A cell whose numbers stand below one another, however wide their deviations are."""
    style = " ".join(name for name, wanted in (("bold", cell.best), ("underline", cell.fastest)) if wanted)
    text = _text(cell.main, style)
    return text.append(f" {cell.aside_in(aside_width)}", style="dim") if aside_width else text


def _text(text: str, style: str = "") -> Text:
    from rich.text import Text

    # The style as a span, not as the base: what is appended later shall not inherit it.
    return Text().append(text, style=style)
