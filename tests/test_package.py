"""The package as a whole: what importing it costs and brings along, which names it offers, how its classes are made."""

import ast
import contextlib
import importlib
import importlib.resources
import inspect
import pkgutil
import re
import subprocess
import sys
from abc import ABCMeta
from collections import Counter
from pathlib import Path

import pytest

import api_surface
import equipoise

MODULES = [
    "equipoise",
    *(
        each.name
        for each in pkgutil.walk_packages(equipoise.__path__, equipoise.__name__ + ".")
        if not each.name.startswith("equipoise.integrations.")  # in integrations/test_imports.py: each loads a library
    ),
]


def classes_of(name: str) -> list[type]:
    """The classes that a module defines; none where it cannot be imported, which another test says."""
    with contextlib.suppress(ImportError):
        module = importlib.import_module(name)
        return [each for each in vars(module).values() if inspect.isclass(each) and each.__module__ == name]
    return []


CLASSES = sorted({each for name in MODULES for each in classes_of(name)}, key=lambda each: each.__qualname__)


def python(*words: str) -> str:
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


# -- importing --


def foreign_packages(statement: str) -> set[str]:
    """Packages that a statement imports beyond torch, numpy, what these import, and the standard library."""
    loaded = python(
        "-c",
        "import sys, torch, numpy; before = set(sys.modules)\n"
        f"{statement}\n"
        "print(*{name.split('.')[0] for name in set(sys.modules) - before})",
    )
    return set(loaded.split()) - set(sys.stdlib_module_names) - {"equipoise", "torch", "numpy"}


@pytest.mark.slow
def test_import_brings_nothing_but_torch_and_numpy() -> None:
    assert foreign_packages("import equipoise") == set()


@pytest.mark.slow
def test_the_command_starts_without_what_few_commands_need() -> None:
    assert not foreign_packages("import equipoise.cli.main") & {"scipy", "sklearn", "matplotlib", "optuna", "pandas"}


@pytest.mark.slow
def test_the_check_above_can_fail() -> None:
    assert "pluggy" in foreign_packages("import equipoise, pytest")


@pytest.mark.slow
def test_import_costs_at_most_a_tenth_of_a_second() -> None:
    # Of computing: by the clock, other tests on the same cores would be measured too.
    measure = (
        "import time, torch, numpy; start = time.process_time(); import equipoise; print(time.process_time() - start)"
    )
    assert any(float(python("-c", measure)) <= 0.1 for _ in range(5))  # the best of five, and no more than it takes


@pytest.mark.slow
def test_import_warns_of_nothing() -> None:
    python("-W", "error", "-c", "import equipoise")


# -- names --


def changes(listed: list[str], found: list[str]) -> str:
    """What to do about public names that are not those listed; nothing where they are."""
    if listed == found:
        return ""
    gone, new = ([*map(f"  {mark} {{}}".format, sorted(set(one) - set(other)))] for mark, one, other in (
        ("-", listed, found), ("+", found, listed)))  # fmt: skip
    return "\n".join(
        [
            "expected the public names and parameters of tests/api_surface.txt, found others:",
            *(gone + new or ["  (the same lines in another order)"]),
            "If that is meant, type: python tests/api_surface.py, and say it in CHANGELOG.md.",
            *(
                ["What a user may call goes only after it was deprecated: CONTRIBUTING.md, What is public."]
                if gone
                else []
            ),
        ]
    )


def test_public_names_and_parameters_are_those_listed() -> None:
    said = changes(api_surface.LISTED.read_text(encoding="utf-8").splitlines(), api_surface.surface())
    assert not said, said


def test_a_changed_parameter_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    before = api_surface.surface()

    class Changed(vars(equipoise)["Window"]):  # as if its only option had another name
        def __init__(self, balancer: equipoise.Balancer, *, late: bool = False) -> None:
            super().__init__(balancer, lag=late)

    monkeypatch.setattr(equipoise, "Window", Changed)
    monkeypatch.delattr(equipoise, "layerwise")
    said = changes(before, api_surface.surface())
    assert "  - equipoise.Window(balancer, *, lag=False)" in said
    assert "  + equipoise.Window(balancer, *, late=False)" in said
    assert "  - equipoise.layerwise(" in said
    assert "type: python tests/api_surface.py" in said
    assert "deprecated" in said


