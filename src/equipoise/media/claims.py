"""What the header of a file claims, held against the bytes that are there, before a decoder believes it.

A file that ends before its own header says was cut short, and decoders would pass over that in silence. A header that
counts more samples than the file has bytes was made up, and decoders would set memory aside for them.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from equipoise.util.errors import Unreadable

MISSING_AT_MOST = 0.01  # of what a header states: some programs count a few bytes too many
STREAMED = 0x7FFF_F000  # a size as large as this, or 0, was written before the size was known
MOST_BOXES = 1_000_000
SAMPLES_TO_SPARE = 1_000_000  # codecs for sound of the nineties count samples where others count bytes
LARGEST_PAGE = 27 + 255 + 255 * 255  # of ogg

BOXES_OF_BOXES = {
    *(b"moov", b"trak", b"mdia", b"minf", b"stbl", b"moof", b"traf"),  # where tables belong
    *(b"mvex", b"edts", b"dinf", b"udta", b"ilst", b"tref", b"wave"),  # where ffmpeg would look for them as well
}
BOXES_THAT_COUNT = {b"stsz", b"stts", b"ctts", b"trun"}


def check_claims(path: Path) -> None:
    """Compare what a wav, aiff, avi, mp4, webm, flv or ogg states of itself with what there is.

    Raises:
        Unreadable: If it is cut short, or counts more than it can hold.
    """
    there = path.stat().st_size
    with path.open("rb") as file:
        start = file.read(28)
        if start[:4] in {b"RIFF", b"RF64", b"FORM"}:
            _check_size(path, _riff_size(start), there)
        elif start[:4] == b"\x1a\x45\xdf\xa3":
            _check_size(path, _matroska_size(file), there)
        elif start[:3] == b"FLV":
            _check_size(path, _flash_size(file, there), there)
        elif start[:4] == b"OggS":
            _check_last_page(path, file, there)
        else:  # mp4 has no first bytes of its own; what is no mp4 has no boxes
            _check_boxes(path, file, there)


def _check_size(path: Path, stated: int, there: int) -> None:
    if there < (1 - MISSING_AT_MOST) * stated:
        raise Unreadable(f"{path}: cut short, {there} bytes of the {stated} its header states")


def _riff_size(start: bytes) -> int:
    """The size of a wav, avi or aiff; 0 where it is not stated."""
    kind, size, _, _, _, large = struct.unpack("<4sI4s4sIQ", start.ljust(28, b"\0"))
    if kind == b"RF64":
        return large + 8
    if kind == b"FORM":
        size = int.from_bytes(start[4:8], "big")
    return 0 if size >= STREAMED else size + 8


def _matroska_size(file: BinaryIO) -> int:
    """Where the one segment ends; 0 where that is not stated."""
    file.seek(4)
    length = _variable_integer(file)
    file.seek(length, 1)
    if file.read(4) != b"\x18\x53\x80\x67":
        return 0
    length = _variable_integer(file)
    return file.tell() + length if length else 0


def _variable_integer(file: BinaryIO) -> int:
    """Zeros at the front of the first byte say how many bytes follow; all ones stand for unknown, given as 0."""
    first = (file.read(1) or b"\0")[0]
    more = 8 - first.bit_length()
    if more > 7:
        return 0
    ones = (1 << 7 * (more + 1)) - 1
    value = int.from_bytes(bytes([first]) + file.read(more), "big") & ones
    return 0 if value == ones else value


def _flash_size(file: BinaryIO, there: int) -> int:
    """The size among the metadata, if what comes last says too that something is missing; 0 otherwise.

    A program that cuts a file may copy the metadata of the whole: the size alone proves nothing.
    """
    head = file.read(4096)
    size, seconds = (_flash_number(head, name) for name in (b"filesize", b"duration"))
    end = _flash_end(file, there)
    return int(size) if end is None or end < 0.9 * seconds else 0


def _flash_number(head: bytes, name: bytes) -> float:
    _, found, after = head.partition(struct.pack(">H", len(name)) + name + b"\0")
    value = struct.unpack(">d", after[:8])[0] if found and len(after) >= 8 else 0.0
    return value if 0 < value < 2**53 else 0.0


def _flash_end(file: BinaryIO, there: int) -> float | None:
    """The second at which the last tag is shown; None where the file ends within a tag.

    After each tag comes its size, and at its start its kind, the size of its content and its time.
    """
    file.seek(max(0, there - 4))
    size = int.from_bytes(file.read(4), "big")
    if not 11 <= size <= there - 17:
        return None
    file.seek(there - 4 - size)
    kind, *content, high, middle, low, highest = file.read(8)
    if kind not in {8, 9, 18} or int.from_bytes(content, "big") + 11 != size:
        return None
    return int.from_bytes([highest, high, middle, low], "big") / 1000


def _check_last_page(path: Path, file: BinaryIO, there: int) -> None:
    """The last page of an ogg is all there; it is the only sign, since nothing states how many there are."""
    file.seek(max(0, there - LARGEST_PAGE))
    tail = file.read()
    page = tail[tail.rfind(b"OggS") :]
    segments = page[26] if len(page) > 26 else 255
    if len(page) < 27 + segments + sum(page[27 : 27 + segments]):
        raise Unreadable(f"{path}: cut short, it ends within a page")


def _check_boxes(path: Path, file: BinaryIO, there: int) -> None:
    """The boxes of an mp4 end within the file, and none counts more samples than the file could hold."""
    for kind, start, end in _boxes(path, file, there):
        if kind in {b"moov", b"moof", b"mdat"}:
            _check_size(path, end, there)
        elif kind == b"cmov":
            raise Unreadable(f"{path}: its header is compressed, as in QuickTime files of the nineties; convert it")
        elif kind in BOXES_THAT_COUNT and _counted(file, kind, start, end) > there + SAMPLES_TO_SPARE:
            raise Unreadable(f"{path}: its header counts more samples than the file has bytes, {there}")


def _boxes(path: Path, file: BinaryIO, there: int) -> Iterator[tuple[bytes, int, int]]:
    """Kind, start and end of the content of every box, those within boxes included."""
    stretches = [(0, there)]
    for _ in range(MOST_BOXES):
        if not stretches:
            return
        start, end = stretches.pop()
        if end - start < 8:
            continue
        file.seek(start)
        size, kind = struct.unpack(">I4s", file.read(8))
        inside = start + 8
        if size == 1:
            size, inside = int.from_bytes(file.read(8), "big"), start + 16
        stop = start + size if size else end
        if stop >= inside:
            yield kind, inside, stop
            stretches.append((stop, end))
            if kind in BOXES_OF_BOXES:
                stretches.append((inside, min(stop, end)))
    raise Unreadable(f"{path}: made of more than {MOST_BOXES} boxes")


def _counted(file: BinaryIO, kind: bytes, start: int, end: int) -> int:
    """How many bytes of samples a box claims, at least."""
    file.seek(start + 4)  # past version and flags
    if kind == b"stsz":
        size, count = struct.unpack(">II", file.read(8).ljust(8, b"\0"))
        return size * count
    (count,) = struct.unpack(">I", file.read(4).ljust(4, b"\0"))
    if kind == b"trun":
        return count
    runs = file.read(max(0, min(8 * count, end - start - 8)))
    return sum(int.from_bytes(runs[place : place + 4], "big") for place in range(0, len(runs) - 7, 8))
