"""Names of clips cut out of YouTube videos: the video's eleven characters, and the second at which the clip starts."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple, final

from equipoise.data.sets.footage import Footage

NAME = re.compile(r"(?P<video>[A-Za-z0-9_-]{11})(_(?P<start>[0-9]{1,9})(_[0-9]{1,9})?)?")


@final
class Cut(NamedTuple):
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


def cut_of(name: str) -> Cut | None:
    """What a name such as -3Mwkq-7TV4_2, -3Mwkq-7TV4_000002 or -3Mwkq-7TV4_000002_000012 stands for, if anything."""
    found = NAME.fullmatch(name)
    if found is None:
        return None
    return Cut(found["video"], None if found["start"] is None else int(found["start"]))


def key_of(name: str) -> str:
    """The one spelling of a name; names of another kind stay as they are."""
    found = cut_of(name)
    return name if found is None else found.key


def keys_in(footage: Footage, cuts: Sequence[Cut]) -> list[str]:
    """Under which key the footage has each clip.

    A file named by the video alone stands for its one clip; where lists name two clips of a video, for neither.
    """
    clips = Counter(each.video for each in cuts)
    alone = {each.video for each in cuts if clips[each.video] == 1 and each.key not in footage}
    return [each.video if each.video in alone and each.video in footage else each.key for each in cuts]
