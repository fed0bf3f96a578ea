"""`equipoise prepare`: a publisher's files in, a prepared folder out."""

from __future__ import annotations

import json
import shlex
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, final

import typer

from equipoise.cli import options
from equipoise.data.prepare.original import Original
from equipoise.data.prepare.prepared import SKIPPED, Prepared
from equipoise.data.sets import PUBLISHED
from equipoise.util.errors import collect, look_up, printable

EXAMPLE = "Example: equipoise prepare cremad --source downloads/CREMA-D --out data/cremad frames=3"
STAGES = {"check": "comparing checksums", "read": "reading clips", "pack": "closing up", "sum": "fingerprints"}
GLIMPSE = 0.1  # seconds between two looks of the bar


def prepare(
    name: Annotated[str, typer.Argument(help=f"A data set: {', '.join(PUBLISHED)}.")],
    words: Annotated[list[str] | None, typer.Argument(help="name=value: an option of the data set (frames=3).")] = None,
    *,
    source: Annotated[Path, typer.Option("--source", help="Folder with the publisher's files.")],
    out: Annotated[Path | None, typer.Option("--out", help="Folder to make; data/NAME by default.")] = None,
    workers: Annotated[int | None, typer.Option("--workers", min=1, help="Processes; one per core by default.")] = None,
    strict: Annotated[bool, typer.Option("--strict", help="End at the first clip that cannot be read.")] = False,
    as_json: options.Json = False,
) -> None:
    """Turn the publisher's files of a data set into a folder to train from. Stopped, the same command goes on."""
    from equipoise.data.prepare.prepare import prepare as make

    original = original_of(name, words or ())
    folder = out or Path("data") / name
    with Progress(name, quiet=as_json) as progress:
        prepared = make(original, source, folder, workers=workers, strict=strict, on_event=progress.event)
    seconds = time.perf_counter() - progress.started
    if as_json:
        more = {"folder": str(folder), "skipped": prepared.skipped, "seconds": seconds}
        print(json.dumps({**prepared.as_dict(), **more}))
    else:
        _say(prepared, seconds, already=progress.already)


def original_of(name: str, words: Sequence[str]) -> Original:
    """Return a data set with its options, or raise one error with every problem."""
    (kind,) = collect(lambda: look_up("data set", name, PUBLISHED))
    return options.from_words(name, kind, words)


def _say(prepared: Prepared, seconds: float, *, already: bool) -> None:
    from equipoise.data.prepare.prepare import reasons, size_text

    where, size = prepared.folder, size_text(prepared.bytes)
    if already:
        print(f"{prepared.name} is already prepared in {where}: {prepared.count:,} clips, {size}.")
    else:
        print(f"{prepared.name} is prepared in {where}: {prepared.count:,} clips, {size}, in {seconds:.0f} s.")
    if skipped := prepared.skipped:
        print(f"{len(skipped):,} of {prepared.listed:,} listed could not be read; {where / SKIPPED} has them all:")
        print(printable(reasons(skipped)))
    for name, protocol in prepared.protocols.items():
        print(f"Protocol {name}: {protocol.about}")
    print(f"To train on it, type: equipoise train --data {shlex.quote(str(where))}")


@final
class Progress:
    """Shows how far preparing is: a bar in a terminal, a line for each tenth elsewhere. Use it as a context.

    Args:
        title: What is being prepared.
        quiet: Say nothing at all, for programs that read the output.
    """

    def __init__(self, title: str, *, quiet: bool = False) -> None:
        self.title, self.quiet = title, quiet
        self.live = not quiet and sys.stderr.isatty()
        self.started, self.already = time.perf_counter(), False
        self._bars: Any = None
        self._stages: dict[str, Any] = {}
        self._shown: dict[str, float] = {}

    def __enter__(self) -> Progress:
        if self.live:
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
            from rich.progress import Progress as Bars

            columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
            # Without a thread of its own: processes are forked while it is shown.
            self._bars = Bars(*columns, console=Console(stderr=True), transient=True, auto_refresh=False)
            self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bars is not None:
            self._bars.stop()

    def event(self, kind: str, content: dict[str, Any]) -> None:
        """Show what happened."""
        if kind == "already":
            self.already = True
        elif kind == "begin":
            self._begin(content)
        elif self._bars is not None:
            self._show(kind, content)
        elif not self.quiet and kind == "read":
            self._print(content)

    def _begin(self, content: dict[str, Any]) -> None:
        from equipoise.data.prepare.prepare import size_text

        if not self.quiet:
            size = size_text(content["bytes"])
            print(f"{self.title}: {content['clips']:,} clips, at most {size} of disk", file=sys.stderr)

    def _show(self, kind: str, content: dict[str, Any]) -> None:
        now, last = time.perf_counter(), self._shown.get(kind, 0.0)
        if now - last < GLIMPSE and content["done"] < content["total"]:
            return
        self._shown[kind] = now
        if kind not in self._stages:
            self._stages[kind] = self._bars.add_task(STAGES[kind], total=content["total"])
        skipped = f", {content['skipped']:,} skipped" if content.get("skipped") else ""
        self._bars.update(self._stages[kind], completed=content["done"], description=STAGES[kind] + skipped)
        self._bars.refresh()

    def _print(self, content: dict[str, Any]) -> None:
        tenth = 10 * content["done"] // content["total"]
        if tenth > self._shown.get("read", 0):
            self._shown["read"] = tenth
            seconds = time.perf_counter() - self.started
            skipped = f", {content['skipped']:,} skipped" if content["skipped"] else ""
            print(f"{content['done']:,}/{content['total']:,} clips{skipped} ({seconds:.0f} s)", file=sys.stderr)
