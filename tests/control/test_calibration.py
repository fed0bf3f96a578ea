"""A monitor is calibrated on clean episodes of its own policy, each of which is a stream."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import pytest
import torch
from torch import Tensor

from control.made_data import Scripted, always, made_up_demonstrations, untrained
from equipoise.control.calibration import SEEDS, STRETCH, with_monitor
from equipoise.control.cloning import SENSORS
from equipoise.control.conditions import Condition
from equipoise.control.policy import Policy
from equipoise.control.rollout import RolloutPool
from equipoise.deploy.monitor import WARM_UP, SensorMonitor


class Played:
    """Stands in for a pool: the heads of episodes with given lengths, two episodes moving at a time.

    Args:
        streams: What the heads say in each episode, [T, 3, D].
    """

    def __init__(self, streams: list[Tensor]) -> None:
        self.streams = streams
        self.asked: list[tuple[str, int]] = []

    def run(
        self, _: Policy, episodes: list[tuple[Condition, int]], on_heads: Callable[[list[int], Tensor], None]
    ) -> None:
        self.asked = [(condition.name, seed) for condition, seed in episodes]
        for first in range(0, len(episodes), 2):
            pair = [number for number in (first, first + 1) if number < len(episodes)]
            for step in range(max(len(self.streams[number]) for number in pair)):
                going = [number for number in pair if step < len(self.streams[number])]
                on_heads(going, torch.stack([self.streams[number][step] for number in going]))


def streams(lengths: list[int], seed: int = 0) -> list[Tensor]:
    random = torch.Generator().manual_seed(seed)
    return [
        torch.randn(length, 1, 6, generator=random) + torch.randn(length, 3, 6, generator=random) for length in lengths
    ]


def calibrated(played: Played, policy: Policy) -> Policy:
    return with_monitor(policy, cast("RolloutPool", played), episodes=len(played.streams))


def test_episodes_are_streams_and_short_ones_are_left_out() -> None:
    policy, _ = untrained(made_up_demonstrations([6] * 4))
    least = STRETCH + WARM_UP
    said = streams([30, least - 1, 25, least, 40])
    played = Played(said)
    monitor = calibrated(played, policy).monitor
    assert played.asked == [("clean", SEEDS + number) for number in range(5)]
    kept = [said[number] for number in (0, 2, 3, 4)]
    group = torch.repeat_interleave(torch.arange(4), torch.tensor([30, 25, least, 40]))
    heads = dict(zip(SENSORS, torch.cat(kept).unbind(dim=1), strict=True))
    expected = SensorMonitor.fit(heads, group, stretch=STRETCH, kind="regression", may_rest=["force"])
    assert monitor is not None
    assert monitor.modalities == SENSORS
    assert torch.equal(monitor.heights, expected.heights)
    assert all(map(torch.equal, monitor.limits, expected.limits))
    assert policy.monitor is None


def test_without_an_episode_that_is_long_enough_there_is_no_monitor() -> None:
    policy, _ = untrained(made_up_demonstrations([6] * 4))
    assert calibrated(Played(streams([3, 5])), policy) is policy


@pytest.mark.slow
def test_episodes_of_a_pool_are_read() -> None:
    random = torch.Generator().manual_seed(0)
    policy: Any = Scripted(always(0, 0, 0), heads=lambda seen: torch.randn(len(seen["camera"]), 3, 3, generator=random))
    watched: list[SensorMonitor] = []
    policy.watched_by = watched.append
    with RolloutPool(1, "rays", per_bank=1) as pool:
        with_monitor(policy, pool, episodes=2)
    assert watched[0].facts["streams"] == 2
    assert watched[0].facts["windows"] == 240  # it never moves, and so both episodes end by the clock
