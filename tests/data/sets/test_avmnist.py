"""AV-MNIST, made of its ingredients or read from the files that go round."""

import hashlib
import multiprocessing as mp
import os
import shutil
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from data.sets.made_avmnist import (
    FOLDS,
    SPEAKERS,
    TEST,
    TRAIN,
    VALIDATION,
    make_images,
    make_ingredients,
    make_takes,
    row_of,
    write_idx,
)
from equipoise.data.sets.avmnist import AVMNIST, Pairs
from equipoise.data.sets.avmnist_sources import SAMPLES, part_of_speakers, read_idx

MADE = AVMNIST(validation_images=VALIDATION, energy=0.9)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_ingredients(tmp_path_factory.mktemp("ingredients"))


@pytest.fixture(scope="module")
def pairs(source: Path) -> Pairs:
    return opened(source)


@pytest.fixture
def own(source: Path, tmp_path: Path) -> Path:
    """A copy that a test may spoil."""
    return Path(shutil.copytree(source, tmp_path / "own"))


def opened(source: Path, original: AVMNIST = MADE) -> Pairs:
    pairs = original.open(source)
    assert isinstance(pairs, Pairs)
    return pairs


def digest_of(pairs: Pairs, number: int) -> str:
    return hashlib.sha256(b"".join(array.tobytes() for array in pairs.read(number).values())).hexdigest()


# -- every sound with its own label --


def heard_digit(sound: np.ndarray) -> int:
    """The digit whose tone is loudest in the middle of a spectrogram."""
    loudest = sound[0, :, 50:62].astype(float).mean(axis=1).argmax()
    return [row_of(digit) for digit in range(10)].index(int(loudest))


def test_every_sound_says_the_digit_of_its_image(source: Path) -> None:
    """In a public generator sounds come in the order in which they happen to be done, and labels in the one planned."""
    pairs = opened(source, replace(MADE, snr=25.0))
    published = np.concatenate(
        [read_idx(source / "mnist" / f"{stem}-labels-idx1-ubyte.gz", 1) for stem in ("train", "t10k")]
    )
    assert [clip.label for clip in pairs.listed] == published.tolist()
    assert [heard_digit(pairs.read(number)["sound"]) for number in range(len(published))] == published.tolist()
    assert [int(clip.id.split("/")[1][0]) for clip in pairs.listed] == published.tolist()


def test_every_image_is_its_own(source: Path) -> None:
    """With all components kept, an image comes back as it was, in MNIST's order."""
    pairs = opened(source, replace(MADE, energy=1.0))
    pixels = np.concatenate(
        [read_idx(source / "mnist" / f"{stem}-images-idx3-ubyte.gz", 3) for stem in ("train", "t10k")]
    )
    for number in range(TRAIN):  # with fewer images than pixels, others are outside of what components span
        found = pairs.read(number)["image"][0].astype(float)
        np.testing.assert_allclose(255 * found, pixels[number], atol=0.2)


# -- the same bytes, whoever makes them and when --


def test_a_pair_depends_on_the_seed_and_its_number_alone(source: Path, pairs: Pairs) -> None:
    again = opened(source)
    forwards = [digest_of(pairs, number) for number in range(TRAIN)]
    assert [digest_of(again, number) for number in reversed(range(TRAIN))] == forwards[::-1]
    assert len(set(forwards)) == TRAIN
    other = opened(source, replace(MADE, seed=1))
    assert sum(digest_of(other, number) == forwards[number] for number in range(TRAIN)) == 0


def test_draws_are_those_of_the_hash(source: Path) -> None:
    pairs = opened(source, replace(MADE, seed=7))
    number = 3
    digest = hashlib.sha256(b"7/3").digest()
    take, noise, start = pairs.drawn(number)
    mine = sorted(
        f"{pairs.listed[number].label}_{speaker}_{index}"
        for speaker in SPEAKERS
        if speaker not in ("george", "lucas")
        for index in range(2)
    )
    assert take.name == mine[int.from_bytes(digest[:8], "big") % 8]
    assert f"{noise.name}.wav" == list(FOLDS)[int.from_bytes(digest[8:16], "big") % 3]
    assert start == int.from_bytes(digest[16:24], "big") % (len(noise.wave) - SAMPLES)


