"""Plain JSON from a disk: read with bounds, checked field by field, and every problem in one message."""

import json
import os
import reprlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any, NoReturn

from equipoise.util.errors import BadInput
from equipoise.util.files import open_inside

LARGEST = 2**24  # bytes of a file
MOST = 2**31 - 1
LONGEST = 10_000  # characters of a text
SHOWN = 20  # problems in one message

Check = Callable[[Any, str], Iterable[str]]
"""Takes a value and where it stands, and says what is wrong with it."""


def read_json(
    folder: Path, name: str, check: Check, expected: str, *, advice: str = "", largest: int = LARGEST
) -> dict[str, Any]:
    """Read a file inside a folder that somebody else may have filled.

    Args:
        folder: The folder.
        name: Of the file.
        check: Finds what is wrong with its content.
        expected: What it should hold, for the message.
        advice: What to type or to do, for the message.
        largest: Bytes at most.

    Raises:
        BadInput: If it is missing, is no JSON or is anything else, with every problem.
    """
    try:
        with os.fdopen(open_inside(folder, name, os.O_RDONLY), "rb") as opened:
            text = opened.read(largest + 1)
        if len(text) > largest:
            raise ValueError(f"expected at most {largest:,} bytes, found more")
        content = json.loads(text, parse_constant=_refuse)
        problems = at_most(check(content, ""))
    except FileNotFoundError:
        problems = ["no such file"]
    except BadInput:
        raise
    except (OSError, ValueError, RecursionError) as error:
        problems = [f"damage: {short(error)}"]
    if problems:
        found = "; ".join(problems)
        raise BadInput(f"{folder / name}: expected {expected}, found {found}" + (f". {advice}" if advice else ""))
    return content


def at_most(problems: Iterable[str]) -> list[str]:
    """Keep the first problems of what may be millions, and say that there are more."""
    some = list(islice(problems, SHOWN + 1))
    return some if len(some) <= SHOWN else [*some[:SHOWN], "and more"]


def rule(expected: str, fine: Callable[[Any], bool]) -> Check:
    """Check a value by a function; `expected` says in words what it asks for."""

    def check(value: Any, where: str) -> Iterator[str]:
        if not fine(value):
            yield f"{where}: expected {expected}, found {short(value)}"

    return check


def one_of(*values: str | None) -> Check:
    """Check that a value is one of these texts, or null."""
    words = ", ".join("null" if each is None else str(each) for each in values)
    return rule(f"one of {words}", lambda value: isinstance(value, str | None) and value in values)


def or_null(check: Check) -> Check:
    """Check a value unless it is null."""
    return lambda value, where: () if value is None else check(value, where)


def every(check: Check, kind: type = dict, least: int = 0, most: int = MOST) -> Check:
    """Apply the same check to every value of an object, whatever its keys, or to every item of a list."""
    sizes = (f" of {'' if least == most else 'at least '}{least}" if kind is list else " with entries") if least else ""
    expected = f"{'a list' if kind is list else 'an object'}{sizes}"

    def checked(value: Any, where: str) -> Iterator[str]:
        if not isinstance(value, kind) or not least <= len(value) <= most:
            yield f"{where}: expected {expected}, found {short(value)}"
            return
        places = value.items() if isinstance(value, dict) else enumerate(value)
        for key, item in places:
            yield from check(item, f"{where}{place_of(key)}")

    return checked


def record(fields: Mapping[str, Check], may: Mapping[str, Check] | None = None) -> Check:
    """An object with these fields, and perhaps those; others are not looked at."""

    def checked(value: Any, where: str) -> Iterator[str]:
        if not isinstance(value, dict):
            yield f"{where or 'the file'}: expected an object, found {short(value)}"
            return
        for key, check in {**fields, **(may or {})}.items():
            place = f"{where}.{key}" if where else key
            if key in value:
                yield from check(value[key], place)
            elif key in fields:
                yield f"{place}: expected it, found no such field"

    return checked


def is_number(value: Any, kind: Any = int | float) -> bool:
    """Return whether a value is a number, and no truth value; infinities are none."""
    return isinstance(value, kind) and not isinstance(value, bool) and abs(value) < 1e300


def whole(least: int, most: int = MOST) -> Check:
    """Check that a value is a whole number within bounds."""
    expected = f"a whole number from {least} to {most}"
    return rule(expected, lambda value: is_number(value, int) and least <= value <= most)


TEXT = rule("a text", lambda value: isinstance(value, str) and len(value) <= LONGEST)
NUMBER = rule("a number", is_number)
POSITIVE = rule("a number above zero", lambda value: is_number(value) and value > 0)
FLAG = rule("true or false", lambda value: isinstance(value, bool))
ANYTHING = rule("anything", lambda _: True)


def place_of(name: str | int) -> str:
    """Write a key behind a place; an odd one in quotes, without what a terminal would take for a command."""
    return f".{name}" if isinstance(name, str) and name.isidentifier() and name.isascii() else f"[{short(name)}]"


_REPR = reprlib.Repr()  # which is short and shallow, whatever there is
_REPR.maxstring = 60


def short(value: Any) -> str:
    """Return a value as a few words, whatever it is."""
    return str(value)[:100] if isinstance(value, Exception) else _REPR.repr(value)


def _refuse(word: str) -> NoReturn:
    raise ValueError(f"{word} is no number")
