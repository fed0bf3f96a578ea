"""VGGSound from its list and clips: classes of the whole list, five seconds that stay put, parts by video."""

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
    log_stft_by_hand,
    write_list,
)
from equipoise.data.sets.youtube import VGGSound
from equipoise.data.splits import PARTS
from equipoise.data.views import LogSTFT, VideoFrames
from equipoise.util.errors import Unreadable
from media.made import index_of, make_image, make_video, make_wav, shade

ROWS = {  # as in vggsound.csv, and where the clip lies
    "---g-f_I2yQ,1,people marching,test": "video/---g-f_I2yQ_000001.mp4",
    '--0PQM4-hqg,30,"waterfall, burbling",train': "video/--0PQM4-hqg_30.mp4",
    "--56QUhyDQM,185,playing tennis,train": "train/--56QUhyDQM_000185.webm",
    "--5OkAjCI7g,40,people belly laughing,train": None,
    '--8puiAGLhs,30,"car, engine starting",test': "--8puiAGLhs_000030.mp4",
}
LABELS = ("car, engine starting", "people belly laughing", "people marching", "playing tennis", "waterfall, burbling")
SMALL = VGGSound(size=32, crop=16)
NOISE = np.random.default_rng(0).integers(-8_000, 8_000, 64_000, dtype=np.int16)  # four seconds


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    source = tmp_path_factory.mktemp("vggsound")
    write_list(source / "vggsound.csv", list(ROWS))
    for number, path in enumerate(ROWS.values()):
        if path:
            make_video(source / path, 3, 7, hertz=200 + 50 * number)
    make_wav(source / "audio/--5OkAjCI7g_000040.wav", rate=16_000, wave=NOISE)
    for number in range(10):  # a folder called like the video, as OGM-GE's extraction leaves it
        pixels = np.full((8, 8, 3), shade(number), np.uint8)
        make_image(source / f"Image-01-FPS/--5OkAjCI7g_40.mp4/{number * 25:05d}.png", pixels=pixels)
    return source


def test_shapes_classes_and_parts(source: Path) -> None:
    clips = SMALL.open(source)
    check_listing(SMALL, clips)
    assert SMALL.classes(clips) == LABELS
    assert [clip.id for clip in clips.listed] == [
        "---g-f_I2yQ_1",
        "--0PQM4-hqg_30",
        "--56QUhyDQM_185",
        "--5OkAjCI7g_40",
        "--8puiAGLhs_30",
    ]
    assert [LABELS[clip.label] for clip in clips.listed] == [
        "people marching",
        "waterfall, burbling",
        "playing tennis",
        "people belly laughing",
        "car, engine starting",
    ]
    assert [clip.group for clip in clips.listed] == [row[:11] for row in ROWS]
    assert [clip.parts["official"] == "test" for clip in clips.listed] == [True, False, False, False, True]
    for number in range(len(ROWS)):
        arrays = clips.read(number)
        check_arrays(SMALL, arrays)
        assert arrays["audio"].shape == (160_000,)
        expected = list(range(10)) if number == 3 else [0, 7, 4]
        assert [index_of(frame) for frame in arrays["video"]] == expected
    assert VGGSound().fields["video"].shape == (10, 3, 256, 256)
    assert VGGSound().fields["video"].view == VideoFrames(3, 224)


def test_sound_is_stored_sample_by_sample(source: Path) -> None:
    stored = SMALL.open(source).read(3)["audio"]
    assert np.array_equal(stored, np.concatenate([NOISE, NOISE, NOISE])[:160_000])


def test_evaluation_hears_the_same_five_seconds_every_time(source: Path) -> None:
    stored = torch.from_numpy(SMALL.open(source).read(3)["audio"]).unsqueeze(0)
    view = SMALL.fields["audio"].view
    assert view == LogSTFT(80_000, 256, 128)
    first = view(stored, None, None)
    assert first.shape == (1, 1, 129, 626)
    torch.manual_seed(1)
    assert torch.equal(first, view(stored, None, None))
    middle = stored[0, 40_000:120_000].numpy() / 2**15
    assert np.allclose(first[0, 0].exp(), np.exp(log_stft_by_hand(middle, 256, 128)), atol=1e-4)


def test_training_hears_any_five_seconds(source: Path) -> None:
    stored = torch.from_numpy(SMALL.open(source).read(3)["audio"]).unsqueeze(0).expand(8, -1)
    view = SMALL.fields["audio"].view
    assert view is not None
    heard = view(stored, None, torch.Generator().manual_seed(0))
    assert len({tuple(each[0, :, 300].tolist()) for each in heard}) == 8
    assert torch.equal(heard, view(stored, None, torch.Generator().manual_seed(0)))


def test_loud_sounds_are_clipped_not_wrapped(tmp_path: Path) -> None:
    import soundfile

    write_list(tmp_path / "vggsound.csv", ["---g-f_I2yQ,1,a,train"])
    make_image(tmp_path / "---g-f_I2yQ_1/0.png")
    soundfile.write(tmp_path / "---g-f_I2yQ_1.wav", np.array([1.5, -1.5, 0.5] * 800), 16_000, subtype="FLOAT")
    assert SMALL.open(tmp_path).read(0)["audio"][:3].tolist() == [32_767, -32_768, 16_384]


