"""What is done so far, one line a clip, only ever appended to; whatever happens, a line is whole or it is ignored."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, final

LONGEST = 1000  # characters of a reason


@final
@dataclass(frozen=True)
class Record:
    """What became of one clip.

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
    """A file that several processes append to, each with one write a line, and that one of them reads as it grows.

    So nothing that a process has finished is lost with it, nor with the process that reads.

    Args:
        path: Made where absent.
    """

    def __init__(self, path: Path) -> None:
        self.heading: dict[str, Any] | None = None
        self.packed_without: list[int] | None = None
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        self._place, self._rest = 0, b""

    def begin(self, heading: Mapping[str, Any]) -> None:
        """Forget everything, and say what the rest is about."""
        os.ftruncate(self._file, 0)
        self._place, self._rest = 0, b""
        self._append({"heading": heading})
        self.heading = dict(heading)

    def add(self, record: Record) -> None:
        """One more clip is done."""
        if record.reason:
            self._append({"clip": record.clip, "reason": record.reason[:LONGEST]})
        else:
            self._append({"clip": record.clip, "checksums": record.checksums, "lengths": record.lengths})

    def pack(self, without: list[int]) -> None:
        """From now on rows move up to where the rows of these clips are."""
        self._append({"packed without": without})

    def news(self) -> list[Record]:
        """The clips that were done since this was last asked for, by whichever process."""
        records = []
        while block := os.pread(self._file, 1 << 20, self._place):
            self._place += len(block)
            *lines, self._rest = (self._rest + block).split(b"\n")
            records += [record for line in lines if line and (record := self._understood(line))]
        return records

    def close(self) -> None:
        """Let go of the file."""
        os.close(self._file)

    def _append(self, content: Mapping[str, Any]) -> None:
        # It begins a line of its own: what is before it may have been torn by a kill.
        line = f"\n{json.dumps(content)}\n".encode()
        if os.write(self._file, line) != len(line):
            os.write(self._file, line)  # the disk is full: this gives the error

    def _understood(self, line: bytes) -> Record | None:
        """A line as a record; None where it is none, or says something else."""
        try:
            content = json.loads(line.decode())
            if "heading" in content:
                self.heading = dict(content["heading"])
                return None
            if "packed without" in content:
                self.packed_without = [int(each) for each in content["packed without"]]
                return None
            if "reason" in content:
                return Record(int(content["clip"]), reason=str(content["reason"]))
            return Record(int(content["clip"]), dict(content["checksums"]), dict(content["lengths"]))
        except (ValueError, TypeError, KeyError):
            return None