def test_files_are_taken_by_name_and_not_as_a_folder_lists_them(
    source: Path, pairs: Pairs, monkeypatch: pytest.MonkeyPatch
) -> None:
    listing = Path.glob
    monkeypatch.setattr(Path, "glob", lambda self, pattern: sorted(listing(self, pattern), reverse=True))
    assert [clip.id for clip in opened(source).listed] == [clip.id for clip in pairs.listed]


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 3])
def test_processes_make_the_same_bytes(pairs: Pairs, workers: int) -> None:
    numbers = range(len(pairs.listed))
    _SHARED["pairs"] = pairs
    with mp.get_context("fork").Pool(workers) as pool:
        there = pool.map(_digest_there, numbers, chunksize=1)
    assert there == [digest_of(pairs, number) for number in numbers]


_SHARED: dict[str, Pairs] = {}


def _digest_there(number: int) -> str:
    torch.set_num_threads(1)
    return digest_of(_SHARED["pairs"], number)


# -- parts --


def test_parts_are_mnist_s_with_the_last_training_images_validating(pairs: Pairs) -> None:
    parts = [clip.parts["speakers"] for clip in pairs.listed]
    assert parts == ["train"] * TRAIN + ["validation"] * VALIDATION + ["test"] * TEST


def test_no_speaker_and_no_noise_is_heard_in_two_parts(pairs: Pairs) -> None:
    heard = {part: set() for part in ("train", "validation", "test")}
    for number, clip in enumerate(pairs.listed):
        take, noise, _ = pairs.drawn(number)
        assert clip.group == take.speaker
        heard[clip.parts["speakers"]] |= {take.speaker, noise.name}
    assert heard["validation"] == {"george", "4-7-A-3"}
    assert heard["test"] == {"lucas", "5-7-A-4"}
    assert heard["train"] <= {"jackson", "nicolas", "theo", "yweweler", "1-7-A-0", "2-7-A-1", "3-7-A-2"}
    assert len(heard["train"]) > 5


def test_where_a_speaker_falls_does_not_depend_on_who_else_there_is() -> None:
    whole, problems = part_of_speakers([f"{number:02d}" for number in range(1, 61)])
    assert problems == []
    assert Counter(whole.values()) == {"train": 41, "validation": 10, "test": 9}  # of AudioMNIST
    for speaker, part in whole.items():
        assert part_of_speakers([speaker])[0] == {speaker: part}


def test_speakers_can_be_named(source: Path) -> None:
    pairs = opened(source, replace(MADE, validation_speakers="theo", test_speakers="george, jackson"))
    found = {
        part: {clip.group for clip in pairs.listed if clip.parts["speakers"] == part} for part in ("validation", "test")
    }
    assert found == {"validation": {"theo"}, "test": {"george", "jackson"}}


# -- images --


def test_components_are_those_of_the_training_part_alone(own: Path, pairs: Pairs) -> None:
    """A public generator fits them on the test images, for these."""
    before = pairs
    pixels = np.asarray(read_idx(own / "mnist" / "train-images-idx3-ubyte.gz", 3)).copy()
    pixels[TRAIN:] = 255 - pixels[TRAIN:]
    write_idx(own / "mnist" / "train-images-idx3-ubyte.gz", pixels)
    write_idx(own / "mnist" / "t10k-images-idx3-ubyte.gz", np.zeros((TEST, 28, 28), np.uint8))
    after = opened(own)
    assert np.array_equal(before.components.mean, after.components.mean)
    assert np.array_equal(before.components.components, after.components.components)
    pixels[0] = 255 - pixels[0]
    write_idx(own / "mnist" / "train-images-idx3-ubyte.gz", pixels)
    assert not np.array_equal(opened(own).components.mean, before.components.mean)


def test_what_is_blacker_than_black_is_kept(pairs: Pairs) -> None:
    stored = np.stack([pairs.read(number)["image"][0] for number in range(len(pairs.listed))])
    exact = np.stack([pairs.components.project(pixels) / 255 for pixels in pairs.images.pixels])
    assert exact.min() < -0.02
    assert np.abs(stored - exact).max() < 2**-11  # what float16 rounds between 0.5 and 1


# -- what is stored --


