"""The command. Every subcommand says what it does, shows an example, and answers bad input with one message."""

from __future__ import annotations

import json
import shlex
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
from equipoise.catalogue import DataSet, Entry, all_data, all_methods, entries, look_up

COMMAND = "command.txt"
INTERRUPTED = 130  # as shells have it
app = typer.Typer(no_args_is_help=True, add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)

Data = Annotated[str, typer.Option("--data", help="A data set by name; see `equipoise datasets`.")]
Out = Annotated[Path, typer.Option("--out", help="Folder for results, curves, checkpoints and the page.")]
Seeds = Annotated[int, typer.Option("--seeds", min=1, help="Runs per method, with seeds 0, 1, …")]
Folds = Annotated[bool, typer.Option("--folds", help="Every group-wise fold instead of the one fixed cut.")]
Workers = Annotated[int | None, typer.Option("--workers", min=1, help="Runs side by side; one per core by default.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")]
Words = Annotated[
    list[str] | None, typer.Argument(help="name=value: a setting (epochs=30) or a parameter (mimo.penalty=10).")
]


@app.command(
    epilog="Example: equipoise compare --data watch --methods msl,ew,mimo --seeds 3 --out runs/watch epochs=20"
)
def compare(
    words: Words = None,
    *,
    data: Data = "watch",
    methods: Annotated[str, typer.Option(help="Names with commas between, or all.")] = "all",
    seeds: Seeds = 3,
    folds: Folds = False,
    tune: Annotated[int, typer.Option(min=0, help="Trials per method and fold, chosen on validation data.")] = 0,
    controls: Annotated[bool, typer.Option("--controls", help="Add EW at weight λ/K and modality dropout.")] = False,
    quick: Annotated[bool, typer.Option("--quick", help="Leave out sensor faults and the costlier protocols.")] = False,
    out: Out = Path("runs/compare"),
    workers: Workers = None,
    as_json: Json = False,
) -> None:
    """Train every method on the same data and print the table; the page is written beside it."""
    chosen, source = _answers(
        lambda: entries(methods.split(","), words or ()), lambda: look_up("data set", data, all_data())
    )
    if controls:
        chosen += _controls(chosen, source)
    rows = _study(chosen, source, seeds, folds=folds, out=out, workers=workers, quiet=as_json, tune=tune, quick=quick)
    _show(out, rows, as_json=as_json)


@app.command(
    epilog="Example: equipoise train --data watch --method mimo --out runs/one penalty=10 smoothing=0.1 epochs=20"
)
def train(
    words: Words = None,
    *,
    data: Data = "watch",
    method: Annotated[str, typer.Option(help="One method; see `equipoise methods`.")] = "mimo",
    seed: Annotated[int, typer.Option(help="Of weights, batches and dropout.")] = 0,
    out: Out = Path("runs/train"),
    as_json: Json = False,
) -> None:
    """Train one model and say what it can do."""
    chosen, source = _answers(lambda: entries([method], words or ()), lambda: look_up("data set", data, all_data()))
    rows = _study(chosen, source, [seed], folds=False, out=out, workers=1, quiet=as_json)
    _show(out, rows, as_json=as_json)


@app.command(epilog="Example: equipoise report runs/watch --format latex")
def report(
    folder: Annotated[Path, typer.Argument(help="A folder that `compare` or `train` wrote.")],
    form: Annotated[str, typer.Option("--format", help="terminal, markdown, latex, csv or json.")] = "terminal",
    as_json: Json = False,
) -> None:
    """Print the table of finished runs again, and write the page anew."""
    from equipoise import report as reports

    writers: dict[str, Callable[[Any], str]] = {
        "markdown": reports.as_markdown,
        "latex": reports.as_latex,
        "csv": reports.as_csv,
        "json": reports.as_json,
    }
    wanted = "json" if as_json else form
    writer, results = _answers(
        lambda: look_up("format", wanted, {"terminal": None, **writers}), lambda: reports.read(folder)
    )
    if wanted == "terminal":
        _print_tables(folder)
        return
    table, *_ = reports.tables(results)
    print(writer(table))


@app.command(epilog="Example: equipoise diagnose --data watch --seeds 3 epochs=20")
def diagnose(
    words: Words = None,
    *,
    data: Data = "watch",
    seeds: Seeds = 3,
    folds: Folds = False,
    out: Out = Path("runs/diagnose"),
    workers: Workers = None,
    as_json: Json = False,
) -> None:
    """Is there an imbalance worth treating? Joint training against uni-modal training, measured alike."""
    from equipoise.diagnose import diagnose as judge

    chosen, source = _answers(
        lambda: entries(["msl", "unimodal"], words or ()), lambda: look_up("data set", data, all_data())
    )
    rows = _study(chosen, source, seeds, folds=folds, out=out, workers=workers, quiet=as_json)
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
    """Every data set, with one line."""
    found = all_data()
    if as_json:
        print(json.dumps({name: {"summary": each.summary, "folds": each.folds} for name, each in found.items()}))
        return
    for name, each in found.items():
        print(f"{name:<10} {each.summary} {each.folds} folds by group.")


