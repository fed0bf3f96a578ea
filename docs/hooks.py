"""Pages that the documentation makes: one per method, their table, the list of public names, and the tutorial."""

from __future__ import annotations

import inspect
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tutorial
from docstrings import ROOMS, anchor, doc, docstring, methods, names, prose, signature

from equipoise import Balancer
from equipoise.balance.method import MethodHooks

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files

INVENTORY = Path(__file__).parent.parent / "tests" / "api_surface.txt"
# What a user calls on a balancer; the rest of its public methods serve the engine.
ON_A_BALANCER = ("forward", "attach", "end_epoch", "table", "active")
VIEWS = {
    "head": 'from heads that train with the encoders: `LateFusion(…, unimodal="head")`',
    "detached": 'from heads on detached features: `LateFusion(…, unimodal="detached")`',
    "split": 'the shares of an additive fused head, `LateFusion(…, unimodal="split")`, or heads of their own',
}


# -- what the package says of itself --


def summary(method: type[Balancer]) -> str:
    """The first sentence of a method's file, without its name."""
    line = (inspect.getdoc(sys.modules[method.__module__]) or "").split("\n")[0]
    sentence = re.split(r"(?<=\.)\s", line.partition(": ")[2])[0]
    return sentence[0].upper() + sentence[1:].rstrip(".")


def cost(method: type[Balancer]) -> str:
    """Backward passes through the encoders, as the docstring says."""
    said = re.search(
        r"Cost: (one|two) backward pass(?:es)?( through separate encoders, K \+ 1 otherwise)?", doc(method)
    )
    if said is None:
        raise ValueError(f"{method.__name__}: its docstring has no line 'Cost: one backward pass' or 'Cost: two …'")
    return {"one": "1", "two": "2"}[said[1]] + (", or K + 1" if said[2] else "")


def paper(method: type[Balancer]) -> str:
    """Authors, venue and year of a method's paper; a dash where it has none."""
    said = re.search(r'(?:Paper: |baseline of )([^":]+?), "[^"]+"(?: \(([^)]+)\))?', " ".join(doc(method).split()))
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
        always = type(made).needs_now is MethodHooks.needs_now
        when = "After every epoch" if always else "After the epochs for which `balancer.needs_now` asks for it,"
        where = ", on validation data" if always else ""
        needs.append(f'{when} `balancer.end_epoch({{"audio": {{{example}}}, …}})`{where}.')
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
            docstring(doc(method), "../", setup),
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
    blocks = [
        "# Public names",
        "Made from the docstrings. Public is what is listed here, what `equipoise.integrations` has for "
        "[other libraries](integrations.md), and every name that a page or an example imports: [the "
        "inventory](#the-inventory) has them all. The rest may change with any version.",
    ]
    told: set[int] = set()
    for title, room in ROOMS.items():
        blocks.append(f"## {title}")
        for name, item in sorted(names(room).items(), key=lambda pair: pair[0].lower()):
            if id(item) in told or item in methods():
                continue
            told.add(id(item))
            blocks += _entry(title, name, item)
        if title == "equipoise":
            blocks += ["### What a method answers", prose(doc(MethodHooks), ""), *_members(MethodHooks)]
    pages = ", ".join(f"[`{each.__name__}`](methods/{each.__name__.lower()}.md)" for each in methods())
    blocks.insert(3, f"The methods have pages of their own: {pages}.")
    blocks += [
        "## The inventory",
        "Everything that is public, with how it is called, as a test compares it with the package: also what pages "
        "and examples alone import, and what serves other libraries.",
        f"```text\n{INVENTORY.read_text(encoding='utf-8').rstrip()}\n```",
    ]
    return "\n\n".join(blocks)


def _entry(room: str, name: str, item: Any) -> list[str]:
    setup = f">>> import torch\n>>> from {room} import {name}\n"
    head = [
        f"### {name} {{ #{anchor(room, name)} }}",
        f"```python\n{signature(name, item)}\n```",
        docstring(doc(item), "", setup),
    ]
    return [*head, *_members(item)] if inspect.isclass(item) else head


def _members(owner: type) -> list[str]:
    names = ON_A_BALANCER if owner is Balancer else [name for name in vars(owner) if not name.startswith("_")]
    blocks = []
    for name in names:
        member = inspect.getattr_static(owner, name)
        member = getattr(owner, name) if isinstance(member, (classmethod, staticmethod)) else member
        text = doc(member)
        if not text or not (isinstance(member, property) or inspect.isroutine(member)):
            continue
        called = f"{owner.__name__}.{name}"
        head = called if isinstance(member, property) else signature(called, member)
        blocks += [f"```python\n{head}\n```", docstring(text, "")]
    return blocks


def pages() -> dict[str, str]:
    """Every generated page by its place in the documentation."""
    generated = {f"methods/{each.__name__.lower()}.md": method_page(each) for each in methods()}
    return {"methods/index.md": methods_page(), **generated, "api.md": api_page(), "tutorial.md": tutorial.page()}


# -- what mkdocs calls --


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Put the page of every method into the navigation."""
    for entry in config.nav or []:
        if isinstance(entry, dict) and "Methods" in entry:
            entry["Methods"] = ["methods/index.md", *(f"methods/{each.__name__.lower()}.md" for each in methods())]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the generated pages, and the pictures of the tutorial."""
    from mkdocs.structure.files import File

    for place, content in (pages() | tutorial.pictures()).items():
        files.append(File.generated(config, place, content=content))
    return files
