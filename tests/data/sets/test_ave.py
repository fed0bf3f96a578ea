"""AVE clip by clip: events in a fixed order, videos that stay whole, what is heard and seen."""

import math
import re
from pathlib import Path

import numpy as np
import pytest
import torch

from data.sets.checks import (
    check_arrays,
    check_it_trains,
    check_listing,
    check_reading_draws_nothing,
    check_trains,
    counts,
    log_stft_by_hand,
    write_list,
)
from equipoise.data.prepare.prepare import prepare
from equipoise.data.sets.ave import AVE, EVENTS, parts_of
from equipoise.models.encoders import CNN2d, Frames
from equipoise.models.late_fusion import LateFusion
from equipoise.util.errors import Unreadable
from media.made import index_of, make_video

HEADER = "Category&VideoID&Quality&StartTime&EndTime"
ROWS = [
    "Church bell&RUhOCu3LNXM&good&0&10",
    "Church bell&VWi2ENBuTbw&good&0&0",
    "Male speech, man speaking&0giAfYq9oVM&good&1&3",
    "Bark&3jS8tWfLJxI&good&0&2",
    "Mandolin&zzzzzzzzz-_&good&0&10",
    "Bark&RUhOCu3LNXM&good&2&4",  # a second event in the first video
]
PARTS = {"trainSet.txt": ROWS[:3], "valSet.txt": ROWS[4:], "testSet.txt": ROWS[3:4]}
SMALL = AVE(size=16, crop=8, frames=2)


def lay_out(source: Path, rows: list[str] | None = None, parts: dict[str, list[str]] | None = None) -> Path:
    (source / "AVE").mkdir(parents=True, exist_ok=True)
    write_list(source / "Annotations.txt", [HEADER, *(ROWS if rows is None else rows)])
    for file, several in (parts or PARTS).items():
        write_list(source / file, several)
    return source


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    source = lay_out(tmp_path_factory.mktemp("ave"))
    for row in ROWS[:-1]:
        make_video(source / f"AVE/{row.split('&')[1]}.mp4", 4.0, fps=3, size=16, rate=16_000, hertz=1000.0)
    return source


def test_shapes_classes_and_parts(source: Path) -> None:
    clips = SMALL.open(source)
    check_listing(SMALL, clips)
    assert [clip.id for clip in clips.listed][:3] == [
        "RUhOCu3LNXM/Church bell",
        "VWi2ENBuTbw/Church bell",
        "0giAfYq9oVM/Male speech, man speaking",
    ]
    assert [clip.label for clip in clips.listed] == [0, 0, 1, 2, 27, 2]
    assert clips.listed[0].group == clips.listed[5].group == "RUhOCu3LNXM"
    arrays = clips.read(0)
    check_arrays(SMALL, arrays)
    check_reading_draws_nothing(clips, 3)
    fields = AVE().fields
    assert fields["video"].shape == (10, 3, 256, 256)
    assert fields["video"].view is not None
    assert fields["video"].view.shape(fields["video"].shape) == (3, 3, 224, 224)
    assert fields["audio"].view is not None
    assert fields["audio"].view.shape(fields["audio"].shape) == (1, 257, 1004)


def test_classes_are_in_the_publishers_order_whatever_files_exist(tmp_path: Path) -> None:
    # Public loaders number them as they first appear in the test list, or among the files at hand.
    lay_out(
        tmp_path, rows=ROWS[::-1], parts={"trainSet.txt": ROWS[3:], "valSet.txt": ROWS[2:3], "testSet.txt": ROWS[:2]}
    )
    clips = SMALL.open(tmp_path)
    assert SMALL.classes(clips) == EVENTS
    assert (len(EVENTS), EVENTS[0], EVENTS[2], EVENTS[27]) == (28, "Church bell", "Bark", "Mandolin")
    assert {clip.id: clip.label for clip in clips.listed}["RUhOCu3LNXM/Bark"] == 2
    with pytest.raises(Unreadable, match=r"zzzzzzzzz-_\.mp4"):
        clips.read(1)


