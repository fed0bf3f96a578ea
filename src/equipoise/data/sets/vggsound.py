"""VGGSound: 309 kinds of sound whose source is in the picture, ten seconds each.

Chen et al., "VGGSound: A Large-scale Audio-Visual Dataset" (2020). Sound and frames are made as in OGM-GE, except that
evaluation listens to the same five seconds every time.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, final

import numpy as np

from equipoise.data.prepare.original import Clip, Clips, Field, Original, Protocol
from equipoise.data.sets.footage import Footage, Recordings, positive
from equipoise.data.sets.hashing import cut
from equipoise.data.sets.lists import find_list, refuse, rows_of, some
from equipoise.data.sets.youtube import Cut, cut_of, key_of, keys_in
from equipoise.data.views import LogSTFT, VideoFrames
from equipoise.util.errors import BadInput

RATE, SECONDS, HEARD = 16_000, 10, 5  # stored: ten seconds; heard at a time: five
LIST = "vggsound.csv"
LIST_FOLDERS = ("data", "VGGSound", "data/VGGSound", "annotations")


@final
@dataclass(frozen=True)
class VGGSound(Original):
    """VGGSound.

    Args:
        fps: Frames kept of each second of a video; 0.3 keeps three of a clip, in a third of the space.
        size: Of the sides of a kept frame.
        frames: Frames that make an input.
        crop: Of the sides of an input.
    """

    fps: float = 1
    size: int = 256
    frames: int = 3
    crop: int = 224

    name: ClassVar[str] = "vggsound"
    summary: ClassVar[str] = "309 kinds of sound, with the picture, 199,467 clips of ten seconds"
    layout: ClassVar[str] = """\
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
        "videos": Protocol(
            "no video in two parts: 80, 10 and 10 % of all videos, drawn by a hash of the video's id", by_group=True
        ),
    }

    def __post_init__(self) -> None:
        problems = positive({"fps": self.fps, "size": self.size, "frames": self.frames, "crop": self.crop})
        if problems:
            raise BadInput(f"vggsound: {'; '.join(problems)}")

    @property
    def fields(self) -> dict[str, Field]:
        """Ten seconds of sound, of which five are heard at a time, and frames."""
        heard = Field((SECONDS * RATE,), "int16", view=LogSTFT(HEARD * RATE, n_fft=256, hop=128))
        view = VideoFrames(self.frames, self.crop)
        seen = Field((self._kept, 3, self.size, self.size), "uint8", ragged=True, view=view)
        return {"audio": heard, "video": seen}

    def open(self, source: Path) -> Recordings:
        """Find the clips of the list, in its order."""
        problems: list[str] = []
        rows = self._rows(source, problems)
        classes = tuple(sorted({label for _, label, _ in rows}))
        number = {label: index for index, label in enumerate(classes)}
        labels: dict[Cut, str] = {}
        tested: set[Cut] = set()
        relabelled: list[str] = []
        for each, label, part in rows:
            if labels.setdefault(each, label) != label:
                relabelled.append(f"{each.key} ({labels[each]}, then {label})")
            if part == "test":
                tested.add(each)  # whatever another row says: what is tested is not trained on
        cuts = list(labels)
        footage = Footage.find([source], key_of)
        keys = keys_in(footage, cuts)
        problems += footage.ambiguous(keys)
        refuse(self, source, problems)
        if relabelled:
            warnings.warn(
                f"vggsound: clips listed twice with different labels, of which the first counts: {some(relabelled)}",
                stacklevel=2,
            )
        listed = [Clip(each.key, number[labels[each]], each.video, _parts(each, each in tested)) for each in cuts]
        return Recordings(listed, keys, footage, classes, self.decode)

    def classes(self, clips: Clips) -> tuple[str, ...]:
        """Every label of the list, sorted, whichever clips are there."""
        return clips.classes if isinstance(clips, Recordings) else ()

    def decode(self, footage: Footage, key: str) -> dict[str, np.ndarray]:
        """The arrays of one clip."""
        from equipoise.media.sound import tile

        wave = np.rint(tile(footage.wave(key, RATE), SECONDS * RATE) * 2**15).clip(-(2**15), 2**15 - 1)
        return {"audio": wave.astype(np.int16), "video": footage.frames(key, self.fps, self._kept, self.size)}

    @property
    def _kept(self) -> int:
        return max(1, round(SECONDS * self.fps))

    def _rows(self, source: Path, problems: list[str]) -> list[tuple[Cut, str, str]]:
        """What each row of the list is cut from, its label, and its part."""
        path = find_list(source, LIST, LIST_FOLDERS)
        if path is None:
            problems.append(f"expected the list {LIST} in {source} or its folder data; found none")
            return []
        rows, strange, elsewhere = [], [], []
        for row in rows_of(path, 4, problems):
            found = cut_of(f"{row[0]}_{row[1]}")
            if found is None or found.video != row[0] or not row[2]:
                strange.append(",".join(row))
            elif row[3] not in ("train", "test"):
                elsewhere.append(",".join(row))
            else:
                rows.append((found, row[2], row[3]))
        if strange:
            problems.append(f"{path}: expected a video's id, a start and a label, found {some(strange)}")
        if elsewhere:
            problems.append(f"{path}: expected train or test in the fourth column, found {some(elsewhere)}")
        if not (rows or strange or elsewhere):
            problems.append(f"{path}: expected clips, found none")
        return rows


def _parts(each: Cut, tested: bool) -> dict[str, str]:
    drawn = cut(each.video, {"train": 0.95, "validation": 0.05}, "vggsound official")
    shares = {"train": 0.8, "validation": 0.1, "test": 0.1}
    return {"official": "test" if tested else drawn, "videos": cut(each.video, shares, "vggsound videos")}
