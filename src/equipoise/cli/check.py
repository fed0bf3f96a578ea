"""`equipoise check`: everything that is wrong with a data set, and what there is of it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from equipoise.cli import options
from equipoise.util.errors import printable

if TYPE_CHECKING:
    from equipoise.data.check import DataReport

EXAMPLE = "Example: equipoise check --data my.npz"
MOST_CLASSES = 40


def check(
    data: Annotated[str, typer.Option("--data", help="A name, a prepared folder, an .npz, a .csv or a .parquet.")],
    split: options.Split = None,
    as_json: options.Json = False,
    words: Annotated[
        list[str] | None, typer.Argument(help="encoder=text:words: the encoders that are to read it; see `compare`.")
    ] = None,
) -> None:
    """Look a data set over: everything that is wrong with it at once, its classes, parts and modalities."""
    import torch

    torch.set_num_threads(1)
    from equipoise.data.check import check_data
    from equipoise.models.choose import kinds_of
    from equipoise.study.registry import entries
    from equipoise.util.errors import collect, raise_all

    ((chosen,),) = collect(lambda: entries(["msl"], words or ()))
    encoder, features = chosen.settings.encoder, chosen.settings.features
    found = check_data(data, split, _tokens(data, encoder, features))
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
    """Which encoder inputs of a shape get where none is named."""
    import torch

    from equipoise.models.encoders import Frames, encoder_for

    with torch.device("meta"):  # by name only: its weights may be large
        encoder = encoder_for(shape)
    inner = f" of {type(encoder.encoder).__name__}" if isinstance(encoder, Frames) else ""
    return type(encoder).__name__ + inner


def _print(found: DataReport, encoders: dict[str, str]) -> None:
    if found.samples:
        print(f"{printable(found.data)}: {sum(found.samples.values()):,} samples, {len(found.modalities)} modalities")
    if found.about:
        print(printable(found.about))
    if found.modalities:
        rows = [
            [
                name,
                " × ".join(map(str, each.shape)),
                "{} to {}".format(*each.lengths) if each.lengths else "",
                each.numbers,
                encoders[name],
            ]
            for name, each in found.modalities.items()
        ]
        _table(["modality", "one sample", "steps", "numbers", "encoder"], rows)
    if found.samples:
        rows = [[name, *counts.values()] for name, counts in list(found.classes.items())[:MOST_CLASSES]]
        if len(found.classes) > MOST_CLASSES:
            rows.append([f"… {len(found.classes) - MOST_CLASSES} more", *[""] * len(found.samples)])
        rows.append(["samples", *found.samples.values()])
        if found.groups:
            rows.append(["groups", *found.groups.values()])
        _table(["class", *found.samples], rows)
    for title, lines in (("Wrong", found.errors), ("Odd", found.warnings)):
        if lines:
            print(f"\n{title}, {len(lines)}:")
            for line in lines:
                print(f"  {printable(line)}")
    if not found.errors:
        print("\nNothing is wrong.")


def _table(titles: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    texts = [list(titles), *([printable(str(cell), "") for cell in row] for row in rows)]
    widths = [max(len(row[at]) for row in texts) for at in range(len(titles))]
    print()
    for row in texts:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
