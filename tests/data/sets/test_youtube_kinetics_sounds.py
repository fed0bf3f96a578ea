"""Kinetics-Sounds from clips as people have them: every layout and spelling, the filter bank, parts by video."""

import random
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from data.sets.checks import (
    check_arrays,
    check_listing,
    check_prepared,
    check_reading_draws_nothing,
    check_trains,
    counts,
    groups_in_two_parts,
    scramble_listings,
    write_list,
)
from equipoise.data.sets.youtube import KineticsSounds
from equipoise.data.splits import PARTS, Part
from equipoise.data.views import VideoFrames
from equipoise.util.errors import Unreadable
from media.made import index_of, make_image, make_video, make_wav, shade

TRAIN = {  # as in my_train.txt, and where the clip lies
    "--4-0ihtnBU_000058_000068": ("4", "train/playing drums/--4-0ihtnBU_000058_000068.mp4"),
    "-24HxQDHOAM_000001_000011": ("6", "train/bowling/-24HxQDHOAM_000001_000011.webm"),
    "0HQsAGUnQ_0_000006_000016": ("0", "0HQsAGUnQ_0.mp4"),
    "-1IlTIWPNs4_000027_000037": ("23", "train/singing/-1IlTIWPNs4_000027_000037.avi"),
}
TEST = {
    "-3Mwkq-7TV4_2": ("23", "test/singing/-3Mwkq-7TV4_000002_000012.mp4"),
    "-74csnCOiUs_0": ("30", "test/tickling/-74csnCOiUs_0.mp4"),
}
SMALL = KineticsSounds(size=32, crop=16)


def lists(source: Path, train: list[str], test: list[str]) -> Path:
    write_list(source / "my_train.txt", train, mark=True)
    write_list(source / "my_test.txt", test)
    return source


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    source = tmp_path_factory.mktemp("kinetics-sounds")
    lists(source, *([f"{name},10,{label}" for name, (label, _) in part.items()] for part in (TRAIN, TEST)))
    for number, (_, path) in enumerate([*TRAIN.values(), *TEST.values()]):
        make_video(source / path, 3, 7, hertz=200 + 50 * number)
    return source


