"""Names of clips cut out of YouTube videos: one key for every spelling."""

import random
from pathlib import Path

import pytest

from equipoise.data.sets.footage import Footage
from equipoise.data.sets.youtube import VideoSegment, key_of, keys_in, segment_of


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
