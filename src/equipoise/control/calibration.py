"""Calibration of a policy's monitor: on healthy episodes of the policy itself.

Demonstrations will not do. The expert's velocity has noise, and a policy moves more evenly, so its heads stand stiller
than they ever do in a demonstration, which a monitor that was calibrated there takes for a dead sensor. And a force
sensor in free air says the same for long, without being dead.
"""

import torch
from torch import Tensor

from equipoise.control.conditions import CONDITIONS
from equipoise.control.policy import Policy
from equipoise.control.rollout import RolloutPool
from equipoise.deploy.monitor import WARM_UP, SensorMonitor

EPISODES = 40
SEEDS = 2 * 10**9
"""The first seed of these episodes: no demonstration and no rollout of a study has it."""
MAY_REST = ("force",)
STRETCH = 10
"""Control steps of a stretch: half a second."""


def with_monitor(policy: Policy, pool: RolloutPool, episodes: int = EPISODES) -> Policy:
    """Return a policy with a monitor that was calibrated on clean episodes of its own.

    Args:
        policy: Has several sensors.
        pool: Simulates.
        episodes: How many; those too short to be a stream are left out.
    """
    said: dict[int, list[Tensor]] = {}

    def keep(numbers: list[int], heads: Tensor) -> None:
        for number, row in zip(numbers, heads.float().cpu(), strict=True):
            said.setdefault(number, []).append(row)

    pool.run(policy, [(CONDITIONS["clean"], SEEDS + number) for number in range(episodes)], on_heads=keep)
    streams = [torch.stack(rows) for rows in said.values() if len(rows) >= STRETCH + WARM_UP]
    if not streams:
        return policy
    heads = dict(zip(policy.sensors, torch.cat(streams).unbind(dim=1), strict=True))
    group = torch.repeat_interleave(torch.arange(len(streams)), torch.tensor([len(stream) for stream in streams]))
    rest = [name for name in policy.sensors if name in MAY_REST]
    return policy.watched_by(SensorMonitor.fit(heads, group, stretch=STRETCH, kind="regression", may_rest=rest))
