"""From docstrings to Markdown: paragraphs, arguments, examples, and calls as they are typed."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from types import ModuleType
from typing import Any, ForwardRef

import equipoise
import equipoise.balance.theory
import equipoise.data
import equipoise.deploy
import equipoise.measure
import equipoise.methods
import equipoise.models
import equipoise.report
import equipoise.testing
import equipoise.training.settings
import equipoise.training.train
from equipoise import Balancer

ROOMS = {
    room.__name__: room
    for room in (
        equipoise,
        equipoise.models,
        equipoise.data,
        equipoise.training.train,
        equipoise.training.settings,
        equipoise.measure,
        equipoise.report,
        equipoise.deploy,
        equipoise.balance.theory,
        equipoise.testing,
    )
}
SECTIONS = {"Args": "Arguments", "Attributes": "Fields", "Returns": "Gives", "Raises": "Raises", "Example": "Example"}
TYPE_PREFIXES = re.compile(r"\b(?:typing|collections\.abc|torch(?:\._tensor)?(?=\.Tensor)|equipoise(?:\.\w+)*)\.")


def methods() -> list[type[Balancer]]:
    """Every method, the one that the library is built around first."""
    found = {each for each in vars(equipoise.methods).values() if isinstance(each, type) and issubclass(each, Balancer)}
    return sorted(found, key=lambda method: (method.__name__ != "MIMO", method.__name__.lower()))


def prose(text: str, root: str) -> str:
    """A paragraph of a docstring: formulas are no markup, and public names are links."""
    parts = re.split(r"(``.+?``|`.+?`)", text)
    for number, part in enumerate(parts):
        if part.startswith("`"):
            name = part.strip("`")
            target = _places(root).get(name)
            parts[number] = f"[`{name}`]({target})" if target else f"`{name}`"
        else:
            parts[number] = re.sub(r"([\\*_<>\[\]])", r"\\\1", part)
    return "".join(parts)


def docstring(text: str, root: str, setup: str = "") -> str:
    """A whole docstring in Google's layout.

    Args:
        text: The docstring.
        root: The way from the page to the documentation's root.
        setup: What a reader has to type before the example.
    """
    blocks = []
    for title, body in _sections(text):
        if title == "Example":
            blocks += [f"**{SECTIONS[title]}**", f"```pycon\n{setup}{body}\n```"]
        elif title in SECTIONS:
            blocks += [f"**{SECTIONS[title]}**", _items(body, root)]
        else:
            blocks.append(prose(body, root))
    return "\n\n".join(blocks)


def signature(name: str, item: Any) -> str:
    """A call as it is typed, one argument a line where it is long."""
    try:
        parameters = list(inspect.signature(item).parameters.values())
    except (TypeError, ValueError):
        return name
    parts, starred = [], False
    for parameter in parameters:
        if parameter.name in ("self", "cls"):
            continue
        if parameter.kind is parameter.VAR_POSITIONAL:
            starred = True
        if parameter.kind is parameter.KEYWORD_ONLY and not starred:
            parts.append("*")
            starred = True
        parts.append(_argument(parameter))
    line = f"{name}({', '.join(parts)})"
    return line if len(line) <= 96 else f"{name}(\n    " + ",\n    ".join(parts) + "\n)"


def _argument(parameter: inspect.Parameter) -> str:
    stars = {parameter.VAR_POSITIONAL: "*", parameter.VAR_KEYWORD: "**"}.get(parameter.kind, "")
    written = stars + parameter.name
    if parameter.annotation is not parameter.empty:
        kind = parameter.annotation
        kind = kind.__forward_arg__ if isinstance(kind, ForwardRef) else kind  # what a named tuple makes of text
        kind = kind if isinstance(kind, str) else inspect.formatannotation(kind)
        written += ": " + TYPE_PREFIXES.sub("", kind).replace("torch.nn.modules.module.Module", "nn.Module")
    if parameter.default is not parameter.empty:
        written += f" = {default_of(parameter)}"
    return written


def default_of(parameter: inspect.Parameter) -> str:
    """A default as it is typed; what a dataclass makes anew for each is an empty mapping."""
    return "{}" if repr(parameter.default) == "<factory>" else repr(parameter.default)


def _sections(text: str) -> Iterator[tuple[str, str]]:
    """Paragraphs as ("", text), sections as (title, text without its indent)."""
    for block in re.split(r"\n\s*\n(?=\S)", inspect.cleandoc(text)):
        title, _, body = block.partition(":\n")
        if title in SECTIONS:
            yield title, inspect.cleandoc(body)
        else:
            # The paper and the cost stand on lines of their own.
            yield "", re.sub(r"\n(?=(?:Paper|Cost): )", "  \n", block)


def _items(body: str, root: str) -> str:
    """Lines "name: what it is" as a list; a plain sentence as it is."""
    items = re.split(r"\n(?=\S)", body)
    if not all(re.match(r"\w+: ", item) for item in items):
        return prose(body, root)
    pairs = (" ".join(item.split()).split(": ", 1) for item in items)
    return "\n".join(f"- `{name}`: {prose(text, root)}" for name, text in pairs)


def _places(root: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for title, room in ROOMS.items():
        for name in names(room):
            found.setdefault(name, f"{root}api.md#{anchor(title, name)}")
    return found | {each.__name__: f"{root}methods/{each.__name__.lower()}.md" for each in methods()}


def anchor(title: str, name: str) -> str:
    """Where a name stands on the page of names; with its room before it where an earlier room has the name too."""
    first = next(other for other, room in ROOMS.items() if name in names(room))
    return name.lower() if title == first else f"{title.rpartition('.')[2]}-{name.lower()}"


def names(room: ModuleType) -> dict[str, Any]:
    """The public names that a module offers: what it re-exports, or defines."""
    own = {
        name: item
        for name, item in vars(room).items()
        if not name.startswith("_") and (inspect.isclass(item) or inspect.isfunction(item))
    }
    package = hasattr(room, "__path__")
    return {name: item for name, item in own.items() if package or item.__module__ == room.__name__}


def doc(item: object) -> str:
    """A docstring without its indent; empty where there is none."""
    return inspect.getdoc(item) or ""
