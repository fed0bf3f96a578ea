"""Reading pickles without running them: numpy arrays and plain containers, and nothing else."""

from __future__ import annotations

import io
import math
import pickle
from pathlib import Path
from typing import Any, BinaryIO, ClassVar, final

import numpy as np

_ALLOWED = {
    ("numpy", "ndarray"),
    ("numpy", "dtype"),
    ("numpy.core.multiarray", "_reconstruct"),
    ("numpy._core.multiarray", "_reconstruct"),
    ("numpy.core.multiarray", "scalar"),
    ("numpy._core.multiarray", "scalar"),
    ("numpy.core.numeric", "_frombuffer"),
    ("numpy._core.numeric", "_frombuffer"),
    ("_codecs", "encode"),  # how protocol 2 writes bytes
    ("collections", "OrderedDict"),
}


# The one in C takes memory for whatever a file claims, and gives no look at the state of an array before numpy has it.
_WrittenInPython: Any = pickle._Unpickler


@final
class _Limited(_WrittenInPython):
    dispatch: ClassVar[dict[int, Any]] = dict(_WrittenInPython.dispatch)

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in _ALLOWED:
            # numpy moved its core; a file written before or after must read the same.
            return super().find_class(module.replace("numpy.core", "numpy._core"), name)
        if (module, name) in {("__builtin__", "bytes"), ("builtins", "bytes")}:
            return _no_bytes
        msg = (
            f"refused to load {module}.{name}: expected a pickle of numpy arrays, numbers, strings and plain "
            "containers. A pickle can run any program; if you trust this one, convert it to .npz yourself"
        )
        raise pickle.UnpicklingError(msg)

    def load_build(self) -> None:
        """Give an array or a type its state, if it is one that numpy writes."""
        state, made = self.stack[-1], self.stack[-2]
        if isinstance(made, np.dtype):
            _check_type(made, state)
        elif type(made) is np.ndarray:
            _check_array(made, state)
        else:
            raise pickle.UnpicklingError(f"refused to change a {type(made).__name__}: expected arrays and their types")
        super().load_build()

    def load_bytearray8(self) -> None:
        """Read no more than there is."""
        size = int.from_bytes(self.read(8), "little")
        content = self.read(size)
        if len(content) != size:
            raise pickle.UnpicklingError(f"cut short: expected {size} bytes, found {len(content)}")
        self.append(bytearray(content))

    dispatch[pickle.BUILD[0]] = load_build
    dispatch[pickle.BYTEARRAY8[0]] = load_bytearray8


def _no_bytes() -> bytes:
    """How protocol 2 writes bytes where there are none; called with a number, `bytes` itself would take any memory."""
    return b""


def _check_type(made: np.dtype, state: Any) -> None:
    """Refuse to turn a type into another: numbers into pointers, or short into long, under an array that has it."""
    shared = made is np.dtype(made.str)  # numpy's own, which all arrays of the program have
    plain = isinstance(state, tuple) and len(state) in (8, 9) and state[2:5] == (None, None, None)
    if shared or not plain or not {state[5], made.itemsize} <= {-1, made.itemsize} or state[7] != made.flags:
        raise pickle.UnpicklingError(
            f"refused the state {state!r:.200} for the type {made}: expected that of a plain one"
        )


def _check_array(made: np.ndarray, state: Any) -> None:
    """Refuse content that does not fit, and to take away the memory of an array that others may look at."""
    fits = made.shape == (0,) and isinstance(state, tuple) and len(state) == 5 and isinstance(state[2], np.dtype)
    if fits:
        _, shape, dtype, _, content = state
        fits = isinstance(shape, tuple) and all(type(size) is int and size >= 0 for size in shape)
        count = math.prod(shape) if fits else 0
        if dtype.hasobject:
            fits = fits and dtype.kind == "O" and isinstance(content, list) and len(content) == count
        else:
            fits = fits and isinstance(content, (bytes, str)) and len(content) == count * dtype.itemsize
    if not fits:
        raise pickle.UnpicklingError("refused the state of an array: expected its shape, type and content to agree")


def load_pickle(source: str | Path | BinaryIO | bytes) -> Any:
    """Read a pickle that holds numpy arrays and plain containers. Anything else in it is refused, not run.

    Args:
        source: A path, an open file, or the bytes themselves.
    """
    if isinstance(source, bytes):
        source = io.BytesIO(source)
    if isinstance(source, (str, Path)):
        with Path(source).open("rb") as file:
            return _Limited(file, encoding="latin1").load()
    return _Limited(source, encoding="latin1").load()


def load_object_array(path: str | Path) -> Any:
    """Read an ``.npy`` file that holds a pickled object, under the same limits."""
    with Path(path).open("rb") as file:
        version = np.lib.format.read_magic(file)
        read_header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        _, _, dtype = read_header(file)
        if not dtype.hasobject:
            msg = f"{path}: expected an array of objects, found {dtype}; read it with numpy.load"
            raise ValueError(msg)
        return load_pickle(file)
