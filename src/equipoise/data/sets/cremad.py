"""CREMA-D: 91 actors say twelve sentences in six emotions; the voice and the face.

Cao et al., "CREMA-D: Crowd-sourced Emotional Multimodal Actors Dataset" (2014). Sound and frames are made as OGM-GE and
AGM make them, or, with `audio="fbank"`, the sound as MMPareto does.
"""

import re
from bisect import bisect_left
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal, final

import numpy as np
import torch

from equipoise.data.prepare.original import (
    Clip,
    Clips,
    DecodedClips,
    Field,
    Problems,
    Protocol,
    by_group,
    find_list,
    part_by_hash,
    read_list,
)
from equipoise.data.sets.footage import FBANK_RATE, FBANK_SHAPE, AudioVisual, Footage, filter_bank, video_field
from equipoise.media.sound import tile
from equipoise.media.spectrogram import log_stft
from equipoise.util.errors import Unreadable

EMOTIONS = ("NEU", "HAP", "SAD", "FEA", "DIS", "ANG")  # the order of OGM-GE and AGM; MMPareto's is alphabetical
NAME = re.compile(r"([0-9]{4})_[A-Z]{3}_(NEU|HAP|SAD|FEA|DIS|ANG)_[A-Z]{1,2}")
RATE, SECONDS, N_FFT, HOP = 22_050, 3, 512, 353
LONGEST = 6  # seconds; one clip is longer, of which frames are kept all along
LIST_FOLDERS = ("CREMAD", "data/CREMAD", "data", "annotations")
SOUND_FOLDERS = ("AudioWAV", "Audio", "audio")
AGM = "agm-6027-669-745"
EMO_SUPERB = tuple(f"emo-superb-{number}" for number in range(1, 6))
LAST_ACTORS = (1018, 1036, 1054, 1072, 1091)  # of the five sets of EMO-SUPERB, the first of which begins with 1001
MISSING_IN_AGM = "1076_MTI_SAD_XX"  # without it the counts in the protocol's name come out
LFS_POINTER = b"version https://git-lfs"


