"""Reading pickles without running them: numpy arrays and plain containers, and nothing else.

A pickle is a program. It is carried out by a machine that knows only what plain data needs (`pickle_machine`), and what
it asks to call are functions of ours (`rebuild`), never numpy's own.
"""

from __future__ import annotations

import io
import itertools
import pickle
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from equipoise.data.own.pickle_machine import COST, carry_out
from equipoise.data.own.rebuild import refuse
from equipoise.util.processes import free_memory

DEEPEST = 100  # containers in each other
SHARED = 2**30  # bytes by which content may grow when what it holds several times is written out

_LEAVES = (str, bytes, bytearray, int, float, bool, type(None), np.dtype)


def load_pickle(source: str | Path | BinaryIO | bytes) -> Any:
    """Read a pickle that holds numpy arrays and plain containers. Anything else in it is refused, not run.

    Args:
        source: A path, an open file, or the bytes themselves.

    Raises:
        pickle.UnpicklingError: If it holds anything else, is damaged, or needs more memory than is free.
    """
    if isinstance(source, bytes):
        return read_pickle(io.BytesIO(source), len(source))
    if isinstance(source, (str, Path)):
        with Path(source).open("rb") as file:
            return read_pickle(file, Path(source).stat().st_size)
    return read_pickle(source)


def read_pickle(file: BinaryIO, size: int | None = None) -> Any:
    """Read a pickle from an open file.

    Args:
        file: Stands where the pickle begins.
        size: How many bytes there are at most; None where nobody knows.

    Raises:
        pickle.UnpicklingError: As `load_pickle`.
    """
    try:
        room = free_memory()
        found, taken = carry_out(file, size, room)
        _check_plain(found, min(room, 10 * taken + SHARED))
        return found
    except pickle.UnpicklingError:
        raise
    except Exception as found:  # an instruction that got what it cannot use; there are dozens of ways
        raise pickle.UnpicklingError(f"refused a damaged pickle: {type(found).__name__}: {found!s:.200}") from found


def load_object_array(path: str | Path) -> Any:
    """Read an ``.npy`` file that holds a pickled object, under the same limits."""
    with Path(path).open("rb") as file:
        version = np.lib.format.read_magic(file)
        read_header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        _, _, dtype = read_header(file)
        if not dtype.hasobject:
            msg = f"{path}: expected an array of objects, found {dtype}; read it with numpy.load"
            raise ValueError(msg)
        return read_pickle(file, Path(path).stat().st_size)


def _check_plain(root: Any, most: int) -> None:
    """Refuse what is no plain data, is part of itself, is nested very deep, or is huge once written out.

    A list that holds another twice, which holds another twice, and so on, takes no memory until somebody makes an array
    of it.
    """
    known: dict[int, tuple[int, int]] = {}  # of containers, by identity: size when written out, and depth
    open_: set[int] = set()
    path: list[tuple[int, Any, list[int]]] = [(0, iter((root,)), [0, 0])]
    while path:
        identity, rest, so_far = path[-1]
        for value in rest:
            inside = _inside(value)
            if inside is None:
                so_far[0] += _size(value)
                continue
            if id(value) in open_:
                refuse("a container that is part of itself")
            if id(value) in known:
                _add(so_far, known[id(value)])
                continue
            open_.add(id(value))
            path.append((id(value), inside, [COST, 0]))
            break
        else:
            path.pop()
            size, depth = so_far[0], so_far[1] + 1
            if size > most:
                refuse(f"what would be {size / 2**30:,.1f} GiB, written out: expected at most {most / 2**30:,.1f} GiB")
            if depth > DEEPEST:
                refuse(f"containers in each other, {depth:,} deep: expected at most {DEEPEST}")
            if path:
                open_.discard(identity)
                known[identity] = (size, depth)
                _add(path[-1][2], (size, depth))


def _add(so_far: list[int], found: tuple[int, int]) -> None:
    so_far[0] += found[0]
    so_far[1] = max(so_far[1], found[1])


def _inside(value: Any) -> Iterator[Any] | None:
    """The content of a container; None where it is none."""
    if type(value) in (list, tuple, set, frozenset):
        return iter(value)
    if type(value) in (dict, OrderedDict):
        return itertools.chain(value, value.values())
    if type(value) is np.ndarray and value.dtype.kind == "O":
        return iter(value.ravel())
    return None


def _size(value: Any) -> int:
    if type(value) is np.ndarray or isinstance(value, np.generic):
        return COST + value.nbytes
    if not isinstance(value, _LEAVES):
        refuse("a name that stands for nothing: expected plain data")
    return COST + (len(value) if isinstance(value, (str, bytes, bytearray)) else 0)
