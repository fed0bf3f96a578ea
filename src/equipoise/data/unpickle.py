"""Reading pickles without running them: numpy arrays and plain containers, and nothing else."""

from __future__ import annotations

import io
import pickle
from pathlib import Path
from typing import Any, BinaryIO, final

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


@final
class _Limited(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in _ALLOWED:
            # numpy moved its core; a file written before or after must read the same.
            return super().find_class(module.replace("numpy.core", "numpy._core"), name)
        msg = (
            f"refused to load {module}.{name}: expected a pickle of numpy arrays, numbers, strings and plain "
            "containers. A pickle can run any program; if you trust this one, convert it to .npz yourself"
        )
        raise pickle.UnpicklingError(msg)


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
