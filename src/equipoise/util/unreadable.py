"""The one thing every reader of files raises, and the frame in which every reader works."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import final


@final
class Unreadable(ValueError):  # noqa: N818 (it says what the file is)
    """A file that cannot be read; the message names it and says why."""


@contextmanager
def reading(path: str | Path) -> Generator[Path]:
    """Check that a file is there, and turn whatever goes wrong while it is read into `Unreadable` with its name.

    Raises:
        Unreadable: For anything about the file.
        ModuleNotFoundError: If the package that reads such files is not installed; says what to type.
    """
    path = Path(path)
    try:
        _check_file(path)
        yield path
    except Unreadable:
        raise
    except ModuleNotFoundError as missing:
        msg = f"reading {path} needs {missing.name}, which is not installed; type: pip install 'equipoise[media]'"
        raise ModuleNotFoundError(msg, name=missing.name) from missing
    except Exception as why:  # given broken data, decoders raise whatever they like
        raise Unreadable(f"{path}: cannot be decoded ({_in_words(why)})") from why


def _check_file(path: Path) -> None:
    if not path.exists():
        raise Unreadable(f"{path}: there is no such file")
    if not path.is_file():  # a folder, or a pipe, on which reading would wait for ever
        raise Unreadable(f"{path}: not a file")
    if path.stat().st_size == 0:
        raise Unreadable(f"{path}: empty, 0 bytes")


def _in_words(why: Exception) -> str:
    """What an exception says, without the number of the error and the path that it may repeat."""
    return (getattr(why, "strerror", None) or str(why)).strip() or type(why).__name__
