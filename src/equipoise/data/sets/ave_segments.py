"""AVE second by second: the features and labels that the publisher gives out, each second a sample."""

from __future__ import annotations

from pathlib import Path
from typing import final

import numpy as np

from equipoise.data.prepare.original import Clip, Clips
from equipoise.data.sets.ave_lists import ANNOTATIONS, EVENTS, parts_of, read_rows
from equipoise.data.sets.hdf import Table
from equipoise.data.sets.lists import some
from equipoise.util.errors import Unreadable

SECONDS = 10
CLASSES = (*EVENTS, "background")
SOUND, MAP = (128,), (512, 7, 7)  # VGGish; VGG-19, channels first as encoders read them
ARRAY, ORDER = "avadataset", "order"
SHAPES = {
    "visual_feature.h5": (SECONDS, 7, 7, 512),
    "audio_feature.h5": (SECONDS, 128),
    "right_labels.h5": (SECONDS, len(CLASSES)),
}
OTHER_LABELS = "labels.h5"  # the publisher's own; PSP's right_labels.h5 corrects it
ORDERS = {"train": "train_order.h5", "validation": "val_order.h5", "test": "test_order.h5"}


@final
class Segments(Clips):
    """Every second of every row.

    Args:
        tables: Features and labels, by the name of their file.
        parts: The publisher's part of each row; None where it names none.
        videos: The video of each row.
    """

    def __init__(self, tables: dict[str, Table], parts: list[str | None], videos: list[str]) -> None:
        self._video, self._sound = tables["visual_feature.h5"], tables["audio_feature.h5"]
        marked = tables["right_labels.h5"][:] != 0
        self._marks = marked.sum(axis=2)
        labels, placed = marked.argmax(axis=2), parts_of(parts, videos)
        self.listed = [
            Clip(f"{row:04d}/{second}", int(labels[row, second]), videos[row], placed[row])
            for row in range(len(videos))
            for second in range(SECONDS)
        ]

    def read(self, number: int) -> dict[str, np.ndarray]:
        """The features of one second."""
        row, second = divmod(number, SECONDS)
        if self._marks[row, second] != 1:
            raise Unreadable(f"row {row}, second {second}: expected one label, found {self._marks[row, second]}")
        with np.errstate(over="ignore"):  # said below
            seen = self._video[row, second].transpose(2, 0, 1).astype(np.float16)
            heard = self._sound[row, second].astype(np.float32)
        for table, array in ((self._video, seen), (self._sound, heard)):
            if not np.isfinite(array).all():
                raise Unreadable(f"{table.path}, row {row}, second {second}: found NaN, infinity or too large numbers")
        return {"audio": heard, "video": np.ascontiguousarray(seen)}


def open_segments(source: Path, problems: list[str]) -> Segments | None:
    """Find the files; None where something is wrong.

    Args:
        source: The folder they are in.
        problems: Where everything that is wrong is added.
    """
    found: list[str] = []
    tables = {}
    for file, shape in SHAPES.items():
        own = file != "right_labels.h5" or (source / file).exists() or not (source / OTHER_LABELS).exists()
        path = source / (file if own else OTHER_LABELS)
        try:
            tables[file] = table = Table(path, ARRAY)
        except Unreadable as problem:
            found.append(str(problem))
            continue
        if table.shape[1:] != shape:
            expected = ", ".join(map(str, shape))
            found.append(f"{path}: expected {ARRAY} of shape [N, {expected}], found {list(table.shape)}")
    counts = {table.path.name: table.shape[0] if table.shape else 0 for table in tables.values()}
    if len(set(counts.values())) > 1:
        found.append(f"expected as many rows in every file, found {counts}")
    rows = max(counts.values(), default=0)
    parts = _ordered(source, rows, found)
    videos = _videos(source, rows, found)
    problems += found
    return None if found else Segments(tables, parts, videos)


def _ordered(source: Path, rows: int, problems: list[str]) -> list[str | None]:
    """Which part each row is in, by the publisher's lists of row numbers."""
    parts: list[str | None] = [None] * rows
    for part, file in ORDERS.items():
        try:
            numbers = Table(source / file, ORDER)[...].reshape(-1).tolist()
        except Unreadable as problem:
            problems.append(str(problem))
            continue
        outside = [str(number) for number in numbers if not (float(number).is_integer() and 0 <= number < rows)]
        if outside:
            problems.append(f"{source / file}: expected whole numbers from 0 to {rows - 1}, found {some(outside)}")
            continue
        twice = [f"{int(number)} (also in {parts[int(number)]})" for number in numbers if parts[int(number)]]
        if twice or len(set(numbers)) < len(numbers):
            problems.append(f"{source / file}: expected every row once, found {some(twice) or 'some twice'}")
        for number in numbers:
            parts[int(number)] = part
    return parts


def _videos(source: Path, rows: int, problems: list[str]) -> list[str]:
    """The video of each row: by Annotations.txt where it lies beside, whose lines are in the same order."""
    if not (source / ANNOTATIONS).exists():
        return [f"row {row:04d}" for row in range(rows)]
    annotated = read_rows(source / ANNOTATIONS, problems)
    if len(annotated) != rows:
        problems.append(f"{source / ANNOTATIONS}: expected {rows} rows as in the features, found {len(annotated)}")
    return [row.video for row in annotated]
