"""The command. Every subcommand says what it does, shows an example, and answers bad input with one message."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

try:
    import typer
except ModuleNotFoundError:
    msg = "the command needs packages that are not installed; type: pip install 'equipoise[train]'"
    raise ModuleNotFoundError(msg) from None

from equipoise import __version__
from equipoise.cli import ablate, bench, check, export, landscape, monitor, prepare, reproduce, toy, tune
from equipoise.cli.config import Config, after_config
from equipoise.cli.options import Data, Folds, Json, On, OneMethod, PresetName, Split, Workers, complaint, data_and
from equipoise.cli.report import print_report, print_tables
from equipoise.cli.typed import trackers_of, typed
from equipoise.data.sets.originals import ORIGINALS
from equipoise.data.source import all_data
from equipoise.study import comparison
from equipoise.study.catalogue import all_methods, entries
from equipoise.study.executors import place_of
from equipoise.training import distributed
from equipoise.training.presets import all_presets
from equipoise.training.safe_step import words_for
from equipoise.training.settings import Settings
from equipoise.training.tracking import NAMES
from equipoise.util.errors import BadInput, FailedRuns, only_text, shown
from equipoise_command import INTERRUPTED, say_stopped

app = typer.Typer(no_args_is_help=True, add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)

Out = Annotated[Path, typer.Option("--out", help="Folder for results, curves, checkpoints and the page.")]
Seeds = Annotated[int, typer.Option("--seeds", min=1, help="Runs per method, with seeds 0, 1, …")]
Track = Annotated[str, typer.Option("--track", help=f"Log every epoch to {', '.join(NAMES)}; commas between.")]
Words = Annotated[
    list[str] | None,
    typer.Argument(callback=after_config, help="name=value: a setting (epochs=30) or a parameter (mimo.penalty=10)."),
]


@app.command(
    epilog="Example: equipoise compare --data watch --methods msl,ew,mimo --seeds 3 --out runs/watch epochs=20"
)
def compare(
    words: Words = None,
    *,
    _config: Config = None,
    data: Data = "watch",
    split: Split = None,
    preset: PresetName = "auto",
    methods: Annotated[str, typer.Option(help="Names with commas between, or all.")] = "all",
    seeds: Seeds = 3,
    folds: Folds = False,
    tune: Annotated[int, typer.Option(min=0, help="Trials per method and fold, chosen on validation data.")] = 0,
    controls: Annotated[bool, typer.Option("--controls", help="Add EW at weight λ/K and modality dropout.")] = False,
    quick: Annotated[bool, typer.Option("--quick", help="Leave out sensor faults and the costlier protocols.")] = False,
    out: Out = Path("runs/compare"),
    workers: Workers = None,
    on: On = None,
    track: Track = "",
    as_json: Json = False,
) -> None:
    """Train every method on the same data and print the table; the page is written beside it."""
    source, chosen, trackers, place = _asked(
        data, split, preset, methods.split(","), words, lambda: trackers_of(track), lambda: place_of(on)
    )
    if controls:
        chosen += comparison.controls(chosen, source)
    rows = comparison.compare(
        chosen,
        source,
        range(seeds),
        out,
        folds=folds,
        tune=tune,
        quick=quick,
        workers=workers,
        on=place,
        trackers=trackers,
        quiet=as_json,
        command=typed(),
    )
    _show(out, rows, as_json=as_json)


@app.command(
    epilog="Example: equipoise train --data watch --method mimo --out runs/one penalty=10 smoothing=0.1 epochs=20"
)
def train(
    words: Words = None,
    *,
    _config: Config = None,
    data: Data = "watch",
    split: Split = None,
    preset: PresetName = "auto",
    method: OneMethod = "mimo",
    seed: Annotated[int, typer.Option(help="Of weights, batches and dropout.")] = 0,
    step: Annotated[str, typer.Option("--step", help="given (lr), safe (1/L̂, before) or safe-each-epoch.")] = "given",
    out: Out = Path("runs/train"),
    track: Track = "",
    as_json: Json = False,
) -> None:
    """Train one model and say what it can do."""
    asked = [*words_for(step), *(words or ())]
    source, chosen, trackers = _asked(data, split, preset, [method], asked, lambda: trackers_of(track))
    rows = comparison.compare(chosen, source, [seed], out, workers=1, trackers=trackers, quiet=as_json, command=typed())
    _show(out, rows, as_json=as_json)
    if not as_json and (rate := rows[0].get("path", {}).get("learning rate")):
        print(f"Learning rate: {rate}")


@app.command(epilog="Example: equipoise report runs/watch --format latex")
def report(
    folder: Annotated[Path, typer.Argument(help="A folder that `compare` or `train` wrote.")],
    form: Annotated[str, typer.Option("--format", help="terminal, markdown, latex, csv or json.")] = "terminal",
    as_json: Json = False,
) -> None:
    """Print the table of finished runs again, and write the page anew."""
    print_report(folder, "json" if as_json else form)


@app.command(epilog="Example: equipoise diagnose --data watch --seeds 3 epochs=20")
def diagnose(
    words: Words = None,
    *,
    _config: Config = None,
    data: Data = "watch",
    split: Split = None,
    preset: PresetName = "auto",
    seeds: Seeds = 3,
    folds: Folds = False,
    out: Out = Path("runs/diagnose"),
    workers: Workers = None,
    as_json: Json = False,
) -> None:
    """Is there an imbalance worth treating? Joint training against uni-modal training, measured alike."""
    from equipoise.study.diagnose import diagnose as judge

    source, chosen = _asked(data, split, preset, ["msl", "unimodal"], words)
    rows = comparison.compare(
        chosen, source, range(seeds), out, folds=folds, workers=workers, quiet=as_json, command=typed()
    )
    joint, alone = ([row for row in rows if row["method"] == name] for name in ("msl", "unimodal"))
    found = judge(joint, alone)
    if as_json:
        print(
            json.dumps({"answer": found.answer, "advice": found.advice, "gaps": [gap.as_dict() for gap in found.gaps]})
        )
        return
    print(f"An imbalance worth treating? {found.answer.upper()}: {found.advice}.")
    print("Accuracy of a fresh linear layer on each encoder's features (protocol: probe), mean over runs:")
    runs = len(joint)
    for gap in found.gaps:
        interval = (
            f"95 % interval {100 * gap.low:+.1f} to {100 * gap.high:+.1f}" if runs > 1 else "one run, no interval"
        )
        print(
            f"  {gap.modality}: {100 * gap.alone:.1f} % trained alone, {100 * gap.joint:.1f} % in joint training; "
            f"{100 * gap.difference:+.1f} points lost ({interval})"
        )


@app.command(name="methods", epilog="Example: equipoise methods --json")
def list_methods(as_json: Json = False) -> None:
    """Every method, with one line and its parameters."""
    found = all_methods()
    if as_json:
        content = {name: {"summary": each.summary, "parameters": each.defaults()} for name, each in found.items()}
        print(json.dumps(content))
        return
    for name, each in found.items():
        words = " ".join(f"{key}={value}" for key, value in each.defaults().items())
        print(f"{name:<10} {each.summary}" + (f"\n{'':<10} {words}" if words else ""))


@app.command(epilog="Example: equipoise datasets")
def datasets(as_json: Json = False) -> None:
    """Every data set, with one line. Those that have to be prepared first say what from."""
    found = all_data()
    if as_json:
        ready = {name: {"summary": each.summary, "folds": each.folds} for name, each in found.items()}
        others = {
            name: {"summary": each.summary, "splits": list(each.protocols), "prepare": each.layout}
            for name, each in ORIGINALS.items()
        }
        print(json.dumps({**ready, **others}))
        return
    for name, each in found.items():
        print(f"{name:<16} {each.summary} {each.folds} folds by group.")
    for name, each in ORIGINALS.items():
        print(f"{name:<16} {each.summary[0].upper()}{each.summary[1:]}. Splits: {', '.join(each.protocols)}.")
    print("\nFrom cremad on, from the publisher's files: equipoise prepare NAME --source DIR --out data/NAME")


@app.command(epilog="Example: equipoise presets")
def presets(as_json: Json = False) -> None:
    """Published settings by name, and where each number comes from."""
    found = all_presets()
    if as_json:
        content = {
            name: {"data": each.data, "run": each.settings.as_dict(), "params": each.params, "source": each.source}
            for name, each in found.items()
        }
        print(json.dumps(content))
        return
    plain = Settings().as_dict()
    for name, each in found.items():
        changed = [f"{key}={value}" for key, value in each.settings.as_dict().items() if value != plain[key]]
        changed += [f"{method}.{key}={value}" for method, own in each.params.items() for key, value in own.items()]
        print(f"{name:<16} for {each.data}: {' '.join(changed)}\n{'':<16} {each.source}")


for _room, _command in (
    (check, check.check),
    (prepare, prepare.prepare),
    (toy, toy.toy),
    (landscape, landscape.landscape),
    (ablate, ablate.ablate),
    (reproduce, reproduce.reproduce),
    (tune, tune.tune),
    (export, export.export),
    (monitor, monitor.monitor),
    (bench, bench.bench),
):
    app.command(epilog=_room.EXAMPLE)(_command)


@app.command(epilog="Example: equipoise version")
def version() -> None:
    """The version."""
    print(__version__)


def main() -> None:
    """Run the command; bad input ends with exit code 2 and one message, Ctrl-C with how to go on."""
    try:
        only_text(sys.argv[1:])
        distributed.only_the_first_speaks(sys.argv[1:])
        code = app(standalone_mode=False)  # None, or an exit code where a command did not come to its end
        if code == INTERRUPTED:
            raise KeyboardInterrupt  # the parser made a code of it
        sys.exit(code or 0)
    except (typer.Abort, KeyboardInterrupt):
        say_stopped()
        sys.exit(INTERRUPTED)
    except (BadInput, OSError, ModuleNotFoundError) as found:
        distributed.say(f"equipoise: {found}", known_to_all=isinstance(found, BadInput))
        sys.exit(2)
    except FailedRuns as found:
        kept = "the others are kept: `equipoise report` shows them"
        print(shown(f"equipoise: some runs failed; {kept}.\n{found}"), file=sys.stderr)
        sys.exit(1)
    except Exception as found:
        if hasattr(found, "format_message"):  # how the parser of the command line says what is wrong with it
            distributed.say(complaint(found))
            sys.exit(2)
        raise


def _asked(
    data: str, split: str | None, preset: str, methods: list[str], words: list[str] | None, *others: Callable[[], Any]
) -> list[Any]:
    """The data, the lines of the comparison and the rest, or one message with everything that is wrong."""
    return data_and(data, split, preset, lambda chosen: entries(methods, words or (), chosen), *others)


def _show(out: Path, rows: list[dict[str, Any]], *, as_json: bool) -> None:
    if not distributed.leads():
        return
    if as_json:
        print(json.dumps(rows))
        return
    print_tables(out)


if __name__ == "__main__":
    main()
