"""Controller of a batch of episodes: which sensors are at hand, who decides, and which action is executed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import final

import numpy as np
import torch
from torch import Tensor

from equipoise.control.cloning import AXES
from equipoise.control.conditions import Condition
from equipoise.control.policy import Ensembling, Policy
from equipoise.deploy.monitor import MonitorState

NEVER = 2**30
DECAY = 0.1
"""Of temporal ensembling, per control step; the same for all policies."""


@final
class Controller:
    """The state of S episodes, all of which take a step at the same time, each in its own condition.

    Args:
        policy: Decides.
        episodes: S.
        decay: Of temporal ensembling.

    Attributes:
        heads: What the heads said of the newest observations, [S, K, horizon · axes].
    """

    def __init__(self, policy: Policy, episodes: int, decay: float = DECAY) -> None:
        self._policy, device = policy, policy.device
        self.heads = torch.zeros(episodes, len(policy.sensors), policy.horizon * len(AXES))
        self._places = {name: place for place, name in enumerate(policy.sensors)}
        self._ensembling = Ensembling(episodes, policy.horizon, decay, device)
        self._steps = torch.zeros(episodes, dtype=torch.long)
        self._lost_since = torch.full((episodes, len(self._places)), NEVER)
        self._bad = torch.zeros(episodes, len(self._places), dtype=torch.bool)
        self._bad_since = torch.full((episodes,), NEVER)
        self._votes = torch.zeros(episodes, dtype=torch.bool)
        self._monitored = torch.zeros(episodes, dtype=torch.bool)
        self._radius = torch.zeros(episodes)
        self._fresh = torch.ones(episodes, dtype=torch.bool)
        self._state: MonitorState | None = None

    def begin(self, row: int, condition: Condition) -> None:
        """Begin an episode in a row."""
        self._steps[row], self._radius[row], self._bad_since[row] = 0, 0.0, NEVER
        self._bad[row] = False
        self._lost_since[row] = NEVER
        if condition.lost in self._places:
            self._lost_since[row, self._places[condition.lost]] = condition.since
        self._votes[row] = condition.decision == "committee"
        self._monitored[row] = condition.monitored and self._policy.monitor is not None
        self._fresh[row] = True

    def act(self, observations: Mapping[str, Tensor]) -> np.ndarray:
        """Return the actions of all rows, [S, axes], for their newest observations [S, …].

        Rows that have no episode get some action, too.
        """
        missing = (self._lost_since <= self._steps[:, None]) | self._bad
        masks = {name: ~missing[:, place] for name, place in self._places.items() if bool(missing[:, place].any())}
        prediction = self._policy.predict(observations, masks)
        self.heads = prediction.heads
        if bool(self._monitored.any()):
            self._watch(prediction.heads, ~missing)
        device = prediction.fused.device
        committee = (self._votes & missing.any(dim=1)).to(device)
        chunks = torch.where(committee[:, None], prediction.committee, prediction.fused)
        self._ensembling.reset(self._fresh.to(device))
        # A policy that has diverged is to fail, not to end the rollouts of the others.
        actions = self._ensembling(chunks.nan_to_num(0.0, 0.0, 0.0)).cpu()
        self._radius += 1e3 * prediction.radius[:, : len(AXES)].mean(dim=1).cpu()
        self._steps += 1
        self._fresh[:] = False
        return actions.numpy()

    def facts(self, row: int) -> tuple[float, str | None, int | None]:
        """Return the mean radius of an episode in mm/s, the sensor that was held for bad, and the step of that."""
        radius = float(self._radius[row]) / max(int(self._steps[row]), 1)
        if not bool(self._bad[row].any()):
            return radius, None, None
        name = self._policy.sensors[int(self._bad[row].long().argmax())]
        return radius, name, int(self._bad_since[row])

    def _watch(self, heads: Tensor, present: Tensor) -> None:
        """Let the monitor look at a step; the first sensor that it holds for bad is left out from the next step on."""
        monitor = self._policy.monitor
        assert monitor is not None
        said = monitor.comparable(heads.float().cpu())
        start = monitor.start(said)
        if self._state is None:
            self._state = start
        fresh = self._fresh
        state = MonitorState(
            torch.where(fresh[:, None, None], start.last, self._state.last),
            torch.where(fresh[:, None], start.seen, self._state.seen),
            torch.where(fresh[:, None, None], start.average, self._state.average),
        )
        self._state, output = monitor.step(state, said, present)
        alarm = self._monitored & (output.failed >= 0) & ~self._bad.any(dim=1)
        rows = alarm.nonzero()[:, 0]
        self._bad[rows, output.failed[rows]] = True
        self._bad_since[rows] = self._steps[rows]
