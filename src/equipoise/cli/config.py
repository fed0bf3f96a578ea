"""`--config study.yaml`: what would be typed, kept in a file. What is typed wins over it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer

from equipoise.study.registry import all_methods
from equipoise.training import settings
from equipoise.util.errors import BadInput, look_up, raise_all

WORDS = "words"
LONGEST = 65_536  # bytes of a file
SEVERAL = {"ablate", "tune"}
"""Commands whose words may hold several values, which they read themselves."""
_FROM_FILE = "equipoise.words"


class Line(NamedTuple):
    """An entry of the file.

    Args:
        number: Of its line, for messages.
        key: An option, a setting or a parameter; ``method.parameter`` where the file had one inside the other.
        text: What would be typed.
        wrong: Why there is no such text; "" where there is.
    """

    number: int
    key: str
    text: str = ""
    wrong: str = ""


def read_config(context: typer.Context, path: Path | None) -> None:
    """Take the entries of a file for what the command line does not say."""
    if path is None:
        return
    options = _options(context)
    found: dict[str, Any] = {}
    words: list[str] = []
    problems: list[str] = []
    for line in _lines(path):
        try:
            option = options.get(line.key.replace("_", "-"))
            if line.wrong:
                raise BadInput(f"{line.key}: {line.wrong}")
            if option is not None:
                found[option.name] = _checked(context, option, line)
            else:
                _check_word(context, line, options)
                words.append(f"{line.key}={line.text}")
        except BadInput as problem:
            problems.append(f"{path}, line {line.number}: {problem}")
    raise_all(problems)
    context.default_map = {**(context.default_map or {}), **found}
    context.meta[_FROM_FILE] = words


def after_config(context: typer.Context, words: list[str] | None) -> list[str]:
    """The file's words, then those that were typed: of two for one thing the later counts."""
    return [*context.meta.get(_FROM_FILE, ()), *(words or ())]


Config = Annotated[
    Path | None,
    typer.Option(
        "--config",
        callback=read_config,
        is_eager=True,
        expose_value=False,
        help="A YAML file with options and words; what is typed wins.",
    ),
]


def _options(context: typer.Context) -> dict[str, Any]:
    """The options of a command by the names that are typed."""
    named = {each.opts[0].removeprefix("--"): each for each in context.command.params if each.opts[0].startswith("--")}
    return {name: each for name, each in named.items() if name != "config"}


def _checked(context: typer.Context, option: Any, line: Line) -> Any:
    """An option's value as the parser reads it."""
    try:
        return option.process_value(context, line.text)
    except typer.BadParameter as found:
        raise BadInput(f"{line.key}: {found.message}, found {line.text!r}") from None


def _check_word(context: typer.Context, line: Line, options: dict[str, Any]) -> None:
    """Whether a key that is no option is a setting or a parameter, and has a value that can be one."""
    if not any(each.name == WORDS for each in context.command.params):
        look_up("key", line.key, options)
    methods = all_methods()
    parameters = {f"{name}.{each}": method for name, method in methods.items() for each in method.parameters}
    bare = {key.partition(".")[2] for key in parameters}
    known = [*options, *settings.names(), *(f"run.{name}" for name in settings.names()), *parameters, *sorted(bare)]
    look_up("key", line.key, dict.fromkeys(known))
    if context.command.name in SEVERAL:
        return
    owner, _, name = line.key.rpartition(".")
    if line.key in parameters:
        parameters[line.key].convert(name, line.text)
    elif name in settings.names() and (owner == "run" or name not in bare):
        settings.parse(name, line.text)


def _lines(path: Path) -> list[Line]:
    """The entries of a file, in order."""
    try:
        import yaml
    except ModuleNotFoundError:
        msg = "--config needs PyYAML, which is not installed; type: pip install 'equipoise[train]'"
        raise ModuleNotFoundError(msg) from None
    try:
        # Read as text, as a command line is: to YAML, `on` is a truth and 1e-3 a string.
        root = yaml.compose(_text(path), Loader=yaml.BaseLoader)
    except (OSError, UnicodeDecodeError) as found:
        raise BadInput(f"--config {path}: expected a YAML file; {found}") from None
    except yaml.YAMLError as found:
        raise BadInput(f"{path}: this is no YAML: {found}") from None
    except RecursionError:
        raise BadInput(f"{path}: expected lines such as `epochs: 30`, found lists in each other, very deep") from None
    if root is None:
        return []
    if root.id != "mapping":
        raise BadInput(f"{path}: expected lines such as `epochs: 30`, found a {root.id}")
    return list(_entries(root))


def _text(path: Path) -> str:
    """The text of a file that is one, and not longer than anybody writes."""
    if path.exists() and not path.is_file():  # reading a pipe or a device may never end
        raise BadInput(f"--config {path}: expected a YAML file, found a folder, a pipe or a device")
    with path.open("rb") as file:
        content = file.read(LONGEST + 1)
    if len(content) > LONGEST:
        raise BadInput(f"--config {path}: expected a YAML file of at most {LONGEST:,} bytes, found more")
    return content.decode("utf-8")


def _entries(mapping: Any, owner: str = "") -> Iterator[Line]:
    """Each entry of a mapping, and of the mappings in it."""
    seen: set[str] = set()
    for key, value in mapping.value:
        scalar = key.id == "scalar"  # written out, what a list refers to many times may be without end
        name = owner + (key.value if scalar else f"a {key.id}")
        line = Line(key.start_mark.line + 1, name)
        if not scalar:
            yield line._replace(wrong="expected a name before the colon")
        elif name in seen:
            yield line._replace(wrong="it is there twice")
        elif value.id == "scalar":
            yield line._replace(text=value.value)
        elif value.id == "sequence" and all(each.id == "scalar" for each in value.value):
            yield line._replace(text=",".join(each.value for each in value.value))
        elif value.id == "mapping" and not owner:
            yield from _entries(value, f"{name}.")
        else:
            yield line._replace(wrong="expected a value, a list of values, or the parameters of a method")
        seen.add(name)
