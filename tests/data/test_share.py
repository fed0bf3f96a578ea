"""A share of the training samples: seeded, of each class, the smaller in the larger, and nothing else is changed."""

import pickle
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch

from equipoise.data.bundled import two_sensors
from equipoise.data.part import Part
from equipoise.data.share import with_train_share
from equipoise.data.source import DataSet, OwnFile, data_set, mark_task, mark_tokens, share_of
from equipoise.data.splits import Splits


def uneven(samples: int = 200) -> Splits:
    """Four classes, of which one is rare."""
    label = np.minimum(np.random.default_rng(0).integers(0, 10, samples), 3)
    label[:4] = range(4)
    arrays = {"a": np.arange(3 * samples, dtype=np.float32).reshape(samples, 3)}
    split = np.array(["train"] * (samples // 2) + ["validation"] * (samples // 4) + ["test"] * (samples // 4))
    return Splits.from_arrays(arrays, label, split=split)


def numbers(part: Part) -> set[float]:
    return set(part.inputs["a"][:, 0].tolist())


def test_each_class_keeps_its_share_and_one_sample_at_least() -> None:
    splits = uneven()
    whole = torch.bincount(splits.train.label)
    for share in (0.01, 0.1, 0.25, 0.5, 0.9):
        kept = torch.bincount(with_train_share(splits, share).train.label, minlength=4)
        assert kept.tolist() == [max(1, round(share * count)) for count in whole.tolist()]


def test_a_smaller_share_is_a_part_of_a_larger_one() -> None:
    splits = uneven()
    parts = [numbers(with_train_share(splits, share).train) for share in (0.05, 0.1, 0.3, 0.7, 1.0)]
    assert all(small < large for small, large in pairwise(parts))
    assert parts[-1] == numbers(splits.train)


def test_seeds_draw_and_the_other_parts_stay() -> None:
    splits = uneven()
    first, again, other = (with_train_share(splits, 0.3, seed) for seed in (0, 0, 1))
    assert first.fingerprint() == again.fingerprint() != other.fingerprint() != splits.fingerprint()
    assert first.validation is splits.validation
    assert first.test is splits.test
    assert first.scales is splits.scales
    assert first.about.endswith(f"; {len(first.train)} of 100 training samples")
    first.check()


def test_numbers_are_drawn_from_all_samples() -> None:
    label = np.random.default_rng(0).normal(size=100).astype(np.float32)
    splits = Splits.from_arrays({"a": np.arange(300, dtype=np.float32).reshape(100, 3)}, label)
    share = with_train_share(splits, 0.1)
    assert len(share.train) == round(0.1 * len(splits.train))
    assert share.task is splits.task


def test_prepared_data_stays_where_it_is() -> None:
    splits = uneven()
    rows = torch.arange(len(splits.train)).flip(0)
    train = splits.train
    stored = replace(train, rows=rows, label=train.label[rows])
    prepared = replace(splits, train=stored, source="prepared")
    share = with_train_share(prepared, 0.3)
    assert share.train.inputs["a"] is train.inputs["a"]
    assert share.train.rows is not None
    assert len(share.train.rows) == len(share.train)
    read = share.train.in_memory()
    place = {value: at for at, value in enumerate(train.inputs["a"][:, 0].tolist())}
    for value, label in zip(read.inputs["a"][:, 0].tolist(), read.label.tolist(), strict=True):
        assert train.label[place[value]] == label
    assert len({with_train_share(prepared, share).fingerprint() for share in (0.3, 0.5, 1.0)}) == 3


@pytest.mark.parametrize("share", [0.2, 1.0])
def test_a_share_of_a_file_is_marked_as_the_file_is(share: float, tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    path = tmp_path / "own.npz"
    np.savez(path, a=random.normal(size=(80, 3)).astype(np.float32), label=np.arange(80) % 5)
    data = share_of(data_set(str(path)), share)
    marked = mark_tokens(mark_task(data, ["regression"]), [("auto", 8)])
    assert marked.load(None).task.kind == "regression"
    there = pickle.loads(pickle.dumps(marked))  # as runs on a cluster get it
    assert there.load(None).fingerprint() == marked.load(None).fingerprint()
    assert data.load(None).task.kind == "classes"
    assert len(marked.load(None).train) == round(share * len(OwnFile(str(path))(None).train))


def test_the_whole_is_the_data_itself() -> None:
    data = DataSet("small", lambda fold: two_sensors(samples=60, seed=fold or 0), 3, "Small.")
    assert share_of(data, 1.0) is data
    assert len(share_of(data, 0.5).load(1).train) == len(data.load(1).train) // 2
