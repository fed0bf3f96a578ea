"""Printing for `equipoise report`, and for `compare` at its end."""

from __future__ import annotations

import gc
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from equipoise.study import comparison
from equipoise.study.catalogue import look_up
from equipoise.util.errors import answers
from equipoise.util.inside import inside

if TYPE_CHECKING:
    from equipoise.report import Results

MOST_PRINTED = 200  # lines of a table in the terminal


def print_report(folder: Path, form: str) -> None:
    """Print the table of finished runs in one of the formats; in the terminal, write the page anew.

    Args:
        folder: Of a study.
        form: "terminal", or a key of `equipoise.report.FORMATS`.
    """
    from equipoise import report

    with _without_collecting():
        _, results = answers(
            lambda: look_up("format", form, {"terminal": None, **report.FORMATS}), lambda: report.read(folder)
        )
        if form == "terminal":
            print_tables(folder, results)
            return
        tables = dict(zip(results.by_data(), report.tables(results), strict=True))
        print(report.written(form, tables))


def print_tables(folder: Path, results: Results | None = None) -> None:
    """Write the page, and print the table of each data set.

    Args:
        folder: Of a study.
        results: What was read there; None where nobody has done so yet.
    """
    from equipoise import report
    from equipoise.report.table import shortened

    made_by = inside(folder, comparison.COMMAND)
    results = results or report.read(folder)
    page = report.page(results, command=made_by.read_text("utf-8", "replace").strip() if made_by.is_file() else None)
    for table in report.tables(results):
        report.terminal(shortened(table, MOST_PRINTED))
    print(f"The page: {page}")


@contextmanager
def _without_collecting() -> Generator[None]:
    """Leave cycles alone for a while: rows are many and hold none, and looking for some takes a quarter of the time."""
    before = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if before:
            gc.enable()
