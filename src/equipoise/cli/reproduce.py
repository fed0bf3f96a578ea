"""`equipoise reproduce`: a table of the paper, run again."""

import json
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from equipoise.cli import options
from equipoise.paper.published import TABLES
from equipoise.study.executors import cluster_of
from equipoise.util.errors import BadInput, FailedRuns, collect, look_up

EXAMPLE = "Example: equipoise reproduce avmnist --data data/avmnist --out runs/reproduce-avmnist"


def reproduce(
    name: Annotated[str, typer.Argument(help=f"Which table: {', '.join(TABLES)}.")],
    words: Annotated[
        list[str] | None,
        typer.Argument(help="name=value: epochs=10 or mimo.penalty=10; shown as a departure from the paper."),
    ] = None,
    *,
    data: Annotated[
        str | None, typer.Option("--data", help="A prepared folder, or a file; by default the table's data set.")
    ] = None,
    split: options.Split = None,
    preset: options.PresetName = "auto",
    seeds: Annotated[int, typer.Option("--seeds", min=1, help="Runs per method, with seeds 0, 1, …")] = 3,
    grid: Annotated[
        bool, typer.Option("--grid/--no-grid", help="Choose MIMO's λ and μ on validation data, or take the paper's.")
    ] = True,
    grid_seeds: Annotated[int, typer.Option("--grid-seeds", min=1, help="Runs per point of the grid.")] = 1,
    control: Annotated[bool, typer.Option("--control", help="Run EW at MIMO's λ/K beside the others.")] = False,
    scale: Annotated[
        str, typer.Option("--scale", help="full, or small: the same on a tiny made-up stand-in, to see it run.")
    ] = "full",
    only_report: Annotated[
        bool, typer.Option("--only-report", help="Run nothing: report what the folder holds, and what is missing.")
    ] = False,
    out: Annotated[
        Path | None, typer.Option("--out", help="Folder for everything; by default runs/reproduce-NAME.")
    ] = None,
    workers: options.Workers = None,
    on: options.On = None,
    as_json: options.Json = False,
) -> None:
    """A table of the paper: every method it holds, in its layout, beside its numbers, and what it claims of them."""
    from equipoise.paper import reproduce_report
    from equipoise.paper.reproduce import full_reproduction, reproduced, run, small_reproduction
    from equipoise.report import drawing
    from equipoise.study.job import DIVERGED

    scales = {"full": False, "small": True}
    table, small, _ = collect(
        lambda: look_up("table", name, TABLES), lambda: look_up("scale", scale, scales), lambda: cluster_of(on)
    )
    folder = out or Path("runs") / f"reproduce-{name}{'-small' if small else ''}"
    if small and (data or split or preset != "auto"):
        raise BadInput("--scale small makes its own data and settings; leave out --data, --split and --preset")
    drawing.check_ready()
    if not only_report:
        if small:
            asked = small_reproduction(table, words or (), grid=grid)
        else:
            asked = full_reproduction(table, words or (), data, split, preset, grid=grid)
        asked = replace(asked, control=control)
        given = {"--data": data, "--split": split, "--preset": preset if preset != "auto" else None}
        chosen = [part for option, value in given.items() if value for part in (option, value)]
        chosen += ["--scale", scale] if small else []
        chosen += ["--seeds", str(seeds), *([] if grid else ["--no-grid"]), *(["--control"] if control else [])]
        command = shlex.join(["equipoise", "reproduce", name, *(words or ()), *chosen])
        how = {"grid_seeds": grid_seeds, "workers": workers, "on": on, "quiet": as_json}
        run(asked, seeds, folder, command=command, typed=options.typed_command(), **how)
    outcome = reproduced(folder, name)
    content = reproduce_report.write(outcome, folder, reproduce_report.draw(outcome, folder))
    if as_json:
        print(json.dumps(content))
    else:
        reproduce_report.show(outcome)
        print(f"\nThe tables as markdown, LaTeX and csv, the figure as SVG and PNG, all numbers, every run: {folder}")
    broken = [why for why in outcome.plan.failures.values() if DIVERGED not in why]
    if broken and not only_report:  # a run that diverges is an answer, one that breaks is not
        raise FailedRuns("\n".join(broken))
