"""What tests of the documentation share: its own modules, and a comparison of what was told with what is found."""

from __future__ import annotations

import importlib
import re
import sys
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).parent.parent
NUMBER = re.compile(r"(?<![\w.])[-+]?\d+(?:\.\d+)?(?:e[-+]\d+)?(?![\w.]*\w)")


def load(name: str) -> ModuleType:
    """A module of docs/, found as mkdocs finds its hooks."""
    sys.path.insert(0, str(ROOT / "docs"))
    try:
        return importlib.import_module(name)
    finally:
        sys.path.pop(0)


def assert_alike(told: str, found: str, within: float = 2.0) -> None:
    """The same words and whole numbers, and fractions as near as another processor's rounding may bring them.

    Args:
        told: What the documentation has.
        found: What the present code gives.
        within: How far two fractions may lie apart; accuracies are in %.
    """
    assert NUMBER.sub("#", " ".join(told.split())) == NUMBER.sub("#", " ".join(found.split()))
    for old, new in zip(NUMBER.findall(told), NUMBER.findall(found), strict=True):
        if re.search(r"[.e]", old + new):
            assert abs(float(old) - float(new)) <= within, f"told {old}, found {new}"
        else:
            assert old == new


def assert_in_the_gallery(name: str, printed: str, within: float = 2.0) -> None:
    """What an example prints is what the gallery shows of it.

    Args:
        name: Of the example, without its ending.
        printed: All that it printed.
        within: As above.
    """
    told = (ROOT / "docs" / "printed" / f"{name}.txt").read_text(encoding="utf-8")
    assert_alike(told, load("gallery").short(name, printed), within)
