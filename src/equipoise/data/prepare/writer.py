"""A data set while it is prepared: files of rows, a journal with one line per clip, and the writing of one clip."""

import hashlib
import json
import os
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, final

import numpy as np

from equipoise.data.prepare.original import Clips, Field
from equipoise.data.prepare.prepared import START, file_bytes, header, row_bytes
from equipoise.util.errors import Unreadable

LONGEST = 1000  # characters of a reason
Report = Callable[[int, int], None]
"""Called with how much is done, and of how much."""


@final
@dataclass(frozen=True)
class Record:
    """The outcome of reading one clip.

    Args:
        clip: Its number.
        checksums: Per modality, of the bytes of its row.
        lengths: Per ragged modality, how long it is.
        reason: Why it could not be read; "" where it was.
    """

    clip: int
    checksums: Mapping[str, str] = field(default_factory=dict)
    lengths: Mapping[str, int] = field(default_factory=dict)
    reason: str = ""


@final
class Journal:
    """A file that several processes append to, each with one write per line, and that one of them reads as it grows.

    A line is whole or ignored, so nothing that a process has finished is lost with it, nor with the process that reads.

    Args:
        path: Created where absent.
    """

    def __init__(self, path: Path) -> None:
        self.heading: dict[str, Any] | None = None
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        self._offset, self._rest = 0, b""

    def begin(self, heading: Mapping[str, Any]) -> None:
        """Remove every line, and write a heading that says what the journal is about."""
        os.ftruncate(self._file, 0)
        self._offset, self._rest = 0, b""
        self._append({"heading": heading})
        self.heading = dict(heading)

    def add(self, record: Record) -> None:
        """Append the record of one clip."""
        self._append({**asdict(record), "reason": record.reason[:LONGEST]})

    def news(self) -> list[Record]:
        """Return the records that were added since the last call, by whichever process."""
        records = []
        while block := os.pread(self._file, 1 << 20, self._offset):
            self._offset += len(block)
            *lines, self._rest = (self._rest + block).split(b"\n")
            records += [record for line in lines if line and (record := self._parsed(line))]
        return records

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)

    def _append(self, content: Mapping[str, Any]) -> None:
        # It begins a line of its own: the line before it may have been torn by a kill.
        line = f"\n{json.dumps(content)}\n".encode()
        if os.write(self._file, line) != len(line):
            os.write(self._file, line)  # the disk is full: this gives the error

    def _parsed(self, line: bytes) -> Record | None:
        """Return a line as a record; None where it is damaged, or the heading."""
        try:
            content = json.loads(line.decode())
            if "heading" in content:
                self.heading = dict(content["heading"])
                return None
            record = Record(**content)
            return record if type(record.clip) is int else None
        except (ValueError, TypeError):
            return None


@final
class RowFile:
    """A file of rows that are being written. Processes that share it write different rows, and need no lock.

    Rows are written by plain writes and not through a map: on a full disk a write gives an error, and a map kills.

    Args:
        path: Created where absent; made as long as it has to be, without taking that room yet.
        name: Of the tensor in it.
        field: How one row is stored.
        count: Number of rows.
    """

    def __init__(self, path: Path, name: str, field: Field, count: int) -> None:
        self.path, self.name, self.field = path, name, field
        self.size = row_bytes(field)
        self._file = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        self.resize(count)

    def resize(self, count: int) -> None:
        """Change the number of rows. Those that are new hold zeros."""
        os.ftruncate(self._file, file_bytes(self.field, count))
        _write(self._file, memoryview(header(self.name, self.field, count)), 0)

    def write(self, row: int, array: np.ndarray) -> str:
        """Store an array that has the type of the field, padded with zeros to its shape, and return its checksum."""
        if array.shape != self.field.shape:
            padded = np.zeros(self.field.shape, self.field.dtype)
            padded[: len(array)] = array
            array = padded
        content = np.ascontiguousarray(array).data.cast("B")
        _write(self._file, content, START + row * self.size)
        return _checksum(content)

    def read(self, row: int) -> bytes:
        """Return the bytes of a row."""
        return os.pread(self._file, self.size, START + row * self.size)

    def checksum(self, row: int) -> str:
        """Return the checksum of a row."""
        return _checksum(self.read(row))

    def copy(self, row: int, to: int) -> None:
        """Overwrite a row with another."""
        _write(self._file, memoryview(self.read(row)), START + to * self.size)

    def close(self) -> None:
        """Wait until everything is on the disk, and close the file."""
        os.fsync(self._file)
        os.close(self._file)