@final
@dataclass(frozen=True)
class CREMAD(AudioVisual):
    """CREMA-D.

    Args:
        audio: "log-stft", log(|STFT| + 1e-7) of three seconds at 22,050 Hz, 257 × 188; or "fbank", a Kaldi filter bank
            of 1024 × 128 at 16 kHz.
        fps: Frames stored of each second of a video.
        size: Of the sides of a stored frame.
        frames: Frames that make an input: OGM-GE and AGM take 1, MMPareto 2, InfoReg and PMR 3.
        crop: Of the sides of an input.
    """

    audio: Literal["log-stft", "fbank"] = "log-stft"
    fps: int = 1
    size: int = 256
    frames: int = 2
    crop: int = 224

    name = "cremad"
    summary = "six emotions, voice and face of 91 actors, 7,442 clips"
    layout = """\
Expected the publisher's repository CheyneyComputerScience/CREMA-D, fetched with git lfs:
  VideoFlash/1001_DFA_ANG_XX.flv     or frames: Image-01-FPS/1001_DFA_ANG_XX/*.jpg
  AudioWAV/1001_DFA_ANG_XX.wav       or Audio/1001_DFA_ANG_XX.wav
  train.csv, test.csv                here or in CREMAD/: the lists of OGM-GE (data/CREMAD in its repository), with rows
                                     like 1001_DFA_ANG_XX,ANG. Without them only "actors" and "emo-superb-1" to
                                     "emo-superb-5" can be had."""
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
        "actors": by_group(
            "no actor in two parts: 70, 15 and 15 % of the actors, drawn by a hash of the actor's number"
        ),
        **{
            name: by_group(
                f"fold {number} of EMO-SUPERB, no actor in two parts: of its five sets of consecutive actors set"
                f" {number} tests and set {number % 5 + 1} validates; labels are intended emotions, not its votes",
                folds=False,
            )
            for number, name in enumerate(EMO_SUPERB, start=1)
        },
    }

    @property
    def fields(self) -> dict[str, Field]:
        """Describe a spectrogram or a filter bank, and frames."""
        sound = FBANK_SHAPE if self.audio == "fbank" else (1, N_FFT // 2 + 1, SECONDS * RATE // HOP + 1)
        return {"audio": Field(sound), "video": video_field(LONGEST * self.fps, self.size, self.frames, self.crop)}

    def find(self, source: Path, problems: Problems) -> Clips | None:
        """Find the clips: those of the lists in their order, then those that no list names."""
        train, test = self._lists(source, problems)
        footage = self._footage(source, problems)
        names = list(dict.fromkeys([*train, *test, *sorted({*footage.sounds, *footage.videos, *footage.pictures})]))
        strange = [name for name in names if not NAME.fullmatch(name)]
        problems.unexpected("expected clips named like 1001_DFA_ANG_XX", strange)
        problems += footage.ambiguous(names)
        problems.unexpected("expected no clip in both train.csv and test.csv", sorted(set(train) & set(test)))
        if problems:
            return None
        return DecodedClips(_clips(names, train, test), lambda number: self.decode(footage, names[number]), EMOTIONS)

    def decode(self, footage: Footage, key: str) -> dict[str, np.ndarray]:
        """Read the arrays of one clip; a spectrogram is of three seconds, a shorter clip repeated."""
        wave = footage.wave(key, FBANK_RATE if self.audio == "fbank" else RATE, track=False)
        if not np.any(wave != wave[0]):
            raise Unreadable(f"{footage.sounds[key]}: expected a voice, found silence")
        if self.audio == "fbank":
            sound = filter_bank(wave, key)
        else:
            sound = log_stft(torch.from_numpy(tile(wave, SECONDS * RATE)), N_FFT, HOP).unsqueeze(0).numpy()
        return {"audio": sound, "video": footage.frames(key, self.fps, LONGEST * self.fps, self.size)}

    def _lists(self, source: Path, problems: Problems) -> list[list[str]]:
        """Read the clips of train.csv and of test.csv; none where there are no lists."""
        paths = [find_list(source, name, LIST_FOLDERS) for name in ("train.csv", "test.csv")]
        if len(there := [path for path in paths if path]) == 1:
            problems.append(f"expected train.csv and test.csv, or neither, found {there[0]} only")
        lists = []
        for path in paths:
            rows = read_list(path, 2, problems) if path else []
            wrong = [",".join(row) for row in rows if row[0].split("_")[2:3] != [row[1]]]
            problems.unexpected(f"{path}: expected the emotion of each clip's name beside it", wrong)
            lists.append(list(dict.fromkeys(row[0] for row in rows)))
        return lists

    def _footage(self, source: Path, problems: Problems) -> Footage:
        pictures = f"Image-{self.fps:02d}-FPS"
        picture_folders = ("VideoFlash", pictures, f"visual/{pictures}", "visual")
        folders = []
        for kind, names in (("sounds", SOUND_FOLDERS), ("pictures", picture_folders)):
            there = [source / name for name in names if (source / name).is_dir()]
            folders += there[:1]
            if not there:
                expected = f"expected {kind} in one of the folders {', '.join(names)}"
                problems.append(f"{expected}; found none of them in {source}")
        footage = Footage.find(folders)
        for path in (*sorted(footage.sounds.values())[:1], *sorted(footage.videos.values())[:1]):
            with path.open("rb") as file:
                if file.read(len(LFS_POINTER)) == LFS_POINTER:
                    problems.append(f"{path}: expected the file itself, found git's pointer to it; type: git lfs pull")
        return footage


def _clips(names: list[str], train: list[str], test: list[str]) -> list[Clip]:
    parts: dict[str, dict[str, str]] = {name: {} for name in names}
    for name in train:
        parts[name]["official"] = part_by_hash(name, {"train": 0.9, "validation": 0.1}, "cremad official")
    for name in test:
        parts[name]["official"] = "test"
    for listed, head in ((train, "train"), (test, "validation")):
        # AGM's loader cuts what it finds; with the one name left out, the cut no longer depends on which files exist.
        used = [name for name in listed if name != MISSING_IN_AGM]
        for number, name in enumerate(used):
            parts[name][AGM] = head if number < int(len(used) * 0.9) else "test"
    clips = []
    for name in names:
        actor, _, emotion, _ = name.split("_")
        by_actor = part_by_hash(actor, {"train": 0.7, "validation": 0.15, "test": 0.15}, "cremad actors")
        parts[name] |= {"actors": by_actor, **_emo_superb(int(actor))}
        clips.append(Clip(name, EMOTIONS.index(emotion), actor, parts[name]))
    return clips


def _emo_superb(actor: int) -> dict[str, str]:
    """Return the part that an actor has in each fold of EMO-SUPERB; none for a number that is no actor's."""
    if not 1001 <= actor <= LAST_ACTORS[-1]:
        return {}
    own = bisect_left(LAST_ACTORS, actor)
    return {name: {0: "test", 1: "validation"}.get((own - fold) % 5, "train") for fold, name in enumerate(EMO_SUPERB)}
