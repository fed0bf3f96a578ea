"""Containers of sound and video: headers checked before a decoder believes them, then opened through PyAV.

A file that ends before its own header says was cut short, and decoders would pass over that in silence. A header that
counts more samples than the file has bytes was made up, and decoders would reserve memory for them.
"""

from __future__ import annotations

import struct
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Literal

from equipoise.util.errors import Unreadable
from equipoise.util.processes import decoding, memory_problem

if TYPE_CHECKING:
    from av.container import InputContainer

# A playlist is a container too, one that names other files and addresses to open. These hold their own data.
FORMATS = "avi,flac,flv,matroska,webm,mov,mp4,mp3,ogg,wav"
LARGEST_PICTURE = 8192 * 8192  # pixels
PICTURE = 30  # bytes of memory that a pixel takes, about: decoders keep some twenty pictures, 1.5 bytes a pixel
SECONDS_TO_WAIT = 60.0  # for one packet
LIMITS = {"max_pixels": str(LARGEST_PICTURE), "threads": "1"}

MISSING_AT_MOST = 0.01  # of what a header states: some programs count a few bytes too many
STREAMED = 0x7FFF_F000  # a size as large as this, or 0, was written before the size was known
MOST_BOXES = 1_000_000
SAMPLES_TO_SPARE = 1_000_000  # codecs for sound of the nineties count samples where others count bytes
LARGEST_PAGE = 27 + 255 + 255 * 255  # of ogg

# Where tables belong, then where ffmpeg would look for them as well.
BOXES_OF_BOXES = b"moov trak mdia minf stbl moof traf mvex edts dinf udta ilst tref wave".split()
BOXES_THAT_COUNT = {b"stsz", b"stts", b"ctts", b"trun"}


@contextmanager
def opened(path: Path, kind: Literal["audio", "video"]) -> Generator[tuple[InputContainer, Any]]:
    """Open a file through ffmpeg, closed to what data could abuse, and the stream that a player would choose."""
    import av

    check_header(path)
    options = {"format_whitelist": FORMATS, "protocol_whitelist": "file", **LIMITS}
    address = f"file:{path.absolute()}"  # a name such as http:x is a name
    with av.open(address, options=options, timeout=SECONDS_TO_WAIT, metadata_errors="replace") as container:
        stream: Any = container.streams.best(kind)
        if stream is None:
            raise Unreadable(f"{path}: no {kind} in it")
        if stream.codec_context is None:
            raise Unreadable(f"{path}: its {kind} is of a kind that ffmpeg does not decode")
        stream.codec_context.thread_count = 1  # several processes read files as it is
        stream.codec_context.options = dict(LIMITS)
        size = (stream.codec_context.width, stream.codec_context.height) if kind == "video" else (0, 0)
        if why := memory_problem(needed := PICTURE * size[0] * size[1]):
            raise Unreadable(f"{path}: {size[0]} × {size[1]}, {why}")
        with decoding.of(needed):
            yield container, stream


def decoded(container: InputContainer, stream: Any) -> Iterator[Any]:
    """Yield the frames of a stream, in the order they are shown.

    A packet that does not decode is passed over, as players do. If none does, the last reason is raised.
    """
    import av

    count, broken = 0, None
    for packet in container.demux(stream):
        try:
            frames = packet.decode()
        except av.FFmpegError as why:
            broken = why
        else:
            count += len(frames)
            yield from frames
    if not count and broken is not None:
        raise broken


def check_header(path: Path) -> None:
    """Compare what a wav, aiff, avi, mp4, webm, flv or ogg states of itself with the bytes that are there.

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
    """Return the size of a wav, avi or aiff; 0 where it is not stated."""
    if start[:4] == b"RF64":
        return int.from_bytes(start[20:28].ljust(8, b"\0"), "little") + 8
    size = int.from_bytes(start[4:8], "big" if start[:4] == b"FORM" else "little")
    return 0 if size >= STREAMED else size + 8


def _matroska_size(file: BinaryIO) -> int:
    """Return the end of the one segment; 0 where that is not stated."""
    file.seek(4)
    file.seek(_variable_integer(file), 1)
    if file.read(4) != b"\x18\x53\x80\x67":
        return 0
    length = _variable_integer(file)
    return file.tell() + length if length else 0


def _variable_integer(file: BinaryIO) -> int:
    """Read an integer: zeros at the front of its first byte count the bytes that follow; all ones are unknown, 0."""
    first = (file.read(1) or b"\0")[0]
    more = 8 - first.bit_length()
    if more > 7:
        return 0
    ones = (1 << 7 * (more + 1)) - 1
    value = int.from_bytes(bytes([first]) + file.read(more), "big") & ones
    return 0 if value == ones else value


def _flash_size(file: BinaryIO, there: int) -> int:
    """Return the size among the metadata, if the last tag says too that something is missing; 0 otherwise.

    A program that cuts a file may copy the metadata of the whole: the size alone proves nothing.
    """
    head, numbers = file.read(4096), []
    for name in (b"filesize", b"duration"):
        _, separator, after = head.partition(struct.pack(">H", len(name)) + name + b"\0")
        value = struct.unpack(">d", after[:8])[0] if separator and len(after) >= 8 else 0.0
        numbers.append(value if 0 < value < 2**53 else 0.0)
    size, seconds = numbers
    end = _flash_end(file, there)
    return int(size) if end is None or end < 0.9 * seconds else 0


def _flash_end(file: BinaryIO, there: int) -> float | None:
    """Return the second at which the last tag is shown; None where the file ends within a tag.

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
    """Check that the last page of an ogg is all there: the only sign, since nothing states how many there are."""
    file.seek(max(0, there - LARGEST_PAGE))
    tail = file.read()
    page = tail[tail.rfind(b"OggS") :]
    segments = page[26] if len(page) > 26 else 255
    if len(page) < 27 + segments + sum(page[27 : 27 + segments]):
        raise Unreadable(f"{path}: cut short, it ends within a page")


def _check_boxes(path: Path, file: BinaryIO, there: int) -> None:
    """Check that the boxes of an mp4 end within the file, and that none counts more samples than it could hold."""
    for kind, start, end in _boxes(path, file, there):
        if kind in {b"moov", b"moof", b"mdat"}:
            _check_size(path, end, there)
        elif kind == b"cmov":
            raise Unreadable(f"{path}: its header is compressed, as in QuickTime files of the nineties; convert it")
        elif kind in BOXES_THAT_COUNT and _counted(file, kind, start, end) > there + SAMPLES_TO_SPARE:
            raise Unreadable(f"{path}: its header counts more samples than the file has bytes, {there}")


def _boxes(path: Path, file: BinaryIO, there: int) -> Iterator[tuple[bytes, int, int]]:
    """Yield kind, start and end of the content of every box, those within boxes included."""
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
    """Return how many bytes of samples a box claims, at least."""
    file.seek(start + 4)  # past version and flags
    first, second = struct.unpack(">II", file.read(8).ljust(8, b"\0"))
    if kind == b"stsz":  # the size of a sample, and how many there are
        return first * second
    if kind == b"trun":
        return first
    file.seek(start + 8)
    runs = file.read(max(0, min(8 * first, end - start - 8)))
    return sum(int.from_bytes(runs[place : place + 4], "big") for place in range(0, len(runs) - 7, 8))
