"""`equipoise robustness`: every method over learning rates and sizes of the training set."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from equipoise.cli import options
from equipoise.cli.config import Config
from equipoise.study.executors import cluster_of
from equipoise.study.registry import Entry, entries
from equipoise.study.robustness import RATES, check_grid, check_lines, run_robustness
from equipoise.training import settings
from equipoise.training.presets import Preset
from equipoise.util.errors import collect
from equipoise.util.files import write_atomic

EXAMPLE = "Example: equipoise robustness --data watch --methods msl,ew,mimo --sizes 0.1,0.3,1 epochs=20"


def robustness(
    words: options.Words = None,
    *,
    _config: Config = None,
    data: options.SeveralData = "watch",
    split: options.Split = None,
    preset: options.PresetName = "auto",
    methods: Annotated[str, typer.Option(help="Names with commas between, all, or your own: my_file.Gap.")] = (
        "msl,ew,mimo"
    ),
    rates: Annotated[str, typer.Option("--rates", help="Factors of the learning rate, with commas between.")] = (
        ",".join(f"{rate:g}" for rate in RATES)
    ),
    sizes: Annotated[str, typer.Option("--sizes", help="Shares of the training samples, too, such as 0.1,0.3,1.")] = "",
    seeds: options.Seeds = 3,
    folds: options.Folds = False,
    quick: options.Quick = False,
    out: Annotated[Path, typer.Option("--out", help="Folder for results, the figure and the numbers.")] = Path(
        "runs/robustness"
    ),
    workers: options.Workers = None,
    on: options.On = None,
    as_json: options.Json = False,
) -> None:
    """Train every method over a grid of learning rates: the metric at each, the area, and what validation chooses."""
    lines = partial(_lines, methods.split(","), words or ())
    others = (partial(_grid, "rates", rates), partial(_grid, "sizes", sizes), lambda: cluster_of(on))
    studies, factors, shares, place = options.every_data_and(data, split, preset, lines, *others)
    from rich.console import Console

    from equipoise.report import drawing, print_table, render
    from equipoise.report.robustness import draw_robustness, robustness_as_dict, robustness_tables

    drawing.check_ready()
    command = options.typed_command()
    how: dict[str, Any] = {"rates": factors, "sizes": shares, "folds": folds, "quick": quick, "workers": workers}
    how |= {"on": place, "quiet": as_json, "command": command}
    curves = run_robustness(studies, range(seeds), out, **how)
    figures = draw_robustness(curves, out, f"Made by `{command}`.")
    tables = robustness_tables(curves)
    for form, ending in (("markdown", "md"), ("latex", "tex"), ("csv", "csv")):
        write_atomic(out, f"robustness.{ending}", render(form, tables))
    with (console := Console()).capture() as printed:
        for table in tables.values():
            print_table(table, console)
            console.print()
    files = "Figures as SVG and PNG, tables as markdown, LaTeX and csv, all numbers in robustness.json, and every run"
    text = printed.get().rstrip()
    options.show_results(out, "robustness.json", robustness_as_dict(curves), figures, text, files, as_json=as_json)


def _lines(names: list[str], words: Sequence[str], preset: Preset | None = None) -> list[Entry]:
    return check_lines(entries(names, words, preset))


def _grid(name: str, text: str) -> tuple[float, ...]:
    """Read numbers with commas between."""
    parts = [part.strip() for part in text.split(",") if part.strip()]
    return check_grid(name, collect(*(partial(settings.convert, f"--{name}", part, float) for part in parts)))
