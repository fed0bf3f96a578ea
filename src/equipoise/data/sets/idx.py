"""Files in the idx format of MNIST: a magic number, the length of each axis, then the bytes."""

from __future__ import annotations

import gzip
import math
import zlib
from pathlib import Path
from typing import BinaryIO, cast

import numpy as np

from equipoise.util.errors import Unreadable
from equipoise.util.files import reading
from equipoise.util.processes import memory_problem

BYTES = 0x08  # the format's mark of unsigned bytes, the one type MNIST has
MOST = 2**30  # larger claims are not believed


def read_idx(path: str | Path, axes: int) -> np.ndarray:
    """Read an idx file of unsigned bytes, gzipped or not.

    Whether it is gzipped is told by its first bytes, not by its name. Nothing is read beyond what the header claims, so
    that a small file cannot unpack to a huge one.

    Args:
        path: The file.
        axes: How many axes its array has: 3 for images, 1 for labels.

    Raises:
        Unreadable: If the file is missing or broken, or holds something else.
    """
    with reading(path) as path:
        with path.open("rb") as file:
            zipped = file.read(2) == b"\x1f\x8b"
        try:
            with gzip.open(path) if zipped else path.open("rb") as file:
                return _parsed(path, cast("BinaryIO", file), axes)
        except (EOFError, zlib.error, gzip.BadGzipFile) as problem:
            raise Unreadable(f"{path}: expected a whole gzip file, found a damaged one ({problem})") from None


def _parsed(path: Path, file: BinaryIO, axes: int) -> np.ndarray:
    magic, expected = file.read(4), bytes([0, 0, BYTES, axes])
    if magic != expected:
        raise Unreadable(
            f"{path}: expected the magic number {expected.hex()} (idx, unsigned bytes, {axes} axes), "
            f"found {magic.hex() or 'nothing'}"
        )
    lengths = file.read(4 * axes)
    if len(lengths) < 4 * axes:
        raise Unreadable(f"{path}: expected a header of {4 + 4 * axes} bytes, found {4 + len(lengths)}")
    shape = tuple(int(length) for length in np.frombuffer(lengths, ">u4"))
    claimed = math.prod(shape)
    if claimed > MOST:
        raise Unreadable(f"{path}: expected at most {MOST:,} bytes, found a header that claims {shape}")
    if why := memory_problem(claimed):
        raise Unreadable(f"{path}: {why}")
    content = file.read(claimed + 1)
    if len(content) != claimed:
        found = f"{len(content):,}" if len(content) < claimed else "more"
        raise Unreadable(f"{path}: the header claims {shape}, which is {claimed:,} bytes; found {found}")
    return np.frombuffer(content, np.uint8).reshape(shape)
