"""A prepared data set: a folder that training reads from the memory map, and that says what it is.

prepared.json       options, classes, protocols, counts, fingerprints. Written last: where it is, the folder is complete
NAME.safetensors    one per modality: one tensor [N, …]
index.csv           a line per row: id, label, group, the part under each protocol, the lengths of ragged modalities
skipped.csv         the clips that the publisher lists and that could not be read, and why
"""

from __future__ import annotations

import csv
import hashlib
import json
import math
import mmap
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, final

import numpy as np
import torch
from torch import Tensor

from equipoise.data.prepare.original import Field, Protocol
from equipoise.data.splits import PARTS, Part, Splits
from equipoise.data.views import view_of
from equipoise.util.errors import BadInput, look_up, printable, raise_all

SCHEMA = 1
FACTS, INDEX, SKIPPED, JOURNAL = "prepared.json", "index.csv", "skipped.csv", "journal.jsonl"
FOLDS = 5
TEXT: dict[str, Any] = {"encoding": "utf-8", "errors": "surrogateescape", "newline": ""}  # any file name goes through
DTYPES = {"uint8": "U8", "int16": "I16", "float16": "F16", "float32": "F32"}
START = 4096  # where rows begin: the header is padded to one page, so that it can be rewritten in place
NO_RESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000 if sys.platform == "linux" else 0)


