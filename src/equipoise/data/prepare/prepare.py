"""From a publisher's files to a prepared folder: in parallel, resumed after any interruption, every clip accounted for.

While it is being made, a folder holds a journal and files with a row for each clip that is listed, in order. A clip is
done when its line is in the journal; its row counts when its checksum is the journal's. At the end the rows of clips
that could not be read are closed up, and `prepared.json` is written.
"""

from __future__ import annotations

import csv
import importlib.metadata
import json
import os
import shlex
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, final

from equipoise.data.prepare.intake import Intake
from equipoise.data.prepare.journal import Journal, Record
from equipoise.data.prepare.listing import (
    check_listing,
    columns_of,
    differences,
    identity,
    index_of,
    protocols_of,
    stored,
)
from equipoise.data.prepare.original import Clips, Original
from equipoise.data.prepare.prepared import FACTS, INDEX, JOURNAL, SKIPPED, TEXT, Prepared, fingerprint_of
from equipoise.data.prepare.rows import file_bytes
from equipoise.data.prepare.underway import Underway
from equipoise.util.crew import Crew
from equipoise.util.errors import BadInput, Unreadable, raise_all
from equipoise.util.files import link_problems
from equipoise.util.processes import cores, lock_folder

Event = Callable[[str, dict[str, Any]], None]
"""Called with "already" where there is nothing to do; otherwise with "begin" (clips and bytes), then with "check",
"read", "pack" and "sum", each many times: what is done, and of how much; "read" also says how much was skipped."""

PATIENCE = 120.0
SHOWN = 5  # reasons in a message; all of them are in a file
READERS = ("equipoise", "numpy", "torch", "av", "soundfile", "pillow", "h5py")  # whose versions may change what is read


def prepare(
    original: Original,
    source: Path,
    out: Path,
    *,
    workers: int | None = None,
    strict: bool = False,
    patience: float = PATIENCE,
    on_event: Event | None = None,
) -> Prepared:
    """Prepare a data set, or go on with it where it was stopped. What is complete already is opened.

    Args:
        original: The data set, with its options.
        source: Where the publisher's files are.
        out: The folder to make.
        workers: Processes that read clips; None for one per core.
        strict: End at the first clip that cannot be read.
        patience: Seconds that reading one clip may take.
        on_event: Told of everything that happens.

    Raises:
        BadInput: If the source is not what was expected, the folder was made otherwise or cannot be written, no clip
            can be read, or with `strict` one cannot.
    """
    tell = on_event or (lambda *_: None)
    clips = _opened(original, source, out)
    wanted = identity(original, clips)
    try:
        out.mkdir(parents=True, exist_ok=True)
        with lock_folder(out, "preparing"):
            if clips is None or (out / FACTS).is_file():
                return _already(out, wanted, tell, strict=strict)
            raise_all(link_problems(out))
            making = _Making(original, clips, out, wanted, tell)
            done = making.read_all(workers or cores(), patience, strict=strict)
            return making.finish(done)
    except OSError as found:
        reason = found.strerror or str(found)
        msg = f"cannot write to {out}: {reason}; what is done is kept. Make room, or choose another folder with --out"
        raise BadInput(msg) from None


def in_words(size: float) -> str:
    """A number of bytes as people say it."""
    for unit in ("bytes", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:.3g} TB"


def reasons(skipped: Sequence[tuple[str, str]], most: int = SHOWN) -> str:
    """The first few of what could not be read, a line each."""
    lines = [f"  {name}: {reason}" for name, reason in skipped[:most]]
    more = len(skipped) - most
    return "\n".join([*lines, f"  and {more:,} more"] if more > 0 else lines)


