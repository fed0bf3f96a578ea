"""From a publisher's files to a prepared folder: in parallel, resumed after any interruption, every clip accounted for.

While it is being made, a folder holds a journal and files with a row for each clip that is listed, in order. A clip is
done when its line is in the journal; its row counts when its checksum is the journal's. At the end the rows of clips
that could not be read are closed up, and `prepared.json` is written.
"""

import csv
import dataclasses
import hashlib
import importlib.metadata
import io
import json
import os
import shlex
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, final

from equipoise.data.prepare.original import Clips, Field, Original, Protocol
from equipoise.data.prepare.prepared import FACTS, INDEX, JOURNAL, SKIPPED, TEXT, Prepared, file_bytes, fingerprint_of
from equipoise.data.prepare.writer import Journal, PartialDataSet, Record
from equipoise.data.splits import PARTS
from equipoise.util.errors import BadInput, Unreadable, raise_all
from equipoise.util.files import link_problems
from equipoise.util.pool import Pool
from equipoise.util.processes import cores, lock_folder

Event = Callable[[str, dict[str, Any]], None]
"""Called with "already" where there is nothing to do; otherwise with "begin" (clips and bytes), then with "check",
"read", "pack" and "sum", each many times: what is done, and of how much; "read" also says how much was skipped."""

PATIENCE = 120.0
TRIES = 2  # times that a clip is begun whose process dies: it may have died of something else, such as full memory
SHOWN = 5  # reasons or names in a message; all reasons are in a file
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
        source: The folder of the publisher's files.
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
    wanted = _identity(original, clips)
    try:
        out.mkdir(parents=True, exist_ok=True)
        with lock_folder(out, "preparing"):
            if clips is None or (out / FACTS).is_file():
                return _already(out, wanted, tell, strict=strict)
            raise_all(link_problems(out))
            return _Preparation(original, clips, out, wanted, tell).run(workers or cores(), patience, strict=strict)
    except OSError as why:
        reason = why.strerror or str(why)
        kept = "what is done is kept. Make room, or choose another folder with --out"
        raise BadInput(f"cannot write to {out}: {reason}; {kept}") from None


def size_text(size: float) -> str:
    """Return a number of bytes with its unit."""
    for unit in ("bytes", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:.3g} TB"


def reasons(skipped: Sequence[tuple[str, str]], most: int = SHOWN) -> str:
    """Return the first few clips that could not be read with their reasons, a line each."""
    lines = [f"  {name}: {reason}" for name, reason in skipped[:most]]
    more = len(skipped) - most
    return "\n".join([*lines, f"  and {more:,} more"] if more > 0 else lines)