def test_classes_are_those_of_the_list_whichever_files_exist(source: Path, tmp_path: Path) -> None:
    whole = SMALL.open(source)
    copy = shutil.copytree(source, tmp_path / "vggsound")
    (copy / "video/---g-f_I2yQ_000001.mp4").unlink()
    (copy / "--8puiAGLhs_000030.mp4").unlink()
    fewer = SMALL.open(copy)
    assert SMALL.classes(fewer) == LABELS
    assert list(fewer.listed) == list(whole.listed)
    with pytest.raises(Unreadable, match="---g-f_I2yQ_1: expected a sound file or a video, found none"):
        fewer.read(0)
    reordered = write_list(tmp_path / "other/vggsound.csv", list(ROWS)[::-1])
    labels = {clip.id: clip.label for clip in SMALL.open(reordered.parent).listed}
    assert labels == {clip.id: clip.label for clip in whole.listed}


@pytest.mark.parametrize("seed", range(10))
def test_no_video_is_in_two_parts(tmp_path: Path, seed: int) -> None:
    draw = random.Random(seed)
    letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-"
    videos = ["".join(draw.choices(letters, k=11)) for _ in range(300)]
    starts = draw.sample(range(9_000), 600)
    rows = [f"{draw.choice(videos)},{start},a,{draw.choice(['train', 'test'])}" for start in starts]
    write_list(tmp_path / "data/vggsound.csv", rows)
    original = VGGSound()
    clips = original.open(tmp_path)
    check_listing(original, clips)
    assert len(clips.listed) == 600
    assert min(counts(clips.listed, "videos").values()) > 0
    assert groups_in_two_parts(clips.listed, "official")  # videos with clips in both lists, which the check notices
    moved = replace(
        clips.listed[0], parts={"videos": next(part for part in PARTS if part != clips.listed[0].parts["videos"])}
    )
    assert groups_in_two_parts([*clips.listed, moved], "videos") == {moved.group}


def test_validation_never_tears_a_training_video_apart(tmp_path: Path) -> None:
    rows = [f"{number:011d},{start},a,train" for number in range(1_000) for start in (1, 20)]
    write_list(tmp_path / "vggsound.csv", rows)
    clips = VGGSound().open(tmp_path).listed
    assert groups_in_two_parts(clips, "official") == set()
    assert abs(counts(clips, "official")["validation"] / 2_000 - 0.05) < 0.03


def test_a_clip_listed_twice_counts_once(tmp_path: Path) -> None:
    row = "---g-f_I2yQ,1"
    write_list(tmp_path / "vggsound.csv", [f"{row},a,train", f"{row},a,train", "--0PQM4-hqg,3,b,train"])
    assert [clip.id for clip in VGGSound().open(tmp_path).listed] == ["---g-f_I2yQ_1", "--0PQM4-hqg_3"]
    write_list(tmp_path / "vggsound.csv", [f"{row},a,train", "---g-f_I2yQ,000001,b,test"])
    with pytest.warns(UserWarning, match=r"of which the first counts: ---g-f_I2yQ_1 \(a, then b\)"):
        clips = VGGSound().open(tmp_path).listed
    assert [(clip.label, clip.parts["official"]) for clip in clips] == [(0, "test")]


def test_reading_resets_no_seed(source: Path) -> None:
    check_reading_draws_nothing(SMALL.open(source), 3)


def test_everything_wrong_is_said_at_once(tmp_path: Path) -> None:
    rows = ["id,start,label,split", "---g-f_I2yQ,1,a,val", "---g-f_I2yQ,1,a", "---g-f_I2yQ,now,a,train"]
    write_list(tmp_path / "vggsound.csv", rows)
    with pytest.raises(ValueError, match="cannot be read as vggsound") as caught:
        VGGSound().open(tmp_path)
    for expected in (
        "expected 4 columns, found row 3: '---g-f_I2yQ,1,a'",
        "a start and a label, found id,start,label,split, ---g-f_I2yQ,now,a,train",
        "expected train or test in the fourth column, found ---g-f_I2yQ,1,a,val",
        "video/---g-f_I2yQ_000001.mp4",
    ):
        assert expected in str(caught.value)


def test_missing_and_empty_lists_are_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"expected the list vggsound\.csv in"):
        VGGSound().open(tmp_path)
    write_list(tmp_path / "vggsound.csv", [])
    with pytest.raises(ValueError, match=r"vggsound\.csv: expected clips, found none"):
        VGGSound().open(tmp_path)


def test_options_that_are_none_are_refused() -> None:
    with pytest.raises(ValueError, match="vggsound: expected frames above 0, found 0"):
        VGGSound(frames=0)


@pytest.mark.slow
def test_prepared_and_trained(tmp_path: Path) -> None:
    names = write_list(tmp_path / "names/vggsound.csv", [f"{number:011d},1,a,train" for number in range(100)])
    every = SMALL.open(names.parent).listed
    by_part = {part: [clip.group for clip in every if clip.parts["videos"] == part] for part in PARTS}
    chosen = [*by_part["train"][:3], by_part["validation"][0], by_part["test"][0]]
    source = tmp_path / "source"
    rows = [f'{video},{start},"{"ab"[start % 2]}, loud",test' for video in chosen for start in (30, 41)]
    write_list(source / "vggsound.csv", rows)
    for number, video in enumerate(chosen):
        make_video(source / f"{video}_000030.mp4", 2, hertz=200 + 20 * number)
        make_video(source / f"{video}_41.mp4", 2, hertz=200 + 20 * number)
    (source / f"{chosen[0]}_000030.mp4").write_bytes(b"")
    splits = check_prepared(SMALL, source, tmp_path / "out", "videos", [f"{chosen[0]}_30"])
    assert {name: len(part) for name, part in splits.parts.items()} == {"train": 5, "validation": 2, "test": 2}
    assert splits.shapes == {"audio": (1, 129, 626), "video": (3, 3, 16, 16)}
    assert splits.classes == ("a, loud", "b, loud")
    check_trains(splits.check())
