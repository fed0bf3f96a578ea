"""Errors whose message alone is shown to users, the rules for names, and one way to raise all problems together."""

import difflib
import io
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from difflib import get_close_matches
from typing import Any, final

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


@final
class BadInput(ValueError):  # noqa: N818 (it says what there is)
    """Something a user gave, or a disk gave back, cannot be used; the message says what to type."""


@final
class Unreadable(ValueError):  # noqa: N818 (it says what the file is)
    """A file that cannot be read; the message names it and says why."""


@final
class FailedRuns(RuntimeError):  # noqa: N818 (it says what there is)
    """Some runs of a study failed; the message says which and why. The results of the others are stored."""


def first_line(error: Exception) -> str:
    """Return the first line of an error's message, without a full stop; its class where it has none."""
    return (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")


def raise_all(problems: Iterable[str], heading: str = "", closing: str = "") -> None:
    """Raise one `BadInput` that lists every problem; do nothing where there is none.

    Args:
        problems: One line each.
        heading: A line above them; they are indented under it.
        closing: A line below them.
    """
    if lines := [f"  {problem}" if heading else problem for problem in problems]:
        raise BadInput("\n".join(filter(None, [heading, *lines, closing])))


def demand(owner: str, *rules: tuple[bool, str, object]) -> None:
    """Raise one `BadInput` that lists every rule that does not hold.

    Args:
        owner: Whose arguments they are.
        rules: Whether the rule holds, what was expected in words, and what was found.

    Example:
        >>> demand("EW", (-1.0 >= 0, "weight should be zero or more", -1.0))
        Traceback (most recent call last):
        equipoise.util.errors.BadInput: EW: weight should be zero or more, found -1.0
    """
    broken = "; ".join(f"{expected}, found {value!r}" for holds, expected, value in rules if not holds)
    raise_all([f"{owner}: {broken}"] if broken else [])


def collect(*readers: Callable[[], Any]) -> list[Any]:
    """Read several inputs; return what they mean, or raise one message with the problems of all of them.

    Args:
        readers: Each reads an input, and raises BadInput or Unreadable where it cannot be used. Any other error is a
            fault of the program, and passes through.

    Raises:
        BadInput: With every problem.

    Example:
        >>> collect(lambda: int("3"), lambda: float("0.5"))
        [3, 0.5]
    """
    values, problems = [], []
    for reader in readers:
        try:
            values.append(reader())
        except (BadInput, Unreadable) as problem:
            problems.append(str(problem))
    raise_all(dict.fromkeys(problems))
    return values


def look_up(kind: str, name: str, known: Mapping[str, Any], otherwise: str = "") -> Any:
    """Return an entry by name; an unknown name raises `BadInput` with the nearest one, and what else may be typed."""
    near = []
    if isinstance(name, str):
        if name in known:
            return known[name]
        near = difflib.get_close_matches(name, known, n=1) or difflib.get_close_matches(name.lower(), known, n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"expected one of {', '.join(known)}"
    raise BadInput(f"unknown {kind} {name!r}; {hint}" + (f" ({otherwise})" if otherwise else ""))


def printable(text: str, allowed: str = "\n\t") -> str:
    r"""Replace characters that command a terminal, change the direction of writing, or cannot be encoded.

    Args:
        text: From anywhere.
        allowed: Such characters that stay.

    Example:
        >>> printable("a\x1b[31mred")
        'a�[31mred'
    """
    return _CONTROL.sub(lambda match: match[0] if match[0] in allowed else "\N{REPLACEMENT CHARACTER}", text)


def require_utf8(words: list[str]) -> None:
    """Refuse words in another encoding, since rows, pages and figures made of them are text.

    Names of files may be any bytes; where such names are printed, bytes that cannot be encoded are escaped.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    if odd := [word for word in words if word.encode("utf-8", "ignore").decode() != word]:
        raise BadInput(f"expected words in UTF-8, found {', '.join(map(ascii, odd))}; rename the file or folder")


_TAKEN = {
    "fused": "it is the key of the joint output",
    **dict.fromkeys(("fused head", "own heads"), "it is a block of the balancing table"),
    "mean": "it is a summary over sensor faults",
    "worst": "it is a summary over sensor faults",
    "label": "it is the column of the answers in a data file",
    "split": "it is the column of the train, validation and test marks in a data file",
    "group": "it is the column of the persons, speakers or videos in a data file",
    "id": "it is the column of the names of the samples in a data file",
    **dict.fromkeys(
        ("committee", "committee_low", "committee_high", "fused_low", "fused_high"),
        "it is an output of an exported model",
    ),
}
_BESIDE = ("_valid", "_used", "_head")


_ENDINGS = {"_length": "it holds the lengths of ragged time", "_present": "it says which samples have a sensor"}


def name_problems(names: Iterable[object]) -> list[str]:
    """List what is wrong with each name that no modality may have; an empty list means that all are fine."""
    problems, names = [], list(names)
    for name in names:
        if not isinstance(name, str):
            problems.append(f"A modality's name must be a string, found {name!r}: write {str(name)!r}.")
        elif "." in name:
            plain = name.replace(".", "_")
            problems.append(f"No modality may be called {name!r}: dots separate modules in PyTorch; write {plain!r}.")
        elif why := _TAKEN.get(name) or next((why for end, why in _ENDINGS.items() if name.endswith(end)), None):
            problems.append(f"No modality may be called {name!r}: {why}. Choose another name.")
        elif other := next((one for one in names for end in _BESIDE if name == f"{one}{end}"), None):
            why = f"an exported model has it beside {other!r}"
            problems.append(f"No modality may be called {name!r}: {why}. Choose another name.")
    return problems


def unknown_name(name: object, known: Iterable[str]) -> str:
    """Say that a name is not known, which ones are, and which one was probably meant."""
    known = list(known)
    close = get_close_matches(str(name), known, n=1)
    hint = f" Did you mean {close[0]!r}?" if close else ""
    return f"{name!r} is none of {', '.join(map(repr, known))}.{hint}"
