"""Taking in one clip: read it, look at what came, store it, write down what became of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import final

import numpy as np

from equipoise.data.prepare.journal import Journal, Record
from equipoise.data.prepare.original import Clips, Field
from equipoise.data.prepare.rows import RowFile
from equipoise.util.errors import Unreadable


@final
@dataclass(frozen=True)
class Intake:
    """Takes in clips by number, into the rows of that number.

    Args:
        clips: Where they come from.
        fields: How each modality is to be stored.
        files: Where each modality is stored.
        journal: Told of every clip.
    """

    clips: Clips
    fields: Mapping[str, Field]
    files: Mapping[str, RowFile]
    journal: Journal

    def __call__(self, number: int) -> None:
        """Take in one clip.

        Raises:
            OSError: If the disk is full, or gone.
            ModuleNotFoundError: If a package is missing that reads such files.
        """
        try:
            arrays = self.clips.read(number)
            problems = list(self._problems_of(arrays))
        except ModuleNotFoundError:
            raise  # no fault of the clip: it would be all of them
        except Unreadable as found:
            problems = [str(found)]
        except Exception as found:  # whatever a decoder stumbles over, the other clips can be read
            problems = [f"{type(found).__name__}: {found}"]
        if problems:
            self.journal.add(Record(number, reason="; ".join(problems) or "unknown"))
            return
        checksums = {name: self.files[name].write(number, arrays[name]) for name in self.fields}
        lengths = {name: len(arrays[name]) for name, field in self.fields.items() if field.ragged}
        self.journal.add(Record(number, checksums, lengths))

    def _problems_of(self, arrays: Mapping[str, np.ndarray]) -> Iterator[str]:
        if arrays.keys() != self.fields.keys():
            yield f"expected the modalities {sorted(self.fields)}, found {sorted(arrays)}"
            return
        for name, field in self.fields.items():
            array = arrays[name]
            if array.dtype != field.dtype:
                yield f"{name}: expected numbers of type {field.dtype}, found {array.dtype}"
            elif not _fits(array.shape, field):
                expected = f"({'1 to ' if field.ragged else ''}{', '.join(map(str, field.shape))})"
                yield f"{name}: expected the shape {expected}, found {array.shape}"
            elif not (array.dtype.kind != "f" or np.isfinite(array).all()):
                bad = int((~np.isfinite(array)).sum())
                yield f"{name}: expected finite numbers, found NaN or infinity in {bad:,} of {array.size:,}"


def _fits(shape: tuple[int, ...], field: Field) -> bool:
    if not field.ragged:
        return shape == field.shape
    return len(shape) == len(field.shape) and shape[1:] == field.shape[1:] and 1 <= shape[0] <= field.shape[0]
