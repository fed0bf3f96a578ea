"""Uni-modal accuracy, under every protocol in use, each under its name: they differ by tens of points.

Accuracy stands for the metric of the task. A protocol counts the samples that have the sensor, where some lack it.

head, detached, split: the model's own uni-modal outputs, whichever it was built with.
split: the modality's share of the fused output, for any model whose fusion is additive; not of numbers, of which a
share is no answer.
probe: a fresh linear layer on the frozen features, fitted on the training part.
zeroed: the fused decision with the inputs of all other modalities set to zero.
shapley: the modality's Shapley value of the fused accuracy, inputs outside a subset set to zero. Up to eight modalities
it is exact. More have too many subsets: there it is estimated from random orders, and "shapley_error" is its standard
error.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import accumulate, combinations, islice, pairwise
from statistics import fmean, stdev
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from equipoise.data.splits import Part
from equipoise.measure.outputs import Outputs, Scorer, decide, read_features, reading
from equipoise.models.encoded import check_model
from equipoise.models.evaluation import evaluating, shapley_values
from equipoise.models.fusion_model import FusionModel
from equipoise.models.task import Task
from equipoise.training.step import mean_losses

Accuracies = dict[str, float]
"""One accuracy per modality."""

EXACT = 8
"""The most modalities whose Shapley values are exact."""
PAIRS = 32  # random orders of the modalities, each with its reverse
PENALTY = 1e-3  # on the squared weights of standardised features: small, and enough for one answer on separable ones
PROBED = 2048  # features of a modality, at most
_STEPS, _INNER = 100, 250  # more than enough: about ten, of some dozens each, bring the gradient to the tolerance
_TOLERANCE = 1e-7  # of the largest entry of the gradient
_DECREASE = 1e-4  # of what the slope promises, that a step has to keep


def unimodal_accuracy(
    model: FusionModel, part: Part, train: Part | None = None, batch: int = 512, metric: str = "auto"
) -> dict[str, Accuracies]:
    """Give the accuracy of every modality under every protocol that the model allows.

    Args:
        model: The model.
        part: The part to judge on, with every modality.
        train: The part to fit the probes on; without it there is no "probe".
        batch: Samples that the encoders read at a time.
        metric: The metric by name, in the place of the accuracy.

    Returns:
        ``{protocol: {modality: accuracy}}``, and of more than eight modalities "shapley_error".
    """
    with reading(model):
        features, scorer = read_features(model, part, batch), Scorer.of(model, metric)
        own = view_accuracy(decide(model, features, part.label, present=part.present), scorer)
        return own | other_protocols(model, part, features, scorer, train, batch)


def view_accuracy(outputs: Outputs, scorer: Scorer) -> dict[str, Accuracies]:
    """Give the accuracy of the model's own uni-modal outputs, under the name of its view; nothing where it has none."""
    if outputs.view is None:
        return {}
    of = {name: scorer.member(x, outputs.label, outputs.present.get(name)) for name, x in outputs.unimodal.items()}
    return {outputs.view: of}


def other_protocols(
    model: FusionModel,
    part: Part,
    features: Mapping[str, Tensor],
    scorer: Scorer,
    train: Part | None = None,
    batch: int = 512,
) -> dict[str, Accuracies]:
    """Give the protocols that need no view: split where the fusion is additive, probe, zeroed, shapley and its error.

    Thousands of frozen features have no probe: their heads are solved, as a probe would be, and it takes long.

    Args:
        model: A model that is `reading`.
        part: The part to judge on, with every modality.
        features: Its features, as `read_features` gives them.
        scorer: The metric.
        train: The part to fit the probes on; without it there is no "probe".
        batch: Samples that the encoders read at a time.
    """
    results = {}
    label = part.label.to(model.committee.device)
    if model.fusion.additive and scorer.task.kind != "regression":
        shares = model.fusion.share(features)
        results["split"] = {name: scorer.output(shares[name], label) for name in model.encoders}
    if train is not None and model.encoded and max(x.shape[1] for x in features.values()) <= PROBED:
        results["probe"] = probe_features(read_features(model, train, batch), train, features, part, scorer)
    sampled = len(model.encoders) > EXACT
    subsets = subset_accuracy(model, part, features, scorer, batch, largest=1 if sampled else None)
    results["zeroed"] = {name: subsets[frozenset({name})] for name in model.encoders}
    if sampled:
        results["shapley"], results["shapley_error"] = sampled_shapley(model, part, features, scorer, batch)
    else:
        results["shapley"] = shapley_values(subsets)
    return results


