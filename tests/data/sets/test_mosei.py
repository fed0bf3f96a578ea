"""CMU-MOSEI as AGM has it: words and their numbers, spectrograms, what is positive."""

import re
from pathlib import Path
from typing import Any

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
)
from data.sets.pickled import Bomb, check_broken_pickles, check_nothing_runs, write_pickle
from equipoise.data.prepare.prepare import check_listing as refuse_listing
from equipoise.data.prepare.prepare import prepare
from equipoise.data.sets.mosei import FIRST, MOSEI, PADDING, UNKNOWN, Neutral, read_vectors, vocabulary_of, words_of
from equipoise.models.late_fusion import LateFusion
from equipoise.models.sequence import AttentionPooled, Tokens
from equipoise.util.errors import Unreadable

SPLITS = ("train", "valid", "test")
SAID = {
    "train": {"aaaaaaaaaaa[0]": "Good, good day!", "aaaaaaaaaaa[1]": "a well-known day", "b_b[0]": "good"},
    "valid": {"100178[0]": "good Evening", "100178[12]": "..."},
    "test": {"ccc[3]": "day and night"},
}
FELT = {
    "aaaaaaaaaaa[0]": 2.0,
    "aaaaaaaaaaa[1]": 0.0,
    "b_b[0]": -1 / 3,
    "100178[0]": -3.0,
    "100178[12]": 0.0,
    "ccc[3]": 1.0,
}


def spoken() -> dict[str, dict[str, dict[str, Any]]]:
    """The nine files: words in rows of one as bytes, and spectrograms whose frame t holds t."""
    content: dict[str, dict[str, dict[str, Any]]] = {}
    for split in SPLITS:
        keys = SAID[split]
        content[split] = {
            "sentences": {key: np.array([[word.encode()] for word in SAID[split][key].split()]) for key in keys},
            "mels": {key: np.repeat(np.arange(5 + len(key), dtype=np.float64)[:, None], 80, axis=1) for key in keys},
            "sentiment": {key: np.array([[FELT[key]]]) for key in keys},
        }
    return content


def write_spoken(source: Path, content: dict[str, dict[str, dict[str, Any]]]) -> Path:
    for split, kinds in content.items():
        for kind, values in kinds.items():
            write_pickle(source / f"{split}_{kind}.p", values)
    return source


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return write_spoken(tmp_path, spoken())


def test_shapes_classes_and_parts(source: Path) -> None:
    original = MOSEI()
    clips = original.open(source)
    check_listing(original, clips)
    refuse_listing(original, clips)
    assert original.classes(clips) == ("negative", "non-negative")
    assert [clip.id for clip in clips.listed] == list(FELT)
    assert [clip.label for clip in clips.listed] == [1, 1, 0, 0, 1, 1]
    assert [clip.group for clip in clips.listed] == ["aaaaaaaaaaa", "aaaaaaaaaaa", "b_b", "100178", "100178", "ccc"]
    assert counts(clips.listed, "official") == {"train": 3, "validation": 2, "test": 1}
    assert counts(clips.listed, "agm-valid") == {"train": 3, "validation": 0, "test": 2}
    assert original.protocols["agm-valid"].selects_on_test
    assert original.fields["text"].shape == (60,)
    assert original.fields["audio"].shape == (60, 80)
    for number in range(6):
        check_arrays(original, clips.read(number))
    check_reading_draws_nothing(clips, 1)


def test_words_are_cleaned() -> None:
    assert words_of([[b"Hello,"], [b"it's"], [b"(a)"], ["and/or"], [b"--"], b"#1!"]) == [
        "hello",
        "its",
        "a",
        "and",
        "or",
        "1",
    ]
    assert words_of(np.array([["caf\u00e9"]])) == words_of([["caf\u00e9".encode()]]) == ["caf\u00e9"]
    assert words_of([]) == words_of(["?!"]) == []
    assert words_of([b"\xff\xfe"]) == ["\ufffd\ufffd"]  # no text at all: still words, and no crash
    assert words_of("one text") == ["one", "text"]
    endless: list[Any] = []
    endless.append(endless)
    for wrong in ([1], [["a", "b"]], [[]], [None], 3, np.array(3.0), endless, [{}]):
        with pytest.raises(Unreadable, match="expected words, found"):
            words_of(wrong)


def test_padding_unknown_and_every_word_have_numbers_of_their_own(source: Path) -> None:
    # In a public loader the first word of the vocabulary has the number of the unknown, and padding its vector.
    clips = MOSEI().open(source)
    # By frequency, then by the alphabet: good 3, day 2, a 1, known 1, well 1.
    assert clips.read(0)["text"].tolist() == [2, 2, 3]
    assert clips.read(1)["text"].tolist() == [4, 6, 5, 3]
    assert clips.read(3)["text"].tolist() == [2, UNKNOWN]  # "evening" is not said in training
    assert clips.read(4)["text"].tolist() == [UNKNOWN]  # a sentence without words
    assert clips.read(5)["text"].tolist() == [3, UNKNOWN, UNKNOWN]
    assert (PADDING, UNKNOWN, FIRST) == (0, 1, 2)