@final
@dataclass(frozen=True)
class _Making:
    original: Original
    clips: Clips
    out: Path
    wanted: Mapping[str, Any]
    tell: Event

    def read_all(self, workers: int, patience: float, *, strict: bool) -> dict[int, Record]:
        """Read every clip that is not done yet; then the files hold the rows of all that could be read."""
        fields, count = self.original.fields, len(self.clips.listed)
        _refuse_strangers(self.out)
        with closing(Journal(self.out / JOURNAL)) as journal:
            records = self._resumed(journal)
            self._need_room()
            with Underway(self.out, fields, count, journal) as folder:
                done = folder.kept(records, partial(self._say, "check"))
                todo, unread = [number for number in range(count) if number not in done], set[int]()
                intake = Intake(self.clips, fields, folder.files, journal)
                with Crew(intake, journal, workers, patience) as crew:
                    for news in crew.run(todo):
                        done.update({record.clip: record for record in news})
                        unread.update(record.clip for record in news if record.reason)
                        self._say("read", len(done), count, skipped=len(unread))
                        if strict and unread:
                            break
                late = [record for record in journal.news() if record.reason]  # where it was broken off
                self._refuse_unread([done[number] for number in sorted(unread)] + late, strict=strict)
                folder.pack(sorted(unread), partial(self._say, "pack"))
        return done

    def finish(self, done: Mapping[int, Record]) -> Prepared:
        """Write what is known of the rows, and last of all that they are complete."""
        listed, names = self.clips.listed, list(self.original.fields)
        skipped = [{"id": listed[number].id, "reason": done[number].reason} for number in range(len(listed))]
        lines = index_of(self.original, self.clips, done)
        _write_table(self.out / INDEX, columns_of(self.original, self.clips), lines)
        _write_table(self.out / SKIPPED, ["id", "reason"], [line for line in skipped if line["reason"]])
        fingerprints = {}
        for number, name in enumerate(names, 1):
            fingerprints[name] = fingerprint_of(self.out / f"{name}.safetensors")
            self._say("sum", number, len(names))
        prepared = Prepared(
            folder=self.out,
            name=self.original.name,
            summary=self.original.summary,
            options=self.wanted["options"],
            listing=self.wanted["listing"],
            classes=self.original.classes(self.clips),
            fields=self.original.fields,
            protocols=protocols_of(self.original, self.clips),
            listed=len(listed),
            count=sum(not record.reason for record in done.values()),
            fingerprints=fingerprints,
            tables={name: fingerprint_of(self.out / name) for name in (INDEX, SKIPPED)},
            made_with={name: found for name in READERS if (found := _version(name))},
        )
        _replace_file(self.out / FACTS, json.dumps(prepared.as_dict(), indent=1) + "\n")
        (self.out / JOURNAL).unlink()
        return prepared

    def _resumed(self, journal: Journal) -> dict[int, Record]:
        """What an earlier attempt has done, if it wanted the same."""
        records = {record.clip: record for record in journal.news()}
        if journal.heading is None:
            journal.begin(self.wanted)
            return {}
        _refuse_other(self.out, differences(journal.heading, self.wanted))
        return records

    def _need_room(self) -> None:
        """Say how much it will be, before a disk is full."""
        count = len(self.clips.listed)
        paths = {self.out / f"{name}.safetensors": field for name, field in self.original.fields.items()}
        total = sum(file_bytes(field, count) for field in paths.values())
        taken = sum(path.stat().st_blocks * 512 for path in paths if path.is_file())
        free = shutil.disk_usage(self.out).free
        self.tell("begin", {"clips": count, "bytes": total})
        if total - taken > free:
            found = f"{count:,} clips take {in_words(total)}, found {in_words(free)} free at {self.out}"
            raise BadInput(f"{self.original.name}: {found}; make room, or choose a folder on another disk with --out")

    def _refuse_unread(self, unread: Sequence[Record], *, strict: bool) -> None:
        found = [(self.clips.listed[record.clip].id, record.reason) for record in unread]
        if strict and unread:
            then = "what is done is kept. Mend it, and type the same again; or leave out --strict"
            raise BadInput(f"{self.original.name}: this could not be read; {then}\n{reasons(found, len(found))}")
        if len(unread) == len(self.clips.listed):
            raise BadInput(f"{self.original.name}: none of {len(unread):,} clips could be read\n{reasons(found)}")

    def _say(self, kind: str, done: int, total: int, **more: int) -> None:
        self.tell(kind, {"done": done, "total": total, **more})


def _opened(original: Original, source: Path, out: Path) -> Clips | None:
    """What the source holds; None where it is gone and not needed, as everything is prepared."""
    if os.path.realpath(source) == os.path.realpath(out):
        raise BadInput(f"source and out are both {source}; choose another folder with --out")
    if not source.exists():
        if (out / FACTS).is_file():
            return None
        msg = f"{original.name}: expected the publisher's files in {source}, found no such folder\n{original.layout}"
        raise BadInput(msg)
    try:
        clips = original.open(source)
    except OSError as found:
        raise BadInput(f"cannot read {source}: {found}") from None
    except Unreadable as found:
        raise BadInput(str(found)) from None
    check_listing(original, clips)
    return clips


def _already(out: Path, wanted: Mapping[str, Any], tell: Event, *, strict: bool) -> Prepared:
    """What is complete, if it is what is wanted."""
    found = Prepared.open(out)
    then = {"name": found.name, "options": found.options, "fields": stored(found.fields), "listing": found.listing}
    _refuse_other(out, differences({**then, "clips": found.listed}, wanted))
    if strict and found.skipped:
        msg = f"{out} is complete but for what could not be read; to try again, type first: {_remove(out)}"
        raise BadInput(f"{msg}\n{reasons(found.skipped)}")
    with suppress(OSError):  # a kill at the very end leaves it behind
        (out / JOURNAL).unlink(missing_ok=True)
    tell("already", {})
    return found


def _refuse_other(out: Path, found: Sequence[str]) -> None:
    if found:
        lines = "\n".join(f"  {each}" for each in found)
        msg = f"{out} was prepared from something else, or in another way:\n{lines}"
        raise BadInput(f"{msg}\nChoose another folder with --out; or to replace this one, type first: {_remove(out)}")


def _refuse_strangers(out: Path) -> None:
    found = sorted(path.name for path in out.iterdir() if not path.name.startswith("."))
    if found and JOURNAL not in found:
        msg = f"{out}: expected an empty folder, or one that was being prepared, found {', '.join(found[:SHOWN])}"
        raise BadInput(f"{msg}; choose another folder with --out")


def _remove(out: Path) -> str:
    return f"rm -r {shlex.quote(str(out))}"


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _write_table(path: Path, columns: Sequence[str], lines: Iterable[Mapping[str, Any]]) -> None:
    with path.open("w", **TEXT) as file:
        writer = csv.DictWriter(file, columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows(lines)
        file.flush()
        os.fsync(file.fileno())


def _replace_file(path: Path, text: str) -> None:
    """Put a file in its place whole or not at all, also if the power fails."""
    part = path.with_suffix(".part")
    with part.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    part.replace(path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
