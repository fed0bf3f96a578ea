"""CREMA-D from the publisher's files: what is heard and seen, who is in which part, and the traps of public loaders."""

import math
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
    scramble_listings,
)
from data.sets.made_cremad import FLASH, SMALL, TEST, TRAIN, break_silence, every_clip, fill, lay_out
from equipoise.data.sets.cremad import AGM, CREMAD, EMO_SUPERB, EMOTIONS
from equipoise.data.splits import PARTS
from equipoise.data.views import VideoFrames
from equipoise.util.errors import Unreadable
from media.made import index_of, make_image, make_video, make_wav, shade


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fill(lay_out(tmp_path_factory.mktemp("cremad"), TRAIN, TEST))


def test_shapes_classes_and_parts(source: Path) -> None:
    clips = SMALL.open(source)
    check_listing(SMALL, clips)
    assert SMALL.classes(clips) == ("NEU", "HAP", "SAD", "FEA", "DIS", "ANG")
    assert [clip.id for clip in clips.listed] == [*TRAIN, *TEST]
    assert [clip.label for clip in clips.listed] == [5, 1, 2, 0, 2, 4, 3]
    assert [clip.group for clip in clips.listed] == ["1001", "1002", "1003", "1001", "1040", "1002", "1003"]
    assert [clip.parts["official"] == "test" for clip in clips.listed] == [False] * 5 + [True] * 2
    arrays = clips.read(0)
    check_arrays(SMALL, arrays)
    assert arrays["audio"].shape == (1, 257, 188)
    assert CREMAD().fields["video"].shape == (6, 3, 256, 256)
    assert SMALL.fields["video"].view == VideoFrames(2, 16)
    assert VideoFrames(2, 16).shape(SMALL.fields["video"].shape) == (3, 2, 16, 16)


def test_frames_are_those_of_each_second(source: Path) -> None:
    frames = SMALL.open(source).read(0)["video"]  # 69 frames at 29.97: the whole frames per second are 29
    assert [index_of(frame) for frame in frames] == [number % 10 for number in (0, 29, 58)]
    twice = CREMAD(fps=2, size=32).open(source).read(0)["video"]
    # Two of each 29, ⌊29 / 2⌋ = 14 apart.
    assert [index_of(frame) for frame in twice] == [number % 10 for number in (0, 14, 29, 43, 58)]


def test_spectrogram_by_hand(tmp_path: Path) -> None:
    lay_out(tmp_path, TRAIN[:1], TEST[:1])
    make_video(tmp_path / f"VideoFlash/{TRAIN[0]}.flv", 1, FLASH)
    tone = 0.5 * np.sin(2 * np.pi * 40 * np.arange(2 * 22_050) / 512)  # two seconds of the 40th frequency
    whole = np.rint(tone * 2**15).astype(np.int16)
    make_wav(tmp_path / f"AudioWAV/{TRAIN[0]}.wav", rate=22_050, wave=whole)
    heard = SMALL.open(tmp_path).read(0)["audio"][0]
    # Away from the ends a sine of height a has magnitude a N / 4 at its frequency, half of that beside it.
    assert np.allclose(heard[40, 1:124], math.log(0.5 * 512 / 4), atol=1e-3)
    assert np.allclose(heard[[39, 41], 1:124], math.log(0.5 * 512 / 8), atol=1e-3)
    by_hand = log_stft_by_hand(np.concatenate([whole / 2**15] * 3)[: 3 * 22_050], 512, 353)
    assert by_hand.shape == (257, 188)
    assert np.allclose(np.exp(heard), np.exp(by_hand), atol=1e-4)


def test_a_clip_shorter_than_a_second_is_said_as_often_as_needed(tmp_path: Path) -> None:
    lay_out(tmp_path, TRAIN[:1], TEST[:1])
    make_video(tmp_path / f"VideoFlash/{TRAIN[0]}.flv", 1, FLASH)
    make_wav(tmp_path / f"AudioWAV/{TRAIN[0]}.wav", 0.4)
    assert SMALL.open(tmp_path).read(0)["audio"].shape == (1, 257, 188)  # tiled three times it would have 77 frames


def test_filter_bank(source: Path) -> None:
    original = CREMAD(audio="fbank", size=32, crop=16)
    arrays = original.open(source).read(0)
    check_arrays(original, arrays)
    assert arrays["audio"].shape == (1, 1024, 128)
    frames = 1 + (int(2.3 * 16_000) - 400) // 160
    filled = np.isclose(arrays["audio"][0], 4.503877 / (2 * 5.141276), rtol=0, atol=1e-6)
    assert not filled[:frames].all(axis=1).any()
    assert filled[frames:].all()


