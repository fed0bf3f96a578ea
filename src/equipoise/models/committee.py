"""The committee: the fused head and the heads of the modalities vote together.

The committee's probability of class c is softmax_c(Σ_j w_j log p_j(c)), with one weight w_j ≥ 0 per member j: the fused
head and each modality's own. The weights are fitted on data that the model was not trained on, and shrunk towards equal
ones as far as that data cannot tell.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from equipoise.models.projected_newton import Derivatives, minimise_without_negatives
from equipoise.util.errors import raise_all
from equipoise.util.names import unknown_name

FLOOR = 0.1
"""Where a sensor is missing, each member left has at least this part of an equal weight."""

_SURE_ENOUGH = -30.0  # a head that gives a class no chance at all must not be able to forbid it
_SHRINKAGES = (math.inf, 10.0, 1.0, 0.1, 0.01, 0.001)
_FOLDS_BY_GROUP, _FOLDS_BY_SAMPLE = 10, 5


class CommitteeFit(NamedTuple):
    """What `fit_weights` found.

    Attributes:
        weights: One weight per member, [M], in float64.
        shrinkage: How strongly the weights were pulled to equal ones; infinite where they are equal.
        reason: Why this shrinkage, in words.
    """

    weights: Tensor
    shrinkage: float
    reason: str


def pool(log_probabilities: Mapping[str, Tensor], weights: Mapping[str, Tensor | float] | Tensor) -> Tensor:
    """Let a committee vote: softmax over classes of Σ_j w_j log p_j.

    Args:
        log_probabilities: The log-probabilities of each member, [B, C].
        weights: One weight per entry of `log_probabilities`, in its order; or by name, for the whole committee. Then a
            member that has a weight and no log-probabilities is a missing sensor, and the others vote with
            `surviving_weights`.

    Returns:
        The committee's probabilities, [B, C].

    Raises:
        ValueError: If weights and members do not match.
    """
    if isinstance(weights, Tensor):
        if weights.shape != (len(log_probabilities),):
            raise ValueError(
                f"pool expected one weight for each of {', '.join(map(repr, log_probabilities))}; found weights of "
                f"shape {list(weights.shape)}. Pass the weights by name to leave members out."
            )
        weights = dict(zip(log_probabilities, weights, strict=True))
    voting = surviving_weights(weights, log_probabilities)
    votes = [weight * log_probabilities[name].clamp(min=_SURE_ENOUGH) for name, weight in voting.items()]
    return torch.stack(votes).sum(dim=0).softmax(dim=-1)


def surviving_weights(weights: Mapping[str, Tensor | float], present: Iterable[str]) -> dict[str, Tensor | float]:
    """Give the weights with which the members at hand vote.

    With a sensor missing the fused head goes too: it was trained to read all of them. Each member left has at least
    `FLOOR` of an equal weight, lest only members without a vote remain; and the weights are rescaled to the total of
    the full committee, so that the probabilities stay about as sharp.

    Args:
        weights: The weight of every member of the full committee, by name.
        present: The names of the members at hand.

    Returns:
        The weights of those that vote, by name.

    Raises:
        ValueError: If somebody present has no weight, or nobody but the fused head is there.
    """
    present = set(present)
    raise_all(f"No weight for {unknown_name(name, weights)}" for name in sorted(present - set(weights)))
    if present == set(weights):
        return dict(weights)
    left = [name for name in weights if name in present and name != "fused"]
    if not left:
        raise ValueError(
            f"The committee of {', '.join(map(repr, weights))} expected the log-probabilities of at least one sensor; "
            f"found those of {sorted(present)}. Add those of the sensors at hand."
        )
    floor = FLOOR / len(weights)
    total = torch.stack([torch.as_tensor(weight) for weight in weights.values()]).sum().clamp(min=floor)
    raised = torch.stack([torch.as_tensor(weights[name]) for name in left]).clamp(min=floor)
    return dict(zip(left, raised * (total / raised.sum()), strict=True))


def fit_weights(
    log_probabilities: Tensor, labels: Tensor, groups: Sequence[Any] | np.ndarray | Tensor | None = None
) -> CommitteeFit:
    """Fit the committee's weights: least mean negative log-likelihood plus shrinkage · ‖w − equal‖², over w ≥ 0.

    The shrinkage is the largest whose loss on left-out groups is, within one standard error, as low as the best one's;
    among those tried is an infinite one, equal weights. Every fold counts alike.

    Args:
        log_probabilities: Of N samples under M members for C classes, [N, M, C].
        labels: The right classes, [N].
        groups: The person, speaker or video of each sample; samples of one group are left out together. Without groups
            each sample is its own.

    Returns:
        The weights, the shrinkage, and the reason for it.

    Raises:
        ValueError: If shapes do not match, labels are no classes, a log-probability is not a number, or there is no
            data.
    """
    raise_all(_problems(log_probabilities, labels, groups))
    samples, members, _ = log_probabilities.shape
    equal = torch.full((members,), 1 / members, dtype=torch.float64)
    group_of_sample = torch.arange(samples) if groups is None else _numbered(groups)
    group_count = int(group_of_sample.max()) + 1
    if group_count < 3:
        reason = f"equal weights: found {group_count} group(s), and cross-validation needs at least three"
        return CommitteeFit(equal, math.inf, reason)

    # The margins against the right class, [M, N, C], are all that the loss depends on.
    logs = log_probabilities.detach().to("cpu", torch.float64).clamp(min=_SURE_ENOUGH).transpose(0, 1)
    right = labels.detach().cpu().long().expand(members, samples).unsqueeze(2)
    margins = (logs - logs.gather(2, right)).contiguous()

    # The shuffle is the same every time, and keeps neighbours in a file from sharing a fold.
    fold_count = min(group_count, _FOLDS_BY_SAMPLE if groups is None else _FOLDS_BY_GROUP)
    shuffled = torch.randperm(group_count, generator=torch.Generator().manual_seed(0))
    fold_of_sample = (shuffled % fold_count)[group_of_sample]
    losses = torch.stack([_left_out_losses(margins, fold_of_sample == fold) for fold in range(fold_count)])

    excess = losses - losses[:, losses.mean(dim=0).argmin()].unsqueeze(1)
    standard_error = excess.std(dim=0) / math.sqrt(fold_count)
    chosen = int((excess.mean(dim=0) <= standard_error).int().argmax())  # the first, so the most shrunk
    shrinkage = _SHRINKAGES[chosen]
    mean = losses.mean(dim=0).tolist()
    outcome = "equal weights" if shrinkage == math.inf else f"shrinkage {shrinkage:g}"
    reason = (
        f"{outcome}: the most shrunk within one standard error of the best over {fold_count} folds of {group_count} "
        f"groups; left-out loss {mean[chosen]:.4g}, best {min(mean):.4g}, equal weights {mean[0]:.4g}"
    )
    return CommitteeFit(_solve(margins, shrinkage, equal), shrinkage, reason)


def _left_out_losses(margins: Tensor, left_out: Tensor) -> Tensor:
    """The loss on one fold after fitting to the others, for each shrinkage."""
    kept, tested = margins[:, ~left_out], margins[:, left_out]
    weights = torch.full((len(margins),), 1 / len(margins), dtype=torch.float64)
    losses = []
    for shrinkage in _SHRINKAGES:
        weights = _solve(kept, shrinkage, weights)  # from the solution before, which is near
        losses.append(torch.einsum("m,mnc->nc", weights, tested).logsumexp(dim=1).mean())
    return torch.stack(losses)


def _solve(margins: Tensor, shrinkage: float, start: Tensor) -> Tensor:
    members, samples, _ = margins.shape
    equal = torch.full((members,), 1 / members, dtype=torch.float64)
    if shrinkage == math.inf:
        return equal

    def loss(weights: Tensor) -> Derivatives:
        votes = torch.einsum("m,mnc->nc", weights, margins)
        pull = weights - equal
        value = votes.logsumexp(dim=1).mean() + shrinkage * pull.square().sum()
        weighted = margins * votes.softmax(dim=1)
        expected = weighted.sum(dim=2)
        gradient = expected.mean(dim=1) + 2 * shrinkage * pull
        spread = (weighted.flatten(1) @ margins.flatten(1).T - expected @ expected.T) / samples
        return value, gradient, spread + 2 * shrinkage * torch.eye(members, dtype=torch.float64)

    return minimise_without_negatives(loss, start)


def _numbered(groups: Sequence[Any] | np.ndarray | Tensor) -> Tensor:
    names = groups.detach().cpu().numpy() if isinstance(groups, Tensor) else np.asarray(groups)
    return torch.from_numpy(np.unique(names, return_inverse=True)[1])


def _problems(
    log_probabilities: Tensor, labels: Tensor, groups: Sequence[Any] | np.ndarray | Tensor | None
) -> list[str]:
    shape = list(log_probabilities.shape)
    if len(shape) != 3 or 0 in shape:
        return [
            f"fit_weights expected log-probabilities [samples, members, classes], at least one each; found {shape}."
        ]
    problems = []
    samples, _, classes = shape
    if labels.shape != (samples,):
        problems.append(f"fit_weights expected {samples} labels, one per sample; found the shape {list(labels.shape)}.")
    if labels.is_floating_point() or labels.is_complex():
        problems.append(f"fit_weights expected whole numbers for labels; found {labels.dtype}. Write labels.long().")
    elif labels.numel() and not 0 <= int(labels.min()) <= int(labels.max()) < classes:
        problems.append(
            f"fit_weights expected labels from 0 to {classes - 1}, one per class; found {int(labels.min())} to "
            f"{int(labels.max())}. Number the classes from 0."
        )
    if groups is not None and len(groups) != samples:
        problems.append(f"fit_weights expected {samples} groups, one per sample; found {len(groups)}.")
    if log_probabilities.isnan().any():
        problems.append(
            "fit_weights expected numbers; found NaN among the log-probabilities. Check the model's outputs."
        )
    return problems
