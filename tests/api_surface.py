"""What is public, with how it is called. As a program, `python tests/api_surface.py`, it writes api_surface.txt anew.

Public is what the rooms below offer, and whatever a page or an example imports; CONTRIBUTING.md says the same in prose.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, final

from equipoise import Balancer, Mixing, Weighting

ROOT = Path(__file__).parent.parent
LISTED = ROOT / "tests" / "api_surface.txt"
ROOMS = [
    "equipoise",
    *(
        f"equipoise.{room}"
        for room in ("data", "deploy", "measure", "methods", "models", "report", "testing", "balance.theory")
    ),
]
INTEGRATIONS = ROOT / "src" / "equipoise" / "integrations"  # each loads a library, so they are read and not imported
HELPERS = {"__init__", "sklearn_base"}  # which the others share
# What a user calls on a balancer, what the author of a method answers, and what this one uses; the rest serves the
# engine.
ON_A_BALANCER = {"answer", "attach", "end_epoch", "forward", "metrics_due", "table"}
ANSWERED = {"mix", "on_backward", "on_epoch", "on_step", "regulariser", "transform", "weigh"}
USED = {
    "active",
    "add_copy",
    "add_generator",
    "add_given_state",
    "add_state",
    "attachment",
    "check_arguments",
    "copied",
    "copy_encoder",
    "gated",
    "generator",
    "on_host",
    "tensors_of",
}
NOT_PUBLIC = "equipoise.paper"  # what makes the paper's figures; pages use it to check themselves
IMPORTS = re.compile(r"^\s*from (equipoise[\w.]*) import (?:\(([^)]*)\)|(.*))$", re.MULTILINE)


def surface() -> list[str]:
    """A line for every public name: how it is called, or of which other name it is a second one."""
    found: dict[str, Any] = {}
    for room in ROOMS:
        found |= {f"{room}.{name}": item for name, item in offered(room).items()}
    known = {id(item) for item in found.values()}
    found |= {name: item for name, item in shown().items() if id(item) not in known}
    lines: list[str] = []
    first: dict[int, str] = {}
    for name, item in sorted(found.items(), key=lambda pair: (pair[0].count("."), pair[0])):
        if id(item) in first:
            lines.append(f"{name} is {first[id(item)]}")
        else:
            first[id(item)] = name
            lines += entry(name, item, list(found.values()))
    return sorted([*lines, *with_libraries()])


def offered(room: str) -> dict[str, Any]:
    """The public classes and functions of a module: what it re-exports if it is a package, or defines."""
    module = importlib.import_module(room)
    return {
        name: item
        for name, item in vars(module).items()
        if not name.startswith("_")
        and (inspect.isclass(item) or inspect.isfunction(item))
        and (hasattr(module, "__path__") or item.__module__ == room)
    }


def shown() -> dict[str, Any]:
    """The classes and functions that pages and examples import."""
    found: dict[str, Any] = {}
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md"), *ROOT.glob("examples/*.py")]
    for page in pages:
        for module, several, single in IMPORTS.findall(page.read_text(encoding="utf-8")):
            if module.startswith((NOT_PUBLIC, "equipoise.integrations")):
                continue
            for name in re.findall(r"\w+", (several or single).partition("#")[0]):
                item = getattr(importlib.import_module(module), name, None)
                if inspect.isclass(item) or inspect.isfunction(item):
                    found[f"{module}.{name}"] = item
    return found


def entry(name: str, item: Any, public: list[Any]) -> Iterator[str]:
    """How a name is called; for a class also its own methods and properties, unless a public class above has them."""
    yield name + called(item)
    if not inspect.isclass(item):
        return
    above = [base for base in item.__mro__[1:] if base in public]
    for member in sorted(each for each in dir(item) if not each.startswith(("_", "test_"))):
        owner = next(each for each in item.__mro__ if member in vars(each))
        if not owner.__module__.startswith("equipoise") or any(hasattr(base, member) for base in above):
            continue
        if item in (Balancer, Mixing, Weighting) and member not in ON_A_BALANCER | ANSWERED | USED:
            continue
        if isinstance(vars(owner)[member], property):
            yield f"{name}.{member}"
        elif inspect.isroutine(getattr(item, member)):
            yield f"{name}.{member}{called(getattr(item, member))}"


def called(item: Any) -> str:
    """Parameters by name, kind and default, without types: what a call can break on."""
    try:
        parameters = inspect.signature(item).parameters.values()
    except (TypeError, ValueError):
        return ""
    plain = [each.replace(annotation=each.empty, default=_told(each.default)) for each in parameters]
    return str(inspect.Signature([each for each in plain if each.name != "self"]))


def with_libraries() -> Iterator[str]:
    """What the modules beside other libraries define, read off their text."""
    for file in sorted(each for each in INTEGRATIONS.glob("*.py") if each.stem not in HELPERS):
        room = f"equipoise.integrations.{file.stem}"
        for item in ast.parse(file.read_text(encoding="utf-8")).body:
            if isinstance(item, ast.FunctionDef) and not item.name.startswith("_"):
                yield f"{room}.{item.name}({_written(item)})"
            elif isinstance(item, ast.ClassDef) and not item.name.startswith("_"):
                methods = {each.name: each for each in item.body if isinstance(each, ast.FunctionDef)}
                made = methods.get("__init__")
                yield f"{room}.{item.name}" + (f"({_written(made)})" if made else "")
                for name, method in methods.items():
                    if not name.startswith("_"):
                        yield f"{room}.{item.name}.{name}({_written(method)})"


def _written(function: ast.FunctionDef) -> str:
    """The parameters of a function as they are typed, without their types."""
    for each in ast.walk(function.args):
        if isinstance(each, ast.arg):
            each.annotation = None
    text = ast.unparse(function.args)
    return re.sub(r"^self(, )?", "", text)


def _told(default: Any) -> Any:
    plain = default is None or isinstance(default, bool | int | float | str | tuple)
    return default if plain or default is inspect.Parameter.empty else _SOMETHING


@final
class _Something:
    """Stands for a default whose own text may differ from machine to machine."""

    def __repr__(self) -> str:
        return "…"


_SOMETHING = _Something()

if __name__ == "__main__":
    LISTED.write_text("".join(f"{line}\n" for line in surface()), encoding="utf-8")
