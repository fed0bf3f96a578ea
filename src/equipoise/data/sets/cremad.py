"""CREMA-D: 91 actors say twelve sentences in six emotions; the voice and the face.

Cao et al., "CREMA-D: Crowd-sourced Emotional Multimodal Actors Dataset" (2014). Sound and frames are made as OGM-GE and
AGM make them, or, with `audio="fbank"`, the sound as MMPareto does.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal, final

import numpy as np

from equipoise.data.prepare.original import Clip, Clips, Field, Original, Protocol
from equipoise.data.sets.filterbank import RATE, SHAPE, filter_bank
from equipoise.data.sets.footage import Footage, Recordings, positive
from equipoise.data.sets.hashing import cut
from equipoise.data.sets.lists import find_list, refuse, rows_of, some
from equipoise.data.views import VideoFrames
from equipoise.util.errors import BadInput, Unreadable

EMOTIONS = ("NEU", "HAP", "SAD", "FEA", "DIS", "ANG")  # the order of OGM-GE and AGM; MMPareto's is alphabetical
NAME = re.compile(r"(?P<actor>[0-9]{4})_[A-Z]{3}_(?P<emotion>NEU|HAP|SAD|FEA|DIS|ANG)_[A-Z]{1,2}")
HERTZ, SECONDS, N_FFT, HOP = 22_050, 3, 512, 353
LONGEST = 6  # seconds; one clip is longer, of which frames are kept all along
LIST_FOLDERS = ("CREMAD", "data/CREMAD", "data", "annotations")
SOUND_FOLDERS = ("AudioWAV", "Audio", "audio")
AGM = "agm-6027-669-745"
MISSING_IN_AGM = "1076_MTI_SAD_XX"  # without it the counts in the protocol's name come out
LFS_POINTER = b"version https://git-lfs"


@final
@dataclass(frozen=True)
class CREMAD(Original):
    """CREMA-D.

    Args:
        audio: "log-stft", log(|STFT| + 1e-7) of three seconds at 22,050 Hz, 257 × 188; or "fbank", a Kaldi filter bank
            of 1024 × 128 at 16 kHz.
        fps: Frames kept of each second of a video.
        size: Of the sides of a kept frame.
        frames: Frames that make an input: OGM-GE and AGM take 1, MMPareto 2, InfoReg and PMR 3.
        crop: Of the sides of an input.
    """

    audio: Literal["log-stft", "fbank"] = "log-stft"
    fps: int = 1
    size: int = 256
    frames: int = 2
    crop: int = 224

    name: ClassVar[str] = "cremad"
    summary: ClassVar[str] = "six emotions, voice and face of 91 actors, 7,442 clips"
    layout: ClassVar[str] = """\