def test_the_counts_of_agm_and_of_the_paper_of_mimo(tmp_path: Path) -> None:
    names = every_clip()
    train, test = names[:6_698], names[6_698:]
    clips = CREMAD().open(lay_out(tmp_path, train, test)).listed
    assert counts(clips, AGM) == {"train": 6_027, "validation": 669, "test": 745}
    whole = [name for name in train if name != "1076_MTI_SAD_XX"]
    parts = {clip.id: clip.parts.get(AGM) for clip in clips}
    assert {parts[name] for name in whole[:6_027]} == {"train"}
    assert {parts[name] for name in test[:669]} == {"validation"}
    assert {parts[name] for name in [*whole[6_027:], *test[669:]]} == {"test"}
    assert parts["1076_MTI_SAD_XX"] is None
    official = counts(clips, "official")
    assert official["test"] == 744
    assert official["train"] + official["validation"] == 6_698
    assert abs(official["validation"] / 6_698 - 0.1) < 0.02
    for protocol in ("official", AGM):
        for part in PARTS:
            assert len({clip.group for clip in clips if clip.parts.get(protocol) == part}) == 91
        assert "all 91 actors" in CREMAD.protocols[protocol].about
    assert CREMAD.protocols[AGM].selects_on_test
    assert "chooses the epoch on those 669" in CREMAD.protocols[AGM].about


@pytest.mark.parametrize("seed", range(10))
def test_no_actor_is_in_two_parts(tmp_path: Path, seed: int) -> None:
    draw = random.Random(seed)
    names = draw.sample(every_clip(), 400)
    border = draw.randrange(300, 390)
    clips = CREMAD().open(lay_out(tmp_path, names[:border], names[border:])).listed
    assert groups_in_two_parts(clips, "actors") == set()
    assert groups_in_two_parts(clips, "official")  # which the check would notice
    moved = replace(clips[0], parts={"actors": next(part for part in PARTS if part != clips[0].parts["actors"])})
    assert groups_in_two_parts([*clips, moved], "actors") == {moved.group}


def test_all_actors_are_shared_out(tmp_path: Path) -> None:
    clips = CREMAD().open(lay_out(tmp_path, every_clip(), [])).listed
    actors = {clip.group: clip.parts["actors"] for clip in clips}
    assert {part: list(actors.values()).count(part) for part in PARTS} == {"train": 61, "validation": 14, "test": 16}


def test_without_lists_only_cuts_by_actor_can_be_had(source: Path, tmp_path: Path) -> None:
    shutil.copytree(source, tmp_path / "cremad", ignore=shutil.ignore_patterns("*.csv"))
    clips = SMALL.open(tmp_path / "cremad").listed
    by_actor = {"actors", *EMO_SUPERB}
    with_lists = {
        clip.id: {name: part for name, part in clip.parts.items() if name in by_actor}
        for clip in SMALL.open(source).listed
    }
    assert {clip.id: dict(clip.parts) for clip in clips} == with_lists
    assert [clip.id for clip in clips] == sorted(with_lists)
    assert 'only "actors" and "emo-superb-1" to' in CREMAD.layout


# The actors of each part in data/CREMA-D/Primary/labels_consensus_1.csv to labels_consensus_5.csv of EMO-SUPERB: the
# first and the last of what tests and of what validates. All others train.
PUBLISHED = {
    "emo-superb-1": ((1001, 1018), (1019, 1036)),
    "emo-superb-2": ((1019, 1036), (1037, 1054)),
    "emo-superb-3": ((1037, 1054), (1055, 1072)),
    "emo-superb-4": ((1055, 1072), (1073, 1091)),
    "emo-superb-5": ((1073, 1091), (1001, 1018)),
}


def test_the_folds_of_emo_superb_are_those_that_were_published(tmp_path: Path) -> None:
    clips = CREMAD().open(lay_out(tmp_path, every_clip(), [])).listed
    assert tuple(PUBLISHED) == EMO_SUPERB
    for name, (tests, validates) in PUBLISHED.items():
        parts = {int(clip.group): clip.parts[name] for clip in clips}
        expected = dict.fromkeys(range(1001, 1092), "train")
        expected |= dict.fromkeys(range(tests[0], tests[1] + 1), "test")
        expected |= dict.fromkeys(range(validates[0], validates[1] + 1), "validation")
        assert parts == expected
        assert groups_in_two_parts(clips, name) == set()
        assert CREMAD.protocols[name].by_group
        assert "labels are intended emotions, not its votes" in CREMAD.protocols[name].about
    tested = [clip.id for clip in clips for name in EMO_SUPERB if clip.parts[name] == "test"]
    assert sorted(tested) == sorted(clip.id for clip in clips)  # each once


def test_a_number_that_is_no_actors_is_in_no_fold_of_emo_superb(tmp_path: Path) -> None:
    (clip,) = CREMAD().open(lay_out(tmp_path, ["1092_DFA_ANG_XX"], [])).listed
    assert not set(EMO_SUPERB) & set(clip.parts)


