"""Options and inputs that several commands share."""

import dataclasses
import json
import re
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_type_hints

import typer

from equipoise.cli.config import WORDS, after_config
from equipoise.data.source import DataSet, data_set
from equipoise.study.registry import all_methods
from equipoise.training import settings
from equipoise.training.presets import Preset, preset_for
from equipoise.training.trackers import NAMES, Trackers
from equipoise.util.errors import BadInput, collect, look_up, raise_all
from equipoise.util.files import as_shown, write_atomic

T = TypeVar("T")
MOST = 10**9  # of whatever is counted
DEEPEST = 200

Data = Annotated[str, typer.Option("--data", help="A name (`equipoise datasets`), a prepared folder, or a file.")]
Split = Annotated[str | None, typer.Option("--split", help="The protocol that cuts prepared data.")]
PresetName = Annotated[
    str,
    typer.Option("--preset", help="Settings by name (`equipoise presets`); auto: those of the data set, else recipe."),
]
OneMethod = Annotated[str, typer.Option(help="One method (`equipoise methods`), or your own: my_file.Gap.")]
Seeds = Annotated[
    int,
    typer.Option("--seeds", min=1, help="Runs per method, with seeds 0, 1, …; instant, which draws nothing, has one."),
]
SeveralData = Annotated[
    str, typer.Option("--data", help="A name (`equipoise datasets`), a prepared folder, or a file; several by commas.")
]


def folds_of(value: object) -> int:
    """Read the value of ``--folds``: how many, True for all there are, or False for the one fixed cut."""
    text, words = str(value).lower(), {"all": True, "true": True, "yes": True, "false": False, "no": False, "0": False}
    if text not in words and (not text.isdecimal() or int(text) < 3):
        raise typer.BadParameter("expected all, or how many folds, 3 or more")
    return words[text] if text in words else int(text)


Folds = Annotated[
    int,
    typer.Option(
        "--folds",
        parser=folds_of,
        metavar="[N]",
        show_default=False,
        help="Every group-wise fold instead of the one fixed cut; --folds 5 cuts the groups into five.",
    ),
]
Workers = Annotated[
    int | None,
    typer.Option("--workers", min=1, help="Runs side by side; by default one per core, or as many as the GPUs carry."),
]
On = Annotated[
    str | None, typer.Option("--on", help="Where runs take place: ray, ray://HOST:10001, or slurm; by default here.")
]
Track = Annotated[str, typer.Option("--track", help=f"Log every epoch to {', '.join(NAMES)}; commas between.")]
StudyFolder = Annotated[Path, typer.Option("--out", help="Folder for results, curves, checkpoints and the page.")]
RunFolder = Annotated[Path, typer.Argument(help="The folder of a finished run, or of a command that made one.")]
Encoder = Annotated[
    str | None,
    typer.Option("--encoder", help="The encoders as named for training, where one was your own: my.module.Encoder."),
]
OwnModelPath = Annotated[
    str | None, typer.Option("--model", help="The model as named for training, where it was your own: my_file.Model.")
]
Trust = Annotated[bool, typer.Option("--trust", help="Run the code of the model or encoders that the folder names.")]
Quick = Annotated[bool, typer.Option("--quick", help="Leave out sensor faults and the costlier protocols.")]
Columns = Annotated[
    str, typer.Option("--columns", help="Columns of the tables, with commas between: fused,committee,worst …")
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")]
Words = Annotated[
    list[str] | None,
    typer.Argument(callback=after_config, help="name=value: a setting (epochs=30) or a parameter (mimo.penalty=10)."),
]


def typed_command() -> str:
    """Return the command as it was typed, to be recorded; pages are shown to others, so paths from / are shortened."""
    return shlex.join(
        ["equipoise", *(re.sub(r"(?<![^=,])/[^,]*", lambda path: as_shown(path[0]), word) for word in sys.argv[1:])]
    )


def names_of(text: str) -> tuple[str, ...]:
    """Return the names in a text with commas between, each once."""
    return tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))


def trackers_of(text: str) -> Trackers:
    """Return the trackers that ``--track`` names."""
    return Trackers(names_of(text))


def data_and(
    data: str, split: str | None, preset: str, lines: Callable[[Preset | None], Any], *others: Callable[[], Any]
) -> list[Any]:
    """Return the data, what is made of its preset, and the rest, or raise one error with every problem.

    Args:
        data: As typed.
        split: Its protocol, as typed.
        preset: As typed; "auto" is that of the data, and none where there is no such data.
        lines: Makes what a command runs, from the preset.
        others: Further inputs to read.
    """
    names: list[str] = []

    def source() -> DataSet:
        chosen = data_set(data, split)
        names.append(chosen.name)
        return chosen

    return collect(source, lambda: lines(preset_for(preset, names[0] if names else "")), *others)


