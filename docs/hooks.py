"""Pages that the documentation makes from docstrings: one per method, their table, and the list of public names."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import TYPE_CHECKING, Any

import equipoise
import equipoise.methods
import equipoise.models
import equipoise.theory
from equipoise import Balancer
from equipoise.questions import Questions

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files

ROOMS = {"equipoise": equipoise, "equipoise.models": equipoise.models, "equipoise.theory": equipoise.theory}
# What a user calls on a balancer; the rest of its public methods serve the engine.
ON_A_BALANCER = ("forward", "attach", "end_epoch", "table", "active")
VIEWS = {
    "head": 'from heads that train with the encoders: `LateFusion(…, unimodal="head")`',
    "detached": 'from heads on detached features: `LateFusion(…, unimodal="detached")`',
    "split": 'the shares of an additive fused head, `LateFusion(…, unimodal="split")`, or heads of their own',
}
SECTIONS = {"Args": "Arguments", "Attributes": "Fields", "Returns": "Gives", "Raises": "Raises", "Example": "Example"}
TYPE_PREFIXES = re.compile(r"\b(?:typing|collections\.abc|torch(?:\._tensor)?(?=\.Tensor)|equipoise(?:\.\w+)*)\.")


# -- what the package says of itself --


def methods() -> list[type[Balancer]]:
    """Every method, the one that the library is built around first."""
    found = {each for each in vars(equipoise.methods).values() if isinstance(each, type) and issubclass(each, Balancer)}
    return sorted(found, key=lambda method: (method.__name__ != "MIMO", method.__name__.lower()))


def summary(method: type[Balancer]) -> str:
    """The first sentence of a method's file, without its name."""
    line = (inspect.getdoc(sys.modules[method.__module__]) or "").split("\n")[0]
    sentence = re.split(r"(?<=\.)\s", line.partition(": ")[2])[0]
    return sentence[0].upper() + sentence[1:].rstrip(".")


def cost(method: type[Balancer]) -> str:
    """Backward passes through the encoders, as the docstring says."""
    said = re.search(
        r"Cost: (one|two) backward pass(?:es)?( through separate encoders, K \+ 1 otherwise)?", _doc(method)
    )
    if said is None:
        raise ValueError(f"{method.__name__}: its docstring has no line 'Cost: one backward pass' or 'Cost: two …'")
    return {"one": "1", "two": "2"}[said[1]] + (", or K + 1" if said[2] else "")


def paper(method: type[Balancer]) -> str:
    """Authors, venue and year of a method's paper; a dash where it has none."""
    said = re.search(r'(?:Paper: |baseline of )([^":]+?), "[^"]+"(?: \(([^)]+)\))?', " ".join(_doc(method).split()))
    return "–" if said is None else ", ".join(part for part in said.groups() if part)


def takes_arguments(method: type[Balancer]) -> bool:
    """Whether a method has parameters of its own."""
    return "__init__" in vars(method)


def method_table(folder: str) -> str:
    """The table of methods, with links into ``folder``."""
    rows = ["| method | in one line | backward passes | paper |", "|---|---|---|---|"]
    for method in methods():
        page = f"[`{method.__name__}`]({folder}{method.__name__.lower()}.md)"
        rows.append(f"| {page} | {summary(method)} | {cost(method)} | {paper(method)} |")
    return "\n".join(rows)


# -- from docstrings to Markdown --


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
        kind = kind if isinstance(kind, str) else inspect.formatannotation(kind)
        written += ": " + TYPE_PREFIXES.sub("", kind).replace("torch.nn.modules.module.Module", "nn.Module")
    if parameter.default is not parameter.empty:
        written += f" = {parameter.default!r}"
    return written


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
    found = {name: f"{root}api.md#{name.lower()}" for room in ROOMS.values() for name in _names(room)}
    return found | {each.__name__: f"{root}methods/{each.__name__.lower()}.md" for each in methods()}


def _names(room: ModuleType) -> dict[str, Any]:
    """The public names that a module offers: what it re-exports, or defines."""
    own = {
        name: item
        for name, item in vars(room).items()
        if not name.startswith("_") and (inspect.isclass(item) or inspect.isfunction(item))
    }
    package = hasattr(room, "__path__")
    return {name: item for name, item in own.items() if package or item.__module__ == room.__name__}


def _doc(item: object) -> str:
    return inspect.getdoc(item) or ""


# -- the pages --