def subset_accuracy(
    model: FusionModel,
    part: Part,
    features: Mapping[str, Tensor],
    scorer: Scorer,
    batch: int = 512,
    largest: int | None = None,
) -> dict[frozenset[str], float]:
    """Give the fused accuracy of every subset of modalities, the inputs of the others set to zero.

    The value of the empty subset is that of the best constant answer, of classes the share of the most frequent one in
    the part: what can be reached without any input. The output of a model for nothing but zeros would be an accident of
    its biases; this is the same for all.

    Args:
        model: A model that is `reading`.
        part: The part to judge on, with every modality.
        features: Its features, as `read_features` gives them.
        scorer: The metric.
        batch: Samples that the encoders read at a time.
        largest: The most modalities in a subset; None for all 2^K subsets.
    """
    label = part.label.to(model.committee.device)
    # An encoder reads its own modality only, so two runs of each serve all 2^K subsets.
    silent = _features_of_zeros(model, part, batch)
    values = {frozenset(): scorer.constant(label)}
    for size in range(1, (largest or len(model.encoders)) + 1):
        for subset in map(frozenset, combinations(model.encoders, size)):
            heard = {**features, **{name: silent[name] for name in model.encoders if name not in subset}}
            values[subset] = scorer.output(model.fusion(heard), label)
    return values


def sampled_shapley(
    model: FusionModel, part: Part, features: Mapping[str, Tensor], scorer: Scorer, batch: int = 512
) -> tuple[Accuracies, Accuracies]:
    """Estimate Shapley values of the fused accuracy, and give them with their standard errors.

    φ_m is the mean of v(S ∪ m) − v(S) over all orders of the modalities, S being those before m; here over 32 random
    orders and their reverses, in which m stands late where it stood early. The error is the deviation over such pairs
    divided by √32. The orders are the same each time, so that models can be compared; and the estimates add up to
    v(N) − v(∅) as the values do.

    Args:
        model: A model that is `reading`.
        part: The part to judge on, with every modality.
        features: Its features, as `read_features` gives them.
        scorer: The metric.
        batch: Samples that the encoders read at a time.
    """
    names, random = list(model.encoders), torch.Generator().manual_seed(0)
    label = part.label.to(model.committee.device)
    votes_along = _votes_along(model, features, _features_of_zeros(model, part, batch))

    def gains(order: Sequence[str]) -> Accuracies:
        values = [scorer.constant(label), *(scorer.output(votes, label) for votes in votes_along(order))]
        return {name: after - before for name, (before, after) in zip(order, pairwise(values), strict=True)}

    estimates: dict[str, list[float]] = {name: [] for name in names}
    for _ in range(PAIRS):
        order = [names[at] for at in torch.randperm(len(names), generator=random).tolist()]
        both = gains(order), gains(order[::-1])
        for name, values in estimates.items():
            values.append(fmean(gain[name] for gain in both))
    errors = {name: stdev(values) / math.sqrt(PAIRS) for name, values in estimates.items()}
    return {name: fmean(values) for name, values in estimates.items()}, errors


def _votes_along(
    model: FusionModel, features: Mapping[str, Tensor], silent: Mapping[str, Tensor]
) -> Callable[[Sequence[str]], Iterator[Tensor]]:
    """Make the function that gives, along an order of the modalities, the fused output after each one is heard."""
    fusion = model.fusion
    if not fusion.additive:

        def fused(order: Sequence[str]) -> Iterator[Tensor]:
            heard = dict(silent)
            for name in order:
                heard[name] = features[name]
                yield fusion(heard)

        return fused

    # Each modality changes its own term of the sum, and no other.
    with_input, without, start = fusion.share(features), fusion.share(silent), fusion(silent).double()
    changes = {name: share.double() - without[name] for name, share in with_input.items()}
    return lambda order: islice(accumulate((changes[name] for name in order), initial=start), 1, None)


