"""Reading the members of a committee on data that the model was not trained on, so that weights can be fitted."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor

from equipoise.models.encoded import check_model
from equipoise.models.evaluation import evaluating
from equipoise.models.fusion_model import FusionModel
from equipoise.models.intervals import subset_masks
from equipoise.models.task import Classification, Regression
from equipoise.util.errors import raise_all

Batch = Sequence[Any]
"""(inputs, labels) or (inputs, labels, groups), inputs as for `LateFusion.forward`."""
Groups = Sequence[Any] | np.ndarray | Tensor


class Votes(NamedTuple):
    """The members of a committee on the samples that have every sensor.

    Args:
        members: The fused head, then that of each modality, as `Task.member` gives them, [N, K + 1, size].
        label: [N, …].
        groups: The group of each sample, where there are groups.
        fused_errors: Of a regression, the errors of the fused answer with every subset of the sensors, [S, N, D].
    """

    members: Tensor
    label: Tensor
    groups: Any = None
    fused_errors: Tensor | None = None


def read_votes(
    model: FusionModel, batches: Iterable[Batch] | Batch, groups: Groups | None = None, owner: str = "read_votes"
) -> Votes:
    """Read the members of a model's committee. Samples that lack a sensor are left out.

    Args:
        model: A model with uni-modal outputs.
        batches: Any number of batches (inputs, labels) or (inputs, labels, groups), or a single one.
        groups: The group of each sample over all batches, where the batches do not hold them.
        owner: The function that asks, for messages.

    Raises:
        TypeError: If the model is no `LateFusion`.
        ValueError: If the model has no uni-modal outputs, or the data is empty or does not fit.
    """
    check_model(owner, model)
    if model.unimodal is None:
        hint = "this one was built with unimodal=None. Write LateFusion(…, unimodal='head')."
        raise ValueError(f"{owner} expected a model with uni-modal outputs; {hint}")
    single = isinstance(batches, Sequence) and len(batches) > 0 and isinstance(batches[0], Mapping)
    task, names = model.known_task(), ["fused", *model.encoders]
    members, labels, groups_of_batches, whole, errors = [], [], [], [], []
    with evaluating(model), torch.no_grad():
        for number, batch in enumerate([batches] if single else batches):
            inputs, answers, *rest = cast("tuple[Any, ...]", batch)
            features = model.features(inputs)
            outputs = model.outputs_from(features)
            samples = len(outputs["fused"])
            wrong = [f"an input for {name!r}, which is missing" for name in names if name not in outputs]
            counts = {"labels": len(answers), "groups": len(rest[0]) if rest else samples}
            wrong += [f"{samples} {what}, and there are {count}" for what, count in counts.items() if count != samples]
            raise_all([f"{owner} expected in batch {number}: {'; '.join(wrong)}. Leave it out."] if wrong else [])
            members.append(torch.stack([task.member(outputs[name]) for name in names], dim=1).cpu())
            labels.append(torch.as_tensor(answers).cpu())
            groups_of_batches.append(rest[0] if rest else None)
            masks = [mask.cpu() for mask in model.gaps(inputs).values()]
            whole.append(torch.stack([torch.ones(samples, dtype=torch.bool), *masks]).all(dim=0))
            if isinstance(task, Regression):
                errors.append(_fused_by_subset(model, features).cpu() - labels[-1])
    if not members:
        hint = "found none. Pass validation data."
        raise ValueError(f"{owner} expected at least one batch (inputs, labels); {hint}")
    complete, label = torch.cat(whole), torch.cat(labels)
    if not isinstance(task, Classification):  # whose labels `fit_weights` checks
        raise_all(task.problems(label))
    known = _all_groups(owner, groups_of_batches, groups)
    if known is not None and len(known) == len(complete):  # otherwise the fit says what is wrong
        known = names_of_groups(known)[complete.numpy()]
    of_fused = torch.cat(errors, dim=1)[:, complete] if errors else None
    return Votes(torch.cat(members)[complete], label[complete], known, of_fused)


def _fused_by_subset(model: FusionModel, features: Mapping[str, Tensor]) -> Tensor:
    """Compute the fused answer with every subset of the sensors, [S, B, D]."""
    answers = []
    for mask in subset_masks(len(model.encoders)).tolist():
        missing = {name for name, there in zip(model.encoders, mask, strict=True) if not there}
        heard = model.complete(model.silenced(features, missing))
        answers.append(model.known_task().member(model.fusion(heard)))
    return torch.stack(answers)


def _all_groups(owner: str, of_batches: list[Any], given: Groups | None) -> Any:
    with_groups = sum(groups is not None for groups in of_batches)
    if with_groups == 0:
        return given
    if given is not None or with_groups < len(of_batches):
        raise ValueError(
            f"{owner} expected groups in every batch, or as groups=… for all; found them in {with_groups} of "
            f"{len(of_batches)} batches and groups={'None' if given is None else '…'}. Give them in one place."
        )
    return np.concatenate([names_of_groups(groups) for groups in of_batches])


def names_of_groups(groups: Groups) -> np.ndarray:
    """Return groups as an array."""
    return groups.detach().cpu().numpy() if isinstance(groups, Tensor) else np.asarray(groups)
