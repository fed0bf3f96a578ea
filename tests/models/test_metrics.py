"""Metrics against scikit-learn called directly, against values by hand, and where nothing can be told."""

import math
import warnings

import numpy as np
import pytest
import torch
from sklearn import metrics as sk
from torch import Tensor

from equipoise.measure.outputs import accuracy, macro_f1
from equipoise.models.metrics import METRICS, baseline, events, judged, metric_of, metric_of_row
from equipoise.models.task import Classification, MultiLabel, Regression, Task, task_of

THREE, TWO = Classification(["rest", "walk", "run"]), Classification(["healthy", "ill"])
LABELS, NUMBERS = MultiLabel(["cough", "fever", "rash"]), Regression(["steering", "speed"])


def drawn(task: Task, seed: int, samples: int = 60) -> tuple[Tensor, Tensor]:
    """Answers and labels that have something to do with one another."""
    random = torch.Generator().manual_seed(seed)
    scores = torch.randn(samples, task.size, generator=random, dtype=torch.float64)
    noise = torch.randn(samples, task.size, generator=random, dtype=torch.float64)
    if task.kind == "classes":
        return scores.softmax(dim=1), (scores + noise).argmax(dim=1)
    if task.kind == "labels":
        return scores.sigmoid(), (scores + noise > 0.3).float()
    return scores * 30, (scores * 30 + noise * 10).float()


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("task", [TWO, THREE], ids=["two", "three"])
def test_classes_as_scikit_learn_computes_them(task: Task, seed: int) -> None:
    answer, label = drawn(task, seed)
    truth, told, scores = label.numpy(), answer.argmax(1).numpy(), answer.numpy()
    one_hot = np.eye(task.size)[truth]
    expected = {
        "accuracy": sk.accuracy_score(truth, told),
        "balanced_accuracy": sk.balanced_accuracy_score(truth, told),
        "macro_f1": sk.f1_score(truth, told, average="macro"),
        "auroc": sk.roc_auc_score(one_hot, scores, average="macro"),
        "auprc": sk.average_precision_score(one_hot, scores, average="macro"),
        "recall": sk.recall_score(truth, told, average="macro"),
    }
    for name, value in expected.items():
        assert metric_of(name, task)(answer, label, task) == pytest.approx(value, abs=1e-12), name
    if task.size > 2:
        assert expected["auroc"] == pytest.approx(sk.roc_auc_score(truth, scores, multi_class="ovr"), abs=1e-12)


@pytest.mark.parametrize("seed", range(5))
def test_labels_as_scikit_learn_computes_them(seed: int) -> None:
    answer, label = drawn(LABELS, seed)
    truth, told, scores = label.numpy(), (answer > 0.5).numpy(), answer.numpy()
    expected = {
        "accuracy": 1 - sk.hamming_loss(truth, told),
        "balanced_accuracy": np.mean([sk.balanced_accuracy_score(truth[:, at], told[:, at]) for at in range(3)]),
        "macro_f1": sk.f1_score(truth, told, average="macro"),
        "auroc": sk.roc_auc_score(truth, scores, average="macro"),
        "auprc": sk.average_precision_score(truth, scores, average="macro"),
        "recall": sk.recall_score(truth, told, average="macro"),
    }
    for name, value in expected.items():
        assert metric_of(name, LABELS)(answer, label, LABELS) == pytest.approx(value, abs=1e-12), name


@pytest.mark.parametrize("seed", range(5))
def test_numbers_as_scikit_learn_computes_them(seed: int) -> None:
    answer, label = drawn(NUMBERS, seed)
    truth, told = label.numpy().astype(float), answer.numpy()
    expected = {
        "mae": sk.mean_absolute_error(truth, told),
        "rmse": sk.root_mean_squared_error(truth, told),
        "r2": sk.r2_score(truth, told),
    }
    for name, value in expected.items():
        assert metric_of(name, NUMBERS)(answer, label, NUMBERS) == pytest.approx(value, rel=1e-9), name


def test_by_hand() -> None:
    label = torch.tensor([0, 0, 0, 1, 1, 2])
    answer = torch.eye(3)[torch.tensor([0, 0, 1, 1, 0, 2])].double()
    assert METRICS["accuracy"](answer, label, THREE) == 4 / 6
    assert METRICS["balanced_accuracy"](answer, label, THREE) == pytest.approx((2 / 3 + 1 / 2 + 1) / 3)
    assert METRICS["macro_f1"](answer, label, THREE) == pytest.approx((4 / 6 + 2 / 4 + 1) / 3)
    ranks = torch.tensor([[0.9, 0.1], [0.6, 0.4], [0.7, 0.3], [0.2, 0.8]])  # of four pairs one is the wrong way round
    assert METRICS["auroc"](ranks, torch.tensor([0, 0, 1, 1]), TWO) == pytest.approx(3 / 4)
    numbers, truth = torch.tensor([[1.0, 10.0], [3.0, 40.0]]), torch.tensor([[2.0, 10.0], [3.0, 20.0]])
    assert METRICS["mae"](numbers, truth, NUMBERS) == pytest.approx((0.5 + 10) / 2)
    assert METRICS["rmse"](numbers, truth, NUMBERS) == pytest.approx((math.sqrt(0.5) + math.sqrt(200)) / 2)
    assert METRICS["r2"](numbers, truth, NUMBERS) == pytest.approx((1 - 1 / 0.5 + 1 - 400 / 50) / 2)


