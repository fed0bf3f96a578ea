"""The closed-form model: frozen features of every sensor, under heads that are solved instead of trained.

One head reads all sensors, and one each of them. Its outputs become probabilities by one temperature per head; then
all vote, as the committee of any model does. Strengths, temperatures and votes are chosen on training samples that were
left out by groups, together with the validation part. Where classes or labels have weights, samples count by them in
all of this, as in the loss of a training. The result is a `LateFusion`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple, final

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from equipoise.data.splits import Part, Splits
from equipoise.models.committee import CommitteeFit, fit_task
from equipoise.models.frozen import FrozenFeatures
from equipoise.models.late_fusion import LateFusion
from equipoise.models.ridge import TRIED, choose_strength, folds_of, solve
from equipoise.models.task import Classification, MultiLabel, Regression, Task
from equipoise.training.settings import Settings
from equipoise.training.step import task_for

MOST_SAMPLES = 8192  # that heads are solved on: a solution takes their third power
LEAST_SAMPLES = 3  # of a sensor, or else its head knows nothing
MOST_BYTES = 2**31  # of inputs that are read at once
ALL = "fused"


class Solved(NamedTuple):
    """A closed-form model.

    Attributes:
        model: With solved heads and a fitted committee, on the CPU, in evaluation mode.
        fit: Of the committee.
        evidence: Per head its α, temperature and left-out loss, and the numbers of samples, for the card.
    """

    model: LateFusion
    fit: CommitteeFit
    evidence: dict[str, dict[str, float]]


class _Read(NamedTuple):
    """Frozen features of some samples, [N, F] by sensor, zero where a sample lacks it; and what stands beside them."""

    features: dict[str, Tensor]
    present: dict[str, Tensor]
    label: Tensor
    group: Tensor | None


def why_not_solved(splits: Splits, settings: Settings) -> str:
    """Say why there can be no closed-form model for some data and settings; "" where there can."""
    if settings.model != "auto":
        return "a model of one's own has no frozen features"
    one = splits.train.take(torch.arange(1)).ready().inputs
    tokens = [name for name in splits.modalities if not one[name].is_floating_point()]
    return f"{', '.join(tokens)}: token numbers have no frozen features" if tokens else ""


@torch.no_grad()
def closed_form(splits: Splits, settings: Settings) -> Solved:
    """Solve the model for some data; the test part is not read, and chance has no part in it.

    Args:
        splits: The data.
        settings: Of the run, of which the task counts, with the weights of its classes or labels.
    """
    task = task_for(splits, settings)
    encoders = {name: FrozenFeatures(shape) for name, shape in splits.shapes.items()}
    # Every weighted label is solved by itself: of fewer samples, so that all of them take no longer than one.
    most = int(MOST_SAMPLES / (task.size if isinstance(task, MultiLabel) and task.weight is not None else 1) ** (1 / 3))
    train = _read(_some(splits.train, most), encoders, fit=True)
    checked = _read(_some(splits.validation, most), encoders, fit=False)
    model = LateFusion(encoders, task=task, fusion="concat", unimodal="head")
    heads = {ALL: getattr(model.fusion, "head"), **dict(model.heads)}  # noqa: B009 (a concatenation has one)
    solver = _Solver(task, train, checked)
    outputs = torch.stack([solver.solve(name, head) for name, head in heads.items()], dim=1)
    keep = torch.cat([_whole(train)[solver.tried], _whole(checked)])
    members = torch.stack([task.member(one) for one in outputs[keep].float().unbind(dim=1)], dim=1)
    groups = None
    if train.group is not None and checked.group is not None:
        groups = torch.cat([train.group[solver.tried], checked.group])[keep]
    fit = fit_task(task, members, solver.label[keep], groups)
    model.committee.copy_(fit.weights)
    return Solved(model.eval(), fit, solver.evidence)


@final
class _Solver:
    """Solves the heads of a model one after the other.

    Args:
        task: What they are to answer.
        train: The samples they are solved on.
        checked: The validation part.
    """

    def __init__(self, task: Task, train: _Read, checked: _Read) -> None:
        self.task, self.train, self.checked = task, train, checked
        self.target = _target(task, train.label)
        self.weight = _weight(task, train.label)
        self.tried = torch.from_numpy(_evenly(len(self.target), TRIED))
        self.label = torch.cat([train.label[self.tried], checked.label])
        grams = {name: values @ values.T for name, values in train.features.items()}
        self.grams = {ALL: torch.stack(list(grams.values())).sum(dim=0), **grams}  # of features side by side
        self.evidence: dict[str, dict[str, float]] = {}

    def solve(self, name: str, head: nn.Module) -> Tensor:
        """Solve one head in place; return its outputs for the samples tried, left out of it, and for validation."""
        assert isinstance(head, nn.Linear)
        here = self.train.present.get(name, torch.ones(len(self.target), dtype=torch.bool))
        rows = here[self.tried].nonzero()[:, 0]
        own = self.tried[rows]
        if len(own) < LEAST_SAMPLES:
            for parameter in head.parameters():
                parameter.zero_()
            return torch.zeros(len(self.label), self.task.size, dtype=torch.float64)
        features, later = _side_by_side(self.train, name), _side_by_side(self.checked, name)
        target, weight, gram = self.target, self.weight, self.grams[name]
        groups = None if self.train.group is None else self.train.group[own]
        chosen = choose_strength(gram[own][:, own], target[own], folds_of(len(own), groups), weight[own])
        strength = chosen.strength * math.sqrt(int(here.sum()) / len(own))
        if not here.all():
            features, target, weight, gram = features[here], target[here], weight[here], gram[here][:, here]
        matrix, bias = solve(features, target, strength, gram, weight)
        left_out = torch.zeros(len(self.tried), self.task.size, dtype=torch.float64)
        left_out[rows] = chosen.left_out
        outputs = torch.cat([left_out, (later @ matrix.T + bias).double()])
        there = self.checked.present.get(name, torch.ones(len(self.checked.label), dtype=torch.bool))
        known = torch.cat([here[self.tried], there])
        sharpness = _sharpness(self.task, outputs[known], self.label[known])
        head.weight.copy_(sharpness * matrix)
        head.bias.copy_(sharpness * bias)
        loss = _loss(self.task, sharpness * outputs[known].float(), self.label[known])
        facts = {"strength": strength, "sharpness": sharpness, "loss": loss, "samples": int(here.sum())}
        self.evidence[name] = facts
        return sharpness * outputs


def _whole(read: _Read) -> Tensor:
    return torch.stack([torch.ones(len(read.label), dtype=torch.bool), *read.present.values()]).all(dim=0)


def _side_by_side(read: _Read, name: str) -> Tensor:
    return torch.cat(list(read.features.values()), dim=1) if name == ALL else read.features[name]


def _target(task: Task, label: Tensor) -> Tensor:
    if isinstance(task, Classification):
        return 2 * F.one_hot(label, task.size).double() - 1
    return 2 * label.double() - 1 if isinstance(task, MultiLabel) else _standard(task, label)


def _standard(task: Task, label: Tensor) -> Tensor:
    assert isinstance(task, Regression)
    return task.standardised(label).double()


def _weight(task: Task, label: Tensor) -> Tensor:
    """Return how much samples count, [N, 1] or of each label [N, L], one on average, so that an α means the same."""
    weight = task.sample_weights(label)
    weight = torch.ones(len(label), 1) if weight is None else weight.reshape(len(label), -1)
    return weight.double() / weight.double().mean(dim=0)


def _loss(task: Task, outputs: Tensor, label: Tensor) -> float:
    return float(task.member_loss(task.member(outputs), label, weighted=True).mean())


def _sharpness(task: Task, outputs: Tensor, label: Tensor) -> float:
    """Find the factor, one over the temperature, under which outputs are the most likely; 1 for numbers."""
    if isinstance(task, Regression) or len(outputs) == 0:
        return 1.0
    outputs = outputs.float()
    candidates = np.geomspace(0.25, 64, 49)
    losses = [_loss(task, outputs * float(factor), label) for factor in candidates]
    return float(candidates[int(np.argmin(losses))])


def _some(part: Part, most: int) -> Part:
    """Return as many samples of a part as are read, evenly spread over it, as encoders read them."""
    one = part.take(torch.arange(1)).ready().inputs
    size = sum(array.nbytes for array in one.values())
    count = min(most, max(1, MOST_BYTES // size))
    return part.take(torch.from_numpy(_evenly(len(part), count))).ready()


def _evenly(count: int, most: int) -> np.ndarray:
    """Choose rows at random, always the same ones, in their order."""
    if count <= most:
        return np.arange(count)
    return np.sort(np.random.default_rng(0).permutation(count)[:most])


def _read(part: Part, encoders: Mapping[str, FrozenFeatures], *, fit: bool) -> _Read:
    present = {name: mask for name, mask in part.present.items() if name in encoders}
    features = {}
    for name, encoder in encoders.items():
        values, lengths = part.inputs[name], part.inputs.get(f"{name}_length")
        if name not in present:
            features[name] = (encoder.fit if fit else encoder.computed)(values, lengths)
            continue
        here = present[name]
        ends = None if lengths is None else lengths[here]
        found = (encoder.fit if fit else encoder.computed)(values[here], ends) if here.any() else None
        features[name] = torch.zeros(len(here), encoder.features)
        if found is not None:
            features[name][here] = found
    return _Read(features, present, part.label, part.group)
