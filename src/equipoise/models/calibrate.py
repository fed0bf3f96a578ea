"""Fit the committee of a model on data that it was not trained on."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from equipoise.models.committee import CommitteeFit, fit_weights
from equipoise.models.evaluation import class_log_probabilities, evaluating
from equipoise.models.late_fusion import LateFusion

Batch = Sequence[Any]
"""(inputs, labels) or (inputs, labels, groups), inputs as for `LateFusion.forward`."""


def fit_committee(
    model: LateFusion, batches: Iterable[Batch] | Batch, groups: Sequence[Any] | np.ndarray | Tensor | None = None
) -> CommitteeFit:
    """Fit the weights with which a model's heads vote, and store them in `model.committee`.

    Args:
        model: A model with uni-modal outputs.
        batches: Validation data: any number of batches (inputs, labels) or (inputs, labels, groups), or a single one.
        groups: The person, speaker or video of each sample over all batches, where the batches do not hold them.

    Returns:
        The fit, as `fit_weights` gives it.

    Raises:
        TypeError: If the model is no `LateFusion`.
        ValueError: If the model has no uni-modal outputs, or the data is empty or does not fit; see `fit_weights`.
    """
    _check_model(model)
    members = ["fused", *model.encoders]
    logs, labels, groups_of_batches = [], [], []
    with evaluating(model), torch.no_grad():
        for number, (inputs, answers, *rest) in enumerate(_each(batches)):
            outputs = class_log_probabilities(model(inputs))
            _check_batch(number, members, outputs, answers, rest)
            logs.append(torch.stack([outputs[name] for name in members], dim=1).cpu())
            labels.append(torch.as_tensor(answers).cpu())
            groups_of_batches.append(rest[0] if rest else None)
    if not logs:
        raise ValueError(
            "fit_committee expected at least one batch (inputs, labels); found none. Pass validation data."
        )

    fit = fit_weights(torch.cat(logs), torch.cat(labels), _all_groups(groups_of_batches, groups))
    model.committee.copy_(fit.weights)
    return fit


def _each(batches: Iterable[Batch] | Batch) -> Iterable[Batch]:
    single = isinstance(batches, Sequence) and len(batches) > 0 and isinstance(batches[0], Mapping)
    return [batches] if single else batches


def _all_groups(of_batches: list[Any], given: Sequence[Any] | np.ndarray | Tensor | None) -> Any:
    with_groups = sum(each is not None for each in of_batches)
    if with_groups == 0:
        return given
    if given is not None or with_groups < len(of_batches):
        raise ValueError(
            f"fit_committee expected groups in every batch, or as groups=… for all; found them in {with_groups} of "
            f"{len(of_batches)} batches and groups={'None' if given is None else '…'}. Give them in one place."
        )
    return np.concatenate([each.cpu().numpy() if isinstance(each, Tensor) else np.asarray(each) for each in of_batches])


def _check_model(model: object) -> None:
    if not isinstance(model, LateFusion):
        raise TypeError(
            f"fit_committee expected a LateFusion; found {type(model).__name__}. "
            "Pass the model inside its wrapper, e.g. model.module."
        )
    if model.unimodal is None:
        raise ValueError(
            "fit_committee expected a model with uni-modal outputs; this one was built with unimodal=None. "
            "Write LateFusion(…, unimodal='head')."
        )


def _check_batch(
    number: int, members: list[str], outputs: Mapping[str, Tensor], answers: Sequence[int] | Tensor, rest: list[Any]
) -> None:
    samples = len(outputs["fused"])
    problems = []
    if missing := [name for name in members if name not in outputs]:
        problems.append(f"an input for every modality, and {', '.join(map(repr, missing))} is missing")
    if len(answers) != samples:
        problems.append(f"{samples} labels, and there are {len(answers)}")
    if rest and len(rest[0]) != samples:
        problems.append(f"{samples} groups, and there are {len(rest[0])}")
    if problems:
        raise ValueError(f"fit_committee expected in batch {number}: {'; '.join(problems)}. Leave such batches out.")
