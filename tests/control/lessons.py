"""Small things to learn from: made-up demonstrations, and policies whose weights were never trained."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from equipoise import EW
from equipoise.control.cloning import SENSORS, SETTINGS, cloning_splits, settings_for
from equipoise.control.demonstrations import Demonstrations
from equipoise.control.policy import Policy
from equipoise.data.splits import Splits
from equipoise.models.committee import fit_committee
from equipoise.training.settings import Settings
from equipoise.training.step import build_model

HORIZON = 3


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
    lessons: Demonstrations, *, sensors: Sequence[str] = SENSORS, balancer: Any = None, seed: int = 0, **settings: Any
) -> tuple[Policy, Splits]:
    """A policy as training builds it, with weights as drawn, a committee that was fitted, and what it would learn."""
    scores = {"proprioception": torch.full([len(lessons.action)], 0.5)}  # which GAP asks for
    chosen, splits = small_settings(sensors, **settings), cloning_splits(lessons, sensors, HORIZON, scores=scores)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = build_model(splits, balancer or EW(), chosen)
    validation = splits.validation
    inputs = {name: validation.views[name](x, None, None) if name in validation.views else x
              for name, x in validation.inputs.items()}  # fmt: skip
    fit_committee(model, (inputs, validation.label), groups=validation.group)
    return Policy.of(model, chosen, splits), splits


def first_rows(lessons: Demonstrations, rows: slice | Sequence[int]) -> dict[str, torch.Tensor]:
    """Some observations as a simulator gives them."""
    return {name: torch.from_numpy(np.array(getattr(lessons, name)[rows])) for name in SENSORS}
