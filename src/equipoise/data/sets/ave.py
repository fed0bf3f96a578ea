"""AVE: audio-visual events, such as a barking dog or a church bell, in videos of ten seconds.

Tian et al., "Audio-Visual Event Localization in Unconstrained Videos" (ECCV 2018). Two tasks share the name: to tell
the event of a whole clip from its sound and frames, and to tell the event of each second, or that there is none, from
features that were taken from both.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple, final

import numpy as np

from equipoise.data.prepare.original import (
    Clip,
    Clips,
    DecodedClips,
    Field,
    Problems,
    Protocol,
    by_group,
    official_and_agm,
    part_by_hash,
    some,
)
from equipoise.data.sets.footage import AudioVisual, as_int16, video_field
from equipoise.data.splits import PARTS
from equipoise.data.views import LogSTFT, Rescaled
from equipoise.media.sound import read_sound
from equipoise.media.video import read_frames
from equipoise.util.errors import Unreadable
from equipoise.util.files import reading
from equipoise.util.processes import memory_problem

_EVENTS = (  # in the order of Annotations.txt, which is also that of the columns of the labels
    "Church bell|Male speech, man speaking|Bark|Fixed-wing aircraft, airplane|Race car, auto racing|"
    "Female speech, woman speaking|Helicopter|Violin, fiddle|Flute|Ukulele|Frying (food)|Truck|Shofar|Motorcycle|"
    "Acoustic guitar|Train horn|Clock|Banjo|Goat|Baby cry, infant cry|Bus|Chainsaw|Cat|Horse|Toilet flush|"
    "Rodents, rats, mice|Accordion|Mandolin"
)
EVENTS = tuple(_EVENTS.split("|"))
SECOND_CLASSES = (*EVENTS, "background")
ANNOTATIONS, VIDEO_FOLDER = "Annotations.txt", "AVE"
LISTS = {"train": "trainSet.txt", "validation": "valSet.txt", "test": "testSet.txt"}
VIDEO = re.compile(r"[A-Za-z0-9_-]+")
SECONDS, RATE = 10, 16_000
N_FFT, HOP, COLUMNS = 512, 159, 1004  # a window of 512 that overlaps the next by 353
STRETCH = (COLUMNS - 1) * HOP  # samples: frames are centred, the first at 0 and the last at the end
WHOLE_VIDEO = 60  # frames, one a second, from which those of an event are taken

VISUAL, SOUND, LABELS = "visual_feature.h5", "audio_feature.h5", "right_labels.h5"
SHAPES = {VISUAL: (SECONDS, 7, 7, 512), SOUND: (SECONDS, 128), LABELS: (SECONDS, len(SECOND_CLASSES))}  # VGG-19, VGGish
OTHER_LABELS = "labels.h5"  # the publisher's own; PSP's right_labels.h5 corrects it
ARRAY, ORDER = "avadataset", "order"
ORDERS = {"train": "train_order.h5", "validation": "val_order.h5", "test": "test_order.h5"}
ROW = 1000  # bytes that what is known of a row takes, about


@final
@dataclass(frozen=True)
class AVE(AudioVisual):
    """AVE.

    Args:
        task: "clips": sound and frames of a clip, 28 classes. "segments": features of each second, 28 classes and
            background.
        stretch: Of clips: "clip", all ten seconds; or "event", only those in which the event is seen and heard, the
            sound repeated, as PMR has it.
        frames: Of clips: frames that make an input; PMR takes 4.
        size: Of clips: of the sides of a stored frame.
        crop: Of clips: of the sides of an input.
    """

    task: Literal["clips", "segments"] = "clips"
    stretch: Literal["clip", "event"] = "clip"
    frames: int = 3
    size: int = 256
    crop: int = 224

    name = "ave"
    summary = "28 audio-visual events, 4,143 clips of ten seconds, or every second of them"
    layout = """\
Expected for task=clips the publisher's AVE_Dataset:
  Annotations.txt                          rows like Bark&3jS8tWfLJxI&good&7&9: event, video, quality, start, end
  trainSet.txt, valSet.txt, testSet.txt    rows of the same form
  AVE/3jS8tWfLJxI.mp4
