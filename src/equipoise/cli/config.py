"""`--config study.yaml`: options and words in a file; those that are typed win over it."""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from equipoise.study.registry import all_methods
from equipoise.training import settings
from equipoise.util.errors import BadInput, look_up, raise_all
from equipoise.util.extras import needs
from equipoise.util.named import is_path

WORDS = "words"
LONGEST = 65_536  # bytes of a file
SEVERAL = {"ablate", "tune"}
"""Commands whose words may hold several values, which they read themselves."""
_FROM_FILE = "equipoise.words"
_METHODS = ("method", "methods")


def read_config(context: typer.Context, path: Path | None) -> None:
    """Take the entries of a file for what the command line does not say."""
    if path is None:
        return
    params = {param.opts[0].removeprefix("--"): param for param in context.command.params if param.opts[0][:2] == "--"}
    options = {name: param for name, param in params.items() if name != "config"}
    values: dict[str, Any] = {}
    words, problems = [], []
    found = list(_entries(_mapping(path)))
    own = any(is_path(name.strip()) for _, key, text, _ in found if key in _METHODS for name in text.split(","))
    for line, key, text, wrong in found:
        try:
            if wrong:
                raise BadInput(f"{key}: {wrong}")
            option = options.get(key.replace("_", "-"))
            if option is not None:
                values[option.name] = option.process_value(context, text)
            else:
                _check_word(context, key, text, options, own=own)
                words.append(f"{key}={text}")
        except typer.BadParameter as error:
            problems.append(f"{path}, line {line}: {key}: {error.message}, found {text!r}")
        except BadInput as error:
            problems.append(f"{path}, line {line}: {error}")
    raise_all(problems)
    context.default_map = {**(context.default_map or {}), **values}
    context.meta[_FROM_FILE] = words


def after_config(context: typer.Context, words: list[str] | None) -> list[str]:
    """Return the file's words, then those that were typed: of two for one thing the later counts."""
    return [*context.meta.get(_FROM_FILE, ()), *(words or ())]


_HELP = "A YAML file with options and words; what is typed wins."
_OPTION = typer.Option("--config", callback=read_config, is_eager=True, expose_value=False, help=_HELP)
Config = Annotated[Path | None, _OPTION]


def _check_word(context: typer.Context, key: str, text: str, options: dict[str, Any], *, own: bool) -> None:
    """Check that a key that is no option is a setting or a parameter, and has a value that can be one.

    Parameters of a class of the user's own are left to whoever makes it; `own` says that the file names such a class.
    """
    if not any(param.name == WORDS for param in context.command.params):
        look_up("key", key, options)
    parameters = {f"{name}.{own}": method for name, method in all_methods().items() for own in method.parameters}
    bare = {parameter.partition(".")[2] for parameter in parameters}
    known = [*options, *settings.names(), *(f"run.{name}" for name in settings.names()), *parameters, *sorted(bare)]
    owner, _, name = key.rpartition(".")
    if key not in known and (own or (owner and owner != "run" and owner not in all_methods())):
        return
    look_up("key", key, dict.fromkeys(known))
    if context.command.name in SEVERAL:
        return
    if key in parameters:
        parameters[key].convert(name, text)
    elif name in settings.names() and (owner == "run" or name not in bare):
        settings.parse(name, text)


def _mapping(path: Path) -> Any:
    """Parse a file into its mapping; an empty one where it holds nothing."""
    with needs("--config", "train"):
        import yaml
    try:
        # Read as text, as a command line is: to YAML, `on` is a truth and 1e-3 a string.
        root = yaml.compose(_text(path), Loader=yaml.BaseLoader)
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"--config {path}: expected a YAML file; {error}") from None
    except yaml.YAMLError as error:
        raise BadInput(f"{path}: this is no YAML: {error}") from None
    except RecursionError:
        raise BadInput(f"{path}: expected lines such as `epochs: 30`, found lists in each other, very deep") from None
    if root is not None and root.id != "mapping":
        raise BadInput(f"{path}: expected lines such as `epochs: 30`, found a {root.id}")
    return root


def _text(path: Path) -> str:
    """Read a file that is one, and not longer than anybody writes."""
    if path.exists() and not path.is_file():  # reading a pipe or a device may never end
        raise BadInput(f"--config {path}: expected a YAML file, found a folder, a pipe or a device")
    with path.open("rb") as file:
        content = file.read(LONGEST + 1)
    if len(content) > LONGEST:
        raise BadInput(f"--config {path}: expected a YAML file of at most {LONGEST:,} bytes, found more")
    return content.decode("utf-8")


def _entries(mapping: Any, owner: str = "") -> Iterator[tuple[int, str, str, str]]:
    """Yield line number, key, text and problem of each entry of a mapping, and of the mappings in it."""
    known: set[str] = set()
    for key, value in mapping.value if mapping is not None else ():
        scalar = key.id == "scalar"  # written out, what a list refers to many times may be without end
        name = owner + (key.value if scalar else f"a {key.id}")
        text = wrong = ""
        if not scalar:
            wrong = "expected a name before the colon"
        elif name in known:
            wrong = "it is there twice"
        elif value.id == "scalar":
            text = value.value
        elif value.id == "sequence" and all(part.id == "scalar" for part in value.value):
            text = ",".join(part.value for part in value.value)
        elif value.id == "mapping" and not owner:
            known.add(name)
            yield from _entries(value, f"{name}.")
            continue
        else:
            wrong = "expected a value, a list of values, or the parameters of a method"
        known.add(name)
        yield key.start_mark.line + 1, name, text, wrong
