"""Tables as text: markdown, LaTeX, csv, JSON, and printed in the terminal."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from equipoise.report.columns import MISSING, Cell, ResultColumn, aligned
from equipoise.report.table import ResultTable
from equipoise.util.extras import needs
from equipoise.util.files import csv_cell

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

_ENDS = ("mean", "low", "high")
_NUMBERS = {"mean": ("mean", "std"), "difference": _ENDS, "interval": _ENDS, "words": ()}  # of a column's cells
_LATEX = str.maketrans(
    {
        "\\": r"\textbackslash{}",
        "~": r"\textasciitilde{}",
        "^": r"\textasciicircum{}",
        "±": r"$\pm$",
        "×": r"$\times$",
        "–": "--",
        "<": r"\textless{}",
        ">": r"\textgreater{}",
        **{letter: f"\\{letter}" for letter in "&%$#_{}"},
    }
)
_LABEL_WIDTH = 28
_GAP = 2  # between columns: one space, and the place of a rule that is not drawn

Tables = Mapping[str, ResultTable]
"""Tables by the name of their data."""


def as_markdown(table: ResultTable) -> str:
    """Write a table in markdown, best bold, fastest of the three best underlined."""
    lines = [
        ["method", *(_markdown_text(column.heading) for column in table.columns)],
        ["---", *("---" if column.kind == "words" else "---:" for column in table.columns)],
        *([_markdown_text(label), *map(_markdown_cell, cells)] for label, cells in _lines(table)),
    ]
    notes = (f"- {_markdown_text(note)}" for note in table.notes)
    rows = (f"| {' | '.join(cells)} |" for cells in lines)
    return "\n".join([f"**{_markdown_text(table.title)}**", "", *rows, "", *notes, ""])


def as_latex(table: ResultTable) -> str:
    """Write a table in LaTeX for ``booktabs``, as the paper prints it."""
    alignment = "l" + "".join("l" if column.kind == "words" else "r" for column in table.columns)
    notes = ["% needs \\usepackage{booktabs}", *(f"% {note}" for note in table.notes)]
    lines = [["Method", *map(_latex_heading, table.columns)]]
    lines += [[label.translate(_LATEX), *map(_latex_cell, table.columns, cells)] for label, cells in _lines(table)]
    head, *body = (" & ".join(cells) + r" \\" for cells in lines)
    rules = [f"\\begin{{tabular}}{{{alignment}}}", "\\toprule", head, "\\midrule", *body, "\\bottomrule"]
    return "\n".join([*notes, *rules, "\\end{tabular}", ""])


def as_csv(table: ResultTable) -> str:
    """Write the raw numbers with all their digits; what is missing is empty."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    names = [[column.key, *(f"{column.key}_{name}" for name in _NUMBERS[column.kind][1:])] for column in table.columns]
    writer.writerow(["label", *(csv_cell(name) for some in names for name in some)])
    for label, cells in _lines(table):
        values = [value for column, cell in zip(table.columns, cells, strict=True) for value in _raw(column, cell)]
        writer.writerow(map(csv_cell, (label, *values)))
    return out.getvalue()


def as_dict(table: ResultTable) -> dict[str, Any]:
    """Return a table as plain dictionaries and lists."""
    columns = [{"key": column.key, "title": column.title, "unit": column.unit} for column in table.columns]
    keys = [column.key for column in table.columns]
    lines = [
        {"label": label, **dict(zip(keys, map(_json_cell, table.columns, cells), strict=True))}
        for label, cells in _lines(table)
    ]
    return {"title": table.title, "columns": columns, "lines": lines, "notes": list(table.notes)}


def as_json(table: ResultTable) -> str:
    """Write a table as JSON, raw numbers with all their digits."""
    return _json(as_dict(table))


def _json(content: Any) -> str:
    return json.dumps(content, ensure_ascii=False, allow_nan=False, indent=2)


