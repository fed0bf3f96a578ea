"""The measurements of a results row about a trained model. The test part is read here and nowhere else."""

import math
from collections.abc import Callable
from typing import Any

import torch

from equipoise.data.splits import Part, Splits
from equipoise.measure.bootstrap import bootstrap_interval
from equipoise.measure.faults import accuracy_under_faults, training_statistics
from equipoise.measure.outputs import Outputs, Scorer, batches_of, decide, read_features, reading, scores
from equipoise.measure.protocols import other_protocols, view_accuracy
from equipoise.measure.remarks import sameness
from equipoise.models.committee import fit_committee
from equipoise.models.encoded import check_model
from equipoise.models.fusion_model import FusionModel
from equipoise.models.metrics import baseline, events

FAULTS_LIMIT = 4 * 2**30


def measure_run(
    model: FusionModel,
    splits: Splits,
    *,
    seed: int,
    faults: bool = True,
    protocols: bool = True,
    batch: int = 512,
    metric: str = "auto",
    on_test: Callable[[Outputs], object] | None = None,
) -> dict[str, dict[str, Any]]:
    """Fit the committee on the validation part, then measure the model on validation and test.

    The committee's numbers on validation flatter it a little: its few weights were fitted there.

    Args:
        model: A trained model. Its committee is fitted, where it has one that is not `fitted` yet; intervals of numbers
            are calibrated. Nothing else of it changes.
        splits: The data it was trained on.
        seed: Of the faults' draws.
        faults: Break sensors, on the test part; only where that fits into 4 GiB of memory, as encoders read it, and
            every sensor gives floating-point numbers.
        protocols: Measure protocols beyond the model's own view: split, zeroed, shapley, and on the test part probe.
        batch: Samples that the encoders read at a time.
        metric: The metric of the headline by name.
        on_test: Given the decisions on the test part, so that nobody has to read it again.

    Returns:
        ``{"validation": {…}, "test": {…}}``, plain numbers and dicts all through. Each part has "fused" and "committee"
        (the metric), each also with "_loss", of classes "_f1" and "_ece", of numbers "_coverage" and "_width" of their
        intervals; the name of the model's "view"; per modality the metric under that name and the other protocols;
        and "disparity" and "beats_best_single" under the view. On validation, "fused_says" and "committee_says" name
        the one answer of a decision that always gives the same (see `sameness`), and "committee_fit" says why the
        committee's weights are what they are. On test there are "faults"; "baseline", the metric of the answer that
        reads no sensor (see `metrics.baseline`); and "fused_interval" and "committee_interval" of the metric (see
        `bootstrap_interval`), over as many groups or samples, "interval_over", as "interval_groups" says, of "samples",
        of which "events" are of the positive class or label, where the task has one. Numbers of a committee or a view
        that the model has not are None.
    """
    check_model("Measuring", model)
    fit = None
    if model.unimodal is not None:
        batches = batches_of(splits.validation, model.committee.device, batch)
        fit = fit_committee(model, batches, groups=splits.validation.group, keep=model.fitted)
    how: dict[str, Any] = {"scorer": Scorer.of(model, metric), "protocols": protocols, "batch": batch}
    with reading(model):
        validation, _ = _measure(model, splits.validation, train=None, **how)
        test, outputs = _measure(model, splits.test, train=splits.train, **how)
    if on_test is not None:
        on_test(outputs)
    validation["committee_fit"] = None if fit is None else fit.reason
    if faults and _can_break(splits):
        solid, training = splits.test.in_memory().ready(), training_statistics(splits.train)
        test["faults"] = accuracy_under_faults(model, solid, training, seed, batch, metric)
    return {"validation": validation, "test": test}


def _can_break(splits: Splits) -> bool:
    """Tell whether all sensors give numbers that can be disturbed (word numbers cannot), and memory suffices."""
    one = splits.test.take(torch.arange(1)).ready().inputs
    size = 4 * len(splits.test) * sum(math.prod(shape) for shape in splits.shapes.values())
    return size <= FAULTS_LIMIT and all(one[name].is_floating_point() for name in splits.modalities)


def _measure(
    model: FusionModel, part: Part, *, scorer: Scorer, protocols: bool, train: Part | None, batch: int
) -> tuple[dict[str, Any], Outputs]:
    features = read_features(model, part, batch)
    outputs = decide(model, features, part.label, present=part.present)
    numbers: dict[str, Any] = {}
    for decision, values in scores(outputs, scorer).items():
        classes = ("f1", "ece") if scorer.task.kind == "classes" else ()
        values = values or dict.fromkeys((scorer.metric.name, *classes, "loss"))
        numbers[decision] = values.pop(scorer.metric.name)
        numbers |= {f"{decision}_{score}": value for score, value in values.items()}
    if scorer.task.kind == "regression":
        numbers |= _intervals(model, outputs)
    own = view_accuracy(outputs, scorer)
    numbers |= {"view": outputs.view, **own}
    if protocols:
        numbers |= other_protocols(model, part, features, scorer, train, batch)
    view = own.get(outputs.view or "")
    merit = scorer.metric.merit
    numbers["disparity"] = None if view is None else max(view.values()) - min(view.values())
    numbers["beats_best_single"] = None if view is None else merit(numbers["fused"]) > max(map(merit, view.values()))
    return numbers | _beside(outputs, part, scorer, train), outputs


def _beside(outputs: Outputs, part: Part, scorer: Scorer, train: Part | None) -> dict[str, Any]:
    """Give what the numbers of a part are to be compared with: on test, where there is a training part; or else."""
    metric, task = scorer.metric, scorer.task
    answers = {"fused": task.answer(outputs.fused), "committee": outputs.committee}
    if train is None:
        alike = [sameness(name, x, outputs.label, task, part.group) for name, x in answers.items()]
        return {key: value for one in alike for key, value in one.items()}
    intervals = {
        f"{name}_interval": x if x is None else bootstrap_interval(metric, x, outputs.label, task, part.group)
        for name, x in answers.items()
    }
    over, count = ("samples", len(part.label)) if part.group is None else ("groups", len(part.group.unique()))
    drawn = {"interval_over": over, "interval_groups": count}
    counts = {"samples": len(part.label), "events": events(part.label, task)}
    return {"baseline": baseline(train.label, part.label, metric, task), **drawn, **counts, **intervals}


def _intervals(model: FusionModel, outputs: Outputs) -> dict[str, float | None]:
    """Give the share of targets inside of the intervals, and the mean width of these, of both decisions."""
    numbers: dict[str, float | None] = {}
    for at, (decision, answer) in enumerate((("fused", outputs.fused), ("committee", outputs.committee))):
        inside = width = None
        if answer is not None:
            radius = model.radius(outputs.present, len(answer), at)
            inside = ((answer - outputs.label).abs() <= radius).double().mean().item()
            width = 2 * radius.double().mean().item()
        numbers |= {f"{decision}_coverage": inside, f"{decision}_width": width}
    return numbers
