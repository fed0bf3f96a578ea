"""The package as a whole: what importing it costs and brings along, which names it offers, how its classes are made."""

import contextlib
import importlib
import importlib.resources
import inspect
import pkgutil
import re
import subprocess
import sys
from abc import ABCMeta
from pathlib import Path

import pytest

import equipoise

ROOT = Path(__file__).parent.parent
MODULES = [
    "equipoise",
    *(
        each.name
        for each in pkgutil.walk_packages(equipoise.__path__, equipoise.__name__ + ".")
        if not each.name.startswith("equipoise.integrations.")  # in test_integrations_imports: each loads a library
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
def test_the_check_above_can_fail() -> None:
    assert "pluggy" in foreign_packages("import equipoise, pytest")


@pytest.mark.slow
def test_import_costs_at_most_a_tenth_of_a_second() -> None:
    # Of computing: by the clock, other tests on the same cores would be measured too.
    measure = (
        "import time, torch, numpy; start = time.process_time(); import equipoise; print(time.process_time() - start)"
    )
    assert min(float(python("-c", measure)) for _ in range(5)) <= 0.1


@pytest.mark.slow
def test_import_warns_of_nothing() -> None:
    python("-W", "error", "-c", "import equipoise")


# -- names --


def public_names() -> list[str]:
    rooms = {"equipoise": equipoise} | {
        name: importlib.import_module(name)
        for name in ("equipoise.methods", "equipoise.models", "equipoise.testing", "equipoise.theory")
    }
    found = []
    for title, room in rooms.items():
        package = hasattr(room, "__path__")
        for name, item in vars(room).items():
            named = inspect.isclass(item) or inspect.isfunction(item)
            if named and not name.startswith("_") and (package or item.__module__ == title):
                found.append(f"{title}.{name}")
    return sorted(found)


def test_public_names_are_those_listed() -> None:
    listed = (ROOT / "tests" / "api_surface.txt").read_text(encoding="utf-8").splitlines()
    assert public_names() == listed, "a change of public names has to be made in tests/api_surface.txt as well"


def test_every_public_name_says_what_it_is() -> None:
    silent = [
        name
        for name in public_names()
        if not inspect.getdoc(getattr(importlib.import_module(name.rpartition(".")[0]), name.rpartition(".")[2]))
    ]
    assert silent == []


def test_types_are_shipped() -> None:
    assert importlib.resources.files("equipoise").joinpath("py.typed").is_file()


def test_version_is_the_newest_of_the_changelog() -> None:
    newest = re.search(r"^## \[([^\]]+)\]", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert newest is not None
    assert newest[1] == equipoise.__version__


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
def test_a_file_is_one_room(name: str) -> None:
    assert len(inspect.getsource(importlib.import_module(name)).splitlines()) <= 300
