"""`equipoise train`: one model."""

from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from equipoise.cli import options
from equipoise.cli.compare import show_rows
from equipoise.cli.config import Config
from equipoise.study import compare as comparison
from equipoise.study.registry import entries
from equipoise.training.optimisers import words_for

EXAMPLE = (
    "Example: equipoise train --data watch --out runs/one; in seconds, without training: equipoise train --data watch "
    "--method instant; one method alone: equipoise train --data watch --method mimo penalty=10 epochs=20"
)


def train(
    words: options.Words = None,
    *,
    _config: Config = None,
    data: options.Data = "watch",
    split: options.Split = None,
    preset: options.PresetName = "auto",
    method: Annotated[
        str,
        typer.Option(
            help="auto: closed-form heads, and a few methods tried on validation data; instant: such heads alone; one "
            "method (`equipoise methods`); or your own: my_file.Gap."
        ),
    ] = "auto",
    seed: Annotated[int, typer.Option(help="Of weights, batches and dropout.")] = 0,
    step: Annotated[str, typer.Option("--step", help="given (lr), or safe (1/L̂ of a batch).")] = "given",
    quick: options.Quick = False,
    out: options.StudyFolder = Path("runs/train"),
    track: options.Track = "",
    as_json: options.Json = False,
) -> None:
    """Train one model and say what it can do.

    Without --method, the best of a small portfolio by validation data; refit=true trains it again on these, too.
    """
    lines = partial(entries, [method], [*words_for(step), *(words or ())])
    source, chosen, trackers = options.data_and(data, split, preset, lines, lambda: options.trackers_of(track))
    how: dict[str, Any] = {
        "workers": 1,
        "quick": quick,
        "trackers": trackers,
        "quiet": as_json,
        "command": options.typed_command(),
    }
    rows = comparison.compare(chosen, source, [seed], out, **how)
    show_rows(out, rows, as_json=as_json, trackers=trackers)
    if not as_json and (rate := rows[0].get("path", {}).get("learning rate")):
        print(f"Learning rate: {rate}")
