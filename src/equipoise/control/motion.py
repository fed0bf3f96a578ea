"""The probability that the motion of a demonstration changes, step by step, from proprioception: what GAP reads.

Change points cut an episode into pieces of one direction each; a small LSTM then learns to tell them from the
differences of proprioception, and its answers are the probabilities.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, final

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence, pad_sequence

from equipoise.control.cloning import first_held_out
from equipoise.util.errors import demand

if TYPE_CHECKING:
    from collections.abc import Sequence

    from equipoise.control.demonstrations import Demonstrations

AXES = 3  # of a position, the first columns of proprioception
PENALTY = 0.5  # of a change point, in units of 1 − cos of a step
SHORTEST = 3  # steps of a piece
STILL = 0.05  # of the median step: a shorter one has no direction
WIDTH = 2  # steps to each side of a change point that belong to the change
HIDDEN, UPDATES, EPISODES, RATE = 16, 150, 32, 0.01  # of the LSTM; episodes of a batch


def change_points(
    proprioception: np.ndarray,
    episode: np.ndarray,
    *,
    axes: int = AXES,
    penalty: float = PENALTY,
    shortest: int = SHORTEST,
) -> np.ndarray:
    """Return at which steps a new piece of motion begins, booleans [N]; the first step of an episode is none.

    The pieces of an episode are those of least cost, found by dynamic programming: the sum over its steps Δ_i of
    1 − cos(Δ_i, Δ), Δ the way from the first to the last position of the piece, and a penalty for each change point.

    The distance is that of the GAP paper for positions; its terms for the orientation and opening of a gripper are left
    out. Penalty, shortest piece and the treatment of steps that stand still are choices of this implementation, which
    suit the peg in the hole.

    Args:
        proprioception: Its first columns are a position, [N, D].
        episode: Number of the episode of each step, [N]; the steps of one lie together, in order.
        axes: Columns of the position.
        penalty: Of each change point.
        shortest: Steps of a piece.

    Raises:
        BadInput: If an argument cannot be used.
    """
    proprioception, episode = np.asarray(proprioception), np.asarray(episode)
    runs = _runs(episode)
    rows_fit = proprioception.ndim == 2 and len(proprioception) == len(episode) > 0
    count = len(np.unique(episode))
    demand(
        "change_points",
        (rows_fit, "proprioception should be [N, D], a row for each step", list(proprioception.shape)),
        (len(runs) == count, f"episode should have each of {count} episodes together", episode.tolist()[:8]),
        (penalty >= 0, "penalty should be zero or more", penalty),
        (shortest >= 1, "shortest should be one or more", shortest),
    )
    found = np.zeros(len(episode), dtype=bool)
    for rows in runs:
        position = proprioception[rows, :axes].astype(np.float64)
        found[rows.start + np.array(_cut(position, penalty, shortest), dtype=int)] = True
    return found


def motion_change(
    proprioception: np.ndarray, episode: np.ndarray, training: np.ndarray | None = None, *, seed: int = 0
) -> Tensor:
    """Return ρ [N], the probability that each step belongs to a change of motion: what `equipoise.GAP` reads.

    An LSTM that reads an episode in both directions learns, from the standardised differences of proprioception from
    each step to the next, which steps are at most two from a change point.

    The same numbers give the same ρ. It takes seconds on a CPU.

    The paper has an LSTM that learns the change points from such differences too, with lower penalties near them.
    Its size, that it reads both directions, and the steps around a change point are choices of this implementation.

    Args:
        proprioception: Position first, then whatever else tells the state, [N, D].
        episode: Number of the episode of each step, [N].
        training: The steps of the episodes to learn from, booleans [N]; None for all.
        seed: Of the LSTM's weights and batches.

    Raises:
        BadInput: If an argument cannot be used.

    Example:
        >>> there_and_back = np.concatenate([np.arange(20), np.arange(20)[::-1]])
        >>> position = np.tile(there_and_back, 8)[:, None] * [1.0, 0.0, 0.0]
        >>> rho = motion_change(position, np.repeat(np.arange(8), 40))
        >>> bool(rho[18:22].max() > 0.9), bool(rho[5:15].max() < 0.1)
        (True, True)
    """
    changes = change_points(proprioception, episode)
    training = np.ones(len(changes), dtype=bool) if training is None else np.asarray(training)
    runs = _runs(np.asarray(episode))
    learnt = [number for number, rows in enumerate(runs) if training[rows].all()]
    demand("motion_change", (bool(learnt), "training should hold every step of some episode", training.tolist()[:8]))
    differences = [_differences(np.asarray(proprioception[rows], dtype=np.float64)) for rows in runs]
    known = np.concatenate([differences[number] for number in learnt])
    mean, deviation = known.mean(axis=0), known.std(axis=0)
    read = [torch.from_numpy((one - mean) / np.where(deviation > 0, deviation, 1)).float() for one in differences]
    targets = [torch.from_numpy(_beside(changes[rows])).float() for rows in runs]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = _ChangeModel(read[0].shape[1])
        _fit(model, [read[number] for number in learnt], [targets[number] for number in learnt])
    with torch.no_grad():
        return torch.cat([model([one])[0].sigmoid() for one in read])


def motion_scores(demonstrations: Demonstrations, *, seed: int = 0) -> dict[str, Tensor]:
    """Return ρ of every step, learnt from the training episodes, as `cloning_splits(…, scores=…)` takes it."""
    training = np.arange(len(demonstrations.episode)) < first_held_out(demonstrations.episode)[0]
    rho = motion_change(demonstrations.proprioception, demonstrations.episode, training, seed=seed)
    return {"proprioception": rho}


def _runs(episode: np.ndarray) -> list[slice]:
    bounds = [0, *(np.flatnonzero(np.diff(episode)) + 1).tolist(), len(episode)]
    return [slice(start, stop) for start, stop in pairwise(bounds)]


def _cut(position: np.ndarray, penalty: float, shortest: int) -> list[int]:
    """Return the change points of one episode."""
    if len(position) < 2:
        return []
    steps = np.diff(position, axis=0)
    size = np.linalg.norm(steps, axis=1)
    moves = (size > STILL * np.median(size)) & (size > 0)
    unit = np.where(moves[:, None], steps / np.where(size > 0, size, 1)[:, None], 0)
    # Σ_i cos(Δ_i, Δ) of a piece is the sum of the unit vectors of its steps times that of its way: no loop over steps.
    directions = np.concatenate([np.zeros_like(position[:1]), unit.cumsum(axis=0)])
    counts = np.concatenate([[0], moves.cumsum()])
    way = position[None] - position[:, None]
    length = np.linalg.norm(way, axis=2, keepdims=True)
    along = ((directions[None] - directions[:, None]) * way / np.where(length > 0, length, 1)).sum(axis=2)
    cost = counts[None] - counts[:, None] - along  # of the piece from its first position to its last
    least, before = np.full(len(position), np.inf), np.zeros(len(position), dtype=int)
    least[0] = -penalty
    for end in range(min(shortest, len(position) - 1), len(position)):
        totals = least[: max(end - shortest, 0) + 1] + cost[: max(end - shortest, 0) + 1, end] + penalty
        before[end] = totals.argmin()
        least[end] = totals.min()
    found, point = [], int(before[-1])
    while point > 0:
        found.append(point)
        point = int(before[point])
    return found[::-1]


def _beside(changes: np.ndarray) -> np.ndarray:
    """Return the steps that belong to a change of one episode."""
    return np.convolve(changes, np.ones(2 * WIDTH + 1))[WIDTH:-WIDTH] > 0


def _differences(proprioception: np.ndarray) -> np.ndarray:
    """Return the differences from each step to the next; the last one is repeated."""
    return np.diff(proprioception, axis=0, append=2 * proprioception[-1:] - proprioception[-2:-1])


@final
class _ChangeModel(nn.Module):
    """An LSTM over the steps of an episode, in both directions."""

    def __init__(self, columns: int) -> None:
        super().__init__()
        self.recurrent = nn.LSTM(columns, HIDDEN, batch_first=True, bidirectional=True)
        self.head = nn.Linear(2 * HIDDEN, 1)

    def forward(self, episodes: Sequence[Tensor]) -> list[Tensor]:
        """Return a logit for each step of each episode."""
        lengths = torch.tensor([len(one) for one in episodes])
        packed = pack_padded_sequence(pad_sequence([*episodes], True), lengths, True, enforce_sorted=False)
        outputs, _ = pad_packed_sequence(self.recurrent(packed)[0], batch_first=True)
        return [row[:length] for row, length in zip(self.head(outputs)[..., 0], lengths.tolist(), strict=True)]


def _fit(model: _ChangeModel, episodes: Sequence[Tensor], targets: Sequence[Tensor]) -> None:
    """Train the LSTM to tell which steps belong to a change, in batches of episodes."""
    optimizer = torch.optim.Adam(model.parameters(), lr=RATE)
    for _ in range(UPDATES):
        drawn = torch.randperm(len(episodes))[:EPISODES].tolist()
        logits = torch.cat(model([episodes[number] for number in drawn]))
        optimizer.zero_grad()
        F.binary_cross_entropy_with_logits(logits, torch.cat([targets[number] for number in drawn])).backward()
        optimizer.step()
