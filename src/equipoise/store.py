"""Results that are never lost, doubled or torn: one file, one line a finished run, only ever appended to."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, final

SCHEMA = 1


@final
class Store:
    """The results of a study in a folder.

    Args:
        folder: Made if absent.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.file = folder / "results.jsonl"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            probe = folder / ".writable"
            probe.touch()
            probe.unlink()
        except OSError as found:
            raise ValueError(f"cannot write to {folder}: {found.strerror}; choose another folder with --out") from None

    def rows(self) -> list[dict[str, Any]]:
        """Every complete row. A last line without an end was cut off by a kill, and is not a row."""
        if not self.file.exists():
            return []
        *lines, _ = self.file.read_text(encoding="utf-8").split("\n")
        rows = []
        for number, line in enumerate(lines, start=1):
            try:
                rows.append(json.loads(line))
            except json.JSONDecodeError:
                msg = (
                    f"{self.file}: line {number} is damaged; expected one JSON object. Nothing was changed. Move the "
                    "file away, or delete that line, and type the same command again"
                )
                raise ValueError(msg) from None
        return rows

    def append(self, row: dict[str, Any]) -> None:
        """Add a row: first the remains of a torn one are cut off, then one write, then a flush to the disk."""
        line = (json.dumps(row, allow_nan=True) + "\n").encode()
        descriptor = os.open(self.file, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            end = _end_of_last_row(descriptor)
            os.ftruncate(descriptor, end)
            os.lseek(descriptor, end, os.SEEK_SET)
            written = os.write(descriptor, line)
            if written != len(line):
                os.ftruncate(descriptor, end)
                raise OSError(28, "the disk is full")
            os.fsync(descriptor)
        except OSError as found:
            msg = f"cannot write to {self.file}: {found.strerror}; finished runs are safe, make room and type it again"
            raise ValueError(msg) from None
        finally:
            os.close(descriptor)

    @contextmanager
    def locked(self) -> Generator[None, None, None]:
        """Keep a second study out of this folder."""
        with (self.folder / ".lock").open("w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                msg = f"another study is running in {self.folder}; wait for it, or choose another folder with --out"
                raise ValueError(msg) from None
            yield

    def run_folder(self, config: str) -> Path:
        """Where a run keeps its curves and checkpoints."""
        return self.folder / "runs" / config.removeprefix("sha256:")[:12]


def _end_of_last_row(descriptor: int) -> int:
    size = os.lseek(descriptor, 0, os.SEEK_END)
    position = size
    while position > 0:
        start = max(0, position - 65536)
        os.lseek(descriptor, start, os.SEEK_SET)
        block = os.read(descriptor, position - start)
        newline = block.rfind(b"\n")
        if newline >= 0:
            return start + newline + 1
        position = start
    return 0
