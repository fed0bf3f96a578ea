"""A prepared data set: a folder that training reads from the memory map, and that says what it is.

prepared.json       what it is: options, classes, protocols, counts, fingerprints. Written last: it is there when all is
NAME.safetensors    one a modality: one tensor [N, …]
index.csv           a line a row: id, label, group, the part under each protocol, the lengths of ragged modalities
skipped.csv         what the publisher lists and could not be read, and why
"""

from __future__ import annotations

import csv
import hashlib
import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, final

import torch
from torch import Tensor

from equipoise.data.prepare.original import Field, Protocol
from equipoise.data.prepare.rows import KINDS, file_bytes, mapped, problems_of
from equipoise.data.splits import PARTS, Part, Splits
from equipoise.data.views import view_of
from equipoise.util.errors import BadInput, printable, raise_all

SCHEMA = 1
FACTS, INDEX, SKIPPED, JOURNAL = "prepared.json", "index.csv", "skipped.csv", "journal.jsonl"
FOLDS = 5
TEXT: dict[str, Any] = {"encoding": "utf-8", "errors": "surrogateescape", "newline": ""}  # any file name goes through


@final
@dataclass(frozen=True)
class Prepared:
    """A prepared data set. It holds no arrays, and may be sent to other processes.

    Args:
        folder: Where it lies.
        name: Of the data set.
        summary: One line on it.
        options: What it was prepared with.
        listing: Fingerprint of the publisher's lists.
        classes: Their names, in the order of the labels.
        fields: How each modality is stored.
        protocols: The ways to cut it into parts; the first is used where none is named.
        listed: How many clips the publisher lists.
        count: How many of them are here.
        fingerprints: The sha256 of the file of each modality.
        tables: The sha256 of `index.csv` and of `skipped.csv`.
        made_with: Versions of what read it.
    """

    folder: Path
    name: str
    summary: str
    options: Mapping[str, Any]
    listing: str
    classes: tuple[str, ...]
    fields: Mapping[str, Field]
    protocols: Mapping[str, Protocol]
    listed: int
    count: int
    fingerprints: Mapping[str, str]
    tables: Mapping[str, str]
    made_with: Mapping[str, str]

    @classmethod
    def open(cls, folder: str | Path) -> Prepared:
        """Open a prepared folder.

        Raises:
            BadInput: If it is not complete, or not what it says: one message with everything that is wrong.
        """
        folder = Path(folder)
        found = cls(folder, **_understood(folder))
        found._refuse(found._problems())
        return found

    @property
    def folds(self) -> int:
        """How many folds by group there are: none where no protocol cuts by group."""
        return FOLDS if any(each.by_group and each.folds for each in self.protocols.values()) else 0

    @property
    def bytes(self) -> int:
        """How much its arrays take."""
        return sum(file_bytes(field, self.count) for field in self.fields.values())

    @cached_property
    def index(self) -> list[dict[str, str]]:
        """What is known of each row."""
        lines = _read_table(self.folder / INDEX)
        try:
            self._check_index(lines)
        except (KeyError, TypeError, ValueError) as found:
            self._refuse([f"{INDEX}: expected what `equipoise prepare` writes, found {type(found).__name__}: {found}"])
        return lines

    def _check_index(self, lines: Sequence[Mapping[str, str]]) -> None:
        if len(lines) != self.count:
            raise ValueError(f"{len(lines):,} lines, and {self.count:,} rows")
        longest = {f"{name}_length": field.shape[0] for name, field in self.fields.items() if field.ragged}
        most = {"label": len(self.classes) - 1, "group_number": 2**62, **longest}
        for line in lines:
            if not all(0 <= int(line[column]) <= limit for column, limit in most.items()):
                raise ValueError(f"numbers out of range, {[line[column] for column in most]}")
            if not all(line[name] in ("", *PARTS) for name in self.protocols) or line["group"] is None:
                raise ValueError(f"other parts than {', '.join(PARTS)}")

    @property
    def skipped(self) -> list[tuple[str, str]]:
        """What could not be read, and why."""
        return [(line["id"], line["reason"]) for line in _read_table(self.folder / SKIPPED)]

    @property
    def source(self) -> str:
        """A fingerprint of everything stored: the arrays in their order, and their lengths."""
        digest = hashlib.sha256(json.dumps(dict(sorted(self.fingerprints.items()))).encode())
        for name, lengths in sorted(self._lengths().items()):
            digest.update(f"{name} {lengths.tolist()}".encode())
        return f"sha256:{digest.hexdigest()}"

    def splits(self, protocol: str | None = None, fold: int | None = None) -> Splits:
        """Its parts under a protocol. Their arrays are read from the disk as they are used.

        Args:
            protocol: By name; None for the first, or with a fold the first that cuts by group.
            fold: Instead of the protocol's own parts, its clips in folds by group: this one tests, the next validates,
                the others train. Which fold a group is in depends on a hash of its name and on nothing else.
        """
        name = self._chosen(protocol, fold)
        chosen = self.protocols[name]
        rows = self._rows_in_parts(name, fold)
        arrays = {each: mapped(self._file(each), field, self.count) for each, field in self.fields.items()}
        inputs = {**arrays, **{f"{each}_length": lengths for each, lengths in self._lengths().items()}}
        views = {each: field.view for each, field in self.fields.items() if field.view is not None}
        label = torch.tensor([int(line["label"]) for line in self.index])
        group = torch.tensor([int(line["group_number"]) for line in self.index]) if chosen.by_group else None

        def part(of: str) -> Part:
            own = rows[of]
            return Part(inputs, label[own], None if group is None else group[own], own, views)

        about = chosen.about
        if fold is not None:
            about = f"fold {fold} of {FOLDS} by a hash of the group's name, over the clips of: {about}"
        if self.count < self.listed:
            about += f"; {self.listed - self.count:,} of {self.listed:,} clips could not be read"
        parts = (part(each) for each in PARTS)
        return Splits(self.name, *parts, self.classes, about, self.source, name, chosen.selects_on_test)

    def verify(self) -> None:
        """Read every file whole and compare its fingerprint.

        Raises:
            BadInput: If files were changed; the message names all of them.
        """
        files = {self._file(name): expected for name, expected in self.fingerprints.items()}
        changed = [path.name for path, expected in files.items() if fingerprint_of(path) != expected]
        self._refuse([f"{name}: its content was changed after it was prepared" for name in changed])

    def _rows_in_parts(self, protocol: str, fold: int | None) -> dict[str, Tensor]:
        if fold is None:
            parts = [line[protocol] for line in self.index]
        else:
            turn = {fold: "test", (fold + 1) % FOLDS: "validation"}
            parts = [turn.get(fold_of(line["group"]), "train") if line[protocol] else "" for line in self.index]
        rows = {part: [row for row, found in enumerate(parts) if found == part] for part in PARTS}
        if self.protocols[protocol].selects_on_test and not rows["validation"]:
            rows["validation"] = rows["test"]  # what was published has no other part to choose on
        return {part: torch.tensor(found, dtype=torch.long) for part, found in rows.items()}

    def _chosen(self, protocol: str | None, fold: int | None) -> str:
        by_group = [name for name, each in self.protocols.items() if each.by_group and each.folds]
        if protocol is not None and protocol not in self.protocols:
            msg = f"{self.name}: expected a protocol among {', '.join(self.protocols)}, found {protocol!r}"
            raise BadInput(msg)
        if fold is None:
            return protocol or next(iter(self.protocols))
        if not by_group or (protocol is not None and protocol not in by_group):
            offered = f"choose {' or '.join(by_group)}" if by_group else "it has none that does"
            msg = f"{self.name}: folds need a protocol whose groups may be cut anew, found {protocol or 'none'}"
            raise BadInput(f"{msg}; {offered}")
        if not 0 <= fold < FOLDS:
            raise BadInput(f"{self.name}: fold should be one of 0 to {FOLDS - 1}, found {fold}")
        return protocol or by_group[0]

    def _lengths(self) -> dict[str, Tensor]:
        ragged = [name for name, field in self.fields.items() if field.ragged]
        return {name: torch.tensor([int(line[f"{name}_length"]) for line in self.index]) for name in ragged}

    def _file(self, modality: str) -> Path:
        return self.folder / f"{modality}.safetensors"

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for `prepared.json`."""
        fields = {
            name: {**asdict(field), "view": None if field.view is None else field.view.as_dict()}
            for name, field in self.fields.items()
        }
        protocols = {name: asdict(each) for name, each in self.protocols.items()}
        plain = {key: getattr(self, key) for key in _PLAIN}
        return {"schema": SCHEMA, **plain, "classes": list(self.classes), "fields": fields, "protocols": protocols}

    def _problems(self) -> list[str]:
        problems = []
        for name, field in self.fields.items():
            problems += problems_of(self._file(name), name, field, self.count)
        for name, expected in self.tables.items():
            path = self.folder / name
            if not path.is_file():
                problems.append(f"{name}: expected a file, found none")
            elif fingerprint_of(path) != expected:
                problems.append(f"{name}: its content was changed after it was prepared")
        return problems

    def _refuse(self, problems: Sequence[str]) -> None:
        again = f"to prepare it again, type first: rm -r {shlex.quote(str(self.folder))}"
        raise_all(problems, f"{self.folder} is damaged; {again}")


_TYPES = {
    **dict.fromkeys(("name", "summary", "listing"), str),
    **dict.fromkeys(("listed", "count"), int),
    **dict.fromkeys(("options", "fields", "protocols", "fingerprints", "tables", "made_with"), dict),
    "classes": list,
}
_PLAIN = ("name", "summary", "options", "listing", "listed", "count", "fingerprints", "tables", "made_with")


def fold_of(group: str) -> int:
    """The fold that a group is in, by its name alone."""
    digest = hashlib.sha256(group.encode("utf-8", "surrogateescape")).digest()
    return int.from_bytes(digest[:8], "big") % FOLDS


def fingerprint_of(path: Path) -> str:
    """The sha256 of a file, as `sha256sum` has it."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 24):
            digest.update(block)
    return f"sha256:{digest.hexdigest()}"