@pytest.mark.parametrize("seed", range(5))
def test_a_vocabulary_depends_on_what_is_said_and_not_on_its_order(seed: int) -> None:
    draw = np.random.default_rng(seed)
    sentences = [[f"w{word}" for word in draw.integers(0, 30, 8)] for _ in range(20)]
    one = vocabulary_of(sentences, size=12)
    other = vocabulary_of([sentences[row][::-1] for row in draw.permutation(20)], size=12)
    assert one == other
    assert sorted(one.values()) == list(range(2, 12))
    said = [word for sentence in sentences for word in sentence]
    assert min(said.count(word) for word in one) >= max(said.count(word) for word in set(said) - set(one))


def test_sixty_words_and_frames_are_kept(tmp_path: Path) -> None:
    content = spoken()
    content["train"]["sentences"]["b_b[0]"] = [[f"w{number}"] for number in range(100)]
    content["train"]["mels"]["b_b[0]"] = np.repeat(np.arange(100.0)[:, None], 80, axis=1)
    clips = MOSEI().open(write_spoken(tmp_path, content))
    arrays = clips.read(2)
    assert arrays["text"].shape == (60,)
    assert arrays["audio"][:, 79].tolist() == list(range(60))
    assert len(clips.read(0)["audio"]) == 5 + len("aaaaaaaaaaa[0]")


def test_every_key_that_is_not_everywhere_is_reported(tmp_path: Path) -> None:
    # A public loader removes such keys from a list while it goes through it, and so passes over every second one.
    content = spoken()
    for number in range(4):
        content["train"]["sentences"][f"lost[{number}]"] = [["word"]]
    del content["train"]["mels"]["b_b[0]"]
    content["test"]["sentiment"]["silent[0]"] = np.array([[1.0]])
    clips = MOSEI().open(write_spoken(tmp_path, content))
    reasons = {}
    for number, clip in enumerate(clips.listed):
        try:
            clips.read(number)
        except Unreadable as reason:
            reasons[clip.id] = str(reason)
    assert list(reasons) == ["b_b[0]", "lost[0]", "lost[1]", "lost[2]", "lost[3]", "silent[0]"]
    assert "train, id b_b[0]: expected it in every file, found none in train_mels.p" in reasons["b_b[0]"]
    assert "found none in train_mels.p, train_sentiment.p" in reasons["lost[2]"]
    assert "found none in test_sentences.p, test_mels.p" in reasons["silent[0]"]


@pytest.mark.parametrize(
    "mels", [np.zeros((0, 80)), np.zeros((4, 79)), np.zeros(80), [["x"] * 80], np.full((4, 80), np.nan)]
)
def test_a_spectrogram_that_is_none_is_skipped_with_its_reason(mels: Any, tmp_path: Path) -> None:
    content = spoken()
    content["train"]["mels"]["aaaaaaaaaaa[1]"] = mels
    clips = MOSEI().open(write_spoken(tmp_path, content))
    with pytest.raises(Unreadable, match=r"train, id aaaaaaaaaaa\[1\]: expected (mels \[T, 80\]|finite numbers)"):
        clips.read(1)


@pytest.mark.parametrize(
    ("neutral", "labels", "classes"),
    [
        ("positive", [1, 1, 0, 0, 1, 1], ("negative", "non-negative")),
        ("negative", [1, 0, 0, 0, 0, 1], ("non-positive", "positive")),
        ("drop", [1, 0, 0, 1], ("negative", "positive")),
    ],
)
def test_what_counts_as_positive(neutral: Neutral, labels: list[int], classes: tuple[str, ...], source: Path) -> None:
    original = MOSEI(neutral=neutral)
    clips = original.open(source)
    assert [clip.label for clip in clips.listed] == labels
    assert original.classes(clips) == classes
    for number in range(len(labels)):
        clips.read(number)


def vectors_file(path: Path) -> Path:
    known = {"good": 1.5, "day": -2.0, "evening": 0.25, "never": 9.0}
    if path.suffix == ".npz":
        np.savez(path, words=np.array(list(known)), vectors=np.array([[each] * 300 for each in known.values()]))
    else:
        lines = [f"{word} {' '.join([str(each)] * 300)}\n" for word, each in known.items()]
        path.write_text("".join([". . . " + "0.0 " * 299 + "0.0\n", *lines, "at name@domain.com 1 2\n"]))
    return path


