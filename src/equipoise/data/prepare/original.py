"""The interface of a published data set: the layout of its files, their meaning, and how it is cut into parts.

One abstract pair: an `Original` knows the publisher's layout, and opening a folder of it gives the `Clips` found there.
Preparing, splitting and training read nothing else.
"""

import csv
import hashlib
import io
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Literal, cast, final

import numpy as np

from equipoise.data.views import View
from equipoise.util.errors import BadInput, Unreadable, raise_all


@final
@dataclass(frozen=True)
class Field:
    """The storage of one modality of a clip.

    Args:
        shape: Of one sample. Where `ragged`, its first axis is time and as long as the longest sample may be.
        dtype: "uint8", "int16", "float16" or "float32".
        ragged: Whether samples may be shorter: they are padded with zeros, and their lengths stored beside them.
        view: What turns stored samples into the input of an encoder; None where they are that already.
    """

    shape: tuple[int, ...]
    dtype: Literal["uint8", "int16", "float16", "float32"] = "float32"
    ragged: bool = False
    view: View | None = None


@final
@dataclass(frozen=True)
class Clip:
    """One sample.

    Args:
        id: The publisher's name for it, unique in the data set.
        label: Its class.
        group: Who or what it comes from (person, speaker, video): samples of a group are alike.
        parts: Under each protocol that uses it, the part it belongs to: "train", "validation" or "test".
    """

    id: str
    label: int
    group: str
    parts: Mapping[str, str]


@final
@dataclass(frozen=True)
class Protocol:
    """A way to cut a data set into parts.

    Args:
        about: One line: how the parts are drawn, who published it, and what selection sees.
        by_group: Whether no group is in two parts.
        selects_on_test: Whether the published protocol chooses epochs on what it then reports.
        folds: Whether its groups may be cut anew into folds: not where the parts differ by more than their groups.
    """

    about: str
    by_group: bool = False
    selects_on_test: bool = False
    folds: bool = True


class Clips(ABC):
    """The clips of an opened folder."""

    listed: Sequence[Clip]
    """All that the publisher's lists name, in their order, whether or not their files are there."""

    @abstractmethod
    def read(self, number: int) -> dict[str, np.ndarray]:
        """Decode one clip: per modality an array of its field's shape and type (ragged ones as long as they are).

        Raises:
            Unreadable: If a file is missing or broken; the message names the file and says why.
        """


class Original(ABC):
    """A publisher's layout of a data set. A subclass is a frozen dataclass; its attributes are options of preparing."""

    name: ClassVar[str]
    summary: ClassVar[str]
    layout: ClassVar[str]
    """The files that the folder has to hold, and their origin: printed where they are missing."""
    protocols: ClassVar[dict[str, Protocol]]
    """By name; the first is what is used where none is named."""

    @property
    @abstractmethod
    def fields(self) -> dict[str, Field]:
        """The storage of each modality, by name."""

    @abstractmethod
    def open(self, source: Path) -> Clips:
        """Return the clips of a folder.

        Raises:
            BadInput: If the folder is not laid out as expected: one message with everything that is wrong.
        """

    @abstractmethod
    def classes(self, clips: Clips) -> tuple[str, ...]:
        """Return the names of the classes, in an order that never depends on which files exist."""


@final
@dataclass
class InMemory(Clips):
    """Clips whose arrays are at hand, such as those of one big file.

    Args:
        listed: The clips.
        arrays: Per modality one array per clip.
    """

    listed: Sequence[Clip]
    arrays: Mapping[str, Sequence[np.ndarray]] = field(default_factory=dict)

    def read(self, number: int) -> dict[str, np.ndarray]:
        """Return the arrays of one clip."""
        return {name: np.asarray(array[number]) for name, array in self.arrays.items()}


SHOWN = 5  # of a kind, before the rest is only counted
by_group = partial(Protocol, by_group=True)


@final
class Problems(list[str]):
    """The problems of a publisher's folder, collected to be told in one message."""

    def unexpected(self, expected: str, items: Sequence[str]) -> None:
        """Add a problem that shows the first few of these items; none where there are no items."""
        if items:
            self.append(f"{expected}, found {some(items)}")

    def attempt(self, read: Callable[..., Any], *arguments: Any) -> Any:
        """Return what a reader returns; None where it fails, and the reason is added."""
        try:
            return read(*arguments)
        except (BadInput, Unreadable) as problem:
            self.append(str(problem))


