"""`equipoise bench`: the cost of a training step on this machine."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from equipoise.cli import options
from equipoise.util.errors import BadInput, collect
from equipoise.util.progress import status_line

if TYPE_CHECKING:
    from equipoise.paper.bench import BenchCase

EXAMPLE = "Example: equipoise bench --quick --methods mimo,mgda --modalities 2..4 --out runs/bench"


def bench(
    *,
    methods: Annotated[
        str, typer.Option(help="Names with commas between, all, or your own: my_file.Gap; mgda-features is one.")
    ] = "all",
    modalities: Annotated[str | None, typer.Option(help="How many: 2..8, or 2,4,8.")] = None,
    batch: Annotated[str, typer.Option(help="Samples of a step; commas between.")] = "64",
    encoder: Annotated[
        str | None,
        typer.Option(help="small, resnet18 or transformer; by default small, and a pair of transformers with AdamW."),
    ] = None,
    rounds: Annotated[int | None, typer.Option(min=1, help="How often each line is measured, in turn; 5.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Fewer modalities and three rounds: about a minute.")] = False,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    out: Annotated[Path, typer.Option("--out", help="Folder for tables, numbers and the figure.")] = Path("runs/bench"),
    as_json: options.Json = False,
) -> None:
    """Time and memory of a training step: whole, in pieces, and against a bare loop and MSL().attach."""
    import torch

    torch.set_num_threads(1)  # small pieces: more threads mostly wait for each other
    from equipoise.paper import bench_report
    from equipoise.paper.bench import chosen_methods, measure
    from equipoise.report import drawing
    from equipoise.training.launch import device_of
    from equipoise.training.settings import Settings

    chosen, cases, where = collect(
        lambda: chosen_methods(methods),
        lambda: cases_of(encoder, modalities or ("2,4,8" if quick else "2..8"), batch, quick=quick),
        lambda: torch.device(device_of(Settings(device=device))),
    )
    turns = rounds or (3 if quick else 5)
    command = shlex.join(["equipoise", *sys.argv[1:]]) if sys.argv[1:2] == ["bench"] else "equipoise bench"
    drawing.check_ready()
    with status_line("bench", quiet=as_json) as tell:
        rows, load = measure(cases, chosen, where, turns, tell)
    content = bench_report.as_dict(rows, load, where, turns, command)
    made = f"Made by `{command}` on {content['device']}."
    if doubts := load.doubts():
        made += f" Not to be trusted: taken under {', '.join(doubts)}."
    paths = [*bench_report.write(content, rows, load, out), *bench_report.draw(rows, out, made)]
    if as_json:
        print(json.dumps({**content, "files": [str(path) for path in paths]}))
        return
    for table in bench_report.brief_tables(rows):
        print(bench_report.as_text(table), end="\n\n")
    print("\n".join(bench_report.notes(rows, load)))
    print(f"Every case as csv, markdown and JSON, and cost against K as SVG and PNG: {out}")


def cases_of(encoder: str | None, modalities: str, batch: str, *, quick: bool = False) -> list[BenchCase]:
    """Return the cases to measure, or raise one error with every problem.

    Args:
        encoder: As typed; None for small ones, and a pair of transformers besides.
        modalities: As typed: "2..8", or "2,4,8".
        batch: As typed: "16,64".
        quick: Whether the pair of transformers has small batches.
    """
    from equipoise.paper.bench import KINDS, BenchCase
    from equipoise.util.errors import look_up

    chosen, counts, sizes = collect(
        lambda: look_up("encoder", encoder or "small", dict(zip(KINDS, KINDS, strict=True))),
        lambda: numbers_of("modalities", modalities),
        lambda: numbers_of("batch", batch),
    )
    cases = [BenchCase(chosen, count, size) for size in sizes for count in counts]
    if encoder is None:
        cases += [BenchCase("transformer", 2, min(size, 16) if quick else size) for size in sizes]
    return cases


def numbers_of(option: str, text: str) -> list[int]:
    """Parse whole numbers above one, from "2..8" or "2,4,8"."""
    try:
        low, dots, high = text.partition("..")
        numbers = list(range(int(low), int(high) + 1)) if dots else [int(word) for word in text.split(",")]
    except ValueError:
        numbers = []
    if not numbers or min(numbers) < 2:
        raise BadInput(f"--{option}: expected whole numbers above one, such as 2..8 or 2,4,8; found {text!r}")
    return list(dict.fromkeys(numbers))
