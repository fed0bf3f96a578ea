"""`equipoise control`: policies for a peg-in-hole task with three sensors, trained, rolled out and compared."""

import json
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, cast

import typer

from equipoise.cli import options
from equipoise.cli.config import Config
from equipoise.util.errors import collect
from equipoise.util.progress import Progress

EXAMPLE = "Example: equipoise control --methods msl,moddrop,ew,mimo --hybrid msl,ew --seeds 5"
METHODS = "msl,moddrop,ew,mimo,primaldual,mmpareto,ogmge"
QUICK: dict[str, Any] = {"methods": "msl,ew", "seeds": 1, "demonstrations": 150, "rollouts": 10, "conditions": (
    "clean,camera_black,camera_lost_zero,camera_lost_committee"
)}  # fmt: skip
"""Options of `--quick`, where none is typed."""
QUICK_WORDS = ("epochs=12", "batch=64")
FULL: dict[str, Any] = {"methods": METHODS, "seeds": 5, "demonstrations": 500, "rollouts": 100, "conditions": "all"}


def control(
    words: options.Words = None,
    *,
    _config: Config = None,
    methods: Annotated[
        str | None, typer.Option("--methods", help=f"Names with commas between; by default {METHODS}.")
    ] = None,
    hybrid: Annotated[str, typer.Option("--hybrid", help="Those of them to train with hybrid fusion, too.")] = "",
    alone: Annotated[
        bool | None, typer.Option(help="Train a policy of each sensor alone, too; by default where not --quick.")
    ] = None,
    seeds: Annotated[int | None, typer.Option("--seeds", min=1, help="Policies of each line; by default 5.")] = None,
    demonstrations: Annotated[
        int | None, typer.Option("--demonstrations", min=3, help="Episodes of the expert; by default 500.")
    ] = None,
    rollouts: Annotated[
        int | None, typer.Option("--rollouts", min=1, help="Episodes of a policy in each condition; by default 100.")
    ] = None,
    conditions: Annotated[
        str | None, typer.Option("--conditions", help="Names with commas between: clean,camera_black; by default all.")
    ] = None,
    data: Annotated[
        Path | None, typer.Option("--data", help="Folder of the demonstrations; by default OUT/demonstrations.")
    ] = None,
    renderer: Annotated[str, typer.Option("--renderer", help="How pictures are drawn: auto, gl or rays.")] = "auto",
    quick: Annotated[
        bool, typer.Option("--quick", help="A small study of joint training and EW, in three minutes on two cores.")
    ] = False,
    out: options.StudyFolder = Path("runs/control"),
    workers: options.Workers = None,
    as_json: options.Json = False,
) -> None:
    """Clone an expert that puts pegs into holes, with every method, and let the policies try with sensors that fail.

    Only the camera knows where the hole is, only force tells the last millimetre and a jam, and proprioception is easy.
    The page has success by condition, what each policy follows in each phase, and a film.
    """
    from equipoise.control.camera import load_mujoco

    load_mujoco()  # says what to install, before anything else is looked at
    from equipoise.control.conditions import conditions_of
    from equipoise.control.demonstrations import generate
    from equipoise.control.film import films
    from equipoise.control.policy import Policy
    from equipoise.control.report import control_tables, write_report
    from equipoise.control.study import RolloutPlan, lines, run_study
    from equipoise.report import drawing
    from equipoise.util.files import inside

    drawing.check_ready()
    typed = {"methods": methods, "seeds": seeds, "demonstrations": demonstrations, "rollouts": rollouts}
    typed |= {"conditions": conditions}
    asked: dict[str, Any] = dict(QUICK if quick else FULL)
    asked |= {name: value for name, value in typed.items() if value is not None}
    spoken = [*(QUICK_WORDS if quick else ()), *(words or ())]
    names = options.names_of(asked["conditions"])
    with_alone = not quick if alone is None else alone
    chosen, tried, _ = collect(
        partial(lines, options.names_of(asked["methods"]), spoken, hybrid=options.names_of(hybrid), alone=with_alone),
        partial(conditions_of, names),
        partial(_check_renderer, renderer),
    )
    folder = data or out / "demonstrations"
    with Progress(quiet=as_json) as progress:

        def bar(what: str, done: int, total: int) -> None:
            progress.bar(what, what, done, total)

        kind = cast("Literal['auto', 'gl', 'rays']", renderer)
        show = partial(bar, "demonstrations")
        generate(folder, asked["demonstrations"], workers=workers, renderer=kind, on_progress=show)
        plan = RolloutPlan(asked["rollouts"], tuple(tried))
        rows = run_study(chosen, range(asked["seeds"]), folder, out, plan, workers=workers, bar=bar)
        filmed = _worth_a_film(rows)
        policy = Policy.load(inside(out, "runs", filmed["policy"]))
        page = write_report(rows, out, recordings=films(policy, filmed), command=options.typed_command())
    if as_json:
        print(json.dumps({"page": str(page), "rows": rows}))
        return
    _show(control_tables(rows))
    print(f"The page: {page}")


def _check_renderer(renderer: str) -> None:
    from equipoise.control.camera import open_camera

    open_camera(cast("Any", renderer))


def _worth_a_film(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the row of the policy that is shown: of several sensors, the one that succeeds most often."""
    several = [row for row in rows if len(row["sensors"]) > 1] or rows
    return max(several, key=lambda row: sum(sum(tries["success"]) for tries in row["rollouts"].values()))


def _show(tables: dict[str, Any]) -> None:
    from rich.console import Console

    from equipoise.report import print_table

    console = Console()
    for table in tables.values():
        print_table(table, console)
        console.print()
