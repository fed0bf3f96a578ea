"""CREMA-D in small: the publisher's folders, lists and names, with clips of known content."""

from __future__ import annotations

import random
from fractions import Fraction
from pathlib import Path

import numpy as np

from data.sets.checks import write_list
from equipoise.data.sets.cremad import CREMAD, EMOTIONS
from media.made import make_video, make_wav

FLASH = Fraction(30_000, 1001)  # frames per second of the publisher's videos
SENTENCES = ("IEO", "TIE", "IOM", "IWW", "TAI", "MTI", "IWL", "ITH", "DFA", "ITS", "TSI", "WSI")
TRAIN = ["1001_DFA_ANG_XX", "1002_IEO_HAP_LO", "1003_TIE_SAD_XX", "1001_IOM_NEU_XX", "1040_ITH_SAD_X"]
TEST = ["1002_IWW_DIS_XX", "1003_TAI_FEA_XX"]
SMALL = CREMAD(size=32, crop=16)


def rows(names: list[str]) -> list[str]:
    return [f"{name},{name.split('_')[2]}" for name in names]


def lay_out(source: Path, train: list[str] | None, test: list[str] | None) -> Path:
    """The folders and lists alone, as they lie before any clip is fetched."""
    for folder in ("AudioWAV", "VideoFlash"):
        (source / folder).mkdir(parents=True, exist_ok=True)
    for name, clips in (("train.csv", train), ("test.csv", test)):
        if clips is not None:
            write_list(source / "CREMAD" / name, rows(clips), mark=True)  # public copies of lists have one
    return source


def fill(source: Path) -> Path:
    """Every clip of both lists: 2.3 seconds of a tone, and of frames that say their number."""
    for number, name in enumerate([*TRAIN, *TEST]):
        make_wav(source / f"AudioWAV/{name}.wav", 2.3, 16_000, hertz=200 + 50 * number)
        make_video(source / f"VideoFlash/{name}.flv", 2.3, FLASH, size=(24, 32))
    return source


def every_clip() -> list[str]:
    """As many names as the data set has, 7,442, one of them the clip that cannot be used; in a random order."""
    names = [f"{1001 + a}_{s}_{e}_XX" for a in range(91) for s in SENTENCES for e in EMOTIONS]
    names += [f"{1001 + a}_IEO_{e}_LO" for a in range(91) for e in EMOTIONS]
    names += [f"{1001 + a}_IEO_{e}_HI" for a in range(91) for e in EMOTIONS]
    names.remove("1076_MTI_SAD_XX")
    random.Random(0).shuffle(names)
    names = names[:7_441]
    names.insert(3_000, "1076_MTI_SAD_XX")
    return names


def break_silence(path: Path) -> None:
    make_wav(path, wave=np.zeros(20_000))
