"""A table as markdown, LaTeX, csv and JSON."""

from __future__ import annotations

import csv
import io
import json
import re
from typing import Any

from equipoise.report.table import MISSING, Cell, ResultColumn, ResultTable

_LATEX = {
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


def as_markdown(table: ResultTable) -> str:
    """The table in markdown, best bold, fastest of the three best underlined."""
    head = ["method", *(column.heading for column in table.columns)]
    lines = [
        f"**{_markdown_text(table.title)}**",
        "",
        _markdown_line([_markdown_text(each) for each in head]),
        _markdown_line(["---", *("---" if column.kind == "words" else "---:" for column in table.columns)]),
    ]
    for label, cells in zip(table.labels, table.cells, strict=True):
        lines.append(_markdown_line([_markdown_text(label), *map(_markdown_cell, cells)]))
    return "\n".join([*lines, "", *(f"- {_markdown_text(note)}" for note in table.notes), ""])


def as_latex(table: ResultTable) -> str:
    """The table in LaTeX for ``booktabs``, as the paper prints it."""
    alignment = "l" + "".join("l" if column.kind == "words" else "r" for column in table.columns)
    body = [
        _latex_line([_latex_text(label), *(map(_latex_cell, table.columns, cells))])
        for label, cells in zip(table.labels, table.cells, strict=True)
    ]
    return "\n".join(
        [
            "% needs \\usepackage{booktabs}",
            *(f"% {note}" for note in table.notes),
            f"\\begin{{tabular}}{{{alignment}}}",
            "\\toprule",
            _latex_line(["Method", *(_latex_heading(column) for column in table.columns)]),
            "\\midrule",
            *body,
            "\\bottomrule",
            "\\end{tabular}",
            "",
        ]
    )


def as_csv(table: ResultTable) -> str:
    """The raw numbers with all their digits; what is missing is empty."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["label", *(plain_cell(name) for column in table.columns for name in _csv_names(column))])
    for label, cells in zip(table.labels, table.cells, strict=True):
        values = [value for column, cell in zip(table.columns, cells, strict=True) for value in _raw(column, cell)]
        writer.writerow([plain_cell(value) for value in (label, *values)])
    return out.getvalue()


def plain_cell(value: Any) -> Any:
    """A cell of a csv. Text that a spreadsheet would compute as a formula gets a quotation mark in front."""
    if value is None:
        return ""
    formula = isinstance(value, str) and value.lstrip()[:1] in ("=", "+", "-", "@", "|", "%")
    return f"'{value}" if formula else value


def as_dict(table: ResultTable) -> dict[str, Any]:
    """The table as plain dictionaries and lists."""
    return {
        "title": table.title,
        "columns": [{"key": each.key, "title": each.title, "unit": each.unit} for each in table.columns],
        "lines": [
            {"label": label, **{each.key: _json_cell(each, cells[at]) for at, each in enumerate(table.columns)}}
            for label, cells in zip(table.labels, table.cells, strict=True)
        ],
        "notes": list(table.notes),
    }  # fmt: skip


def as_json(table: ResultTable) -> str:
    """The table as JSON text, raw numbers with all their digits."""
    return json.dumps(as_dict(table), ensure_ascii=False, allow_nan=False, indent=2)


# -- markdown --


def _markdown_text(text: str) -> str:
    """Text that means nothing to markdown, nor to the HTML it may hold."""
    text = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return re.sub(r"([\\`*_\[\]|~#])", r"\\\1", text)


def _markdown_cell(cell: Cell) -> str:
    main = _markdown_text(cell.main)
    main = f"**{main}**" if cell.best else main
    main = f"<u>{main}</u>" if cell.fastest else main
    return f"{main} {_markdown_text(cell.aside)}" if cell.aside else main


def _markdown_line(cells: list[str]) -> str:
    return "| " + " | ".join(cells) + " |"


# -- LaTeX --


def _latex_text(text: str) -> str:
    return "".join(_LATEX.get(letter, letter) for letter in text)


def _latex_heading(column: ResultColumn) -> str:
    unit = f" {{\\tiny ({_latex_text(column.unit)})}}" if column.unit else ""
    return _latex_text(column.title) + unit


def _latex_cell(column: ResultColumn, cell: Cell) -> str:
    if column.kind == "words" or cell.main == MISSING:
        return _latex_text(cell.main)
    # A minus sign is one in mathematics only; in text it is a hyphen.
    main = f"${cell.main}$" if column.kind == "difference" else cell.main
    main = f"\\textbf{{{main}}}" if cell.best else main
    main = f"\\underline{{{main}}}" if cell.fastest else main
    aside = cell.aside.replace("±", "\\pm")
    return f"{main}{{\\tiny ${aside}$}}" if aside else main


def _latex_line(cells: list[str]) -> str:
    return " & ".join(cells) + r" \\"


# -- numbers --


def _csv_names(column: ResultColumn) -> list[str]:
    more = {"mean": ["_std"], "difference": ["_low", "_high"], "words": []}[column.kind]
    return [column.key, *(column.key + each for each in more)]


def _raw(column: ResultColumn, cell: Cell) -> list[float | str | None]:
    if column.kind == "words":
        return [None if cell.main == MISSING else cell.main]
    return [cell.value, cell.low, cell.high] if column.kind == "difference" else [cell.value, cell.deviation]


def _json_cell(column: ResultColumn, cell: Cell) -> Any:
    names = {"mean": ["mean", "std"], "difference": ["mean", "low", "high"], "words": []}[column.kind]
    if not names:
        return _raw(column, cell)[0]
    return None if cell.value is None else dict(zip(names, _raw(column, cell), strict=True))
