"""`equipoise ablate`: the paper's Figure 3, for the parameters of any method."""

import shlex
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from equipoise.cli import options
from equipoise.cli.config import Config, after_config
from equipoise.paper.ablation import sweep_of
from equipoise.study.executors import cluster_of

EXAMPLE = "Example: equipoise ablate --data watch --method mimo penalty=1,10,100 smoothing=0.01,0.1,1 epochs=20"


def ablate(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            callback=after_config,
            help="penalty=1,10,100 varies a parameter or a setting, epochs=20 sets one; the paper's grid.",
        ),
    ] = None,
    *,
    _config: Config = None,
    data: options.Data = "watch",
    split: options.Split = None,
    preset: options.PresetName = "auto",
    method: options.OneMethod = "mimo",
    grid: Annotated[bool, typer.Option("--grid", help="All combinations, instead of one parameter at a time.")] = False,
    scaled_rate: Annotated[
        bool, typer.Option("--scaled-rate", help="Run each λ with the learning rate divided by 1 + λ, too.")
    ] = False,
    seeds: Annotated[int, typer.Option("--seeds", min=1, help="Runs per setting, with seeds 0, 1, …")] = 3,
    folds: options.Folds = False,
    out: Annotated[Path, typer.Option("--out", help="Folder for results, the figure and the numbers.")] = Path(
        "runs/ablation"
    ),
    workers: options.Workers = None,
    on: options.On = None,
    as_json: options.Json = False,
) -> None:
    """Figure 3 of the paper: accuracy over a method's parameters, with errors, and what validation would choose."""
    lines = partial(sweep_of, method, words or (), grid=grid, divided=scaled_rate)
    source, sweep, place = options.data_and(data, split, preset, lines, lambda: cluster_of(on))
    from equipoise.paper import ablation_report
    from equipoise.paper.ablation import run
    from equipoise.report import drawing

    drawing.check_ready()
    how = {"folds": folds, "workers": workers, "on": place, "quiet": as_json, "command": options.typed_command()}
    outcome = run(sweep, source, seeds, out, **how)
    flags = {"--grid": grid, "--scaled-rate": scaled_rate, "--folds" if folds is True else f"--folds={folds}": folds}
    cut = [] if split is None else ["--split", split]
    settings = [] if preset == "auto" else ["--preset", preset]
    asked = ["--method", method, *(flag for flag in flags if flags[flag]), "--seeds", str(seeds)]
    given = ["--data", data, *cut, *settings, *asked]
    made_by = shlex.join(["equipoise", "ablate", *given, *(words or ())])
    figures = ablation_report.draw(outcome, out, f"Made by `{made_by}`.")
    content, text = ablation_report.as_dict(outcome), ablation_report.text(outcome)
    files = "The figure as SVG and PNG, all numbers in ablation.json, and every run"
    options.show_results(out, "ablation.json", content, figures, text, files, as_json=as_json)
