"""Results that are never lost, doubled or torn: one file, one line a finished run, only ever appended to."""

import errno
import json
import os
import re
import shlex
import stat
from codecs import BOM_UTF8
from collections.abc import Callable, Generator, Iterable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, NamedTuple, final

from equipoise.util.errors import BadInput
from equipoise.util.files import inside, open_inside
from equipoise.util.processes import LOCK_SECONDS, lock, memory_problem
from equipoise.util.schema import ANYTHING, TEXT, every, or_null, record, rule, whole

SCHEMA = 1
JsonObject = dict[str, Any]
PROBE = ".writable"
MOST_NAMED = 100  # damaged lines in one message


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
        except OSError as error:
            raise BadInput(f"cannot write to {folder}: {error.strerror}; choose another folder with --out") from None

    def rows(self) -> list[dict[str, Any]]:
        """Return every complete row. A last line without an end was cut off by a kill, and is not a row."""
        if not os.path.lexists(self.file):
            return []
        return [row for _, row in read_rows(self.file).values if row.get("schema", SCHEMA) == SCHEMA]

    def missing(self, configs: Iterable[str]) -> int:
        """Count the runs that have no row yet."""
        return len(set(configs) - {row["config"] for row in self.rows()})

    def append(self, row: dict[str, Any]) -> None:
        """Add a row: first the remains of a torn one are cut off, then one write, then a flush to the disk."""
        line = (json.dumps(row, allow_nan=False) + "\n").encode()
        try:
            with os.fdopen(open_inside(self.folder, self.file.name, os.O_RDWR | os.O_CREAT), "r+b") as file:
                _append(file.fileno(), line)
        except OSError as error:
            raise BadInput(cannot_write(self.file, error)) from None

    def locked(self) -> AbstractContextManager[None]:
        """Keep a second study out of this folder."""
        descriptor = open_inside(self.folder, ".lock", os.O_RDWR | os.O_CREAT)  # some disks lock no folders
        msg = f"another study is running in {self.folder}; wait for it, or choose another folder with --out"
        return lock(descriptor, msg, LOCK_SECONDS, OSError)

    def run_folder(self, config: str) -> Path:
        """Return the folder of a run's curves and checkpoints."""
        return inside(self.folder, "runs", config.removeprefix("sha256:")[:12])


def is_disk_error(error: Exception, folder: Path) -> bool:
    """Tell whether an error says that a folder cannot be written to, which the next run would meet too."""
    if not isinstance(error, OSError):
        return False
    within = isinstance(error.filename, str | os.PathLike) and Path(error.filename).is_relative_to(folder)
    written = re.search(r"\(os error (\d+)\)", str(error))  # as libraries in Rust have it, safetensors among them
    code = error.errno if error.errno is not None else int(written[1]) if written else None
    return within or code in (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EFBIG, errno.EIO)


def cannot_write(path: Path, error: Exception) -> str:
    """Say that a disk is full or a folder read-only, and what to do."""
    reason = getattr(error, "strerror", None) or str(error)
    return f"cannot write to {path}: {reason}; finished runs are safe. Make room, and type the same command again"


class JsonLines(NamedTuple):
    """The JSON objects of a file that has one in each line.

    Args:
        values: Each with the number of its line, from 1.
        torn: The number of a last line without an end, which a kill cut off; None where there is none.
    """

    values: list[tuple[int, JsonObject]]
    torn: int | None


def read_rows(path: Path, keep: Callable[[JsonObject], JsonObject] = lambda row: row) -> JsonLines:
    """Read the rows of a file of results.

    Args:
        path: Of the file.
        keep: Makes of each row what is kept of it, as soon as it is read.

    Raises:
        BadInput: If it cannot be read, or a line that has an end holds no row; one message with all such lines.
    """
    return read_lines(path, lambda row: row.get("schema", SCHEMA) != SCHEMA or not [*_ROW(row, "")], keep)


_PLAIN = or_null(every(ANYTHING))
_ROW = record(
    {"config": TEXT},
    {
        **dict.fromkeys(("seed", "fold"), or_null(whole(-(2**63), 2**64))),
        **dict.fromkeys(("split", "metric"), or_null(TEXT)),
        **dict.fromkeys(("run", "params", "code"), _PLAIN),
        "task": rule(
            "a text, or the facts of a simulated task", lambda task: task is None or isinstance(task, str | dict)
        ),
    },
)
"""What everybody who groups rows relies on."""


def read_lines(
    path: Path,
    fits: Callable[[JsonObject], bool] = lambda _: True,
    keep: Callable[[JsonObject], JsonObject] = lambda row: row,
    expected: str = "one row a line",
) -> JsonLines:
    """Read the objects of a file that is only ever appended to. Blank lines and a byte order mark hold nothing.

    Args:
        path: Of the file.
        fits: Tells whether an object belongs there.
        keep: Makes of each object what is kept of it.
        expected: What a line should hold, for the message.

    Raises:
        BadInput: As `read_rows`.
    """
    values, damaged, torn = [], [], None
    for number, line in enumerate(_raw_lines(path), start=1):
        if not line.endswith(b"\n"):
            torn = number
        elif line.strip():
            try:
                value = json.loads((line.removeprefix(BOM_UTF8) if number == 1 else line).decode("utf-8"))
            except (ValueError, RecursionError):
                value = None
            if isinstance(value, dict) and fits(value):
                values.append((number, keep(value)))
            else:
                damaged.append(number)
    if damaged:
        damaged, more = damaged[:MOST_NAMED], max(0, len(damaged) - MOST_NAMED)
        delete = "".join(f"{number}d;" for number in damaged)
        others = f" and {more:,} more" if more else ""
        raise BadInput(
            f"{path}: expected {expected}, found damage in line {', '.join(map(str, damaged))}{others}. Nothing "
            f"was changed. To do those runs again, type: sed -i '{delete}' {shlex.quote(str(path))}"
        )
    return JsonLines(values, torn)


def _raw_lines(path: Path) -> Generator[bytes, None, None]:
    try:
        # A pipe would block whoever opens it, and a device may never end.
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise BadInput(f"{path}: expected a file, found a folder, a pipe or a device")
            if why := memory_problem(os.fstat(file.fileno()).st_size):
                raise BadInput(f"{path}: {why}")
            yield from file
    except OSError as error:
        raise BadInput(f"cannot read {path}: {error.strerror}") from None


def _append(descriptor: int, line: bytes) -> None:
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


def _end_of_last_row(descriptor: int) -> int:
    position = os.lseek(descriptor, 0, os.SEEK_END)
    while position > 0:
        start = max(0, position - 65536)
        newline = os.pread(descriptor, position - start, start).rfind(b"\n")
        if newline >= 0:
            return start + newline + 1
        position = start
    return 0
