"""The lists of AVE: which event a video shows and when, and which part it belongs to."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from equipoise.data.sets.hashing import cut
from equipoise.data.sets.lists import some
from equipoise.util.errors import Unreadable
from equipoise.util.files import reading

EVENTS = (  # in the order of Annotations.txt, which is also that of the columns of the labels
    "Church bell",
    "Male speech, man speaking",
    "Bark",
    "Fixed-wing aircraft, airplane",
    "Race car, auto racing",
    "Female speech, woman speaking",
    "Helicopter",
    "Violin, fiddle",
    "Flute",
    "Ukulele",
    "Frying (food)",
    "Truck",
    "Shofar",
    "Motorcycle",
    "Acoustic guitar",
    "Train horn",
    "Clock",
    "Banjo",
    "Goat",
    "Baby cry, infant cry",
    "Bus",
    "Chainsaw",
    "Cat",
    "Horse",
    "Toilet flush",
    "Rodents, rats, mice",
    "Accordion",
    "Mandolin",
)
ANNOTATIONS = "Annotations.txt"
LISTS = {"train": "trainSet.txt", "validation": "valSet.txt", "test": "testSet.txt"}
SHARES = {"train": 0.8, "validation": 0.1, "test": 0.1}  # close to the publisher's
VIDEO = re.compile(r"[A-Za-z0-9_-]+")


class Row(NamedTuple):
    """One line of a list: an event, the video it is in, and the seconds from and to which it lasts."""

    event: str
    video: str
    start: int
    end: int


def read_rows(path: Path, problems: list[str]) -> list[Row]:
    """The rows of a list, with or without a header: event, video, quality, start and end, parted by &.

    Args:
        path: Of the list.
        problems: Where everything that is wrong is added.
    """
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
            rows.append(Row(cells[0], cells[1], int(cells[3]), int(cells[4])))
    if odd:
        problems.append(f"{path}: expected rows like Bark&3jS8tWfLJxI&good&7&9, found {some(odd)}")
    if strange:
        problems.append(f"{path}: expected the {len(EVENTS)} events of AVE, found {some(sorted(strange))}")
    if not rows and not odd and not strange:
        problems.append(f"{path}: expected rows, found none")
    return rows


def parts_of(listed: Sequence[str | None], videos: Sequence[str]) -> list[Mapping[str, str]]:
    """The part of each row under each protocol.

    A video that the publisher's lists put into two parts is used in the later one alone, test before validation before
    train: so the test part is the publisher's, and nothing of it is learnt from.

    Args:
        listed: The publisher's part of each row; None where it names none.
        videos: The video of each row.
    """
    order = [None, *LISTS]
    latest: dict[str, str | None] = {}
    for part, video in zip(listed, videos, strict=True):
        latest[video] = max(part, latest.get(video), key=order.index)
    found = []
    for part, video in zip(listed, videos, strict=True):
        parts = {"videos": cut(video, SHARES, salt="ave videos")}
        if part is not None and part == latest[video]:
            parts["official"] = part
            if part != "test":
                parts["agm-valid"] = "train" if part == "train" else "test"
        found.append(parts)
    return found
