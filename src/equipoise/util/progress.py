"""Progress of long work: bars or a moving line in a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any, final

from equipoise.util.errors import printable
from equipoise.util.extras import needs

REFRESH = 0.1  # seconds between two updates of the bars


@final
class Progress:
    """Bars in a terminal, lines elsewhere. Use it as a context.

    Args:
        quiet: Show nothing at all, for programs that read the output.
    """

    def __init__(self, *, quiet: bool = False) -> None:
        self.quiet, self.live = quiet, not quiet and sys.stderr.isatty()
        self._started, self._refreshed = time.perf_counter(), 0.0
        self._display: Any = None
        self._bars: dict[str, Any] = {}

    def __enter__(self) -> Progress:
        if self.live:
            with needs("progress in a terminal", "train"):
                from rich.console import Console
                from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
                from rich.progress import Progress as Display

            text = TextColumn("{task.description}", markup=False)
            columns = (text, BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
            # Without a thread of its own: processes are forked while it is shown.
            self._display = Display(*columns, console=Console(stderr=True), transient=True, auto_refresh=False)
            self._display.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._display is not None:
            self._display.stop()

    def bar(self, key: str, text: str, done: int, total: int) -> None:
        """Show a bar, or move the one of that key; only in a terminal."""
        if self._display is None:
            return
        if key not in self._bars:
            self._bars[key] = self._display.add_task(text, total=total)
        self._display.update(self._bars[key], completed=done, total=total, description=text)
        if done >= total or time.perf_counter() - self._refreshed > REFRESH:
            self._display.refresh()
            self._refreshed = time.perf_counter()

    def remove(self, key: str) -> None:
        """Remove a bar."""
        if self._display is not None:
            self._display.remove_task(self._bars.pop(key))

    def line(self, text: str, *, timed: bool = True) -> None:
        """Print a line with the seconds so far; not where bars are shown."""
        if not self.quiet and not self.live:
            seconds = f" ({time.perf_counter() - self._started:.0f} s)" if timed else ""
            print(printable(f"{text}{seconds}"), file=sys.stderr)


@contextmanager
def status_line(name: str, *, quiet: bool) -> Generator[Callable[[str], None]]:
    """Yield a function that shows what is being done: one moving line in a terminal, a line for each call elsewhere.

    Args:
        name: Of the work.
        quiet: Show nothing at all, for programs that read the output.
    """
    if quiet:
        yield lambda _: None
    elif sys.stderr.isatty():
        with needs("progress in a terminal", "train"):
            from rich.console import Console
            from rich.text import Text

        with Console(stderr=True).status("starting") as status:
            yield lambda text: status.update(Text(printable(text)))  # no mark-up: names may hold square brackets
    else:
        yield lambda text: print(printable(f"{name}: {text}"), file=sys.stderr)
