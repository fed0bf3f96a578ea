"""Clips of ten seconds cut out of YouTube videos: Kinetics-Sounds and VGGSound.

Both are lists of videos and starts, with files named after them. What differs is the list, the classes, the sound and
the parts.
"""

import re
import warnings
from abc import abstractmethod
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, NamedTuple, final

import numpy as np

from equipoise.data.prepare.original import (
    Clip,
    Clips,
    DecodedClips,
    Field,
    Problems,
    Protocol,
    by_group,
    find_list,
    part_by_hash,
    read_list,
    some,
)
from equipoise.data.sets.footage import FBANK_SHAPE, AudioVisual, Footage, as_int16, filter_bank, video_field
from equipoise.data.splits import PARTS
from equipoise.data.views import LogSTFT

NAME = re.compile(r"(?P<video>[A-Za-z0-9_-]{11})(_(?P<start>[0-9]{1,9})(_[0-9]{1,9})?)?")
RATE, SECONDS, HEARD = 16_000, 10, 5  # VGGSound stores ten seconds, and five are heard at a time
Shares = dict[str, tuple[float, ...]]


@final
class VideoSegment(NamedTuple):
    """A clip of a video.

    Args:
        video: The video's id, eleven characters, underscores among them.
        start: The second the clip starts at; None where the name does not say.
    """

    video: str
    start: int | None

    @property
    def key(self) -> str:
        """One spelling, however many zeros a file's name was padded with, and whether or not it names the end."""
        return self.video if self.start is None else f"{self.video}_{self.start}"


@final
class ListedClip(NamedTuple):
    """A row of a publisher's list: the segment, the clip's id, its label as written, and train or test."""

    segment: VideoSegment
    id: str
    label: str
    part: str


@dataclass(frozen=True)
class YouTubeDataset(AudioVisual):
    """A data set of clips that lists name by video and start.

    Args:
        fps: Frames stored of each second of a video; 0.3 stores three of a clip, in a third of the space.
    """

    fps: float = 1
    size: int = 256
    frames: int = 3
    crop: int = 224

    lists: ClassVar[dict[str, str]]  # each with the part its clips are in; "" where the rows name it
    list_folders: ClassVar[tuple[str, ...]]
    columns: ClassVar[int]
    rules: ClassVar[tuple[str, str]]  # what a row should hold, for messages: the clip, and its label or part
    labels: ClassVar[
        tuple[str, ...]
    ] = ()  # as the lists write them; none where all that occur, sorted, are the classes
    sound: ClassVar[Field]
    shares: ClassVar[Shares]  # by protocol, drawn by a hash of the video's id; for "official" of what is not tested

    @property
    def fields(self) -> dict[str, Field]:
        """Describe the sound and the frames."""
        return {"audio": self.sound, "video": video_field(self._most_frames, self.size, self.frames, self.crop)}

    @property
    def _most_frames(self) -> int:
        return max(1, round(SECONDS * self.fps))

    def find(self, source: Path, problems: Problems) -> Clips | None:
        """Find the clips of the lists, in their order."""
        rows = self._rows(source, problems)
        tested = {row.segment for row in rows if row.part == "test"}  # even if other rows say train
        if self.protocols["official"].by_group:
            both = {row.segment.video for row in rows if row.part == "train"} & {segment.video for segment in tested}
            problems.unexpected("expected no video in both lists", sorted(both))
        labels = self.labels or tuple(sorted({row.label for row in rows}))
        classes = self._class_names(source, problems) or labels
        first = {row.segment: row for row in reversed(rows)}
        segments = list(dict.fromkeys(row.segment for row in rows))
        footage = Footage.find([source], key_of)
        keys = keys_in(footage, segments)
        problems += footage.ambiguous(keys)
        if problems:
            return None
        earlier = [(first[row.segment].label, row) for row in rows]
        if again := [f"{row.id} ({label}, then {row.label})" for label, row in earlier if label != row.label]:
            text = "clips listed twice with different labels, of which the first counts"
            warnings.warn(f"{self.name}: {text}: {some(again)}", stacklevel=3)
        number = {label: index for index, label in enumerate(labels)}
        listed = [
            Clip(row.id, number[row.label], row.segment.video, self._parts(row.segment.video, row.segment in tested))
            for row in map(first.__getitem__, segments)
        ]
        return DecodedClips(listed, lambda index: self._decode(footage, keys[index]), classes)

    def _decode(self, footage: Footage, key: str) -> dict[str, np.ndarray]:
        wave = footage.wave(key, RATE)
        sound = as_int16(wave, SECONDS * RATE) if self.sound.dtype == "int16" else filter_bank(wave, key)
        return {"audio": sound, "video": footage.frames(key, self.fps, self._most_frames, self.size)}

    @abstractmethod
    def _row(self, cells: list[str], part: str) -> ListedClip | None:
        """Read a row of a list; None where it names no clip."""

    def _rows(self, source: Path, problems: Problems) -> list[ListedClip]:
        rows = []
        for name, part in self.lists.items():
            path = find_list(source, name, self.list_folders)
            if path is None:
                where = f"{source} or its folder {self.list_folders[0]}"
                problems.append(f"expected the list {name} in {where}; found none")
                continue
            lines = [(self._row(cells, part), ",".join(cells)) for cells in read_list(path, self.columns, problems)]
            if not lines:
                problems.append(f"{path}: expected clips, found none")
            problems.unexpected(f"{path}: expected {self.rules[0]}", [line for row, line in lines if row is None])
            outside = [line for row, line in lines if row and not self._known(row)]
            problems.unexpected(f"{path}: expected {self.rules[1]}", outside)
            rows += [row for row, _ in lines if row and self._known(row)]
        return rows

    def _known(self, row: ListedClip) -> bool:
        return row.part in ("train", "test") and (not self.labels or row.label in self.labels)

    def _class_names(self, source: Path, problems: Problems) -> tuple[str, ...]:
        """Read the names of the classes, where their labels are numbers and a list names them."""
        path = find_list(source, "stat.txt", self.list_folders) if self.labels else None
        names = tuple(cells[0] for cells in read_list(path, 1, problems)) if path else ()
        if path and not len(set(names)) == len(names) == len(self.labels):
            found = f"{len(set(names))} on {len(names)} lines"
            problems.append(f"{path}: expected {len(self.labels)} different names, found {found}")
        return names

    def _parts(self, video: str, tested: bool) -> dict[str, str]:
        parts = {}
        for protocol, shares in self.shares.items():
            salt = f"{self.name} {protocol.partition('-')[0]}"
            parts[protocol] = part_by_hash(video, dict(zip(PARTS, shares, strict=False)), salt)
        return parts | {"official": "test"} if tested else parts