def _features_of_zeros(model: FusionModel, part: Part, batch: int) -> dict[str, Tensor]:
    """Give the features of a part whose inputs are zero: one sample stands for all, unless they differ in length."""
    if not set(part.inputs) <= set(model.encoders):
        return read_features(model, part, batch, silent=True)
    one = read_features(
        model, part.take(torch.zeros(1, dtype=torch.int64, device=part.label.device)), batch, silent=True
    )
    return {name: feature.expand(len(part), *feature.shape[1:]) for name, feature in one.items()}


class Probe(NamedTuple):
    """A linear layer on standardised features.

    Args:
        mean: Of each feature in training, [F].
        deviation: Of each feature in training, [F]; one where a feature never moved.
        weight: Of the layer, [C, F].
        bias: Of the layer, [C].
    """

    mean: Tensor
    deviation: Tensor
    weight: Tensor
    bias: Tensor

    def logits(self, features: Tensor) -> Tensor:
        """Compute class scores [N, C] of features [N, F]."""
        return F.linear((features.double() - self.mean) / self.deviation, self.weight, self.bias)


def fit_probe(features: Tensor, label: Tensor, classes: int) -> Probe:
    """Fit multinomial logistic regression with a small L2 penalty: full batch, Newton's method, double precision.

    It starts from zero, so the same features give the same probe.

    Args:
        features: Of the training samples, [N, F].
        label: Their classes, [N].
        classes: Number of classes.
    """
    features, label = features.detach().double(), label.to(features.device)
    mean, deviation = _scales(features)
    standard = F.pad((features - mean) / deviation, (0, 1), value=1.0)  # the last one is the bias's
    solution = _minimise(standard, F.one_hot(label, classes).double())
    return Probe(mean, deviation, solution[:-1].T.contiguous(), solution[-1])


def _scales(features: Tensor) -> tuple[Tensor, Tensor]:
    """Return mean and deviation of each feature; a deviation of one where it never moved."""
    features = features.detach().double()
    deviation = features.std(dim=0, correction=0)
    return features.mean(dim=0), torch.where(deviation == 0, 1.0, deviation)


@torch.no_grad()
def _minimise(inputs: Tensor, target: Tensor) -> Tensor:
    """Find the weights [F + 1, C] of least mean cross-entropy plus penalty; the last row, the bias, has no penalty."""
    penalty = torch.full_like(inputs[0], PENALTY).unsqueeze(1)
    penalty[-1] = 0.0
    turned = inputs.T.contiguous() / len(inputs)

    def loss(weights: Tensor) -> tuple[Tensor, Tensor]:
        logits = inputs @ weights
        value = (logits.logsumexp(dim=1) - (logits * target).sum(dim=1)).mean()
        return value + (penalty * weights.square()).sum() / 2, logits

    weights = inputs.new_zeros(inputs.shape[1], target.shape[1])
    value, logits = loss(weights)
    for _ in range(_STEPS):
        chances = logits.softmax(dim=1)
        gradient = turned @ (chances - target) + penalty * weights
        if gradient.abs().max() <= _TOLERANCE:
            break

        def curvature(direction: Tensor, chances: Tensor = chances) -> Tensor:
            moved = chances * (inputs @ direction)
            return turned @ (moved - chances * moved.sum(dim=1, keepdim=True)) + penalty * direction

        step = _solve(curvature, -gradient)
        slope = (gradient * step).sum()
        share = 1.0
        while (reached := loss(weights + share * step))[0] > value + _DECREASE * share * slope and share > _TOLERANCE:
            share /= 2
        weights = weights + share * step
        value, logits = reached
    return weights


def _solve(curvature: Callable[[Tensor], Tensor], right: Tensor) -> Tensor:
    """Solve curvature(x) = right by conjugate gradients, the more exactly the smaller the right side is."""
    solution, rest, direction = torch.zeros_like(right), right, right
    size = start = rest.square().sum()
    enough = start * right.abs().max().clamp(max=1 / 16)
    for _ in range(_INNER):
        bent = curvature(direction)
        length = size / (direction * bent).sum()
        solution = solution + length * direction
        rest = rest - length * bent
        before, size = size, rest.square().sum()
        if size <= enough:
            break
        direction = rest + size / before * direction
    return solution