def _understood(folder: Path) -> dict[str, Any]:
    """The facts of `prepared.json`, as arguments of `Prepared`."""
    path = folder / FACTS
    if not path.is_file():
        if (folder / JOURNAL).is_file():
            raise BadInput(f"{folder} is not complete: preparing it was stopped; to go on, type the same command again")
        found = "no such folder" if not folder.is_dir() else f"no {FACTS}"
        raise BadInput(f"{folder}: expected a folder that `equipoise prepare` made, found {found}")
    try:
        facts = json.loads(path.read_text(encoding="utf-8"))
        if facts["schema"] != SCHEMA:
            msg = f"{path}: expected schema {SCHEMA}, found {facts['schema']}; prepare it again with this version"
            raise BadInput(msg)
        _check_facts(facts)
        fields = {name: _field_of(plain) for name, plain in facts["fields"].items()}
        protocols = {name: Protocol(**plain) for name, plain in facts["protocols"].items()}
        plain = {key: facts[key] for key in _PLAIN}
        return {**plain, "classes": tuple(facts["classes"]), "fields": fields, "protocols": protocols}
    except (OSError, KeyError, TypeError, AttributeError, ValueError, RecursionError) as reason:
        if isinstance(reason, BadInput):
            raise
        msg = f"{path}: expected what `equipoise prepare` writes, found {type(reason).__name__}: {reason}"
        raise BadInput(f"{msg}; remove the folder and prepare it again") from None


