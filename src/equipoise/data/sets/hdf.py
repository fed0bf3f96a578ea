"""HDF5 files read row by row: what is in them may be many times larger than the memory."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, final

import numpy as np

from equipoise.util.errors import Unreadable
from equipoise.util.files import reading
from equipoise.util.processes import memory_problem

ROW = 1000  # bytes that what is known of a row takes, about


@final
class Table:
    """One array of numbers in an HDF5 file. Its rows are read when they are asked for.

    Args:
        path: Of the file.
        name: Of the array in it.

    Raises:
        Unreadable: If there is no such array of numbers.
    """

    def __init__(self, path: Path, name: str) -> None:
        self.path, self.name = path, name
        self._opened: tuple[int, Any] | None = None  # by which process, and what
        with reading(path):
            import h5py

            with h5py.File(path, "r") as file:
                found = file.get(name) if isinstance(file.get(name, getlink=True), h5py.HardLink) else None
                if not isinstance(found, h5py.Dataset) or found.dtype.kind not in "fiub":
                    there = ", ".join(file) or "nothing"
                    raise Unreadable(f"{path}: expected an array of numbers called {name!r}; found {there}")
                if found.is_virtual or found.external:  # its numbers would come from files of the publisher's choice
                    raise Unreadable(
                        f"{path}: expected the numbers of {name!r} in the file itself, found them elsewhere"
                    )
                if found.shape and (why := memory_problem(ROW * found.shape[0])):  # rows that take no room in a file
                    raise Unreadable(f"{path}: {name!r} claims {found.shape[0]:,} rows; to list them {why}")
                self.shape = tuple(found.shape)

    def __getitem__(self, where: Any) -> np.ndarray:
        """The numbers at some place, as h5py takes it."""
        with reading(self.path):
            if where is Ellipsis and (why := memory_problem(self._array().nbytes)):
                raise Unreadable(f"{self.path}: {self.name!r} {why}")
            return np.asarray(self._array()[where])

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_opened": None}  # an open file does not travel to another process

    def _array(self) -> Any:
        import h5py

        process = os.getpid()
        if self._opened is None or self._opened[0] != process:  # two processes must not share a handle
            self._opened = (process, h5py.File(self.path, "r")[self.name])
        return self._opened[1]
