"""The command as it was typed, and lists with commas."""

from __future__ import annotations

import shlex
import sys

from equipoise.training.tracking import Trackers


def typed() -> str:
    """The command, to be recorded."""
    return shlex.join(["equipoise", *sys.argv[1:]])


def trackers_of(text: str) -> Trackers:
    """The trackers that ``--track`` names."""
    return Trackers(tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip())))
