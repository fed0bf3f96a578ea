"""Every preset fits its data: its encoders read the shapes of what its data set prepares."""

import re

import pytest
import torch

from equipoise.data.prepare.original import Original
from equipoise.data.sets import PUBLISHED
from equipoise.models import LateFusion
from equipoise.models.choose import build_encoders
from equipoise.study.registry import entries
from equipoise.training.presets import Preset, all_presets

PAPER = {  # λ and μ of the paper's appendix
    "cremad": (100, 0.01),
    "urfunny": (10, 1.0),
    "kinetics-sounds": (10, 0.01),
    "vggsound": (10, 0.01),
    "avmnist": (10, 0.1),
    "mosei": (100, 0.001),
    "ave": (100, 0.01),
}
OPTIONS = {"ave-segments": {"task": "segments"}}


def original(preset: Preset) -> Original:
    return PUBLISHED[preset.data](**OPTIONS.get(preset.name, {}))


def shapes(of: Original) -> dict[str, tuple[int, ...]]:
    return {name: field.view.shape(field.shape) if field.view else field.shape for name, field in of.fields.items()}


@pytest.mark.parametrize(
    "preset", [one for one in all_presets().values() if one.data in PUBLISHED], ids=lambda preset: preset.name
)
def test_its_encoders_read_what_its_data_set_prepares(preset: Preset) -> None:
    with torch.device("meta"):
        inputs = shapes(original(preset))
        encoders = build_encoders(preset.settings.encoder, inputs, preset.settings.features)
        model = LateFusion(encoders, 5, fusion=preset.settings.fusion)
        batch = {name: torch.zeros(3, *shape) for name, shape in inputs.items()}
        assert model(batch)["fused"].shape == (3, 5)
    assert preset.source


def test_every_data_set_has_a_preset_of_its_name_and_the_paper_its_numbers() -> None:
    presets = all_presets()
    assert set(PUBLISHED) == set(PAPER) <= set(presets)
    for name, (penalty, smoothing) in PAPER.items():
        assert presets[name].params["mimo"] == {"penalty": penalty, "smoothing": smoothing}
        assert (presets[name].settings.epochs, presets[name].settings.optimizer) == (100, "sgd")
        assert presets[name].settings.lr == (1e-4 if name == "mosei" else 1e-3)


def test_a_preset_is_the_base_and_words_go_over_it() -> None:
    preset = all_presets()["cremad"]
    mimo, ogmge, msl = entries(["mimo", "ogmge", "msl"], ["epochs=3", "mimo.penalty=7"], preset)
    assert (mimo.params["penalty"], mimo.params["smoothing"]) == (7.0, 0.01)
    assert ogmge.params["strength"] == 0.8
    assert {each.settings.encoder for each in (mimo, ogmge, msl)} == {"resnet18"}
    assert {(each.settings.epochs, each.settings.lr) for each in (mimo, ogmge, msl)} == {(3, 1e-3)}


@pytest.mark.parametrize("preset", all_presets().values(), ids=lambda preset: preset.name)
def test_what_its_text_says_is_what_it_has(preset: Preset) -> None:
    settings, text = preset.settings, preset.source
    numbers = {
        r"[Bb]atch (\d+)": settings.batch,
        r"[Ll]earning rate (\d[\d.e-]*\d)": settings.lr,
        r"(\d+) epochs": settings.epochs,
        r"[Mm]omentum (\d\.\d+)": settings.momentum,
        r"weight decay (\d[\d.e-]*\d)": settings.weight_decay,
    }
    for words, value in numbers.items():
        told = {float(found) for found in re.findall(words, text)}
        assert not told or told == {float(value)}, words
    words = {
        "sum of linear heads": settings.fusion == "sum",
        "concatenated": settings.fusion == "concat",
        "a tenth of the rate after": settings.schedule == "step",
        "constant": settings.schedule == "constant",
        "SGD": settings.optimizer == "sgd",
        "ResNet-18 for both": settings.encoder == "resnet18",
        "LeNets": settings.encoder == "lenet",
        "learning rate, epochs, λ and μ: the MIMO paper": settings.epochs == 100,
    }
    assert [said for said, true in words.items() if said in text and not true] == []
