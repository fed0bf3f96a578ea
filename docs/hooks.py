"""Pages that the documentation makes: one per method, their tables, the list of public names, and the tutorial."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tutorial
from docstrings import ROOMS, anchor, default_of, doc, docstring, methods, names, signature

from equipoise import Balancer, Mixing, Needs, Weighting

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files

INVENTORY = Path(__file__).parent.parent / "tests" / "api_surface.txt"
# What a user calls on a balancer, what a method answers, and what it uses; other public methods serve the engine.
MEMBERS: dict[type, tuple[str, ...]] = {
    Balancer: ("forward", "attach", "end_epoch", "metrics_due", "table", "answer"),
    Weighting: ("weigh",),
    Mixing: ("mix",),
}
EVENTS = ("regulariser", "transform", "on_backward", "on_step", "on_epoch")
USED = ("add_state", "add_given_state", "add_copy", "add_generator", "active", "gated", "check_arguments")
VIEWS = {
    "head": 'from heads that train with the encoders: `LateFusion(…, unimodal="head")`',
    "detached": 'from heads on detached features: `LateFusion(…, unimodal="detached")`',
    "split": 'the shares of an additive fused head, `LateFusion(…, unimodal="split")`, or heads of their own',
}
OUTPUTS = {"head": "head", "detached": "head on detached features", "split": "share"}


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


def needs_table() -> str:
    """What each method needs with its default arguments, as its `Needs` say."""
    titles = ("output of a modality", "encoders attached", "optimiser", "scores", "metrics per epoch")
    rows = [f"| method | {' | '.join((*titles, 'further objectives', 'tasks'))} |", "|---" * 8 + "|"]
    return "\n".join(
        [*rows, *(f"| {' | '.join((method.__name__, *_cells(method().needs)))} |" for method in methods())]
    )


def _cells(needs: Needs) -> tuple[str, ...]:
    output = OUTPUTS[needs.view] if needs.losses else "–"
    if needs.model:
        output += f", model with {', '.join(needs.model)}"
    scores = ", ".join(needs.given_scores) or ("one loss per sample" if needs.logarithmic else "–")
    return (
        output,
        "yes" if needs.encoders else "–",
        "yes" if needs.optimizer else "for Adam" if needs.factors else "–",
        scores,
        ", ".join(needs.metrics) + (", in some epochs" if needs.due is not None and needs.metrics else "") or "–",
        needs.further + (", or approximate" if needs.instead else "") or "–",
        f"not {', '.join(needs.tasks)}" if needs.tasks else "any",
    )


def fields_table() -> str:
    """The fields of `Needs` with their defaults, as its docstring says."""
    given = doc(Needs).partition("Args:\n")[2]
    said = re.findall(r"^    (\w+): (.+?)$(?=\n    \w+: |\Z)", given, re.MULTILINE | re.DOTALL)
    defaults = {name: default_of(one) for name, one in inspect.signature(Needs).parameters.items()}
    rows = [f"| `{name}` | `{defaults[name]}` | {' '.join(text.split())} |" for name, text in said]
    return "\n".join(["| field | default | what it says |", "|---|---|---|", *rows])


# -- the pages --


def method_page(method: type[Balancer]) -> str:
    """One method: what it does, what it needs, how it is called."""
    name, made = method.__name__, method()
    wants, views = made.needs, VIEWS[made.needs.view]
    needs = [f"Uni-modal losses: {views if wants.losses else f'none; where given, {views}'}."]
    if wants.encoders:
        needs.append("`balancer.attach(model)`, or `balancer.attach(model, encoders={…})` for a model of your own.")
    else:
        needs.append("`attach` is not needed; a model can be attached all the same.")
    if wants.warning:
        needs.append("`attach(…, optimizer=optimizer)`, see [adaptive optimisers](../faq.md#adaptive-optimisers).")
    if wants.given_scores:
        needs.append(f"Scores of each modality, `balancer(losses, scores={{…}})`: {' and '.join(wants.given_scores)}.")
    elif wants.logarithmic:
        needs.append("One loss per sample, cross-entropies or the like; else `balancer(losses, scores={…})`.")
    if wants.further:
        without = f"; without them it takes {wants.instead}" if wants.instead else ""
        needs.append(f"Objectives “{wants.further} …”, one per modality, `balancer(losses, further={{…}})`{without}.")
    if wants.metrics:
        example = ", ".join(f'"{need}": …' for need in wants.metrics)
        when = "After every epoch" if wants.due is None else "After the epochs for which `balancer.metrics_due` asks,"
        where = ", on validation data" if wants.due is None else ""
        needs.append(f'{when} `balancer.end_epoch({{"audio": {{{example}}}, …}})`{where}.')
    needs.append(
        "Accumulation: decides anew at each micro-batch; `Window` refuses it."
        if isinstance(made, Mixing)
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
            "*Backward passes* are passes through the encoders. MGDA, MMPareto and Barrier need two where each "
            "uni-modal loss reaches its own encoder only, and K + 1 where it reaches others too: encoders that share "
            "parameters, or attend to each other. Which of the two holds is read off the graph of each step.",
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
            blocks += ["### What a method may answer besides", *_members(Balancer, EVENTS)]
            blocks += ["### What a method uses", *_members(Balancer, USED)]
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


def _members(owner: type, chosen: Sequence[str] = ()) -> list[str]:
    own = [name for name in vars(owner) if not name.startswith("_")]
    blocks = []
    for name in chosen or MEMBERS.get(owner, own):
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


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Leave out a mark that tests read: with it a block would not be taken for one, nor the headings behind it."""
    return markdown.replace("```python no-run\n", "```python\n")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the generated pages, and the pictures of the tutorial."""
    from mkdocs.structure.files import File

    for place, content in (pages() | tutorial.pictures()).items():
        files.append(File.generated(config, place, content=content))
    return files
