"""CREMA-D where something is missing or broken: named, explained, and everything at once."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from data.sets.checks import write_list
from data.sets.made_cremad import SMALL, TEST, TRAIN, break_silence, fill, lay_out
from equipoise.data.sets.cremad import CREMAD
from equipoise.util.errors import Unreadable
from media.made import make_wav


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fill(lay_out(tmp_path_factory.mktemp("cremad"), TRAIN, TEST))


def break_size(path: Path) -> None:
    path.write_bytes(b"")


def break_kind(path: Path) -> None:
    path.write_text("no sound at all\n" * 50)


@pytest.mark.parametrize("harm", [break_silence, break_size, break_kind])
def test_a_broken_sound_is_found_by_reading_it(source: Path, tmp_path: Path, harm: Callable[[Path], None]) -> None:
    copy = shutil.copytree(source, tmp_path / "cremad")
    harm(copy / f"AudioWAV/{TRAIN[2]}.wav")
    clips = SMALL.open(copy)
    with pytest.raises(Unreadable, match=rf"{TRAIN[2]}\.wav"):
        clips.read(2)
    clips.read(3)


@pytest.mark.parametrize("harm", [break_size, break_kind])
def test_a_broken_video_is_found_by_reading_it(source: Path, tmp_path: Path, harm: Callable[[Path], None]) -> None:
    copy = shutil.copytree(source, tmp_path / "cremad")
    harm(copy / f"VideoFlash/{TRAIN[2]}.flv")
    with pytest.raises(Unreadable, match=rf"{TRAIN[2]}\.flv"):
        SMALL.open(copy).read(2)


def test_everything_wrong_is_said_at_once(tmp_path: Path) -> None:
    write_list(tmp_path / "train.csv", ["id,label", "1001_DFA_ANG_XX,SAD", "1002_DFA_ANG_XX,ANG", "1003_DFA_ANG_XX"])
    write_list(tmp_path / "test.csv", ["1002_DFA_ANG_XX,ANG"])
    make_wav(tmp_path / "AudioWAV/a voice.wav", 0.1)
    with pytest.raises(ValueError, match="cannot be read as cremad") as caught:
        CREMAD().open(tmp_path)
    for expected in (
        "expected 2 columns, found row 4",
        "expected the emotion of each clip's name beside it, found id,label, 1001_DFA_ANG_XX,SAD",
        "expected clips named like 1001_DFA_ANG_XX, found id, a voice",
        "expected no clip in both train.csv and test.csv, found 1002_DFA_ANG_XX",
        "expected pictures in one of the folders VideoFlash",
        "AudioWAV/1001_DFA_ANG_XX.wav",
    ):
        assert expected in str(caught.value)


def test_one_list_alone_is_a_problem(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"expected train\.csv and test\.csv, or neither"):
        CREMAD().open(lay_out(tmp_path, TRAIN, None))


def test_an_empty_folder_is_told_what_belongs_in_it(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "absent"):
        with pytest.raises(ValueError, match="expected sounds in one of the folders AudioWAV, Audio, audio"):
            CREMAD().open(folder)


def test_pointers_of_git_lfs_are_told_apart(tmp_path: Path) -> None:
    lay_out(tmp_path, TRAIN, TEST)
    pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n"
    (tmp_path / f"AudioWAV/{TRAIN[0]}.wav").write_text(pointer)
    with pytest.raises(ValueError, match=rf"{TRAIN[0]}\.wav: expected the file itself.*type: git lfs pull"):
        CREMAD().open(tmp_path)


def test_options_that_are_none_are_refused() -> None:
    with pytest.raises(ValueError, match=r"fps above 0, found 0; .*audio to be log-stft or fbank, found 'mfcc'"):
        CREMAD(audio="mfcc", fps=0)  # ty: ignore[invalid-argument-type]
