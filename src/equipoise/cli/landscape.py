"""`equipoise landscape`: the paper's Figure 2, the loss around the solutions of joint training and of MIMO."""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from equipoise.cli import options
from equipoise.data.source import DataSet
from equipoise.study.registry import Entry, entries
from equipoise.training import settings
from equipoise.training.presets import Preset
from equipoise.util import VERSION
from equipoise.util.errors import collect
from equipoise.util.progress import status_line

if TYPE_CHECKING:
    from equipoise.paper.landscape import LandscapeResults, LandscapeSettings, Tell

EXAMPLE = "Example: equipoise landscape --data watch --out runs/landscape steps=1500 mimo.penalty=10"
FUSION = "fusion=sum"  # as the paper; a word of the user's comes later, and wins


def landscape(
    words: Annotated[
        list[str] | None,
        typer.Argument(help="name=value: steps=1500, a setting (batch=64, lr=0.01) or a parameter (mimo.penalty=10)."),
    ] = None,
    *,
    data: options.Data = "watch",
    split: options.Split = None,
    preset: options.PresetName = "auto",
    plane: Annotated[
        str, typer.Option("--plane", help="own: one around each solution; both: one through the two.")
    ] = "own",
    points: Annotated[
        int | None,
        typer.Option("--points", help="Places along each side of a plane; by default 51, or fewer where each is slow."),
    ] = None,
    reach: Annotated[float, typer.Option("--reach", help="How far a plane goes, in lengths of filters.")] = 1.0,
    samples: Annotated[int, typer.Option("--samples", help="Training samples and test samples to judge by.")] = 200,
    protocol: Annotated[
        str | None,
        typer.Option("--protocol", help="Of uni-modal accuracy: split, head or masked; by default, by model."),
    ] = None,
    seed: Annotated[int, typer.Option("--seed", help="Of weights, batches, samples and directions.")] = 0,
    out: Annotated[Path, typer.Option("--out", help="Folder for the figure and the numbers.")] = Path("runs/landscape"),
    as_json: options.Json = False,
) -> None:
    """Figure 2 of the paper: the loss around the solutions of joint training and MIMO, and which sensor leads there."""
    view = {"plane": plane, "points": points, "reach": reach, "samples": samples, "protocol": protocol, "seed": seed}
    source, chosen, picture = _asked(data, split, preset, words or (), view)
    import torch

    torch.set_num_threads(1)  # points are evaluated in parallel processes, and more threads only wait for each other
    from equipoise.paper.landscape_figure import draw
    from equipoise.report import drawing

    drawing.check_ready()
    with status_line("landscape", quiet=as_json) as tell:
        results = _results(source, chosen, picture, out, tell)
        tell("drawing")
        chosen_data = {"data": data, "split": split, "preset": None if preset == "auto" else preset}
        figures = draw(results, out, f"Made by `{_typed(chosen_data, view, words or ())}`: {picture.steps:,} steps.")
    name = f"{picture.stem}.json"
    files = f"The figure as SVG and PNG, all numbers in {name}, and the grids in {picture.stem}.npz"
    options.show_results(out, name, results.as_dict(), figures, _table(results), files, as_json=as_json)


def _asked(
    data: str, split: str | None, preset: str, words: Sequence[str], view: dict[str, Any]
) -> tuple[DataSet, list[Entry], LandscapeSettings]:
    """Return the data, the two methods and the settings, or raise one error with every problem."""
    from equipoise.paper.landscape import LandscapeSettings

    steps = [word.removeprefix("steps=") for word in words if word.startswith("steps=")]
    others = [FUSION, *(word for word in words if not word.startswith("steps="))]
    chosen: list[Entry] = []

    def methods(published: Preset | None) -> list[Entry]:
        chosen.extend(entries(["msl", "mimo"], others, published))
        return chosen

    def number_of_steps() -> int:
        return settings.convert("steps", steps[-1], int) if steps else LandscapeSettings().steps

    def picture() -> LandscapeSettings:
        made = LandscapeSettings(**view)
        if chosen:
            made.protocol_for(chosen[0].settings)
        return made

    source, both, count, made = options.data_and(data, split, preset, methods, number_of_steps, picture)
    (whole,) = collect(lambda: dataclasses.replace(made, steps=count))
    return source, both, whole


def _typed(data: dict[str, str | None], view: dict[str, Any], words: Sequence[str]) -> str:
    """Return the command that gives this figure, without defaults and without paths of this machine."""
    from equipoise.paper.landscape import LandscapeSettings

    plain = dataclasses.asdict(LandscapeSettings())
    options = {name: value for name, value in data.items() if value is not None}
    options |= {name: value for name, value in view.items() if value != plain[name]}
    said = [word for name, value in options.items() for word in (f"--{name}", str(value))]
    return shlex.join(["equipoise", "landscape", *said, *words])


def _results(
    source: DataSet, chosen: Sequence[Entry], picture: LandscapeSettings, out: Path, tell: Tell
) -> LandscapeResults:
    """Return the results of an earlier call with the same settings, or else compute them."""
    from equipoise.data.source import mark_task, mark_tokens
    from equipoise.paper.landscape import gather, with_points
    from equipoise.paper.landscape_files import load_results, save_results

    tell("loading the data")
    encoders = [(entry.settings.encoder, entry.settings.features) for entry in chosen]
    source = mark_task(mark_tokens(source, encoders), [entry.settings.task for entry in chosen])
    splits = source.load(None).check()
    picture = with_points(splits, chosen[0], picture)
    asked = {
        "version": VERSION,
        "data": splits.fingerprint(),
        "recipe": dataclasses.asdict(picture),
        "methods": {entry.method.name: {**entry.params, **entry.settings.as_dict()} for entry in chosen},
    }
    results = load_results(out, picture.stem, asked)
    if results is None:
        results = gather(splits, chosen, picture, tell)
        save_results(out, asked, results)
    return results


def _table(results: LandscapeResults) -> str:
    """Describe the two solutions in a few lines."""
    from equipoise.paper.landscape import TITLES

    counts = results.samples
    lines = [
        f"After {results.settings.steps:,} steps, on {counts['train']:,} training and {counts['test']:,} test samples "
        f"of {results.data} (± standard error); accuracy alone: training, protocol {results.protocol}"
    ]
    for star in results.stars:
        losses = ", ".join(f"{name} loss {star.loss[name]:.3f} ± {star.error[name]:.3f}" for name in star.loss)
        alone = ", ".join(f"{name} {star.accuracy['train'][name]:.1%}" for name in results.modalities)
        low, high = results.late(star.name)
        lines.append(
            f"  {TITLES[star.name]}: {losses}; right in test {star.accuracy['test']['fused']:.1%}; alone {alone}; "
            f"test loss over the last fifth of training {low:.3f} to {high:.3f}"
        )
    worst = max(star.difference for star in results.stars)
    lines.append(f"The planes and the models themselves agree at the stars to {worst:.0e}.")
    return "\n".join(lines)
