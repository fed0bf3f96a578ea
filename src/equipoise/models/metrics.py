"""Metrics by name: one number that says how good the answers of a model are, for headline, selection and tuning.

Scikit-learn computes all but the accuracy. A part that cannot tell makes no error: classes and labels that do not occur
there are left out of a mean, and a metric with nothing left is NaN.

AUROC, AUPRC and recall are of the class or label that a task calls `positive`, and are named after it; where it calls
none so, they are the mean over all, and "macro" in tables.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, final

import numpy as np
import torch
from torch import Tensor

from equipoise.util.errors import BadInput, unknown_name
from equipoise.util.extras import needs

if TYPE_CHECKING:
    from equipoise.models.task import Task

Compute = Callable[[np.ndarray, np.ndarray, bool], float]
"""Of answers [N, size], labels as a part holds them, and whether these are classes, the metric."""


@final
@dataclass(frozen=True)
class Metric:
    """A metric of answers, probabilities or numbers [N, size], against labels.

    Args:
        name: As one types it.
        label: In tables.
        higher: Whether larger is better.
        percent: Whether tables show it as a percentage.
        kinds: The kinds of task that it fits.
        compute: How scikit-learn computes it.
        of_class: Whether it is of the positive class, where there is one.
        ranks: Whether it reads the order of the samples, and not what is said of each.
    """

    name: str
    label: str
    higher: bool
    percent: bool
    kinds: tuple[str, ...]
    compute: Compute
    of_class: bool = False
    ranks: bool = False

    def __call__(self, answer: Tensor, label: Tensor, task: Task) -> float:
        """Compute the metric; NaN where the part cannot tell, or an answer is no number.

        Args:
            answer: Probabilities or numbers, [N, size], as `task.answer` gives them. Log-probabilities of classes do as
                well; those of labels do not, since a label is said where it is likelier than not.
            label: As a part holds it.
            task: The task.
        """
        if self.is_accuracy(task):
            return (answer.argmax(dim=1) == label).double().mean().item()
        answers = answer.detach().double().cpu().numpy()
        if len(answers) == 0 or not np.isfinite(answers).all():
            return math.nan
        truth, classes = label.detach().cpu().numpy(), task.kind == "classes"
        if (at := self.column(task)) is not None:  # one label in place of all
            said = answers[:, at] if self.ranks or not classes else (answers.argmax(axis=1) == at).astype(float)
            truth, answers, classes = (truth == at if classes else truth[:, at])[:, None], said[:, None], False
        return float(self.compute(answers, truth, classes))

    def column(self, task: Task) -> int | None:
        """Return the number of the class or label that the metric is of; None where it is of all."""
        return task.names.index(task.positive) if self.of_class and task.positive is not None else None

    def titled(self, positive: str | None) -> Metric:
        """Return the same metric, whose label says of which class or label it is, or that it is the mean of all."""
        if not self.of_class:
            return self
        plain = METRICS[self.name].label
        return replace(self, label=f"macro {plain}" if positive is None else f"{plain} of {positive}")

    def is_accuracy(self, task: Task) -> bool:
        """Tell whether it is the accuracy of classes, which is a mean over samples and can be added up."""
        return self.name == "accuracy" and task.kind == "classes"

    def merit(self, value: float | None) -> float:
        """Return a value of the metric as a number of which larger is better; −∞ for None and NaN."""
        if value is None or math.isnan(value):
            return -math.inf
        return value if self.higher else -value


def _mean(values: Iterable[float]) -> float:
    values = list(values)
    return float(np.mean(values)) if values else math.nan


def _columns(answer: np.ndarray, label: np.ndarray, classes: bool) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return (truth, answer) of each class against the rest, or of each label, where both values of the truth occur."""
    pairs = [
        (label == at if classes else label[:, at] > 0.5, answer[:, at])  # a label of one column per class
        for at in range(answer.shape[1])
    ]
    return [(truth, column) for truth, column in pairs if 0 < truth.sum() < len(truth)]


def _accuracy(answer: np.ndarray, label: np.ndarray, classes: bool) -> float:
    """Compute the share of right decisions over samples and labels."""
    return float(np.mean(answer.argmax(axis=1) == label if classes else (answer > 0.5) == (label > 0.5)))