def every_data_and(
    data: str, split: str | None, preset: str, lines: Callable[[Preset | None], Any], *others: Callable[[], Any]
) -> list[Any]:
    """Return a list of data sets, each with what is made of its preset, and the rest; see `data_and`."""
    texts = data.split(",") if "," in data and not Path(data).exists() else [data]

    def studies() -> list[tuple[DataSet, Any]]:
        if len(texts) > 1 and split is not None:
            again = "run the command once for each, with the same --out: one report shows them all"
            raise BadInput(f"--split {split}: expected one data set, found {len(texts)}; {again}")
        found = [
            tuple(each) for each in collect(*(partial(data_and, text.strip(), split, preset, lines) for text in texts))
        ]
        names = [source.name for source, _ in found]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise BadInput(
                f"--data: expected each name once, found {', '.join(twice)} twice; rename a file or a folder"
            )
        return found

    return collect(studies, *others)


def with_values(words: Sequence[str]) -> list[str]:
    """Give an option whose value may be left out the value it then has: ``--folds`` alone is ``--folds=all``."""
    following = [*words, ""][1:]
    return [
        "--folds=all" if word == "--folds" and not after.isdecimal() and after != "all" else word
        for word, after in zip(words, following, strict=True)
    ]


def check_sizes(typed: Mapping[str, Any]) -> None:
    """Refuse options whose size no command can work with, before anything is made of them."""
    problems = []
    for name, value in typed.items():
        least, most = (0, 2**63 - 1) if name == "seed" else (-MOST, MOST)
        if isinstance(value, int) and not least <= value <= most:
            problems.append(f"--{name.replace('_', '-')}: expected {max(0, least)} to {most:,}, found {value:,}")
        elif isinstance(value, Path) and len(value.parts) > DEEPEST:
            found = f"found {len(value.parts):,}"
            problems.append(f"--{name.replace('_', '-')}: expected at most {DEEPEST} folders in each other, {found}")
    raise_all(problems)


def from_words(owner: str, kind: Callable[..., T], words: Sequence[str], example: str = "") -> T:
    """Build a dataclass from ``name=value`` words, or raise one error with every problem.

    Args:
        owner: Of the options, for messages.
        kind: The dataclass.
        words: As typed.
        example: A word to show where one is none.
    """
    hints: Mapping[str, Any] = get_type_hints(kind)
    fields = dataclasses.fields(kind)  # ty: ignore[invalid-argument-type]
    kinds = {field.name: hints[field.name] for field in fields if field.init}
    (made,) = collect(
        partial(kind, **dict(collect(*(partial(_option, owner, kinds, word, example) for word in words))))
    )
    return made


def _option(owner: str, kinds: Mapping[str, Any], word: str, example: str) -> tuple[str, Any]:
    key, sign, text = word.partition("=")
    if not sign or not key:
        such = f", such as {example}" if example else ""
        has = f"; it has {', '.join(kinds)}" if kinds else ""
        raise BadInput(f"{word!r} should read name=value, an option of {owner}{such}{has}")
    if not kinds:
        raise BadInput(f"{key}: {owner} has no options")
    look_up(f"option of {owner}", key, kinds)
    if kinds[key] == tuple[float, ...]:
        return key, tuple(settings.convert(key, part, float) for part in text.split(","))
    return key, settings.convert(f"{owner}: {key}", text, kinds[key])


def show_results(
    out: Path, name: str, content: Mapping[str, Any], figures: Sequence[Path], text: str, files: str, *, as_json: bool
) -> None:
    """Write the numbers of an experiment beside its figures, and print them as JSON or as text."""
    content = {**content, "figures": [str(path) for path in figures]}
    write_atomic(out, name, json.dumps(content, indent=1) + "\n")
    print(json.dumps(content) if as_json else f"{text}\n\n{files}: {out}")


def parser_message(error: Any) -> str:
    """Return what the parser says of a command line, and what to type where an option should have been a word."""
    text = error.format_message()
    if text.startswith("Usage: "):  # nothing was typed, and this is the help
        return text
    option = getattr(error, "option_name", "")
    name = option.removeprefix("--").replace("-", "_")
    known = {*settings.names(), *(key for method in all_methods().values() for key in method.parameters)}
    if name in known and any(parameter.name == WORDS for parameter in error.ctx.command.params):
        return f"equipoise: no such option: {option}; settings and parameters are words: type {name}=…"
    return f"equipoise: {text}"
