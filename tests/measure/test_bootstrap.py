"""Bootstrap intervals: each draw is the metric of samples drawn anew, and they cover as often as they should."""

import math
import time

import pytest
import torch
from torch import Tensor

from equipoise.measure.bootstrap import bootstrap_interval, resampled
from equipoise.models.metrics import METRICS, judged
from equipoise.models.task import Classification, MultiLabel, Regression, Task

TASKS: dict[str, Task] = {
    "classes": Classification(["rest", "walk", "run"]),
    "one class": judged(Classification(["rest", "walk", "run"]), "walk"),
    "one label": judged(MultiLabel(["cough", "fever", "rash"]), "rash"),
    "labels": MultiLabel(["cough", "fever", "rash"]),
    "regression": Regression(["steering", "speed"]),
}
CASES = [
    (kind, name)
    for name, metric in METRICS.items()
    for kind, task in TASKS.items()
    if task.kind in metric.kinds and (metric.of_class or task.positive is None)
]


def drawn(task: Task, samples: int, seed: int, ties: bool = False) -> tuple[Tensor, Tensor, Tensor]:
    """Answers, labels and groups; answers and errors of a group are alike."""
    random = torch.Generator().manual_seed(seed)
    group = torch.randint(max(2, samples // 10), (samples,), generator=random)
    offset = torch.randn(samples, task.size, generator=random, dtype=torch.float64)[group]
    scores = torch.randn(samples, task.size, generator=random, dtype=torch.float64) + offset
    noise, other = torch.randn(2, samples, task.size, generator=random, dtype=torch.float64)
    truth = scores + noise + 1.5 * other[group]
    scores = scores.round() if ties else scores
    if task.kind == "classes":
        return scores.softmax(dim=1), (truth + torch.tensor([2.0, 0.5, 0.0])).argmax(dim=1), group
    if task.kind == "labels":
        return scores.sigmoid(), (truth > 1.0).float(), group
    return scores * 30 + 500, (truth * 30 + 500).float(), group


@pytest.mark.parametrize("ties", [False, True], ids=["no ties", "ties"])
@pytest.mark.parametrize(("kind", "name"), CASES)
def test_each_draw_is_the_metric_of_the_samples_drawn(kind: str, name: str, ties: bool) -> None:
    task, metric = TASKS[kind], METRICS[name]
    answer, label, group = drawn(task, 50, seed=3, ties=ties)
    members = group.unique(return_inverse=True)[1]
    groups = int(members.max()) + 1
    picks = torch.randint(groups, (20, groups), generator=torch.Generator().manual_seed(1))
    counts = torch.stack([torch.bincount(pick, minlength=groups) for pick in picks]).float()
    found = resampled(metric, answer, label, task, members, counts)
    for pick, value in zip(picks, found.tolist(), strict=True):
        rows = torch.cat([(members == one).nonzero()[:, 0] for one in pick])
        expected = metric(answer[rows], label[rows], task)
        assert value == pytest.approx(expected, abs=1e-6, nan_ok=True)


@pytest.mark.parametrize(("kind", "name"), CASES)
def test_rare_classes_that_a_draw_misses_are_left_out(kind: str, name: str) -> None:
    task, metric = TASKS[kind], METRICS[name]
    answer, label, _ = drawn(task, 6, seed=0)
    label = torch.zeros_like(label)
    label[0] = 1
    counts = torch.tensor([[0.0, 2, 1, 1, 1, 1], [1, 1, 1, 1, 1, 1], [6, 0, 0, 0, 0, 0]])
    found = resampled(metric, answer, label, task, torch.arange(6), counts).tolist()
    for count, value in zip(counts, found, strict=True):
        rows = torch.arange(6).repeat_interleave(count.long())
        assert value == pytest.approx(metric(answer[rows], label[rows], task), abs=1e-6, nan_ok=True)


@pytest.mark.parametrize(("kind", "name"), [("classes", "accuracy"), ("labels", "macro_f1"), ("regression", "mae")])
def test_intervals_cover_the_value_of_the_population(kind: str, name: str) -> None:
    task, metric = TASKS[kind], METRICS[name]
    answer, label, group = drawn(task, 40_000, seed=7)
    truth, groups = metric(answer, label, task), int(group.max()) + 1
    covered = naive = 0
    for trial in range(60):
        chosen = torch.randperm(groups, generator=torch.Generator().manual_seed(trial))[:40]
        rows = torch.isin(group, chosen)
        found = bootstrap_interval(metric, answer[rows], label[rows], task, group[rows], seed=trial)
        alone = bootstrap_interval(metric, answer[rows], label[rows], task, seed=trial)
        assert found is not None
        assert alone is not None
        covered += found[0] <= truth <= found[1]
        naive += alone[0] <= truth <= alone[1]
    assert covered >= 51  # fewer has a chance below 0.1 % at a coverage of 95 %
    assert naive < 45  # samples of one group are alike: drawing them singly promises too much


def test_a_seed_repeats_and_the_interval_holds_the_value() -> None:
    task, metric = TASKS["classes"], METRICS["balanced_accuracy"]
    answer, label, group = drawn(task, 300, seed=2)
    found = bootstrap_interval(metric, answer, label, task, group, seed=5)
    assert found == bootstrap_interval(metric, answer, label, task, group, seed=5)
    assert found != bootstrap_interval(metric, answer, label, task, group, seed=6)
    assert found is not None
    assert found[0] < metric(answer, label, task) < found[1]
    assert 0 <= found[0] <= found[1] <= 1


def test_nothing_can_be_said_of_one_group_or_one_class() -> None:
    task = TASKS["classes"]
    answer, label, group = drawn(task, 30, seed=2)
    assert bootstrap_interval(METRICS["accuracy"], answer, label, task, torch.zeros_like(group)) is None
    assert bootstrap_interval(METRICS["auroc"], answer, torch.zeros_like(label), task) is None
    assert bootstrap_interval(METRICS["macro_f1"], answer * math.nan, label, task) is None
    assert bootstrap_interval(METRICS["accuracy"], answer[:0], label[:0], task) is None


@pytest.mark.parametrize(("kind", "name"), CASES)
def test_it_takes_little_time(kind: str, name: str) -> None:
    answer, label, group = drawn(TASKS[kind], 4_000, seed=0)
    took = []
    for groups in (group, None):
        start = time.process_time()
        bootstrap_interval(METRICS[name], answer, label, TASKS[kind], groups)
        took.append(time.process_time() - start)
    assert max(took) < 2.0, took  # of processor time: about a fifth of a second