def test_nothing_depends_on_which_files_exist(source: Path, tmp_path: Path) -> None:
    whole = SMALL.open(source)
    copy = shutil.copytree(source, tmp_path / "cremad")
    (copy / f"AudioWAV/{TRAIN[0]}.wav").unlink()
    (copy / f"VideoFlash/{TRAIN[1]}.flv").unlink()
    fewer = SMALL.open(copy)
    assert list(fewer.listed) == list(whole.listed)
    assert SMALL.classes(fewer) == SMALL.classes(whole)
    for number in (0, 1):
        with pytest.raises(Unreadable, match=TRAIN[number]):
            fewer.read(number)
    fewer.read(2)


def test_the_layout_of_agm(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lay_out(tmp_path, TRAIN, TEST)
    shutil.rmtree(tmp_path / "VideoFlash")
    shutil.rmtree(tmp_path / "AudioWAV")
    shutil.copytree(source / "AudioWAV", tmp_path / "Audio")
    for name in [*TRAIN, *TEST]:
        for number in (0, 29, 58):
            pixels = np.full((24, 32, 3), shade(number), np.uint8)
            make_image(tmp_path / f"Image-01-FPS/{name}/{number:05d}.jpg", pixels=pixels)
    for seed in range(3):  # however the folder is listed
        scramble_listings(monkeypatch, seed)
        arrays = SMALL.open(tmp_path).read(0)
        assert [index_of(frame) for frame in arrays["video"]] == [0, 9, 8]
    assert np.array_equal(arrays["audio"], SMALL.open(source).read(0)["audio"])


def test_the_frames_that_are_drawn_are_the_frames_that_are_seen(source: Path) -> None:
    frames = torch.from_numpy(SMALL.open(source).read(0)["video"]).unsqueeze(0)
    view = VideoFrames(
        count=SMALL.frames, size=SMALL.crop, mean=(0.0,) * 3, deviation=(1 / 255,) * 3
    )  # leaves bytes be
    lengths = torch.tensor([frames.shape[1]])
    seen = {tuple(index_of(each.numpy()) for each in view(frames, lengths, None)[0].transpose(0, 1)) for _ in range(5)}
    assert seen == {(0, 8)}  # of three frames, those in the middle of each half: always
    random_view = torch.Generator().manual_seed(0)
    drawn = set()
    for _ in range(50):
        both = view(frames, lengths, random_view)[0].transpose(0, 1)
        drawn.add(tuple(index_of(each.numpy()) for each in both))
    assert drawn == {(0, 9), (0, 8), (9, 9), (9, 8)}  # the first of frames 0 and 29, the second of 29 and 58


@pytest.mark.parametrize("count", [1, 2, 3])
def test_clips_of_few_frames_have_every_frame_they_need(tmp_path: Path, count: int) -> None:
    lay_out(tmp_path, TRAIN[:1], TEST[:1])
    make_wav(tmp_path / f"AudioWAV/{TRAIN[0]}.wav")
    make_video(tmp_path / f"VideoFlash/{TRAIN[0]}.flv", count - 0.5, FLASH)
    original = CREMAD(size=32, crop=16, frames=4)
    frames = torch.from_numpy(original.open(tmp_path).read(0)["video"]).unsqueeze(0)
    view = original.fields["video"].view
    assert view is not None
    assert frames.shape[1] == count
    for generator in (None, torch.Generator().manual_seed(0)):
        assert view(frames, torch.tensor([count]), generator).shape == (1, 3, 4, 16, 16)


def test_reading_resets_no_seed(source: Path) -> None:
    check_reading_draws_nothing(SMALL.open(source), 0)


@pytest.mark.slow
def test_prepared_and_trained(tmp_path: Path) -> None:
    every = CREMAD().open(lay_out(tmp_path / "names", every_clip(), [])).listed
    one, three, two = (next(clip.group for clip in every if clip.parts["actors"] == part) for part in PARTS)
    names = [f"{one}_DFA_{emotion}_XX" for emotion in EMOTIONS] + [f"{one}_IEO_HAP_LO"]
    names += [f"{actor}_DFA_{emotion}_XX" for actor in (two, three) for emotion in EMOTIONS[:2]]
    source = lay_out(tmp_path / "source", names[:9], names[9:])
    for number, name in enumerate(names):
        make_wav(source / f"AudioWAV/{name}.wav", 1.2, 16_000, hertz=200 + 20 * number)
        make_video(source / f"VideoFlash/{name}.flv", 1.2, FLASH)
    break_silence(source / f"AudioWAV/{names[6]}.wav")
    splits = check_prepared(SMALL, source, tmp_path / "out", "actors", [names[6]])
    assert {name: len(part) for name, part in splits.parts.items()} == {"train": 6, "validation": 2, "test": 2}
    assert splits.shapes == {"audio": (1, 257, 188), "video": (3, 2, 16, 16)}
    check_trains(splits.check())
