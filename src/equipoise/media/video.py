"""Images and videos in, frames as bytes out."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Iterator, Sequence
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from equipoise.media.container import LARGEST_PICTURE, decoded, opened
from equipoise.util.errors import Unreadable
from equipoise.util.files import reading
from equipoise.util.processes import decoding, free_memory, memory_problem

if TYPE_CHECKING:
    from av import VideoFrame, VideoStream

# Those whose decoders do nothing but decode: for PostScript, Pillow would start an interpreter.
FORMATS = ("BMP", "GIF", "JPEG", "PNG", "PPM", "WEBP")
PIXEL = 16  # bytes of memory that a pixel takes on its way, about: as it is stored, turned, converted, as an array
MODES = {1: "L", 3: "RGB"}


def read_image(path: str | Path, size: int | tuple[int, int] | None = None, channels: int = 3) -> np.ndarray:
    """Read an image.

    Args:
        path: png, jpg, bmp, gif (its first picture), ppm or webp; turned as its camera says.
        size: Of each side, or height and width, after resizing (bilinear with antialiasing; the aspect ratio is not
            kept); None leaves it as it is.
        channels: 3 for red, green, blue; 1 for grey. Of pixels of 16 bits the upper 8 are kept.

    Returns:
        uint8 [channels, height, width].

    Raises:
        Unreadable: If it is broken, cut short, of another format, or larger than 8192 × 8192.
    """
    if channels not in MODES:
        raise ValueError(f"expected 1 or 3 channels, found {channels}")
    with reading(path) as path, warnings.catch_warnings():
        from PIL import Image, ImageOps, UnidentifiedImageError

        warnings.simplefilter("ignore")  # what Pillow thinks of metadata and sizes: both are dealt with here
        try:
            image = Image.open(path, formats=FORMATS)
        except UnidentifiedImageError:
            raise Unreadable(f"{path}: not an image in one of the formats {', '.join(FORMATS)}") from None
        with image:
            if image.width * image.height > LARGEST_PICTURE:
                raise Unreadable(f"{path}: {image.width} × {image.height}, larger than 8192 × 8192")
            if why := memory_problem(needed := PIXEL * image.width * image.height):
                raise Unreadable(f"{path}: {image.width} × {image.height}, {why}")
            with decoding.of(needed):
                picture = ImageOps.exif_transpose(image)
                if picture.mode == "F":
                    raise Unreadable(f"{path}: its pixels are real numbers, which only .npy keeps")
                if picture.mode.startswith("I"):  # 16 bits per pixel
                    picture = Image.fromarray((np.asarray(picture).clip(0, 2**16 - 1) >> 8).astype(np.uint8))
                picture = picture.convert(MODES[channels])
                if size is not None:
                    height, width = (size, size) if isinstance(size, int) else size
                    picture = picture.resize((width, height), Image.Resampling.BILINEAR)
                pixels = np.array(picture)
    return np.ascontiguousarray(np.moveaxis(pixels, -1, 0)) if channels == 3 else pixels[None]


MOST_PIXELS = 10**12  # decoded from one file: over two hours of full HD at 60 frames per second
BYTES_HELD = 2**28  # of frames from which the returned ones are chosen

SLOWEST, FASTEST = Fraction(1, 60), Fraction(240)  # frames per second that are believed
RATE_WHERE_UNKNOWN = Fraction(25)
TOGETHER = 1e-3  # of a stretch between two frames: times are rounded


def read_frames(path: str | Path, per_second: float | None, most: int, size: int) -> np.ndarray:
    """Read frames of a video at regular spacing.

    A second has n frames, the whole part of what the file states, and those are kept whose number within it is one of
    the first `per_second` multiples of ⌊n / per_second⌋, as the public extraction for CREMA-D does. A fraction such as
    5/2 keeps 5 of each 2 seconds in the same way. If more than `most` are kept, they are cut into `most` equal
    stretches, and the middle one of each is returned.

    Args:
        path: flv, mp4, avi or webm; turned as its camera says.
        per_second: How many to keep of each second; None, or more than there are, keeps all.
        most: How many to return at most.
        size: Of each side after resizing (bilinear with antialiasing; the aspect ratio is not kept).

    Returns:
        uint8 [F, 3, size, size], red, green, blue, with 1 ≤ F ≤ most.

    Raises:
        Unreadable: If it is broken, cut short, without frames, or of frames larger than 8192 × 8192.
    """
    if most < 1 or size < 1 or not (per_second is None or 1e-3 <= per_second < math.inf):
        expected = "expected per_second of 0.001 or more, most and size of 1 or more"
        raise ValueError(f"{expected}, found {per_second}, {most} and {size}")
    with reading(path) as path, opened(path, "video") as (container, stream):
        kept = _kept(_checked(path, decoded(container, stream)), stream, per_second)
        frames = _thinned((_resized(frame, size) for frame in kept), most, size)
        if not frames:
            raise Unreadable(f"{path}: a video without frames")
        return np.ascontiguousarray(np.stack(frames).transpose(0, 3, 1, 2))


def read_timed_frames(path: str | Path, per_second: float, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Read frames of a video with their times: the first of each stretch of 1 / `per_second` seconds.

    Args:
        path: flv, mp4, avi or webm; turned as its camera says.
        per_second: How many to keep of each second; all where it has fewer.
        size: Of each side after resizing.

    Returns:
        uint8 [F, 3, size, size], red, green, blue; and the seconds from the first of them, [F].

    Raises:
        Unreadable: As `read_frames`, or if the frames need more memory than is free.
    """
    frames: list[np.ndarray] = []
    times: list[float] = []
    with reading(path) as path, opened(path, "video") as (container, stream):
        rate = float(stream.average_rate or RATE_WHERE_UNKNOWN)
        free, last = free_memory(), -1
        for number, frame in enumerate(_checked(path, decoded(container, stream))):
            time = number / rate if frame.time is None else float(frame.time)
            place = math.floor(time * per_second + TOGETHER)
            if times and (place <= last or time <= times[-1]):
                continue
            last = place
            times.append(time)
            frames.append(_resized(frame, size))
            if why := memory_problem(2 * len(frames) * frames[0].nbytes, free):
                raise Unreadable(f"{path}: {why}; cut it into shorter recordings")
        if not frames:
            raise Unreadable(f"{path}: a video without frames")
        pictures = np.ascontiguousarray(np.stack(frames).transpose(0, 3, 1, 2))
        return pictures, np.array(times) - times[0]


