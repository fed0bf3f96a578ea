"""UR-FUNNY from its pickle: what is cut, what is skipped and why, who is in which part."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from data.sets.checks import (
    check_arrays,
    check_it_trains,
    check_listing,
    check_reading_draws_nothing,
    check_trains,
    counts,
)
from data.sets.pickled import check_broken_pickles, check_nothing_runs, write_pickle
from equipoise.data.prepare.prepare import prepare
from equipoise.data.sets.urfunny import WIDTHS, URFunny
from equipoise.models.late_fusion import LateFusion
from equipoise.models.sequence import FirstStepTransformer
from equipoise.util.errors import Unreadable

STEPS = 50
LENGTHS = {"train": [50, 3, 1, 12], "valid": [7, 20, 4], "test": [5, 9]}
LABELS = {"train": [0, 1, -1, 1], "valid": [1, 0, 1], "test": [0, 1]}


def split(name: str, first: int) -> dict[str, Any]:
    """Samples padded in front; in modality m, row t of sample i holds 1000 m + 100 i + t everywhere."""
    lengths = LENGTHS[name]
    found: dict[str, Any] = {
        "labels": np.array(LABELS[name], dtype=np.float64)[:, None],
        "id": np.arange(first, first + len(lengths))[:, None],
    }
    for number, (modality, width) in enumerate(WIDTHS.items(), 1):
        array = np.zeros((len(lengths), STEPS, width))
        for row, length in enumerate(lengths):
            steps = np.arange(length)[:, None]
            array[row, STEPS - length :] = 1000 * number + 100 * row + steps
        found[modality] = array
    return found


def humor() -> dict[str, Any]:
    return {"train": split("train", 10), "valid": split("valid", 20), "test": split("test", 30)}


@pytest.fixture
def source(tmp_path: Path) -> Path:
    write_pickle(tmp_path / "humor.pkl", humor())
    return tmp_path


def test_shapes_classes_and_parts(source: Path) -> None:
    clips = URFunny().open(source)
    check_listing(URFunny(), clips)
    assert URFunny().classes(clips) == ("no laughter", "laughter")
    assert [clip.id for clip in clips.listed] == ["10", "11", "12", "13", "20", "21", "22", "30", "31"]
    assert [clip.label for clip in clips.listed] == [0, 1, 0, 1, 1, 0, 1, 0, 1]
    assert counts(clips.listed, "official") == {"train": 4, "validation": 3, "test": 2}
    fields = URFunny().fields
    assert {name: field.shape for name, field in fields.items()} == {
        "vision": (50, 371),
        "audio": (50, 81),
        "text": (50, 300),
    }
    for number in range(9):
        check_arrays(URFunny(), clips.read(number))
    check_reading_draws_nothing(clips, 3)


def test_agm_reports_what_it_selects_on(source: Path) -> None:
    clips = URFunny().open(source).listed
    assert URFunny.protocols["agm-valid"].selects_on_test
    assert not URFunny.protocols["official"].selects_on_test
    assert counts(clips, "agm-valid") == {"train": 4, "validation": 0, "test": 3}
    assert {clip.id for clip in clips if clip.parts.get("agm-valid") == "test"} == {"20", "21", "22"}


@pytest.mark.parametrize("label", [-1, 0, 0.99, 1, 2])
def test_a_label_below_one_is_no_laughter(label: float, tmp_path: Path) -> None:
    content = humor()
    content["test"]["labels"][0] = label
    listed = URFunny().open(write_pickle(tmp_path / "humor.pkl", content)).listed
    assert listed[7].label == (0 if label < 1 else 1)


def test_padding_in_front_is_cut_and_words_stay_aligned(source: Path) -> None:
    clips = URFunny().open(source)
    lengths = [length for each in LENGTHS.values() for length in each]
    for number, length in enumerate(lengths):
        arrays = clips.read(number)
        assert {len(array) for array in arrays.values()} == {length}
    arrays = clips.read(5)  # the second of valid: twenty words
    for number, modality in enumerate(WIDTHS, 1):
        assert arrays[modality][:, 0].tolist() == [1000 * number + 100 + step for step in range(20)]
        assert (arrays[modality] == arrays[modality][:, :1]).all()


def test_the_text_alone_says_where_a_sample_starts(tmp_path: Path) -> None:
    content = humor()
    train = content["train"]
    train["vision"][1, :] = 5  # a face before the first word
    train["audio"][1, -3:] = 0  # no sound at all
    train["text"][1, -2] = 0  # a word without a vector, in the middle
    train["text"][2, -1] = np.linspace(0, 1, 300)  # the first of its numbers is zero
    train["text"][3, -1] = 0  # and one at the end: no padding there
    clips = URFunny().open(write_pickle(tmp_path / "humor.pkl", content))
    arrays = clips.read(1)
    assert {len(array) for array in arrays.values()} == {3}
    assert (arrays["vision"] == 5).all()
    assert (arrays["audio"] == 0).all()
    assert arrays["text"][:, 0].tolist() == [3100, 0, 3102]
    assert len(clips.read(2)["text"]) == 1
    assert len(clips.read(3)["text"]) == 12


def test_silence_is_zero_and_anything_else_that_is_no_number_is_named(tmp_path: Path) -> None:
    content = humor()
    content["train"]["audio"][0, 10, 3] = -np.inf
    content["train"]["audio"][1, -1, 3] = np.inf
    content["train"]["vision"][2, -1, 3] = np.nan
    content["train"]["vision"][3, -1, 3] = 1e300  # too large for 32 bits
    content["train"]["vision"][0, 20, 3] = -1.0
    clips = URFunny().open(write_pickle(tmp_path / "humor.pkl", content))
    arrays = clips.read(0)
    assert arrays["audio"][10].tolist() == [2010.0] * 3 + [0.0] + [2010.0] * 77
    assert arrays["vision"][20, 3] == -1
    for number, modality in ((1, "audio"), (2, "vision"), (3, "vision")):
        with pytest.raises(Unreadable, match=rf"humor\.pkl, train, row {number}: .*NaN or infinity in {modality}$"):
            clips.read(number)


def test_a_sample_without_words_is_skipped_with_its_reason(tmp_path: Path) -> None:
    content = humor()
    content["valid"]["text"][1] = 0
    clips = URFunny().open(write_pickle(tmp_path / "humor.pkl", content))
    assert len(clips.listed) == 9
    with pytest.raises(Unreadable, match=r"humor\.pkl, valid, row 1: the text sums to 0"):
        clips.read(5)


def test_longer_samples_are_refused_and_not_cut(source: Path) -> None:
    with pytest.raises(
        ValueError, match=r"train, text: expected numbers \[N, up to 49, 300\], found float64 \[4, 50, 300\]"
    ):
        URFunny(steps=49).open(source)
    assert URFunny(steps=60).open(source).read(0)["text"].shape == (50, 300)
    with pytest.raises(ValueError, match="steps should be 1 or more, found 0"):
        URFunny(steps=0)


def test_the_pickle_itself_is_a_source(source: Path) -> None:
    whole, alone = URFunny().open(source), URFunny().open(source / "humor.pkl")
    assert whole.listed == alone.listed


def test_everything_wrong_is_said_at_once(tmp_path: Path) -> None:
    content = humor()
    del content["train"]["audio"]
    content["train"]["vision"] = content["train"]["vision"][:, :, :370]
    content["valid"]["text"] = content["valid"]["text"][:2]
    content["valid"]["labels"] = np.array([1.0, np.nan, 0.0])
    del content["test"]
    with pytest.raises(ValueError, match="cannot be read as urfunny") as caught:
        URFunny().open(write_pickle(tmp_path / "humor.pkl", content))
    said = str(caught.value)
    for expected in (
        r"train: expected audio too, found only labels, id, vision, text",
        r"train, vision: expected numbers \[N, up to 50, 371\], found float64 \[4, 50, 370\]",
        r"valid: expected as many samples everywhere, found 3 vision, 3 audio, 2 text, 3 labels, 3 id",
        r"test: expected a dictionary of vision, audio, text, labels, id; found nothing",
        r"humor\.pkl .*train, valid and test, each with vision",  # the layout
    ):
        assert re.search(expected, said), expected


@pytest.mark.parametrize("labels", [[1.0, np.nan, 0.0], ["yes", "no", "no"], 3])
def test_labels_must_be_numbers(labels: Any, tmp_path: Path) -> None:
    content = humor()
    content["valid"]["labels"] = labels
    with pytest.raises(ValueError, match="valid, labels: expected finite numbers"):
        URFunny().open(write_pickle(tmp_path / "humor.pkl", content))


@pytest.mark.parametrize(
    ("fold", "expected"), [("test", "in train and in test: 11$"), ("train", "twice in train: 11$")]
)
def test_an_id_names_one_sample(fold: str, expected: str, tmp_path: Path) -> None:
    content = humor()
    content[fold]["id"][0] = 11
    with pytest.raises(ValueError, match=rf"(?m)expected every id once, found 1 {expected}"):
        URFunny().open(write_pickle(tmp_path / "humor.pkl", content))


@pytest.mark.parametrize("content", [[1, 2], {"train": [1], "valid": None, "test": {}}, {}])
def test_other_content_is_refused(content: Any, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"humor\.pkl: .*expected a dictionary"):
        URFunny().open(write_pickle(tmp_path / "humor.pkl", content))


def test_no_pickle_runs_and_broken_ones_are_named(source: Path) -> None:
    check_nothing_runs(source / "humor.pkl", lambda: URFunny().open(source))
    check_broken_pickles(source / "humor.pkl", lambda: URFunny().open(source), noises=300)


def test_an_empty_folder_is_told_what_belongs_there(tmp_path: Path) -> None:
    with pytest.raises(
        ValueError, match=r"(?s)expected humor\.pkl, or data_folds\.pkl.*found none.*extracted features"
    ):
        URFunny().open(tmp_path)


@pytest.mark.slow
def test_prepared_and_trained(tmp_path: Path) -> None:
    content = humor()
    content["valid"]["text"][1] = 0
    write_pickle(tmp_path / "humor.pkl", content)
    prepared = prepare(URFunny(), tmp_path / "humor.pkl", tmp_path / "out", workers=2)
    [(name, reason)] = prepared.skipped
    assert name == "21"
    assert "sums to 0" in reason
    splits = prepared.splits()
    assert {part: len(each) for part, each in splits.parts.items()} == {"train": 4, "validation": 2, "test": 2}
    assert splits.shapes == {"vision": (371, 50), "audio": (81, 50), "text": (300, 50)}
    valid = splits.validation.in_memory()
    assert valid.inputs["text_length"].tolist() == [7, 4]
    assert valid.inputs["text"][0, :8, 0].tolist() == [3000.0 + step for step in range(7)] + [0.0]
    reported = prepared.splits("agm-valid")
    assert len(reported.validation) == len(reported.test) == 2
    encoders = {
        name: FirstStepTransformer(shape[0], features=8, layers=2, heads=2, feedforward=16)
        for name, shape in splits.shapes.items()
    }
    model = LateFusion(encoders, classes=2, fusion="sum")
    check_it_trains(model, splits.train)
    check_trains(splits, features=8)
