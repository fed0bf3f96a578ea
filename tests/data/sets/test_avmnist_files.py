"""What AV-MNIST says of ingredients that are missing or broken, and the files that go round."""

import re
import shutil
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from data.sets.made_avmnist import TEST, TRAIN, VALIDATION, make_ingredients, make_takes, write_idx
from equipoise.data.sets.avmnist import AGM, AVMNIST, MULTIBENCH, published_clips
from equipoise.util.errors import Unreadable
from media.made import make_wav

MADE = AVMNIST(validation_images=VALIDATION, energy=0.9)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_ingredients(tmp_path_factory.mktemp("ingredients"))


@pytest.fixture
def own(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "own"))


def message_of(source: Path, original: AVMNIST = MADE) -> str:
    with pytest.raises(ValueError, match=r"cannot be read as avmnist") as caught:
        original.open(source)
    return str(caught.value)


# -- ingredients --


def test_an_empty_folder_is_told_all_that_belongs_there(tmp_path: Path) -> None:
    for source in (tmp_path, tmp_path / "absent"):
        message = message_of(source)
        for part in (
            "images: expected",
            "spoken digits: expected",
            "noises: expected",
            "fsdd/recordings/DIGIT_SPEAKER",
        ):
            assert part in message


def test_everything_that_is_wrong_comes_in_one_message(own: Path) -> None:
    recordings, audio = own / "fsdd" / "recordings", own / "esc50" / "audio"
    (own / "mnist" / "t10k-labels-idx1-ubyte.gz").unlink()
    images = own / "mnist" / "train-images-idx3-ubyte.gz"
    images.write_bytes(images.read_bytes()[:-300])
    for index in range(2):
        (recordings / f"3_theo_{index}.wav").unlink()
    (recordings / "4_jackson_0.wav").write_text("not a sound", encoding="utf-8")
    (recordings / "5_jackson_0.wav").write_bytes(b"")
    make_wav(recordings / "6_jackson_0.wav", rate=8000, wave=np.zeros(4000))
    make_wav(recordings / "7_jackson_0.wav", rate=8000, wave=np.ones(1))
    make_wav(recordings / "seven.wav")
    (audio / "2-7-A-1.wav").unlink()
    make_wav(audio / "3-7-A-2.wav", rate=44_100, wave=np.zeros(40_000))
    lines = message_of(own).splitlines()
    for file, why in {
        "t10k-labels-idx1-ubyte": "there is no such file",
        "train-images-idx3-ubyte.gz": "a damaged one",
        "own/fsdd: expected every digit spoken by theo": "found none of 3",
        "4_jackson_0.wav": "",
        "5_jackson_0.wav": "empty",
        "6_jackson_0.wav": "found silence",
        "7_jackson_0.wav": "at least 40 ms of sound, found 0.125 ms",
        "own/fsdd: expected names like": "found seven.wav",
        "2-7-A-1.wav": "there is no such file",
        "3-7-A-2.wav": "found silence",
    }.items():
        assert sum(file in line and why in line for line in lines) == 1, (file, lines)


def test_many_broken_files_are_counted(own: Path) -> None:
    for file in (own / "fsdd" / "recordings").glob("*_theo_*.wav"):
        file.write_bytes(b"RIFF")
    message = message_of(own)
    assert "… and 10 more files that cannot be used" in message
    assert message.count("_theo_") == 10


def test_images_and_labels_that_do_not_fit(own: Path) -> None:
    write_idx(own / "mnist" / "train-labels-idx1-ubyte.gz", np.full(7, 10, np.uint8))
    write_idx(own / "mnist" / "t10k-images-idx3-ubyte.gz", np.zeros((TEST, 20, 28), np.uint8))
    message = message_of(own)
    assert f"expected a label for each training image, found {TRAIN + VALIDATION} and 7" in message
    assert "expected training labels from 0 to 9, found 10" in message
    assert "expected test images of 28 × 28, found (20, 28)" in message


def test_more_validation_images_than_there_are(own: Path) -> None:
    message = message_of(own, replace(MADE, validation_images=40))
    assert "validation_images: expected fewer than the 40 training images, found 40" in message


