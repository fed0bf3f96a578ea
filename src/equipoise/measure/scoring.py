"""How good a decision is: accuracy, macro-F1, calibration, likelihood."""

from __future__ import annotations

import torch
from torch import Tensor

from equipoise.measure.outputs import Outputs

BINS = 15


def scores(outputs: Outputs) -> dict[str, dict[str, float] | None]:
    """Score both decisions of a model, never confused with one another.

    Args:
        outputs: As `decisions` gives them.

    Returns:
        Under "fused" and under "committee": "accuracy", "f1" (see `macro_f1`), "ece" (see `calibration_error`) and
        "loss", the mean negative log-likelihood. "committee" is None where the model has no uni-modal outputs.
    """
    committee = None
    if outputs.committee is not None:
        # A class without any chance would make the loss infinite, which no results file can hold.
        tiny = torch.finfo(outputs.committee.dtype).tiny
        committee = _score(outputs.committee.clamp(min=tiny).log(), outputs.label)
    return {"fused": _score(outputs.fused, outputs.label), "committee": committee}


def accuracy(votes: Tensor, label: Tensor) -> float:
    """The share of samples whose highest vote [N, C] is the right class [N]."""
    return (votes.argmax(dim=1) == label).double().mean().item()


def macro_f1(predicted: Tensor, label: Tensor, classes: int) -> float:
    """The mean over classes of F1 = 2·TP / (2·TP + FP + FN).

    Classes absent from the part, those that no sample belongs to, are left out of the mean: nothing there could be
    found. A sample taken for such a class still is a miss of its own.

    Args:
        predicted: The classes told, [N].
        label: The right classes, [N].
        classes: How many classes there are.
    """
    support = label.bincount(minlength=classes)
    told = predicted.bincount(minlength=classes)
    hits = label[predicted == label].bincount(minlength=classes)
    present = support > 0
    return (2 * hits[present].double() / (support + told)[present]).mean().item()


def calibration_error(probabilities: Tensor, label: Tensor) -> float:
    """Expected calibration error: how far confidence is from accuracy, over 15 equal bins of confidence.

    Σ_b n_b/N · |accuracy_b − mean confidence_b|; bin b of confidences (the highest probability of a sample) is the
    interval from b/15, not included, to (b + 1)/15, included.

    Args:
        probabilities: Of the classes, [N, C].
        label: The right classes, [N].
    """
    confidence, predicted = probabilities.double().max(dim=1)
    place = ((confidence * BINS).ceil().long() - 1).clamp(0, BINS - 1)
    excess = (predicted == label).double() - confidence
    # On a CPU, in the order of the samples: a GPU adds as it comes, and differently each time.
    by_bin = torch.zeros(BINS, dtype=torch.float64).index_add(0, place.cpu(), excess.cpu())
    return (by_bin.abs().sum() / len(label)).item()


def _score(log_probabilities: Tensor, label: Tensor) -> dict[str, float]:
    return {
        "accuracy": accuracy(log_probabilities, label),
        "f1": macro_f1(log_probabilities.argmax(dim=1), label, log_probabilities.shape[1]),
        "ece": calibration_error(log_probabilities.exp(), label),
        "loss": -log_probabilities.gather(1, label[:, None]).mean().item(),
    }
