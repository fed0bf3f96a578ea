"""`equipoise toy`: the paper's Figure 1, its gradients, and its theorems, each measured."""

import shlex
from pathlib import Path
from typing import Annotated

import typer

from equipoise.cli import options
from equipoise.util.progress import status_line

EXAMPLE = "Example: equipoise toy --seeds 10 --out runs/toy penalty=10 smoothing=0.2"


def toy(
    words: Annotated[
        list[str] | None,
        typer.Argument(help="name=value: samples=700, scales=5,0.5,1 coefficients=0.001,1,1, label=mean …"),
    ] = None,
    *,
    seeds: Annotated[int, typer.Option("--seeds", min=1, help="Draws of data and start, with seeds 0, 1, …")] = 10,
    quick: Annotated[
        bool, typer.Option("--quick", help="Leave out the theorems and the search of learning rates.")
    ] = False,
    out: Annotated[Path, typer.Option("--out", help="Folder for the figures and the numbers.")] = Path("runs/toy"),
    as_json: options.Json = False,
) -> None:
    """Figure 1 of the paper: why joint training learns the wrong sensor first, and what MIMO does about it."""
    import torch

    torch.set_num_threads(1)  # the matrices are small, and more threads only wait for each other
    from equipoise.paper import toy_report
    from equipoise.paper.toy import ToySettings
    from equipoise.paper.toy_results import gather
    from equipoise.report import drawing

    problem = options.from_words("toy", ToySettings, words or (), example="samples=700")
    drawing.check_ready()
    with status_line("toy", quiet=as_json) as tell:
        results = gather(problem, range(seeds), theory=not quick, tell=tell)
        tell("drawing")
        typed = shlex.join(["equipoise", "toy", *(words or ())])
        figures = toy_report.draw_all(results, out, f"Made by `{typed}`: {toy_report.in_words(problem)}.")
    content, text = toy_report.as_dict(results), toy_report.text(results)
    files = "Figures as SVG and PNG, and all numbers in toy.json"
    options.show_results(out, "toy.json", content, figures, text, files, as_json=as_json)
