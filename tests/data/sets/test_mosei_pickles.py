"""CMU-MOSEI from the pickles that most others use: padding, labels, and videos that stay whole."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from data.sets.checks import check_arrays, check_listing, counts, groups_in_two_parts
from data.sets.pickled import check_broken_pickles, check_nothing_runs, write_pickle
from equipoise.data.prepare.prepare import check_listing as refuse_listing
from equipoise.data.sets.mosei import MOSEI, PICKLES, video_of
from equipoise.util.errors import Unreadable


@pytest.mark.parametrize(
    ("key", "video"),
    [
        (("--qXJuDtHPw[5]",), "--qXJuDtHPw"),
        (("100178[12]",), "100178"),
        (("abc_d_EF-12$_$7",), "abc_d_EF-12"),
        (("abc_d_EF-12_7",), "abc_d_EF-12"),
        (("abcdefghijk",), "abcdefghijk"),
        (("abcdefghijk", "1.25", "7.5"), "abcdefghijk"),
        (("[3]",), "[3]"),
    ],
)
def test_the_video_is_read_off_the_id(key: tuple[str, ...], video: str) -> None:
    assert video_of(key) == video


def keys(version: str, videos: list[str]) -> np.ndarray:
    if version == "raw":
        return np.array([f"{video}[{number}]" for number, video in enumerate(videos)])
    return np.array([[video, f"{number}.5", f"{number + 4}.0"] for number, video in enumerate(videos)])


def common(version: str, videos: dict[str, list[str]] | None = None) -> dict[str, Any]:
    """Samples of four rows, with three rows of zeros in front and one behind."""
    videos = videos or {"train": ["v", "v", "w"], "valid": ["x", "y"], "test": ["z"]}
    shapes = PICKLES[version][1]
    content: dict[str, Any] = {}
    for split, several in videos.items():
        count = len(several)
        felt = np.resize([-2.0, 0.0, 1.5], count).reshape(count, 1, 1)
        content[split] = {
            "labels": np.concatenate([felt, np.ones((count, 1, 6))], axis=2) if version == "raw" else felt,
            "id": keys(version, several),
        }
        for number, (modality, (_, width)) in enumerate(shapes.items(), 1):
            array = np.zeros((count, 8, width), dtype=np.float32)
            array[:, 3:7] = 10 * number + np.arange(4)[:, None]
            content[split][modality] = array
    return content


@pytest.mark.parametrize("version", PICKLES)
def test_the_common_pickles(version: Any, tmp_path: Path) -> None:
    original = MOSEI(version=version)
    content = common(version)
    content["train"]["audio"][0, 4, 2] = -np.inf
    path = write_pickle(tmp_path / PICKLES[version][0], content)
    clips = original.open(tmp_path)
    check_listing(original, clips)
    assert original.open(path).listed == clips.listed
    assert [clip.label for clip in clips.listed] == [0, 1, 1, 0, 1, 0]
    assert [clip.group for clip in clips.listed] == ["v", "v", "w", "x", "y", "z"]
    assert clips.listed[0].id == ("v[0]" if version == "raw" else "v/0.5/4.0")
    assert counts(clips.listed, "official") == {"train": 3, "validation": 2, "test": 1}
    arrays = clips.read(0)
    check_arrays(original, arrays)
    tail = [] if version == "unaligned" else [0]  # a row of zeros at the end may be a word like any other
    assert arrays["vision"][:, 0].tolist() == [10, 11, 12, 13, *tail]
    assert arrays["text"][:, 299].tolist() == [30, 31, 32, 33, *tail]
    assert arrays["audio"][:, 2].tolist() == [20, 0, 22, 23, *tail]
    assert [clip.label for clip in MOSEI(version=version, neutral="negative").open(tmp_path).listed] == [
        0,
        0,
        1,
        0,
        0,
        0,
    ]
    assert len(MOSEI(version=version, neutral="drop").open(tmp_path).listed) == 4


def test_separate_times_are_trimmed_separately(tmp_path: Path) -> None:
    content = common("unaligned")
    train = content["train"]
    train["vision"] = np.zeros((3, 500, 35))
    train["vision"][0, 100:400] = 1
    train["audio"][0] = 0  # a sensor that saw nothing keeps one step
    train["text"][1] = 0
    write_pickle(tmp_path / "mosei_senti_data_noalign.pkl", content)
    clips = MOSEI(version="unaligned").open(tmp_path)
    arrays = clips.read(0)
    assert {name: array.shape for name, array in arrays.items()} == {
        "vision": (300, 35),
        "audio": (1, 74),
        "text": (4, 300),
    }
    assert (arrays["audio"] == 0).all()
    with pytest.raises(Unreadable, match=r"noalign\.pkl, train, row 1: the text sums to 0"):
        clips.read(1)


@pytest.mark.parametrize("version", PICKLES)
def test_no_common_pickle_runs(version: Any, tmp_path: Path) -> None:
    path = write_pickle(tmp_path / PICKLES[version][0], common(version))
    check_nothing_runs(path, lambda: MOSEI(version=version).open(tmp_path))
    check_broken_pickles(path, lambda: MOSEI(version=version).open(tmp_path))


def test_a_pickle_of_another_version_is_refused(tmp_path: Path) -> None:
    write_pickle(tmp_path / "mosei_raw.pkl", common("aligned"))
    with pytest.raises(
        ValueError, match=r"train, vision: expected numbers \[N, up to 50, 713\], found float32 \[3, 8, 35\]"
    ):
        MOSEI(version="raw").open(tmp_path)


def test_videos_stay_whole_and_where_they_are(tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    names = [f"video{number:04d}" for number in range(400)]
    several = [names[number] for number in draw.integers(0, 400, 3000)]
    videos = {"train": several[:2000], "valid": several[2000:2500], "test": several[2500:]}
    content = {
        split: {"labels": np.zeros((len(each), 1, 1)), "id": keys("aligned", each)} for split, each in videos.items()
    }
    for split in content.values():
        split |= {name: np.ones((len(split["labels"]), 1, width)) for name, (_, width) in PICKLES["aligned"][1].items()}
    for number, split in enumerate(content.values()):
        split["id"][:, 1] = [f"{number}.{row}" for row in range(len(split["id"]))]
    write_pickle(tmp_path / "mosei_senti_data.pkl", content)
    clips = MOSEI(version="aligned").open(tmp_path)
    assert groups_in_two_parts(clips.listed, "videos") == set()
    assert groups_in_two_parts(clips.listed, "official")  # these folds are no official ones
    with pytest.raises(ValueError, match="official: expected every group in one part, found in several"):
        refuse_listing(MOSEI(version="aligned"), clips)
    shares = counts(clips.listed, "videos")
    assert 0.6 < shares["train"] / 3000 < 0.8
    assert min(shares.values()) > 150
    # Where a video is does not depend on which others there are.
    for split in content.values():
        split |= {key: value[::3] for key, value in split.items()}
    write_pickle(tmp_path / "mosei_senti_data.pkl", content)
    before = {clip.group: clip.parts["videos"] for clip in clips.listed}
    for clip in MOSEI(version="aligned").open(tmp_path).listed:
        assert clip.parts["videos"] == before[clip.group]
