"""Classes that few groups have: every fold still learns them where it can, and is named where it cannot."""

from itertools import product
from pathlib import Path

import numpy as np
import pytest

from equipoise.data.check import check_data
from equipoise.data.own.draw import TEST, TRAIN, VALIDATION, draw_fold
from equipoise.data.splits import Splits


def patients(*rare: int) -> tuple[np.ndarray, np.ndarray]:
    """Five samples of each of forty patients; some of them have a sample of the class vt."""
    group = np.repeat(np.arange(40), 5)
    label = np.where(np.random.default_rng(0).random(200) < 0.5, "af", "normal")
    label[[5 * patient for patient in rare]] = "vt"
    return label, group


@pytest.mark.parametrize(("seed", "folds", "by_group"), [*product(range(5), [3, 5, 8], [True, False])])
def test_a_class_of_two_groups_is_learnt_in_every_fold(seed: int, folds: int, by_group: bool) -> None:
    random = np.random.default_rng(seed)
    group = np.concatenate([np.arange(24), random.integers(0, 24, 200)])
    label = random.integers(0, 3, len(group))
    where = [np.flatnonzero(group == each)[0] for each in random.choice(24, 4, replace=False)]
    label[where] = [3, 3, 4, 4]
    drawn = [draw_fold(label, group if by_group else None, at, folds, seed, needed=label) for at in range(folds)]
    for marks in drawn:
        assert {*label[marks == TRAIN]} == {0, 1, 2, 3, 4}
        assert {*marks} == {TRAIN, VALIDATION, TEST}
        if by_group:
            assert len({*zip(group, marks, strict=True)}) == 24, "no group is in two parts"
    assert (np.sum([marks == TEST for marks in drawn], axis=0) == 1).all()


@pytest.mark.parametrize("seed", range(4))
def test_folds_that_were_fine_stay_as_they_are(seed: int) -> None:
    random = np.random.default_rng(seed)
    group, label = random.permutation(np.arange(200) % 20), random.integers(0, 4, 200)
    for fold in range(5):
        assert np.array_equal(
            draw_fold(label, group, fold, 5, seed, needed=label), draw_fold(label, group, fold, 5, seed)
        )


def test_the_smallest_group_goes_back_to_training_by_hand() -> None:
    # Three folds of two groups each; classes 1 and 2 leave no fold that could validate whole.
    group = np.array([0, 1, 2, 2, 3, 4, 4, 5])
    label = np.array([1, 2, 1, 0, 0, 2, 0, 0])
    for seed, fold in product(range(10), range(3)):
        marks = draw_fold(label, group, fold, 3, seed, needed=label)
        assert {*label[marks == TRAIN]} == {0, 1, 2}
        assert (marks == VALIDATION).any()


@pytest.mark.parametrize("seed", range(3))
def test_every_label_of_several_is_learnt_in_every_fold(seed: int) -> None:
    random = np.random.default_rng(seed)
    group, values = np.repeat(np.arange(20), 5), (random.random((100, 3)) < 0.4).astype(int)
    values[:, 2] = 0
    values[[0, 50], 2] = 1
    for fold in range(5):
        found = Splits.from_arrays({"a": random.normal(size=(100, 2))}, values, group=group, fold=fold, folds=5)
        assert (found.train.label.sum(dim=0) > 0).all()


def test_a_class_of_one_group_is_named_with_its_fold_and_what_to_do() -> None:
    label, group = patients(3)
    said = []
    for fold in range(5):
        try:
            Splits.from_arrays({"a": np.zeros((200, 2))}, label, group=group, fold=fold, folds=5)
        except ValueError as problem:
            said.append((fold, str(problem)))
    ((fold, text),) = said
    why = f"fold {fold} of 5: expected training samples of vt, found none; it occurs in 1 group only: merge it"
    assert why in text


def test_two_groups_that_no_cut_can_part() -> None:
    # Three groups: testing the first leaves one of two classes to validation.
    label, group = np.array(["a", "b", "c", "a", "c", "b", "c"]), np.array([0, 0, 0, 1, 1, 2, 2])
    problems = []
    for fold in range(3):
        try:
            Splits.from_arrays({"a": np.zeros((7, 2))}, label, group=group, fold=fold, folds=3)
        except ValueError as problem:
            problems.append(str(problem))
    assert len(problems) == 1
    assert "it occurs in 2 groups only: merge it with another class" in problems[0]


def test_check_warns_of_a_class_in_fewer_than_three_groups(tmp_path: Path) -> None:
    random = np.random.default_rng(0)

    def warnings(*rare: int) -> str:
        label, group = patients(*rare)
        np.savez(tmp_path / "a.npz", ecg=random.normal(size=(200, 4)), label=label, group=group)
        return "\n".join(check_data(str(tmp_path / "a.npz")).warnings)

    assert "vt occurs in 2 groups only: it takes three to be in train, validation and test; give more" in warnings(3, 9)
    assert "groups only" not in warnings(3, 9, 20)