def sampled(seed: int, count: int) -> list[str]:
    """Rows of made-up clips, some of them of the same video."""
    draw = random.Random(seed)
    letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-"
    videos = ["".join(draw.choices(letters, k=11)) for _ in range(count // 2)]
    starts = random.Random(seed).sample(range(10 * count), count)
    return [f"{draw.choice(videos)}_{start},10,{draw.randrange(31)}" for start in starts]


def test_shapes_classes_and_parts(source: Path) -> None:
    clips = SMALL.open(source)
    check_listing(SMALL, clips)
    assert SMALL.classes(clips) == tuple(map(str, range(31)))
    assert [clip.id for clip in clips.listed] == [*TRAIN, *TEST]
    assert [clip.label for clip in clips.listed] == [4, 6, 0, 23, 23, 30]
    assert [clip.group for clip in clips.listed] == [name[:11] for name in [*TRAIN, *TEST]]
    assert [clip.parts["official"] == "test" for clip in clips.listed] == [False] * 4 + [True] * 2
    for number in range(len(clips.listed)):
        arrays = clips.read(number)
        check_arrays(SMALL, arrays)
        assert arrays["audio"].shape == (1, 1024, 128)
        assert [index_of(frame) for frame in arrays["video"]] == [0, 7, 4]  # frames 0, 7 and 14
    assert KineticsSounds().fields["video"].shape == (10, 3, 256, 256)
    assert KineticsSounds().fields["video"].view == VideoFrames(3, 224)


def test_filter_bank_of_silence_by_hand(tmp_path: Path) -> None:
    lists(tmp_path, ["--4-0ihtnBU_000058_000068,10,4"], ["-3Mwkq-7TV4_2,10,1"])
    make_wav(tmp_path / "audio/--4-0ihtnBU_000058_000068.wav", rate=16_000, wave=np.zeros(160_000))
    make_image(tmp_path / "visual/--4-0ihtnBU_000058_000068/frame_00001.jpg")
    bank = SMALL.open(tmp_path).read(0)["audio"][0]
    # Ten seconds have (160,000 − 400) / 160 + 1 = 998 frames, each log(2^−23) = −15.9424; the rest is zero; then
    # everything becomes (x + 4.503877) / 10.282552.
    assert np.allclose(bank[:998], -1.112419, atol=1e-5)
    assert np.allclose(bank[998:], 0.438012, atol=1e-5)


def test_sounds_and_folders_of_frames(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lists(tmp_path, *([f"{name},10,{label}" for name, (label, _) in part.items()] for part in (TRAIN, TEST)))
    for name in [*TRAIN, *TEST]:
        make_wav(tmp_path / f"audio/{name}.wav", 3, 16_000)
        for number in range(12):  # 1-based and not padded, so that text sorts 10 before 2
            pixels = np.full((8, 8, 3), shade(number), np.uint8)
            make_image(tmp_path / f"visual/{name}/frame_{number + 1}.png", pixels=pixels)
    for seed in range(3):
        scramble_listings(monkeypatch, seed)
        clips = SMALL.open(tmp_path)
        frames = clips.read(4)["video"]
        assert [index_of(frame) for frame in frames] == [each % 10 for each in (0, 1, 3, 4, 5, 6, 7, 9, 10, 11)]
    assert [dict(clip.parts) for clip in clips.listed] == [dict(clip.parts) for clip in SMALL.open(source).listed]


def test_names_of_classes_come_from_their_list_alone(source: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(source, tmp_path / "ks")
    names = [f"class {number}" for number in range(31)]
    write_list(copy / "stat.txt", names, mark=True)
    assert SMALL.classes(SMALL.open(copy)) == tuple(names)
    shutil.rmtree(copy / "train")
    shutil.rmtree(copy / "test")
    fewer = SMALL.open(copy)
    assert SMALL.classes(fewer) == tuple(names)
    assert list(fewer.listed) == list(SMALL.open(source).listed)
    with pytest.raises(Unreadable, match="--4-0ihtnBU_58: expected a sound file or a video, found none"):
        fewer.read(0)
    write_list(copy / "stat.txt", [*names[:30], names[0]])
    with pytest.raises(ValueError, match="expected 31 different names, found 30 on 31 lines"):
        SMALL.open(copy)


@pytest.mark.parametrize("seed", range(10))
def test_no_video_is_in_two_parts(tmp_path: Path, seed: int) -> None:
    rows = sampled(seed, 600)
    tested = {row[:11] for row in rows[:60]}
    train, test = ([row for row in rows if (row[:11] in tested) == part] for part in (False, True))
    original = KineticsSounds()
    clips = original.open(lists(tmp_path, train, test))
    check_listing(original, clips)
    assert len({clip.group for clip in clips.listed}) < len(clips.listed)  # some videos have several clips
    for name, protocol in original.protocols.items():
        assert protocol.by_group
        assert min(counts(clips.listed, name).values()) > 0
        part = next(part for part in PARTS if part != clips.listed[0].parts[name])
        moved = replace(clips.listed[0], parts={name: part})
        assert groups_in_two_parts([*clips.listed, moved], name) == {moved.group}


def test_shares_of_the_drawn_protocols(tmp_path: Path) -> None:
    rows = [f"{number:011d}_1,10,0" for number in range(4_000)]
    clips = KineticsSounds().open(lists(tmp_path, rows[:3_400], rows[3_400:])).listed
    for protocol, shares in (("mimo-80-10-10", (0.8, 0.1, 0.1)), ("videos", (0.7, 0.15, 0.15))):
        found = counts(clips, protocol)
        for part, share in zip(PARTS, shares, strict=True):
            assert abs(found[part] / 4_000 - share) < 0.03
    official = counts(clips, "official")
    assert official["test"] == 600
    assert abs(official["validation"] / 3_400 - 0.1) < 0.03
    assert "not published" in KineticsSounds.protocols["mimo-80-10-10"].about


def test_a_clip_listed_twice_counts_once_and_with_its_first_class(tmp_path: Path) -> None:
    row = "--4-0ihtnBU_000058_000068,10,"
    lists(tmp_path, [f"{row}4", f"{row}4"], ["-3Mwkq-7TV4_2,10,1"])
    assert [clip.label for clip in KineticsSounds().open(tmp_path).listed] == [4, 1]
    lists(tmp_path, [f"{row}4", "--4-0ihtnBU_58,10,7"], ["-3Mwkq-7TV4_2,10,1"])
    with pytest.warns(UserWarning, match=r"of which the first counts: --4-0ihtnBU_58 \(4, then 7\)"):
        clips = KineticsSounds().open(tmp_path)
    assert [clip.label for clip in clips.listed] == [4, 1]


def test_two_files_for_one_clip_are_a_problem(source: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(source, tmp_path / "ks")
    shutil.copy(copy / TEST["-3Mwkq-7TV4_2"][1], copy / "-3Mwkq-7TV4_2.mp4")
    with pytest.raises(ValueError, match=r"expected one file of a kind per clip, found .*-3Mwkq-7TV4_2\.mp4 and"):
        SMALL.open(copy)


def test_clips_of_few_frames_have_every_frame_they_need(source: Path) -> None:
    frames = torch.from_numpy(SMALL.open(source).read(0)["video"][:1]).unsqueeze(0)
    view = VideoFrames(3, 16)
    for count in (1, 2, 3):
        several = frames.expand(1, count, 3, 32, 32)
        for generator in (None, torch.Generator().manual_seed(0)):
            chosen = view.chosen(several, torch.tensor([count]), generator)
            assert chosen.min() >= 0
            assert chosen.max() < count
            assert (chosen.diff() >= 0).all()
            assert view(several, torch.tensor([count]), generator).shape == (1, 3, 3, 16, 16)


def test_reading_resets_no_seed(source: Path) -> None:
    check_reading_draws_nothing(SMALL.open(source), 0)


def test_a_sound_too_short_is_named(tmp_path: Path) -> None:
    lists(tmp_path, ["--4-0ihtnBU_000058_000068,10,4"], ["-3Mwkq-7TV4_2,10,1"])
    make_wav(tmp_path / "--4-0ihtnBU_000058_000068.wav", rate=16_000, wave=np.ones(1))
    with pytest.raises(Unreadable, match="--4-0ihtnBU_58: expected a sound of 25 ms or more, found 1 sample"):
        SMALL.open(tmp_path).read(0)


def test_everything_wrong_is_said_at_once(tmp_path: Path) -> None:
    rows = ["--4-0ihtnBU_58,10,31", "-3Mwkq-7TV4_2,10,1", "playing drums,10,1", "-3Mwkq-7TV4_9,10", "-3Mwkq-7TV4,10,1"]
    lists(tmp_path, rows, ["-3Mwkq-7TV4_2,10,1"])
    write_list(tmp_path / "stat.txt", ["one", "two"])
    with pytest.raises(ValueError, match="cannot be read as kinetics-sounds") as caught:
        KineticsSounds().open(tmp_path)
    for expected in (
        "expected 3 columns, found row 4: '-3Mwkq-7TV4_9,10'",
        "such as -3Mwkq-7TV4_2, found playing drums,10,1, -3Mwkq-7TV4,10,1",
        "expected classes from 0 to 30, found --4-0ihtnBU_58,10,31",
        "expected no video in both lists, found -3Mwkq-7TV4",
        "expected 31 different names, found 2 on 2 lines",
        "my_train.txt, my_test.txt     rows such as",
    ):
        assert expected in str(caught.value)


def test_missing_and_empty_lists_are_named(tmp_path: Path) -> None:
    write_list(tmp_path / "data/KineticSound/my_train.txt", [])
    with pytest.raises(ValueError, match=r"my_train\.txt: expected clips, found none\n.*list my_test\.txt in"):
        KineticsSounds().open(tmp_path)


def test_options_that_are_none_are_refused() -> None:
    with pytest.raises(ValueError, match=r"kinetics-sounds: expected fps above 0, found 0; expected crop above 0"):
        KineticsSounds(fps=0, crop=-1)
    assert KineticsSounds(fps=0.3).fields["video"].shape[0] == 3


def every_eighth_frame(part: Part) -> Part:
    """The same part with an eighth of the filter bank, to train in an eighth of the time."""
    return replace(part, inputs={**part.inputs, "audio": part.inputs["audio"][:, :, ::8]})


@pytest.mark.slow
def test_prepared_and_trained(tmp_path: Path) -> None:
    rows = [f"{number:011d}_000001_000011,10,{number % 31}" for number in range(90)]
    every = SMALL.open(lists(tmp_path / "names", rows, ["-3Mwkq-7TV4_2,10,1"])).listed
    held = [clip.id for clip in every if clip.parts["official"] == "validation"][:2]
    learnt = {clip.label: clip.id for clip in every if clip.parts["official"] == "train"}
    assert len(learnt) == 31
    assert len(held) == 2
    train = [row for row in rows if row.split(",")[0] in {*held, *learnt.values()}]
    source = lists(tmp_path / "source", train, ["-3Mwkq-7TV4_2,10,1", "-74csnCOiUs_0,10,2"])
    for name in [row.split(",")[0] for row in train]:
        make_wav(source / f"audio/{name}.wav", 0.5, 16_000)
        make_image(source / f"visual/{name}/frame_00001.jpg")
    make_video(source / "test/singing/-3Mwkq-7TV4_000002_000012.mp4", 2)
    splits = check_prepared(SMALL, source, tmp_path / "out", "official", ["-74csnCOiUs_0"])
    assert {name: len(part) for name, part in splits.parts.items()} == {"train": 31, "validation": 2, "test": 1}
    assert splits.shapes == {"audio": (1, 1024, 128), "video": (3, 3, 16, 16)}
    check_trains(replace(splits, **{name: every_eighth_frame(part) for name, part in splits.parts.items()}).check())
