"""Class weights: values by hand, and the loss that torch computes with them."""

import numpy as np
import pytest
import torch
from sklearn.utils.class_weight import compute_class_weight
from torch.nn import functional as F

from equipoise.models.task import Classification, MultiLabel, Regression, Task
from equipoise.training.settings import Settings
from equipoise.training.weights import weighted_task

NAMES = ("rest", "walk", "run")
BALANCED = Settings(class_weight="balanced")


def weight_of(task: Task) -> torch.Tensor:
    assert isinstance(task.weight, torch.Tensor)
    assert not task.state_dict()  # weights belong to training, and are not saved
    return task.weight


def labels_of(seed: int, samples: int = 200) -> torch.Tensor:
    draw = torch.rand(samples, generator=torch.Generator().manual_seed(seed))
    return (draw > 0.8).long() + (draw > 0.95)


@pytest.mark.parametrize("seed", range(5))
def test_balanced_weights_are_those_of_scikit_learn(seed: int) -> None:
    label = labels_of(seed)
    weight = weight_of(weighted_task(Classification(NAMES), BALANCED, label))
    expected = compute_class_weight("balanced", classes=np.arange(3), y=label.numpy())
    assert weight.tolist() == pytest.approx(expected.tolist(), rel=1e-6)


@pytest.mark.parametrize("wanted", ["balanced", "1,2,5", "0.1,30,4"])
def test_their_mean_over_the_training_samples_is_one(wanted: str) -> None:
    label = labels_of(0)
    weight = weight_of(weighted_task(Classification(NAMES), Settings(class_weight=wanted), label))
    assert weight[label].mean() == pytest.approx(1, rel=1e-6)
    if wanted == "1,2,5":
        assert (weight / weight[0]).tolist() == pytest.approx([1, 2, 5], rel=1e-6)


@pytest.mark.parametrize("seed", range(5))
def test_the_loss_is_the_weighted_cross_entropy_of_torch(seed: int) -> None:
    label, logits = labels_of(seed), torch.randn(200, 3, generator=torch.Generator().manual_seed(seed))
    task = weighted_task(Classification(NAMES), BALANCED, label)
    weight = torch.as_tensor(compute_class_weight("balanced", classes=np.arange(3), y=label.numpy())).float()
    loss = task.losses({"fused": logits}, label)["fused"]
    assert loss.shape == (200,)
    torch.testing.assert_close(loss.mean(), F.cross_entropy(logits, label, weight))  # over a mean weight of one
    torch.testing.assert_close(
        task.losses({"fused": logits}, label, weighted=False)["fused"], F.cross_entropy(logits, label, reduction="none")
    )


def test_labels_by_hand() -> None:
    label = torch.zeros(100, 3)
    label[:20, 0] = 1  # 80 : 20
    label[:1, 1] = 1  # 99 : 1 is more than is sane: at most 20
    label[:90, 2] = 1  # 10 : 90
    task = weighted_task(MultiLabel(["cough", "fever", "rash"]), BALANCED, label)
    assert weight_of(task).tolist() == pytest.approx([4, 20, 1 / 9])
    logits = torch.randn(100, 3, generator=torch.Generator().manual_seed(0))
    expected = F.binary_cross_entropy_with_logits(logits, label, pos_weight=torch.tensor([4, 20, 1 / 9]))
    torch.testing.assert_close(task.losses({"fused": logits}, label)["fused"].mean(), expected)
    given = weighted_task(MultiLabel(["cough", "fever", "rash"]), Settings(class_weight="1,2,5"), label)
    assert weight_of(given).tolist() == [1, 2, 5]


def test_a_class_or_label_without_training_samples_has_a_finite_weight() -> None:
    task = weighted_task(Classification(["a", "b", "c"]), BALANCED, torch.tensor([0, 0, 1, 1]))
    assert weight_of(task).tolist() == [1, 1, 2]  # as if it had one sample
    assert weight_of(weighted_task(MultiLabel(["a"]), BALANCED, torch.zeros(4, 1))).tolist() == [4]


def test_no_weights_are_no_change() -> None:
    task = Classification(NAMES)
    assert weighted_task(task, Settings(), labels_of(0)) is task


def test_messages() -> None:
    with pytest.raises(ValueError, match="class_weight=balanced: a regression has no classes to weigh; leave it out"):
        weighted_task(Regression(["angle"]), BALANCED, torch.zeros(4, 1))
    message = "class_weight=1,2: expected 3 numbers, one each for rest, walk, run; found 2"
    with pytest.raises(ValueError, match=message):
        weighted_task(Classification(NAMES), Settings(class_weight="1,2"), labels_of(0))