def _balanced_accuracy(answer: np.ndarray, label: np.ndarray, classes: bool) -> float:
    """Compute the mean recall of the classes; of labels the mean of each label's own balanced accuracy."""
    with needs("this metric", "train"):
        from sklearn.metrics import recall_score

    if classes:
        known = {"labels": np.unique(label), "average": "macro", "zero_division": 0.0}
        return recall_score(label, answer.argmax(axis=1), **known)
    pairs = _columns(answer, label, classes)
    if not pairs:
        return math.nan
    truth, said = np.stack([truth for truth, _ in pairs], axis=1), np.stack([some > 0.5 for _, some in pairs], axis=1)
    hits = (truth & said).sum(axis=0) / truth.sum(axis=0), (~truth & ~said).sum(axis=0) / (~truth).sum(axis=0)
    return float(np.mean(hits))


def _recall(answer: np.ndarray, label: np.ndarray, classes: bool) -> float:
    """Compute the share of the samples of a class, or with a label, that are found; the mean over all that occur."""
    truth, said = label > 0.5, answer > 0.5
    if classes:
        everything = np.arange(answer.shape[1])
        truth, said = label[:, None] == everything, answer.argmax(axis=1)[:, None] == everything
    occurring = truth.any(axis=0)
    return _mean(((truth & said).sum(axis=0)[occurring] / truth.sum(axis=0)[occurring]).tolist())


def _macro_f1(answer: np.ndarray, label: np.ndarray, classes: bool) -> float:
    """Compute the mean F1 of the classes, or of the labels, of which the part has a sample."""
    with needs("this metric", "train"):
        from sklearn.metrics import f1_score

    if classes:
        known = {"labels": np.unique(label), "average": "macro", "zero_division": 0.0}
        return f1_score(label, answer.argmax(axis=1), **known)
    truth = label > 0.5
    occurring = truth.any(axis=0)
    if truth.shape[1] == 1:  # which scikit-learn takes for two classes
        return f1_score(truth[:, 0], answer[:, 0] > 0.5, zero_division=0.0) if occurring.any() else math.nan
    return _mean(f1_score(truth, answer > 0.5, average=None, zero_division=0.0)[occurring])


def _auroc(answer: np.ndarray, label: np.ndarray, classes: bool) -> float:
    with needs("this metric", "train"):
        from sklearn.metrics import roc_auc_score

    return _mean(roc_auc_score(truth, some) for truth, some in _columns(answer, label, classes))


def _auprc(answer: np.ndarray, label: np.ndarray, classes: bool) -> float:
    with needs("this metric", "train"):
        from sklearn.metrics import average_precision_score

    return _mean(average_precision_score(truth, some) for truth, some in _columns(answer, label, classes))


def _mae(answer: np.ndarray, label: np.ndarray, _: bool) -> float:
    with needs("this metric", "train"):
        from sklearn.metrics import mean_absolute_error

    return mean_absolute_error(label, answer)


def _rmse(answer: np.ndarray, label: np.ndarray, _: bool) -> float:
    with needs("this metric", "train"):
        from sklearn.metrics import mean_squared_error

    return float(np.sqrt(mean_squared_error(label, answer, multioutput="raw_values")).mean())


def _r2(answer: np.ndarray, label: np.ndarray, _: bool) -> float:
    """Compute the mean R² of the columns; a column that has one value only is left out."""
    with needs("this metric", "train"):
        from sklearn.metrics import r2_score

    varying = np.flatnonzero((label != label[:1]).any(axis=0))
    return _mean(r2_score(label[:, at], answer[:, at]) for at in varying)


