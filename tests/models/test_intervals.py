"""Conformal radii: the rank by hand, coverage over many draws, and the row of every subset."""

import math

import pytest
import torch

from equipoise.models.intervals import conformal_radius, new_radii, rows_of, subset_masks, widened_by_missing


def test_the_radius_is_the_kth_smallest_error() -> None:
    errors = torch.arange(1.0, 20.0)[:, None]  # 19 samples: k = ⌈20 · 0.9⌉ = 18
    assert conformal_radius(errors).item() == 18
    assert conformal_radius(errors[:9]).item() == 9  # k = ⌈10 · 0.9⌉ = 9
    assert math.isinf(conformal_radius(errors[:8]).item())  # k = ⌈9 · 0.9⌉ = 9 of 8


def test_new_samples_are_covered_as_often_as_promised() -> None:
    random = torch.Generator().manual_seed(0)
    covered = []
    for _ in range(400):
        errors = torch.randn(60, 1, generator=random).abs()
        covered.append((errors[50:] <= conformal_radius(errors[:50])).double().mean().item())
    assert sum(covered) / len(covered) == pytest.approx(46 / 51, abs=0.02)  # k / (n + 1)


@pytest.mark.parametrize("sensors", [1, 2, 3, 8, 9, 12])
def test_every_subset_has_its_row(sensors: int) -> None:
    masks = subset_masks(sensors)
    assert new_radii(sensors, 2).shape == (2, len(masks), 2)
    assert rows_of(masks).tolist() == list(range(len(masks)))
    if sensors > 8:  # more sensors than one missing share the last row
        some = torch.ones(1, sensors, dtype=torch.bool)
        some[0, [1, 4]] = False
        assert rows_of(some).item() == sensors + 1


def test_fewer_sensors_never_narrow_an_interval() -> None:
    masks = subset_masks(2)  # none, first, second, both
    radii = torch.tensor([[1.0], [5.0], [2.0], [3.0]])
    assert widened_by_missing(radii, masks).flatten().tolist() == [5.0, 5.0, 3.0, 3.0]
