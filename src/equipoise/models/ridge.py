"""Ridge regression in closed form, whose strength is chosen by exact cross-validation over groups.

Sample i counts w_i times. With r = √w, and the Gram matrix K of the samples centred on their weighted mean and scaled
by r on both sides, the scaled residuals of ridge regression with an unpenalised intercept are A (r ∘ y),
A = α (K + α)⁻¹ − r rᵀ / rᵀr; and with the samples g left out of the fit, their scaled errors are A_gg⁻¹ (A (r ∘ y))_g.
So one inverse per α gives the errors of all folds: nothing is fitted twice.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

STRENGTHS = (1e-3, 1e-2, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 100.0)
"""The α that may be chosen, for features whose mean squared length is one."""
START = 4
MOST_FOLDS = 10
TRIED = 700  # samples on which α is chosen: an inverse takes their third power


class Chosen(NamedTuple):
    """The strength of a ridge regression, and what it answers to samples that were left out.

    Attributes:
        strength: α for as many samples as were tried.
        left_out: The answers to them, [n, D].
        loss: Their weighted mean squared error.
    """

    strength: float
    left_out: Tensor
    loss: float


def choose_strength(gram: Tensor, target: Tensor, folds: Sequence[Tensor], weight: Tensor | None = None) -> Chosen:
    """Choose α by the mean squared error on left-out folds, from the middle uphill or downhill as far as that helps.

    Args:
        gram: Inner products of the features of n samples, [n, n].
        target: [n, D].
        folds: The rows of each fold; together all rows.
        weight: How much each sample counts, above zero: for all columns of the target alike, [n, 1], or for each,
            [n, D], which takes D times as long. None for ones.
    """
    gram, target = gram.double(), target.double()
    weight = torch.ones(len(target), 1) if weight is None else weight
    best = _left_out(gram, target, folds, STRENGTHS[START], weight.double())
    for way in (STRENGTHS[START + 1 :], STRENGTHS[:START][::-1]):
        start = best
        for strength in way:
            tried = _left_out(gram, target, folds, strength, weight.double())
            if tried.loss >= best.loss:
                break
            best = tried
        if best is not start:  # the error has one valley: the other way leads up
            break
    return best


def _left_out(gram: Tensor, target: Tensor, folds: Sequence[Tensor], strength: float, weight: Tensor) -> Chosen:
    answers = torch.empty_like(target)
    for own, columns in _alike(weight, target):
        root = own.sqrt()
        # Half the digits suffice where the diagonal is not small beside the largest eigenvalue, and take half the time.
        centred = _centred(gram, own)
        matrix = _with_diagonal(centred if strength < 0.1 else centred.float(), strength)
        residual = strength * torch.cholesky_inverse(torch.linalg.cholesky(matrix)).double()
        residual -= root @ root.T / own.sum()
        errors = residual @ (root * target[:, columns])
        for rows in folds:
            error = torch.linalg.solve(residual[rows][:, rows], errors[rows]) / root[rows]
            answers[rows, columns] = target[rows, columns] - error
    return Chosen(strength, answers, float((weight * (answers - target).square()).mean()))


def solve(
    features: Tensor, target: Tensor, strength: float, gram: Tensor, weight: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Solve a ridge regression with an unpenalised intercept.

    Args:
        features: [N, F].
        target: [N, D].
        strength: α.
        gram: Their inner products, [N, N].
        weight: As for `choose_strength`.

    Returns:
        The weights [D, F] and the intercept [D].
    """
    weight = torch.ones(len(target), 1) if weight is None else weight
    solved = features.new_empty(target.shape[1], features.shape[1] + 1)
    for own, columns in _alike(weight.double(), target.double()):
        wanted, share = target[:, columns].double(), own / own.sum()
        mean, level = share.T.to(features) @ features, share.T @ wanted
        wanted, root = wanted - level, own.sqrt()
        if len(features) <= 2 * features.shape[1]:
            solution = root * _solution(_with_diagonal(_centred(gram.double(), own), strength), root * wanted)
            # Of centred features, without a copy.
            coefficients = (solution - share * solution.sum(dim=0)).T.to(features) @ features
        else:
            centred = root.to(features) * (features - mean)
            moments = _with_diagonal((centred.T @ centred).double(), strength)
            coefficients = _solution(moments, (centred.T @ (root * wanted).to(centred)).double()).T.to(features)
        solved[columns, :-1], solved[columns, -1] = coefficients, (level.to(features) - mean @ coefficients.T)[0]
    return solved[:, :-1], solved[:, -1]


def _alike(weight: Tensor, target: Tensor) -> Iterator[tuple[Tensor, slice]]:
    """Give weights [n, 1], and the columns of the target that have them."""
    if weight.shape[1] == 1:
        yield weight, slice(0, target.shape[1])
        return
    for at in range(target.shape[1]):
        yield weight[:, at : at + 1], slice(at, at + 1)


def _solution(matrix: Tensor, wanted: Tensor) -> Tensor:
    return torch.cholesky_solve(wanted, torch.linalg.cholesky(matrix))


def folds_of(samples: int, groups: Tensor | None) -> list[Tensor]:
    """Cut samples into at most ten folds, none of which shares a group with another; at random without groups."""
    random = np.random.default_rng(0)
    names = np.arange(samples) if groups is None else groups.cpu().numpy()
    known, number = np.unique(names, return_inverse=True)
    if len(known) < 2:  # one group for all: there is nothing to leave out but samples
        known, number = np.arange(samples), np.arange(samples)
    fold = (random.permutation(len(known)) % min(MOST_FOLDS, len(known)))[number]
    return [torch.from_numpy(np.flatnonzero(fold == one)) for one in np.unique(fold)]


def _centred(gram: Tensor, weight: Tensor) -> Tensor:
    """Return inner products of samples centred on their weighted mean, scaled by the roots of the weights [n, 1]."""
    share, root = weight / weight.sum(), weight.sqrt()
    mean = gram @ share
    return root * (gram - mean - mean.T + share.T @ mean) * root.T


def _with_diagonal(matrix: Tensor, strength: float) -> Tensor:
    matrix = matrix.clone()
    matrix.diagonal().add_(strength)
    return matrix
