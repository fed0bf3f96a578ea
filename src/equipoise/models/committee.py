"""Fit the committee of a model: the weights with which the fused head and the heads of the modalities vote.

The weights are fitted on data that the model was not trained on, and shrunk towards equal ones as far as that data
cannot tell them apart. Classes and labels are pooled by log-probabilities, and count as in training where they have
weights; numbers are pooled by a convex combination, whose intervals are calibrated on the same data.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import NamedTuple, final

import numpy as np
import torch
from torch import Tensor

from equipoise.models.evaluation import LEAST_LOG, surviving_weights
from equipoise.models.fusion_model import FusionModel
from equipoise.models.intervals import conformal_radius, subset_masks, widened_by_missing
from equipoise.models.task import Classification, Regression, Task
from equipoise.models.votes import Batch, Groups, names_of_groups, read_votes
from equipoise.util.errors import raise_all

Derivatives = tuple[Tensor, Tensor, Tensor]
"""A function's value [], gradient [M] and positive definite Hessian [M, M]."""

_SHRINKAGES = (math.inf, 10.0, 1.0, 0.1, 0.01, 0.001)
ERROR_POWER = 4
_FOLDS_BY_GROUP, _FOLDS_BY_SAMPLE, FEWEST_GROUPS = 10, 5, 3


class CommitteeFit(NamedTuple):
    """The weights of a committee, as `fit_weights` fits them.

    Attributes:
        weights: One weight per member, [M], in float64.
        shrinkage: How strongly the weights were pulled to the prior ones, which are equal unless others are given;
            infinite where they are the same; not a number where nothing was fitted.
        reason: The reason for this shrinkage, in words.
        loss: The least mean loss on left-out groups, of all shrinkages; where nothing was left out, that of the prior
            weights. Of classes and labels cross-entropy, of numbers the mean square in deviations.
    """

    weights: Tensor
    shrinkage: float
    reason: str
    loss: float = math.nan


def fit_committee(
    model: FusionModel, batches: Iterable[Batch] | Batch, groups: Groups | None = None, keep: str | None = None
) -> CommitteeFit:
    """Fit the weights with which a model's heads vote, and store them in `model.committee`.

    Samples that lack a sensor have no say in it. Of a regression, the intervals are calibrated too: `model.radii`.

    Args:
        model: A model with uni-modal outputs.
        batches: Validation data: any number of batches (inputs, labels) or (inputs, labels, groups), or a single one.
        groups: The person, speaker or video of each sample over all batches, where the batches do not hold them.
        keep: The reason for keeping the weights there are, so that only intervals are calibrated, unless they are;
            None to fit the weights.

    Returns:
        The fit, as `fit_weights` gives it.

    Raises:
        TypeError: If the model is no `LateFusion`.
        ValueError: If the model has no uni-modal outputs, or the data is empty or does not fit; see `fit_weights`.
    """
    kept = None if keep is None else CommitteeFit(model.committee.detach().to("cpu", torch.float64), math.nan, keep)
    if kept is not None and not isinstance(model.task, Regression):
        return kept
    votes = read_votes(model, batches, groups, "fit_committee")
    fit = kept or fit_task(model.known_task(), votes.members, votes.label, votes.groups)
    model.committee.copy_(fit.weights)
    if votes.fused_errors is not None and not (kept and bool(model.radii.isfinite().any())):
        _calibrate(model, votes.fused_errors.abs(), votes.members, votes.label)
    return fit


