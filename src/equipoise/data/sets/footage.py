"""Sounds, videos and folders of pictures: the files of each clip, found by name, and what they hold.

Every file is found by name once, and read by name; the order of a directory's listing has no effect.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from typing import Literal, final, get_args, get_origin, get_type_hints

import numpy as np
import torch

from equipoise.data.prepare.original import Field, Published, some
from equipoise.data.views import VideoFrames
from equipoise.media.sound import read_sound, tile
from equipoise.media.spectrogram import kinetics_fbank
from equipoise.media.video import evenly_spaced, read_frames, read_image
from equipoise.util.errors import Unreadable, demand

SUFFIXES = {"sounds": "wav flac ogg mp3 m4a", "videos": "flv mp4 webm mkv avi mov", "pictures": "jpg jpeg png"}
KINDS = {suffix: kind for kind, suffixes in SUFFIXES.items() for suffix in suffixes.split()}
FBANK_RATE, FBANK_SHAPE = 16_000, (1, 1024, 128)  # one channel, time, mel bins
FBANK_SHORTEST = 400  # samples, one frame of 25 ms


class AudioVisual(Published):
    """A data set of clips with sound and frames, whose options are checked: numbers above 0, and words among theirs."""

    def __post_init__(self) -> None:
        numbers = {name: getattr(self, name, 1) for name in ("fps", "size", "frames", "crop")}
        rules = [(0 < number < inf, f"expected {name} above 0", number) for name, number in numbers.items()]
        for name, kind in get_type_hints(type(self)).items():
            if get_origin(kind) is Literal:
                value, choices = getattr(self, name), get_args(kind)
                rules.append((value in choices, f"expected {name} to be {' or '.join(choices)}", value))
        demand(self.name, *rules)


def video_field(most: int, size: int, frames: int, crop: int) -> Field:
    """Describe up to `most` stored frames of a side, and inputs of fewer frames of another."""
    return Field((most, 3, size, size), "uint8", ragged=True, view=VideoFrames(frames, crop))


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
        """Find all that lies under some folders, at any depth.

        Args:
            folders: Where to look; those that do not exist hold nothing.
            key_of: From the name of a file, without its suffix, or of a folder to the key of the clip it belongs to.
        """
        footage, seen = cls(), set()
        for folder in folders:
            for path, kind in _walk(folder, seen):
                # A folder of frames is sometimes called like its video.
                key = key_of(path.stem if _kind(path.name) else path.name)
                first = getattr(footage, kind).setdefault(key, path)
                if first != path:
                    footage.twice[key] = (first, path)
        return footage

    def __contains__(self, key: str) -> bool:
        return key in self.sounds or key in self.videos or key in self.pictures

    def ambiguous(self, keys: Iterable[str]) -> list[str]:
        """Return a problem, if some of these clips have two files of a kind."""
        both = [" and ".join(map(str, self.twice[key])) for key in keys if key in self.twice]
        return [f"expected one file of a kind per clip, found {some(both)}; keep one of each"] if both else []

    def wave(self, key: str, rate: int, *, track: bool = True) -> np.ndarray:
        """Read the sound of a clip, mono, float32 [T].

        Args:
            key: Of the clip.
            rate: Samples per second.
            track: Whether the sound track of a video will do where there is no sound file.
        """
        path = self.sounds.get(key) or (self.videos.get(key) if track else None)
        if path is None:
            raise Unreadable(f"{key}: expected {'a sound file or a video' if track else 'a sound file'}, found none")
        return read_sound(path, rate)[0]

    def frames(self, key: str, per_second: float, most: int, size: int) -> np.ndarray:
        """Read the frames of a clip in the order of time, uint8 [F, 3, size, size], F ≤ most.

        Args:
            key: Of the clip.
            per_second: How many frames of each second of a video; a folder of pictures was extracted already.
            most: How many are kept, spread over the clip.
            size: Of each side.
        """
        if key in self.videos:
            return read_frames(self.videos[key], per_second, most, size)
        if key not in self.pictures:
            raise Unreadable(f"{key}: expected a video or a folder of its frames, found neither")
        return np.stack([read_image(path, size) for path in evenly_spaced(pictures_in(self.pictures[key]), most)])


def pictures_in(folder: Path) -> list[Path]:
    """Return the pictures of a folder by the numbers in their names: frame_2 before frame_10, however listed."""
    paths = [path for path in folder.iterdir() if _kind(path.name) == "pictures"]
    return sorted(paths, key=lambda path: ([int(digits) for digits in re.findall("[0-9]+", path.stem)], path.name))


def filter_bank(wave: np.ndarray, name: str) -> np.ndarray:
    """Compute the filter bank of Kinetics-Sounds: Kaldi's, 1024 frames, normalised as published.

    Frames that are missing hold 0.438, a shifted zero.

    Args:
        wave: Mono, at 16 kHz.
        name: Of the clip, for the message.
    """
    if len(wave) < FBANK_SHORTEST:
        raise Unreadable(f"{name}: expected a sound of 25 ms or more, found {len(wave)} samples at {FBANK_RATE} Hz")
    return kinetics_fbank(torch.from_numpy(wave), FBANK_RATE).reshape(FBANK_SHAPE).numpy()


def as_int16(wave: np.ndarray, samples: int) -> np.ndarray:
    """Repeat or cut a sound to that many samples, and store them in 16 bits; loud ones are clipped, not wrapped."""
    return np.rint(tile(wave, samples) * 2**15).clip(-(2**15), 2**15 - 1).astype(np.int16)


def _walk(folder: Path, seen: set[tuple[int, int]]) -> Iterator[tuple[Path, str]]:
    """Yield the files and folders of pictures under a folder, each directory once, wherever links lead."""
    waiting = [folder]
    while waiting:  # no recursion: folders may be in each other a thousand times
        here = waiting.pop()
        if not here.is_dir():
            continue
        status = here.stat()
        if (status.st_dev, status.st_ino) in seen:
            continue
        seen.add((status.st_dev, status.st_ino))
        subfolders, pictures = [], False
        for path in sorted(here.iterdir(), key=lambda path: path.name):
            if path.name.startswith("."):  # what file managers leave behind
                continue
            if path.is_dir():
                subfolders.append(path)
            elif (kind := _kind(path.name)) == "pictures":
                pictures = True
            elif kind:
                yield path, kind
        if pictures:
            yield here, "pictures"
        waiting += reversed(subfolders)


def _kind(name: str) -> str | None:
    _, dot, suffix = name.rpartition(".")  # no Path: there may be millions of names
    return KINDS.get(suffix.lower()) if dot and not name.startswith(".") else None
