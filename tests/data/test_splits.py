"""Parts that share no group, statistics of the training part alone, and a fingerprint."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from equipoise.data import Part, Splits
from equipoise.data.bundled import two_sensors
from equipoise.data.splits import split_by_group
from equipoise.util.errors import BadInput


def part(label: list[int], group: list[int] | None = None, **inputs: torch.Tensor) -> Part:
    size = len(label)
    arrays = inputs or {"a": torch.randn(size, 2), "b": torch.randn(size, 3, 4)}
    return Part(arrays, torch.tensor(label), None if group is None else torch.tensor(group))


def splits(**parts: Part) -> Splits:
    fine = {"train": part([0, 1, 0]), "validation": part([1, 0]), "test": part([0, 1])} | parts
    return Splits("made", fine["train"], fine["validation"], fine["test"], ("no", "yes"))


def test_groups_go_where_they_are_sent() -> None:
    group = torch.tensor([5, 3, 5, 1, 9])
    parts = split_by_group(
        {"a": torch.arange(5.0)}, torch.arange(5), group, {"train": [5], "validation": [3, 9], "test": [1]}
    )
    assert {name: each.label.tolist() for name, each in parts.items()} == {
        "train": [0, 2],
        "validation": [1, 4],
        "test": [3],
    }
    assert parts["validation"].group is not None
    assert parts["validation"].group.tolist() == [3, 9]
    assert parts["test"].inputs["a"].tolist() == [3.0]


def test_a_group_in_two_parts_is_refused() -> None:
    with pytest.raises(ValueError, match=r"groups \[1, 2\] are in two parts"):
        split_by_group({}, torch.zeros(3), torch.zeros(3), {"train": [1, 2], "validation": [2], "test": [1]})


def test_statistics_come_from_the_training_part_alone() -> None:
    random = torch.Generator().manual_seed(0)
    made = splits(
        train=part([0, 1] * 200, a=3 + 5 * torch.randn(400, 2, generator=random), b=torch.ones(400, 3, 4)),
        validation=part([0, 1] * 50, a=7 + torch.randn(100, 2, generator=random), b=torch.zeros(100, 3, 4)),
    )
    found = made.standardised()
    torch.testing.assert_close(found.train.inputs["a"].mean(0), torch.zeros(2), atol=1e-5, rtol=0)
    torch.testing.assert_close(found.train.inputs["a"].std(0), torch.ones(2))
    assert (found.validation.inputs["a"].mean(0) - 4 / 5).abs().max() < 0.2
    assert (found.validation.inputs["a"].std(0) - 1 / 5).abs().max() < 0.1
    assert (found.train.inputs["b"] == 0).all()  # a constant channel is shifted only
    assert (found.validation.inputs["b"] == -1).all()


def test_channels_have_their_own_statistics() -> None:
    signal = torch.stack([torch.randn(50, 20), 100 + 10 * torch.randn(50, 20)], dim=1)
    found = splits(train=part([0, 1] * 25, a=signal)).train
    made = Splits("made", found, found, found, ("no", "yes")).standardised().train.inputs["a"]
    torch.testing.assert_close(made.mean((0, 2)), torch.zeros(2), atol=1e-4, rtol=0)
    torch.testing.assert_close(made.std((0, 2)), torch.ones(2), atol=1e-4, rtol=0)


def test_the_fingerprint_knows_every_number_and_where_it_is() -> None:
    torch.manual_seed(0)
    made = splits(train=part([0, 1, 0], [1, 2, 3]))
    mark = made.fingerprint()
    assert mark == made.fingerprint()
    other = {name: array.clone() for name, array in made.train.inputs.items()}
    other["b"][1, 2, 3] += 1e-6
    label = made.train.label.clone()
    label[0] = 1
    changed = [
        replace(made, train=replace(made.train, inputs=other)),
        replace(made, train=replace(made.train, label=label)),
        replace(made, train=replace(made.train, group=torch.tensor([1, 2, 4]))),
        replace(made, train=replace(made.train, group=None)),
        replace(made, validation=made.test, test=made.validation),
        replace(made, train=made.train.take(torch.tensor([1, 0, 2]))),
        replace(made, train=replace(made.train, inputs={"a": other["a"]})),
        replace(made, train=replace(made.train, inputs={**other, "b": made.train.inputs["b"].flatten(1)})),
    ]
    marks = [each.fingerprint() for each in changed]
    assert len({mark, *marks}) == len(marks) + 1


def test_good_splits_pass_the_check() -> None:
    made = splits()
    assert made.check() is made
    assert two_sensors().check().modalities == ("easy", "hard")


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"train": part([0, 1], a=torch.tensor([[0.0], [torch.nan]]))}, "train, a: .*NaN or infinity in 1 of 2"),
        ({"test": part([0, 1], a=torch.tensor([[0, torch.inf], [0, 0]]))}, "test, a: .*infinity in 1"),
        ({"validation": part([0, 2])}, r"validation: expected labels from 0 to 1, found \[2\]"),
        ({"train": part([0, 1, -1])}, r"train: expected labels from 0 to 1, found \[-1\]"),
        ({"train": part([0, 0])}, "train: expected samples of every class, found none of yes"),
        ({"test": part([])}, "test: expected at least one sample, found none"),
        ({"train": part([])}, "train: expected at least one sample, found none"),
        ({"train": part([0, 1], a=torch.zeros(3, 2), b=torch.zeros(2, 2))}, "train, a: expected 2 samples.*found 3"),
        ({"validation": part([0, 1], a=torch.zeros(2, 2))}, r"validation: expected the arrays \['a', 'b'\]"),
        ({"test": part([0, 1], a=torch.zeros(2, 9))}, r"test, a: expected samples of shape \(2,\), found \(9,\)"),
        ({"test": part([0, 1], a=torch.zeros(2))}, r"test, a: expected samples of shape \(2,\), found \(\)"),
        (
            {"train": part([0, 1], [7, 7]), "validation": part([0, 1], [7, 7]), "test": part([0, 1], [7, 7])},
            r"train and validation: expected no group in both, found \[7\]",
        ),
    ],
)
def test_what_cannot_be_trained_on_is_named(parts: dict[str, Part], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        splits(**parts).check()


def test_one_class_is_not_enough() -> None:
    alone = part([0, 0])
    with pytest.raises(ValueError, match=r"expected two classes or more, found \['only'\]"):
        Splits("made", alone, alone, alone, ("only",)).check()


def test_every_problem_is_reported_at_once() -> None:
    bad = splits(train=part([0, 5], a=torch.full((2, 2), torch.nan)), test=part([]))
    with pytest.raises(ValueError, match="data 'made' cannot be trained on") as found:
        bad.check()
    text = str(found.value)
    assert all(words in text for words in ("found [5]", "NaN", "none of yes", "test: expected at least one"))


def test_generated_people_are_in_one_part_each() -> None:
    groups = [set(each.group.tolist()) for each in two_sensors().parts.values() if each.group is not None]
    assert len(groups) == 3
    assert sum(map(len, groups)) == len(set.union(*groups)) == 10
    assert two_sensors(seed=1).fingerprint() != two_sensors(seed=0).fingerprint() == two_sensors().fingerprint()


def test_prepared_parts_are_told_by_their_rows_and_not_read_for_it() -> None:
    whole = torch.arange(12.0).reshape(6, 2)
    label = torch.tensor([0, 1, 0])

    def cut(rows: list[int], source: str = "sha256:one") -> str:
        own = Part({"a": whole}, label, rows=torch.tensor(rows))
        return Splits("made", own, own, own, ("no", "yes"), source=source).fingerprint()

    assert cut([0, 1, 2]) == cut([0, 1, 2])
    assert len({cut([0, 1, 2]), cut([0, 1, 3]), cut([2, 1, 0]), cut([0, 1, 2], "sha256:two")}) == 4
    own = Part({"a": whole[:3]}, label)
    solid = Splits("made", own, own, own, ("no", "yes"))
    assert cut([0, 1, 2], "") == solid.fingerprint()  # without a source the numbers count, wherever they lie


def test_groups_may_be_hashes_of_64_bits() -> None:
    random, hashes = np.random.default_rng(0), np.uint64(2**63) + np.arange(60, dtype=np.uint64) // np.uint64(5)
    splits = Splits.from_arrays({"a": random.normal(size=(60, 4))}, np.arange(60) % 3, group=hashes).check()
    assert splits.groups == tuple(str(2**63 + number) for number in range(12))
    there = [set(part.group.tolist()) for part in splits.parts.values() if part.group is not None]
    assert set.union(*there) == set(range(12))
    assert sum(map(len, there)) == 12


def test_tensors_without_numbers_are_refused() -> None:
    with pytest.raises(BadInput, match="found one on the device meta, which holds none"):
        Splits.from_arrays({"a": torch.zeros(60, 4, device="meta")}, np.arange(60) % 3)


@pytest.mark.parametrize(("ones", "expected"), [(4, "yes"), (16, "no"), (10, "yes")])
def test_of_two_classes_the_rarer_is_positive_in_every_fold(ones: int, expected: str) -> None:
    label = np.array(["no", "yes"])[(np.arange(20) < ones).astype(int)]
    for fold in range(4):
        splits = Splits.from_arrays({"a": np.arange(40.0).reshape(20, 2)}, label, fold=fold, folds=4)
        assert splits.task.positive == expected
    assert Splits.from_arrays({"a": np.arange(40.0).reshape(20, 2)}, np.arange(20) % 3).task.positive is None