@pytest.mark.parametrize("seed", range(3))
def test_two_numbers_are_those_that_tables_had_before(seed: int) -> None:
    answer, label = drawn(THREE, seed)
    assert METRICS["accuracy"](answer.log(), label, THREE) == accuracy(answer.log(), label)
    assert METRICS["macro_f1"](answer, label, THREE) == pytest.approx(macro_f1(answer.argmax(1), label, 3), abs=1e-12)


def test_classes_that_a_part_has_not_are_left_out() -> None:
    four = Classification(["a", "b", "c", "d"])
    label = torch.tensor([0, 0, 1, 1, 2, 2])
    answer = torch.eye(4)[torch.tensor([0, 0, 1, 3, 2, 2])] * 0.9 + 0.025
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert METRICS["balanced_accuracy"](answer, label, four) == pytest.approx((1 + 1 / 2 + 1) / 3)
        assert METRICS["macro_f1"](answer, label, four) == pytest.approx((1 + 2 / 3 + 1) / 3)
        assert METRICS["auroc"](answer, label, four) == pytest.approx((1 + 0.75 + 1) / 3)
        assert 0 < METRICS["auprc"](answer, label, four) < 1


@pytest.mark.parametrize("name", METRICS)
def test_a_part_that_cannot_tell_gives_a_number_or_nan_and_no_error(name: str) -> None:
    metric = METRICS[name]
    tasks = [task for task in (TWO, LABELS, NUMBERS) if task.kind in metric.kinds]
    undefined = {"auroc", "auprc", "r2"}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for task in tasks:
            answer, label = drawn(task, 0, samples=1)
            value = metric(answer, label, task)
            assert math.isnan(value) == (name in undefined) or task is LABELS
            same = torch.zeros_like(drawn(task, 0)[1])  # one class, no label, one number
            value = metric(drawn(task, 1)[0], same, task)
            assert math.isnan(value) == (name in undefined or (task is LABELS and name != "accuracy"))
            broken = torch.full((4, task.size), math.nan)
            value = metric(broken, same[:4], task)
            assert math.isnan(value) or (name == "accuracy" and task is TWO)


def test_undefined_and_worse_values_have_less_merit() -> None:
    for metric in METRICS.values():
        better, worse = (0.9, 0.1) if metric.higher else (0.1, 0.9)
        assert metric.merit(better) > metric.merit(worse) > metric.merit(None) == metric.merit(math.nan)


def test_a_metric_fits_its_tasks() -> None:
    for task, usual in ((THREE, "accuracy"), (LABELS, "macro_f1"), (NUMBERS, "mae")):
        assert metric_of("auto", task).name == usual
        for name, metric in METRICS.items():
            if task.kind in metric.kinds:
                assert metric_of(name, task) == metric.titled(None)
    message = "metric=auroc: expected one that fits a task of regression: mae, rmse, r2$"
    with pytest.raises(ValueError, match=message):
        metric_of("auroc", NUMBERS)
    with pytest.raises(ValueError, match=r"metric=balanced: .*Did you mean 'balanced_accuracy'\?"):
        metric_of("balanced", THREE)


def test_baselines_by_hand() -> None:
    train, label = torch.tensor([1, 1, 1, 0, 2]), torch.tensor([0, 0, 1, 2])
    expected = {"accuracy": 1 / 4, "balanced_accuracy": 1 / 3, "macro_f1": (2 / 5) / 3, "auroc": 0.5}
    for name, value in expected.items():
        assert baseline(train, label, METRICS[name], THREE) == pytest.approx(value), name
    assert baseline(train, label, METRICS["auprc"], THREE) == pytest.approx((1 / 2 + 1 / 4 + 1 / 4) / 3)
    # The first label is said always, the others never.
    labels = torch.tensor([[1.0, 0, 0], [1, 1, 0], [1, 0, 1]])
    told = torch.tensor([[1.0, 1, 0], [0, 1, 0]])
    assert baseline(labels, told, METRICS["accuracy"], LABELS) == pytest.approx(3 / 6)
    assert baseline(labels, told, METRICS["macro_f1"], LABELS) == pytest.approx((2 / 3 + 0) / 2)
    numbers, truth = torch.tensor([[0.0, 1], [0, 1], [9, 7], [1, 1]]), torch.tensor([[1.0, 1.0], [2.0, 3.0]])
    assert baseline(numbers, truth, METRICS["mae"], NUMBERS) == pytest.approx(((0.5 + 1.5) / 2 + (0 + 2) / 2) / 2)
    errors = [(2.5 - 1) ** 2 + (2.5 - 2) ** 2, (2.5 - 1) ** 2 + (2.5 - 3) ** 2]
    rmse = sum(math.sqrt(one / 2) for one in errors) / 2
    assert baseline(numbers, truth, METRICS["rmse"], NUMBERS) == pytest.approx(rmse)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", ["mae", "rmse", "r2"])