def _check_facts(facts: Mapping[str, Any]) -> None:
    odd = [key for key, kind in _TYPES.items() if type(facts[key]) is not kind]
    if odd or not (facts["classes"] and facts["fields"] and facts["protocols"]):
        raise TypeError(f"values of other types for {odd}, or no classes, fields or protocols")
    for name in (*facts["classes"], *facts["fields"], *facts["protocols"]):
        if printable(name, "") != name or (name in facts["fields"] and Path(name).name != name):
            raise ValueError(f"the name {name!r}")
    if wrong := [
        each for each in facts["protocols"].values() if [*map(type, each.values())] != [str, bool, bool, bool]
    ]:
        raise TypeError(f"protocols: {wrong!r:.200}")
    for name, plain in facts["fields"].items():
        plausible = plain["dtype"] in KINDS and type(plain["ragged"]) is bool and type(plain["shape"]) is list
        if not plausible or not all(type(size) is int and 0 < size < 2**40 for size in plain["shape"]):
            raise TypeError(f"field {name}: {plain!r:.200}")


def _field_of(plain: Mapping[str, Any]) -> Field:
    view = None if plain["view"] is None else view_of(plain["view"])
    return Field(tuple(plain["shape"]), plain["dtype"], plain["ragged"], view)


def _read_table(path: Path) -> list[dict[str, str]]:
    with path.open(**TEXT) as file:
        return list(csv.DictReader(file))
