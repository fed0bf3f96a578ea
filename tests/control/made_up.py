"""Made-up rows of a peg-in-hole study, with just the numbers that a test asks for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from equipoise.control.cloning import SENSORS
from equipoise.control.interventions import PHASES


def rolled(success: Sequence[bool | int], steps: int | Sequence[int] = 40, **columns: Sequence[Any]) -> dict[str, Any]:
    """The rollouts of one condition."""
    count = len(success)
    own = {
        "seed": list(range(count)),
        "success": [bool(one) for one in success],
        "steps": [steps] * count if isinstance(steps, int) else list(steps),
        "peak_force": [10.0] * count,
        "offset": [1.0] * count,
        "radius": [2.0] * count,
        "dropped": [None] * count,
        "dropped_at": [None] * count,
    }
    return {**own, **{name: list(values) for name, values in columns.items()}}


def rate(successes: int, episodes: int = 10) -> dict[str, Any]:
    """The rollouts of a condition with so many successes, the first ones."""
    return rolled([place < successes for place in range(episodes)])


def row(
    line: str,
    seed: int = 0,
    rollouts: Mapping[str, Any] | None = None,
    *,
    method: str | None = None,
    sensors: Sequence[str] = SENSORS,
    probe: float | None = None,
    fusion: str = "late",
    **others: Any,
) -> dict[str, Any]:
    """One trained policy."""
    change = {
        sensor: {phase: {"change": 0.1 + 0.1 * place, "error": 0.5, "plain": 0.4, "samples": 9} for phase in PHASES}
        for place, sensor in enumerate(sensors)
    }
    return {
        "schema": 1,
        "config": f"sha256:{line}-{seed}",
        "status": "done",
        "line": line,
        "method": method or line.split(",")[0],
        "params": {},
        "run": {"epochs": 30, "batch": 256, "lr": 0.001, "optimizer": "adamw", "fusion": fusion},
        "sensors": list(sensors),
        "seed": seed,
        "task": {"version": 3, "renderer": "rays", "mujoco": "3.3", "demonstrations": "sha256:0", "episodes": 500},
        "validation": {"fused": 0.006, **dict.fromkeys(sensors, 0.01)},
        "committee": [0.5, *[0.5 / len(sensors)] * len(sensors)],
        "interventions": {"swap": change, "probe_mm": probe, "probe_absolute_mm": None},
        "rollouts": {"clean": rate(5)} if rollouts is None else dict(rollouts),
        "seconds": {"training": 100.0, "rollouts": 30.0},
        "device": "cpu",
        "versions": {"torch": "2.13.0", "equipoise": "0"},
        **others,
    }
