"""AV-MNIST from its ingredients to what encoders read."""

from pathlib import Path

import pytest
import torch

from data.ingredients import TEST, TRAIN, VALIDATION, make_ingredients
from equipoise.data.avmnist import AVMNIST
from equipoise.models.lenet import LeNet
from equipoise.prepare import prepare


@pytest.mark.slow
def test_any_number_of_workers_prepares_the_same_bytes(tmp_path: Path) -> None:
    source = make_ingredients(tmp_path / "source")
    original = AVMNIST(snr=5.0, validation_images=VALIDATION, energy=0.9)
    made = [prepare(original, source, tmp_path / f"by {workers}", workers=workers) for workers in (1, 2, 5)]
    assert made[0].fingerprints == made[1].fingerprints == made[2].fingerprints
    splits = made[0].splits()
    assert (splits.protocol, splits.shapes) == ("speakers", {"image": (1, 28, 28), "sound": (1, 112, 112)})
    assert [len(part) for part in splits.parts.values()] == [TRAIN, VALIDATION, TEST]
    splits.check()
    clips = original.open(source)
    part = splits.test.take(torch.arange(4)).ready()
    for row in range(4):
        stored = clips.read(TRAIN + VALIDATION + row)
        torch.testing.assert_close(part.inputs["image"][row], torch.from_numpy(stored["image"]).float())
        torch.testing.assert_close(part.inputs["sound"][row], torch.from_numpy(stored["sound"]).float() / 255)
    assert LeNet(1, 4)(part.inputs["image"]).shape == (4, 48)
    assert LeNet(1, 6)(part.inputs["sound"]).shape == (4, 192)
