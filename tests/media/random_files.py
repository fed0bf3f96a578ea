"""Bytes that nobody meant, through every reader: each gives an array or says what is wrong with the file, by its name.

As a program, `python -m media.random_files COUNT FOLDER`, it reads so many with each and tells the memory it took.
"""

from __future__ import annotations

import random
import resource
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from equipoise.media.sound import read_sound
from equipoise.media.video import read_frames, read_image
from equipoise.util.errors import Unreadable
from media.made import IMAGES, SOUNDS, VIDEOS, make_image, make_video, make_wav

READERS: dict[
    str, tuple[tuple[str, ...], Callable[[Path], np.ndarray]]
] = {  # by name: suffixes of what it reads, and how
    "sound": ((*SOUNDS, *VIDEOS), lambda path: read_sound(path, 16_000)[0]),
    "frames": (VIDEOS, lambda path: read_frames(path, 2, 4, 16)),
    "image": (IMAGES, lambda path: read_image(path, 16)),
}
ODD_NUMBERS = [
    bytes(4),
    b"\xff" * 4,
    b"\x7f\xff\xff\xff",
    b"\xff\xff\xff\x7f",
    b"\x80\0\0\0",
    b"\0\0\0\x80",
    b"\0\xff\xff\xff",
]


def small_files(folder: Path) -> dict[str, bytes]:
    """A whole file of each suffix."""
    folder.mkdir(parents=True, exist_ok=True)
    makers = {suffix: lambda path: make_wav(path, 0.1, 8000) for suffix in SOUNDS}
    makers |= {suffix: lambda path: make_video(path, 0.3, 10, 16) for suffix in VIDEOS}
    makers |= {suffix: lambda path: make_image(path, 8) for suffix in IMAGES}
    return {suffix: make(folder / f"whole{suffix}").read_bytes() for suffix, make in makers.items()}


def random_contents(whole: bytes, count: int, draw: random.Random) -> Iterator[bytes]:
    """A third nothing but noise, a third noise behind the beginning of a file, a third whole files with errors."""
    for number in range(count):
        if number % 3 == 0:
            yield draw.randbytes(draw.randrange(1, 2000))
        elif number % 3 == 1:
            yield whole[: draw.randrange(4, 200)] + draw.randbytes(draw.randrange(1, 1000))
        else:
            yield with_errors(whole, draw)


def with_errors(whole: bytes, draw: random.Random) -> bytes:
    content = bytearray(whole)
    for _ in range(draw.choice([1, 2, 4, 16])):
        place = draw.randrange(draw.choice([len(content), min(len(content), 600)]))  # headers are where the damage is
        match draw.randrange(4):
            case 0:
                content[place] = draw.randrange(256)
            case 1:
                content[place] ^= 1 << draw.randrange(8)
            case 2:
                content[place : place + 4] = draw.choice(ODD_NUMBERS)
            case _:
                del content[place : place + draw.randrange(1, 8)]
    return bytes(content)


def read_all(reader: str, count: int, folder: Path, seed: int = 0) -> int:
    """Read that many files; how many gave an array.

    Raises:
        AssertionError: If a reader raises something else than `Unreadable`, or without the name of the file.
    """
    suffixes, read = READERS[reader]
    whole, draw, good = small_files(folder), random.Random(f"{reader} {seed}"), 0
    for number, suffix in enumerate(suffixes):
        share = count * (number + 1) // len(suffixes) - count * number // len(suffixes)
        path = folder / f"odd{suffix}"
        for content in random_contents(whole[suffix], share, draw):
            path.write_bytes(content)  # and it stays there, should reading it end the process
            try:
                good += read(path).size > 0
            except Unreadable as why:
                if path.name not in str(why):
                    raise AssertionError(f"expected the name {path.name} in: {why}") from why
    return good


if __name__ == "__main__":
    import torch

    torch.set_num_threads(1)
    for name in READERS:
        print(name, read_all(name, int(sys.argv[1]), Path(sys.argv[2])))
    print("megabytes", resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)