@final
@dataclass(frozen=True)
class _Preparation:
    original: Original
    clips: Clips
    out: Path
    wanted: Mapping[str, Any]
    tell: Event

    def run(self, workers: int, patience: float, *, strict: bool) -> Prepared:
        """Read every clip that is not done yet, close up the rows, and write what is known of them."""
        fields, count = self.original.fields, len(self.clips.listed)
        names = sorted(path.name for path in self.out.iterdir() if not path.name.startswith("."))
        if names and JOURNAL not in names:
            expected = "expected an empty folder, or one that was being prepared"
            named = ", ".join(names[:SHOWN])
            raise BadInput(f"{self.out}: {expected}, found {named}; choose another folder with --out")
        with closing(Journal(self.out / JOURNAL)) as journal:
            records = {record.clip: record for record in journal.news()}
            if journal.heading is None:
                journal.begin(self.wanted)
                records = {}
            _refuse_other(self.out, journal.heading or self.wanted, self.wanted)
            self._check_room()
            with closing(PartialDataSet(self.out, self.clips, fields, journal)) as folder:
                done = folder.intact(records, partial(self._say, "check"))
                todo, unread = [number for number in range(count) if number not in done], set[int]()
                how: dict[str, Any] = {"ahead": 1 if strict else 8, "tries": TRIES, "patience": patience}
                with Pool(lambda clip, _: folder.write_clip(clip), workers, **how) as pool:
                    pool.submit(*todo)
                    while pool.unfinished and not (strict and unread):
                        for clip, kind, content in pool.events():
                            if kind == "failed":
                                raise content
                            if kind != "done":
                                died = f"the process that read it died of it ({content}), {TRIES} times"
                                late = f"reading it did not end within {patience:g} seconds"
                                journal.add(Record(clip, reason=late if kind == "late" else died))
                        news = journal.news()
                        done.update({record.clip: record for record in news})
                        unread.update(record.clip for record in news if record.reason)
                        self._say("read", len(done), count, skipped=len(unread))
                last = [record for record in journal.news() if record.reason]  # where it was broken off
                self._refuse_unread([done[number] for number in sorted(unread)] + last, strict=strict)
                self._write_tables(done)
                folder.pack(unread, partial(self._say, "pack"))
        return self._finish(count - len(unread))

    def _check_room(self) -> None:
        """Refuse a disk that would be full before the end."""
        count = len(self.clips.listed)
        paths = {self.out / f"{name}.safetensors": field for name, field in self.original.fields.items()}
        total = sum(file_bytes(field, count) for field in paths.values())
        taken = sum(path.stat().st_blocks * 512 for path in paths if path.is_file())
        free = shutil.disk_usage(self.out).free
        self.tell("begin", {"clips": count, "bytes": total})
        if total - taken > free:
            room = f"{count:,} clips take {size_text(total)}, found {size_text(free)} free at {self.out}"
            raise BadInput(f"{self.original.name}: {room}; make room, or choose a folder on another disk with --out")

    def _refuse_unread(self, unread: Sequence[Record], *, strict: bool) -> None:
        skipped = [(self.clips.listed[record.clip].id, record.reason) for record in unread]
        if strict and unread:
            then = "what is done is kept. Repair it, and type the same again; or leave out --strict"
            raise BadInput(f"{self.original.name}: this could not be read; {then}\n{reasons(skipped, len(skipped))}")
        if len(unread) == len(self.clips.listed):
            raise BadInput(f"{self.original.name}: none of {len(unread):,} clips could be read\n{reasons(skipped)}")

    def _write_tables(self, records: Mapping[int, Record]) -> None:
        """Write a line for each clip that could be read into the index, and the others into a list.

        Groups are numbered as they first appear among all clips, so that no number depends on which files exist.
        """
        index, skipped, groups, protocols = [], [], dict[str, int](), list(self._protocols)
        ragged = [name for name, field in self.original.fields.items() if field.ragged]
        for number, clip in enumerate(self.clips.listed):
            group_number, record = groups.setdefault(clip.group, len(groups)), records[number]
            if record.reason:
                skipped.append({"id": clip.id, "reason": record.reason})
                continue
            line = {"id": clip.id, "label": clip.label, "group": clip.group, "group_number": group_number}
            line |= {name: clip.parts.get(name, "") for name in protocols}
            index.append(line | {f"{name}_length": record.lengths[name] for name in ragged})
        for name, columns, lines in ((INDEX, list(index[0]), index), (SKIPPED, ["id", "reason"], skipped)):
            text = io.StringIO()
            writer = csv.DictWriter(text, columns, lineterminator="\n")
            writer.writeheader()
            writer.writerows(lines)
            _write_file(self.out / name, text.getvalue())

    def _finish(self, count: int) -> Prepared:
        """Write last of all that the rows are complete."""
        names, fingerprints = list(self.original.fields), {}
        for number, name in enumerate(names, 1):
            fingerprints[name] = fingerprint_of(self.out / f"{name}.safetensors")
            self._say("sum", number, len(names))
        original, wanted, made_with = self.original, self.wanted, {}
        for package in READERS:
            with suppress(importlib.metadata.PackageNotFoundError):
                made_with[package] = importlib.metadata.version(package)
        prepared = Prepared(
            folder=self.out,
            name=original.name,
            summary=original.summary,
            options=wanted["options"],
            listing=wanted["listing"],
            classes=original.classes(self.clips),
            fields=original.fields,
            protocols=self._protocols,
            listed=len(self.clips.listed),
            count=count,
            fingerprints=fingerprints,
            tables={name: fingerprint_of(self.out / name) for name in (INDEX, SKIPPED)},
            made_with=made_with,
        )
        _write_file(self.out / FACTS, json.dumps(prepared.as_dict(), indent=1) + "\n")
        (self.out / JOURNAL).unlink()
        return prepared

    @property
    def _protocols(self) -> dict[str, Protocol]:
        """The protocols that the source has the lists for."""
        used = {name for clip in self.clips.listed for name in clip.parts}
        return {name: protocol for name, protocol in self.original.protocols.items() if name in used}

    def _say(self, kind: str, done: int, total: int, **more: int) -> None:
        self.tell(kind, {"done": done, "total": total, **more})


def _opened(original: Original, source: Path, out: Path) -> Clips | None:
    """Return the clips of the source; None where it is gone and not needed, as everything is prepared."""
    if os.path.realpath(source) == os.path.realpath(out):
        raise BadInput(f"source and out are both {source}; choose another folder with --out")
    if not source.exists():
        if (out / FACTS).is_file():
            return None
        expected = f"expected the publisher's files in {source}, found no such folder"
        raise BadInput(f"{original.name}: {expected}\n{original.layout}")
    try:
        clips = original.open(source)
    except (OSError, Unreadable) as why:
        raise BadInput(str(why) if isinstance(why, Unreadable) else f"cannot read {source}: {why}") from None
    check_listing(original, clips)
    return clips


