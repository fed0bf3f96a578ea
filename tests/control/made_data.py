"""Small things to learn from: made-up demonstrations, and policies whose weights were never trained."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast, final

import numpy as np
import torch
from torch import Tensor

from equipoise import EW
from equipoise.control.cloning import SENSORS, SETTINGS, cloning_splits, settings_for
from equipoise.control.demonstrations import Demonstrations
from equipoise.control.policy import Policy, PredictedChunks
from equipoise.data.splits import Splits
from equipoise.deploy.monitor import SensorMonitor
from equipoise.models.committee import fit_committee
from equipoise.training.settings import Settings
from equipoise.training.step import build_model

HORIZON = 3
Chunks = Callable[[Mapping[str, Tensor]], Tensor]


def made_up_demonstrations(lengths: Sequence[int], seed: int = 0, **columns: np.ndarray) -> Demonstrations:
    """Noise of the right shapes and types: an episode of each length, whose phase rises from 0 to 3."""
    random, count = np.random.default_rng(seed), sum(lengths)
    step = np.concatenate([np.arange(length) for length in lengths])
    made: dict[str, Any] = {
        "proprioception": random.normal(3, 2, size=(count, 9)).astype(np.float32),
        "camera": random.integers(0, 256, size=(count, 3, 16, 16)).astype(np.uint8),
        "force": random.normal(-1, 4, size=(count, 6, 10)).astype(np.float32),
        "action": random.normal(size=(count, 3)).astype(np.float32),
        "phase": (4 * step // np.repeat(lengths, lengths)).astype(np.int8),
        "episode": np.repeat(np.arange(len(lengths)), lengths).astype(np.int32),
        "hole": np.repeat(random.uniform(-0.03, 0.03, size=(len(lengths), 2)), lengths, axis=0).astype(np.float32),
        "step": step.astype(np.int32),
    }
    return Demonstrations(**(made | columns), renderer="rays", seeds=dict.fromkeys(range(len(lengths)), 0))


def small_settings(sensors: Sequence[str] = SENSORS, **others: Any) -> Settings:
    """Settings of a study, but for what makes a model small."""
    chosen = {"features": 8, "epochs": 1, "batch": 64, "device": "cpu", **others}
    return settings_for(sensors, SETTINGS.changed(chosen))


def untrained(
    demonstrations: Demonstrations,
    *,
    sensors: Sequence[str] = SENSORS,
    balancer: Any = None,
    seed: int = 0,
    **settings: Any,
) -> tuple[Policy, Splits]:
    """A policy as training builds it, with weights as drawn, a committee that was fitted, and what it would learn."""
    chosen, splits = small_settings(sensors, **settings), cloning_splits(demonstrations, sensors, HORIZON)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = build_model(splits, balancer or EW(), chosen)
    validation = splits.validation
    inputs = {name: validation.views[name](x, None, None) if name in validation.views else x
              for name, x in validation.inputs.items()}  # fmt: skip
    fit_committee(model, (inputs, validation.label), groups=validation.group)
    return Policy.of(model, chosen, splits), splits


def first_rows(demonstrations: Demonstrations, rows: slice | Sequence[int]) -> dict[str, Tensor]:
    """Some observations as a simulator gives them."""
    return {name: torch.from_numpy(np.array(getattr(demonstrations, name)[rows])) for name in SENSORS}


@final
class Scripted:
    """Stands in for a policy: its chunks are what a function says of each row alone. It keeps what it was asked.

    Args:
        fused: The fused chunks [B, horizon · 3] for observations.
        committee: Those of the committee; by default the same.
        heads: Those of the sensors, [B, K, horizon · 3]; by default the same.
        monitor: Watches the heads.
        radius: Of the intervals, in m/s.
        horizon: Actions of a chunk.
        sensors: Those that it has.
    """

    device = torch.device("cpu")

    def __init__(
        self,
        fused: Chunks,
        *,
        committee: Chunks | None = None,
        heads: Chunks | None = None,
        monitor: SensorMonitor | None = None,
        radius: float = 0.0,
        horizon: int = 1,
        sensors: Sequence[str] = SENSORS,
    ) -> None:
        self.sensors = tuple(sensors)
        self.fused, self.monitor, self.radius, self.horizon = fused, monitor, radius, horizon
        self.committee = committee or fused
        self.heads = heads or (lambda seen: torch.stack([fused(seen)] * len(sensors), dim=1))
        self.seen: list[dict[str, Tensor]] = []
        self.missing: list[dict[str, list[int]]] = []

    def predict(
        self, observations: Mapping[str, Tensor], present: Mapping[str, Tensor] | None = None
    ) -> PredictedChunks:
        self.seen.append({name: values.clone() for name, values in observations.items()})
        rows = {name: (~mask).nonzero()[:, 0].tolist() for name, mask in (present or {}).items()}
        self.missing.append({name: own for name, own in rows.items() if own})
        fused = self.fused(observations)
        radius = torch.full_like(fused, self.radius)
        return PredictedChunks(fused, self.committee(observations), self.heads(observations), radius)

    def as_policy(self) -> Policy:
        """The same for a type checker."""
        return cast("Policy", self)


def always(*action: float) -> Chunks:
    """The same chunk for every row."""
    return lambda seen: torch.tensor(action, dtype=torch.float32).expand(len(seen["proprioception"]), -1)
