"""Encoders of a user's own: weights of any rank, constructors that draw numbers."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from ended import Ended
from equipoise import AGM, MIMO, Balancer
from equipoise.data import Splits
from equipoise.data.bundled import two_sensors
from equipoise.study.executors.local import CONTEXT, bytes_needed
from equipoise.study.registry import entries
from equipoise.training.settings import Settings
from equipoise.training.step import to_channels_last
from equipoise.training.train import train
from own_encoders import Drawing, Volumes


def videos() -> Splits:
    random = torch.Generator().manual_seed(0)
    inputs = {name: torch.randn(60, 2, 3, 6, 6, generator=random) for name in ("left", "right")}
    return Splits.from_arrays(inputs, torch.arange(60) % 3)


# -- channels last --


def test_weights_of_four_dimensions_have_channels_last_and_no_others_change() -> None:
    torch.manual_seed(0)
    model = nn.ModuleList([nn.Conv1d(3, 4, 3), nn.Conv2d(3, 4, 3), nn.Conv3d(3, 4, 3), nn.Linear(3, 4)])
    model.register_buffer("maps", torch.randn(2, 3, 4, 5))
    before = copy.deepcopy(model)
    mover = torch.optim.SGD(model.parameters(), lr=1.0)
    to_channels_last(model)
    for (name, one), other in zip(model.state_dict().items(), before.state_dict().values(), strict=True):
        assert torch.equal(one, other), name
        expected = other.contiguous(memory_format=torch.channels_last) if other.dim() == 4 else other
        assert one.stride() == expected.stride(), name
    held = mover.param_groups[0]["params"]
    assert all(one is other for one, other in zip(held, model.parameters(), strict=True)), "they are the same tensors"


def test_a_model_without_weights_of_five_dimensions_is_laid_out_as_torch_would() -> None:
    ours, theirs = (nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Linear(2, 2)) for _ in range(2))
    to_channels_last(ours)
    theirs.to(memory_format=torch.channels_last)  # ty: ignore[no-matching-overload]
    for one, other in zip(ours.state_dict().values(), theirs.state_dict().values(), strict=True):
        assert one.stride() == other.stride()


@pytest.mark.parametrize("method", [MIMO, AGM])
def test_volumes_train(method: Callable[[], Balancer]) -> None:
    found = train(videos(), method(), Settings(epochs=2, batch=20, features=4, encoder="own_encoders.Volumes"))
    assert isinstance(found.model.encoders["left"], Volumes)
    assert len(found.curves) == 2


# -- numbers that are drawn --


def test_memory_for_an_encoder_that_draws_is_counted_and_no_random_state_changes() -> None:
    """By hand: the weights of two encoders, two heads and the fused one, five times; what is kept is more."""
    data = two_sensors(samples=60)
    (entry,) = entries(["mimo"], ["encoder=own_encoders.Drawing", "features=4", "batch=10"])
    before = torch.get_rng_state()
    found = bytes_needed(entry, data)
    assert torch.equal(torch.get_rng_state(), before)
    shapes = [shape[0] for shape in data.shapes.values()]
    classes = len(data.classes)
    weights = sum(4 * size + 4 for size in shapes) + 2 * (4 * classes + classes) + (8 * classes + classes) + 3
    held = sum(part.bytes for part in data.parts.values())
    inputs = 10 * sum(shapes) * 4
    kept = found - CONTEXT - held - 5 * 4 * weights - 2 * inputs
    assert kept >= 2 * inputs, "the inputs of the linear layers are kept for the backward pass"
    assert kept < 2**16, "and it is not guessed"


def test_an_encoder_that_cannot_be_made_at_all_is_told() -> None:
    (entry,) = entries(["mimo"], ["encoder=own_encoders.Nowhere"])
    with pytest.raises(ValueError, match=r"encoder of 'easy', 'own_encoders\.Nowhere', for inputs of shape"):
        bytes_needed(entry, two_sensors(samples=60))


class CannotRun(nn.Module):
    """Stumbles, in its own way, over inputs without content."""

    features = 4

    def __init__(self) -> None:
        super().__init__()
        self.weights = nn.Linear(8, 4)

    def forward(self, inputs: Tensor) -> Tensor:
        return {"cpu": self.weights}[inputs.device.type](inputs)


def test_memory_is_guessed_where_an_encoder_needs_content() -> None:
    (entry,) = entries(["mimo"], ["encoder=easy:training.test_own_encoders.CannotRun"])
    assert bytes_needed(entry, two_sensors(samples=60)) > CONTEXT


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["Volumes", "Drawing"])
def test_the_command_trains_them(kind: str, tmp_path: Path, equipoise: Callable[..., Ended]) -> None:
    splits: Any = videos() if kind == "Volumes" else two_sensors(samples=60)
    arrays = {name: torch.cat([part.inputs[name] for part in splits.parts.values()]) for name in splits.modalities}
    label = torch.cat([part.label for part in splits.parts.values()])
    file = tmp_path / "own.npz"
    np.savez(file, label=label.numpy(), **{name: array.numpy() for name, array in arrays.items()})
    told = equipoise(
        "train", "--data", file, "--out", tmp_path / "out", "--json", f"encoder=own_encoders.{kind}", "epochs=1"
    )
    assert told.code == 0, told.err
    checked = equipoise("check", "--data", file, f"encoder=own_encoders.{kind}")
    assert checked.code == 0, checked.err
    assert f"own_encoders.{kind}" in checked.out


def test_the_numbers_drawn_follow_from_the_seed() -> None:
    settings = Settings(epochs=1, batch=20, features=4, encoder="own_encoders.Drawing")
    one, same, other = (train(two_sensors(samples=60), MIMO(), settings, seed=seed).model for seed in (1, 1, 2))
    drawn = [[(each.scale, each.shifts) for each in model.encoders.values()] for model in (one, same, other)]
    assert all(isinstance(each, Drawing) for each in one.encoders.values())
    assert drawn[0] == drawn[1] != drawn[2]
