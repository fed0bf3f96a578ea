"""Saying how far an experiment is."""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager

from equipoise.util.errors import printable


@contextmanager
def telling(name: str, *, quiet: bool) -> Generator[Callable[[str], None]]:
    """Say what is being done: one moving line in a terminal, quiet lines elsewhere.

    Args:
        name: Of the experiment.
        quiet: Say nothing at all, for programs that read the output.
    """
    if quiet:
        yield lambda _: None
    elif sys.stderr.isatty():
        from rich.console import Console
        from rich.text import Text

        with Console(stderr=True).status("starting") as status:
            yield lambda words: status.update(Text(printable(words)))  # no mark-up: names may hold square brackets
    else:
        yield lambda words: print(printable(f"{name}: {words}"), file=sys.stderr)