def fit_task(
    task: Task, members: Tensor, label: Tensor, groups: Groups | None = None, prior: Tensor | None = None
) -> CommitteeFit:
    """Fit the weights of members in the way of the task; the prior ones where there is no sample.

    Args:
        task: The task.
        members: As `Task.member` gives them, [N, M, size].
        label: As a part of the data holds it.
        groups: As for `fit_weights`.
        prior: As for `fit_weights`.
    """
    if len(members) == 0:
        words = "equal weights" if prior is None else "the prior weights"
        weights = _equal(members.shape[1]) if prior is None else prior.detach().to("cpu", torch.float64)
        return CommitteeFit(weights, math.inf, f"{words}: no validation sample has every sensor")
    counts = task.sample_weights(label)
    if isinstance(task, Classification):
        return fit_weights(members, label, groups, prior, counts)
    if isinstance(task, Regression):
        return fit_mean_weights((members - label[:, None]) / task.deviation.cpu(), groups, prior)
    # Every label of a sample is a vote between two classes.
    logs = torch.stack([-members, members], dim=-1).log_softmax(dim=-1)  # [N, M, L, 2]
    samples, _, labels = members.shape
    names = np.arange(samples) if groups is None else names_of_groups(groups)
    counts = None if counts is None else counts.flatten()
    votes = logs.transpose(1, 2).flatten(0, 1)
    return fit_weights(votes, label.long().flatten(), np.repeat(names, labels), prior, counts)


def _calibrate(model: FusionModel, of_fused: Tensor, members: Tensor, label: Tensor) -> None:
    """Store the conformal radius of both decisions for every subset of the sensors.

    Args:
        model: Whose committee is fitted.
        of_fused: Absolute errors of the fused answer, [S, N, D].
        members: [N, M, D].
        label: [N, D].
    """
    masks, weights = subset_masks(len(model.encoders)), model.committee.detach().cpu()
    chosen = surviving_weights(weights, masks)  # [S, M]
    pooled = torch.einsum("sm,nmd->snd", chosen, members)
    nothing = model.known_task().nothing(label.to(model.committee.device)).cpu()  # what is answered without any sensor
    pooled[~masks.any(dim=1)] = nothing
    of_fused[~masks.any(dim=1)] = (nothing - label).abs()
    for decision, errors in enumerate((of_fused, (pooled - label).abs())):
        radii = torch.stack([conformal_radius(one) for one in errors])
        model.radii[decision].copy_(widened_by_missing(radii, masks))


def fit_weights(
    log_probabilities: Tensor,
    labels: Tensor,
    groups: Groups | None = None,
    prior: Tensor | None = None,
    counts: Tensor | None = None,
) -> CommitteeFit:
    """Fit the committee's weights: least mean negative log-likelihood plus shrinkage · ‖w − prior‖², over w ≥ 0.

    The shrinkage is the largest whose loss on left-out groups is, within one standard error, as low as the best one's;
    among those tried is an infinite one, the prior itself. Every fold counts alike.

    Args:
        log_probabilities: Of N samples under M members for C classes, [N, M, C].
        labels: The right classes, [N].
        groups: The person, speaker or video of each sample; samples of one group are left out together. Without groups
            each sample is its own.
        prior: The weights towards which shrinkage pulls, [M]; None for equal ones that add up to one.
        counts: How much each sample counts in the mean, [N], above zero; None for ones.

    Returns:
        The weights, the shrinkage, and the reason for it.

    Raises:
        ValueError: If shapes do not match, labels are no classes, a log-probability is not a number, or there is no
            data.
    """
    raise_all([*_problems(log_probabilities, labels, groups), *_prior_problems(prior, log_probabilities)])
    samples, members, _ = log_probabilities.shape
    # The margins against the right class, [M, N, C], are all that the loss depends on.
    logs = log_probabilities.detach().to("cpu", torch.float64).clamp(min=LEAST_LOG).transpose(0, 1)
    right = labels.detach().cpu().long().expand(members, samples).unsqueeze(2)
    return _fit(_LogPool((logs - logs.gather(2, right)).contiguous(), counts), groups, prior)


