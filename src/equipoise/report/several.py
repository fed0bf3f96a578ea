"""The tables of several data sets in one text; a single table is written as its format has it."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Mapping

from equipoise.report.table import ResultTable
from equipoise.report.text import as_csv, as_dict, as_json, as_latex, as_markdown, plain_cell

Tables = Mapping[str, ResultTable]
"""By the name of their data."""


def _one_csv(tables: Tables) -> str:
    """One csv with the name of the data in front; a column that only one data set has is empty for the others."""
    rows = [
        {"data": plain_cell(data), **row}
        for data, table in tables.items()
        for row in csv.DictReader(io.StringIO(as_csv(table)))
    ]
    columns = dict.fromkeys(name for row in rows for name in row)
    out = io.StringIO()
    writer = csv.DictWriter(out, list(columns), restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue()


def _one_json(tables: Tables) -> str:
    """A list of tables, each with the name of its data."""
    content = [{"data": data, **as_dict(table)} for data, table in tables.items()]
    return json.dumps(content, ensure_ascii=False, allow_nan=False, indent=2)


FORMATS: dict[str, tuple[Callable[[ResultTable], str], Callable[[Tables], str]]] = {
    "markdown": (as_markdown, lambda tables: "\n".join(map(as_markdown, tables.values()))),
    "latex": (as_latex, lambda tables: "\n".join(f"% {table.title}\n{as_latex(table)}" for table in tables.values())),
    "csv": (as_csv, _one_csv),
    "json": (as_json, _one_json),
}
"""How one table is written, and how several are."""


def render(form: str, tables: Tables) -> str:
    """All tables in one of the formats.

    Args:
        form: A key of `FORMATS`.
        tables: One or several, by the name of their data.
    """
    one, several = FORMATS[form]
    return one(*tables.values()) if len(tables) == 1 else several(tables)
