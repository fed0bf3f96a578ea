"""Ridge regression in closed form, whose strength is chosen by exact cross-validation over groups.

With the centred Gram matrix K of n samples, the residuals of ridge regression with an unpenalised intercept are A y,
A = α (K + α)⁻¹ − 1/n; and with the samples g left out of the fit, their errors are A_gg⁻¹ (A y)_g. So one inverse per α
gives the errors of all folds: nothing is fitted twice.
"""

from __future__ import annotations

from collections.abc import Sequence
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
        loss: Their mean squared error.
    """

    strength: float
    left_out: Tensor
    loss: float


def choose_strength(gram: Tensor, target: Tensor, folds: Sequence[Tensor]) -> Chosen:
    """Choose α by the mean squared error on left-out folds, from the middle uphill or downhill as far as that helps.

    Args:
        gram: Inner products of the features of n samples, [n, n].
        target: [n, D].
        folds: The rows of each fold; together all rows.
    """
    centred, target = _centred(gram.double()), target.double()
    best = _left_out(centred, target, folds, STRENGTHS[START])
    for way in (STRENGTHS[START + 1 :], STRENGTHS[:START][::-1]):
        start = best
        for strength in way:
            tried = _left_out(centred, target, folds, strength)
            if tried.loss >= best.loss:
                break
            best = tried
        if best is not start:  # the error has one valley: the other way leads up
            break
    return best


def _left_out(centred: Tensor, target: Tensor, folds: Sequence[Tensor], strength: float) -> Chosen:
    # Half the digits suffice where the diagonal is not small beside the largest eigenvalue, and take half the time.
    matrix = _with_diagonal(centred if strength < 0.1 else centred.float(), strength)
    residual = strength * torch.cholesky_inverse(torch.linalg.cholesky(matrix)).double()
    residual -= 1 / len(residual)
    errors, answers = residual @ target, torch.empty_like(target)
    for rows in folds:
        answers[rows] = target[rows] - torch.linalg.solve(residual[rows][:, rows], errors[rows])
    return Chosen(strength, answers, float((answers - target).square().mean()))


def solve(features: Tensor, target: Tensor, strength: float, gram: Tensor) -> tuple[Tensor, Tensor]:
    """Solve a ridge regression with an unpenalised intercept.

    Args:
        features: [N, F].
        target: [N, D].
        strength: α.
        gram: Their inner products, [N, N].

    Returns:
        The weights [D, F] and the intercept [D].
    """
    mean, level = features.mean(dim=0), target.double().mean(dim=0)
    wanted = target.double() - level
    if len(features) <= 2 * features.shape[1]:
        solution = _solution(_with_diagonal(_centred(gram.double()), strength), wanted)
        weight = ((solution - solution.mean(dim=0)).T.to(features)) @ features  # of centred features, without a copy
    else:
        centred = features - mean
        moments = _with_diagonal((centred.T @ centred).double(), strength)
        weight = _solution(moments, (centred.T @ wanted.to(centred)).double()).T.to(features)
    return weight, level.to(weight) - weight @ mean


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


def _centred(gram: Tensor) -> Tensor:
    return gram - gram.mean(dim=0) - gram.mean(dim=1, keepdim=True) + gram.mean()


def _with_diagonal(matrix: Tensor, strength: float) -> Tensor:
    matrix = matrix.clone()
    matrix.diagonal().add_(strength)
    return matrix
