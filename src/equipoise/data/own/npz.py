"""Reading numpy's files without trusting them: nothing runs from them, and no header is believed unseen."""

from __future__ import annotations

import io
import math
import zipfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np

from equipoise.data.own.arrays import understand
from equipoise.data.own.rebuild import check_values
from equipoise.data.own.samples import Samples
from equipoise.data.own.unpickle import read_pickle
from equipoise.util.errors import BadInput, Unreadable
from equipoise.util.files import reading
from equipoise.util.processes import memory_problem

COLUMNS = ("label", "split", "group", "classes")
PACKED = {zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED}  # as numpy does; others unpack without regard for what was asked
LONGEST_HEADER = 10_000  # bytes, as numpy has it, which looks only after it has read as many as are claimed
PIECE = 2**20  # bytes that are unpacked at once
SMALL = 2**24  # bytes: an array that nobody needs to ask the memory for
FORM = (
    "one array per modality, an array label, and split or group: "
    "numpy.savez('my.npz', imu=…, depth=…, label=…, group=…)"
)


def samples_of_npz(path: str | Path) -> Samples:
    """The samples of an ``.npz``, with everything that is wrong with them.

    Args:
        path: Holds one array per modality, `label`, `split` or `group` or neither, and `classes` where they have names.

    Raises:
        BadInput: If the file as a whole cannot be read.
    """
    path = Path(path)
    arrays, problems = read_npz(path)
    columns = {name: arrays.pop(name, None) for name in COLUMNS}
    return understand(arrays, **columns, name=path.name, problems=problems)


def read_npz(path: Path) -> tuple[dict[str, Any], list[str]]:
    """The arrays of an ``.npz`` by name, and what is wrong with those that cannot be read.

    Raises:
        BadInput: If the file as a whole cannot be read.
    """
    try:
        return read_arrays(path)
    except Unreadable as found:
        raise BadInput(f"{found}. Expected an .npz with {FORM}") from found


def read_arrays(path: Path) -> tuple[dict[str, Any], list[str]]:
    """The arrays of an ``.npz`` of any purpose, and what is wrong with those that cannot be read.

    Raises:
        Unreadable: If the file as a whole cannot be read, or holds more than the memory.
    """
    with reading(path), _opened(path) as archive:
        members = archive.infolist()
        if why := memory_problem(sum(member.file_size for member in members)):
            raise Unreadable(f"{path}: {why}; store it in smaller types (float32, uint8), or as a manifest of files")
        return _read_members(archive, members)


def read_npy(path: str | Path) -> np.ndarray:
    """The array of an ``.npy``.

    Raises:
        Unreadable: If it cannot be read, or holds objects.
    """
    with reading(path) as path, path.open("rb") as file:
        array = _read_array(file, path.stat().st_size)
        if array.dtype.hasobject:
            raise Unreadable(f"{path}: expected numbers, found objects; save each as an array of numbers")
        return array


@contextmanager
def _opened(path: Path) -> Generator[zipfile.ZipFile]:
    if not zipfile.is_zipfile(path):
        with path.open("rb") as file:
            start = file.read(6)
        kind = "an .npy, one array alone" if start == b"\x93NUMPY" else f"no zip archive; it begins with {start!r}"
        raise Unreadable(f"{path}: {kind}")
    with zipfile.ZipFile(path) as archive:
        yield archive


def _read_members(archive: zipfile.ZipFile, members: list[zipfile.ZipInfo]) -> tuple[dict[str, Any], list[str]]:
    arrays: dict[str, Any] = {}
    problems = []
    for member in members:
        name = member.filename.removesuffix(".npy")
        try:
            if name == member.filename:
                raise Unreadable("expected an array as numpy.savez writes it, found a file of another kind")
            if name in arrays:
                raise Unreadable("expected one array of this name, found several")
            if member.compress_type not in PACKED:
                raise Unreadable("expected an array as numpy.savez_compressed packs it, found it packed in another way")
            with _reading_member(archive, member) as file:
                arrays[name] = _read_array(file, member.file_size)
        except Unreadable as found:
            problems.append(f"{name}: {found}")
    return arrays, problems


@contextmanager
def _reading_member(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> Generator[BinaryIO]:
    """Open one file of an archive, and turn whatever goes wrong while it is read into `Unreadable`."""
    try:
        with archive.open(member) as file:
            yield cast("BinaryIO", file)
    except Unreadable:
        raise
    except Exception as why:  # what is wrong with an archive comes in a dozen types
        raise Unreadable(f"cannot be read: {str(why).strip() or type(why).__name__}") from why


def _read_array(file: BinaryIO, size: int) -> np.ndarray:
    """An array from the bytes of an ``.npy``, whose header must fit their number; a ValueError where it does not."""
    shape, fortran, dtype = _read_header(file)
    if dtype.hasobject:
        return _of_objects(file, shape, size)
    wanted, left = math.prod(shape) * dtype.itemsize, size - file.tell()
    if wanted != left or min(shape, default=0) < 0:
        raise ValueError(
            f"its header promises {wanted:,} bytes, {shape} of {dtype}, and {left:,} follow; it is damaged"
        )
    if not dtype.itemsize:
        raise ValueError(f"expected items that take some memory, found the type {dtype}")
    if wanted > SMALL and (why := memory_problem(wanted)):
        raise ValueError(why)
    array = np.empty(shape, dtype, order="F" if fortran else "C")
    if wanted:
        _fill(file, array.reshape(-1, order="A").view(np.uint8).data)
    check_values(array)
    return array


def _read_header(file: BinaryIO) -> tuple[tuple[int, ...], bool, np.dtype]:
    """The shape of an array, its order and its type; a ValueError where there is none, or a very long one."""
    version = np.lib.format.read_magic(file)
    if version not in ((1, 0), (2, 0)):
        raise ValueError(f"expected the format of arrays of numbers, 1.0 or 2.0, found {version[0]}.{version[1]}")
    length = file.read(2 if version == (1, 0) else 4)
    if (claimed := int.from_bytes(length, "little")) > LONGEST_HEADER:
        raise ValueError(f"expected a header of at most {LONGEST_HEADER:,} bytes, found one that claims {claimed:,}")
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    return read(io.BytesIO(length + file.read(claimed)))


def _fill(file: BinaryIO, room: memoryview) -> None:
    while room:
        taken = file.readinto(room[:PIECE])  # ty: ignore[missing-attribute]
        if not taken:
            raise ValueError(f"cut short, {len(room):,} bytes are missing")
        room = room[taken:]


def _of_objects(file: BinaryIO, shape: tuple[int, ...], size: int) -> np.ndarray:
    """An array of Python's own values, or of arrays; whatever else it holds is refused, not run."""
    array = read_pickle(file, size)
    plain = isinstance(array, np.ndarray)
    if not plain or array.shape != shape or array.dtype.kind != "O":
        found = f"{array.dtype} of shape {array.shape}" if plain else type(array).__name__
        raise ValueError(f"expected an array of objects of shape {shape}, found {found}")
    return array