@app.command(epilog="Example: equipoise version")
def version() -> None:
    """The version."""
    print(__version__)


def main() -> None:
    """Run the command; bad input ends with exit code 2 and one message, Ctrl-C with how to go on."""
    try:
        code = app(standalone_mode=False)  # None, or an exit code where a command did not come to its end
        if code == INTERRUPTED:
            raise KeyboardInterrupt  # the parser made a code of it
        sys.exit(code or 0)
    except (typer.Abort, KeyboardInterrupt):
        again = shlex.join(["equipoise", *sys.argv[1:]])
        print(f"\nStopped. Finished runs are kept. To go on, type:\n  {again}", file=sys.stderr)
        sys.exit(INTERRUPTED)
    except (ValueError, OSError, ModuleNotFoundError) as found:
        print(f"equipoise: {found}", file=sys.stderr)
        sys.exit(2)
    except Exception as found:
        if type(found).__name__ == "FailedRuns":  # by name: its module is not loaded for what needs no study
            kept = "the others are kept: `equipoise report` shows them"
            print(f"equipoise: some runs failed; {kept}.\n{found}", file=sys.stderr)
            sys.exit(1)
        if hasattr(found, "format_message"):  # how the parser of the command line says what is wrong with it
            print(f"equipoise: {found.format_message()}", file=sys.stderr)  # ty: ignore[call-non-callable]
            sys.exit(2)
        raise


def _study(
    chosen: list[Entry],
    source: DataSet,
    seeds: int | list[int],
    *,
    folds: bool,
    out: Path,
    workers: int | None,
    quiet: bool,
    tune: int = 0,
    quick: bool = False,
) -> list[dict[str, Any]]:
    """Plan, tune if asked, run, and give the rows."""
    import torch

    torch.set_num_threads(1)  # before data is loaded: processes that share memory must not inherit a pool of threads
    from equipoise import tuning
    from equipoise.progress import Progress
    from equipoise.store import Store
    from equipoise.study import plan, run_study

    store = Store(out)
    numbers = list(range(seeds)) if isinstance(seeds, int) else seeds
    cuts = list(range(source.folds)) if folds else [None]
    jobs, splits = plan(chosen, source, numbers, cuts, measure="quick" if quick else "all")
    _keep_command(out)
    if tune:
        total = len(splits) * sum(len(tuning.trials(entry, tune)) for entry in chosen)
        with Progress(total, "tuning on validation data", quiet=quiet) as progress:
            jobs = tuning.tune(
                chosen, jobs, splits, Store(out / "tuning"), tune, workers=workers, on_event=progress.event
            )
    done = {row["config"] for row in store.rows()}
    with Progress(sum(job.config not in done for job in jobs), "runs", quiet=quiet) as progress:
        return run_study(jobs, splits, store, workers=workers, on_event=progress.event)


def _controls(chosen: list[Entry], source: DataSet) -> list[Entry]:
    """What has to stand beside MIMO and beside every claim on missing sensors."""
    known, base = all_methods(), chosen[0].settings
    penalty = next((entry.params["penalty"] for entry in chosen if entry.method.name == "mimo"), 10.0)
    weight = penalty / len(source.load(None).modalities)
    ew = Entry("ew at λ/K", known["ew"], {"weight": weight}, base, fixed=("weight",))
    dropout = Entry("msl + dropout", known["msl"], {}, base.changed({"dropout": 0.3}))
    return [ew, dropout]


def _show(out: Path, rows: list[dict[str, Any]], *, as_json: bool) -> None:
    if as_json:
        print(json.dumps(rows))
        return
    _print_tables(out)


def _print_tables(folder: Path) -> None:
    from equipoise import report as reports

    made_by = folder / COMMAND
    page = reports.page(folder, command=made_by.read_text(encoding="utf-8").strip() if made_by.is_file() else None)
    for table in reports.tables(reports.read(folder)):
        reports.terminal(table)
    print(f"The page: {page}")


def _keep_command(folder: Path) -> None:
    """For the page, also when it is written again: how the results were made."""
    (folder / COMMAND).write_text(shlex.join(["equipoise", *sys.argv[1:]]) + "\n", encoding="utf-8")


def _answers(*questions: Callable[[], Any]) -> list[Any]:
    """What several inputs mean, or one message with the problems of all of them."""
    answers, problems = [], []
    for question in questions:
        try:
            answers.append(question())
        except ValueError as found:
            problems.append(str(found))
    if problems:
        raise ValueError("\n".join(problems))
    return answers


if __name__ == "__main__":
    main()
