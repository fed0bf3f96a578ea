"""Reading numpy's files without trusting them: nothing runs from them, and no header is believed unseen."""

import io
import math
import zipfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from equipoise.data.own.arrays import bytes_as_samples, read_samples
from equipoise.data.own.samples import Samples
from equipoise.data.own.unpickle import check_values, load_pickle
from equipoise.util.errors import BadInput, Unreadable
from equipoise.util.files import reading
from equipoise.util.processes import memory_problem

COLUMNS = ("label", "split", "group", "classes")
PACKED = {zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED}  # as numpy does; others unpack without regard for what was asked
LONGEST_HEADER = 10_000  # bytes, as numpy has it, which looks only after it has read as many as are claimed
PIECE = 2**20  # bytes that are unpacked at once
SMALL = 2**24  # bytes: an array for which free memory is not looked up
Taken = Callable[[Sequence[int], np.dtype], int]
FORM = "one array per modality, label, and split or group: numpy.savez('my.npz', imu=…, depth=…, label=…, group=…)"


def in_bytes(shape: Sequence[int], dtype: np.dtype) -> int:
    """Return the bytes of an array."""
    return math.prod(shape) * dtype.itemsize


def samples_of_npz(path: str | Path) -> Samples:
    """Read the samples of an ``.npz``, with everything that is wrong with them.

    Args:
        path: Holds one array per modality, `label`, `split` or `group` or neither, and `classes` where they have names.

    Raises:
        BadInput: If the file as a whole cannot be read.
    """
    path = Path(path)
    try:
        arrays, problems = read_arrays(path, bytes_as_samples)
    except Unreadable as why:
        raise BadInput(f"{why}. Expected an .npz with {FORM}") from why
    columns = {name: arrays.pop(name, None) for name in COLUMNS}
    return read_samples(arrays, **columns, name=path.name, problems=problems)


def read_arrays(path: Path, taken: Taken = in_bytes) -> tuple[dict[str, Any], list[str]]:
    """Read the arrays of an ``.npz`` of any purpose, and list what is wrong with those that cannot be read.

    Args:
        path: Of the file.
        taken: The bytes that an array of some shape and type will take, of all that is done with it.

    Raises:
        Unreadable: If the file as a whole cannot be read, or holds more than the memory.
    """
    arrays: dict[str, Any] = {}
    problems = []
    with reading(path):
        if not zipfile.is_zipfile(path):
            with path.open("rb") as file:
                start = file.read(6)
            kind = "an .npy, one array alone" if start == b"\x93NUMPY" else f"no zip archive; it begins with {start!r}"
            raise Unreadable(f"{path}: {kind}")
        with zipfile.ZipFile(path) as archive:
            members = archive.infolist()
            if why := memory_problem(sum(_taken(archive, member, taken) for member in members), of=path.name):
                advice = "store it in smaller types (float32, uint8), or as a manifest of files"
                raise Unreadable(f"{path}: {why}; {advice}")
            for member in members:
                name = member.filename.removesuffix(".npy")
                try:
                    if name == member.filename:
                        raise Unreadable("expected an array as numpy.savez writes it, found a file of another kind")
                    if name in arrays:
                        raise Unreadable("expected one array of this name, found several")
                    if member.compress_type not in PACKED:
                        expected = "expected an array as numpy.savez_compressed packs it"
                        raise Unreadable(f"{expected}, found it packed in another way")
                    with archive.open(member) as file:
                        arrays[name] = read_array(file, member.file_size)
                except Unreadable as why:
                    problems.append(f"{name}: {why}")
                except Exception as why:  # what is wrong with an archive comes in a dozen types
                    problems.append(f"{name}: cannot be read: {str(why).strip() or type(why).__name__}")
    return arrays, problems


def _taken(archive: zipfile.ZipFile, member: zipfile.ZipInfo, taken: Taken) -> int:
    """Return the bytes of memory that an array will take, by its header; those of its file where that is damaged."""
    if member.compress_type in PACKED:
        with suppress(Exception), archive.open(member) as file:  # said where it is read
            shape, _, dtype = _read_header(file)
            if dtype.itemsize > 0 and in_bytes(shape, dtype) <= member.file_size:
                return max(member.file_size, taken(shape, dtype))
    return member.file_size


def read_npy(path: str | Path) -> np.ndarray:
    """Read the array of an ``.npy``.

    Raises:
        Unreadable: If it cannot be read, or holds objects.
    """
    with reading(path) as path, path.open("rb") as file:
        array = read_array(file, path.stat().st_size)
        if array.dtype.hasobject:
            raise Unreadable(f"{path}: expected numbers, found objects; save each as an array of numbers")
        return array


def read_array(file: Any, size: int) -> np.ndarray:
    """Read an array from the bytes of an ``.npy``, whose header must fit their number; else raise a ValueError."""
    shape, fortran, dtype = _read_header(file)
    if dtype.hasobject:  # text, as pandas saves a column, or arrays; whatever else it holds is refused, not run
        array = load_pickle(file, containers=False)
        plain = isinstance(array, np.ndarray)
        if not plain or array.shape != shape or array.dtype.kind != "O":
            found = f"{array.dtype} of shape {array.shape}" if plain else type(array).__name__
            raise ValueError(f"expected an array of objects of shape {shape}, found {found}")
        return array
    wanted, left = math.prod(shape) * dtype.itemsize, size - file.tell()
    if wanted != left or min(shape, default=0) < 0:
        promise = f"its header promises {wanted:,} bytes, {shape} of {dtype}"
        raise ValueError(f"{promise}, and {left:,} follow; it is damaged")
    if not dtype.itemsize:
        raise ValueError(f"expected items that take some memory, found the type {dtype}")
    if wanted > SMALL and (why := memory_problem(wanted)):
        raise ValueError(why)
    array = np.empty(shape, dtype, order="F" if fortran else "C")
    room = array.reshape(-1, order="A").view(np.uint8).data if wanted else memoryview(b"")
    while room:
        taken = file.readinto(room[:PIECE])
        if not taken:
            raise ValueError(f"cut short, {len(room):,} bytes are missing")
        room = room[taken:]
    check_values(array)
    return array


def _read_header(file: Any) -> tuple[tuple[int, ...], bool, np.dtype]:
    """Read the shape of an array, its order and its type; raise a ValueError where it is missing or too long."""
    version: Any = np.lib.format.read_magic(file)
    if version not in ((1, 0), (2, 0)):
        raise ValueError(f"expected the format of arrays of numbers, 1.0 or 2.0, found {version[0]}.{version[1]}")
    length = file.read(2 if version == (1, 0) else 4)
    if (claimed := int.from_bytes(length, "little")) > LONGEST_HEADER:
        raise ValueError(f"expected a header of at most {LONGEST_HEADER:,} bytes, found one that claims {claimed:,}")
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    return read(io.BytesIO(length + file.read(claimed)))