def _checked(path: Path, frames: Iterable[VideoFrame]) -> Iterator[VideoFrame]:
    pixels = 0
    for frame in frames:
        pixels += frame.width * frame.height
        if frame.width * frame.height > LARGEST_PICTURE:
            raise Unreadable(f"{path}: a frame of {frame.width} × {frame.height}, larger than 8192 × 8192")
        if pixels > MOST_PIXELS:
            raise Unreadable(f"{path}: more than {MOST_PIXELS:.0e} pixels in all its frames; cut it into clips")
        yield frame


def _kept(frames: Iterable[VideoFrame], stream: VideoStream, per_second: float | None) -> Iterator[VideoFrame]:
    """Yield the frames to keep of each second."""
    if per_second is None:
        yield from frames
        return
    stated = (stream.guessed_rate, stream.average_rate, stream.base_rate)
    rate = next((rate for rate in stated if rate is not None and SLOWEST <= rate <= FASTEST), RATE_WHERE_UNKNOWN)
    count, seconds = Fraction(per_second).limit_denominator(1000).as_integer_ratio()
    length = max(1, int(rate)) * seconds
    interval = max(1, length // count)
    for number, frame in enumerate(frames):
        place = number % length
        if place % interval == 0 and place < count * interval:
            yield frame


def _thinned(frames: Iterable[np.ndarray], most: int, size: int) -> list[np.ndarray]:
    """Return evenly spaced frames of a video whose length is unknown until its end, and which may be hours.

    Whenever too many are held, every second one is dropped, and from then on half as many are taken.
    """
    room = max(2 * most, BYTES_HELD // (3 * size * size))
    held: list[np.ndarray] = []
    every = 1
    for number, frame in enumerate(frames):
        if number % every == 0:
            held.append(frame)
        if len(held) > room:
            held, every = held[::2], 2 * every
    return evenly_spaced(held, most)


def evenly_spaced(items: Sequence[Any], most: int) -> list[Any]:
    """Return the middle ones of as many equal stretches; all where there are no more than that.

    Example:
        >>> evenly_spaced("abcdef", 3)
        ['b', 'd', 'f']
    """
    count = min(most, len(items))
    return [items[(2 * place + 1) * len(items) // (2 * count)] for place in range(count)]


def _resized(frame: VideoFrame, size: int) -> np.ndarray:
    from PIL import Image

    picture = Image.fromarray(frame.to_ndarray(format="rgb24"))
    square = np.asarray(picture.resize((size, size), Image.Resampling.BILINEAR))
    return np.rot90(square, round(frame.rotation / 90))
