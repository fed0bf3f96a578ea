"""Options that several commands have."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import typer

from equipoise.cli.config import WORDS
from equipoise.data.source import DataSet, data_set
from equipoise.study.catalogue import all_methods
from equipoise.training import settings
from equipoise.training.presets import Preset, preset_for
from equipoise.util.errors import answers

Data = Annotated[str, typer.Option("--data", help="A name (`equipoise datasets`), a prepared folder, or a file.")]
Split = Annotated[str | None, typer.Option("--split", help="The protocol that cuts prepared data.")]
PresetName = Annotated[
    str, typer.Option("--preset", help="Published settings (`equipoise presets`); auto: those of the data set.")
]
OneMethod = Annotated[str, typer.Option(help="One method; see `equipoise methods`.")]
Folds = Annotated[bool, typer.Option("--folds", help="Every group-wise fold instead of the one fixed cut.")]
Workers = Annotated[
    int | None,
    typer.Option("--workers", min=1, help="Runs side by side; by default one per core, or as many as the GPUs carry."),
]
On = Annotated[
    str | None, typer.Option("--on", help="Where runs take place: ray, ray://HOST:10001, or slurm; by default here.")
]
Encoder = Annotated[
    str | None,
    typer.Option("--encoder", help="The encoders as named for training, where one was your own: my.module.Encoder."),
]
Trust = Annotated[bool, typer.Option("--trust", help="Run the code of the encoders that the folder names.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")]


def complaint(found: Any) -> str:
    """What the parser of a command line says of it, and what to type where an option should have been a word.

    Args:
        found: The parser's error.
    """
    said = found.format_message()
    if said.startswith("Usage: "):  # nothing was typed, and this is the help
        return said
    option = getattr(found, "option_name", "")
    name = option.removeprefix("--").replace("-", "_")
    known = {*settings.names(), *(each for method in all_methods().values() for each in method.defaults())}
    if name in known and any(each.name == WORDS for each in found.ctx.command.params):
        return f"equipoise: no such option: {option}; settings and parameters are words: type {name}=…"
    return f"equipoise: {said}"


def data_and(
    data: str, split: str | None, preset: str, lines: Callable[[Preset | None], Any], *others: Callable[[], Any]
) -> list[Any]:
    """The data, what is made of its preset, and the rest, or one message with everything that is wrong.

    Args:
        data: As typed.
        split: Its protocol, as typed.
        preset: As typed; "auto" is that of the data, and none where there is no such data.
        lines: Makes what a command runs, from the preset.
        others: Further inputs to read.
    """
    found: list[DataSet] = []

    def source() -> DataSet:
        found.append(data_set(data, split))
        return found[0]

    return answers(source, lambda: lines(preset_for(preset, found[0].name if found else "")), *others)