def _joined_csv(tables: Tables) -> str:
    """One csv with the name of the data in front; a column that only one data set has is empty for the others."""
    rows = [
        {"data": csv_cell(data), **row}
        for data, table in tables.items()
        for row in csv.DictReader(io.StringIO(as_csv(table)))
    ]
    out = io.StringIO()
    names = list(dict.fromkeys(name for row in rows for name in row))
    writer = csv.DictWriter(out, names, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue()


FORMATS: dict[str, tuple[Callable[[ResultTable], str], Callable[[Tables], str]]] = {
    "markdown": (as_markdown, lambda tables: "\n".join(map(as_markdown, tables.values()))),
    "latex": (as_latex, lambda tables: "\n".join(f"% {table.title}\n{as_latex(table)}" for table in tables.values())),
    "csv": (as_csv, _joined_csv),
    "json": (as_json, lambda tables: _json([{"data": data, **as_dict(table)} for data, table in tables.items()])),
}
"""The functions that write one table, and several in one text."""


def render(form: str, tables: Tables) -> str:
    """Write all tables in one of the formats.

    Args:
        form: A key of `FORMATS`.
        tables: One or several, by the name of their data.
    """
    one, several = FORMATS[form]
    return one(*tables.values()) if len(tables) == 1 else several(tables)


def text_table(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Align rows of cells in columns, below their titles.

    Example:
        >>> list(text_table(["λ", "gap"], [["10", "0.5"], ["100", "0.05"]]))
        ['  λ    gap', '  10   0.5', '  100  0.05']
    """
    widths = [max(map(len, column)) for column in zip(titles, *rows, strict=True)]
    for row in [titles, *rows]:
        yield "  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()


# -- cells --


def _lines(table: ResultTable) -> zip[tuple[str, tuple[Cell, ...]]]:
    return zip(table.labels, table.cells, strict=True)


def _markdown_text(text: str) -> str:
    """Escape what markdown, or the HTML it may hold, would interpret."""
    text = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return re.sub(r"([\\`*_\[\]|~#])", r"\\\1", text)


def _markdown_cell(cell: Cell) -> str:
    main = _markdown_text(cell.main)
    main = f"**{main}**" if cell.best else main
    main = f"<u>{main}</u>" if cell.fastest else main
    return f"{main} {_markdown_text(cell.aside)}" if cell.aside else main


def _latex_heading(column: ResultColumn) -> str:
    unit = f" {{\\tiny ({column.unit.translate(_LATEX)})}}" if column.unit else ""
    return column.title.translate(_LATEX) + unit


def _latex_cell(column: ResultColumn, cell: Cell) -> str:
    if column.kind == "words" or cell.main == MISSING:
        return cell.main.translate(_LATEX)
    # A minus sign is one in mathematics only; in text it is a hyphen.
    main = f"${cell.main}$" if column.kind == "difference" else cell.main
    main = f"\\textbf{{{main}}}" if cell.best else main
    main = f"\\underline{{{main}}}" if cell.fastest else main
    aside = cell.aside.replace("±", "\\pm")
    return f"{main}{{\\tiny ${aside}$}}" if aside else main


def _raw(column: ResultColumn, cell: Cell) -> tuple[float | str | None, ...]:
    if column.kind == "words":
        return (None if cell.main == MISSING else cell.main,)
    return cell.raw or (None,) * len(_NUMBERS[column.kind])


def _json_cell(column: ResultColumn, cell: Cell) -> Any:
    if column.kind == "words":
        return _raw(column, cell)[0]
    doubt = {"trusted": False} if cell.doubted else {}
    return {**dict(zip(_NUMBERS[column.kind], cell.raw, strict=True)), **doubt} if cell.raw else None


# -- terminal --


def print_table(table: ResultTable, console: Console | None = None) -> None:
    """Print a table with rich: best bold, fastest of the three best underlined, notes below.

    Columns that do not fit the width go into further blocks below, each with the labels again, so that numbers are
    never cut.

    Args:
        table: The table to print.
        console: None is the standard output.
    """
    with needs("a table in the terminal", "train"):
        from rich import box
        from rich.console import Console
        from rich.table import Table
    console = console or Console()
    # Text objects throughout: a label may hold square brackets, which rich would take for its own mark-up.
    console.print(_text(table.title, "bold"))
    asides = [aligned(cells) for cells in zip(*table.cells, strict=True)]
    for block in _blocks(table, console.width):
        shown = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False)
        shown.add_column(_text("method"), max_width=_LABEL_WIDTH, overflow="fold")
        for at in block:
            column = table.columns[at]
            heading = _text(column.title).append(f"\n{column.unit}", style="dim")
            shown.add_column(heading, justify="left" if column.kind == "words" else "right", no_wrap=True)
        for line, (label, cells) in enumerate(_lines(table)):
            shown.add_row(_text(label), *(_terminal_cell(cells[at], asides[at][line]) for at in block))
        console.print(shown)
        console.print()
    for note in table.notes:
        console.print(_text(note, "dim"))


def _blocks(table: ResultTable, width: int) -> list[list[int]]:
    """Divide the columns into as few blocks as the width allows, and then into blocks as narrow as these can be."""
    label = min(_LABEL_WIDTH, max(len(label) for label in ("method", *table.labels))) + _GAP
    widths = []
    for at, column in enumerate(table.columns):
        mains, asides = (
            max(map(len, texts))
            for texts in ((cells[at].main for cells in table.cells), aligned([cells[at] for cells in table.cells]))
        )
        widths.append(max(len(column.title), len(column.unit), mains + (1 + asides if asides else 0)) + _GAP)
    fewest = _packed(label, widths, width)
    while len(narrower := _packed(label, widths, width - 1)) == len(fewest) > 1 and width > 1:
        fewest, width = narrower, width - 1
    return fewest


def _packed(label: int, widths: Sequence[int], width: int) -> list[list[int]]:
    blocks: list[list[int]] = [[]]
    used = label
    for at, own in enumerate(widths):
        if blocks[-1] and used + own > width:
            blocks.append([])
            used = label
        blocks[-1].append(at)
        used += own
    return blocks


def _terminal_cell(cell: Cell, aside: str) -> Text:
    """Write a cell whose number is aligned with those above, however wide their deviations are."""
    style = " ".join(name for name, wanted in (("bold", cell.best), ("underline", cell.fastest)) if wanted)
    text = _text(cell.main, style)
    return text.append(f" {aside}", style="dim") if aside else text


def _text(text: str, style: str = "") -> Text:
    from rich.text import Text

    # The style as a span, not as the base: what is appended later shall not inherit it.
    return Text().append(text, style=style)