def test_no_other_constant_is_better_on_the_training_part(name: str, seed: int) -> None:
    _, label = drawn(NUMBERS, seed)
    metric = METRICS[name]
    best = metric.merit(baseline(label, label, metric, NUMBERS))
    for shift in (-3.0, -0.1, 0.1, 3.0):
        center = label.double().median(dim=0).values if name == "mae" else label.double().mean(dim=0)
        other = metric((center + shift).expand(len(label), -1), label, NUMBERS)
        assert metric.merit(other) <= best + 1e-9


# -- of one class --


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("task", [TWO, THREE, LABELS], ids=["two", "three", "labels"])
@pytest.mark.parametrize("at", [0, 1])
def test_metrics_of_one_class_are_those_of_scikit_learn(task: Task, at: int, seed: int) -> None:
    named = judged(task, task.names[at])
    answer, label = drawn(named, seed)
    truth = (label == at if task.kind == "classes" else label[:, at] > 0.5).numpy()
    told = (answer.argmax(dim=1) == at if task.kind == "classes" else answer[:, at] > 0.5).numpy()
    expected = {
        "auroc": sk.roc_auc_score(truth, answer[:, at]),
        "auprc": sk.average_precision_score(truth, answer[:, at]),
        "recall": sk.recall_score(truth, told),
    }
    for name, value in expected.items():
        metric = metric_of(name, named)
        assert metric(answer, label, named) == pytest.approx(value, abs=1e-12), name
        assert metric.label == f"{METRICS[name].label} of {task.names[at]}"
        if task.kind == "classes":  # which says a class by its largest score, whatever the scores are
            assert metric(answer.log(), label, named) == pytest.approx(value, abs=1e-12), name
    assert metric_of("accuracy", named)(answer, label, named) == metric_of("accuracy", task)(answer, label, task)
    assert events(label, named) == truth.sum()


def test_without_a_named_class_it_is_a_mean_and_says_so() -> None:
    assert [metric_of(name, THREE).label for name in ("auroc", "auprc", "recall")] == [
        "macro AUROC",
        "macro AUPRC",
        "macro recall",
    ]
    assert metric_of("accuracy", judged(THREE, "walk")).label == "accuracy"
    assert metric_of_row({"metric": "auprc", "positive": "died"}).label == "AUPRC of died"
    assert metric_of_row({"metric": "auprc"}).label == "macro AUPRC"
    assert metric_of_row({}) is METRICS["accuracy"]
    assert events(torch.tensor([0, 1, 1]), THREE) is None


def test_chance_is_the_share_of_the_named_class_and_never_one_half() -> None:
    ill = judged(TWO, "ill")
    train, label = torch.tensor([0] * 9 + [1]), torch.tensor([0] * 16 + [1] * 4)
    assert baseline(train, label, METRICS["auprc"], ill) == pytest.approx(4 / 20)
    assert baseline(train, label, METRICS["auprc"], judged(TWO, "healthy")) == pytest.approx(16 / 20)
    assert baseline(train, label, METRICS["auroc"], ill) == pytest.approx(0.5)
    assert baseline(train, label, METRICS["recall"], ill) == 0  # always saying "healthy" finds nobody


def test_a_class_that_is_none_is_refused() -> None:
    message = r"positive=ll: expected a class of the data: 'll' is none of 'healthy', 'ill'\. Did you mean 'ill'\?"
    with pytest.raises(ValueError, match=message):
        judged(TWO, "ll")
    with pytest.raises(ValueError, match=r"positive=flu: expected a label of the data: .*'cough', 'fever', 'rash'"):
        judged(LABELS, "flu")
    with pytest.raises(ValueError, match="positive=died: a regression has no classes; leave it out"):
        judged(NUMBERS, "died")
    assert judged(THREE, "auto") is judged(THREE, None) is THREE
    assert THREE.positive is None  # the task that was given stays as it is
    assert judged(THREE, "run").as_dict()["positive"] == "run"
    assert task_of(judged(THREE, "run").as_dict()).positive == "run"
    assert task_of(THREE.as_dict()).positive is None
