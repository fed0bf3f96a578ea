"""`equipoise report`: the tables of finished runs; `compare` prints them at its end, too."""

from __future__ import annotations

import gc
import json
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from equipoise.cli import options
from equipoise.study import compare as comparison
from equipoise.util.errors import BadInput, collect, look_up
from equipoise.util.files import inside

if TYPE_CHECKING:
    from equipoise.report import Results
    from equipoise.training.trackers import Trackers

EXAMPLE = "Example: equipoise report runs/watch --format latex --columns fused,committee,worst"
MOST_PRINTED = 200  # lines of a table in the terminal


def report(
    folder: Annotated[Path, typer.Argument(help="A folder that `compare` or `train` wrote.")],
    form: Annotated[str, typer.Option("--format", help="terminal, markdown, latex, csv or json.")] = "terminal",
    columns: options.Columns = "",
    overview: Annotated[
        bool, typer.Option("--overview", help="Only the table of methods × data sets, in any format.")
    ] = False,
    ranks: Annotated[
        bool, typer.Option("--ranks", help="Only the mean ranks of methods over data sets, in any format.")
    ] = False,
    figure: Annotated[
        str | None,
        typer.Option("--figure", help="Draw instead: confusion, roc, calibration, residuals, bars or ranks."),
    ] = None,
    to: Annotated[str, typer.Option("--to", help="With --figure: pdf, svg or png.")] = "pdf",
    decision: Annotated[str, typer.Option("--decision", help="With --figure: fused or committee.")] = "fused",
    data: Annotated[str | None, typer.Option("--data", help="With --figure: one data set of several.")] = None,
    as_json: options.Json = False,
) -> None:
    """Print the table of finished runs again, and write the page anew; or draw a figure of them."""
    from equipoise import report

    if figure is not None:
        paths = report.write_figures(figure, report.read(folder), to, decision, data)
        print(json.dumps([str(path) for path in paths]) if as_json else "\n".join(map(str, paths)))
        return
    form, names = "json" if as_json else form, options.names_of(columns)
    with _without_collecting():
        _, results = collect(
            lambda: look_up("format", form, {"terminal": None, **report.FORMATS}), lambda: report.read(folder)
        )
        if ranks:
            _print_ranks(form, results)
        elif overview and form == "terminal":
            report.print_table(report.overview(results, columns=names))
        elif form == "terminal":
            print_tables(folder, results, names)
        else:
            print(_rendered(form, results, names, overview=overview))


def _print_ranks(form: str, results: Results) -> None:
    """Print the mean ranks over data sets and their tests in a format."""
    from equipoise import report

    table = report.ranks_table(results)
    if table is None:
        found = f"found {', '.join(results.groups)}"
        raise BadInput(
            f"--ranks: expected two methods or more on two data sets or more, {found}; run them with --data a,b"
        )
    if form == "terminal":
        report.print_table(table)
    else:
        print(json.dumps(report.ranks_as_dicts(results)) if form == "json" else report.render(form, {"": table}))


def _rendered(form: str, results: Results, names: Sequence[str], *, overview: bool) -> str:
    """Write the tables in a format; behind those of several data sets that of all, where people are to read it."""
    from equipoise import report

    if overview:
        return report.render(form, {"": report.overview(results, columns=names)})
    tables = dict(zip(results.by_data(), report.tables(results, columns=names), strict=True))
    if len(tables) > 1 and form in ("markdown", "latex"):
        tables[""] = report.overview(results, columns=names)
        ranks = report.ranks_table(results)
        tables |= {"ranks": ranks} if ranks else {}
    return report.render(form, tables)


def print_tables(folder: Path, results: Results | None = None, columns: Sequence[str] = ()) -> None:
    """Write the page, and print the table of each data set; of several, one of methods × data sets as well.

    Args:
        folder: Of a study.
        results: What was read there; None where nobody has done so yet.
        columns: The columns to show; the usual ones where none is named.
    """
    from equipoise import report
    from equipoise.report.table import shortened

    made_by = inside(folder, comparison.COMMAND)
    results = results or report.read(folder)
    page = report.write_page(
        results, command=made_by.read_text("utf-8", "replace").strip() if made_by.is_file() else None
    )
    several = (
        [report.overview(results, columns=columns), report.ranks_table(results)] if len(results.groups) > 1 else []
    )
    for table in [*report.tables(results, columns=columns), *filter(None, several)]:
        report.print_table(shortened(table, MOST_PRINTED))
        print()
    print(f"The page: {page}")


def publish(folder: Path, trackers: Trackers, columns: Sequence[str] = ()) -> None:
    """Give trackers the tables and the page of a study, as a run of their own."""
    from equipoise import report

    if trackers.names:
        results = report.read(folder)
        text = _rendered("markdown", results, columns, overview=False)
        page = inside(folder, "report.html")
        page = page if page.is_file() else report.write_page(results)
        replace(trackers, run=f"report of {folder.name}").publish(folder, text, [page])


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