Expected the publisher's repository CheyneyComputerScience/CREMA-D, fetched with git lfs:
  VideoFlash/1001_DFA_ANG_XX.flv     or frames: Image-01-FPS/1001_DFA_ANG_XX/*.jpg
  AudioWAV/1001_DFA_ANG_XX.wav       or Audio/1001_DFA_ANG_XX.wav
  train.csv, test.csv                here or in CREMAD/: the lists of OGM-GE (data/CREMAD in its repository), with rows
                                     like 1001_DFA_ANG_XX,ANG. Without them only the protocol "actors" can be had."""
    protocols: ClassVar[dict[str, Protocol]] = {
        "official": Protocol(
            "train.csv and test.csv of OGM-GE (6,698 and 744 clips); validation is a tenth of train.csv, drawn by a"
            " hash of the clip's name, as no validation list was published; all 91 actors are in every part"
        ),
        AGM: Protocol(
            "AGM's cut of the same lists by order: train the first 90 % of train.csv, validation the first 90 % of"
            " test.csv, test the last 10 % of both, as the paper of MIMO names them; AGM's code chooses the epoch on"
            " those 669 and reports the same 669; all 91 actors are in every part",
            selects_on_test=True,
        ),
        "actors": Protocol(
            "no actor in two parts: 70, 15 and 15 % of the actors, drawn by a hash of the actor's number", by_group=True
        ),
    }

    def __post_init__(self) -> None:
        sides = {"fps": self.fps, "size": self.size, "frames": self.frames, "crop": self.crop}
        problems = positive(sides)
        if self.audio not in ("log-stft", "fbank"):
            problems.append(f"expected audio to be log-stft or fbank, found {self.audio!r}")
        if problems:
            raise BadInput(f"cremad: {'; '.join(problems)}")

    @property
    def fields(self) -> dict[str, Field]:
        """A spectrogram or a filter bank, and frames."""
        heard = SHAPE if self.audio == "fbank" else (1, N_FFT // 2 + 1, SECONDS * HERTZ // HOP + 1)
        view = VideoFrames(self.frames, self.crop)
        seen = Field((self._kept, 3, self.size, self.size), "uint8", ragged=True, view=view)
        return {"audio": Field(heard), "video": seen}

    def open(self, source: Path) -> Recordings:
        """Find the clips: those of the lists in their order, then those that no list names."""
        problems: list[str] = []
        train, test = self._lists(source, problems)
        footage = self._footage(source, problems)
        names = list(dict.fromkeys([*train, *test, *sorted({*footage.sounds, *footage.videos, *footage.pictures})]))
        if strange := [name for name in names if not NAME.fullmatch(name)]:
            problems.append(f"expected clips named like 1001_DFA_ANG_XX, found {some(strange)}")
        problems += footage.ambiguous(names)
        if both := sorted(set(train) & set(test)):
            problems.append(f"expected no clip in both train.csv and test.csv, found {some(both)}")
        refuse(self, source, problems)
        listed = _clips(names, train, test)
        return Recordings(listed, names, footage, EMOTIONS, self.decode)

    def classes(self, clips: Clips) -> tuple[str, ...]:  # noqa: ARG002 (they are the same for any clips)
        """The emotions as OGM-GE and AGM number them."""
        return EMOTIONS

    def decode(self, footage: Footage, key: str) -> dict[str, np.ndarray]:
        """The arrays of one clip."""
        rate = RATE if self.audio == "fbank" else HERTZ
        wave = footage.wave(key, rate, track=False)
        if not np.any(wave != wave[0]):
            raise Unreadable(f"{footage.sounds[key]}: expected a voice, found silence")
        heard = filter_bank(wave, key) if self.audio == "fbank" else _spectrogram(wave)
        return {"audio": heard, "video": footage.frames(key, self.fps, self._kept, self.size)}

    @property
    def _kept(self) -> int:
        return LONGEST * self.fps

    def _lists(self, source: Path, problems: list[str]) -> tuple[list[str], list[str]]:
        """The clips of train.csv and of test.csv; none where there are no lists."""
        found = {name: find_list(source, name, LIST_FOLDERS) for name in ("train.csv", "test.csv")}
        if len(there := [str(path) for path in found.values() if path]) == 1:
            problems.append(f"expected train.csv and test.csv, or neither, found {there[0]} only")
        lists = []
        for path in found.values():
            rows = [] if path is None else rows_of(path, 2, problems)
            if wrong := [",".join(row) for row in rows if row[0].split("_")[2:3] != [row[1]]]:
                problems.append(f"{path}: expected the emotion of each clip's name beside it, found {some(wrong)}")
            lists.append(list(dict.fromkeys(row[0] for row in rows)))
        return lists[0], lists[1]

    def _footage(self, source: Path, problems: list[str]) -> Footage:
        pictures = f"Image-{self.fps:02d}-FPS"
        where = {
            "sounds": [source / name for name in SOUND_FOLDERS],
            "pictures": [source / name for name in ("VideoFlash", pictures, f"visual/{pictures}", "visual")],
        }
        there = {kind: [folder for folder in folders if folder.is_dir()][:1] for kind, folders in where.items()}
        for kind, folders in where.items():
            if not there[kind]:
                names = ", ".join(str(folder.relative_to(source)) for folder in folders)
                problems.append(f"expected {kind} in one of the folders {names}; found none of them in {source}")
        footage = Footage.find([*there["sounds"], *there["pictures"]])
        for path in (*sorted(footage.sounds.values())[:1], *sorted(footage.videos.values())[:1]):
            with path.open("rb") as file:
                if file.read(len(LFS_POINTER)) == LFS_POINTER:
                    problems.append(f"{path}: expected the file itself, found git's pointer to it; type: git lfs pull")
        return footage


def _clips(names: list[str], train: list[str], test: list[str]) -> list[Clip]:
    parts: dict[str, dict[str, str]] = {name: {} for name in names}
    for name in train:
        parts[name]["official"] = cut(name, {"train": 0.9, "validation": 0.1}, "cremad official")
    for name in test:
        parts[name]["official"] = "test"
    for listed, head in ((train, "train"), (test, "validation")):
        # AGM's loader cuts what it finds; with the one name left out, the cut no longer depends on which files exist.
        found = [name for name in listed if name != MISSING_IN_AGM]
        border = int(len(found) * 0.9)
        for number, name in enumerate(found):
            parts[name][AGM] = head if number < border else "test"
    clips = []
    for name in names:
        match = NAME.fullmatch(name)
        said: dict[str, Any] = match.groupdict() if match else {}
        by_actor = cut(said["actor"], {"train": 0.7, "validation": 0.15, "test": 0.15}, "cremad actors")
        label = EMOTIONS.index(said["emotion"])
        clips.append(Clip(name, label, said["actor"], {**parts[name], "actors": by_actor}))
    return clips


def _spectrogram(wave: np.ndarray) -> np.ndarray:
    """Three seconds, the clip said over and over, [1, 257, 188]."""
    import torch

    from equipoise.media.sound import tile
    from equipoise.media.spectrogram import log_stft

    return log_stft(torch.from_numpy(tile(wave, SECONDS * HERTZ)), N_FFT, HOP).unsqueeze(0).numpy()
