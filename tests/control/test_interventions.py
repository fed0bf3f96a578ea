"""Swaps and probes against slow loops, and where the answer is known: ignored sensors, features that hold the hole."""

from __future__ import annotations

from typing import final

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from control.made_data import first_rows, made_up_demonstrations, untrained
from equipoise import LateFusion
from equipoise.control.cloning import SENSORS, cloning_splits
from equipoise.control.interventions import PHASES, donor_rows, measure_interventions, probe_error, swap_effects
from equipoise.data.splits import Splits

LENGTHS = [9, 14, 6, 11, 12, 8, 10, 13, 7, 12, 11, 9, 8, 10, 14, 12, 9, 11, 10, 13]

# -- donors --


def test_donors_are_of_another_episode_at_the_same_step() -> None:
    random = np.random.default_rng(0)
    for seed in range(5):
        lengths = random.integers(1, 9, size=5)
        episode = np.repeat(np.arange(5), lengths)
        step = np.concatenate([np.arange(length) for length in lengths])
        donors = donor_rows(episode, step, seed)
        for row, donor in enumerate(donors):
            others = {place for place in np.flatnonzero(step == step[row]) if episode[place] != episode[row]}
            assert donor in others if others else donor == -1
        np.testing.assert_array_equal(donors, donor_rows(episode, step, seed))


def test_every_other_episode_gives_as_often() -> None:
    episode, step = np.arange(5), np.zeros(5)
    drawn = np.array([donor_rows(episode, step, seed) for seed in range(2000)])
    for row in range(5):
        counts = np.bincount(drawn[:, row], minlength=5)
        assert counts[row] == 0
        np.testing.assert_allclose(np.delete(counts, row), 500, atol=90)  # 4.6 deviations of 19.4


# -- swaps --


def test_effects_are_those_of_a_loop() -> None:
    demonstrations = made_up_demonstrations(LENGTHS)
    policy, splits = untrained(demonstrations)
    part = splits.validation
    assert part.index is not None
    assert part.group is not None
    rows = part.index.numpy()
    phase, step = demonstrations.phase[rows], demonstrations.step[rows]
    effects = swap_effects(policy.model, part, phase, step, seed=3)
    donors = donor_rows(part.group.numpy(), step, seed=3)
    deviation = splits.train.label[:, :3].std(dim=0).numpy()
    label = demonstrations.action[rows]

    def action(row: int, sensor: str = "", donor: int = 0) -> np.ndarray:
        seen = first_rows(demonstrations, [rows[row]])
        if sensor:
            seen[sensor] = first_rows(demonstrations, [rows[donor]])[sensor]
        return policy.predict(seen).fused[0, :3].numpy()

    for sensor in SENSORS:
        for number, called in enumerate(PHASES):
            chosen = [row for row in range(len(rows)) if phase[row] == number and donors[row] >= 0]
            plain = np.array([action(row) for row in chosen])
            swapped = np.array([action(row, sensor, donors[row]) for row in chosen])
            found = effects[sensor][called]
            assert found["samples"] == len(chosen) > 0
            for key, difference in (
                ("change", swapped - plain),
                ("error", swapped - label[chosen]),
                ("plain", plain - label[chosen]),
            ):
                assert found[key] == pytest.approx(np.sqrt(np.mean((difference / deviation) ** 2)), rel=1e-3), key
    assert min(effects["camera"][called]["change"] for called in PHASES) > 1e-4


@pytest.mark.parametrize("ignored", ["camera", "force"])
def test_a_sensor_that_is_ignored_has_no_effect(ignored: str) -> None:
    demonstrations = made_up_demonstrations(LENGTHS)
    policy, splits = untrained(demonstrations)
    last = [layer for layer in policy.model.encoders[ignored].layers if isinstance(layer, nn.Linear)][-1]
    with torch.no_grad():
        last.weight.zero_()
    swap = measure_interventions(policy.model, splits, demonstrations)["swap"]
    for sensor in SENSORS:
        assert set(swap[sensor]) == set(PHASES)
        for numbers in swap[sensor].values():
            assert (numbers["change"] == 0) == (sensor == ignored)
            assert (numbers["error"] == numbers["plain"]) == (sensor == ignored)


def test_what_cannot_be_swapped_is_left_out() -> None:
    """Of two episodes, only one comes to the last phase, at steps that the other does not have."""
    demonstrations = made_up_demonstrations([8] * 17 + [12] + [8] * 2)
    policy, splits = untrained(demonstrations)
    part = splits.validation
    assert part.index is not None
    rows = part.index.numpy()
    phase = np.where(demonstrations.step[rows] >= 8, 3, 0)
    effects = swap_effects(policy.model, part, phase, demonstrations.step[rows])
    assert demonstrations.step[rows].max() == 11
    assert {name: list(own) for name, own in effects.items()} == {name: ["approach"] for name in SENSORS}


# -- the probe --


@final
class PassedThrough(nn.Module):
    """An encoder whose features are the numbers themselves."""

    def __init__(self, features: int) -> None:
        super().__init__()
        self.features = features

    def forward(self, vectors: Tensor) -> Tensor:
        return vectors.flatten(1)


def with_hole(lengths: list[int], columns: np.ndarray) -> tuple[LateFusion, Splits, np.ndarray]:
    """A model whose features of proprioception mix noise with so much of the hole, [2, 9]."""
    noise = made_up_demonstrations(lengths, seed=len(lengths))
    mixed = (noise.proprioception + 1e3 * noise.hole @ columns).astype(np.float32)
    if columns.any():
        mixed[:, :2] = 1e3 * noise.hole + 5  # nothing but the hole
    splits = cloning_splits(made_up_demonstrations(lengths, proprioception=mixed), ("proprioception",))
    model = LateFusion({"proprioception": PassedThrough(9)}, task=splits.task, unimodal="head")
    return model, splits, noise.hole


@pytest.mark.parametrize("lengths", [[2] * 10, LENGTHS, LENGTHS * 10])  # the first has few samples
def test_features_that_hold_the_hole_linearly_leave_no_error(lengths: list[int]) -> None:
    columns = np.random.default_rng(0).normal(size=(2, 9))
    error = probe_error(*with_hole(lengths, columns), sensor="proprioception")
    assert error is not None
    assert error < 0.05


def test_features_of_noise_leave_the_spread_of_holes() -> None:
    """Holes are even over ±30 mm on both axes: 30 · √(2 / 3) = 24.5 mm from the middle."""
    error = probe_error(*with_hole(LENGTHS * 10, np.zeros((2, 9))), sensor="proprioception")
    assert error == pytest.approx(24.5, rel=0.2)


def test_the_probe_asks_for_the_hole_on_the_plate_and_from_the_peg() -> None:
    demonstrations = made_up_demonstrations(LENGTHS)
    policy, splits = untrained(demonstrations)
    found = measure_interventions(policy.model, splits, demonstrations)
    peg = demonstrations.proprioception[:, :2]
    assert found["probe_mm"] == probe_error(policy.model, splits, demonstrations.hole - peg)
    assert found["probe_absolute_mm"] == probe_error(policy.model, splits, demonstrations.hole)
    assert found["probe_mm"] > 10 * found["probe_absolute_mm"]  # pegs are metres away, in what was made up


def test_without_a_camera_there_is_no_probe() -> None:
    demonstrations = made_up_demonstrations(LENGTHS)
    policy, splits = untrained(demonstrations, sensors=("force",))
    found = measure_interventions(policy.model, splits, demonstrations)
    assert found["probe_mm"] is None
    assert found["probe_absolute_mm"] is None
    assert list(found["swap"]) == ["force"]