def test_a_video_with_two_events_is_two_clips_of_one_part(source: Path) -> None:
    # One public loader keeps the last of its labels, another the first.
    clips = SMALL.open(source).listed
    by_id = {clip.id: clip for clip in clips}
    first, second = by_id["RUhOCu3LNXM/Church bell"], by_id["RUhOCu3LNXM/Bark"]
    assert (first.label, second.label) == (0, 2)
    assert first.parts["videos"] == second.parts["videos"]
    # The lists have one event in train and the other in validation: the video validates, and train does not see it.
    assert "official" not in first.parts
    assert "agm-valid" not in first.parts
    assert second.parts["official"] == "validation"
    assert second.parts["agm-valid"] == "test"
    assert counts(clips, "official") == {"train": 2, "validation": 2, "test": 1}
    assert counts(clips, "agm-valid") == {"train": 2, "validation": 0, "test": 2}
    assert AVE.protocols["agm-valid"].selects_on_test


@pytest.mark.parametrize("seed", range(5))
def test_no_video_is_in_two_parts_and_the_test_part_is_the_publishers(seed: int) -> None:
    draw = np.random.default_rng(seed)
    videos = [f"v{number}" for number in draw.integers(0, 150, 300)]
    listed = draw.choice(np.array(["train", "validation", "test", None], dtype=object), 300).tolist()
    placed = parts_of(listed, videos)
    for protocol in ("official", "agm-valid", "videos"):
        of: dict[str, set[str]] = {}
        for video, parts in zip(videos, placed, strict=True):
            if protocol in parts:
                of.setdefault(video, set()).add(parts[protocol])
        assert max(map(len, of.values())) == 1
    assert [each.get("official") == "test" for each in placed] == [part == "test" for part in listed]
    assert all("official" not in each for each, part in zip(placed, listed, strict=True) if part is None)
    assert all(each.get("official") in (None, part) for each, part in zip(placed, listed, strict=True))
    again = parts_of(listed[::-1], videos[::-1])[::-1]
    assert again == placed


def test_the_first_of_two_like_rows_is_listed(tmp_path: Path) -> None:
    lay_out(
        tmp_path,
        rows=["Bark&a&good&1&2", "Goat&b&good&0&9", "Bark&a&good&3&4"],
        parts={file: ["Bark&a&good&1&2"] for file in PARTS},
    )
    clips = SMALL.open(tmp_path).listed
    assert [clip.id for clip in clips] == ["a/Bark", "b/Goat"]
    assert clips[0].parts["official"] == "test"
    assert set(clips[1].parts) == {"videos"}  # in none of the lists
    make_video(tmp_path / "AVE/a.mp4", 4.0, fps=3, size=16, rate=16_000)
    frames = AVE(stretch="event", size=16).open(tmp_path).read(0)["video"]
    assert [index_of(frame) for frame in frames] == [3]  # of second 1


def test_a_header_is_no_row_and_need_not_be_there(tmp_path: Path) -> None:
    lay_out(tmp_path)
    with_header = SMALL.open(tmp_path).listed
    write_list(tmp_path / "Annotations.txt", ROWS, mark=True)
    assert SMALL.open(tmp_path).listed == with_header


def test_what_is_heard_by_hand(source: Path) -> None:
    stored = SMALL.open(source).read(0)["audio"]
    assert (stored.shape, stored.dtype) == ((160_000,), np.int16)
    view = SMALL.fields["audio"].view
    assert view is not None
    heard = view(torch.from_numpy(stored)[None], None, None)[0, 0].numpy()
    assert heard.shape == (257, 1004)
    # A window of 512 that overlaps the next by 353 has 1004 places in ten seconds at 16 kHz.
    assert (160_000 - 353) // (512 - 353) == 1004
    start = (160_000 - 1003 * 159) // 2
    by_hand = log_stft_by_hand(stored[start : start + 1003 * 159] / 2**15, 512, 159)
    assert by_hand.shape == (257, 1004)
    assert np.allclose(np.exp(heard), np.exp(by_hand), atol=1e-3)
    # 1000 Hz is the 32nd of the frequencies 16,000 / 512 Hz apart, and its height 0.5 gives 0.5 · 512 / 4.
    assert heard[:, 200].argmax() == 32
    assert heard[32, 200] == pytest.approx(math.log(64), abs=0.1)


