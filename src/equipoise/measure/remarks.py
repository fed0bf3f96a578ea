"""Plain sentences about a run that looks finished and is none: a model that always answers the same, too few steps."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from equipoise.measure.bootstrap import bootstrap_interval
from equipoise.models.metrics import METRICS
from equipoise.models.task import Task

FEW_STEPS = 200
ROUNDING = 1e-6
STILL = 0.01
"""Answers whose deviation is below this part of the target's are as good as one number."""


def says_only(answer: Tensor, label: Tensor, task: Task) -> str | None:
    """Return what a model answers for every sample, in words, where it always answers the same.

    None where it does not, or where the labels are all the same, too.

    Args:
        answer: Probabilities or numbers, [N, size].
        label: As a part holds it.
        task: The task.
    """
    if len(label) < 2 or bool((label == label[:1]).all()):
        return None
    if task.kind == "regression":
        moves = answer.double().std(dim=0) > STILL * label.double().std(dim=0)
        numbers = ", ".join(f"{value:.4g}" for value in answer.double().mean(dim=0).tolist())
        return None if bool(moves.any()) else f"about {numbers}"
    if task.kind == "classes":
        chosen = answer.argmax(dim=1)
        return repr(task.names[int(chosen[0])]) if bool((chosen == chosen[0]).all()) else None
    chosen = answer > 0.5
    if not bool((chosen == chosen[:1]).all()):
        return None
    return ", ".join(repr(task.names[at]) for at in torch.nonzero(chosen[0])[:, 0].tolist()) or "no label"


def sameness(decision: str, answer: Tensor | None, label: Tensor, task: Task, group: Tensor | None) -> dict[str, Any]:
    """Return what a decision is for every sample of a part, where it always is the same, and how its scores rank them.

    Args:
        decision: Its name.
        answer: Probabilities or numbers, [N, size]; None where there is no such decision.
        label: As the part holds it.
        task: The task.
        group: The group of each sample.

    Returns:
        Under the name of the decision with "_says" behind it what `says_only` returns. Where that is something, the
        AUROC and its 95 % interval, with "_auroc" and "_auroc_interval"; None where scores are the same, too.
    """
    said = None if answer is None else says_only(answer, label, task)
    area, interval = math.nan, None
    # Scores that differ by rounding alone come from no sensor.
    if (
        answer is not None
        and said is not None
        and task.kind != "regression"
        and bool((answer.std(dim=0) > ROUNDING).any())
    ):
        area = METRICS["auroc"](answer, label, task)
        interval = bootstrap_interval(METRICS["auroc"], answer, label, task, group)
    known = None if math.isnan(area) else area
    return {f"{decision}_says": said, f"{decision}_auroc": known, f"{decision}_auroc_interval": interval}


def warnings_of(
    validation: Mapping[str, Any], steps: int, task: Task, *, weighted: bool, trained: bool = True
) -> list[str]:
    """Return what a person should know before they read the numbers of a run, a sentence each.

    Args:
        validation: The measurements on the validation part.
        steps: Of the optimiser, in all.
        task: The task.
        weighted: Whether classes had weights.
        trained: Whether the model was trained at all, and not solved in closed form.
    """
    warnings = []
    said = {decision: validation.get(f"{decision}_says") for decision in ("fused", "committee")}
    for answer in dict.fromkeys(filter(None, said.values())):
        of = [decision for decision in said if said[decision] == answer]
        verb = "decisions say" if len(of) > 1 else "decision says"
        what = f"the {' and the '.join(of)} {verb} {answer} for every validation sample"
        warnings.append(f"{what}, {_why(validation, of, task, weighted=weighted, trained=trained)}")
    if 0 < steps < FEW_STEPS:
        warnings.append(f"training took {steps} steps, fewer than {FEW_STEPS}: raise epochs, or lower batch")
    return warnings


def _why(validation: Mapping[str, Any], of: Sequence[str], task: Task, *, weighted: bool, trained: bool) -> str:
    """Say what a decision that is always the same comes from, and what to do."""
    known = {name: area for name in of if (area := validation.get(f"{name}_auroc")) is not None}
    ends = [validation.get(f"{name}_auroc_interval") for name in known]
    balanced = [] if weighted or task.kind == "regression" else ["class_weight=balanced"]
    areas = " and ".join(f"{100 * area:.1f} %" for area in known.values())
    found = f"{METRICS['auroc'].titled(task.positive).label} {areas}"
    if any(end is not None and end[0] > 0.5 for end in ends):
        column = "a probability" if task.positive is None else f"p_{task.positive}"
        advice = [*balanced, f"a threshold of your own on {column}, chosen on validation data"]
        return (
            f"though the probabilities rank them better than chance ({found}): the threshold fails; try {_or(advice)}"
        )
    last = "another lr" if weighted or task.kind == "regression" else ""
    more = ["more epochs", *filter(None, [last])] if trained else ["a method that is trained, such as mimo"]
    cause = f"and the probabilities rank them no better than chance ({found})" if known else "whatever the sensors say"
    return f"{cause}; try {_or([*balanced, *more])}"


def _or(advice: Sequence[str]) -> str:
    return ", or ".join(advice)