@final
@dataclass
class DecodedClips(Clips):
    """Clips whose arrays a function reads by number.

    Args:
        listed: The clips.
        decode: Reads the arrays of one clip.
        classes: Names of the classes.
    """

    listed: Sequence[Clip]
    decode: Callable[[int], dict[str, np.ndarray]]
    classes: tuple[str, ...]

    def read(self, number: int) -> dict[str, np.ndarray]:
        """Read the arrays of one clip."""
        return self.decode(number)


class Published(Original):
    """A published data set whose folder is opened, or refused in one message with every problem."""

    @abstractmethod
    def find(self, source: Path, problems: Problems) -> Clips | None:
        """Find the clips of a folder, and add everything that is wrong; None only where something is."""

    @final
    def open(self, source: Path) -> Clips:
        """Find the clips of a folder.

        Raises:
            BadInput: With everything that is wrong, and the expected layout.
        """
        problems = Problems()
        clips = self.find(Path(source), problems)
        raise_all(problems, f"{source} cannot be read as {self.name}:", self.layout)
        return cast("Clips", clips)

    @final
    def classes(self, clips: Clips) -> tuple[str, ...]:
        """Return the names of the classes, whichever clips are there."""
        return getattr(clips, "classes", ())


def some(items: Sequence[str]) -> str:
    """Join the first few, and say how many more there are."""
    shown = ", ".join(items[:SHOWN])
    return shown if len(items) <= SHOWN else f"{shown} and {len(items) - SHOWN} more"


def find_list(source: Path, name: str, folders: Sequence[str]) -> Path | None:
    """Return the list of that name, in the folder itself or in the first of its subfolders that has it."""
    paths = (source / folder / name for folder in ("", *folders))
    return next((path for path in paths if path.is_file()), None)


def read_list(path: Path, columns: int, problems: Problems) -> list[list[str]]:
    """Read the rows of a list without a header, blank lines left out, cells stripped.

    Args:
        path: Text in UTF-8, with or without a byte order mark; commas between cells, quotes around a cell that has one.
        columns: How many cells a row has, at least.
        problems: Where everything that is wrong is added.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
        rows = [[cell.strip() for cell in row] for row in csv.reader(io.StringIO(text, newline=""), strict=True)]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        problems.append(f"{path}: expected a list as plain text, found something else ({error})")
        return []
    filled = [(number, row) for number, row in enumerate(rows, 1) if any(row)]
    short = [f"row {number}: {','.join(row)!r}" for number, row in filled if len(row) < columns]
    problems.unexpected(f"{path}: expected {columns} columns", short)
    return [row for _, row in filled if len(row) >= columns]


def part_by_hash(key: str, shares: Mapping[str, float], salt: str = "") -> str:
    """Draw the part of a sample, or of its group, by its name alone: not by which files exist, nor by their order.

    The first 64 bits of sha256("salt/key") are a point in [0, 1), where the shares lie side by side in their order.

    Args:
        key: Name of the sample or of the group: whatever must not be split.
        shares: How much of the whole each part gets; they add up to one.
        salt: Names the split, so that two splits of the same keys are independent.

    Example:
        >>> part_by_hash("actor 1001", {"train": 0.8, "validation": 0.1, "test": 0.1})
        'train'
    """
    if not shares or min(shares.values()) < 0 or not math.isclose(math.fsum(shares.values()), 1.0):
        raise ValueError(f"Shares must be at least 0 and add up to 1; found {dict(shares)}.")
    digest = hashlib.sha256(f"{salt}/{key}".encode("utf-8", "surrogateescape")).digest()
    point, end = int.from_bytes(digest[:8], "big") / 2**64, 0.0
    for part, share in shares.items():
        end += share
        if point < end:
            return part
    return [part for part, share in shares.items() if share > 0][-1]  # only rounding of the sum comes here


def official_and_agm(part: str) -> dict[str, str]:
    """Return a sample's part under "official" and, but for the test part, under "agm-valid".

    AGM's code reports the validation part on which it also selects the epoch, and leaves the test part unused.
    """
    agm = {"train": "train", "validation": "test"}
    return {"official": part} | ({"agm-valid": agm[part]} if part in agm else {})
