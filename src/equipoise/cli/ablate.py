"""`equipoise ablate`: the paper's Figure 3, for the parameters of any method."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Annotated

import typer

from equipoise.cli.config import Config, after_config
from equipoise.cli.options import Data, Folds, Json, On, OneMethod, PresetName, Split, Workers, data_and
from equipoise.cli.typed import typed
from equipoise.paper.ablation import Sweep, sweep_of
from equipoise.study.executors import place_of
from equipoise.training.presets import Preset
from equipoise.util.inside import write_whole

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
    data: Data = "watch",
    split: Split = None,
    preset: PresetName = "auto",
    method: OneMethod = "mimo",
    grid: Annotated[bool, typer.Option("--grid", help="All combinations, instead of one parameter at a time.")] = False,
    scaled_rate: Annotated[
        bool, typer.Option("--scaled-rate", help="Run each λ with the learning rate divided by 1 + λ, too.")
    ] = False,
    seeds: Annotated[int, typer.Option("--seeds", min=1, help="Runs per setting, with seeds 0, 1, …")] = 3,
    folds: Folds = False,
    out: Annotated[Path, typer.Option("--out", help="Folder for results, the figure and the numbers.")] = Path(
        "runs/ablation"
    ),
    workers: Workers = None,
    on: On = None,
    as_json: Json = False,
) -> None:
    """Figure 3 of the paper: accuracy over a method's parameters, with errors, and what validation would choose."""

    def sweep(chosen: Preset | None) -> Sweep:
        return sweep_of(method, words or (), chosen, grid=grid, divided=scaled_rate)

    source, asked, place = data_and(data, split, preset, sweep, lambda: place_of(on))
    from equipoise.paper import ablation_figure, ablation_report
    from equipoise.paper.ablation_runs import run
    from equipoise.report import drawing

    drawing.check_ready()
    outcome = run(asked, source, seeds, out, folds=folds, workers=workers, on=place, quiet=as_json, command=typed())
    flags = {"--grid": grid, "--scaled-rate": scaled_rate, "--folds": folds}
    told = [flag for flag, given in flags.items() if given]
    cut = [] if split is None else ["--split", split]
    options = ["--data", data, *cut, "--method", method, *told, "--seeds", str(seeds)]
    figures = ablation_figure.draw(
        outcome, out, f"Made by `{shlex.join(['equipoise', 'ablate', *options, *(words or ())])}`."
    )
    content = {**ablation_report.as_dict(outcome), "figures": [str(path) for path in figures]}
    write_whole(out, "ablation.json", json.dumps(content, indent=1) + "\n")
    if as_json:
        print(json.dumps(content))
        return
    print(ablation_report.text(outcome))
    print(f"\nThe figure as SVG and PNG, all numbers in ablation.json, and every run: {out}")
