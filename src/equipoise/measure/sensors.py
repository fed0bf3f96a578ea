"""Sensor faults: each modality in turn goes wrong, and both decisions are asked again."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import replace
from statistics import fmean
from typing import Any

import torch

from equipoise.data.splits import Part
from equipoise.measure.corrupt import Training, bursts, delayed, frozen, noisy
from equipoise.measure.outputs import Outputs, check_model, read_decisions, read_features
from equipoise.measure.scoring import accuracy
from equipoise.models.evaluation import evaluating
from equipoise.models.late_fusion import LateFusion
from equipoise.util.errors import raise_all

NOISE_LEVELS = (0.5, 1.0, 2.0, 4.0)
DELAYS = (0.1, 0.25, 0.5)
BURST_SHARES = (0.25, 0.5)

Answers = dict[str, float | None]
"""The accuracy of each decision, "fused" and "committee"; None where the model has no committee."""


def faults(model: LateFusion, part: Part, training: Training, seed: int = 0, batch: int = 512) -> dict[str, Any]:
    """Break one sensor after the other and give the accuracy of both decisions.

    - ``missing``: "zeros" (its input is zero), "mean" (the mean training sample), "absent" (it is not in the inputs:
      zero features for the fused head, the other heads for the committee; left out where it is the only sensor).
    - ``noisy``: Gaussian noise of "0.5", "1", "2" and "4" training deviations of each channel.
    - ``frozen``: the signal stands still from a "random" time on.
    - ``delayed``: the signal is late by "10%", "25%" and "50%" of its window.
    - ``bursts``: random stretches, "25%" and "50%" of the time, are replaced by noise of five deviations.

    See `equipoise.measure.corrupt` for each, also without a time axis. The draws depend on the seed and the part, not
    on the model, so models can be compared in pairs; and all levels of a fault share them.

    Args:
        model: The model; its committee votes with the weights it has.
        part: The part to judge on, with every modality.
        training: What `training_statistics` says of the training part.
        seed: Of the draws.
        batch: How many samples the encoders read at a time.

    Returns:
        ``{modality: {fault: {level: {"fused": accuracy, "committee": accuracy or None}}}}``, and beside the modalities
        "mean" and "worst", each ``{"fused": …, "committee": …}``. The worst is that of all levels of all faults. In the
        mean every fault of every modality counts alike, whatever its number of levels; the ways to answer a missing
        sensor count as levels.

    Raises:
        ValueError: If an input is no floating-point array, or a modality has the name of a summary.
    """
    raise_all(_problems(model, part, training))
    check_model(model)
    found: dict[str, Any] = {}
    with evaluating(model), torch.no_grad():
        clean = read_features(model, part, batch)
        known = read_decisions(model, clean, part.label).unimodal
        for modality in model.encoders:
            found[modality] = {}
            # Encoders and heads read their own modality only: one of them has to look again, the others have not.
            others = {name: each for name, each in clean.items() if name != modality}
            heard = {name: each for name, each in known.items() if name != modality}
            for fault, level, faulty in faulty_parts(part, modality, training, seed):
                if not faulty.inputs:
                    continue
                broken = read_features(model, _alone(faulty, modality), batch) if modality in faulty.inputs else {}
                outputs = read_decisions(model, others | broken, part.label, heard)
                found[modality].setdefault(fault, {})[level] = _answers(outputs)
    return found | _summaries(found)


def faulty_parts(part: Part, modality: str, training: Training, seed: int = 0) -> Iterator[tuple[str, str, Part]]:
    """Give the part with one sensor broken in every way, as (fault, level, part); other modalities stay as they are.

    Args:
        part: The part.
        modality: Whose sensor breaks.
        training: What `training_statistics` says of the training part.
        seed: Of the draws.
    """
    array, mean, deviation = part.inputs[modality], training.mean[modality], training.deviation[modality]
    group = part.group

    def broken(values: torch.Tensor) -> Part:
        return replace(part, inputs={**part.inputs, modality: values})

    def draws(fault: str) -> torch.Generator:
        words = hashlib.sha256(f"{seed}/{modality}/{fault}".encode()).digest()
        return torch.Generator().manual_seed(int.from_bytes(words[:8], "big"))

    yield "missing", "zeros", broken(torch.zeros_like(array))
    yield "missing", "mean", broken(mean.to(array).expand_as(array))
    yield "missing", "absent", replace(part, inputs=_without(part, modality))
    for level in NOISE_LEVELS:
        yield "noisy", f"{level:g}", broken(noisy(array, level, deviation, draws("noisy")))
    yield "frozen", "random", broken(frozen(array, group, draws("frozen")))
    for share in DELAYS:
        yield "delayed", f"{share:.0%}", broken(delayed(array, share, group))
    for share in BURST_SHARES:
        yield "bursts", f"{share:.0%}", broken(bursts(array, share, mean, deviation, draws("bursts")))


def _without(part: Part, modality: str) -> dict[str, torch.Tensor]:
    return {name: array for name, array in part.inputs.items() if name not in (modality, f"{modality}_length")}


def _alone(part: Part, modality: str) -> Part:
    own = (modality, f"{modality}_length")
    return replace(part, inputs={name: array for name, array in part.inputs.items() if name in own})


def _answers(outputs: Outputs) -> Answers:
    committee = None if outputs.committee is None else accuracy(outputs.committee, outputs.label)
    return {"fused": accuracy(outputs.fused, outputs.label), "committee": committee}


def _summaries(found: dict[str, Any]) -> dict[str, Answers]:
    levels_of_faults = [list(levels.values()) for by_fault in found.values() for levels in by_fault.values()]
    mean, worst = {}, {}
    for decision in ("fused", "committee"):
        rows = [[answers[decision] for answers in levels] for levels in levels_of_faults]
        answered = rows[0][0] is not None
        mean[decision] = fmean(map(fmean, rows)) if answered else None
        worst[decision] = min(map(min, rows)) if answered else None
    return {"mean": mean, "worst": worst}


def _problems(model: LateFusion, part: Part, training: Training) -> Iterator[str]:
    for name in getattr(model, "encoders", ()):
        if name not in part.inputs or name not in training.mean:
            yield (
                f"faults expected floating-point inputs of {name!r} in the part and in its training statistics; found "
                f"{sorted(part.inputs)} and {sorted(training.mean)}. Type training_statistics(splits.train)."
            )
        elif not part.inputs[name].is_floating_point():
            yield f"faults expected floating-point inputs; found {part.inputs[name].dtype} in {name!r}. Type .float()."