@final
@dataclass(frozen=True)
class Prepared:
    """A prepared data set. It holds no arrays, and may be sent to other processes.

    Args:
        folder: The folder.
        name: Of the data set.
        summary: One line on it.
        options: The options it was prepared with.
        listing: Fingerprint of the publisher's lists.
        classes: Their names, in the order of the labels.
        fields: How each modality is stored.
        protocols: The ways to cut it into parts; the first is used where none is named.
        listed: Number of clips that the publisher lists.
        count: Number of them that are here.
        fingerprints: The sha256 of the file of each modality.
        tables: The sha256 of `index.csv` and of `skipped.csv`.
        made_with: Versions of the packages that read it.
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
        prepared = cls(Path(folder), **_read_facts(Path(folder)))
        problems = []
        for name, field in prepared.fields.items():
            problems += problems_of(prepared._file(name), name, field, prepared.count)
        missing = [name for name in prepared.tables if not (prepared.folder / name).is_file()]
        problems += [f"{name}: expected a file, found none" for name in missing]
        prepared._refuse(problems, {name: sha for name, sha in prepared.tables.items() if name not in missing})
        return prepared

    @property
    def folds(self) -> int:
        """The number of folds by group: none where no protocol cuts by group."""
        return FOLDS if self._by_group else 0

    @property
    def bytes(self) -> int:
        """The size of its arrays."""
        return sum(file_bytes(field, self.count) for field in self.fields.values())

    @cached_property
    def index(self) -> list[dict[str, str]]:
        """The lines of `index.csv`, one per row."""
        lines = _read_table(self.folder / INDEX)
        longest = {f"{name}_length": self.fields[name].shape[0] for name in self._ragged}
        most = {"label": len(self.classes) - 1, "group_number": 2**62, **longest}
        try:
            if len(lines) != self.count:
                raise ValueError(f"{len(lines):,} lines, and {self.count:,} rows")
            for line in lines:
                if not all(0 <= int(line[column]) <= limit for column, limit in most.items()):
                    raise ValueError(f"numbers out of range, {[line[column] for column in most]}")
                if not all(line[name] in ("", *PARTS) for name in self.protocols) or line["group"] is None:
                    raise ValueError(f"other parts than {', '.join(PARTS)}")
        except (KeyError, TypeError, ValueError) as why:
            self._refuse([f"{INDEX}: expected what `equipoise prepare` writes, found {type(why).__name__}: {why}"])
        return lines

    @property
    def skipped(self) -> list[tuple[str, str]]:
        """The clips that could not be read, and why."""
        return [(line["id"], line["reason"]) for line in _read_table(self.folder / SKIPPED)]

    @property
    def source(self) -> str:
        """A fingerprint of everything stored: the arrays in their order, and their lengths."""
        digest = hashlib.sha256(json.dumps(dict(sorted(self.fingerprints.items()))).encode())
        for name in sorted(self._ragged):
            digest.update(f"{name} {self._column(f'{name}_length').tolist()}".encode())
        return f"sha256:{digest.hexdigest()}"

    def splits(self, protocol: str | None = None, fold: int | None = None) -> Splits:
        """Return its parts under a protocol. Their arrays are read from the disk as they are used.

        Args:
            protocol: By name; None for the first, or with a fold the first that cuts by group.
            fold: Instead of the protocol's own parts, its clips in folds by group: this one tests, the next validates,
                the others train. Which fold a group is in depends on a hash of its name and on nothing else.
        """
        name = self.chosen(protocol, fold)
        chosen = self.protocols[name]
        inputs = {key: mapped(self._file(key), field, self.count) for key, field in self.fields.items()}
        inputs |= {f"{key}_length": self._column(f"{key}_length") for key in self._ragged}
        views = {key: field.view for key, field in self.fields.items() if field.view is not None}
        label, group = self._column("label"), self._column("group_number") if chosen.by_group else None
        parts = [
            Part(inputs, label[rows], None if group is None else group[rows], rows, views, index=rows)
            for rows in self._rows_in_parts(name, fold).values()
        ]
        about = chosen.about
        if fold is not None:
            about = f"fold {fold} of {FOLDS} by a hash of the group's name, over the clips of: {about}"
        if self.count < self.listed:
            about += f"; {self.listed - self.count:,} of {self.listed:,} clips could not be read"
        return Splits(self.name, *parts, self.classes, about, self.source, name, chosen.selects_on_test)

    def verify(self) -> None:
        """Read every file whole and compare its fingerprint.

        Raises:
            BadInput: If files were changed; the message names all of them.
        """
        self._refuse([], {self._file(name).name: sha for name, sha in self.fingerprints.items()})

    def as_dict(self) -> dict[str, Any]:
        """Return plain values, for `prepared.json`."""
        fields = {
            name: {**asdict(field), "view": None if field.view is None else field.view.as_dict()}
            for name, field in self.fields.items()
        }
        protocols = {name: asdict(protocol) for name, protocol in self.protocols.items()}
        plain = {key: getattr(self, key) for key in _PLAIN}
        return {"schema": SCHEMA, **plain, "classes": list(self.classes), "fields": fields, "protocols": protocols}

    @property
    def _by_group(self) -> list[str]:
        return [name for name, protocol in self.protocols.items() if protocol.by_group and protocol.folds]

    @property
    def _ragged(self) -> list[str]:
        return [name for name, field in self.fields.items() if field.ragged]

    def _column(self, name: str) -> Tensor:
        return torch.tensor([int(line[name]) for line in self.index])

    def _rows_in_parts(self, protocol: str, fold: int | None) -> dict[str, Tensor]:
        parts = [line[protocol] for line in self.index]
        if fold is not None:
            roles = {fold: "test", (fold + 1) % FOLDS: "validation"}
            groups = [line["group"] for line in self.index]
            parts = [part and roles.get(fold_of(group), "train") for part, group in zip(parts, groups, strict=True)]
        rows = {name: [row for row, part in enumerate(parts) if part == name] for name in PARTS}
        if self.protocols[protocol].selects_on_test and not rows["validation"]:
            rows["validation"] = rows["test"]  # what was published has no other part to choose on
        return {name: torch.tensor(numbers, dtype=torch.long) for name, numbers in rows.items()}

    def chosen(self, protocol: str | None, fold: int | None = None) -> str:
        """Return the name of the protocol that is used; raise an error where there is none of this name, or no fold."""
        if protocol is not None:
            look_up(f"{self.name} split", protocol, self.protocols)
        if fold is None:
            return protocol or next(iter(self.protocols))
        if not self._by_group or (protocol is not None and protocol not in self._by_group):
            offered = f"choose {' or '.join(self._by_group)}" if self._by_group else "it has none that does"
            expected = f"folds need a protocol whose groups may be cut anew, found {protocol or 'none'}"
            raise BadInput(f"{self.name}: {expected}; {offered}")
        if not 0 <= fold < FOLDS:
            raise BadInput(f"{self.name}: fold should be one of 0 to {FOLDS - 1}, found {fold}")
        return protocol or self._by_group[0]

    def _file(self, modality: str) -> Path:
        return self.folder / f"{modality}.safetensors"

    def _refuse(self, problems: Sequence[str], fingerprints: Mapping[str, str] | None = None) -> None:
        """Raise the problems, and the files that have not these fingerprints any more."""
        changed = [name for name, sha in (fingerprints or {}).items() if fingerprint_of(self.folder / name) != sha]
        lines = [*problems, *(f"{name}: its content was changed after it was prepared" for name in changed)]
        again = f"to prepare it again, type first: rm -r {shlex.quote(str(self.folder))}"
        raise_all(lines, f"{self.folder} is damaged; {again}")


_PLAIN = ("name", "summary", "options", "listing", "listed", "count", "fingerprints", "tables", "made_with")
"""The facts that are stored as they are, in the order of `prepared.json`."""


def fold_of(group: str) -> int:
    """Return the fold that a group is in, by its name alone."""
    digest = hashlib.sha256(group.encode("utf-8", "surrogateescape")).digest()
    return int.from_bytes(digest[:8], "big") % FOLDS


def fingerprint_of(path: Path) -> str:
    """Return the sha256 of a file, as `sha256sum` has it."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 24):
            digest.update(block)
    return f"sha256:{digest.hexdigest()}"


# -- files of rows --


def row_bytes(field: Field) -> int:
    """Return the size of one row."""
    return math.prod(field.shape) * np.dtype(field.dtype).itemsize


def file_bytes(field: Field, count: int) -> int:
    """Return the size of a file with so many rows."""
    return START + count * row_bytes(field)


