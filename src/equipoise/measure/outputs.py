"""What a model says about the samples of a part: read once, then scored in every way."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from equipoise.data.splits import Part
from equipoise.models.evaluation import class_log_probabilities, evaluating
from equipoise.models.late_fusion import LateFusion, Unimodal
from equipoise.util.errors import raise_all


@final
@dataclass(frozen=True)
class Outputs:
    """The decisions on the N samples of a part, in double precision, on the model's device.

    Args:
        label: The right classes, [N].
        fused: Log-probabilities of the fused head, [N, C].
        unimodal: Log-probabilities of each modality at hand, [N, C]; empty where the model has no uni-modal outputs.
        committee: Probabilities of the committee, [N, C]; None where the model has no uni-modal outputs.
        view: Where the uni-modal outputs come from: "head", "detached" or "split"; None where there are none.
    """

    label: Tensor
    fused: Tensor
    unimodal: dict[str, Tensor]
    committee: Tensor | None
    view: Unimodal | None


def decisions(model: LateFusion, part: Part, batch: int = 512) -> Outputs:
    """Run a model over a part once, in evaluation mode and without gradients.

    Args:
        model: The model; its committee votes with the weights it has.
        part: The samples. A modality that its inputs lack is a missing sensor.
        batch: How many samples the encoders read at a time.

    Returns:
        The decisions.

    Raises:
        TypeError: If the model is no `LateFusion`.
        ValueError: If the part is empty, or a label is none of the model's classes.
    """
    return decide(model, features_of_part(model, part, batch), part.label)


def features_of_part(model: LateFusion, part: Part, batch: int = 512, *, silent: bool = False) -> dict[str, Tensor]:
    """Give the features of each modality at hand, [N, size], in evaluation mode and without gradients.

    Args:
        model: Whose encoders read.
        part: The samples.
        batch: How many they read at a time.
        silent: Whether every input is set to zero first. Lengths of ragged time stay.
    """
    check_model(model)
    with evaluating(model), torch.no_grad():
        return read_features(model, part, batch, silent=silent)


def read_features(model: LateFusion, part: Part, batch: int = 512, *, silent: bool = False) -> dict[str, Tensor]:
    """Give the features of each modality at hand, as `features_of_part`, of a model that is evaluating already.

    Entering evaluation mode visits every module, which takes longer than reading one modality of a wide model.
    """
    found = []
    for inputs, _ in batches_of(part, model.committee.device, batch):
        heard = {name: torch.zeros_like(each) if name in model.encoders else each for name, each in inputs.items()}
        found.append(model.features(heard if silent else inputs))
    return {name: torch.cat([features[name] for features in found]) for name in found[0]}


def decide(model: LateFusion, features: Mapping[str, Tensor], label: Tensor) -> Outputs:
    """Let the heads of a model decide on features: what its forward pass does behind the encoders.

    Encoders are the cost of a model. Where only one modality of a part changes, or none, the others need no second run.
    """
    with evaluating(model), torch.no_grad():
        return read_decisions(model, features, label)


def read_decisions(
    model: LateFusion, features: Mapping[str, Tensor], label: Tensor, known: Mapping[str, Tensor] | None = None
) -> Outputs:
    """Let the heads decide, as `decide`, of a model that is evaluating already.

    Args:
        model: The model.
        features: The features of each modality at hand.
        label: The right classes.
        known: Log-probabilities of modalities whose features were read before; their heads are not asked again.
    """
    known = {} if known is None else {name: each for name, each in known.items() if name in features}
    heads = model.unimodal_outputs({name: feature for name, feature in features.items() if name not in known})
    asked = class_log_probabilities({"fused": model.fusion(model.complete(features)), **heads})
    found = {**known, **{name: scores.double() for name, scores in asked.items()}}
    logs = {name: found[name] for name in ("fused", *features) if name in found}
    label = label.to(logs["fused"].device)
    _check_labels(label, logs["fused"].shape[1])
    return Outputs(
        label=label,
        fused=logs["fused"],
        unimodal={name: log for name, log in logs.items() if name != "fused"},
        committee=None if model.unimodal is None else model.vote(logs),
        view=model.unimodal,
    )


def batches_of(part: Part, device: torch.device, batch: int) -> Iterator[tuple[dict[str, Tensor], Tensor]]:
    """Give (inputs, labels) of a part in order, on a device, as encoders read them."""
    if len(part) == 0 or batch < 1:
        raise ValueError(
            f"Measuring expected at least one sample and batch ≥ 1; found {len(part)} samples and batch={batch}. "
            "Pass a part that holds data, e.g. splits.test."
        )
    for start in range(0, len(part), batch):
        rows = torch.arange(start, min(start + batch, len(part)), device=part.label.device)
        some = part.take(rows).to(device).ready()
        yield some.inputs, some.label


def check_model(model: object) -> None:
    """Raise a TypeError that says what to pass where this is no `LateFusion`."""
    if not isinstance(model, LateFusion):
        raise TypeError(
            f"Measuring expected a LateFusion; found {type(model).__name__}. "
            "Pass the model inside its wrapper, e.g. model.module."
        )


def _check_labels(label: Tensor, classes: int) -> None:
    lowest, highest = int(label.min()), int(label.max())
    if lowest < 0 or highest >= classes:
        raise_all(
            [f"The model tells {classes} classes, so labels are 0 to {classes - 1}; found {lowest} to {highest}."]
        )