def test_too_few_speakers(own: Path) -> None:
    for name in ("george", "lucas"):
        for file in (own / "fsdd" / "recordings").glob(f"*_{name}_*.wav"):
            file.unlink()
    message = message_of(own)
    assert (
        "expected at least one in each part, found none for validation and test among jackson, nicolas, theo" in message
    )
    assert "validation_speakers=NAME test_speakers=NAME" in message
    named = replace(MADE, validation_speakers="theo", test_speakers="jackson")
    assert len(named.open(own).listed) == TRAIN + VALIDATION + TEST


def test_speakers_that_do_not_exist_or_are_everywhere(own: Path) -> None:
    message = message_of(own, replace(MADE, validation_speakers="theo,nobody", test_speakers="theo"))
    assert "speakers: expected some of george, jackson, lucas, nicolas, theo, yweweler, found 'nobody'" in message
    assert "speakers: expected theo in one part, found two" in message
    message = message_of(own, replace(MADE, validation_speakers="theo"))
    assert "found none for test among" in message


def test_two_collections_of_spoken_digits_have_to_be_told_apart(own: Path) -> None:
    make_takes(own / "audiomnist", nested=True)
    assert re.search(r"expected one collection, found .*fsdd and .*audiomnist; .* spoken=FOLDER", message_of(own))
    assert len(replace(MADE, spoken="audiomnist").open(own).listed) == TRAIN + VALIDATION + TEST


def test_files_that_the_finder_leaves_are_passed_over(own: Path) -> None:
    (own / "fsdd" / "recordings" / "._0_theo_0.wav").write_bytes(b"Mac OS X")
    assert len(MADE.open(own).listed) == TRAIN + VALIDATION + TEST


@pytest.mark.parametrize(
    ("table", "why"),
    [
        ("filename,fold\n1-7-A-0.wav,1\n4-7-A-3.wav,4\n", "a noise of fold 5 for test, found none"),
        ("filename,fold\n1-7-A-0.wav,9\n", "folds from 1 to 5 in a column fold, found '9' of 1-7-A-0.wav"),
        (
            "filename,fold\n../audio/1-7-A-0.wav,1\n",
            "names of files in a column filename, found '../audio/1-7-A-0.wav'",
        ),
        ("name,part\n1-7-A-0.wav,1\n", "names of files in a column filename, found ''"),
        ("", "a noise of fold 1 or 2 or 3 for train, found none"),
        ("filename,fold\n1-7-A-0.wav\n", "found '' of 1-7-A-0.wav"),
        (b"\xff\xfe\x00", "expected a table as plain text"),
    ],
)
def test_tables_of_noises(own: Path, table: str | bytes, why: str) -> None:
    content = table.encode() if isinstance(table, str) else table
    (own / "esc50" / "meta" / "esc50.csv").write_bytes(content)
    assert why in message_of(own)


def test_options_that_cannot_be(own: Path) -> None:
    with pytest.raises(ValueError, match=r"snr: .* found nan; energy: .* found 0\.0; validation_images: .* found 0"):
        AVMNIST(snr=float("nan"), energy=0.0, validation_images=0)
    assert "energy: expected at least" in message_of(own, replace(MADE, energy=1e-6))


# -- the files that go round --


@pytest.fixture
def published(tmp_path: Path) -> Path:
    random = np.random.default_rng(0)
    for part, count in (("train", 20), ("test", 10)):
        for kind, shape in (("image", (784,)), ("audio", (112, 112))):
            (tmp_path / kind).mkdir(exist_ok=True)
            values = (
                random.normal(0, 80, (count, *shape)) if kind == "image" else random.integers(0, 256, (count, *shape))
            )
            np.save(tmp_path / kind / f"{part}_data.npy", values)
        np.save(tmp_path / f"{part}_labels.npy", (np.arange(count) % 10).astype(np.uint8))
    return tmp_path


def test_published_pairs_come_back(published: Path) -> None:
    pairs = replace(MADE, validation_images=5).open(published)
    assert len(pairs.listed) == 30
    for number, (part, row) in {0: ("train", 0), 19: ("train", 19), 20: ("test", 0), 29: ("test", 9)}.items():
        found = pairs.read(number)
        assert (found["image"].shape, found["image"].dtype) == ((1, 28, 28), np.float16)
        image = np.load(published / "image" / f"{part}_data.npy")[row].reshape(28, 28) / 255
        np.testing.assert_allclose(found["image"][0], image, atol=1e-3)
        assert np.array_equal(found["sound"][0], np.load(published / "audio" / f"{part}_data.npy")[row])
        assert found["sound"].dtype == np.uint8
        assert (pairs.listed[number].id, pairs.listed[number].label) == (f"{part}-{row:05d}", row % 10)


