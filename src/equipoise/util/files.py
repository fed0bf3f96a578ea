"""Reading files that may be broken, and writing inside a folder that somebody else may have filled.

Links on the way to a file inside a folder are refused, never followed. The folder itself is the user's choice and may
be a link; what lies in it may not.
"""

import errno
import os
import stat
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from equipoise.util.errors import BadInput, Unreadable
from equipoise.util.extras import NotInstalled, not_installed

FORMULAS = ("=", "+", "-", "@", "|", "%")
"""The signs that begin a formula."""


@contextmanager
def reading(path: str | Path) -> Generator[Path]:
    """Check that a file is there, and turn whatever goes wrong while it is read into `Unreadable` with its name.

    Raises:
        Unreadable: For anything about the file.
        NotInstalled: If the package that reads such files is missing; says what to type.
    """
    path = Path(path)
    try:
        if not path.is_file():  # a folder, or a pipe, on which reading would wait for ever
            raise Unreadable(f"{path}: {'not a file' if path.exists() else 'there is no such file'}")
        if path.stat().st_size == 0:
            raise Unreadable(f"{path}: empty, 0 bytes")
        yield path
    except (Unreadable, NotInstalled):
        raise
    except ModuleNotFoundError as missing:
        raise not_installed(f"reading {path}", missing.name or str(missing), "media") from missing
    except Exception as why:  # given broken data, decoders raise whatever they like
        reason = (getattr(why, "strerror", None) or str(why)).strip() or type(why).__name__  # not the path once more
        raise Unreadable(f"{path}: cannot be decoded ({reason})") from why


def as_shown(path: Path | str) -> str:
    """Return a path for a page that others will see: as it is typed here; of one elsewhere, its name alone."""
    place, here = Path(path), Path.cwd()
    if not place.is_absolute():
        return str(path)
    return str(place.relative_to(here)) if place.is_relative_to(here) else place.name or "/"


def inside(folder: Path, *names: str) -> Path:
    """Return the path of something inside a folder, whether it exists yet or not.

    Args:
        folder: The folder.
        names: Of the folders on the way, and of the thing itself; each a plain name.

    Raises:
        BadInput: If a name leads out of the folder, or there is a link, a pipe or a device on the way.
    """
    path = folder
    for name in names:
        if name in ("", ".", "..") or "/" in name or "\0" in name:
            raise BadInput(f"{folder}: expected the name of a file inside it, found {name!r}")
        path = path / name
        if problem := _problem(path):
            raise BadInput(problem)
    return path


def link_problems(folder: Path) -> list[str]:
    """List what is wrong with each thing directly inside a folder that is neither a file nor a folder."""
    if not folder.is_dir():
        return []
    return sorted(filter(None, map(_problem, folder.iterdir())))


def open_inside(folder: Path, name: str, flags: int) -> int:
    """Open a file inside a folder and return its descriptor; `flags` as for `os.open`.

    Raises:
        BadInput: As `inside`.
    """
    path = inside(folder, name)
    try:
        return os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
    except OSError as problem:
        if problem.errno == errno.ELOOP:  # a link was made since it was looked at
            raise BadInput(_LINK.format(path)) from None
        raise


def write_atomic(folder: Path, name: str, content: str | bytes) -> Path:
    """Write a file inside an existing folder, whole or not at all; text as UTF-8.

    Raises:
        BadInput: As `inside`.
    """
    path, unfinished = inside(folder, name), f"{name}.{os.getpid()}.tmp"  # others may write the same file
    try:
        with os.fdopen(open_inside(folder, unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), "wb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
        return (folder / unfinished).replace(path)
    except OSError:
        (folder / unfinished).unlink(missing_ok=True)
        raise


def csv_cell(value: Any) -> Any:
    """Return a cell of a .csv, with a quotation mark before text that a spreadsheet would compute as a formula.

    A carriage return, which Python does not quote and readers take for the end of a row, becomes a new line.

    Example:
        >>> csv_cell("=1+1"), csv_cell(-1.5), csv_cell(None)
        ("'=1+1", -1.5, '')
    """
    formula = isinstance(value, str) and (value[:1] in ("\t", "\r") or value.lstrip()[:1] in FORMULAS)
    if isinstance(value, str):
        value = value.replace("\r\n", "\n").replace("\r", "\n")
    return "" if value is None else f"'{value}" if formula else value


_LINK = "{}: expected a file or folder, found a link, which is not followed; remove it or choose another folder"


def _problem(path: Path) -> str:
    """Name the problem with something that may not be there; "" where there is none."""
    try:
        mode = path.lstat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        return ""
    if stat.S_ISLNK(mode):
        return _LINK.format(path)
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        return f"{path}: expected a file, found a pipe, a socket or a device; remove it"
    return ""
