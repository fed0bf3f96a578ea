"""Other libraries cost nothing until they are used, and the modules that use them keep the rules of the house."""

from __future__ import annotations

import doctest
import importlib
import inspect
import pkgutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch
from torch import nn

import equipoise.integrations

pytestmark = pytest.mark.slow

LIBRARIES = {
    "lightning",
    "transformers",
    "torchjd",
    "timm",
    "torchvision",
    "yaml",
    "hydra",
    "optuna",
    "ray",
    "submitit",
}
MODULES = [each.name for each in pkgutil.iter_modules(equipoise.integrations.__path__)]
PROGRAM = """
import sys
from pathlib import Path
def loaded():
    return sorted({name.split(".")[0] for name in sys.modules})
import equipoise, equipoise.integrations
print("after import:", *loaded())
sys.argv = ["equipoise", "--help"]
import equipoise_command
try:
    equipoise_command.main()
except SystemExit as ended:
    assert not ended.code
print("after help:", *loaded())
sys.argv = ["equipoise", "compare", "--config", "study.yaml"]
Path("study.yaml").write_text("nonsense: 1")
try:
    equipoise_command.main()
except SystemExit as ended:
    assert ended.code == 2
print("after use:", *loaded())
"""


def test_neither_import_nor_help_loads_a_library_that_is_not_used(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    said = dict(line.split(":", 1) for line in done.stdout.splitlines() if line.startswith("after "))
    found = {when: LIBRARIES & set(names.split()) for when, names in said.items()}
    assert "typer" in said["after help"].split()
    assert found == {"after import": set(), "after help": set(), "after use": {"yaml"}}  # the last: it can be seen


def loaded(name: str) -> ModuleType:
    try:
        return importlib.import_module(f"equipoise.integrations.{name}")
    except (ImportError, RuntimeError) as found:
        if name not in {"timm", "torchvision"}:
            raise
        pytest.skip(f"{name} does not import here: {found}")


@pytest.mark.parametrize("name", MODULES)
def test_a_module_keeps_the_rules_of_the_house(name: str) -> None:
    module = loaded(name)
    assert len(inspect.getsource(module).splitlines()) <= 300
    own = [each for each in vars(module).values() if inspect.isclass(each) and each.__module__ == module.__name__]
    final = {each for each in own if vars(each).get("__final__")}
    loose = [each.__name__ for each in own if each not in final and not inspect.isabstract(each)]
    assert sys.version_info < (3, 11) or loose == []
    assert [each.__name__ for each in own if not inspect.getdoc(each)] == []


@pytest.mark.parametrize("name", MODULES)
def test_examples_in_docstrings(name: str) -> None:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        found = doctest.testmod(loaded(name), extraglobs={"torch": torch, "nn": nn}, optionflags=doctest.ELLIPSIS)
    assert found.failed == 0


MISSING = {
    "lightning": "[lightning]'",
    "huggingface": "[transformers]'",
    "transformers": "[transformers]'",
    "torchjd": "[torchjd]'",
    "sklearn": "[sklearn]'",
    "timm": "pip install timm",
    "torchvision": "pip install torchvision",
}


@pytest.mark.parametrize(("name", "line"), MISSING.items())
def test_a_library_that_is_missing_is_named_with_what_to_type(
    name: str, line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = "transformers" if name == "huggingface" else name
    for loaded_module in [each for each in sys.modules if each.split(".")[0] == package]:
        monkeypatch.delitem(sys.modules, loaded_module)

    class Nowhere:
        """Finds nothing of one package, as where it is not installed."""

        @staticmethod
        def find_spec(wanted: str, *_: object) -> None:
            if wanted.split(".")[0] == package:
                raise ModuleNotFoundError(f"No module named {wanted!r}", name=wanted)

    monkeypatch.setattr(sys, "meta_path", [Nowhere, *sys.meta_path])
    monkeypatch.delitem(sys.modules, f"equipoise.integrations.{name}", raising=False)
    with pytest.raises(ModuleNotFoundError, match=package) as found:
        importlib.import_module(f"equipoise.integrations.{name}")
    assert line in str(found.value)
    sys.modules.pop(f"equipoise.integrations.{name}", None)
