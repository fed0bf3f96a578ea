"""Peg-in-hole task as a simulator: velocities in, observations of three sensors out.

The commanded velocity moves a set-point, which the peg follows like a spring. The set-point stays within a distance of
the peg that grows with the commanded speed, so a push against something has a bounded force that the command sets.
"""

from __future__ import annotations

from typing import Any, Literal, final, get_args

import numpy as np

from equipoise.control import scene
from equipoise.control.camera import Renderer, load_model, load_mujoco, open_camera
from equipoise.util.errors import BadInput

Holes = Literal["seen", "unseen"]
Observation = dict[str, np.ndarray]
LIMIT = 120  # control steps of an episode: 6 s
MAX_SPEED = 0.08  # m/s, of a commanded velocity on each axis
SLACK, REACH = 0.0003, 0.06  # m and s: the set-point is at most SLACK + REACH × speed from the peg
START, START_HEIGHT = 0.02, (0.03, 0.04)  # m, the largest |x| and |y| of the peg at the start, and its heights
_JAM, _PEG = 0, slice(1, 4)  # joints, in the order of the model


@final
class Simulator:
    """One episode at a time; all that is drawn follows from its seed.

    Args:
        renderer: How pictures are drawn.

    Attributes:
        renderer: "gl" or "rays".
        hole: Position of the hole [2], in m.
        clearance: Between the centred peg and each wall of the hole, in m.
        jammed: Whether a block stands in the hole, which gives way only to a hard push that lasts.
        steps: Control steps since the start.
        peak_force: Largest force at the wrist so far, in N.
    """

    def __init__(self, renderer: Renderer = "auto") -> None:
        self._mujoco, self._model = load_mujoco(), load_model()
        self._data: Any = self._mujoco.MjData(self._model)
        self._camera = open_camera(renderer)
        self.renderer: str = self._camera.name
        self.hole, self.clearance, self.jammed = np.zeros(2), scene.CLEARANCES[0], False
        self.steps, self.peak_force = 0, 0.0
        self._pushed = 0  # control steps of a push that is hard enough for a block
        self._set_point = np.zeros(3)
        self._wrench = np.zeros((scene.FORCE_SAMPLES, 6))
        self.reset(0)

    def reset(self, seed: int, holes: Holes = "seen") -> Observation:
        """Begin an episode.

        Args:
            seed: Decides everything that is drawn.
            holes: "seen": |x| and |y| of the hole are at most 3 cm; "unseen": the larger of them is 3 to 4 cm.
        """
        if holes not in get_args(Holes):
            raise BadInput(f"holes: expected one of {', '.join(get_args(Holes))}, found {holes!r}")
        generator = np.random.default_rng([seed, get_args(Holes).index(holes)])
        self.hole = _draw_hole(generator, holes)
        start = np.append(generator.uniform(-START, START, 2), generator.uniform(*START_HEIGHT))
        clearance, jammed = generator.uniform(*scene.CLEARANCES), bool(generator.random() < 0.5)
        return self.place(start, self.hole, float(clearance), jammed=jammed)

    def place(self, peg: np.ndarray, hole: np.ndarray, clearance: float, *, jammed: bool) -> Observation:
        """Begin an episode at rest in a given state.

        Args:
            peg: Position of the tip [3], in m.
            hole: Position of the hole [2], in m.
            clearance: On each side, in m.
            jammed: Whether the hole is jammed.
        """
        data = self._data
        self._mujoco.mj_resetData(self._model, data)
        self.hole, self.clearance, self.jammed = np.array(hole, float), clearance, jammed
        half = scene.PEG + clearance
        for number, (corner, direction) in enumerate(np.array(scene.BLADES)):
            data.mocap_pos[number, :2] = self.hole + half * corner + scene.PLATE_WIDTH / 2 * direction
            data.mocap_pos[number, 2] = -scene.PLATE_DEPTH / 2
        data.mocap_pos[len(scene.BLADES), :2] = self.hole
        data.qpos[_JAM] = 0.0 if jammed else -scene.AWAY
        data.eq_active[0] = jammed
        data.qpos[_PEG] = peg
        data.ctrl[:] = self._set_point = np.array(peg, float)
        self._mujoco.mj_forward(self._model, data)
        self._wrench[:] = 0.0
        self.steps, self.peak_force, self._pushed = 0, 0.0, 0
        return self.observe()

    def step(self, action: np.ndarray) -> Observation:
        """Command a velocity [3], in m/s, for one control step; each component is clipped to ±`MAX_SPEED`."""
        self.advance(action)
        return self.observe()

    def advance(self, action: np.ndarray) -> None:
        """Do what `step` does without observing: pictures cost more than physics, and the expert needs none."""
        velocity = np.clip(np.asarray(action, float), -MAX_SPEED, MAX_SPEED)
        if velocity.shape != (3,) or not np.isfinite(velocity).all():
            raise BadInput(f"action: expected three finite numbers, found {action!r}")
        data, interval = self._data, scene.CONTROL_STEP / scene.FORCE_SAMPLES
        reach = SLACK + REACH * np.abs(velocity)
        for sample in range(scene.FORCE_SAMPLES):
            position = data.qpos[_PEG]
            self._set_point = np.clip(self._set_point + velocity * interval, position - reach, position + reach)
            data.ctrl[:] = self._set_point
            self._mujoco.mj_step(self._model, data, scene.SAMPLE_STEPS)
            self._wrench[sample] = data.sensordata
        self.peak_force = max(self.peak_force, float(np.linalg.norm(self._wrench[:, :3], axis=1).max()))
        push = -float(self._wrench[:, 2].mean())  # over the whole step: a knock alone does not loosen a block
        self._pushed += self.stuck and self.depth > 0 and push > scene.JAM_FORCE
        if self._pushed >= scene.JAM_STEPS:
            data.eq_active[0] = False
        self.steps += 1

    def observe(self) -> Observation:
        """Return what the sensors read now.

        Returns:
            "proprioception" [9]: position (m), velocity (m/s) and set-point − position (m); "camera" uint8 [3, 64, 64];
            "force" [6, 10]: force (N) and torque (N·m) of the gantry on the peg at the wrist in the last 50 ms.
        """
        position, velocity = self._data.qpos[_PEG], self._data.qvel[_PEG]
        return {
            "proprioception": np.concatenate([position, velocity, self.tracking_error]).astype(np.float32),
            "camera": np.ascontiguousarray(self._camera.draw(self._data).transpose(2, 0, 1)),
            "force": self._wrench.T.astype(np.float32),
        }

    def picture(self, width: int = 480, height: int = 480) -> np.ndarray:
        """Return a picture for films as uint8 [height, width, 3]; at most 640 pixels each way."""
        return open_camera(self._camera.name, width, height).draw(self._data)

    @property
    def peg(self) -> np.ndarray:
        """Position of the peg's tip [3] in m; z = 0 is the surface of the plate."""
        return self._data.qpos[_PEG].copy()

    @property
    def tracking_error(self) -> np.ndarray:
        """Set-point − position [3], in m."""
        return self._set_point - self._data.qpos[_PEG]

    @property
    def force(self) -> np.ndarray:
        """Newest force at the wrist [3], in N."""
        return self._wrench[-1, :3].copy()

    @property
    def stuck(self) -> bool:
        """Tell whether the block of a jammed hole has not given way yet."""
        return bool(self._data.eq_active[0])

    @property
    def depth(self) -> float:
        """Depth of the tip below the surface, in the hole, in m; 0 above it."""
        x, y, z = self.peg
        inside = max(abs(x - self.hole[0]), abs(y - self.hole[1])) < 2 * self.clearance
        return max(0.0, -float(z)) if inside else 0.0

    @property
    def success(self) -> bool:
        """Tell whether the peg is in."""
        return self.depth >= scene.SUCCESS_DEPTH

    @property
    def done(self) -> bool:
        """Tell whether the episode is over."""
        return self.success or self.steps >= LIMIT


def _draw_hole(generator: np.random.Generator, holes: Holes) -> np.ndarray:
    """Draw evenly from the square of seen holes, or from the ring around it."""
    if holes == "seen":
        return generator.uniform(-scene.SEEN, scene.SEEN, 2)
    while True:
        hole = generator.uniform(-scene.UNSEEN, scene.UNSEEN, 2)
        if np.abs(hole).max() > scene.SEEN:
            return hole
