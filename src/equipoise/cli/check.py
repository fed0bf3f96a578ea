"""`equipoise check`: everything that is wrong with a data set, and what there is of it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from equipoise.cli import options
from equipoise.report.formats import text_table
from equipoise.util.errors import printable

if TYPE_CHECKING:
    from equipoise.data.check import DataReport, NumberSummary

EXAMPLE = "Example: equipoise check --data my.npz task=regression"
MOST_CLASSES = 40
TASKS = {"classes": "task=classes", "regression": "task=regression, numbers", "labels": "task=labels, several of them"}
NUMBERS: dict[str, Callable[[NumberSummary], str]] = {
    "range": lambda numbers: f"{numbers.least:.4g} to {numbers.most:.4g}",
    "mean ± deviation": lambda numbers: f"{numbers.mean:.4g} ± {numbers.deviation:.4g}",
    "5, 50, 95 %": lambda numbers: ", ".join(f"{numbers.quantiles[at]:.4g}" for at in (0, 2, 4)),
}


def check(
    data: Annotated[str, typer.Option("--data", help="A name, a prepared folder, an .npz, a .csv or a .parquet.")],
    split: options.Split = None,
    as_json: options.Json = False,
    words: Annotated[
        list[str] | None,
        typer.Argument(
            help="task=regression: what the label is; encoder=text:words: what is to read it; see `compare`."
        ),
    ] = None,
) -> None:
    """Look a data set over: everything that is wrong with it at once, its labels, parts and modalities."""
    import torch

    torch.set_num_threads(1)
    from equipoise.data.check import check_data
    from equipoise.models.choose import kinds_of
    from equipoise.study.registry import entries
    from equipoise.util.errors import collect, raise_all

    ((chosen,),) = collect(lambda: entries(["msl"], words or ()))
    encoder, features = chosen.settings.encoder, chosen.settings.features
    found = check_data(data, split, _tokens(data, encoder, features), chosen.settings.task)
    kinds, wrong = kinds_of(encoder, found.modalities)
    # An array that cannot be read is no modality: whoever named it did nothing wrong.
    collect(lambda: raise_all([] if found.errors else wrong))
    encoders = {
        name: encoder_name(each.shape) if kinds[name] == "auto" else kinds[name]
        for name, each in found.modalities.items()
    }
    if as_json:
        content = found.as_dict()
        for name, encoder in encoders.items():
            content["modalities"][name]["encoder"] = encoder
        print(json.dumps({"fine": not found.errors, **content}))
    else:
        _print(found, encoders)
    if found.errors:
        raise typer.Exit(2)


def _tokens(data: str, encoder: str, features: int) -> tuple[str, ...]:
    from equipoise.data.source import is_file, samples_of, tokens_of
    from equipoise.util.errors import BadInput

    if not is_file(data):
        return ()
    try:
        return tokens_of(samples_of(data), encoder, features)
    except BadInput:  # a file that cannot be read: `check_data` says why
        return ()


def encoder_name(shape: tuple[int, ...]) -> str:
    """Return the name of the encoder that inputs of a shape get where none is named."""
    import torch

    from equipoise.models.choose import encoder_for
    from equipoise.models.encoders import Frames

    with torch.device("meta"):  # by name only: its weights may be large
        encoder = encoder_for(shape)
    inner = f" of {type(encoder.encoder).__name__}" if isinstance(encoder, Frames) else ""
    return type(encoder).__name__ + inner


def _print(report: DataReport, encoders: dict[str, str]) -> None:
    if report.samples:
        count = f"{sum(report.samples.values()):,} samples, {len(report.modalities)} modalities, {TASKS[report.task]}"
        print(f"{printable(report.data)}: {count}")
    if report.about:
        print(printable(report.about))
    if modalities := report.modalities:
        lengths = {name: "{} to {}".format(*own.lengths) if own.lengths else "" for name, own in modalities.items()}
        shapes = {name: " × ".join(map(str, own.shape)) for name, own in modalities.items()}
        rows = [[name, shapes[name], lengths[name], modalities[name].numbers, encoders[name]] for name in modalities]
        _table(["modality", "one sample", "steps", "numbers", "encoder"], rows)
        gaps = {name: own.missing for name, own in modalities.items() if own.missing}
        if gaps:
            _table(
                ["missing", *report.samples],
                [[name, *(own.get(part, 0) for part in report.samples)] for name, own in gaps.items()],
            )
    if report.samples:
        _print_labels(report)
    if report.baseline:
        print(f"\n{printable(report.baseline)}")
    for title, lines in (("Wrong", report.errors), ("Odd", report.warnings)):
        if lines:
            print(f"\n{title}, {len(lines)}:", *(f"  {printable(line)}" for line in lines), sep="\n")
    if not report.errors:
        print("\nNothing is wrong.")


def _print_labels(report: DataReport) -> None:
    rows: list[list[object]] = [
        [name, *counts.values()] for name, counts in list(report.classes.items())[:MOST_CLASSES]
    ]
    if len(report.classes) > MOST_CLASSES:
        rows.append([f"… {len(report.classes) - MOST_CLASSES} more", *[""] * len(report.samples)])
    for name, parts in report.numbers.items():
        for title, show in NUMBERS.items():
            rows.append([f"{name}, {title}", *(show(parts[part]) if part in parts else "" for part in report.samples)])
    rows.append(["samples", *report.samples.values()])
    rows += [["groups", *report.groups.values()]] if report.groups else []
    first = {"regression": "number", "labels": "label"}.get(report.task, "class")
    _table([first, *report.samples], rows)


def _table(titles: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    texts = [[printable(str(cell), "") for cell in row] for row in rows]
    print("", *(line.removeprefix("  ") for line in text_table(titles, texts)), sep="\n")
