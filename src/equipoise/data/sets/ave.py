"""AVE: audio-visual events, such as a barking dog or a church bell, in videos of ten seconds.

Tian et al., "Audio-Visual Event Localization in Unconstrained Videos" (ECCV 2018). Two tasks share the name: to tell
the event of a whole clip from its sound and frames, and to tell the event of each second, or that there is none, from
features that were taken from both.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal, final

import numpy as np

from equipoise.data.prepare.original import Clip, Clips, Field, InMemory, Original, Protocol
from equipoise.data.sets.ave_lists import ANNOTATIONS, EVENTS, LISTS, Row, parts_of, read_rows
from equipoise.data.sets.ave_segments import CLASSES, MAP, SOUND, open_segments
from equipoise.data.sets.footage import positive
from equipoise.data.sets.lists import refuse, some
from equipoise.data.views import LogSTFT, Rescaled, VideoFrames
from equipoise.util.errors import BadInput, Unreadable

FOLDER, SUFFIX = "AVE", ".mp4"
SECONDS, HERTZ = 10, 16_000
N_FFT, HOP, COLUMNS = 512, 159, 1004  # a window of 512 that overlaps the next by 353
STRETCH = (COLUMNS - 1) * HOP  # samples: frames are centred, the first at 0 and the last at the end
WHOLE_VIDEO = 60  # frames, one a second, from which those of an event are taken


@final
@dataclass(frozen=True)
class AVE(Original):
    """AVE.

    Args:
        task: "clips": sound and frames of a clip, 28 classes. "segments": features of each second, 28 classes and
            background.
        stretch: Of clips: "clip", all ten seconds; or "event", only those in which the event is seen and heard, the
            sound repeated, as PMR has it.
        frames: Of clips: frames that make an input; PMR takes 4.
        size: Of clips: of the sides of a kept frame.
        crop: Of clips: of the sides of an input.
    """

    task: Literal["clips", "segments"] = "clips"
    stretch: Literal["clip", "event"] = "clip"
    frames: int = 3
    size: int = 256
    crop: int = 224

    name: ClassVar[str] = "ave"
    summary: ClassVar[str] = "28 audio-visual events, 4,143 clips of ten seconds, or every second of them"
    layout: ClassVar[str] = """\
Expected for task=clips the publisher's AVE_Dataset:
  Annotations.txt                          rows like Bark&3jS8tWfLJxI&good&7&9: event, video, quality, start, end
  trainSet.txt, valSet.txt, testSet.txt    rows of the same form
  AVE/3jS8tWfLJxI.mp4
for task=segments the publisher's features and PSP's corrected labels (or the publisher's labels.h5):
  visual_feature.h5, audio_feature.h5, right_labels.h5, train_order.h5, val_order.h5, test_order.h5
  Annotations.txt                          optional: tells which rows are of one video"""
    protocols: ClassVar[dict[str, Protocol]] = {
        "official": Protocol(
            "the publisher's train, validation and test lists (3,339, 402 and 402); a video with two labels that they "
            "put into two parts is used in the later one alone; selection sees validation alone",
            by_group=True,
        ),
        "agm-valid": Protocol(
            "as in AGM's code: the train list learns, and the validation list both selects the epoch and is reported; "
            "the test list is not used",
            by_group=True,
            selects_on_test=True,
        ),
        "videos": Protocol(
            "no video in two parts: 80, 10 and 10 % of the videos, drawn by a hash of the video's id", by_group=True
        ),
    }

    def __post_init__(self) -> None:
        problems = positive({"frames": self.frames, "size": self.size, "crop": self.crop})
        if self.task not in ("clips", "segments"):
            problems.append(f"expected task to be clips or segments, found {self.task!r}")
        if self.stretch not in ("clip", "event"):
            problems.append(f"expected stretch to be clip or event, found {self.stretch!r}")
        if problems:
            raise BadInput(f"ave: {'; '.join(problems)}")

    @property
    def fields(self) -> dict[str, Field]:
        """Sound and frames of a clip, or features of a second."""
        if self.task == "segments":
            return {"audio": Field(SOUND), "video": Field(MAP, "float16", view=Rescaled(1.0))}
        heard = Field((SECONDS * HERTZ,), "int16", view=LogSTFT(STRETCH, N_FFT, HOP))
        shape = (SECONDS, 3, self.size, self.size)
        return {"audio": heard, "video": Field(shape, "uint8", ragged=True, view=VideoFrames(self.frames, self.crop))}

    def open(self, source: Path) -> Clips:
        """Find the clips or the features."""
        source, problems = Path(source), []
        found = open_segments(source, problems) if self.task == "segments" else self._open_clips(source, problems)
        refuse(self, source, problems)
        return found or InMemory([])

    def classes(self, clips: Clips) -> tuple[str, ...]:  # noqa: ARG002 (they are the same for any clips)
        """The events in the order of the publisher's list, and background where there are seconds without any."""
        return CLASSES if self.task == "segments" else EVENTS

    def _open_clips(self, source: Path, problems: list[str]) -> EventClips:
        rows = read_rows(source / ANNOTATIONS, problems)
        once: dict[tuple[str, str], Row] = {}
        for row in rows:
            once.setdefault((row.event, row.video), row)
        parts: dict[tuple[str, str], str] = {}
        for part, file in LISTS.items():
            parts |= {(row.event, row.video): part for row in read_rows(source / file, problems)}
        if strange := [f"{event}&{video}" for event, video in parts if (event, video) not in once]:
            problems.append(f"expected the rows of every list in {ANNOTATIONS} too, found none for {some(strange)}")
        if not (source / FOLDER).is_dir():
            problems.append(f"expected videos in {source / FOLDER}, found no such folder")
        return EventClips(source / FOLDER, list(once.values()), [parts.get(key) for key in once], self)


@final
class EventClips(Clips):
    """Clips with one event each. A video with two events is two clips, in the same part under every protocol.

    Args:
        folder: Of the videos.
        rows: The clips.
        parts: The publisher's part of each.
        options: How they are read.
    """

    def __init__(self, folder: Path, rows: Sequence[Row], parts: Sequence[str | None], options: AVE) -> None:
        self._folder, self._rows, self._options = folder, rows, options
        placed = parts_of(parts, [row.video for row in rows])
        self.listed = [
            Clip(f"{row.video}/{row.event}", EVENTS.index(row.event), row.video, each)
            for row, each in zip(rows, placed, strict=True)
        ]

    def read(self, number: int) -> dict[str, np.ndarray]:
        """Ten seconds of sound and a frame of each second."""
        from equipoise.media.sound import read_sound, tile
        from equipoise.media.video import read_frames

        row, options = self._rows[number], self._options
        path = self._folder / f"{row.video}{SUFFIX}"
        wave = read_sound(path, HERTZ)[0]
        if options.stretch == "clip":
            seen = read_frames(path, 1, SECONDS, options.size)
        else:
            wave = wave[row.start * HERTZ : row.end * HERTZ]
            seen = read_frames(path, 1, WHOLE_VIDEO, options.size)[row.start : row.end][:SECONDS]
            if not len(wave) or not len(seen):
                raise Unreadable(f"{path}: expected the event from second {row.start} to {row.end}, found none of it")
        loud = np.clip(np.rint(tile(wave, SECONDS * HERTZ) * 2**15), -(2**15), 2**15 - 1)
        return {"audio": loud.astype(np.int16), "video": seen}
