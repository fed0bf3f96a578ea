"""Files inside a folder that somebody else may have filled: links on the way to them are refused, never followed.

The folder itself is the user's choice and may be a link; what lies in it may not.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

from equipoise.util.errors import BadInput


def inside(folder: Path, *names: str) -> Path:
    """The path of something inside a folder, whether it exists yet or not.

    Args:
        folder: Where to.
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


def links_in(folder: Path) -> list[str]:
    """Say of each thing directly inside a folder that is neither a file nor a folder what is wrong with it."""
    if not folder.is_dir():
        return []
    with os.scandir(folder) as entries:
        return sorted(filter(None, (_problem(folder / each.name) for each in entries)))


def open_inside(folder: Path, name: str, flags: int) -> int:
    """A descriptor of a file inside a folder.

    Args:
        folder: Where to.
        name: Of the file.
        flags: As for `os.open`.

    Raises:
        BadInput: As `inside`.
    """
    path = inside(folder, name)
    try:
        return os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
    except OSError as found:
        if found.errno == errno.ELOOP:  # laid since it was looked at
            raise BadInput(_link(path)) from None
        raise


def write_whole(folder: Path, name: str, content: str | bytes) -> Path:
    """Write a file inside a folder, whole or not at all.

    Args:
        folder: Must exist.
        name: Of the file.
        content: Text is written as UTF-8.

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


def _problem(path: Path) -> str:
    """The problem with something that may not be there; "" where there is none."""
    try:
        mode = path.lstat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        return ""
    if stat.S_ISLNK(mode):
        return _link(path)
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        return f"{path}: expected a file, found a pipe, a socket or a device; remove it"
    return ""


def _link(path: Path) -> str:
    return f"{path}: expected a file or folder, found a link, which is not followed; remove it or choose another folder"
