"""Plain sentences about a run that looks finished and is none: a model that always answers the same, too few steps."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from equipoise.models.task import Task

FEW_STEPS = 200
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


def warnings_of(validation: Mapping[str, Any], steps: int, *, weighted: bool) -> list[str]:
    """Return what a person should know before they read the numbers of a run, a sentence each.

    Args:
        validation: The measurements on the validation part.
        steps: Of the optimiser, in all.
        weighted: Whether training had class weights.
    """
    warnings = []
    said = {decision: validation.get(f"{decision}_says") for decision in ("fused", "committee")}
    for answer in dict.fromkeys(filter(None, said.values())):
        who = " and the ".join(decision for decision in said if said[decision] == answer)
        verb = "decisions say" if " " in who else "decision says"
        numbers = str(answer).startswith("about ")
        advice = "try more epochs or another lr" if weighted or numbers else "try class_weight=balanced, or more epochs"
        warnings.append(f"the {who} {verb} {answer} for every validation sample, whatever the sensors say; {advice}")
    if 0 < steps < FEW_STEPS:
        warnings.append(f"training took {steps} steps, fewer than {FEW_STEPS}: raise epochs, or lower batch")
    return warnings