def test_fields_are_what_is_read(pairs: Pairs) -> None:
    fields = MADE.fields
    assert list(fields) == ["image", "sound"]
    for number in (0, TRAIN, len(pairs.listed) - 1):
        found = pairs.read(number)
        assert {name: (array.shape, array.dtype.name) for name, array in found.items()} == {
            name: (each.shape, each.dtype) for name, each in fields.items()
        }
        for name, each in fields.items():
            assert each.view is not None
            seen = each.view(torch.from_numpy(found[name])[None], None, None)
            assert (seen.dtype, tuple(seen.shape[1:])) == (torch.float32, each.shape)
            expected = found[name].astype(float) / (255 if name == "sound" else 1)
            np.testing.assert_allclose(seen[0].numpy(), expected, rtol=1e-6)
    assert MADE.classes(pairs) == ("0", "1", "2", "3", "4", "5", "6", "7", "8", "9")
    assert MADE.protocols["speakers"].by_group
    assert next(iter(MADE.protocols)) == "speakers"


def test_the_noise_is_at_the_stated_ratio(source: Path) -> None:
    """In the pictures themselves: ten decibels less of ratio, ten decibels more of noise, before anything is said."""
    quiet, loud = (opened(source, replace(MADE, snr=snr)) for snr in (10.0, 0.0))
    steps = 255 / 100 * 10
    for number in range(10):
        before, after = (pairs.read(number)["sound"][0, :, :20].astype(float) for pairs in (quiet, loud))
        assert np.median(after - before) == pytest.approx(steps, abs=1)


# -- layouts --


def test_ingredients_may_lie_in_the_source_itself(source: Path, pairs: Pairs, tmp_path: Path) -> None:
    for folder in ("mnist", "fsdd", "esc50"):
        shutil.copytree(source / folder, tmp_path, dirs_exist_ok=True)
    assert [clip.id for clip in opened(tmp_path).listed] == [clip.id for clip in pairs.listed]


def test_folders_can_be_named(own: Path) -> None:
    for old, new in (("mnist", "digits"), ("fsdd", "voices/free"), ("esc50", "din")):
        (own / new).parent.mkdir(exist_ok=True)
        (own / old).rename(own / new)
    named = opened(own, replace(MADE, mnist="digits", spoken="voices/free", noises="din"))
    assert len(named.listed) == TRAIN + VALIDATION + TEST


def test_audio_mnist_is_brought_to_the_same_rate(own: Path, pairs: Pairs) -> None:
    expected = {take.name: take.wave for take in pairs.takes}
    shutil.rmtree(own / "fsdd")
    make_takes(own / "audiomnist", rate=48_000, nested=True)
    (own / "audiomnist" / "data" / "audioMNIST_meta.txt").write_text("{}", encoding="utf-8")
    faster = opened(own, replace(MADE, snr=25.0))
    assert {take.name for take in faster.takes} == set(expected)
    assert len(faster.listed) == TRAIN + VALIDATION + TEST
    for take in faster.takes:
        assert abs(len(take.wave) - len(expected[take.name])) <= 160
    for number, clip in enumerate(faster.listed):
        assert heard_digit(faster.read(number)["sound"]) == clip.label


def test_idx_files_need_not_be_zipped(own: Path, pairs: Pairs) -> None:
    shutil.rmtree(own / "mnist")
    make_images(own / "mnist", zipped=False)
    assert np.array_equal(opened(own).images.pixels, pairs.images.pixels)


# -- the real thing --


@pytest.mark.slow
@pytest.mark.skipif("EQUIPOISE_INGREDIENTS" not in os.environ, reason="NO REAL INGREDIENTS: set EQUIPOISE_INGREDIENTS")
def test_the_real_ingredients() -> None:
    pairs = opened(Path(os.environ["EQUIPOISE_INGREDIENTS"]), AVMNIST())
    counts = Counter(clip.parts["speakers"] for clip in pairs.listed)
    assert counts == {"train": 55_000, "validation": 5_000, "test": 10_000}
    assert (len(pairs.components.components), pairs.components.kept) == (3, pytest.approx(0.2296, abs=1e-4))
    for number, clip in enumerate(pairs.listed):
        take, noise, start = pairs.drawn(number)
        assert take.digit == clip.label == int(pairs.images.label[number]) == int(clip.id.split("/")[1][0])
        assert take.part == noise.part == clip.parts["speakers"]
        assert 0 <= start < len(noise.wave) - SAMPLES
    started = time.process_time()
    for number in range(0, 70_000, 100):
        pairs.read(number)
    assert (time.process_time() - started) / 700 < 4e-3