def test_the_sound_of_a_short_video_is_repeated(source: Path) -> None:
    stored = SMALL.open(source).read(0)["audio"].astype(np.float64)
    loud = np.abs(stored.reshape(100, 1600)).max(axis=1)
    assert (loud > 10_000).mean() > 0.9  # four seconds fill ten


def test_one_frame_of_each_second_is_seen(source: Path) -> None:
    frames = SMALL.open(source).read(0)["video"]
    assert frames.shape == (4, 3, 16, 16)
    assert [index_of(frame) for frame in frames] == [0, 3, 6, 9]


def test_an_event_alone(source: Path) -> None:
    original = AVE(stretch="event", size=16)
    clips = original.open(source)
    arrays = clips.read(2)  # from second 1 to 3
    check_arrays(original, arrays)
    assert [index_of(frame) for frame in arrays["video"]] == [3, 6]
    whole = SMALL.open(source).read(2)["audio"]
    assert np.array_equal(arrays["audio"][:32_000], whole[16_000:48_000])
    assert np.array_equal(arrays["audio"][32_000:64_000], arrays["audio"][:32_000])
    with pytest.raises(Unreadable, match=r"VWi2ENBuTbw\.mp4: expected the event from second 0 to 0, found none of it"):
        clips.read(1)
    SMALL.open(source).read(1)


def test_everything_wrong_with_the_lists_is_said_at_once(tmp_path: Path) -> None:
    lay_out(tmp_path)
    write_list(
        tmp_path / "Annotations.txt",
        [HEADER, *ROWS[1:], "Meow&abc&good&0&1", "Bark&abc", "Bark&../x&good&0&1", "Bark&b&good&&1"],
    )
    (tmp_path / "testSet.txt").unlink()
    (tmp_path / "AVE").rmdir()
    with pytest.raises(ValueError, match="cannot be read as ave") as caught:
        SMALL.open(tmp_path)
    for expected in (
        r"Annotations\.txt: expected rows like .*found line 8: 'Bark&abc', line 9: 'Bark&\.\./x&.*', line 10: 'Bark&b&",
        r"Annotations\.txt: expected the 28 events of AVE, found Meow",
        r"testSet\.txt: there is no such file",
        r"in Annotations\.txt too, found none for Church bell&RUhOCu3LNXM",
        r"expected videos in .*AVE, found no such folder",
        r"AVE/3jS8tWfLJxI\.mp4",  # the layout
    ):
        assert re.search(expected, str(caught.value)), expected
    write_list(tmp_path / "Annotations.txt", [HEADER])
    (tmp_path / "valSet.txt").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ValueError, match=r"(?s)Annotations\.txt: expected rows, found none.*valSet\.txt: "):
        SMALL.open(tmp_path)


def test_options_that_do_not_exist_are_refused_together() -> None:
    with pytest.raises(ValueError, match=r"ave: expected frames above 0, found 0; expected task .*; expected stretch"):
        AVE(frames=0, task="frames", stretch="none")  # ty: ignore[invalid-argument-type]


@pytest.mark.slow
def test_clips_prepared_and_trained(source: Path, tmp_path: Path) -> None:
    prepared = prepare(SMALL, source, tmp_path / "out", workers=2)
    assert prepared.skipped == []
    splits = prepared.splits("videos")
    assert splits.shapes == {"audio": (1, 257, 1004), "video": (3, 2, 8, 8)}
    splits = prepared.splits()
    assert {part: len(each) for part, each in splits.parts.items()} == {"train": 2, "validation": 2, "test": 1}
    assert len(prepared.splits("agm-valid").validation) == 2
    encoders = {"audio": CNN2d(1, 8, 4), "video": Frames(CNN2d(3, 8, 4))}
    check_it_trains(LateFusion(encoders, classes=28), splits.train)
    check_trains(splits)
