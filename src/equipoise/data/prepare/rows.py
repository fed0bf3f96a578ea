"""Arrays on disk, one row a sample, in safetensors files: filled row by row in any order, then mapped into memory."""

from __future__ import annotations

import hashlib
import json
import math
import mmap
import os
import sys
from pathlib import Path
from typing import Any, final

import numpy as np
import torch
from torch import Tensor

from equipoise.data.prepare.original import Field

KINDS = {"uint8": "U8", "int16": "I16", "float16": "F16", "float32": "F32"}
START = 4096  # where rows begin: the header is padded to one page, so that it can be rewritten in place
NO_RESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000 if sys.platform == "linux" else 0)


def row_bytes(field: Field) -> int:
    """How much one row takes."""
    return math.prod(field.shape) * np.dtype(field.dtype).itemsize


def file_bytes(field: Field, count: int) -> int:
    """How much a file of so many rows takes."""
    return START + count * row_bytes(field)


def header(name: str, field: Field, count: int) -> bytes:
    """The first page of a file: its length, then one tensor described as safetensors wants it, then blanks."""
    shape, end = [count, *field.shape], count * row_bytes(field)
    described = {name: {"dtype": KINDS[field.dtype], "shape": shape, "data_offsets": [0, end]}}
    return (START - 8).to_bytes(8, "little") + json.dumps(described).encode().ljust(START - 8)


@final
class RowFile:
    """A file of rows that are being written. Processes that share it write different rows, and need no lock.

    Rows are written by plain writes and not through a map: on a full disk a write gives an error, and a map kills.

    Args:
        path: Made where absent; made as long as it has to be, without taking that room yet.
        name: Of the tensor in it.
        field: How one row is stored.
        count: How many rows there are.
    """

    def __init__(self, path: Path, name: str, field: Field, count: int) -> None:
        self.path, self.name, self.field = path, name, field
        self.size = row_bytes(field)
        self._file = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        self.resize(count)

    def resize(self, count: int) -> None:
        """Give it so many rows. Those that are new hold zeros."""
        os.ftruncate(self._file, file_bytes(self.field, count))
        _write(self._file, memoryview(header(self.name, self.field, count)), 0)

    def write(self, row: int, array: np.ndarray) -> str:
        """Store an array that has the type of the field, padded with zeros to its shape, and give its checksum."""
        if array.shape != self.field.shape:
            padded = np.zeros(self.field.shape, self.field.dtype)
            padded[: len(array)] = array
            array = padded
        content = np.ascontiguousarray(array).data.cast("B")
        _write(self._file, content, START + row * self.size)
        return _checksum(content)

    def checksum(self, row: int) -> str:
        """Of what a row holds."""
        return _checksum(self._read(row))

    def copy(self, row: int, to: int) -> None:
        """Store what one row holds in another too."""
        _write(self._file, memoryview(self._read(row)), START + to * self.size)

    def flush(self) -> None:
        """Wait until all of it is on the disk."""
        os.fsync(self._file)

    def close(self) -> None:
        """Let go of the file."""
        os.close(self._file)

    def _read(self, row: int) -> bytes:
        return os.pread(self._file, self.size, START + row * self.size)


def mapped(path: Path, field: Field, count: int) -> Tensor:
    """The rows of a file as a tensor [N, …] that reads from the disk what is touched. Writing to it changes no file."""
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
    """What is wrong with a file that should hold so many rows; nothing where it is as it should be."""
    if path.exists() and not path.is_file():  # opening a pipe would not end
        return [f"{path.name}: expected a file, found a folder, a pipe or a device"]
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            found = file.read(START)
    except OSError as reason:
        return [f"{path.name}: expected a file, found {(reason.strerror or str(reason)).lower()}"]
    problems = []
    if size != file_bytes(field, count):
        problems.append(f"{path.name}: expected {file_bytes(field, count):,} bytes, found {size:,}")
    if found != header(name, field, count):
        expected = f"{count} × {field.shape} {field.dtype}"
        problems.append(f"{path.name}: expected a header for {expected}, found {_described(found)}")
    return problems


def _described(found: bytes) -> str:
    try:
        content: dict[str, dict[str, Any]] = json.loads(found[8:])
        return ", ".join(f"{name} {each['shape']} {each['dtype']}" for name, each in content.items())
    except (ValueError, TypeError, KeyError, AttributeError):
        return "none that can be read"


def _checksum(content: bytes | memoryview) -> str:
    return hashlib.sha256(content).hexdigest()[:16]


def _write(file: int, content: memoryview, place: int) -> None:
    while content:  # a disk that fills up takes a part, and then gives an error
        written = os.pwrite(file, content, place)
        content, place = content[written:], place + written
