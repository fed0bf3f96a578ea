"""What tests of the documentation share: its own modules, and a comparison of what was told with what is found."""

from __future__ import annotations

import importlib
import itertools
import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

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


# -- commands, and the settings that stand beside them --

TRAINS = {"ablate", "bench", "compare", "control", "diagnose", "landscape", "reproduce", "robustness", "toy", "train",
          "tune"}  # fmt: skip
"""The commands that measure something."""
RESULT = re.compile(r"!\[[^\]]*\]\([^)]*assets/|±|^\|.*\d\.\d|\d %", re.MULTILINE)
"""What a command can stand beside: a figure of ours, a spread, a fraction in a table, a share."""
BLOCK = re.compile(r"(?:^ {4}.*\n|^\n(?= {4}))+|^```(?:text|sh)\n(?:.*\n)*?```\n", re.MULTILINE)
MARK = re.compile(r"<!-- settings of (?P<name>[\w ]+): (?P<words>.*?) -->", re.DOTALL)
NO_NUMBER = "no number here is from it"
"""What stands beside a command in the place of its settings where none of the numbers is its own."""
OWN_FILES = ("my.npz", "clips.csv", "drives.csv", "drive.npz", "ward.npz")
"""Of the reader: nobody has measured them."""


class Command(NamedTuple):
    """A command of a page.

    Args:
        page: Relative to the root.
        line: Where it stands.
        words: As a shell would read them, without `equipoise`.
        settings: What the page says that it runs with; None where it says nothing of it.
        beside: Whether figures or measured numbers stand in its section, or, at the head of a page, on the page.
    """

    page: str
    line: int
    words: list[str]
    settings: dict[str, str] | None
    beside: bool

    @property
    def shown(self) -> str:
        """As typed, for messages."""
        return f"{self.page}:{self.line}: equipoise {shlex.join(self.words)}"


def pages() -> list[Path]:
    """Every page that is written by hand."""
    return [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]


def demo() -> str:
    """The command of `make demo`."""
    found = re.search(r"^\t\$\(BIN\)/(equipoise (?:.*\\\n)*.*)$", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE)
    assert found is not None, "Makefile: make demo runs no command"
    return found[1].replace("\\\n", " ")


def commands_of(text: str, page: str) -> Iterator[Command]:
    """Every command of a page that stands in a block of its own.

    A comment behind the block, or behind the sentence that names a command, says what it runs with:
    `<!-- settings of NAME: optimizer=sgd lr=0.01 … -->`, in the order of the commands where two have one name; or, of
    all commands of the block that have no other, `<!-- settings of NAME: no number here is from it -->`.
    """
    heads = [0, *(found.start() for found in re.finditer(r"^## ", text, re.MULTILINE)), len(text)]
    for start, end in itertools.pairwise(heads):
        beside = RESULT.search(text if start == 0 else text[start:end]) is not None
        for block in BLOCK.finditer(text[start:end]):
            after = start + block.end()
            marks: dict[str, list[dict[str, str]]] = {}
            for found in _marks_at(text, after):
                marks.setdefault(found["name"], []).append(_as_dict(found["words"]))
            lines = re.sub(r"\\\n\s*", " ", block[0]).splitlines()
            for line in lines:
                typed = demo() if line.strip().startswith("make demo") else line
                words = _words(typed)
                if words is not None:
                    own = marks.get("demo" if typed is not line else words[0], [])
                    at = text[: start + block.start()].count("\n") + 1
                    yield Command(page, at, words, own.pop(0) if own else None, beside)
            assert not any(marks.values()), f"{page}: settings without their command: {marks}"


def _marks_at(text: str, place: int) -> Iterator[re.Match[str]]:
    """The comments that follow each other from a place on."""
    while (found := re.compile(r"\s*" + MARK.pattern, re.DOTALL).match(text, place)) is not None:
        yield found
        place = found.end()


def _as_dict(words: str) -> dict[str, str]:
    if words.strip() == NO_NUMBER:
        return {}
    return dict(word.split("=", 1) for word in shlex.split(words))


def _words(line: str) -> list[str] | None:
    """The words behind `equipoise` in a line of a block; None where there are none."""
    found = re.match(r"\s*(?:.*\bdo |.*--no-python )?equipoise ((?!=).*?)(?:;.*)?$", line)
    if found is None:
        return None
    words = shlex.split(found[1], comments=True)
    return words if words and re.fullmatch("[a-z]+", words[0]) else None
