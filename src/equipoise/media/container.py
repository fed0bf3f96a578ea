"""Videos, and sounds that libsndfile does not know: opened through PyAV, with everything shut that data could abuse."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from equipoise.media.claims import check_claims
from equipoise.util.errors import Unreadable

if TYPE_CHECKING:
    from av.container import InputContainer

# A playlist is a container too, one that names other files and addresses to open. These hold their own data.
FORMATS = "avi,flac,flv,matroska,webm,mov,mp4,mp3,ogg,wav"
LARGEST_PICTURE = 8192 * 8192  # pixels
SECONDS_TO_WAIT = 60.0  # for one packet


@contextmanager
def opened(path: Path) -> Generator[InputContainer]:
    """A file, opened with what ffmpeg knows."""
    import av

    check_claims(path)
    options = {"format_whitelist": FORMATS, "protocol_whitelist": "file", **_LIMITS}
    address = f"file:{path.absolute()}"  # a name such as http:x is a name
    with av.open(address, options=options, timeout=SECONDS_TO_WAIT, metadata_errors="replace") as container:
        yield container


def best_stream(path: Path, container: InputContainer, kind: Literal["audio", "video"]) -> Any:
    """The stream of a kind that a player would choose."""
    stream = container.streams.best(kind)
    if stream is None:
        raise Unreadable(f"{path}: no {kind} in it")
    if stream.codec_context is None:
        raise Unreadable(f"{path}: its {kind} is of a kind that ffmpeg does not decode")
    stream.codec_context.thread_count = 1  # several processes read files as it is
    stream.codec_context.options = dict(_LIMITS)
    return stream


def decoded(container: InputContainer, stream: Any) -> Iterator[Any]:
    """The frames of a stream, in the order they are shown.

    A packet that does not decode is passed over, as players do. If none does, the last reason is raised.
    """
    import av

    count, broken = 0, None
    packets = container.demux(stream)
    for packet in packets:
        try:
            frames = packet.decode()
        except av.FFmpegError as why:
            broken = why
            continue
        count += len(frames)
        yield from frames
    if not count and broken is not None:
        raise broken


_LIMITS = {"max_pixels": str(LARGEST_PICTURE), "threads": "1"}