_DECISIONS, _NUMBERS = ("classes", "labels"), ("regression",)
METRICS = {
    name: Metric(name, label, higher, percent, kinds, compute, *of_class)
    for name, label, higher, percent, kinds, compute, *of_class in (
        ("accuracy", "accuracy", True, True, _DECISIONS, _accuracy),
        ("balanced_accuracy", "balanced accuracy", True, True, _DECISIONS, _balanced_accuracy),
        ("macro_f1", "macro-F1", True, True, _DECISIONS, _macro_f1),
        ("auroc", "AUROC", True, True, _DECISIONS, _auroc, True, True),
        ("auprc", "AUPRC", True, True, _DECISIONS, _auprc, True, True),
        ("recall", "recall", True, True, _DECISIONS, _recall, True),
        ("mae", "mean absolute error", False, False, _NUMBERS, _mae),
        ("rmse", "root mean squared error", False, False, _NUMBERS, _rmse),
        ("r2", "R²", True, False, _NUMBERS, _r2),
    )
}
"""Every metric by name.

accuracy: of classes the share of samples whose likeliest class is the right one; of labels the share of right decisions
over all samples and labels, where a label is said if it is likelier than not.
balanced_accuracy: the mean recall of the classes; of labels the mean of (recall + specificity) / 2.
macro_f1: the mean F1 of the classes or labels.
auroc, auprc: the area under the receiver operating curve, and under the precision-recall curve as average precision.
recall: the share of the samples of a class, or with a label, of which it is said.
These three are of the positive class against the rest, or of the positive label; without one they are the mean over
all classes or labels.
mae, rmse, r2: of each column, then the mean over columns, also where these have different units.
"""
AUTO = {"classes": "accuracy", "regression": "mae", "labels": "macro_f1"}
"""The metric of each kind of task where none is asked for."""


def metric_of(name: str, task: Task) -> Metric:
    """Return the metric that a name means for a task, labelled for it; "auto" is accuracy, mae or macro_f1.

    Raises:
        BadInput: If there is no such metric, or it does not fit the task; the message names those that do.
    """
    if name == "auto":
        return METRICS[AUTO[task.kind]]
    fitting = [metric.name for metric in METRICS.values() if task.kind in metric.kinds]
    if name not in METRICS:
        raise BadInput(f"metric={name}: {unknown_name(name, ['auto', *fitting])}")
    if name not in fitting:
        raise BadInput(f"metric={name}: expected one that fits a task of {task.kind}: {', '.join(fitting)}")
    return METRICS[name].titled(task.positive)


def metric_of_row(row: Mapping[str, Any]) -> Metric:
    """Return the metric of a row of results; accuracy where a row of an earlier version names none."""
    return METRICS.get(str(row.get("metric")), METRICS["accuracy"]).titled(row.get("positive"))


def judged(task: Task, positive: str | None) -> Task:
    """Return a task with a positive class or label; the task itself for "auto" and None.

    Raises:
        BadInput: If it has no such class or label; the message names those that it has.
    """
    if positive in ("auto", None) or positive == task.positive:
        return task
    if task.kind == "regression":
        raise BadInput(f"positive={positive}: a regression has no classes; leave it out")
    if positive not in task.names:
        what = "a class" if task.kind == "classes" else "a label"
        raise BadInput(f"positive={positive}: expected {what} of the data: {unknown_name(positive, task.names)}")
    task = copy.deepcopy(task)
    task.positive = positive
    return task


def events(label: Tensor, task: Task) -> int | None:
    """Count the samples of the positive class, or with the positive label; None where the task has none."""
    if task.positive is None:
        return None
    at = task.names.index(task.positive)
    return int((label == at).sum() if task.kind == "classes" else (label[:, at] > 0.5).sum())


def baseline(train_label: Tensor, label: Tensor, metric: Metric, task: Task) -> float:
    """Compute the metric of an answer that reads no sensor, taken from the training part alone.

    Classes and labels: how often each occurs there, so that the majority is said every time. Numbers: the median for
    mae, and the mean for rmse and r2, which are the best constants for each.

    Args:
        train_label: Labels of the training part.
        label: Labels of the part that is measured.
        metric: The metric.
        task: The task.
    """
    known = train_label.detach().cpu().double()
    if task.kind == "classes":
        constant = torch.bincount(train_label.detach().cpu(), minlength=task.size).double() / max(len(known), 1)
    elif metric.name == "mae":
        constant = torch.from_numpy(np.median(known.numpy(), axis=0))
    else:
        constant = known.mean(dim=0)
    return metric(constant.expand(len(label), -1), label.detach().cpu(), task)