def header(name: str, field: Field, count: int) -> bytes:
    """Return the first page of a file: its length, one tensor described as safetensors wants it, then blanks."""
    shape, end = [count, *field.shape], count * row_bytes(field)
    described = {name: {"dtype": DTYPES[field.dtype], "shape": shape, "data_offsets": [0, end]}}
    return (START - 8).to_bytes(8, "little") + json.dumps(described).encode().ljust(START - 8)


def mapped(path: Path, field: Field, count: int) -> Tensor:
    """Map the rows of a file as a tensor [N, …], read from the disk where it is touched. Writing changes no file."""
    if not count:
        return torch.from_numpy(np.empty((0, *field.shape), field.dtype))
    with path.open("rb") as file:
        # A private copy of what is written, since torch knows no tensor that is for reading only; and no room reserved
        # for that copy, since a file may be larger than the memory.
        flags, protection = mmap.MAP_PRIVATE | NO_RESERVE, mmap.PROT_READ | mmap.PROT_WRITE
        content = mmap.mmap(file.fileno(), file_bytes(field, count), flags=flags, prot=protection)
    array = np.frombuffer(content, field.dtype, count * math.prod(field.shape), START)
    return torch.from_numpy(array.reshape(count, *field.shape))


def problems_of(path: Path, name: str, field: Field, count: int) -> list[str]:
    """Return the problems of a file that should hold so many rows."""
    if path.exists() and not path.is_file():  # opening a pipe would not end
        return [f"{path.name}: expected a file, found a folder, a pipe or a device"]
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            first = file.read(START)
    except OSError as why:
        return [f"{path.name}: expected a file, found {(why.strerror or str(why)).lower()}"]
    problems = []
    if size != file_bytes(field, count):
        problems.append(f"{path.name}: expected {file_bytes(field, count):,} bytes, found {size:,}")
    if first != header(name, field, count):
        try:
            content: dict[str, dict[str, Any]] = json.loads(first[8:])
            seen = ", ".join(f"{key} {tensor['shape']} {tensor['dtype']}" for key, tensor in content.items())
        except (ValueError, TypeError, KeyError, AttributeError):
            seen = "none that can be read"
        expected = f"{count} × {field.shape} {field.dtype}"
        problems.append(f"{path.name}: expected a header for {expected}, found {seen}")
    return problems


# -- prepared.json and the tables --


def _read_facts(folder: Path) -> dict[str, Any]:
    """Read `prepared.json` as arguments of `Prepared`."""
    path = folder / FACTS
    if not path.is_file():
        if (folder / JOURNAL).is_file():
            raise BadInput(f"{folder} is not complete: preparing it was stopped; to go on, type the same command again")
        there = "no such folder" if not folder.is_dir() else f"no {FACTS}"
        raise BadInput(f"{folder}: expected a folder that `equipoise prepare` made, found {there}")
    try:
        facts = json.loads(path.read_text(encoding="utf-8"))
        if facts["schema"] != SCHEMA:
            again = "prepare it again with this version"
            raise BadInput(f"{path}: expected schema {SCHEMA}, found {facts['schema']}; {again}")
        _check_facts(facts)
        fields = {}
        for name, each in facts["fields"].items():
            view = None if each["view"] is None else view_of(each["view"])
            fields[name] = Field(tuple(each["shape"]), each["dtype"], each["ragged"], view)
        protocols = {name: Protocol(**each) for name, each in facts["protocols"].items()}
        plain = {key: facts[key] for key in _PLAIN}
        return {**plain, "classes": tuple(facts["classes"]), "fields": fields, "protocols": protocols}
    except BadInput:
        raise
    except (OSError, KeyError, TypeError, AttributeError, ValueError, RecursionError) as why:
        expected = f"{path}: expected what `equipoise prepare` writes, found {type(why).__name__}: {why}"
        raise BadInput(f"{expected}; remove the folder and prepare it again") from None


def _check_facts(facts: Mapping[str, Any]) -> None:
    types: dict[str, type] = dict.fromkeys((*_PLAIN, "fields", "protocols"), dict)
    types |= {"name": str, "summary": str, "listing": str, "listed": int, "count": int, "classes": list}
    odd = [key for key, kind in types.items() if type(facts[key]) is not kind]
    if odd or not (facts["classes"] and facts["fields"] and facts["protocols"]):
        raise TypeError(f"values of other types for {odd}, or no classes, fields or protocols")
    for name in (*facts["classes"], *facts["fields"], *facts["protocols"]):
        if printable(name, "") != name or (name in facts["fields"] and Path(name).name != name):
            raise ValueError(f"the name {name!r}")
    protocols = facts["protocols"].values()
    if wrong := [each for each in protocols if [*map(type, each.values())] != [str, bool, bool, bool]]:
        raise TypeError(f"protocols: {wrong!r:.200}")
    for name, plain in facts["fields"].items():
        plausible = plain["dtype"] in DTYPES and type(plain["ragged"]) is bool and type(plain["shape"]) is list
        if not plausible or not all(type(size) is int and 0 < size < 2**40 for size in plain["shape"]):
            raise TypeError(f"field {name}: {plain!r:.200}")


def _read_table(path: Path) -> list[dict[str, str]]:
    with path.open(**TEXT) as file:
        return list(csv.DictReader(file))
