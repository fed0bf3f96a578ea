"""Kinetics-Sounds: 31 of the actions of Kinetics-400 that are both seen and heard, ten seconds each.

Arandjelović and Zisserman, "Look, Listen and Learn" (2017); the lists and the filter bank are those of OGM-GE.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, final

import numpy as np

from equipoise.data.prepare.original import Clip, Clips, Field, Original, Protocol
from equipoise.data.sets.filterbank import RATE, SHAPE, filter_bank
from equipoise.data.sets.footage import Footage, Recordings, positive
from equipoise.data.sets.hashing import cut
from equipoise.data.sets.lists import find_list, refuse, rows_of, some
from equipoise.data.sets.youtube import Cut, cut_of, key_of, keys_in
from equipoise.data.views import VideoFrames
from equipoise.util.errors import BadInput

CLASSES = 31
SECONDS = 10
LISTS = {"my_train.txt": "train", "my_test.txt": "test"}
LIST_FOLDERS = ("KineticSound", "data/KineticSound", "data", "annotations")


@final
@dataclass(frozen=True)
class KineticsSounds(Original):
    """Kinetics-Sounds.

    Args:
        fps: Frames kept of each second of a video.
        size: Of the sides of a kept frame.
        frames: Frames that make an input.
        crop: Of the sides of an input.
    """

    fps: float = 1
    size: int = 256
    frames: int = 3
    crop: int = 224

    name: ClassVar[str] = "kinetics-sounds"
    summary: ClassVar[str] = "31 actions, sound and picture, 17,396 clips of ten seconds"
    layout: ClassVar[str] = """\
Expected the lists of OGM-GE (data/KineticSound in its repository) and clips named after the ids in them, at any depth:
  my_train.txt, my_test.txt     rows such as --4-0ihtnBU_000058_000068,10,4: id, seconds, class from 0 to 30
  stat.txt                      optional: names of the 31 classes, one a line, in the order of their numbers
  train/playing_drums/--4-0ihtnBU_000058_000068.mp4     a video with its sound (mp4, webm, mkv, avi, flv), or
  audio/--4-0ihtnBU_000058_000068.wav with visual/--4-0ihtnBU_000058_000068/*.jpg
A start may be padded with zeros or not, and an end may be missing: -3Mwkq-7TV4_2 is -3Mwkq-7TV4_000002_000012."""
    protocols: ClassVar[dict[str, Protocol]] = {
        "official": Protocol(
            "my_train.txt and my_test.txt of OGM-GE (14,799 and 2,597 clips, no video in both); validation is a tenth"
            " of the videos of my_train.txt, drawn by a hash of the video's id, as no validation list was published",
            by_group=True,
        ),
        "mimo-80-10-10": Protocol(
            "the proportions of the paper of MIMO, 15k, 1.9k and 1.9k clips; its lists are not published and had more"
            " clips than these, so the videos of both lists are drawn anew by a hash of the video's id; epochs are"
            " chosen on validation",
            by_group=True,
        ),
        "videos": Protocol(
            "no video in two parts: 70, 15 and 15 % of the videos of both lists, drawn by a hash of the video's id",
            by_group=True,
        ),
    }

    def __post_init__(self) -> None:
        problems = positive({"fps": self.fps, "size": self.size, "frames": self.frames, "crop": self.crop})
        if problems:
            raise BadInput(f"kinetics-sounds: {'; '.join(problems)}")

    @property
    def fields(self) -> dict[str, Field]:
        """A filter bank and frames."""
        view = VideoFrames(self.frames, self.crop)
        seen = Field((self._kept, 3, self.size, self.size), "uint8", ragged=True, view=view)
        return {"audio": Field(SHAPE), "video": seen}

    def open(self, source: Path) -> Recordings:
        """Find the clips of both lists, in their order."""
        problems: list[str] = []
        listed: dict[str, Clip] = {}
        cuts: list[Cut] = []
        relabelled: list[str] = []
        videos: dict[str, set[str]] = {part: set() for part in LISTS.values()}
        for name, part in LISTS.items():
            for each, title, label in self._entries(source, name, problems):
                videos[part].add(each.video)
                clip = Clip(title, label, each.video, _parts(each.video, part))
                first = listed.setdefault(each.key, clip)
                if first is clip:
                    cuts.append(each)
                elif first.label != label:
                    relabelled.append(f"{title} ({first.label}, then {label})")
        if both := sorted(videos["train"] & videos["test"]):
            problems.append(f"expected no video in both lists, found {some(both)}")
        classes = self._names(source, problems)
        footage = Footage.find([source], key_of)
        keys = keys_in(footage, cuts)
        problems += footage.ambiguous(keys)
        refuse(self, source, problems)
        if relabelled:
            warnings.warn(
                f"kinetics-sounds: clips listed twice with different classes, of which the first counts:"
                f" {some(relabelled)}",
                stacklevel=2,
            )
        return Recordings(list(listed.values()), keys, footage, classes, self.decode)

    def classes(self, clips: Clips) -> tuple[str, ...]:
        """The 31 classes by name where stat.txt names them, by number otherwise."""
        return clips.classes if isinstance(clips, Recordings) else _numbers()

    def decode(self, footage: Footage, key: str) -> dict[str, np.ndarray]:
        """The arrays of one clip."""
        heard = filter_bank(footage.wave(key, RATE), key)
        return {"audio": heard, "video": footage.frames(key, self.fps, self._kept, self.size)}

    @property
    def _kept(self) -> int:
        return max(1, round(SECONDS * self.fps))

    def _entries(self, source: Path, name: str, problems: list[str]) -> list[tuple[Cut, str, int]]:
        """The clips of a list: what each is cut from, its id, and its class."""
        path = find_list(source, name, LIST_FOLDERS)
        if path is None:
            problems.append(f"expected the list {name} in {source} or its folder KineticSound; found none")
            return []
        entries, strange, outside = [], [], []
        for row in rows_of(path, 3, problems):
            found = cut_of(row[0])
            if found is None or found.start is None:
                strange.append(row[0])
            elif row[2] not in _numbers():
                outside.append(",".join(row))
            else:
                entries.append((found, row[0], int(row[2])))
        if strange:
            problems.append(f"{path}: expected a video's id and a start, such as -3Mwkq-7TV4_2, found {some(strange)}")
        if outside:
            problems.append(f"{path}: expected classes from 0 to {CLASSES - 1}, found {some(outside)}")
        if not (entries or strange or outside):
            problems.append(f"{path}: expected clips, found none")
        return entries

    def _names(self, source: Path, problems: list[str]) -> tuple[str, ...]:
        path = find_list(source, "stat.txt", LIST_FOLDERS)
        if path is None:
            return _numbers()
        names = tuple(row[0] for row in rows_of(path, 1, problems))
        if len(set(names)) != CLASSES or len(names) != CLASSES:
            problems.append(
                f"{path}: expected {CLASSES} different names, found {len(set(names))} on {len(names)} lines"
            )
        return names


def _numbers() -> tuple[str, ...]:
    return tuple(str(number) for number in range(CLASSES))


def _parts(video: str, listed: str) -> dict[str, str]:
    drawn = cut(video, {"train": 0.9, "validation": 0.1}, "kinetics-sounds official")
    return {
        "official": drawn if listed == "train" else "test",
        "mimo-80-10-10": cut(video, {"train": 0.8, "validation": 0.1, "test": 0.1}, "kinetics-sounds mimo"),
        "videos": cut(video, {"train": 0.7, "validation": 0.15, "test": 0.15}, "kinetics-sounds videos"),
    }
