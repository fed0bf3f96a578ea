"""`equipoise control`: policies for a peg-in-hole task with three sensors, trained, rolled out and compared."""

from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from equipoise.cli import options
from equipoise.cli.config import Config
from equipoise.util.errors import BadInput, collect, look_up
from equipoise.util.progress import Progress

EXAMPLE = "Example: equipoise control --methods msl,moddrop,ew,mimo --hybrid msl,mimo --seeds 5"
METHODS = "msl,moddrop,ew,mimo,primaldual,mmpareto,ogmge,gap"
CONDITIONS = "all"
QUICK: dict[str, Any] = {"methods": "msl,ew", "seeds": 1, "demonstrations": 60, "rollouts": 8}
QUICK_WORDS = ("epochs=4",)
QUICK_CONDITIONS = "clean,camera_black,camera_lost_zero,camera_lost_committee"


def control(
    words: options.Words = None,
    *,
    _config: Config = None,
    methods: Annotated[str, typer.Option(help="Names with commas between, or your own: my_file.Gap.")] = METHODS,
    hybrid: Annotated[str, typer.Option("--hybrid", help="Those of them to train with hybrid fusion, too.")] = "",
    seeds: options.Seeds = 5,
    demonstrations: Annotated[int, typer.Option("--demonstrations", min=3, help="Episodes of the expert.")] = 500,
    rollouts: Annotated[int, typer.Option("--rollouts", min=1, help="Episodes of a policy in each condition.")] = 100,
    conditions: Annotated[str, typer.Option("--conditions", help="Names with commas between, or all.")] = CONDITIONS,
    data: Annotated[
        Path | None, typer.Option("--data", help="Folder of the demonstrations; by default OUT/demonstrations.")
    ] = None,
    renderer: Annotated[str, typer.Option("--renderer", help="How pictures are drawn: auto, gl or rays.")] = "auto",
    alone: Annotated[bool, typer.Option(help="Train a policy of each sensor alone, too.")] = True,
    quick: Annotated[bool, typer.Option("--quick", help="A small study that shows everything in three minutes.")] = False,
    out: options.StudyFolder = Path("runs/control"),
    workers: options.Workers = None,
    as_json: options.Json = False,
) -> None:
    """Let an expert put pegs into holes, clone it with every method, and let the policies try, with sensors that fail.

    Proprioception, a camera and a force sensor: only the camera knows where the hole is, only force tells the last
    millimetre and a jam. The page has success by condition, what each policy looks at by phase, and a film.
    """
    import json

    from equipoise.control.camera import load_mujoco

    load_mujoco()  # says what to install before anything else is asked for
    from equipoise.control.conditions import conditions_of
    from equipoise.control.demonstrations import generate
    from equipoise.control.film import films
    from equipoise.control.report import control_tables, write_report
    from equipoise.control.study import EPISODE_SEEDS, Plan, lines, run_study

    typed = list(words or ())
    if quick:
        context = {"methods": METHODS, "seeds": 5, "demonstrations": 500, "rollouts": 100}
        given = {"methods": methods, "seeds": seeds, "demonstrations": demonstrations, "rollouts": rollouts}
        chosen = {name: QUICK[name] if given[name] == context[name] else given[name] for name in QUICK}
