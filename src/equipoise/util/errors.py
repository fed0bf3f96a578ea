"""What the command says in a message alone; any other error is a fault of the program and shows where it happened."""

from __future__ import annotations

import difflib
import io
import re
import sys
from collections.abc import Callable, Mapping
from typing import Any, final

from equipoise.util.unreadable import Unreadable

_COMMANDS = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


@final
class BadInput(ValueError):  # noqa: N818 (it says what there is)
    """Something a user gave, or a disk gave back, cannot be used; the message says what to type."""


@final
class FailedRuns(RuntimeError):  # noqa: N818 (it says what there is)
    """Some runs of a study failed; the message says which and why. The others are kept."""


def answers(*questions: Callable[[], Any]) -> list[Any]:
    """What several inputs mean, or one message with the problems of all of them.

    Args:
        questions: Each reads an input, and raises BadInput or Unreadable where it cannot be used. Any other error is a
            fault of the program, and passes through.

    Raises:
        BadInput: With every problem.

    Example:
        >>> answers(lambda: int("3"), lambda: float("0.5"))
        [3, 0.5]
    """
    found: list[Any] = []
    problems: list[str] = []
    for question in questions:
        try:
            found.append(question())
        except (BadInput, Unreadable) as problem:
            problems.append(str(problem))
    if problems:
        raise BadInput("\n".join(dict.fromkeys(problems)))
    return found


def look_up(kind: str, name: str, known: Mapping[str, Any]) -> Any:
    """An entry by name; an unknown one is answered with the nearest."""
    if name in known:
        return known[name]
    near = difflib.get_close_matches(name, known, n=1) or difflib.get_close_matches(name.lower(), known, n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"expected one of {', '.join(known)}"
    raise BadInput(f"unknown {kind} {name!r}; {hint}")


def shown(text: str, kept: str = "\n\t") -> str:
    r"""Text as it may be shown: without characters that command a terminal, turn the writing, or cannot be written.

    Args:
        text: From anywhere.
        kept: Such characters that stay.

    Example:
        >>> shown("a\x1b[31mred")
        'a�[31mred'
    """
    return _COMMANDS.sub(lambda found: found[0] if found[0] in kept else "\N{REPLACEMENT CHARACTER}", text)


def only_text(words: list[str]) -> None:
    """Refuse words in another encoding, since what is made of them is text: rows, pages, figures.

    Names of files may be any bytes; where those of others come up in what is printed, they are shown as they can be.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    if odd := [word for word in words if word.encode("utf-8", "ignore").decode() != word]:
        raise BadInput(f"expected words in UTF-8, found {', '.join(map(ascii, odd))}; rename the file or folder")
