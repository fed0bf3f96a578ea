"""Files of publishers: found by name, read in the order of numbers."""

from pathlib import Path

import numpy as np
import pytest

from data.sets.checks import scramble_listings
from equipoise.data.sets.footage import Footage, pictures_in
from equipoise.util.errors import Unreadable
from media.made import make_image, make_video, make_wav


def picture(path: Path, grey: int) -> Path:
    return make_image(path, pixels=np.full((8, 8, 3), grey, np.uint8))


@pytest.mark.parametrize("seed", range(5))
def test_pictures_come_in_the_order_of_their_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    for number in range(12):  # frame_10 sorts before frame_2 as text
        picture(tmp_path / f"frame_{number}.png", 10 * number)
    scramble_listings(monkeypatch, seed)
    assert [path.stem for path in pictures_in(tmp_path)] == [f"frame_{number}" for number in range(12)]
    frames = Footage(pictures={"clip": tmp_path}).frames("clip", 1, 12, 8)
    assert frames[:, 0, 0, 0].tolist() == [10 * number for number in range(12)]


@pytest.mark.parametrize("most", range(1, 15))
def test_too_many_pictures_are_thinned_all_along_the_clip(tmp_path: Path, most: int) -> None:
    for number in range(12):
        picture(tmp_path / f"{number:05d}.png", 10 * number)
    kept = Footage(pictures={"clip": tmp_path}).frames("clip", 1, most, 8)[:, 0, 0, 0] // 10
    assert len(kept) == min(most, 12)
    for place, number in enumerate(kept.tolist()):  # the one that is on in the middle of each of as many stretches
        assert number <= (place + 0.5) * 12 / len(kept) < number + 1


def test_files_are_found_at_any_depth_and_by_kind(tmp_path: Path) -> None:
    make_wav(tmp_path / "a/b/c/one.wav", 0.1)
    make_video(tmp_path / "one.mp4", 0.5)
    picture(tmp_path / "frames/two.mp4/00000.jpg", 10)  # a folder called like its video
    make_wav(tmp_path / "a/.trash/one.wav", 0.1)
    (tmp_path / "a/._one.wav").touch()
    (tmp_path / "a/notes.txt").touch()
    (tmp_path / "a/back").symlink_to(tmp_path)
    footage = Footage.find([tmp_path, tmp_path / "absent"])
    assert {key: path.name for key, path in footage.sounds.items()} == {"one": "one.wav"}
    assert {key: path.name for key, path in footage.videos.items()} == {"one": "one.mp4"}
    assert {key: path.name for key, path in footage.pictures.items()} == {"two": "two.mp4"}
    assert footage.twice == {}
    assert "one" in footage
    assert "three" not in footage


def test_two_files_for_one_clip_are_a_problem_only_where_it_is_listed(tmp_path: Path) -> None:
    make_wav(tmp_path / "a/one.wav", 0.1)
    make_wav(tmp_path / "b/one.wav", 0.1)
    footage = Footage.find([tmp_path])
    assert footage.ambiguous(["two"]) == []
    assert "a/one.wav and" in footage.ambiguous(["two", "one"])[0]


def test_sound_comes_from_the_track_only_where_that_will_do(tmp_path: Path) -> None:
    make_video(tmp_path / "one.mp4", 1.0)
    make_video(tmp_path / "mute.mp4", 1.0, sound=False)
    footage = Footage.find([tmp_path])
    assert 14_000 < len(footage.wave("one", 16_000)) < 18_000
    with pytest.raises(Unreadable, match="one: expected a sound file, found none"):
        footage.wave("one", 16_000, track=False)
    with pytest.raises(Unreadable, match=r"mute\.mp4: no audio"):
        footage.wave("mute", 16_000)
    with pytest.raises(Unreadable, match="two: expected a sound file or a video, found none"):
        footage.wave("two", 16_000)
    with pytest.raises(Unreadable, match="two: expected a video or a folder of its frames, found neither"):
        footage.frames("two", 1, 1, 8)


def test_links_in_a_circle_and_very_deep_folders_end(tmp_path: Path) -> None:
    make_wav(tmp_path / "one.wav", 0.1, 8000)
    (tmp_path / "round").symlink_to(tmp_path)
    (tmp_path / "itself.wav").symlink_to("itself.wav")
    (tmp_path / "self").symlink_to("self")
    deep = [Path(str(tmp_path) + "/d" * depth) for depth in range(1, 1500)]
    for path in deep:
        path.mkdir()
    found = Footage.find([tmp_path])
    assert sorted(found.sounds) == ["itself", "one"]
    for path in reversed(deep):  # what removes folders afterwards does it by recursion
        path.rmdir()
