"""`equipoise tune`: look for a method's best parameters on validation data."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Annotated

import typer

from equipoise.cli.config import Config, after_config
from equipoise.cli.options import Data, Json, On, OneMethod, PresetName, Split, Workers, data_and
from equipoise.cli.typed import typed
from equipoise.study.executors import place_of
from equipoise.study.tune import as_typed, search_of
from equipoise.util.inside import write_whole

EXAMPLE = "Example: equipoise tune --data watch --method mimo penalty=1..100:log lr=0.001..0.1:log epochs=20"


def tune(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            callback=after_config, help="lr=0.001..0.1:log or smoothing=0.01,0.1 is looked for, epochs=20 is set."
        ),
    ] = None,
    *,
    _config: Config = None,
    data: Data = "watch",
    split: Split = None,
    preset: PresetName = "auto",
    method: OneMethod = "mimo",
    trials: Annotated[int, typer.Option("--trials", min=1, help="How many, with those of earlier sittings.")] = 40,
    seed: Annotated[int, typer.Option(help="Of weights, batches and dropout in every trial.")] = 0,
    out: Annotated[Path, typer.Option("--out", help="Folder for trials, the figure and the numbers.")] = Path(
        "runs/tune"
    ),
    workers: Workers = None,
    on: On = None,
    as_json: Json = False,
) -> None:
    """Look for a method's best parameters on validation data; what falls behind is pruned."""
    source, search, place = data_and(
        data, split, preset, lambda chosen: search_of(method, words or (), chosen), lambda: place_of(on)
    )
    from equipoise.report import drawing, tune_figure, tune_report
    from equipoise.study.tune_runs import run

    drawing.check_ready()
    outcome = run(search, source, trials, out, seed=seed, workers=workers, on=place, quiet=as_json, command=typed())
    cut = [] if split is None else ["--split", split]
    settings = [] if preset == "auto" else ["--preset", preset]
    given = ["--data", data, *cut, *settings, "--method", method, "--seed", str(seed)]
    fixed = [word for word in words or () if word.partition("=")[0] not in search.space]
    best = [f"{key}={as_typed(value)}" for key, value in outcome.best.values.items()]
    command = shlex.join(["equipoise", "train", *given, "--out", f"{out}/best", *fixed, *best])
    made = shlex.join(["equipoise", "tune", *given, "--trials", str(trials), *(words or ())])
    figures = tune_figure.draw(outcome, out, f"Made by `{made}`.")
    content = {**tune_report.as_dict(outcome, command), "figures": [str(path) for path in figures]}
    write_whole(out, "tune.json", json.dumps(content, indent=1) + "\n")
    write_whole(out, "tune.md", tune_report.markdown(outcome, command))
    if as_json:
        print(json.dumps(content))
        return
    print(tune_report.text(outcome, command))
    print(f"\nThe figure as SVG and PNG, every trial in tune.md and tune.json: {out}")