def fit_mean_weights(errors: Tensor, groups: Groups | None = None, prior: Tensor | None = None) -> CommitteeFit:
    """Fit the weights of a convex combination of numbers: least mean square plus shrinkage · ‖w − prior‖².

    The weights are not negative and add up to one. The shrinkage is chosen as in `fit_weights`, but with one or two
    groups five stretches of samples are left out in turn: errors of numbers have no bounds, and with an equal say the
    worst member may spoil the answer.

    Args:
        errors: Of N samples under M members in D columns, [N, M, D], in deviations of the target.
        groups: As for `fit_weights`.
        prior: As for `fit_weights`; its weights add up to one.
    """
    if errors.dim() != 3 or 0 in errors.shape or not errors.isfinite().all():
        expected = "finite errors [samples, members, columns], at least one each"
        raise_all([f"fit_mean_weights expected {expected}; found {list(errors.shape)}."])
    if groups is not None and len(groups) != len(errors):
        raise_all([f"fit_mean_weights expected {len(errors)} groups, one per sample; found {len(groups)}."])
    raise_all(_prior_problems(prior, errors, total=1.0))
    prior = weights_by_error(errors) if prior is None else prior
    pool = _MeanPool(errors.detach().to("cpu", torch.float64).transpose(0, 1).contiguous())
    count = len(errors) if groups is None else len(np.unique(names_of_groups(groups)))
    if groups is None or count >= FEWEST_GROUPS or len(errors) < _FOLDS_BY_SAMPLE:
        return _fit(pool, groups, prior)
    fit = _fit(pool, np.arange(len(errors)) * _FOLDS_BY_SAMPLE // len(errors), prior)
    return fit._replace(reason=f"{fit.reason} (stretches of samples, since there is no third group to leave out)")


def weights_by_error(errors: Tensor) -> Tensor:
    """Return weights that fall with the fourth power of the mean squared error of each member, [M], of sum one.

    Numbers have no bounds, and a member of equal say that knows little spoils the mean of the others. Over sensors of
    heart rate and of air quality, the fourth power was nearer to the best than the first and the second.

    Args:
        errors: As for `fit_mean_weights`.
    """
    square = errors.detach().to("cpu", torch.float64).square().mean(dim=(0, 2))
    relative = square / square.min().clamp(min=torch.finfo(torch.float64).tiny)
    weights = relative.clamp(min=1e-3).pow(-ERROR_POWER)
    return weights / weights.sum()


class _Pool(ABC):
    """The loss of a committee as a function of its weights.

    Args:
        values: All that the loss depends on, [M, N, …] in float64.
        counts: How much each sample counts, [N]; None for ones.
    """

    def __init__(self, values: Tensor, counts: Tensor | None = None) -> None:
        self.values = values
        self.counts = values.new_ones(values.shape[1]) if counts is None else counts.to(values)

    def of(self, rows: Tensor) -> "_Pool":
        """Return the same pool of some samples."""
        return type(self)(self.values[:, rows], self.counts[rows])

    @abstractmethod
    def loss(self, weights: Tensor) -> Tensor:
        """Return the mean loss over samples."""

    @abstractmethod
    def solve(self, shrinkage: float, start: Tensor, prior: Tensor) -> Tensor:
        """Find the weights w ≥ 0 of least loss plus shrinkage · ‖w − prior‖²; shrinkage is finite."""


@final
class _LogPool(_Pool):
    """The negative log-likelihood of pooled log-probabilities, from margins against the right class [M, N, C]."""

    def loss(self, weights: Tensor) -> Tensor:
        return torch.einsum("m,mnc->nc", weights, self.values).logsumexp(dim=1) @ self.counts / self.counts.sum()

    def solve(self, shrinkage: float, start: Tensor, prior: Tensor) -> Tensor:
        members, share = len(self.values), self.counts / self.counts.sum()

        def shrunk(weights: Tensor) -> Derivatives:
            votes = torch.einsum("m,mnc->nc", weights, self.values)
            pull = weights - prior
            value = votes.logsumexp(dim=1) @ share + shrinkage * pull.square().sum()
            weighted = self.values * votes.softmax(dim=1)
            expected = weighted.sum(dim=2)
            gradient = expected @ share + 2 * shrinkage * pull
            weighted = weighted * share[:, None]
            spread = weighted.flatten(1) @ self.values.flatten(1).T - (expected * share) @ expected.T
            return value, gradient, spread + 2 * shrinkage * torch.eye(members, dtype=torch.float64)

        return minimise_without_negatives(shrunk, start)


@final
class _MeanPool(_Pool):
    """The mean square of a convex combination of errors [M, N, D]."""

    def __init__(self, values: Tensor, counts: Tensor | None = None) -> None:
        super().__init__(values, counts)
        flat = values.flatten(1)
        self._moments = flat @ flat.T / flat.shape[1]

    def loss(self, weights: Tensor) -> Tensor:
        return weights @ self._moments @ weights

    def solve(self, shrinkage: float, start: Tensor, prior: Tensor) -> Tensor:
        # Where Σ w = 1, the whole is w·A·w and a constant. Its minimiser is that of v·A·v / 2 − Σ v over v ≥ 0, divided
        # by its sum: both have A w = λ where w > 0, and no less elsewhere. There w − prior = (I − prior·1ᵀ) w, and the
        # mean of 1·1ᵀ, a constant, makes A the moments plus shrinkage · I for equal weights.
        ones = torch.ones_like(start)
        away = torch.eye(len(start), dtype=torch.float64) - prior.outer(ones)
        matrix = self._moments + shrinkage * (away.T @ away + ones.outer(ones) / len(start))
        matrix = matrix / matrix.diagonal().mean()

        def scaled(weights: Tensor) -> Derivatives:
            along = matrix @ weights
            return weights @ along / 2 - weights.sum(), along - 1, matrix

        solution = minimise_without_negatives(scaled, start / (start @ matrix @ start))
        return solution / solution.sum()


def _fit(pool: _Pool, groups: Groups | None, given: Tensor | None) -> CommitteeFit:
    """Fit the weights of a pool, shrunk towards the given ones as far as left-out groups allow."""
    members, samples = pool.values.shape[:2]
    prior = _equal(members) if given is None else given.detach().to("cpu", torch.float64)
    words = "equal weights" if given is None else "the prior weights"
    names = np.arange(samples) if groups is None else names_of_groups(groups)
    group_of_sample = torch.from_numpy(np.unique(names, return_inverse=True)[1])
    group_count = int(group_of_sample.max()) + 1
    if group_count < FEWEST_GROUPS:
        reason = f"{words}: found {group_count} group(s), and cross-validation needs at least three"
        return CommitteeFit(prior, math.inf, reason, float(pool.loss(prior)))

    # The shuffle is the same every time, and keeps neighbours in a file from sharing a fold.
    fold_count = min(group_count, _FOLDS_BY_SAMPLE if groups is None else _FOLDS_BY_GROUP)
    shuffled = torch.randperm(group_count, generator=torch.Generator().manual_seed(0))
    fold_of_sample = (shuffled % fold_count)[group_of_sample]
    losses = torch.stack([_left_out_losses(pool, fold_of_sample == fold, prior) for fold in range(fold_count)])

    excess = losses - losses[:, losses.mean(dim=0).argmin()].unsqueeze(1)
    standard_error = excess.std(dim=0) / math.sqrt(fold_count)
    chosen = int((excess.mean(dim=0) <= standard_error).int().argmax())  # the first, so the most shrunk
    shrinkage = _SHRINKAGES[chosen]
    mean = losses.mean(dim=0).tolist()
    outcome = words if shrinkage == math.inf else f"shrinkage {shrinkage:g}"
    reason = (
        f"{outcome}: the most shrunk within one standard error of the best over {fold_count} folds of {group_count} "
        f"groups; left-out loss {mean[chosen]:.4g}, best {min(mean):.4g}, {words} {mean[0]:.4g}"
    )
    weights = prior if shrinkage == math.inf else pool.solve(shrinkage, prior, prior)
    return CommitteeFit(weights, shrinkage, reason, min(mean))


def _left_out_losses(pool: _Pool, left_out: Tensor, prior: Tensor) -> Tensor:
    """Compute the loss on one fold after fitting to the others, for each shrinkage."""
    kept, tested = pool.of(~left_out), pool.of(left_out)
    weights, losses = prior, []
    for shrinkage in _SHRINKAGES:
        if shrinkage != math.inf:
            weights = kept.solve(shrinkage, weights, prior)  # from the solution before, which is near
        losses.append(tested.loss(weights))
    return torch.stack(losses)


def _equal(members: int) -> Tensor:
    return torch.full((members,), 1 / members, dtype=torch.float64)


def _prior_problems(prior: Tensor | None, members: Tensor, total: float | None = None) -> list[str]:
    if prior is None or members.dim() != 3:
        return []
    count, found = members.shape[1], float(prior.sum())
    fits = found > 0 if total is None else abs(found - total) < 1e-4
    if prior.shape == (count,) and bool((prior.isfinite() & (prior >= 0)).all()) and fits:
        return []
    which = f" that are not all zero, one for each of {count} members" if total is None else f" [{count}] of sum one"
    return [f"expected prior weights of at least zero{which}; found {prior.tolist()}."]


def _problems(log_probabilities: Tensor, labels: Tensor, groups: Groups | None) -> list[str]:
    shape = list(log_probabilities.shape)
    if len(shape) != 3 or 0 in shape:
        expected = "log-probabilities [samples, members, classes], at least one each"
        return [f"fit_weights expected {expected}; found {shape}."]
    samples, _, classes = shape
    problems = []
    if labels.shape != (samples,):
        problems.append(f"{samples} labels, one per sample; found the shape {list(labels.shape)}.")
    if labels.is_floating_point() or labels.is_complex():
        problems.append(f"whole numbers for labels; found {labels.dtype}. Write labels.long().")
    elif labels.numel() and not 0 <= int(labels.min()) <= int(labels.max()) < classes:
        hint = f"found {int(labels.min())} to {int(labels.max())}. Number the classes from 0."
        problems.append(f"labels from 0 to {classes - 1}, one per class; {hint}")
    if groups is not None and len(groups) != samples:
        problems.append(f"{samples} groups, one per sample; found {len(groups)}.")
    if log_probabilities.isnan().any():
        problems.append("numbers; found NaN among the log-probabilities. Check the model's outputs.")
    return [f"fit_weights expected {problem}" for problem in problems]


def minimise_without_negatives(function: Callable[[Tensor], Derivatives], start: Tensor) -> Tensor:
    """Find the w ≥ 0 of least value, by Newton steps projected onto w ≥ 0.

    Entries at zero that the gradient holds there step along the gradient, all others along the Newton direction of
    their own block: Newton's step through the whole Hessian, once projected, may go uphill. From "Projected Newton
    Methods for Optimization Problems with Simple Constraints" (Bertsekas, 1982).

    Args:
        function: Gives value, gradient and Hessian at w, in float64.
        start: Where to begin, [M] in float64, w ≥ 0.

    Returns:
        The minimiser, [M].
    """
    point = start
    value, gradient, hessian = function(point)
    for _ in range(200):
        residual = float(stationarity(point, gradient))
        if residual < 1e-10:
            break
        held = (point <= min(residual, 1e-3)) & (gradient > 0)
        direction = gradient.clone()
        direction[~held] = torch.linalg.solve(hessian[~held][:, ~held], gradient[~held])

        step = 1.0
        while step > 1e-12:
            candidate = (point - step * direction).clamp(min=0)
            derivatives = function(candidate)
            promised = step * (gradient * direction)[~held].sum() + (gradient * (point - candidate))[held].sum()
            rounding = 1e-15 * (1 + value.abs())
            if derivatives[0] <= value - 1e-4 * promised + rounding:
                break
            step /= 2
        else:
            break  # nothing lower within rounding
        point, (value, gradient, hessian) = candidate, derivatives
    return point


def stationarity(point: Tensor, gradient: Tensor) -> Tensor:
    """Say how far a point is from optimal: the gradient's size where w > 0, its negative part where w = 0."""
    return (point - (point - gradient).clamp(min=0)).abs().max()
