"""Everything that a results row says about a trained model. The test part is read here and nowhere else."""

from __future__ import annotations

import math
from typing import Any

import torch

from equipoise.data.splits import Part, Splits
from equipoise.measure.corrupt import training_statistics
from equipoise.measure.outputs import batches_of, check_model, decide, features_of_part
from equipoise.measure.protocols import beats_best_single, disparity, other_protocols, view_accuracy
from equipoise.measure.scoring import scores
from equipoise.measure.sensors import faults
from equipoise.models.committee import fit_committee
from equipoise.models.late_fusion import LateFusion

FAULTS_LIMIT = 4 * 2**30


def measure_run(
    model: LateFusion,
    splits: Splits,
    *,
    seed: int,
    with_faults: bool = True,
    with_protocols: bool = True,
    batch: int = 512,
) -> dict[str, dict[str, Any]]:
    """Fit the committee on the validation part, then measure the model on validation and test.

    The committee's numbers on validation flatter it a little: its few weights were fitted there.

    Args:
        model: A trained model. Its committee is fitted, where it has one; nothing else of it changes.
        splits: The data it was trained on.
        seed: Of the faults' draws.
        with_faults: Whether sensors are broken, on the test part; only where that fits into 4 GiB of memory, as
            encoders read it, and every sensor gives floating-point numbers.
        with_protocols: Whether protocols beyond the model's own view are measured: split, zeroed, shapley, and on the
            test part probe.
        batch: How many samples the encoders read at a time.

    Returns:
        ``{"validation": {…}, "test": {…}}``, plain numbers and dicts all through. Each part has "fused" and "committee"
        (accuracies), each also with "_f1", "_ece" and "_loss"; the name of the model's "view"; per modality the
        accuracy under that name and the other protocols; "disparity" and "beats_best_single" under the view; and on
        test "faults". Numbers of a committee or a view that the model has not are None.
    """
    check_model(model)
    if model.unimodal is not None:
        validation = splits.validation
        fit_committee(model, batches_of(validation, model.committee.device, batch), groups=validation.group)
    found = {
        "validation": _measure(model, splits.validation, with_protocols=with_protocols, train=None, batch=batch),
        "test": _measure(model, splits.test, with_protocols=with_protocols, train=splits.train, batch=batch),
    }
    if with_faults and _can_break(splits):
        test = splits.test.solid().ready()
        found["test"]["faults"] = faults(model, test, training_statistics(splits.train), seed, batch)
    return found


def _can_break(splits: Splits) -> bool:
    """Whether all sensors give numbers that can be disturbed (the numbers of words cannot), and memory suffices."""
    one = splits.test.take(torch.arange(1)).ready().inputs
    size = 4 * len(splits.test) * sum(math.prod(shape) for shape in splits.shapes.values())
    return size <= FAULTS_LIMIT and all(one[name].is_floating_point() for name in splits.modalities)


def _measure(model: LateFusion, part: Part, *, with_protocols: bool, train: Part | None, batch: int) -> dict[str, Any]:
    features = features_of_part(model, part, batch)
    outputs = decide(model, features, part.label)
    found: dict[str, Any] = {}
    for decision, numbers in scores(outputs).items():
        found[decision] = None if numbers is None else numbers["accuracy"]
        found |= {f"{decision}_{each}": None if numbers is None else numbers[each] for each in ("f1", "ece", "loss")}

    own = view_accuracy(outputs)
    found |= {"view": outputs.view, **own}
    if with_protocols:
        found |= other_protocols(model, part, features, train, batch)
    found["disparity"] = disparity(own[outputs.view]) if outputs.view is not None else None
    found["beats_best_single"] = (
        beats_best_single(found["fused"], own[outputs.view]) if outputs.view is not None else None
    )
    return found
