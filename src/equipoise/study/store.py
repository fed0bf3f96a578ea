"""Results that are never lost, doubled or torn: one file, one line a finished run, only ever appended to."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import re
import shlex
import stat
import time
from codecs import BOM_UTF8
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn, final

from equipoise.util.errors import BadInput
from equipoise.util.files import inside, open_inside
from equipoise.util.processes import memory_problem

SCHEMA = 1
PROBE = ".writable"
MOST_NAMED = 100  # damaged lines in one message
PATIENCE = 1.0  # seconds: the runs of a study that was killed hold the folder until they too are gone


@final
class Store:
    """The results of a study in a folder.

    Args:
        folder: Made if absent.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.file = inside(folder, "results.jsonl")
        try:
            folder.mkdir(parents=True, exist_ok=True)
            os.close(open_inside(folder, PROBE, os.O_WRONLY | os.O_CREAT))
            (folder / PROBE).unlink()
        except OSError as found:
            raise BadInput(f"cannot write to {folder}: {found.strerror}; choose another folder with --out") from None

    def rows(self) -> list[dict[str, Any]]:
        """Every complete row. A last line without an end was cut off by a kill, and is not a row."""
        if not os.path.lexists(self.file):
            return []
        return [row for _, row in read_rows(self.file).values if row.get("schema", SCHEMA) == SCHEMA]

    def append(self, row: dict[str, Any]) -> None:
        """Add a row: first the remains of a torn one are cut off, then one write, then a flush to the disk."""
        line = (json.dumps(row, allow_nan=False) + "\n").encode()
        try:
            descriptor = open_inside(self.folder, self.file.name, os.O_RDWR | os.O_CREAT)
            try:
                _add(descriptor, line)
            finally:
                os.close(descriptor)
        except OSError as found:
            raise BadInput(cannot_write(self.file, found)) from None

    @contextmanager
    def locked(self) -> Generator[None, None, None]:
        """Keep a second study out of this folder."""
        descriptor = open_inside(self.folder, ".lock", os.O_RDWR | os.O_CREAT)
        try:
            if not _try_for(PATIENCE, lambda: fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)):
                msg = f"another study is running in {self.folder}; wait for it, or choose another folder with --out"
                raise BadInput(msg)
            yield
        finally:
            os.close(descriptor)

    def run_folder(self, config: str) -> Path:
        """Where a run keeps its curves and checkpoints."""
        return inside(self.folder, "runs", config.removeprefix("sha256:")[:12])


def is_of_the_disk(found: Exception, folder: Path) -> bool:
    """Whether an error says that a folder cannot be written to, which the next run would meet too."""
    if not isinstance(found, OSError):
        return False
    inside = isinstance(found.filename, str | os.PathLike) and Path(found.filename).is_relative_to(folder)
    written = re.search(r"\(os error (\d+)\)", str(found))  # as libraries in Rust have it, safetensors among them
    code = found.errno if found.errno is not None else int(written[1]) if written else None
    return inside or code in (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EFBIG, errno.EIO)


def cannot_write(path: Path, found: Exception) -> str:
    """What to say when a disk is full or a folder read-only."""
    reason = getattr(found, "strerror", None) or str(found)
    return f"cannot write to {path}: {reason}; finished runs are safe. Make room, and type the same command again"


@final
@dataclass(frozen=True)
class Lines:
    """The JSON objects of a file that has one in each line.

    Args:
        values: Each with the number of its line, from 1.
        torn: The number of a last line without an end, which a kill cut off; None where there is none.
    """

    values: list[tuple[int, dict[str, Any]]]
    torn: int | None


def read_rows(path: Path, keep: Callable[[dict[str, Any]], dict[str, Any]] = lambda row: row) -> Lines:
    """The rows of a file of results; the one reader of it.

    Args:
        path: Of the file.
        keep: Makes of each row what is kept of it, as soon as it is read.

    Raises:
        BadInput: If it cannot be read, or a line that has an end holds no row; one message with all such lines.
    """

    def fits(found: dict[str, Any]) -> bool:
        return found.get("schema", SCHEMA) != SCHEMA or isinstance(found.get("config"), str)

    return read_lines(path, fits, keep)


def read_lines(
    path: Path,
    fits: Callable[[dict[str, Any]], bool] = lambda _: True,
    keep: Callable[[dict[str, Any]], dict[str, Any]] = lambda found: found,
) -> Lines:
    """The objects of a file that is only ever appended to. Blank lines and a byte order mark hold nothing.

    Args:
        path: Of the file.
        fits: Says whether an object is one of those that belong there.
        keep: Makes of each object what is kept of it.

    Raises:
        BadInput: As `read_rows`.
    """
    values, damaged = [], []
    for number, line in enumerate(_raw_lines(path), start=1):
        if not line.endswith(b"\n"):
            return Lines(values, number) if not damaged else _refuse(path, damaged)
        if not line.strip():
            continue
        found = _object(line.removeprefix(BOM_UTF8) if number == 1 else line)
        if found is not None and fits(found):
            values.append((number, keep(found)))
        else:
            damaged.append(number)
    return Lines(values, None) if not damaged else _refuse(path, damaged)


def _raw_lines(path: Path) -> Generator[bytes, None, None]:
    try:
        # A pipe would keep whoever opens it waiting, and a device may never end.
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise BadInput(f"{path}: expected a file, found a folder, a pipe or a device")
            if why := memory_problem(os.fstat(file.fileno()).st_size):
                raise BadInput(f"{path}: {why}")
            yield from file
    except OSError as found:
        raise BadInput(f"cannot read {path}: {found.strerror}") from None


def _object(line: bytes) -> dict[str, Any] | None:
    """A line as an object; None where it is none."""
    try:
        found = json.loads(line.decode("utf-8"))
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _refuse(path: Path, damaged: list[int]) -> NoReturn:
    damaged, more = damaged[:MOST_NAMED], max(0, len(damaged) - MOST_NAMED)
    delete = "".join(f"{number}d;" for number in damaged)
    others = f" and {more:,} more" if more else ""
    raise BadInput(
        f"{path}: expected one row a line, found damage in line {', '.join(map(str, damaged))}{others}. Nothing "
        f"was changed. To do those runs again, type: sed -i '{delete}' {shlex.quote(str(path))}"
    )


def _add(descriptor: int, line: bytes) -> None:
    end = _end_of_last_row(descriptor)
    os.ftruncate(descriptor, end)
    os.lseek(descriptor, end, os.SEEK_SET)
    try:
        if os.write(descriptor, line) != len(line):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        os.fsync(descriptor)
    except OSError:
        os.ftruncate(descriptor, end)
        raise


def _try_for(seconds: float, attempt: Callable[[], object]) -> bool:
    until = time.monotonic() + seconds
    while True:
        try:
            attempt()
        except OSError:
            if time.monotonic() > until:
                return False
            time.sleep(0.02)
        else:
            return True


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