def test_published_pairs_are_cut_as_agm_and_multibench_cut_them(published: Path) -> None:
    """Of 20 and 10: AGM 18, 9 and 2 + 1; MultiBench all but the last five, those, and the ten."""
    listed = replace(MADE, validation_images=5).open(published).listed
    agm, multibench = ([clip.parts[name] for clip in listed] for name in (AGM, MULTIBENCH))
    assert agm == ["train"] * 18 + ["test"] * 2 + ["validation"] * 9 + ["test"]
    assert multibench == ["train"] * 15 + ["validation"] * 5 + ["test"] * 10
    assert AVMNIST.protocols[AGM].selects_on_test
    assert not AVMNIST.protocols[MULTIBENCH].selects_on_test
    assert all("speakers" not in clip.parts for clip in listed)


def test_the_names_of_the_cuts_are_the_counts_of_the_whole() -> None:
    labels = {("train", "label"): np.zeros(60_000, int), ("test", "label"): np.zeros(10_000, int)}
    listed = published_clips(labels, AVMNIST().validation_images).listed
    for name in (AGM, MULTIBENCH):
        counts = Counter(clip.parts[name] for clip in listed)
        assert name.split("-")[1:] == [str(counts[part]) for part in ("train", "validation", "test")]


def broken(change: Callable[[np.ndarray], Any]) -> Callable[[Path], None]:
    def at(path: Path) -> None:
        np.save(path, change(np.load(path)))

    return at


def test_everything_wrong_with_published_files_comes_in_one_message(published: Path) -> None:
    broken(lambda array: array[:, :100])(published / "image" / "train_data.npy")
    broken(lambda array: array[:-1])(published / "audio" / "train_data.npy")
    broken(lambda array: array + 5)(published / "test_labels.npy")
    message = message_of(published)
    assert "train_data.npy: expected numbers, N × 784, found float64 of shape (20, 100)" in message
    assert "audio/train_data.npy: expected 20 samples, one per label, found 19" in message
    assert "test_labels.npy: expected labels from 0 to 9, found 5 to 14" in message


def test_published_files_that_are_missing_or_damaged(published: Path) -> None:
    (published / "train_labels.npy").unlink()
    path = published / "audio" / "test_data.npy"
    path.write_bytes(path.read_bytes()[:-1000])
    (published / "image" / "test_data.npy").write_bytes(b"")
    (published / "image" / "train_data.npy").write_text("not an array", encoding="utf-8")
    message = message_of(published)
    for name, why in [
        ("train_labels.npy", "no such file"),
        ("audio/test_data.npy", "another file or a damaged one"),
        ("image/test_data.npy", "empty"),
        ("image/train_data.npy", "another file or a damaged one"),
    ]:
        assert any(name in line and why in line for line in message.splitlines()), (name, message)


class Malicious:
    """Writes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (self.path,))


def test_nothing_runs_from_published_files(published: Path, tmp_path: Path) -> None:
    trap = tmp_path / "executed"
    np.save(published / "train_labels.npy", np.array([Malicious(trap)] * 20, dtype=object), allow_pickle=True)
    assert "train_labels.npy" in message_of(published)
    assert not trap.exists()
    np.load(published / "train_labels.npy", allow_pickle=True)  # the trap does work
    assert trap.exists()


def test_pairs_with_impossible_numbers_are_named(published: Path) -> None:
    sounds = np.load(published / "audio" / "train_data.npy").astype(float)
    sounds[0, 0, 0], sounds[1, 0, 0], sounds[2, 5, 5] = 256, np.nan, 7.4
    np.save(published / "audio" / "train_data.npy", sounds)
    images = np.load(published / "image" / "train_data.npy")
    images[3, 9] = np.inf
    np.save(published / "image" / "train_data.npy", images)
    pairs = replace(MADE, validation_images=5).open(published)
    with pytest.raises(Unreadable, match=r"train-00000: sound: expected numbers from 0 to 255, found 0 to 256"):
        pairs.read(0)
    with pytest.raises(Unreadable, match=r"train-00001: sound"):
        pairs.read(1)
    assert pairs.read(2)["sound"][0, 5, 5] == 7
    with pytest.raises(Unreadable, match=r"train-00003: image: expected finite"):
        pairs.read(3)
