"""AV-MNIST from its ingredients to what encoders read."""

from pathlib import Path

import pytest
import torch

from data.sets.made_avmnist import TEST, TRAIN, VALIDATION, make_ingredients
from equipoise.data.prepare.prepare import prepare
from equipoise.data.sets.avmnist import AVMNIST
from equipoise.data.source import data_set
from equipoise.models.encoders import LeNet
from equipoise.study.compare import compare
from equipoise.study.registry import entries
from equipoise.training.presets import all_presets


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


@pytest.mark.slow
@pytest.mark.parametrize("preset", ["avmnist", "avmnist-lenet"])
def test_prepared_and_trained(tmp_path: Path, preset: str) -> None:
    """From the ingredients to a row of results, by the command itself, with both published pairs of encoders."""
    source = make_ingredients(tmp_path / "source")
    prepare(AVMNIST(validation_images=VALIDATION, energy=0.9), source, tmp_path / "prepared", workers=2)
    chosen = all_presets()[preset]
    data = data_set(str(tmp_path / "prepared"))
    quick = preset == "avmnist"  # ResNets take their time here
    lines = entries(["mimo"] if quick else ["mimo", "msl"], [f"epochs={1 if quick else 2}", "batch=8"], chosen)
    rows = compare(lines, data, [0], tmp_path / "study", quick=quick, quiet=True)
    assert [row["params"].get("penalty") for row in rows] == [10.0, None][: len(lines)]
    for row in rows:
        assert (row["data"], row["protocol"], row["run"]["encoder"]) == ("avmnist", "speakers", chosen.settings.encoder)
        assert 0 <= row["test"]["fused"] <= 1
        assert quick or set(row["test"]["probe"]) == {"image", "sound"}
        assert quick or row["test"]["faults"]["mean"]["committee"] is not None
