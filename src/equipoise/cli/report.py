"""`equipoise report`: the tables of finished runs; `compare` prints them at its end, too."""

from __future__ import annotations

import gc
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from equipoise.cli import options
from equipoise.study import compare as comparison
from equipoise.util.errors import collect, look_up
from equipoise.util.files import inside

if TYPE_CHECKING:
    from equipoise.report import Results

EXAMPLE = "Example: equipoise report runs/watch --format latex"
MOST_PRINTED = 200  # lines of a table in the terminal


def report(
    folder: Annotated[Path, typer.Argument(help="A folder that `compare` or `train` wrote.")],
    form: Annotated[str, typer.Option("--format", help="terminal, markdown, latex, csv or json.")] = "terminal",
    as_json: options.Json = False,
) -> None:
    """Print the table of finished runs again, and write the page anew."""
    from equipoise import report

    form = "json" if as_json else form
    with _without_collecting():
        _, results = collect(
            lambda: look_up("format", form, {"terminal": None, **report.FORMATS}), lambda: report.read(folder)
        )
        if form == "terminal":
            print_tables(folder, results)
        else:
            print(report.render(form, dict(zip(results.by_data(), report.tables(results), strict=True))))


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
    page = report.write_page(
        results, command=made_by.read_text("utf-8", "replace").strip() if made_by.is_file() else None
    )
    for table in report.tables(results):
        report.print_table(shortened(table, MOST_PRINTED))
    print(f"The page: {page}")


@contextmanager
def _without_collecting() -> Generator[None]:
    """Pause the garbage collector: many rows hold no cycles, and looking for some takes a quarter of the time."""
    before = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if before:
            gc.enable()
