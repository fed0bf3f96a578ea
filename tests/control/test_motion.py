"""Change points by hand and against every partition, and the probabilities that an LSTM makes of them."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

from equipoise import GAP
from equipoise.control import motion
from equipoise.control.cloning import cloning_splits, first_held_out
from equipoise.control.demonstrations import Demonstrations
from equipoise.control.motion import PENALTY, SHORTEST, change_points, motion_change, motion_scores
from equipoise.training.settings import Settings
from equipoise.training.train import train
from equipoise.util.errors import BadInput


def walk(directions: list[tuple[float, ...]], lengths: list[int], noise: float = 0.0, seed: int = 0) -> np.ndarray:
    """Positions along straight pieces, [1 + Σ lengths, axes]."""
    steps = np.concatenate([np.tile(one, (length, 1)) for one, length in zip(directions, lengths, strict=True)])
    steps = steps + noise * np.random.default_rng(seed).normal(size=steps.shape)
    return np.concatenate([np.zeros((1, steps.shape[1])), steps.cumsum(axis=0)])


def cost(position: np.ndarray, points: tuple[int, ...], penalty: float) -> float:
    """What a partition costs, from its definition, step by step."""
    total = penalty * len(points)
    for start, stop in itertools.pairwise((0, *points, len(position) - 1)):
        way = position[stop] - position[start]
        for step in np.diff(position[start : stop + 1], axis=0):
            total += 1 - step @ way / max(np.linalg.norm(step) * np.linalg.norm(way), 1e-300)
    return total


def test_change_points_are_where_the_direction_changes_whatever_the_speed() -> None:
    position = walk([(1, 0, 0), (0, 2, 0), (0, 0, -0.5)], [7, 5, 9])
    faster = walk([(1, 0, 0), (3, 0, 0)], [10, 10])
    episodes = np.repeat([4, 9], [len(position), len(faster)])
    state = np.concatenate([position, faster])
    columns = np.concatenate([state, np.random.default_rng(0).normal(size=state.shape)], axis=1)
    assert np.flatnonzero(change_points(columns, episodes)).tolist() == [7, 12]


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("shortest", [1, 2, 4])
def test_no_other_partition_costs_less(seed: int, shortest: int) -> None:
    random = np.random.default_rng(seed)
    position = walk([tuple(random.normal(size=2)) for _ in range(3)], [4, 3, 4], noise=0.4, seed=seed)
    penalty = float(random.uniform(0.1, 1.5))
    last = len(position) - 1
    partitions = [
        points
        for count in range(last)
        for points in itertools.combinations(range(1, last), count)
        if all(b - a >= shortest for a, b in itertools.pairwise((0, *points, last)))
    ]
    least = min(cost(position, points, penalty) for points in partitions)
    ones = np.zeros(len(position))
    found = tuple(np.flatnonzero(change_points(position, ones, axes=2, penalty=penalty, shortest=shortest)).tolist())
    assert found in partitions
    assert cost(position, found, penalty) == pytest.approx(least, abs=1e-9)


@pytest.mark.parametrize("length", [1, 2, 3])
def test_short_and_resting_episodes_have_no_change_points(length: int) -> None:
    states = np.concatenate([walk([(1, 0, 0)], [length]), np.zeros((length, 3)), np.ones((1, 3))])
    assert not change_points(states, np.repeat([0, 1, 2], [length + 1, length, 1])).any()


def zigzag(episodes: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """States of position and velocity, their episodes, and the steps at which the direction changes."""
    random = np.random.default_rng(seed)
    states, numbers, corners = [], [], []
    for number in range(episodes):
        lengths = random.integers(9, 15, size=3).tolist()
        directions = [tuple(axis * random.choice([-1, 1])) for axis in np.eye(3)[random.permutation(3)]]
        position = walk(directions, lengths, noise=0.05, seed=1000 * seed + number)
        velocity = np.gradient(position, axis=0)
        states.append(np.concatenate([position, velocity], axis=1))
        numbers.append(np.full(len(position), number))
        corner = np.zeros(len(position), dtype=bool)
        corner[[lengths[0], lengths[0] + lengths[1]]] = True
        corners.append(corner)
    return tuple(map(np.concatenate, (states, numbers, corners)))


def test_the_probability_is_high_at_changes_and_low_between_also_in_episodes_that_were_not_learnt(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(motion, "UPDATES", 80)  # enough for so few episodes
    state, episode, corner = zigzag(18)
    training = episode < 12
    rho = motion_change(state, episode, training).numpy()
    assert rho.dtype == np.float32
    assert rho.shape == episode.shape
    assert ((rho >= 0) & (rho <= 1)).all()
    near = np.convolve(corner, np.ones(3))[1:-1] > 0
    wide = np.convolve(corner, np.ones(13))[6:-6] > 0
    for part in (training, ~training):
        assert rho[part & near].mean() > 0.8
        assert rho[part & ~wide].mean() < 0.15


def test_the_same_numbers_give_the_same_probabilities_and_held_out_steps_teach_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(motion, "UPDATES", 10)
    state, episode, _ = zigzag(12)
    training = episode < 9
    before = torch.random.get_rng_state()
    first = motion_change(state, episode, training)
    assert torch.equal(torch.random.get_rng_state(), before)
    torch.manual_seed(7)
    assert torch.equal(motion_change(state, episode, training), first)
    assert not torch.equal(motion_change(state, episode, training, seed=1), first)
    other = np.where(training[:, None], state, 3 * state[::-1])
    learnt = torch.from_numpy(training)
    assert torch.equal(motion_change(other, episode, training)[learnt], first[learnt])


def test_a_constant_column_and_episodes_without_changes_do_no_harm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(motion, "UPDATES", 60)
    state, episode, _ = zigzag(4)
    constant = np.concatenate([state, np.ones((len(state), 1))], axis=1)
    assert motion_change(constant, episode).isfinite().all()
    straight = walk([(1, 0, 0)], [30])
    assert motion_change(straight, np.zeros(31)).max() < 0.1


@pytest.mark.parametrize(
    ("state", "episode", "message"),
    [
        (np.zeros((4, 3)), np.zeros(5), r"proprioception should be \[N, D\].*found \[4, 3\]"),
        (np.zeros(4), np.zeros(4), r"found \[4\]"),
        (np.zeros((4, 3)), np.array([0, 1, 0, 1]), r"each of 2 episodes together, found \[0, 1, 0, 1\]"),
    ],
)
def test_wrong_arguments_get_a_message(state: np.ndarray, episode: np.ndarray, message: str) -> None:
    with pytest.raises(BadInput, match=message):
        change_points(state, episode)


def test_wrong_numbers_are_told_together() -> None:
    with pytest.raises(BadInput, match=r"penalty should be zero or more(.|\n)*shortest should be one or more"):
        change_points(np.zeros((4, 3)), np.zeros(4), penalty=-1, shortest=0)
    with pytest.raises(BadInput, match=r"training should hold every step of some episode, found \[True, True"):
        motion_change(np.zeros((4, 3)), np.zeros(4), np.array([True, True, True, False]))
    assert (PENALTY, SHORTEST) == (0.5, 3)


def test_scores_of_demonstrations_reach_the_method(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(motion, "UPDATES", 30)
    state, episode, _ = zigzag(10)
    count = len(episode)
    random = np.random.default_rng(3)
    demonstrations = Demonstrations(
        proprioception=np.concatenate([state, np.zeros((count, 3))], axis=1).astype(np.float32),
        camera=np.zeros((count, 3, 4, 4), np.uint8),
        force=random.normal(size=(count, 6, 10)).astype(np.float32),
        action=state[:, 3:].astype(np.float32),
        phase=np.zeros(count, np.int8),
        episode=episode.astype(np.int32),
        hole=np.zeros((count, 2), np.float32),
        step=np.zeros(count, np.int32),
        renderer="rays",
        seeds={},
    )
    scores = motion_scores(demonstrations)
    training = np.arange(count) < first_held_out(demonstrations.episode)[0]
    assert torch.equal(scores["proprioception"], motion_change(demonstrations.proprioception, episode, training))
    splits = cloning_splits(demonstrations, ("proprioception", "force"), scores=scores)
    joined = torch.cat([part.scores["proprioception"] for part in splits.parts.values()])
    assert torch.equal(joined, scores["proprioception"])
    assert not cloning_splits(demonstrations, ("force",), scores=scores).train.scores
    settings = Settings(epochs=1, batch=64, features=8, optimizer="adamw", lr=1e-3, loss="mse", device="cpu")
    table = train(splits, GAP(), settings).curves[0]["table"]["fused"]
    assert 0.3 * (1 - float(splits.train.scores["proprioception"].mean())) == pytest.approx(
        table["proprioception"], abs=0.06
    )
    assert table["force"] == 1