def method_page(method: type[Balancer]) -> str:
    """One method: what it does, what it needs, how it is called."""
    name, made = method.__name__, method()
    needs = [f"Uni-modal losses: {VIEWS[made.unimodal or 'head']}."]
    if made.route == "loss" or not made.needs_encoders:
        needs.append("`attach` is not needed; a model can be attached all the same.")
    else:
        needs.append("`balancer.attach(model)`, or `balancer.attach(model, encoders={…})` for a model of your own.")
    if made.modulates:
        needs.append("`attach(…, optimizer=optimizer)`, see [adaptive optimisers](../faq.md#adaptive-optimisers).")
    if made.needs:
        example = ", ".join(f'"{need}": …' for need in made.needs)
        needs.append(f'After every epoch `balancer.end_epoch({{"audio": {{{example}}}, …}})`, on validation data.')
    needs.append(
        "Accumulation: decides anew at each micro-batch; `Window` refuses it."
        if made.route == "gram"
        else "Accumulation: exact with [`Window`](../distributed.md#accumulation)."
    )
    setup = f">>> import torch\n>>> from equipoise import {name}\n"
    return "\n\n".join(
        [
            f"# {name}",
            f"{summary(method)}.",
            f"```python\n{signature(name, method) if takes_arguments(method) else f'{name}()'}\n```",
            docstring(_doc(method), "../", setup),
            "## What it needs",
            "\n".join(f"- {need}" for need in needs),
        ]
    )


def methods_page() -> str:
    """The table of methods, and how to read it."""
    return "\n\n".join(
        [
            "# Methods",
            "Every method is called the same way, `loss = balancer(losses)`, and can be replaced by any other. Each "
            "page here is the docstring of its class.",
            method_table(""),
            "*Backward passes* are passes through the encoders. MGDA and MMPareto need two where each uni-modal loss "
            "reaches its own encoder only, and K + 1 where it reaches others too: encoders that share parameters, or "
            "attend to each other. Which of the two holds is read off the graph of each step.",
            "To compare methods fairly, give each the same tuning budget on validation data, and put two controls "
            "beside MIMO: `EW(weight=λ/K)`, since the penalty λ also enlarges the step, and joint training at a larger "
            "learning rate. The [FAQ](../faq.md#larger-step) shows both.",
        ]
    )


def api_page() -> str:
    """Every public name with its docstring."""
    blocks = ["# Public names", "Made from the docstrings. Whatever is not listed here may change without notice."]
    told: set[int] = set()
    for title, room in ROOMS.items():
        blocks.append(f"## {title}")
        for name, item in sorted(_names(room).items(), key=lambda pair: pair[0].lower()):
            if id(item) in told or item in methods():
                continue
            told.add(id(item))
            blocks += _entry(name, item)
        if title == "equipoise":
            blocks += ["### What a method answers", prose(_doc(Questions), ""), *_members(Questions)]
    pages = ", ".join(f"[`{each.__name__}`](methods/{each.__name__.lower()}.md)" for each in methods())
    blocks.insert(3, f"The methods have pages of their own: {pages}.")
    return "\n\n".join(blocks)


def _entry(name: str, item: Any) -> list[str]:
    setup = f">>> import torch\n>>> from {_home(name)} import {name}\n"
    head = [
        f"### {name} {{ #{name.lower()} }}",
        f"```python\n{signature(name, item)}\n```",
        docstring(_doc(item), "", setup),
    ]
    return [*head, *_members(item)] if inspect.isclass(item) else head


def _members(owner: type) -> list[str]:
    names = ON_A_BALANCER if owner is Balancer else [name for name in vars(owner) if not name.startswith("_")]
    blocks = []
    for name in names:
        member = inspect.getattr_static(owner, name)
        text = _doc(member)
        if not text or not (isinstance(member, property) or inspect.isfunction(member)):
            continue
        called = f"{owner.__name__}.{name}"
        head = called if isinstance(member, property) else signature(called, member)
        blocks += [f"```python\n{head}\n```", docstring(text, "")]
    return blocks


def _home(name: str) -> str:
    return next(title for title, room in ROOMS.items() if name in _names(room))


def pages() -> dict[str, str]:
    """Every generated page by its place in the documentation."""
    generated = {f"methods/{each.__name__.lower()}.md": method_page(each) for each in methods()}
    return {"methods/index.md": methods_page(), **generated, "api.md": api_page()}


# -- what mkdocs calls --


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Put the page of every method into the navigation."""
    for entry in config.nav or []:
        if isinstance(entry, dict) and "Methods" in entry:
            entry["Methods"] = ["methods/index.md", *(f"methods/{each.__name__.lower()}.md" for each in methods())]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the generated pages."""
    from mkdocs.structure.files import File

    for place, text in pages().items():
        files.append(File.generated(config, place, content=text))
    return files
