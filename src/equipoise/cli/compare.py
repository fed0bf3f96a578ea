"""`equipoise compare`: every method on the same data."""

import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from equipoise.cli import options
from equipoise.cli.config import Config
from equipoise.cli.report import print_tables, publish
from equipoise.report.columns import check_names
from equipoise.study import compare as comparison
from equipoise.study.executors import cluster_of
from equipoise.study.registry import entries
from equipoise.training import launch
from equipoise.training.trackers import Trackers

EXAMPLE = "Example: equipoise compare --data watch --methods msl,ew,mimo --seeds 3 --out runs/watch epochs=20"


def compare(
    words: options.Words = None,
    *,
    _config: Config = None,
    data: options.SeveralData = "watch",
    split: options.Split = None,
    preset: options.PresetName = "auto",
    methods: Annotated[str, typer.Option(help="Names with commas between, all, or your own: my_file.Gap.")] = "all",
    seeds: options.Seeds = 3,
    folds: options.Folds = False,
    tune: Annotated[int, typer.Option(min=0, help="Trials per method and fold, chosen on validation data.")] = 0,
    controls: Annotated[
        bool, typer.Option("--controls", help="Add EW at weight λ/K, and moddrop if it is not there.")
    ] = False,
    quick: options.Quick = False,
    out: options.StudyFolder = Path("runs/compare"),
    workers: options.Workers = None,
    on: options.On = None,
    track: options.Track = "",
    columns: options.Columns = "",
    as_json: options.Json = False,
) -> None:
    """Train every method on the same data and print the table; the page is written beside it."""
    lines = partial(entries, methods.split(","), words or ())
    others = (
        lambda: options.trackers_of(track),
        lambda: cluster_of(on),
        lambda: check_names(options.names_of(columns)),
    )
    studies, trackers, place, _ = options.every_data_and(data, split, preset, lines, *others)
    if controls:
        studies = [(source, [*chosen, *comparison.controls(chosen, source)]) for source, chosen in studies]
    how: dict[str, Any] = {"folds": folds, "tune": tune, "quick": quick, "workers": workers, "on": place}
    how |= {"trackers": trackers, "quiet": as_json, "command": options.typed_command()}
    rows = comparison.compare_each(studies, range(seeds), out, **how)
    show_rows(out, rows, as_json=as_json, columns=options.names_of(columns), trackers=trackers)


def show_rows(
    out: Path,
    rows: list[dict[str, Any]],
    *,
    as_json: bool,
    columns: Sequence[str] = (),
    trackers: Trackers | None = None,
) -> None:
    """Print the rows as JSON, or the tables of their folder; of several processes, only the first prints."""
    if launch.is_main():
        if as_json:
            print(json.dumps(rows))
        else:
            print_tables(out, columns=columns)
        if trackers is not None:
            publish(out, trackers, columns)