def test_names_that_pages_and_examples_import_are_public() -> None:
    listed = api_surface.LISTED.read_text(encoding="utf-8")
    for name in (
        "training.train.train(splits, ",
        "training.settings.Settings(",
        "integrations.lightning.BalanceCallback(",
    ):
        assert f"\nequipoise.{name}" in listed
    assert "equipoise.paper" not in listed


def test_every_public_name_says_what_it_is() -> None:
    silent = [
        f"{room}.{name}"
        for room in api_surface.ROOMS
        for name, item in api_surface.offered(room).items()
        if not inspect.getdoc(item)
    ]
    assert silent == []


def test_types_are_shipped() -> None:
    assert importlib.resources.files("equipoise").joinpath("py.typed").is_file()


# -- classes --


def is_final(each: type) -> bool:
    return vars(each).get("__final__", False)


def is_abstract(each: type) -> bool:
    """Made to be inherited from: it says so by ABC, and somebody does or has to."""
    inherited = any(each in other.__mro__[1:] for other in CLASSES)
    return isinstance(each, ABCMeta) and (inherited or inspect.isabstract(each))


@pytest.mark.skipif(sys.version_info < (3, 11), reason="typing.final leaves no mark before Python 3.11")
@pytest.mark.parametrize("each", CLASSES, ids=lambda each: each.__qualname__)
def test_a_class_is_abstract_or_final(each: type) -> None:
    record = issubclass(each, tuple)  # a named tuple cannot be an ABC, and nobody inherits from one
    assert is_final(each) or record or is_abstract(each)
    assert not (is_final(each) and inspect.isabstract(each))
    assert not any(is_final(other) for other in each.__mro__[1:])


@pytest.mark.parametrize("name", MODULES)
def test_a_file_is_one_idea(name: str) -> None:
    assert len(inspect.getsource(importlib.import_module(name)).splitlines()) <= 450


# -- the tree --

SOURCES = {path: ast.parse(path.read_text("utf-8")) for path in sorted(Path(equipoise.__path__[0]).rglob("*.py"))}
METHODS = "equipoise.methods."
QUESTION = re.compile(r"(What|Whether|Who|How|Where|When|Which|It|So|That|This)\b")


def test_the_root_holds_packages_and_nothing_else() -> None:
    root = Path(equipoise.__path__[0])
    assert {path.name for path in root.glob("*.py")} == {"__init__.py"}
    packages = {path.name for path in root.iterdir() if path.is_dir() and path.name != "__pycache__"}
    tested = {path.name for path in Path(__file__).parent.iterdir() if path.is_dir()}
    assert packages - {"testing"} <= tested  # every test of a method runs that package


def test_no_two_public_classes_share_a_name() -> None:
    nodes = [node for tree in SOURCES.values() for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    counts = Counter(node.name for node in nodes if not node.name.startswith("_"))
    assert [name for name, count in counts.items() if count > 1] == []


def test_a_docstring_starts_with_a_verb_or_a_noun() -> None:
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef)
    nodes = [(path, node) for path, tree in SOURCES.items() for node in ast.walk(tree) if isinstance(node, documented)]
    assert len(nodes) > 1000
    assert [(path.name, text) for path, node in nodes if QUESTION.match(text := ast.get_docstring(node) or "")] == []


def test_what_serves_every_method_names_none() -> None:
    """The balancer, the models and the training step: what one method needs it says of itself."""
    root = Path(equipoise.__path__[0])
    served = [path for path in SOURCES if path.relative_to(root).parts[0] in ("balance", "models")]
    named = {name for name, item in vars(equipoise.methods).items() if inspect.isclass(item)}
    assert len(named) > 20
    assert len(served) > 30
    hits = []
    for path in [*served, root / "training" / "step.py"]:
        foreign = named - _own_words(SOURCES[path])
        text = path.read_text("utf-8").splitlines()
        found = ((number, foreign.intersection(re.findall(r"\w+", line))) for number, line in enumerate(text, start=1))
        hits += [f"{path.relative_to(root)}:{number}: {', '.join(sorted(words))}" for number, words in found if words]
    assert not hits, "\n".join(hits)


def _own_words(tree: ast.Module) -> set[str]:
    """The names by which a module means something of its own, or of another package than the methods."""
    found = {target.id for node in tree.body if isinstance(node, ast.Assign) for target in node.targets
             if isinstance(target, ast.Name)}  # fmt: skip
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    apart = [node for node in imports if node.module != "equipoise" and not f"{node.module}.".startswith(METHODS)]
    return found | {alias.asname or alias.name for node in apart for alias in node.names}
