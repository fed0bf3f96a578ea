"""`equipoise tune`: look for a method's best parameters on validation data."""

import shlex
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from equipoise.cli import options
from equipoise.cli.config import Config, after_config
from equipoise.study.executors import cluster_of
from equipoise.study.tuning import as_typed, search_of
from equipoise.util.files import write_atomic

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
    data: options.Data = "watch",
    split: options.Split = None,
    preset: options.PresetName = "auto",
    method: options.OneMethod = "mimo",
    trials: Annotated[int, typer.Option("--trials", min=1, help="How many, with those an earlier call finished.")] = 40,
    seed: Annotated[int, typer.Option(help="Of weights, batches and dropout in every trial.")] = 0,
    out: Annotated[Path, typer.Option("--out", help="Folder for trials, the figure and the numbers.")] = Path(
        "runs/tune"
    ),
    workers: options.Workers = None,
    on: options.On = None,
    as_json: options.Json = False,
) -> None:
    """Look for a method's best parameters on validation data; what falls behind is pruned."""
    lines = partial(search_of, method, words or ())
    source, search, place = options.data_and(data, split, preset, lines, lambda: cluster_of(on))
    from equipoise.report import drawing
    from equipoise.report import search as search_report
    from equipoise.study.search import run_search

    drawing.check_ready()
    how = {"seed": seed, "workers": workers, "on": place, "quiet": as_json, "command": options.typed_command()}
    outcome = run_search(search, source, trials, out, **how)
    cut = [] if split is None else ["--split", split]
    settings = [] if preset == "auto" else ["--preset", preset]
    given = ["--data", data, *cut, *settings, "--method", method, "--seed", str(seed)]
    fixed = [word for word in words or () if word.partition("=")[0] not in search.space]
    best = [f"{key}={as_typed(value)}" for key, value in outcome.best.values.items()]
    command = shlex.join(["equipoise", "train", *given, "--out", f"{out}/best", *fixed, *best])
    made = shlex.join(["equipoise", "tune", *given, "--trials", str(trials), *(words or ())])
    figures = search_report.draw(outcome, out, f"Made by `{made}`.")
    write_atomic(out, "tune.md", search_report.markdown(outcome, command))
    content, text = search_report.as_dict(outcome, command), search_report.text(outcome, command)
    files = "The figure as SVG and PNG, every trial in tune.md and tune.json"
    options.show_results(out, "tune.json", content, figures, text, files, as_json=as_json)
