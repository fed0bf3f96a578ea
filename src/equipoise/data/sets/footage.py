"""Sounds, videos and folders of pictures: where those of each clip lie, and what they hold.

Everything is found by name once, and read by name; no order of a directory's listing has a say in anything.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from typing import final

import numpy as np

from equipoise.data.prepare.original import Clip, Clips
from equipoise.data.sets.lists import some
from equipoise.util.errors import Unreadable

KINDS = {
    **dict.fromkeys(("wav", "flac", "ogg", "mp3", "m4a"), "sound"),
    **dict.fromkeys(("flv", "mp4", "webm", "mkv", "avi", "mov"), "video"),
    **dict.fromkeys(("jpg", "jpeg", "png"), "picture"),
}


@final
@dataclass(frozen=True)
class Footage:
    """The files of many clips.

    Args:
        sounds: Sound files, by the clip's key.
        videos: Video files.
        pictures: Folders that hold one picture per frame.
        twice: Keys that two files of a kind lay claim to.
    """

    sounds: dict[str, Path] = field(default_factory=dict)
    videos: dict[str, Path] = field(default_factory=dict)
    pictures: dict[str, Path] = field(default_factory=dict)
    twice: dict[str, tuple[Path, Path]] = field(default_factory=dict)

    @classmethod
    def find(cls, folders: Iterable[Path], key_of: Callable[[str], str] = str) -> Footage:
        """All that lies under some folders, at any depth.

        Args:
            folders: Where to look; those that do not exist hold nothing.
            key_of: From the name of a file, without its suffix, or of a folder to the key of the clip it belongs to.
        """
        footage, seen = cls(), set()
        kinds = {"sound": footage.sounds, "video": footage.videos, "pictures": footage.pictures}
        for folder in folders:
            for path, kind in _walk(folder, seen):
                key = key_of(_bare(path))
                first = kinds[kind].setdefault(key, path)
                if first != path:
                    footage.twice[key] = (first, path)
        return footage

    def __contains__(self, key: str) -> bool:
        return key in self.sounds or key in self.videos or key in self.pictures

    def ambiguous(self, keys: Iterable[str]) -> list[str]:
        """A problem, if some of these clips have two files of a kind."""
        both = [" and ".join(map(str, self.twice[key])) for key in keys if key in self.twice]
        return [f"expected one file of a kind per clip, found {some(both)}; keep one of each"] if both else []

    def wave(self, key: str, rate: int, *, track: bool = True) -> np.ndarray:
        """The sound of a clip, mono, float32 [T].

        Args:
            key: Of the clip.
            rate: Samples per second.
            track: Whether the sound track of a video will do where there is no sound file.
        """
        from equipoise.media.sound import read_sound

        path = self.sounds.get(key) or (self.videos.get(key) if track else None)
        if path is None:
            raise Unreadable(f"{key}: expected {'a sound file or a video' if track else 'a sound file'}, found none")
        return read_sound(path, rate)[0]

    def frames(self, key: str, per_second: float, most: int, size: int) -> np.ndarray:
        """The frames of a clip in the order of time, uint8 [F, 3, size, size], F ≤ most.

        Args:
            key: Of the clip.
            per_second: How many frames of each second of a video; a folder of pictures was cut out by somebody already.
            most: How many are kept, spread over the clip.
            size: Of each side.
        """
        from equipoise.media.image import read_image
        from equipoise.media.video import read_frames

        if key in self.videos:
            return read_frames(self.videos[key], per_second, most, size)
        if key not in self.pictures:
            raise Unreadable(f"{key}: expected a video or a folder of its frames, found neither")
        paths = in_order(self.pictures[key])
        middles = [(2 * part + 1) * len(paths) // (2 * most) for part in range(most)]
        chosen = paths if len(paths) <= most else [paths[number] for number in middles]
        return np.stack([read_image(path, size) for path in chosen])


@final
@dataclass
class Recordings(Clips):
    """Clips that are read from footage.

    Args:
        listed: The clips.
        keys: Under which the footage has them.
        footage: The files.
        classes: Names of the classes.
        decode: Makes the arrays of a clip, given the footage and its key.
    """

    listed: Sequence[Clip]
    keys: Sequence[str]
    footage: Footage
    classes: tuple[str, ...]
    decode: Callable[[Footage, str], dict[str, np.ndarray]]

    def read(self, number: int) -> dict[str, np.ndarray]:
        """Decode one clip."""
        return self.decode(self.footage, self.keys[number])


def in_order(folder: Path) -> list[Path]:
    """The pictures of a folder by the numbers in their names: frame_2 before frame_10, however they are listed."""
    paths = [path for path in folder.iterdir() if _kind(path.name) == "picture"]
    return sorted(paths, key=lambda path: ([int(digits) for digits in re.findall("[0-9]+", path.stem)], path.name))


def positive(options: Mapping[str, float]) -> list[str]:
    """A problem for each option that is not above zero."""
    return [f"expected {name} above 0, found {value!r}" for name, value in options.items() if not 0 < value < inf]


def _walk(folder: Path, seen: set[tuple[int, int]]) -> Iterator[tuple[Path, str]]:
    """The files and folders of pictures under a folder, each directory once, wherever links lead."""
    waiting = [folder]
    while waiting:  # no recursion: folders may be in each other a thousand times
        here = waiting.pop()
        if not here.is_dir():
            continue
        status = here.stat()
        if (status.st_dev, status.st_ino) in seen:
            continue
        seen.add((status.st_dev, status.st_ino))
        deeper, pictures = [], False
        with os.scandir(here) as entries:
            for entry in sorted(entries, key=lambda entry: entry.name):
                if entry.name.startswith("."):  # what file managers leave behind
                    continue
                if Path(entry.path).is_dir():  # not by the entry, which raises where links lead in a circle
                    deeper.append(Path(entry.path))
                elif (kind := _kind(entry.name)) == "picture":
                    pictures = True
                elif kind:
                    yield Path(entry.path), kind
        if pictures:
            yield here, "pictures"
        waiting += reversed(deeper)


def _kind(name: str) -> str | None:
    _, dot, suffix = name.rpartition(".")  # no Path: there may be millions of names
    return KINDS.get(suffix.lower()) if dot and not name.startswith(".") else None


def _bare(path: Path) -> str:
    """The name without its suffix; a folder of frames is sometimes called like its video."""
    return path.stem if _kind(path.name) else path.name
