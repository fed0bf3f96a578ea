"""The interface of a published data set: the layout of its files, their meaning, and how it is cut into parts.

One abstract pair: an `Original` knows the publisher's layout, and opening a folder of it gives the `Clips` found there.
Preparing, splitting and training read nothing else.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Literal, final

import numpy as np

from equipoise.data.views import View


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
