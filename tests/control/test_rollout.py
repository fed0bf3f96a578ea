"""Rollouts in worker processes equal a loop with one simulator in this process, to the bit."""

from __future__ import annotations

import hashlib
import os
import signal
from collections.abc import Iterator, Mapping

import numpy as np
import pytest
import torch
from torch import Tensor

from control.made_data import Scripted
from equipoise.control.conditions import CONDITIONS, Condition
from equipoise.control.controller import Controller
from equipoise.control.rollout import Outcome, RolloutPool
from equipoise.control.scene import CONTROL_STEP
from equipoise.control.simulator import LIMIT, Simulator

SEED = 7
EPISODES = [
    (CONDITIONS["clean"], SEED),
    (CONDITIONS["clean"], SEED + 1),  # whose hole is elsewhere: it fails
    (CONDITIONS["delay"], SEED),
    (CONDITIONS["camera_black"], SEED),
    (Condition("force dies", dead="force", since=3), SEED),
    (Condition("lost", lost="camera", since=6, decision="committee"), SEED),
    (CONDITIONS["unseen"], SEED + 2),
]


def towards_one_hole() -> Scripted:
    """A policy that goes where the hole of one episode is, and pushes; what it sees and feels moves it a little."""
    simulator = Simulator("rays")
    simulator.reset(SEED)
    hole = torch.from_numpy(simulator.hole).float()

    def go(seen: Mapping[str, Tensor]) -> Tensor:
        way = hole - seen["proprioception"][:, :2]
        light = seen["camera"].double().mean(dim=(1, 2, 3)).float() / 255  # of bytes: exact, in whatever order
        push = seen["force"][:, 2, -1]
        down = torch.where((way * way).sum(dim=1).sqrt() < 0.0003, -0.07 - 0.01 * light, 1e-4 * push)
        return torch.cat([(5 * way).clamp(-0.06, 0.06), down[:, None]], dim=1)

    return Scripted(go, committee=lambda seen: 0.9 * go(seen), radius=0.125)


def by_hand(policy: Scripted, condition: Condition, seed: int) -> Outcome:
    """One episode, step by step."""
    simulator, controller = Simulator("rays"), Controller(policy.as_policy(), 1)
    controller.begin(0, condition)
    read = [simulator.reset(seed, condition.holes)]
    while not simulator.done:
        seen = dict(read[max(0, len(read) - 1 - condition.delay)])
        if condition.dead is not None and len(read) > condition.since:
            seen[condition.dead] = np.zeros_like(seen[condition.dead])
        action = controller.act({name: torch.from_numpy(values[None].copy()) for name, values in seen.items()})[0]
        read.append(simulator.step(action))
    offset = float(np.float32(np.linalg.norm(simulator.peg[:2] - simulator.hole)))
    facts = (len(read) - 1, (len(read) - 1) * CONTROL_STEP, float(np.float32(simulator.peak_force)), 1e3 * offset)
    return Outcome(condition.name, seed, simulator.success, *facts, 125.0)


@pytest.fixture(scope="module")
def expected() -> list[Outcome]:
    outcomes = [by_hand(towards_one_hole(), *episode) for episode in EPISODES]
    assert [one.success for one in outcomes].count(True) >= 3
    assert outcomes[1].steps == LIMIT
    assert len({(one.steps, one.peak_force) for one in outcomes}) >= 6  # so conditions make a difference
    return outcomes


@pytest.fixture(scope="module")
def pool() -> Iterator[RolloutPool]:
    with RolloutPool(1, "rays", per_bank=1) as made:
        yield made


@pytest.mark.slow
@pytest.mark.parametrize(("workers", "per_bank"), [(2, 3), (1, 2)])
def test_outcomes_are_those_of_a_loop_whatever_the_workers(
    expected: list[Outcome], workers: int, per_bank: int
) -> None:
    seen: list[tuple[int, int]] = []
    with RolloutPool(workers, "rays", per_bank) as some:
        found = some.run(towards_one_hole().as_policy(), EPISODES, lambda *now: seen.append(now))
        assert found == expected
        assert some.run(towards_one_hole().as_policy(), EPISODES[:2]) == expected[:2]  # and once more
    done = [count for count, _ in seen]
    assert done == sorted(set(done))
    assert seen[-1] == (len(EPISODES), len(EPISODES))


@pytest.mark.slow
def test_outcomes_come_in_the_order_of_the_episodes(pool: RolloutPool, expected: list[Outcome]) -> None:
    backwards = [EPISODES[place] for place in (4, 1, 0)]
    assert pool.run(towards_one_hole().as_policy(), backwards) == [expected[place] for place in (4, 1, 0)]
    assert pool.run(towards_one_hole().as_policy(), []) == []


@pytest.mark.slow
def test_a_policy_sees_the_same_bits_in_another_process_and_twice(pool: RolloutPool) -> None:
    records = []
    for _ in range(2):
        policy = towards_one_hole()
        pool.run(policy.as_policy(), [(CONDITIONS["camera_black"], SEED)])
        records.append(policy.seen)
    policy = towards_one_hole()
    by_hand(policy, CONDITIONS["camera_black"], SEED)
    for record in records:
        steps = len(policy.seen)
        assert [digest(seen) for seen in record[:steps]] == [digest(seen) for seen in policy.seen]


def digest(seen: Mapping[str, Tensor]) -> str:
    return hashlib.sha256(b"".join(seen[name].numpy().tobytes() for name in sorted(seen))).hexdigest()


@pytest.mark.slow
def test_what_heads_say_is_given_step_by_step(pool: RolloutPool) -> None:
    policy, said = towards_one_hole(), dict[int, list[Tensor]]()

    def keep(numbers: list[int], heads: Tensor) -> None:
        assert len(numbers) == len(heads)
        for number, row in zip(numbers, heads, strict=True):
            said.setdefault(number, []).append(row)

    outcomes = pool.run(policy.as_policy(), EPISODES[:2], on_heads=keep)
    for number, outcome in enumerate(outcomes):
        alone = towards_one_hole()
        by_hand(alone, *EPISODES[number])
        assert len(said[number]) == outcome.steps
        expected = torch.cat([alone.heads(seen) for seen in alone.seen])
        assert torch.equal(torch.stack(said[number]), expected)


@pytest.mark.slow
def test_a_worker_that_dies_or_fails_says_so() -> None:
    with RolloutPool(1, "rays", per_bank=1) as some:
        policy, (process, _) = towards_one_hole(), some._workers[0]
        go, steps = policy.fused, iter(range(LIMIT))

        def kill(seen: Mapping[str, Tensor]) -> Tensor:
            if next(steps) == 3:
                os.kill(process.pid, signal.SIGKILL)
            return go(seen)

        policy.fused = kill
        with pytest.raises(RuntimeError, match=r"a worker of the rollouts ended \(.*SIGKILL"):
            some.run(policy.as_policy(), EPISODES[:1])
    with (
        RolloutPool(1, "rays", per_bank=1) as some,
        pytest.raises(RuntimeError, match=r"(?s)a worker of the rollouts failed:.*non-negative"),
    ):
        some.run(towards_one_hole().as_policy(), [(CONDITIONS["clean"], -1)])
    with pytest.raises(RuntimeError, match="expected one of auto, gl, rays, found 'oil'"):
        RolloutPool(1, "oil", per_bank=1)  # ty: ignore[invalid-argument-type]
