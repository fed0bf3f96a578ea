"""`equipoise toy`: the paper's Figure 1, its gradients, and its theorems, each measured."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

from equipoise.cli.telling import telling
from equipoise.study.catalogue import look_up
from equipoise.training import settings
from equipoise.util.errors import BadInput, answers
from equipoise.util.inside import write_whole

if TYPE_CHECKING:
    from equipoise.paper.toy import Recipe

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
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")] = False,
) -> None:
    """Figure 1 of the paper: why joint training learns the wrong sensor first, and what MIMO does about it."""
    recipe = recipe_of(words or ())
    import torch

    torch.set_num_threads(1)  # the matrices are small, and more threads only wait for each other
    from equipoise.paper import toy_report
    from equipoise.paper.toy_facts import gather
    from equipoise.paper.toy_figure import draw_all
    from equipoise.report import drawing

    drawing.check_ready()
    with telling("toy", quiet=as_json) as tell:
        facts = gather(recipe, range(seeds), theory=not quick, tell=tell)
        tell("drawing")
        typed = shlex.join(["equipoise", "toy", *(words or ())])
        figures = draw_all(facts, out, f"Made by `{typed}`: {toy_report.in_words(recipe)}.")
    content = {**toy_report.as_dict(facts), "figures": [str(path) for path in figures]}
    write_whole(out, "toy.json", json.dumps(content, indent=1) + "\n")
    if as_json:
        print(json.dumps(content))
        return
    print(toy_report.text(facts))
    print(f"\nFigures as SVG and PNG, and all numbers in toy.json: {out}")


def recipe_of(words: Sequence[str]) -> Recipe:
    """The problem that words ask for, or one message with everything that is wrong with them."""
    from equipoise.paper.toy import Recipe

    chosen = answers(*(partial(_option, word) for word in words))
    (recipe,) = answers(lambda: Recipe(**dict(chosen)))
    return recipe


def _option(word: str) -> tuple[str, Any]:
    from equipoise.paper.toy import Recipe

    kinds = get_type_hints(Recipe)
    key, sign, value = word.partition("=")
    if not sign or not key:
        raise BadInput(f"{word!r} should read name=value, such as samples=700; there are {', '.join(kinds)}")
    look_up("option of toy", key, kinds)
    if kinds[key] == tuple[float, ...]:
        return key, tuple(settings.convert(key, part, float) for part in value.split(","))
    return key, settings.convert(key, value, kinds[key])