def probe_features(
    learnt: Mapping[str, Tensor], train: Part, judged: Mapping[str, Tensor], part: Part, scorer: Scorer
) -> dict[str, float]:
    """Give the accuracy of a fresh linear layer per modality, fitted on the frozen features of another part.

    Of labels, one layer for each; of numbers, the layer of least squares with the same penalty.

    Args:
        learnt: Features of the training part.
        train: The training part.
        judged: Features of the part to judge on.
        part: The part to judge on.
        scorer: The metric.
    """
    results = {}
    for name, features in judged.items():
        kept, counted = (
            torch.ones(len(one), dtype=torch.bool) if name not in one.present else one.present[name].cpu()
            for one in (train, part)
        )
        known, label = learnt[name][kept.to(features.device)], train.label[kept.to(train.label.device)]
        output = probe_outputs(known, label.to(features.device), features, scorer.task)
        results[name] = scorer.member(output, part.label.to(output.device), counted.to(output.device))
    return results


def probe_outputs(learnt: Tensor, label: Tensor, judged: Tensor, task: Task) -> Tensor:
    """Fit a linear layer to features and labels, and return its members on other features."""
    if task.kind == "classes":
        classes = max(task.size, int(label.max()) + 1)
        return fit_probe(learnt, label, classes).logits(judged)
    if task.kind == "labels":
        pairs = [fit_probe(learnt, column.long(), 2).logits(judged) for column in label.unbind(dim=1)]
        return torch.stack([pair[:, 1] - pair[:, 0] for pair in pairs], dim=1)
    mean, deviation = _scales(learnt)
    both = [F.pad((x.double() - mean) / deviation, (0, 1), value=1.0) for x in (learnt, judged)]
    penalty = PENALTY * len(learnt) * torch.eye(both[0].shape[1], dtype=torch.float64, device=learnt.device)
    penalty[-1, -1] = 0
    return both[1] @ torch.linalg.solve(both[0].T @ both[0] + penalty, both[0].T @ label.double())


def conflict(model: FusionModel, part: Part, batch: int = 512, seed: int = 0) -> dict[str, Any]:
    """Give the cosine between ∇f_mm and ∇f_k at each encoder k, and the share of encoders where it is negative.

    f_mm is the mean loss of the fused output and f_k that of modality k on one batch. The model is read in
    evaluation mode, so that no running statistics move; no `.grad` is touched. An encoder that a loss does not move,
    being frozen or without a gradient, has cosine 0: no conflict.

    Args:
        model: A model with the view "head" or "split", whose uni-modal losses reach the encoders.
        part: The samples to draw the batch from.
        batch: Samples that are drawn, without replacement.
        seed: Of the draw.

    Returns:
        ``{"cosine": {modality: …}, "conflicting": share of encoders}``.

    Raises:
        TypeError: If the model is no `LateFusion`.
        ValueError: If the model's uni-modal losses do not reach its encoders.
    """
    check_model("Measuring", model)
    if model.unimodal not in ("head", "split"):
        hint = f"found unimodal={model.unimodal!r}. Build it with LateFusion(…, unimodal='head')."
        raise ValueError(f"conflict expected unimodal='head' or 'split', whose losses reach the encoders; {hint}")
    rows = torch.randperm(len(part), generator=torch.Generator().manual_seed(seed))[:batch]
    chosen = part.take(rows.to(part.label.device)).to(model.committee.device).ready()
    cosine = {}
    with evaluating(model), torch.enable_grad():
        losses = mean_losses(model.known_task().losses(model(chosen.inputs), chosen.label), chosen)
        for name, encoder in model.encoders.items():
            moving = [parameter for parameter in encoder.parameters() if parameter.requires_grad]
            both = [_gradient(losses[objective], moving) for objective in ("fused", name) if moving]
            tiny = torch.finfo(torch.float64).tiny
            cosine[name] = F.cosine_similarity(*both, dim=0, eps=tiny).item() if both else 0.0
    return {"cosine": cosine, "conflicting": sum(value < 0 for value in cosine.values()) / len(cosine)}


def _gradient(loss: Tensor, parameters: Sequence[Tensor]) -> Tensor:
    gradients = torch.autograd.grad(loss, parameters, retain_graph=True, materialize_grads=True)
    return torch.cat([gradient.double().flatten() for gradient in gradients])
