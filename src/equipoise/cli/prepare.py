"""`equipoise prepare`: a publisher's files in, a prepared folder out."""

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
from equipoise.data.prepare.prepare import prepare as make
from equipoise.data.prepare.prepare import reasons, size_text
from equipoise.data.prepare.prepared import SKIPPED
from equipoise.data.sets import PUBLISHED
from equipoise.util.errors import collect, look_up, printable
from equipoise.util.progress import Progress

EXAMPLE = "Example: equipoise prepare cremad --source downloads/CREMA-D --out data/cremad frames=3"
STAGES = {"check": "comparing checksums", "read": "reading clips", "pack": "closing up", "sum": "fingerprints"}


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
    original, folder = original_of(name, words or ()), out or Path("data") / name
    started = time.perf_counter()
    with Progress(quiet=as_json) as progress:
        events = _Events(name, progress)
        prepared = make(original, source, folder, workers=workers, strict=strict, on_event=events)
    seconds = time.perf_counter() - started
    if as_json:
        more = {"folder": str(folder), "skipped": prepared.skipped, "seconds": seconds}
        print(json.dumps({**prepared.as_dict(), **more}))
        return
    where, size = prepared.folder, size_text(prepared.bytes)
    done = f"{prepared.name} is prepared in {where}: {prepared.count:,} clips, {size}, in {seconds:.0f} s."
    print(
        f"{prepared.name} is already prepared in {where}: {prepared.count:,} clips, {size}." if events.already else done
    )
    if skipped := prepared.skipped:
        print(f"{len(skipped):,} of {prepared.listed:,} listed could not be read; {where / SKIPPED} has them all:")
        print(printable(reasons(skipped)))
    for protocol, content in prepared.protocols.items():
        print(f"Protocol {protocol}: {content.about}")
    print(f"To train on it, type: equipoise train --data {shlex.quote(str(where))}")


def original_of(name: str, words: Sequence[str]) -> Original:
    """Return a data set with its options, or raise one error with every problem."""
    (kind,) = collect(lambda: look_up("data set", name, PUBLISHED))
    return options.from_words(name, kind, words)


@final
class _Events:
    """Listener of `prepare`: a bar for each stage in a terminal, a line for each tenth of the clips elsewhere."""

    def __init__(self, title: str, progress: Progress) -> None:
        self.title, self.progress, self.already, self._tenth = title, progress, False, 0

    def __call__(self, kind: str, content: dict[str, Any]) -> None:
        if kind == "already":
            self.already = True
            return
        if kind == "begin":
            if not self.progress.quiet:
                size = size_text(content["bytes"])
                print(f"{self.title}: {content['clips']:,} clips, at most {size} of disk", file=sys.stderr)
            return
        done, total = content["done"], content["total"]
        skipped = f", {content['skipped']:,} skipped" if content.get("skipped") else ""
        self.progress.bar(kind, STAGES[kind] + skipped, done, total)
        if kind == "read" and 10 * done // total > self._tenth:
            self._tenth = 10 * done // total
            self.progress.line(f"{done:,}/{total:,} clips{skipped}")
