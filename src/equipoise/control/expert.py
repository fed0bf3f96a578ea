"""Scripted expert that knows the true state and shows what each sensor is for.

It aims beside the hole by an error drawn for the episode, as somebody does who only sees the hole; it feels the rim,
slides into the hole, and pushes hard only where the hole is jammed.
"""

from __future__ import annotations

from typing import final

import numpy as np

from equipoise.control import scene
from equipoise.control.simulator import MAX_SPEED, Simulator

APPROACH, DESCEND, SEARCH, INSERT = range(4)

AIM_ERROR = 0.003  # m, the largest distance between where the expert aims and the hole
HOVER = 0.012  # m, the height at which it travels before it descends
TRAVEL_SPEED, DESCENT_SPEED, SLIDE_SPEED, INSERT_SPEED = 0.06, 0.035, 0.008, 0.03  # m/s
PRESS_SPEED, JAM_SPEED = 0.018, 0.08  # m/s, commanded downwards against the plate and against a jam
GAIN = 5.0  # 1/s, speed by distance near a target
ACCELERATION = 0.3  # m/s²
ALIGNED, LOST = 0.0015, 0.006  # m from the aim: where it descends, and where it goes up again
REACTION = 2  # control steps for which it has to feel a block before it pushes hard
NOISE, NOISE_MEMORY = 0.008, 0.75  # m/s, and the correlation of the noise from a step to the next
NOISE_SHARE = (1.0, 0.6, 0.25, 0.25)  # of the noise, by phase


@final
class Expert:
    """Acts in one episode of a simulator that has been reset.

    Args:
        simulator: Its true state is read at each step.
        seed: Decides the error of the aim and the noise.
    """

    def __init__(self, simulator: Simulator, seed: int) -> None:
        self._simulator = simulator
        self._generator = np.random.default_rng([seed, 2])  # the simulator draws from [seed, 0] and [seed, 1]
        angle, distance = self._generator.uniform(0, 2 * np.pi), AIM_ERROR * self._generator.random() ** 0.5
        self._aim = simulator.hole + distance * np.array([np.cos(angle), np.sin(angle)])
        self._phase = APPROACH
        self._blocked = 0
        self._last = np.zeros(3)
        self._noise = np.zeros(3)

    def act(self) -> tuple[np.ndarray, np.ndarray, int]:
        """Return the action for the current state, the one to execute, which has noise, and the phase."""
        self._phase = self._next_phase()
        wanted = self._velocity()
        change = ACCELERATION * scene.CONTROL_STEP
        clean = self._last + np.clip(wanted - self._last, -change, change)
        self._last = clean
        fresh = self._generator.normal(0, NOISE * (1 - NOISE_MEMORY**2) ** 0.5, 3)
        self._noise = NOISE_MEMORY * self._noise + fresh
        executed = np.clip(clean + NOISE_SHARE[self._phase] * self._noise, -MAX_SPEED, MAX_SPEED)
        return clean.astype(np.float32), executed.astype(np.float32), self._phase

    def _next_phase(self) -> int:
        peg, hole = self._simulator.peg, self._simulator.hole
        over_hole = np.abs(peg[:2] - hole).max() < self._simulator.clearance
        touching = peg[2] < 0.0003
        if self._simulator.depth > 0.0005 or (over_hole and touching):
            return INSERT
        if touching:
            return SEARCH
        away = float(np.linalg.norm(peg[:2] - self._aim))
        if self._phase == APPROACH:
            return DESCEND if away < ALIGNED else APPROACH
        if self._phase == DESCEND:
            return APPROACH if away > LOST else DESCEND
        return self._phase  # noise has lifted the peg off the plate

    def _velocity(self) -> np.ndarray:
        """Return the velocity towards the target of the phase, before it is smoothed."""
        peg, hole = self._simulator.peg, self._simulator.hole
        if self._phase == APPROACH:
            return np.append(_towards(self._aim - peg[:2], TRAVEL_SPEED), np.clip(GAIN * (HOVER - peg[2]), -0.04, 0.04))
        if self._phase == DESCEND:
            down = -min(DESCENT_SPEED, 0.015 + 2 * max(0.0, peg[2]))
            return np.append(_towards(self._aim - peg[:2], TRAVEL_SPEED), down)
        if self._phase == SEARCH:
            return np.append(_towards(hole - peg[:2], SLIDE_SPEED, least=SLIDE_SPEED), -PRESS_SPEED)
        self._blocked += self._simulator.stuck and self._simulator.depth > scene.JAM_DEPTH - 0.0002
        hard = self._simulator.stuck and self._blocked > REACTION
        return np.append(_towards(hole - peg[:2], SLIDE_SPEED), -(JAM_SPEED if hard else INSERT_SPEED))


def _towards(way: np.ndarray, most: float, least: float = 0.0) -> np.ndarray:
    """Return a velocity along a way, slower near its end."""
    distance = float(np.linalg.norm(way))
    return way / max(distance, 1e-9) * min(most, max(least, GAIN * distance))
