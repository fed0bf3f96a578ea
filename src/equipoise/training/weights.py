"""Class weights: rare classes count as much as frequent ones, in training and in what is solved or fitted."""

import torch
from torch import Tensor

from equipoise.models.metrics import judged
from equipoise.models.task import Classification, MultiLabel, Task
from equipoise.training.settings import Settings
from equipoise.util.errors import BadInput

MOST = 20.0
"""The largest weight of a rare label's positives, and one over the least of a frequent label's."""


def weighted_task(task: Task, settings: Settings, label: Tensor) -> Task:
    """Return the task with the weights that class_weight asks for; the same task where it asks for none.

    Classes: class c has the weight N / (C · n_c) where it is "balanced", n_c of the N training samples being of the
    class. Weights are divided by their mean over the training samples, which is then one, so that a learning rate means
    what it meant without them. Labels: the positives of a label have the weight n_negative / n_positive, between 1/20
    and 20; negatives keep theirs, so that the loss is at most doubled.

    The loss that is trained on has weights, and so have closed-form heads, committees, and the choice among members of
    an automatic model. Losses that are measured on validation and test have none.

    Args:
        task: Of the data.
        settings: Of the run.
        label: Of the training part.

    Raises:
        BadInput: If the task has no classes, or there are more or fewer weights than classes.
    """
    wanted, given = settings.class_weight, settings.class_weights()
    if wanted == "none":
        return task
    if not isinstance(task, (Classification, MultiLabel)):
        raise BadInput(f"class_weight={wanted}: a regression has no classes to weigh; leave it out")
    if given and len(given) != task.size:
        expected = f"{task.size} numbers, one each for {', '.join(task.names)}"
        raise BadInput(f"class_weight={wanted}: expected {expected}; found {len(given)}")
    label = label.detach().cpu()
    if isinstance(task, MultiLabel):
        positive = label.double().sum(dim=0)
        ratio = (len(label) - positive) / positive.clamp(min=1)
        return judged(MultiLabel(task.names, _tensor(given, ratio.clamp(1 / MOST, MOST))), task.positive)
    count = torch.bincount(label, minlength=task.size).double()
    weight = _tensor(given, len(label) / (task.size * count.clamp(min=1))).double()
    mean = (weight * count).sum() / max(len(label), 1)
    return judged(Classification(task.names, (weight / mean).float()), task.positive)


def _tensor(given: tuple[float, ...], balanced: Tensor) -> Tensor:
    return (torch.tensor(given) if given else balanced).float()