@final
class PartialDataSet:
    """A folder that is being prepared, with a row for each clip that is listed.

    Args:
        folder: Must exist.
        clips: The source of the rows.
        fields: How each modality is stored.
        journal: Of this folder, with its heading.
    """

    def __init__(self, folder: Path, clips: Clips, fields: Mapping[str, Field], journal: Journal) -> None:
        self.clips, self.fields, self.journal, self.count = clips, fields, journal, len(clips.listed)
        self.files = {
            name: RowFile(folder / f"{name}.safetensors", name, each, self.count) for name, each in fields.items()
        }

    def close(self) -> None:
        """Close the files of rows."""
        for file in self.files.values():
            file.close()

    def write_clip(self, number: int) -> None:
        """Read one clip, check and store its arrays, and write its record into the journal.

        Raises:
            OSError: If the disk is full, or gone.
            ModuleNotFoundError: If a package is missing that reads such files.
        """
        try:
            arrays = self.clips.read(number)
            problems = list(_problems(arrays, self.fields))
        except ModuleNotFoundError:
            raise  # no fault of the clip: it would be all of them
        except Unreadable as why:
            problems = [str(why)]
        except Exception as why:  # whatever a decoder raises, the other clips can be read
            problems = [f"{type(why).__name__}: {why}"]
        if problems:
            self.journal.add(Record(number, reason="; ".join(problems) or "unknown"))
            return
        checksums = {name: file.write(number, arrays[name]) for name, file in self.files.items()}
        lengths = {name: len(arrays[name]) for name, each in self.fields.items() if each.ragged}
        self.journal.add(Record(number, checksums, lengths))

    def intact(self, records: Mapping[int, Record], report: Report) -> dict[int, Record]:
        """Return the records whose rows are as they were written. Clips that could not be read are tried again."""
        ragged = {name for name, each in self.fields.items() if each.ragged}
        read = {
            number: record
            for number, record in sorted(records.items())
            if not record.reason and 0 <= number < self.count
            if record.checksums.keys() == self.files.keys() and record.lengths.keys() == ragged
        }
        intact = {}
        for done, (number, record) in enumerate(read.items(), 1):
            if all(file.checksum(number) == record.checksums[name] for name, file in self.files.items()):
                intact[number] = record
            report(done, len(read))
        return intact

    def pack(self, without: Collection[int], report: Report) -> None:
        """Close up the rows of clips that could not be read. If this is stopped, rows that moved are read again."""
        kept = [number for number in range(self.count) if number not in without]
        for place, number in enumerate(kept):
            if number != place:
                for file in self.files.values():
                    file.copy(number, place)
            report(place + 1, len(kept))
        for file in self.files.values():
            file.resize(len(kept))


def _problems(arrays: Mapping[str, np.ndarray], fields: Mapping[str, Field]) -> Iterator[str]:
    if arrays.keys() != fields.keys():
        yield f"expected the modalities {sorted(fields)}, found {sorted(arrays)}"
        return
    for name, stored in fields.items():
        array, shape = arrays[name], stored.shape
        ragged = stored.ragged and array.ndim and array.shape[1:] == shape[1:] and 1 <= len(array) <= shape[0]
        if array.dtype != stored.dtype:
            yield f"{name}: expected numbers of type {stored.dtype}, found {array.dtype}"
        elif array.shape != shape and not ragged:
            expected = f"({'1 to ' if stored.ragged else ''}{', '.join(map(str, shape))})"
            yield f"{name}: expected the shape {expected}, found {array.shape}"
        elif array.dtype.kind == "f" and (bad := int((~np.isfinite(array)).sum())):
            yield f"{name}: expected finite numbers, found NaN or infinity in {bad:,} of {array.size:,}"


def _checksum(content: bytes | memoryview) -> str:
    return hashlib.sha256(content).hexdigest()[:16]


def _write(file: int, content: memoryview, offset: int) -> None:
    while content:  # a disk that fills up takes a part, and then gives an error
        written = os.pwrite(file, content, offset)
        content, offset = content[written:], offset + written