for task=segments the publisher's features and PSP's corrected labels (or the publisher's labels.h5):
  visual_feature.h5, audio_feature.h5, right_labels.h5, train_order.h5, val_order.h5, test_order.h5
  Annotations.txt                          optional: tells which rows are of one video"""
    protocols: ClassVar[dict[str, Protocol]] = {
        "official": by_group(
            "the publisher's train, validation and test lists (3,339, 402 and 402); a video with two labels that they "
            "put into two parts is used in the later one alone; selection sees validation alone"
        ),
        "agm-valid": by_group(
            "as in AGM's code: the train list learns, and the validation list both selects the epoch and is reported; "
            "the test list is not used",
            selects_on_test=True,
        ),
        "videos": by_group("no video in two parts: 80, 10 and 10 % of the videos, drawn by a hash of the video's id"),
    }

    @property
    def fields(self) -> dict[str, Field]:
        """Describe sound and frames of a clip, or features of a second."""
        if self.task == "segments":  # channels first, as encoders read them
            return {"audio": Field((128,)), "video": Field((512, 7, 7), "float16", view=Rescaled(1.0))}
        sound = Field((SECONDS * RATE,), "int16", view=LogSTFT(STRETCH, N_FFT, HOP))
        return {"audio": sound, "video": video_field(SECONDS, self.size, self.frames, self.crop)}

    def find(self, source: Path, problems: Problems) -> Clips | None:
        """Find the clips, each with one event, or the features."""
        if self.task == "segments":
            return _find_segments(source, problems)
        annotations: dict[tuple[str, ...], Annotation] = {}
        for row in read_annotations(source / ANNOTATIONS, problems):
            annotations.setdefault(row[:2], row)
        parts = {row[:2]: part for part, file in LISTS.items() for row in read_annotations(source / file, problems)}
        if strange := ["&".join(key) for key in parts if key not in annotations]:
            problems.append(f"expected the rows of every list in {ANNOTATIONS} too, found none for {some(strange)}")
        if not (source / VIDEO_FOLDER).is_dir():
            problems.append(f"expected videos in {source / VIDEO_FOLDER}, found no such folder")
        rows = list(annotations.values())
        placed = parts_of([parts.get(key) for key in annotations], [row.video for row in rows])
        listed = [
            Clip(f"{row.video}/{row.event}", EVENTS.index(row.event), row.video, place)
            for row, place in zip(rows, placed, strict=True)
        ]
        return DecodedClips(listed, lambda number: self._read_clip(source / VIDEO_FOLDER, rows[number]), EVENTS)

    def _read_clip(self, folder: Path, row: Annotation) -> dict[str, np.ndarray]:
        """Read ten seconds of sound and a frame of each second."""
        path = folder / f"{row.video}.mp4"
        wave = read_sound(path, RATE)[0]
        if self.stretch == "clip":
            frames = read_frames(path, 1, SECONDS, self.size)
        else:
            wave = wave[row.start * RATE : row.end * RATE]
            frames = read_frames(path, 1, WHOLE_VIDEO, self.size)[row.start : row.end][:SECONDS]
            if not len(wave) or not len(frames):
                raise Unreadable(f"{path}: expected the event from second {row.start} to {row.end}, found none of it")
        return {"audio": as_int16(wave, SECONDS * RATE), "video": frames}


@final
class Annotation(NamedTuple):
    """One line of a list: an event, the video it is in, and the seconds from and to which it lasts."""

    event: str
    video: str
    start: int
    end: int


def read_annotations(path: Path, problems: Problems) -> list[Annotation]:
    """Read the rows of a list, with or without a header: event, video, quality, start and end, separated by &."""
    try:
        with reading(path):
            lines = path.read_text(encoding="utf-8-sig").splitlines()
    except Unreadable as problem:
        problems.append(str(problem))
        return []
    rows, odd, strange = [], [], set()
    for number, line in enumerate(lines, 1):
        cells = [cell.strip() for cell in line.split("&")]
        if not line.strip() or (number == 1 and cells[0] == "Category"):
            continue
        if len(cells) != 5 or not VIDEO.fullmatch(cells[1]) or not all(cell.isdecimal() for cell in cells[3:]):
            odd.append(f"line {number}: {line.strip()!r}")
        elif cells[0] not in EVENTS:
            strange.add(cells[0])
        else:
            rows.append(Annotation(cells[0], cells[1], int(cells[3]), int(cells[4])))
    problems.unexpected(f"{path}: expected rows like Bark&3jS8tWfLJxI&good&7&9", odd)
    problems.unexpected(f"{path}: expected the {len(EVENTS)} events of AVE", sorted(strange))
    if not (rows or odd or strange):
        problems.append(f"{path}: expected rows, found none")
    return rows


def parts_of(listed: Sequence[str | None], videos: Sequence[str]) -> list[Mapping[str, str]]:
    """Return the part of each row under each protocol.

    A video that the publisher's lists put into two parts is used in the later one alone, test before validation before
    train: so the test part is the publisher's, and nothing of it is learnt from.

    Args:
        listed: The publisher's part of each row; None where it names none.
        videos: The video of each row.
    """
    latest: dict[str, str | None] = {}
    for part, video in zip(listed, videos, strict=True):
        latest[video] = max(part, latest.get(video), key=(None, *PARTS).index)
    shares = {"train": 0.8, "validation": 0.1, "test": 0.1}  # close to the publisher's
    return [
        {"videos": part_by_hash(video, shares, salt="ave videos")}
        | (official_and_agm(part) if part is not None and part == latest[video] else {})
        for part, video in zip(listed, videos, strict=True)
    ]


def _find_segments(source: Path, problems: Problems) -> Clips | None:
    """Find the publisher's features: every second of every row is a sample."""
    arrays: dict[str, HDF5Array] = {}
    for file, shape in SHAPES.items():
        other = file == LABELS and not (source / file).exists() and (source / OTHER_LABELS).exists()
        array = problems.attempt(HDF5Array, source / (OTHER_LABELS if other else file), ARRAY)
        if array is not None:
            arrays[file] = array
            if array.shape[1:] != shape:
                expected = f"{ARRAY} of shape [N, {', '.join(map(str, shape))}]"
                problems.append(f"{array.path}: expected {expected}, found {list(array.shape)}")
    counts = {array.path.name: array.shape[0] if array.shape else 0 for array in arrays.values()}
    if len(set(counts.values())) > 1:
        problems.append(f"expected as many rows in every file, found {counts}")
    count = max(counts.values(), default=0)
    parts = _listed_parts(source, count, problems)
    videos = [f"row {row:04d}" for row in range(count)]
    if (source / ANNOTATIONS).exists():  # its lines are in the same order
        videos = [row.video for row in read_annotations(source / ANNOTATIONS, problems)]
        if len(videos) != count:
            problems.append(f"{source / ANNOTATIONS}: expected {count} rows as in the features, found {len(videos)}")
    if problems:
        return None
    marked = arrays[LABELS][:] != 0
    labels, label_counts, placed = marked.argmax(axis=2), marked.sum(axis=2), parts_of(parts, videos)
    listed = [
        Clip(f"{row:04d}/{second}", int(labels[row, second]), videos[row], placed[row])
        for row in range(count)
        for second in range(SECONDS)
    ]

    def read(number: int) -> dict[str, np.ndarray]:
        place = row, second = divmod(number, SECONDS)
        if label_counts[place] != 1:
            raise Unreadable(f"row {row}, second {second}: expected one label, found {label_counts[place]}")
        with np.errstate(over="ignore"):  # said below
            video = arrays[VISUAL][place].transpose(2, 0, 1).astype(np.float16)
            sound = arrays[SOUND][place].astype(np.float32)
        for file, array in ((VISUAL, video), (SOUND, sound)):
            if not np.isfinite(array).all():
                where = f"{arrays[file].path}, row {row}, second {second}"
                raise Unreadable(f"{where}: found NaN, infinity or too large numbers")
        return {"audio": sound, "video": np.ascontiguousarray(video)}

    return DecodedClips(listed, read, SECOND_CLASSES)


def _listed_parts(source: Path, count: int, problems: Problems) -> list[str | None]:
    """Return the part of each row, by the publisher's lists of row numbers."""
    parts: list[str | None] = [None] * count
    for part, file in ORDERS.items():
        order = problems.attempt(lambda path=source / file: HDF5Array(path, ORDER)[...].reshape(-1).tolist()) or []
        outside = [str(row) for row in order if not (float(row).is_integer() and 0 <= row < count)]
        problems.unexpected(f"{source / file}: expected whole numbers from 0 to {count - 1}", outside)
        rows = [] if outside else list(map(int, order))
        twice = [f"{row} (also in {parts[row]})" for row in rows if parts[row]]
        if twice or len(set(rows)) < len(rows):
            problems.append(f"{source / file}: expected every row once, found {some(twice) or 'some twice'}")
        for row in rows:
            parts[row] = part
    return parts


@final
class HDF5Array:
    """One array of numbers in an HDF5 file. Its rows are read when they are asked for: it may be larger than memory.

    Args:
        path: Of the file.
        name: Of the array in it.

    Raises:
        Unreadable: If there is no such array of numbers.
    """

    def __init__(self, path: Path, name: str) -> None:
        self.path, self.name = path, name
        self._opened: tuple[int, Any] | None = None  # by which process, and what
        with reading(path):
            import h5py

            with h5py.File(path, "r") as file:
                array = file.get(name) if isinstance(file.get(name, getlink=True), h5py.HardLink) else None
                if not isinstance(array, h5py.Dataset) or array.dtype.kind not in "fiub":
                    there = ", ".join(file) or "nothing"
                    raise Unreadable(f"{path}: expected an array of numbers called {name!r}; found {there}")
                if array.is_virtual or array.external:  # its numbers would come from files of the publisher's choice
                    raise Unreadable(f"{path}: expected the numbers of {name!r} in the file itself, found them outside")
                if array.shape and (why := memory_problem(ROW * array.shape[0])):  # rows that take no room in a file
                    raise Unreadable(f"{path}: {name!r} claims {array.shape[0]:,} rows; to list them {why}")
                self.shape = tuple(array.shape)

    def __getitem__(self, where: Any) -> np.ndarray:
        """Read the numbers at some place, as h5py takes it."""
        with reading(self.path):
            if where is Ellipsis and (why := memory_problem(self._array().nbytes)):
                raise Unreadable(f"{self.path}: {self.name!r} {why}")
            return np.asarray(self._array()[where])

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_opened": None}  # an open file does not travel to another process

    def _array(self) -> Any:
        import h5py

        process = os.getpid()
        if self._opened is None or self._opened[0] != process:  # two processes must not share a handle
            self._opened = (process, h5py.File(self.path, "r")[self.name])
        return self._opened[1]