def _already(out: Path, wanted: Mapping[str, Any], tell: Event, *, strict: bool) -> Prepared:
    """Open a complete folder, if it is the one that is wanted."""
    prepared = Prepared.open(out)
    made = {"name": prepared.name, "options": prepared.options, "fields": _stored(prepared.fields)}
    _refuse_other(out, {**made, "listing": prepared.listing, "clips": prepared.listed}, wanted)
    if strict and prepared.skipped:
        again = f"to try again, type first: {_remove(out)}"
        raise BadInput(f"{out} is complete but for what could not be read; {again}\n{reasons(prepared.skipped)}")
    with suppress(OSError):  # a kill at the very end leaves it behind
        (out / JOURNAL).unlink(missing_ok=True)
    tell("already", {})
    return prepared


# -- the identity of a folder --


def _identity(original: Original, clips: Clips | None) -> dict[str, Any]:
    """Return what makes a prepared folder this one and no other; without the listing where the source is gone."""
    options = json.loads(json.dumps(dataclasses.asdict(original), default=str))  # ty: ignore[invalid-argument-type]
    identity = {"name": original.name, "options": options, "fields": _stored(original.fields)}
    if clips is None:
        return identity
    digest = hashlib.sha256(json.dumps(original.classes(clips)).encode())
    for clip in clips.listed:
        digest.update(json.dumps([clip.id, int(clip.label), clip.group, sorted(clip.parts.items())]).encode())
    return {**identity, "clips": len(clips.listed), "listing": f"sha256:{digest.hexdigest()}"}


def _stored(fields: Mapping[str, Field]) -> dict[str, Any]:
    """Return the layout of arrays on disk in plain values."""
    return {name: [*field.shape, field.dtype, "ragged" if field.ragged else "even"] for name, field in fields.items()}


def _refuse_other(out: Path, made: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
    """Refuse a folder that was made of something else, or with other options."""
    options, listing = [], []
    for key in sorted({*made["options"], *wanted["options"]}):
        before, after = (identity["options"].get(key, "unknown") for identity in (made, wanted))
        if before != after:
            options.append(f"{key}={before} there, {key}={after} is wanted")
    if made["fields"] != wanted["fields"]:
        listing.append("its arrays are stored in another way, by another version")
    if "listing" in wanted and made["listing"] != wanted["listing"]:
        counts = f"{made['clips']:,} clips there, {wanted['clips']:,} now"
        listing.append(f"the source lists other clips, labels or parts than it did then ({counts})")
    if made["name"] != wanted["name"]:
        options = [f"it holds {made['name']}, and {wanted['name']} is wanted"]
    raise_all(
        options or listing,
        f"{out} was prepared from something else, or in another way:",
        f"Choose another folder with --out; or to replace this one, type first: {_remove(out)}",
    )


def check_listing(original: Original, clips: Clips) -> None:
    """Refuse a listing that contradicts itself, in one message."""
    problems = _listing_problems(original.protocols, clips, len(original.classes(clips)))
    raise_all(problems, f"{original.name}: what the source lists cannot be used:")


def _listing_problems(protocols: Mapping[str, Protocol], clips: Clips, classes: int) -> Iterator[str]:
    listed, named = clips.listed, ", ".join(protocols)
    if not listed:
        yield "expected clips, found none"
    elif not any(clip.parts for clip in listed):
        yield f"expected clips in parts under {named}, found none in any"
    twice = [name for name, times in Counter(clip.id for clip in listed).items() if times > 1]
    outside = [clip.id for clip in listed if not 0 <= clip.label < classes]
    other_protocol = [clip.id for clip in listed if not {*clip.parts} <= {*protocols}]
    other_part = [clip.id for clip in listed if not {*clip.parts.values()} <= {*PARTS}]
    rules = [
        ("expected every clip once, found twice: ", twice),
        (f"expected labels from 0 to {classes - 1}, found others for ", outside),
        (f"expected parts under the protocols {named}, found others for ", other_protocol),
        (f"expected the parts {', '.join(PARTS)}, found others for ", other_part),
    ]
    for name in (name for name, protocol in protocols.items() if protocol.by_group):
        pairs = {(clip.group, clip.parts[name]) for clip in listed if name in clip.parts}
        groups = Counter(group for group, _ in pairs)
        torn = [group for group in dict.fromkeys(clip.group for clip in listed) if groups[group] > 1]
        rules.append((f"{name}: expected every group in one part, found in several: ", torn))
    for rule, names in rules:
        if names:
            more = f" and {len(names) - SHOWN:,} more" if len(names) > SHOWN else ""
            yield rule + ", ".join(names[:SHOWN]) + more


def _remove(out: Path) -> str:
    return f"rm -r {shlex.quote(str(out))}"


def _write_file(path: Path, text: str) -> None:
    """Write a file whole or not at all, also if the power fails."""
    unfinished = path.with_suffix(".part")
    with unfinished.open("w", **TEXT) as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    unfinished.replace(path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