@final
@dataclass(frozen=True)
class KineticsSounds(YouTubeDataset):
    """Kinetics-Sounds: 31 of the actions of Kinetics-400 that are both seen and heard, ten seconds each.

    Arandjelović and Zisserman, "Look, Listen and Learn" (2017); the lists and the filter bank are those of OGM-GE.

    Args:
        fps: Frames stored of each second of a video.
        size: Of the sides of a stored frame.
        frames: Frames that make an input.
        crop: Of the sides of an input.
    """

    name = "kinetics-sounds"
    summary = "31 actions, sound and picture, 17,396 clips of ten seconds"
    layout = """\
Expected the lists of OGM-GE (data/KineticSound in its repository) and clips named after the ids in them, at any depth:
  my_train.txt, my_test.txt     rows such as --4-0ihtnBU_000058_000068,10,4: id, seconds, class from 0 to 30
  stat.txt                      optional: names of the 31 classes, one a line, in the order of their numbers
  train/playing_drums/--4-0ihtnBU_000058_000068.mp4     a video with its sound (mp4, webm, mkv, avi, flv), or
  audio/--4-0ihtnBU_000058_000068.wav with visual/--4-0ihtnBU_000058_000068/*.jpg
A start may be padded with zeros or not, and an end may be missing: -3Mwkq-7TV4_2 is -3Mwkq-7TV4_000002_000012."""
    protocols: ClassVar[dict[str, Protocol]] = {
        "official": by_group(
            "my_train.txt and my_test.txt of OGM-GE (14,799 and 2,597 clips, no video in both); validation is a tenth"
            " of the videos of my_train.txt, drawn by a hash of the video's id, as no validation list was published"
        ),
        "mimo-80-10-10": by_group(
            "the proportions of the paper of MIMO, 15k, 1.9k and 1.9k clips; its lists are not published and had more"
            " clips than these, so the videos of both lists are drawn anew by a hash of the video's id; epochs are"
            " chosen on validation"
        ),
        "videos": by_group(
            "no video in two parts: 70, 15 and 15 % of the videos of both lists, drawn by a hash of the video's id"
        ),
    }
    lists: ClassVar[dict[str, str]] = {"my_train.txt": "train", "my_test.txt": "test"}
    list_folders = ("KineticSound", "data/KineticSound", "data", "annotations")
    columns = 3
    rules = ("a video's id and a start, such as -3Mwkq-7TV4_2", "classes from 0 to 30")
    labels = tuple(map(str, range(31)))
    sound = Field(FBANK_SHAPE)
    shares: ClassVar[Shares] = {"official": (0.9, 0.1), "mimo-80-10-10": (0.8, 0.1, 0.1), "videos": (0.7, 0.15, 0.15)}

    def _row(self, cells: list[str], part: str) -> ListedClip | None:
        segment = segment_of(cells[0])
        return None if segment is None or segment.start is None else ListedClip(segment, cells[0], cells[2], part)


