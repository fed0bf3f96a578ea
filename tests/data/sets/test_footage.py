"""Lists and files of publishers: found by name, read in the order of numbers, everything wrong said at once."""

import random
from pathlib import Path

import numpy as np
import pytest

from data.sets.checks import scramble_listings
from equipoise.data.sets.footage import Footage, pictures_in
from equipoise.data.sets.lists import Problems, find_list, read_list
from equipoise.data.sets.youtube import VideoSegment, key_of, keys_in, segment_of
from equipoise.util.errors import Unreadable
from media.made import make_image, make_video, make_wav


def picture(path: Path, grey: int) -> Path:
    return make_image(path, pixels=np.full((8, 8, 3), grey, np.uint8))


def test_rows_survive_a_byte_order_mark_quotes_and_blank_lines(tmp_path: Path) -> None:
    path = tmp_path / "list.csv"
    path.write_bytes(b'\xef\xbb\xbfone,1,"a, b"\r\n\r\n two ,2,c\r\n')
    problems = Problems()
    assert read_list(path, 3, problems) == [["one", "1", "a, b"], ["two", "2", "c"]]
    assert problems == []


@pytest.mark.parametrize("content", [b"\xff\xfe\x00x", b"a\x00b,c\n" * 3, b'"never closed,1\n'])
def test_what_is_no_list_is_a_problem_that_names_it(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "list.csv"
    path.write_bytes(content)
    problems = Problems()
    read_list(path, 2, problems)
    assert problems == [] or str(path) in problems[0]
    assert problems or b"\x00" in content  # since Python 3.11 a zero byte is a character like others


def test_short_rows_are_numbered(tmp_path: Path) -> None:
    path = tmp_path / "list.csv"
    path.write_text("a,1\nb\nc,3\n" + "d\n" * 9)
    problems = Problems()
    assert read_list(path, 2, problems) == [["a", "1"], ["c", "3"]]
    assert "expected 2 columns, found row 2: 'b'" in problems[0]
    assert "and 5 more" in problems[0]


@pytest.mark.parametrize("seed", range(20))
def test_random_bytes_are_rows_or_a_problem(tmp_path: Path, seed: int) -> None:
    path, draw = tmp_path / "list.csv", random.Random(seed)
    for _ in range(50):
        path.write_bytes(draw.randbytes(draw.randrange(1, 200)))
        problems = Problems()
        assert all(len(row) >= 2 for row in read_list(path, 2, problems))
        assert all(str(path) in problem for problem in problems)


def test_a_list_is_found_in_the_folder_or_below(tmp_path: Path) -> None:
    assert find_list(tmp_path, "list.txt", ["sub"]) is None
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub/list.txt").touch()
    assert find_list(tmp_path, "list.txt", ["sub"]) == tmp_path / "sub/list.txt"


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


def test_names_of_youtube_clips_by_hand() -> None:
    for name in ("-3Mwkq-7TV4_2", "-3Mwkq-7TV4_000002", "-3Mwkq-7TV4_000002_000012"):
        assert segment_of(name) == VideoSegment("-3Mwkq-7TV4", 2)
        assert key_of(name) == "-3Mwkq-7TV4_2"
    assert segment_of("0HQsAGUnQ_0_6") == VideoSegment("0HQsAGUnQ_0", 6)  # an underscore of the id's own
    assert segment_of("1234567_000") == VideoSegment("1234567_000", None)  # eleven characters that look like a start
    assert segment_of("short_2") is None
    assert key_of("short_2") == "short_2"


@pytest.mark.parametrize("seed", range(20))
def test_any_spelling_of_a_youtube_clip_has_one_key(seed: int) -> None:
    draw = random.Random(seed)
    letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-"
    video, start = "".join(draw.choices(letters, k=11)), draw.randrange(10_000)
    spellings = [f"{video}_{start}", f"{video}_{start:06d}", f"{video}_{start:06d}_{start + 10:06d}"]
    assert {segment_of(each) for each in spellings} == {VideoSegment(video, start)}
    assert {key_of(each) for each in spellings} == {f"{video}_{start}"}


def test_a_file_named_by_the_video_alone_stands_for_its_only_clip() -> None:
    footage = Footage(videos={"aaaaaaaaaaa": Path("a"), "bbbbbbbbbbb": Path("b"), "ccccccccccc_3": Path("c")})
    segments = [
        VideoSegment("aaaaaaaaaaa", 1),
        VideoSegment("bbbbbbbbbbb", 1),
        VideoSegment("bbbbbbbbbbb", 2),
        VideoSegment("ccccccccccc", 3),
    ]
    assert keys_in(footage, segments) == ["aaaaaaaaaaa", "bbbbbbbbbbb_1", "bbbbbbbbbbb_2", "ccccccccccc_3"]


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
