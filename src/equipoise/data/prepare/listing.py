"""What a publisher lists: whether it can be used, how to tell it from another listing, and the index made of it."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from equipoise.data.prepare.journal import Record
from equipoise.data.prepare.original import Clip, Clips, Field, Original, Protocol
from equipoise.data.splits import PARTS
from equipoise.util.errors import BadInput

FIRST_COLUMNS = ("id", "label", "group", "group_number")
SHOWN = 5


def identity(original: Original, clips: Clips | None) -> dict[str, Any]:
    """What makes a prepared folder this one and no other; without what is listed where the source is gone."""
    known = {
        "name": original.name,
        "options": json.loads(json.dumps(dataclasses.asdict(original), default=str)),  # ty: ignore[invalid-argument-type]
        "fields": stored(original.fields),
    }
    if clips is None:
        return known
    return {**known, "clips": len(clips.listed), "listing": _fingerprint(clips.listed, original.classes(clips))}


def stored(fields: Mapping[str, Field]) -> dict[str, Any]:
    """How arrays lie on disk, in plain values."""
    return {name: [*each.shape, each.dtype, "ragged" if each.ragged else "even"] for name, each in fields.items()}


def differences(then: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """What sets a folder apart from what is wanted now, in words."""
    if then["name"] != now["name"]:
        return [f"it holds {then['name']}, and {now['name']} is wanted"]
    found = []
    for option in sorted({*then["options"], *now["options"]}):
        before, after = (each["options"].get(option, "unknown") for each in (then, now))
        if before != after:
            found.append(f"{option}={before} there, {option}={after} is wanted")
    if found:
        return found
    if then["fields"] != now["fields"]:
        found.append("its arrays are stored in another way, by another version")
    if "listing" in now and then["listing"] != now["listing"]:
        counts = f"{then['clips']:,} clips there, {now['clips']:,} now"
        found.append(f"the source lists other clips, labels or parts than it did then ({counts})")
    return found


def check_listing(original: Original, clips: Clips) -> None:
    """Refuse a listing that contradicts itself, in one message."""
    problems = list(_problems(clips.listed, original.protocols, len(original.classes(clips))))
    if problems:
        lines = "\n".join(f"  {each}" for each in problems)
        raise BadInput(f"{original.name}: what the source lists cannot be used:\n{lines}")


def protocols_of(original: Original, clips: Clips) -> dict[str, Protocol]:
    """The protocols that the source has the lists for."""
    return {
        name: protocol
        for name, protocol in original.protocols.items()
        if any(name in clip.parts for clip in clips.listed)
    }


def index_of(original: Original, clips: Clips, records: Mapping[int, Record]) -> Iterator[dict[str, Any]]:
    """The lines of the index, one for each clip that could be read, in order.

    Groups are numbered as they first appear among all that is listed, so that no number depends on which files exist.
    """
    ragged = [name for name, field in original.fields.items() if field.ragged]
    protocols = protocols_of(original, clips)
    groups: dict[str, int] = {}
    for number, clip in enumerate(clips.listed):
        group_number = groups.setdefault(clip.group, len(groups))
        record = records[number]
        if record.reason:
            continue
        parts = {protocol: clip.parts.get(protocol, "") for protocol in protocols}
        lengths = {f"{name}_length": record.lengths[name] for name in ragged}
        first = dict(zip(FIRST_COLUMNS, (clip.id, clip.label, clip.group, group_number), strict=True))
        yield {**first, **parts, **lengths}


def columns_of(original: Original, clips: Clips) -> list[str]:
    """The columns of the index."""
    ragged = [f"{name}_length" for name, field in original.fields.items() if field.ragged]
    return [*FIRST_COLUMNS, *protocols_of(original, clips), *ragged]


def _fingerprint(listed: Iterable[Clip], classes: Sequence[str]) -> str:
    digest = hashlib.sha256(json.dumps(classes).encode())
    for clip in listed:
        digest.update(json.dumps([clip.id, int(clip.label), clip.group, sorted(clip.parts.items())]).encode())
    return f"sha256:{digest.hexdigest()}"


def _problems(listed: Sequence[Clip], protocols: Mapping[str, Protocol], classes: int) -> Iterator[str]:
    if not listed:
        yield "expected clips, found none"
    elif not any(clip.parts for clip in listed):
        yield f"expected clips in parts under {', '.join(protocols)}, found none in any"
    if twice := [each for each, times in Counter(clip.id for clip in listed).items() if times > 1]:
        yield f"expected every clip once, found twice: {_some(twice)}"
    if outside := [clip.id for clip in listed if not 0 <= clip.label < classes]:
        yield f"expected labels from 0 to {classes - 1}, found others for {_some(outside)}"
    if strange := [clip.id for clip in listed if not {*clip.parts} <= {*protocols}]:
        yield f"expected parts under the protocols {', '.join(protocols)}, found others for {_some(strange)}"
    if strange := [clip.id for clip in listed if not {*clip.parts.values()} <= {*PARTS}]:
        yield f"expected the parts {', '.join(PARTS)}, found others for {_some(strange)}"
    for name in (each for each, protocol in protocols.items() if protocol.by_group):
        parts: dict[str, set[str]] = {}
        for clip in listed:
            if name in clip.parts:
                parts.setdefault(clip.group, set()).add(clip.parts[name])
        if torn := [group for group, found in parts.items() if len(found) > 1]:
            yield f"{name}: expected every group in one part, found in several: {_some(torn)}"


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - SHOWN:,} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more
