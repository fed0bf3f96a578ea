"""Imbalance measured where it matters: which sensor a policy follows in which phase, and what its camera knows.

- Swap: the observations of one sensor are taken from another episode at the same step, in one phase only. How far the
  predicted action moves tells how much the policy follows that sensor there.
- Probe: a ridge regression from the features of the camera to the position of the hole, on the table and relative to
  the peg. Only the camera knows it, so the error tells what its encoder has learned. An action follows from where the
  hole is relative to the peg; a policy that has proprioception, too, can do with its place on the table.
"""

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from equipoise.control.cloning import AXES
from equipoise.data.part import Part
from equipoise.data.splits import Splits
from equipoise.measure.outputs import decisions, read_features, reading
from equipoise.models import ridge
from equipoise.models.fusion_model import FusionModel
from equipoise.models.task import Regression

PHASES = ("approach", "descend", "search", "insert")
STRENGTHS = (1e-6, 1e-4, 1e-2, 1.0)
"""Of the probe, per sample, for features of deviation one; chosen on validation."""


def donor_rows(episode: np.ndarray, step: np.ndarray, seed: int = 0) -> np.ndarray:
    """Return for each row one of another episode at the same step, drawn evenly; −1 where there is none.

    Args:
        episode: Of each row, [N].
        step: Of each row, [N].
        seed: Of the drawing.
    """
    random, donors = np.random.default_rng(seed), np.full(len(step), -1)
    for now in np.unique(step):
        rows = np.flatnonzero(step == now)
        for row in rows:
            others = rows[episode[rows] != episode[row]]
            if len(others):
                donors[row] = random.choice(others)
    return donors


def swap_effects(
    model: FusionModel, part: Part, phase: np.ndarray, step: np.ndarray, seed: int = 0, batch: int = 512
) -> dict[str, dict[str, dict[str, float]]]:
    """Swap one sensor in one phase, and return the effect on the first predicted action, by sensor and phase.

    Args:
        model: A regression of action chunks.
        part: Demonstrations, with the episode of each row as its group.
        phase: Of each row, [N].
        step: Of each row in its episode, [N].
        seed: Of the choice of the other episodes.
        batch: Samples that the encoders read at a time.

    Returns:
        Under the sensor and the phase: "change", the root mean square of the change of the action; "error", that of
        the difference between prediction and label after the swap; "plain", the same without it; all in units of the
        action's deviation. And "samples". A phase in which nothing can be swapped is left out.
    """
    task = model.known_task()
    assert isinstance(task, Regression)
    assert part.group is not None
    donors = donor_rows(part.group.cpu().numpy(), step, seed)
    chosen = torch.from_numpy(np.flatnonzero(donors >= 0))
    if not len(chosen):  # a single episode
        return {name: {} for name in model.encoders}
    whole, source = part.take(chosen), torch.from_numpy(donors)[chosen]
    deviation, label = task.deviation[: len(AXES)].double(), whole.label

    def first_action(some: Part) -> Tensor:
        return decisions(model, some, batch).fused[:, : len(AXES)]

    plain = first_action(whole)
    wanted = label[:, : len(AXES)].to(plain)
    effects: dict[str, dict[str, dict[str, float]]] = {}
    for name in model.encoders:
        swapped = first_action(replace(whole, inputs={**whole.inputs, name: part.take(source).inputs[name]}))
        effects[name] = {}
        for number, called in enumerate(PHASES):
            rows = torch.from_numpy(phase[chosen.numpy()] == number).to(plain.device)
            if rows.any():
                differences = {"change": swapped - plain, "error": swapped - wanted, "plain": plain - wanted}
                numbers = {key: _rms(value[rows] / deviation) for key, value in differences.items()}
                effects[name][called] = {**numbers, "samples": int(rows.sum())}
    return effects


def probe_error(
    model: FusionModel, splits: Splits, hole: np.ndarray, sensor: str = "camera", batch: int = 512
) -> float | None:
    """Fit a linear probe of the hole's position, and return its error on test episodes in mm.

    Args:
        model: A model with features of the sensor; None is returned for one without.
        splits: The data it was trained on; the probe is fitted on its training part, its strength on validation.
        hole: Position of the hole in each row of the demonstrations, [N, 2], in m.
        sensor: Whose features are read.
        batch: Samples that the encoders read at a time.

    Returns:
        The root mean square of the Euclidean error.
    """
    if sensor not in model.encoders:
        return None
    read: dict[str, tuple[Tensor, Tensor]] = {}
    with reading(model):
        for name, part in splits.parts.items():
            features = read_features(model, part, batch)[sensor].flatten(1).double().cpu()
            assert part.index is not None
            read[name] = features, torch.from_numpy(hole[part.index.numpy()]).double()
    features, target = read["train"]
    deviation, mean = torch.std_mean(features, dim=0)
    scaled = {name: ((one - mean) / deviation.clamp(min=1e-6), wanted) for name, (one, wanted) in read.items()}
    features = scaled["train"][0]
    # The Gram matrix is read only where samples are few.
    gram = features @ features.T if len(features) <= 2 * features.shape[1] else features.new_empty(0)
    errors: list[tuple[float, float]] = []
    for strength in STRENGTHS:
        weight, bias = ridge.solve(features, target, strength * len(features), gram)
        error = {name: _euclidean(one @ weight.T + bias - wanted) for name, (one, wanted) in scaled.items()}
        errors.append((error["validation"], error["test"]))
    return 1e3 * min(errors)[1]


def measure_interventions(model: FusionModel, splits: Splits, demonstrations: Any) -> dict[str, Any]:
    """Return the swaps on validation demonstrations and the error of the probe, for a row of results."""
    assert splits.validation.index is not None
    rows = splits.validation.index.numpy()
    phase, step, hole = demonstrations.phase[rows], demonstrations.step[rows], demonstrations.hole
    return {
        "swap": swap_effects(model, splits.validation, phase, step),
        "probe_mm": probe_error(model, splits, hole - demonstrations.proprioception[:, :2]),
        "probe_absolute_mm": probe_error(model, splits, hole),
    }


def _rms(values: Tensor) -> float:
    return values.square().mean().sqrt().item()


def _euclidean(errors: Tensor) -> float:
    return errors.square().sum(dim=1).mean().sqrt().item()