@final
@dataclass(frozen=True)
class VGGSound(YouTubeDataset):
    """VGGSound: 309 kinds of sound whose source is in the picture, ten seconds each.

    Chen et al., "VGGSound: A Large-scale Audio-Visual Dataset" (2020). Sound and frames are made as in OGM-GE, except
    that evaluation listens to the same five seconds every time.

    Args:
        fps: Frames stored of each second of a video; 0.3 stores three of a clip, in a third of the space.
        size: Of the sides of a stored frame.
        frames: Frames that make an input.
        crop: Of the sides of an input.
    """

    name = "vggsound"
    summary = "309 kinds of sound, with the picture, 199,467 clips of ten seconds"
    layout = """\
Expected the publisher's list and clips named after its rows, at any depth:
  vggsound.csv                       rows such as ---g-f_I2yQ,1,people marching,test: video, start, label, train or test
  video/---g-f_I2yQ_000001.mp4       a video with its sound (mp4, webm, mkv, avi, flv), or
  audio/---g-f_I2yQ_000001.wav       with frames/---g-f_I2yQ_000001/*.jpg
A start may be padded with zeros or not; a folder of frames may be called like the video."""
    protocols: ClassVar[dict[str, Protocol]] = {
        "official": Protocol(
            "train and test as vggsound.csv says, as in the paper of MIMO, which lost clips to the web (168,618 and"
            " 13,954 left); validation is a twentieth of the videos of train, drawn by a hash of the video's id, as no"
            " validation list was published; a video with clips in both lists stays in both"
        ),
        "videos": by_group("no video in two parts: 80, 10 and 10 % of all videos, drawn by a hash of the video's id"),
    }
    lists: ClassVar[dict[str, str]] = {"vggsound.csv": ""}
    list_folders = ("data", "VGGSound", "data/VGGSound", "annotations")
    columns = 4
    rules = ("a video's id, a start and a label", "train or test in the fourth column")
    sound = Field((SECONDS * RATE,), "int16", view=LogSTFT(HEARD * RATE, n_fft=256, hop=128))
    shares: ClassVar[Shares] = {"official": (0.95, 0.05), "videos": (0.8, 0.1, 0.1)}

    def _row(self, cells: list[str], part: str) -> ListedClip | None:  # noqa: ARG002 (the row names it)
        segment = segment_of(f"{cells[0]}_{cells[1]}")
        if segment is None or segment.video != cells[0] or not cells[2]:
            return None
        return ListedClip(segment, segment.key, cells[2], cells[3])


def segment_of(name: str) -> VideoSegment | None:
    """Read a name such as -3Mwkq-7TV4_2, -3Mwkq-7TV4_000002 or -3Mwkq-7TV4_000002_000012; None for any other."""
    match = NAME.fullmatch(name)
    if match is None:
        return None
    return VideoSegment(match["video"], None if match["start"] is None else int(match["start"]))


def key_of(name: str) -> str:
    """Return the one spelling of a name; names of another kind stay as they are."""
    segment = segment_of(name)
    return name if segment is None else segment.key


def keys_in(footage: Footage, segments: Sequence[VideoSegment]) -> list[str]:
    """Return the key under which the footage has each clip.

    A file named by the video alone stands for its one clip; where lists name two clips of a video, for neither.
    """
    clips = Counter(segment.video for segment in segments)

    def key(segment: VideoSegment) -> str:
        by_video = clips[segment.video] == 1 and segment.key not in footage and segment.video in footage
        return segment.video if by_video else segment.key

    return [key(segment) for segment in segments]
