"""Parts that share no group, drawn as even as can be."""

import itertools

import numpy as np
import pytest

from equipoise.data.own import draw as rules
from equipoise.data.own.arrays import read_samples
from equipoise.data.own.draw import SHARES, assign_groups, draw, draw_fold, fold_count, hold_out, unevenness
from equipoise.data.splits import Splits

from_arrays = Splits.from_arrays


def made(seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Labels and groups of all kinds: few and many, even and not."""
    random = np.random.default_rng(seed)
    samples, groups, classes = random.integers(20, 400), random.integers(3, 30), random.integers(2, 6)
    chances = random.dirichlet([2.0] * classes)
    _, group = np.unique(random.integers(0, groups, samples), return_inverse=True)
    return random.choice(classes, samples, p=chances), group


# -- by hand --


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        (1, (1, 0, 0)),
        (2, (1, 0, 1)),
        (3, (1, 1, 1)),
        (4, (2, 1, 1)),
        (5, (3, 1, 1)),
        (7, (4, 1, 2)),
        (10, (6, 2, 2)),
        (50, (30, 10, 10)),
    ],
)
def test_a_class_without_groups_by_hand(size: int, expected: tuple[int, int, int]) -> None:
    for seed in range(5):
        label = np.repeat([0, 1], [size, 20])
        marks = draw(label, None, seed)
        assert tuple(np.bincount(marks[label == 0], minlength=3)) == expected
        assert tuple(np.bincount(marks[label == 1])) == (12, 4, 4)


@pytest.mark.parametrize(("groups", "expected"), [(5, (3, 1, 1)), (10, (6, 2, 2)), (20, (12, 4, 4)), (3, (1, 1, 1))])
def test_equal_groups_by_hand(groups: int, expected: tuple[int, int, int]) -> None:
    group = np.arange(6 * groups) % groups
    for seed in range(5):
        marks = draw(np.arange(6 * groups) // groups % 2, group, seed)
        assert tuple(len(np.unique(group[marks == part])) for part in range(3)) == expected


@pytest.mark.parametrize("sizes", [(40, 40, 20), (34, 33, 33), (98, 1, 1), (50, 49, 1), (1, 1, 1)])
def test_three_groups_are_three_parts(sizes: tuple[int, int, int]) -> None:
    group = np.repeat([0, 1, 2], sizes)
    assert len(set(draw(np.arange(len(group)) % 2, group, 0).tolist())) == 3


def test_a_large_group_trains_and_the_small_ones_are_what_is_left() -> None:
    group = np.repeat([0, 1, 2], [60, 20, 20])
    assert (draw(np.arange(100) % 2, group, 0)[group == 0] == rules.TRAIN).all()


def test_a_class_that_one_group_has_is_learnt() -> None:
    group = np.arange(100) // 10
    for rare in range(10):
        marks = draw((group == rare).astype(int), group, 0)
        assert (marks[group == rare] == rules.TRAIN).all()


def test_classes_come_in_the_same_shares_where_groups_allow_it() -> None:
    # Ten people of class 0 and ten of class 1: the even cut has 6, 2, 2 of each.
    group = np.arange(200) // 10
    label = (group >= 10).astype(int)
    marks = draw(label, group, 0)
    assert [tuple(np.bincount(marks[label == each])) for each in (0, 1)] == [(60, 20, 20), (60, 20, 20)]


# -- whatever the data --


@pytest.mark.parametrize("seed", range(20))
def test_no_group_is_in_two_parts_and_no_part_is_empty(seed: int) -> None:
    label, group = made(seed)
    if len(np.unique(group)) < 3:
        return
    marks = draw(label, group, seed)
    there = {(int(each), int(part)) for each, part in zip(group, marks, strict=True)}
    assert len(there) == len(np.unique(group))
    assert set(marks.tolist()) == {0, 1, 2}


@pytest.mark.parametrize("seed", range(20))
def test_what_is_drawn_depends_on_the_seed_and_not_on_the_order_of_rows(seed: int) -> None:
    label, group = made(seed)
    order = np.random.default_rng(seed).permutation(len(label))
    assert (draw(label, group, 3)[order] == draw(label[order], group[order], 3)).all()
    assert (draw(label, group, 3) == draw(label, group, 3)).all()
    assert (draw(label, None, 3) == draw(label, None, 3)).all()


def test_another_seed_draws_other_parts() -> None:
    label, group = np.arange(200) % 2, np.arange(200) // 5
    assert len({draw(label, group, seed).tobytes() for seed in range(5)}) > 1
    assert len({draw(label, None, seed).tobytes() for seed in range(5)}) == 5


@pytest.mark.parametrize("seed", range(4))
def test_few_groups_are_spread_nearly_as_evenly_as_the_best_of_all_ways(seed: int) -> None:
    random = np.random.default_rng(seed)
    counts = random.integers(0, 30, (6, 3)).astype(float) + np.eye(6, 3)
    ways = [np.array(way) for way in itertools.product(range(3), repeat=6) if len(set(way)) == 3]
    best = min(unevenness(counts, SHARES, way) for way in ways)
    mean = np.mean([unevenness(counts, SHARES, way) for way in ways])
    found = unevenness(counts, SHARES, assign_groups(counts, SHARES, 0))
    assert found <= best + 0.1 * (mean - best)


@pytest.mark.parametrize("seed", [6, 9, 10, 26, 31, 32, 51])  # where the most even cut loses a class
def test_no_class_is_lost_that_can_be_kept(seed: int) -> None:
    random = np.random.default_rng(seed)
    counts = (random.random((5, 8)) < 0.4) * random.integers(1, 20, (5, 8)).astype(float)
    counts[:, counts.sum(axis=0) == 0] = 1
    ways = [np.array(way) for way in itertools.product(range(3), repeat=5) if len(set(way)) == 3]

    def lost(places: np.ndarray) -> int:
        return int((counts[places == rules.TRAIN].sum(axis=0) == 0).sum())

    assert lost(assign_groups(counts, SHARES, 0)) == min(map(lost, ways))


def test_many_groups_are_spread_within_a_percent_and_soon() -> None:
    random = np.random.default_rng(0)
    group, label = random.integers(0, 5_000, 20_000), random.integers(0, 20, 20_000)
    _, group = np.unique(group, return_inverse=True)
    marks = draw(label, group, 0)
    for each in range(20):
        np.testing.assert_allclose(
            np.bincount(marks[label == each]) / (label == each).sum(), [0.6, 0.2, 0.2], atol=0.01
        )


# -- folds --


@pytest.mark.parametrize("by_group", [True, False])
@pytest.mark.parametrize("seed", range(6))
def test_every_sample_is_tested_once_and_validates_once(seed: int, by_group: bool) -> None:
    label, group = made(seed)
    folds = fold_count(len(label), len(np.unique(group)) if by_group else None)
    marks = np.stack([draw_fold(label, group if by_group else None, fold, folds, seed) for fold in range(folds)])
    assert ((marks == rules.TEST).sum(axis=0) == 1).all()
    assert ((marks == rules.VALIDATION).sum(axis=0) == 1).all()
    assert all(set(row.tolist()) == {0, 1, 2} for row in marks)
    if by_group:
        for row in marks:
            assert len(set(zip(group.tolist(), row.tolist(), strict=True))) == len(np.unique(group))
    else:
        sizes = [np.bincount(label[row == rules.TEST], minlength=label.max() + 1) for row in marks]
        assert np.ptp(sizes, axis=0).max() <= 1  # classes are as even as whole samples can be


@pytest.mark.parametrize(
    ("samples", "groups", "expected"),
    [(100, None, 5), (4, None, 4), (2, None, 0), (100, 10, 5), (100, 5, 5), (100, 4, 4), (100, 3, 3), (100, 2, 0)],
)
def test_how_many_folds_by_hand(samples: int, groups: int | None, expected: int) -> None:
    assert fold_count(samples, groups) == expected


# -- parts that were given --


def test_where_nothing_validates_a_quarter_of_what_trains_does() -> None:
    label, split = np.arange(100) % 2, np.repeat(["train", "test"], [80, 20])
    found = from_arrays({"a": np.zeros((100, 2))}, label, split=split)
    assert [len(part) for part in found.parts.values()] == [60, 20, 20]
    assert found.validation.label.bincount().tolist() == [10, 10]
    assert "no validation samples among them: a quarter of the training samples drawn within each class" in found.about
    grouped = from_arrays({"a": np.zeros((100, 2))}, label, split=split, group=np.arange(100) // 10)
    assert [len(part) for part in grouped.parts.values()] == [60, 20, 20]
    assert "drawn by group" in grouped.about
    grouped.check()


def test_one_group_cannot_be_held_out() -> None:
    assert not hold_out(np.arange(10) % 2, np.zeros(10, int), 0).any()


@pytest.mark.parametrize(
    "words",
    [
        ("train", "validation", "test"),
        ("train", "val", "test"),
        ("TRAIN", "Valid", " test "),
        (0, 1, 2),
        ("0", "1", "2"),
        (0.0, 1.0, 2.0),
    ],
)
def test_parts_have_many_names(words: tuple[object, ...]) -> None:
    split = [words[number % 3] for number in range(30)]
    found = from_arrays({"a": np.arange(30)}, np.arange(30) // 3 % 2, split=split, standardise=False)
    assert found.validation.inputs["a"].flatten().tolist() == list(range(1, 30, 3))
    assert found.test.inputs["a"].flatten().tolist() == list(range(2, 30, 3))


# -- more than can be counted --


def test_groups_by_classes_beyond_the_memory_are_refused_in_one_message() -> None:
    count = 60_000  # groups of 30,000 classes: a table of 13 GiB
    samples = read_samples({"a": np.zeros((count, 1), np.float32)}, np.arange(count) // 2, group=np.arange(count))
    expected = "group: expected at most 67,108,864 counts of a class in a group to draw parts by"
    found = "found 60,000 groups of 30,000 classes"
    advice = "give split; or, if label holds numbers to predict, type task=regression"
    for fold in (None, 0):
        assert samples.assign(fold).problems == (f"{expected}, {found}; {advice}",)
    assert samples.for_task("regression").assign().problems == ()


def test_parts_that_are_given_need_no_table(monkeypatch: pytest.MonkeyPatch) -> None:
    label, group = np.arange(24) % 2, np.arange(24) // 2
    given = {"a": np.zeros((24, 1))}
    monkeypatch.setattr(rules, "MOST_BYTES", 8 * 12 * 2)
    assert read_samples(given, label, group=group).assign().problems == ()  # just as many as there may be
    monkeypatch.setattr(rules, "MOST_BYTES", 8 * 12 * 2 - 1)
    (problem,) = read_samples(given, label, group=group).assign().problems
    assert "found 12 groups of 2 classes" in problem
    split = np.repeat(["train", "validation", "test"], 8)
    assert read_samples(given, label, group=group, split=split).assign().problems == ()
    (problem,) = read_samples(given, label, group=group, split=np.repeat(["train", "test"], 12)).assign().problems
    assert "found 12 groups of 2 classes" in problem
