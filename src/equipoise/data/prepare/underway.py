"""A folder that is being prepared: its journal, its files of rows, and what of them still holds after a kill."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import final

from equipoise.data.prepare.journal import Journal, Record
from equipoise.data.prepare.original import Field
from equipoise.data.prepare.rows import RowFile

Told = Callable[[int, int], None]
"""Called with how much is done, and of how much."""


@final
class Underway:
    """A folder with a row for each clip that is listed. Use it as a context.

    Args:
        folder: Must exist.
        fields: How each modality is stored.
        count: How many clips are listed.
        journal: Of this folder, with its heading.
    """

    def __init__(self, folder: Path, fields: Mapping[str, Field], count: int, journal: Journal) -> None:
        self.count, self.journal = count, journal
        self._ragged = {name for name, field in fields.items() if field.ragged}
        self.files = {
            name: RowFile(folder / f"{name}.safetensors", name, field, count) for name, field in fields.items()
        }

    def __enter__(self) -> Underway:
        return self

    def __exit__(self, *_: object) -> None:
        for file in self.files.values():
            file.close()

    def kept(self, records: Mapping[int, Record], told: Told) -> dict[int, Record]:
        """Those records whose rows are what they were. What could not be read is no longer known: it may be mended."""
        read = {number: record for number, record in sorted(records.items()) if self._is_whole(record)}
        self._unpack(read)
        held = {}
        for done, (number, record) in enumerate(read.items(), 1):
            if all(file.checksum(number) == record.checksums[name] for name, file in self.files.items()):
                held[number] = record
            told(done, len(read))
        return held

    def pack(self, without: Sequence[int], told: Told) -> None:
        """Close up the rows of these clips.

        Every row moves up on its own, the first one first, so that whenever this stops each row is whole in its old
        place or in its new one.
        """
        if without:
            self.journal.pack(list(without))
        places = _places(self.count, without)
        for done, (number, place) in enumerate(places.items(), 1):
            if number != place:
                for file in self.files.values():
                    file.copy(number, place)
            told(done, len(places))
        for file in self.files.values():
            file.resize(len(places))
            file.flush()

    def _unpack(self, records: Mapping[int, Record]) -> None:
        """Take back a packing that did not come to its end: the last row first, each to where it was."""
        if self.journal.packed_without is None:
            return
        places = _places(self.count, self.journal.packed_without)
        for number, place in reversed(places.items()):
            if number in records and number != place:
                for name, file in self.files.items():
                    if file.checksum(place) == records[number].checksums[name]:
                        file.copy(place, number)

    def _is_whole(self, record: Record) -> bool:
        complete = set(record.checksums) == set(self.files) and set(record.lengths) == self._ragged
        return complete and not record.reason and 0 <= record.clip < self.count


def _places(count: int, without: Sequence[int]) -> dict[int, int]:
    """Where each row goes when some are left out."""
    out = set(without)
    return {number: place for place, number in enumerate(number for number in range(count) if number not in out)}
