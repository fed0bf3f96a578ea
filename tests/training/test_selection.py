"""The metric of the settings decides: which epoch is kept, when training stops; and it is exact over several ranks."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from sklearn.metrics import average_precision_score, recall_score
from torch import Tensor

from equipoise import MIMO, MSL, OGM, Unimodal
from equipoise.balance import collectives
from equipoise.data import Part, Splits
from equipoise.data.bundled import two_sensors
from equipoise.data.feed import Feed
from equipoise.models.metrics import METRICS
from equipoise.models.task import MultiLabel, Regression, Task
from equipoise.training.settings import Settings
from equipoise.training.step import build_model, evaluate, losses_of
from equipoise.training.train import train

CLASSES = two_sensors(samples=150)
ROUGH = Settings(epochs=6, batch=16, lr=0.3, features=8, select="best", encoder="mlp")


def with_task(task: Task, make: Any) -> Splits:
    """The same sensors with another label."""
    parts = {name: replace(part, label=make(part)) for name, part in CLASSES.parts.items()}
    return replace(CLASSES, **parts, classes=task.names, task=task)


def numbers(part: Part) -> Tensor:
    return 30 * part.inputs["easy"][:, :2] + 500


def flags(part: Part) -> Tensor:
    return (part.inputs["easy"][:, :3] > 1).float()


REGRESSION = with_task(Regression(["angle", "speed"], torch.tensor([500.0, 500]), torch.tensor([40.0, 40])), numbers)
LABELS = with_task(MultiLabel(["a", "b", "c"]), flags)
CASES = [
    (CLASSES, "balanced_accuracy"),
    (CLASSES, "auroc"),
    (LABELS, "macro_f1"),
    (REGRESSION, "mae"),
    (REGRESSION, "r2"),
]


@pytest.mark.parametrize("positive", ["class 0", "class 2"])
@pytest.mark.parametrize("name", ["auprc", "recall"])
def test_the_best_epoch_is_the_best_for_the_named_class(name: str, positive: str) -> None:
    found = train(CLASSES, MSL(), ROUGH.changed({"metric": name, "positive": positive}))
    scores = [record["validation"]["fused"] for record in found.curves]
    assert found.epoch == 1 + scores.index(max(scores))
    part, at = CLASSES.validation, CLASSES.task.names.index(positive)
    answer, truth = found.model.predict(part.inputs), part.label == at
    if name == "auprc":
        expected = average_precision_score(truth, answer[:, at])
    else:
        expected = recall_score(truth, answer.argmax(dim=1) == at)
    assert max(scores) == pytest.approx(expected, rel=1e-4)
    assert len(set(scores)) > 1


@pytest.mark.parametrize(("splits", "name"), CASES, ids=[name for _, name in CASES])
def test_the_best_epoch_is_the_best_by_the_metric(splits: Splits, name: str) -> None:
    metric, lr = METRICS[name], 0.05 if splits is REGRESSION else 0.3
    found = train(splits, MSL(), ROUGH.changed({"metric": name, "lr": lr}))
    scores = [record["validation"]["fused"] for record in found.curves]
    best = max(scores, key=metric.merit)
    assert found.epoch == 1 + scores.index(best)
    part = splits.validation
    assert metric(found.model.predict(part.inputs), part.label, splits.task) == pytest.approx(best, rel=1e-4)
    assert len(set(scores)) > 2  # so that there was something to choose


def test_patience_counts_epochs_without_a_smaller_error() -> None:
    found = train(REGRESSION, MSL(), Settings(epochs=60, batch=32, lr=0.1, features=8, metric="rmse", patience=3))
    scores = [record["validation"]["fused"] for record in found.curves]
    assert len(scores) == 1 + scores.index(min(scores)) + 3 < 60


def test_without_a_fused_loss_the_mean_of_the_modalities_decides() -> None:
    found = train(REGRESSION, Unimodal(), ROUGH.changed({"lr": 0.05}))
    means = [(r["validation"]["easy"] + r["validation"]["hard"]) / 2 for r in found.curves]
    assert found.epoch == 1 + means.index(min(means))


def test_a_metric_that_cannot_be_told_keeps_the_last_epoch() -> None:
    same = replace(CLASSES, validation=replace(CLASSES.validation, label=CLASSES.validation.label * 0))
    found = train(same, MSL(), ROUGH.changed({"metric": "auroc", "epochs": 2}))
    assert [record["validation"]["fused"] for record in found.curves] == [None, None]
    assert found.epoch == 2


def test_a_metric_of_another_task_is_refused_before_anything_is_trained() -> None:
    with pytest.raises(ValueError, match="metric=mae: expected one that fits a task of classes: accuracy, "):
        train(CLASSES, MSL(), ROUGH.changed({"metric": "mae"}))


@pytest.mark.parametrize("ranks", [2, 3, 7])
@pytest.mark.parametrize(("splits", "name"), CASES, ids=[name for _, name in CASES])
def test_several_ranks_tell_what_one_tells(
    splits: Splits, name: str, ranks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = build_model(splits, MIMO(), Settings(features=8)).double()  # so that sizes of batches do not matter
    part = splits.validation.take(torch.arange(20)).apply(lambda x: x.double() if x.is_floating_point() else x)
    wanted = evaluate(model, part, metric=METRICS[name])
    given: list[list[Tensor]] = []
    for rank in range(ranks):
        given.append([])
        monkeypatch.setattr(collectives, "total", lambda values: (given[-1].append(values), values)[1])
        evaluate(model, Feed(part, "cpu", rank=rank, ranks=ranks), batch=8, metric=METRICS[name])
    sums = iter([torch.stack(some).sum(dim=0) for some in zip(*given, strict=True)])
    monkeypatch.setattr(collectives, "total", lambda _: next(sums))
    found = evaluate(model, Feed(part, "cpu", rank=0, ranks=ranks), batch=8, metric=METRICS[name])
    for head, values in wanted.items():
        assert found[head] == pytest.approx(values, rel=1e-9), head


def test_samples_without_a_sensor_are_no_samples_of_its_head() -> None:
    present = torch.arange(len(CLASSES.validation)) % 3 > 0
    inputs = {**CLASSES.validation.inputs, "hard_present": present}
    part, model = replace(CLASSES.validation, inputs=inputs), build_model(CLASSES, MIMO(), Settings(features=8))
    metric = METRICS["macro_f1"]
    found = evaluate(model, part, metric=metric)
    answer = model.eval()(part.inputs)["hard"].softmax(dim=1)
    assert found["hard"]["metric"] == pytest.approx(metric(answer[present], part.label[present], CLASSES.task))


# -- class weights in training --


def test_weights_reach_every_loss_and_no_evaluation() -> None:
    weighted = Settings(features=8, class_weight="1,2,5", encoder="mlp")  # without dropout
    torch.manual_seed(0)
    model = build_model(CLASSES, MSL(), weighted)
    torch.manual_seed(0)
    plain = build_model(CLASSES, MSL(), Settings(features=8, encoder="mlp"))
    part = CLASSES.train
    _, losses = losses_of(model, MSL(), part)
    _, without = losses_of(plain, MSL(), part)
    weight = torch.tensor([1.0, 2, 5])[part.label]
    for name, loss in losses.items():
        torch.testing.assert_close(loss, without[name] * weight / weight.mean())
    assert evaluate(model, CLASSES.validation) == evaluate(plain, CLASSES.validation)
    assert model.state_dict().keys() == plain.state_dict().keys()


def test_methods_that_read_probabilities_off_losses_read_them_without_weights() -> None:
    found = {}
    for wanted in ("none", "1,2,50"):
        torch.manual_seed(0)
        model = build_model(CLASSES, OGM(), Settings(features=8, class_weight=wanted))
        balancer = OGM()
        balancer.attach(model, optimizer=torch.optim.SGD(model.parameters(), 0.1))
        losses_of(model, balancer, CLASSES.train)
        found[wanted] = balancer.table.values
    torch.testing.assert_close(found["none"], found["1,2,50"], equal_nan=True)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("splits", [CLASSES, LABELS], ids=["classes", "labels"])
def test_training_with_balanced_weights_finds_the_rare(splits: Splits, precision: str) -> None:
    settings = Settings(epochs=8, batch=16, lr=0.05, features=8, class_weight="balanced", metric="balanced_accuracy")
    found = train(splits, MSL(), settings.changed({"precision": precision}))
    assert found.curves[-1]["validation"]["fused"] > 0.6