@pytest.mark.parametrize("suffix", [".npz", ".txt"])
def test_word_vectors(suffix: str, source: Path) -> None:
    original = MOSEI(vectors=str(vectors_file(source / f"vectors{suffix}")))
    clips = original.open(source)
    for number in range(6):
        check_arrays(original, clips.read(number))
    text = [clips.read(number)["text"] for number in range(6)]
    assert all((each == each[:, :1]).all() for each in text)
    assert text[0][:, 0].tolist() == [1.5, 1.5, -2.0]
    assert text[1][:, 0].tolist() == [0.0, 0.0, 0.0, -2.0]  # a word without a vector is zeros, and no other word
    assert text[3][:, 0].tolist() == [1.5, 0.25]  # known from the file, though not said in training
    assert text[4][:, 0].tolist() == [0.0]
    assert set(read_vectors(source / f"vectors{suffix}", {"day"}, 300)) == {"day"}


def test_vectors_that_are_none_are_refused_by_name(source: Path) -> None:
    mark = source / "mark"
    files = {
        "absent.npz": None,
        "bomb.npz": {"words": np.array([Bomb(mark)], dtype=object), "vectors": np.zeros((1, 300))},
        "narrow.npz": {"words": np.array(["a"]), "vectors": np.zeros((1, 200))},
        "named.npz": {"words": np.array(["a"])},
        "nan.npz": {"words": np.array(["good"]), "vectors": np.full((1, 300), np.nan)},
    }
    for name, content in files.items():
        if content is not None:
            np.savez(source / name, allow_pickle=True, **content)
    (source / "noise.npz").write_bytes(np.random.default_rng(0).bytes(500))
    (source / "noise.txt").write_bytes(np.random.default_rng(0).bytes(500))
    (source / "words.txt").write_text("good 1 2 x" + " 0" * 297 + "\n")
    for name in [*files, "noise.npz", "noise.txt", "words.txt"]:
        with pytest.raises(ValueError, match=rf"(?s)cannot be read as mosei.*{name}: "):
            MOSEI(vectors=str(source / name)).open(source)
    assert not mark.exists()


def test_everything_wrong_is_said_at_once(tmp_path: Path) -> None:
    content = spoken()
    content["valid"]["sentiment"]["100178[0]"] = np.nan
    content["valid"]["sentences"]["100178[12]"] = [3.5]
    content["test"]["mels"]["aaaaaaaaaaa[0]"] = np.zeros((3, 80))
    write_spoken(tmp_path, content)
    with pytest.raises(ValueError, match=r"expected every id once, found 1 in train and in test: aaaaaaaaaaa\[0\]"):
        MOSEI().open(tmp_path)
    write_pickle(tmp_path / "train_mels.p", [1, 2])
    (tmp_path / "test_sentences.p").unlink()
    with pytest.raises(ValueError, match="cannot be read as mosei") as caught:
        MOSEI().open(tmp_path)
    for expected in (
        r"train_mels\.p: expected a dictionary by id, found list",
        r"valid_sentiment\.p: expected a finite number for each id, found something else for 100178\[0\]",
        r"valid_sentences\.p: expected words for each id, found something else for 100178\[12\]",
        r"test_sentences\.p: there is no such file",
        r"files of the MOSEI_UMONS project",
    ):
        assert re.search(expected, str(caught.value)), expected


def test_options_that_do_not_exist_are_refused_together() -> None:
    with pytest.raises(
        ValueError, match=r"version should be one of agm, .*'new'.*; neutral should.*; vocabulary should"
    ):
        MOSEI(version="new", neutral="maybe", vocabulary=2)  # ty: ignore[invalid-argument-type]
    with pytest.raises(ValueError, match="vectors are for version=agm"):
        MOSEI(version="aligned", vectors="x.npz")


@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize("kind", ["sentences", "mels", "sentiment"])
def test_none_of_the_nine_runs(split: str, kind: str, source: Path) -> None:
    path = source / f"{split}_{kind}.p"
    check_nothing_runs(path, lambda: MOSEI().open(source))
    check_broken_pickles(path, lambda: MOSEI().open(source))


@pytest.mark.slow
def test_prepared_and_trained(tmp_path: Path) -> None:
    content = spoken()
    content["valid"]["sentences"]["lost[0]"] = [["word"]]
    source = write_spoken(tmp_path / "source", content)
    original = MOSEI(vocabulary=10)
    prepared = prepare(original, source, tmp_path / "out", workers=2)
    assert [name for name, _ in prepared.skipped] == ["lost[0]"]
    splits = prepared.splits()
    assert splits.shapes == {"text": (60,), "audio": (80, 60)}
    train = splits.train.in_memory()
    assert train.inputs["text"].dtype == torch.int16
    assert train.inputs["text"][0, :4].tolist() == [2, 2, 3, PADDING]
    assert train.inputs["text_length"].tolist() == [3, 4, 1]
    assert len(prepared.splits("agm-valid").test) == 2
    text = Tokens(10, AttentionPooled(12, features=8, width=8, layers=1, heads=2, feedforward=16), width=12)
    audio = AttentionPooled(80, features=8, width=8, layers=1, heads=2, feedforward=16, start="linear")
    model = LateFusion({"text": text, "audio": audio}, classes=2)
    check_it_trains(model, splits.train)
    check_trains(splits, features=8)
