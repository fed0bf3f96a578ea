"""Published settings by name: what to train with on each benchmark, and where the numbers come from."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, final

from equipoise.training.settings import Settings
from equipoise.util.errors import look_up

Parameters = dict[str, dict[str, Any]]


@final
@dataclass(frozen=True)
class Preset:
    """The settings of a benchmark.

    Args:
        name: What users type.
        data: The data set it is for.
        settings: How models are built and trained.
        params: Per method the parameters that differ from its defaults.
        source: Where the numbers come from, and which of them nobody published.
    """

    name: str
    data: str
    settings: Settings
    params: Parameters = field(default_factory=dict)
    source: str = ""


_PAPER = Settings(epochs=100, batch=64, lr=1e-3, momentum=0.9, weight_decay=1e-4, schedule="step", fusion="sum")
_COMMON = (
    "Optimiser, learning rate, epochs, λ and μ: the MIMO paper. Momentum, weight decay, a tenth of the rate after 70 "
    "of 100 epochs, and the sum of linear heads: the AGM code it builds on. Batch 64: the AGM and OGM-GE codes; the "
    "paper does not say."
)


def _preset(
    name: str, penalty: float, smoothing: float, note: str, encoder: str, data: str = "", **changes: Any
) -> Preset:
    params: Parameters = {"mimo": {"penalty": penalty, "smoothing": smoothing}}
    settings = _PAPER.changed({"encoder": encoder, **changes})
    return Preset(name, data or name, settings, params, f"{_COMMON} {note}")


_RESNETS = "ResNet-18 for both sensors, from scratch: OGM-GE and AGM."


def all_presets() -> dict[str, Preset]:
    """Every preset by name. The name of a data set is that of its first preset."""
    found = [
        _preset("cremad", 100.0, 0.01, _RESNETS + " OGM-GE's strength 0.8: its authors.", "resnet18"),
        _preset(
            "urfunny",
            10.0,
            1.0,
            "Transformers of 8 layers and 4 heads, 768 wide, their first step read out: AGM.",
            "first-step",
            features=768,
        ),
        _preset("kinetics-sounds", 10.0, 0.01, _RESNETS, "resnet18"),
        _preset("vggsound", 10.0, 0.01, _RESNETS + " OGM-GE's strength 0.1: its authors.", "resnet18"),
        _preset("avmnist", 10.0, 0.1, "ResNet-18 for both, also for 28×28 images: AGM.", "resnet18"),
        _preset(
            "avmnist-lenet",
            10.0,
            0.1,
            "LeNets of 6 base channels, batch 40, learning rate 0.1, 30 epochs, constant: MultiBench, for joint "
            "training; λ and μ are those of the MIMO paper.",
            "lenet",
            data="avmnist",
            epochs=30,
            batch=40,
            lr=0.1,
            schedule="constant",
            fusion="concat",
        ),
        _preset(
            "mosei",
            100.0,
            0.001,
            "Learning rate 1e-4: the MIMO paper. Six layers of attention, 512 wide, pooled to 1024: AGM; but there "
            "sound attends to text, and here nothing is shared before the fusion. Words are learnt from their numbers; "
            "with vectors=… prepared, type encoder=text:lstm-attention,audio:attention.",
            "text:words,audio:attention",
            lr=1e-4,
            features=1024,
        ),
        _preset("ave", 100.0, 0.01, _RESNETS + " For clips.", "resnet18"),
        _preset(
            "ave-segments",
            100.0,
            0.01,
            "Small networks on the published features of every second: the paper's network lets the two attend to each "
            "other, and here nothing is shared before the fusion.",
            "video:pooled-map",
            data="ave",
            features=128,
        ),
    ]
    presets = {preset.name: preset for preset in found}
    presets["cremad"].params["ogmge"] = {"strength": 0.8}
    presets["vggsound"].params["ogmge"] = {"strength": 0.1}
    return presets


def preset_for(name: str, data: str) -> Preset | None:
    """The preset a user means: by name, "none", or "auto" for the one of the data set, if it has one."""
    known = all_presets()
    if name == "auto":
        return known.get(data)
    if name == "none":
        return None
    return look_up("preset", name, {**dict.fromkeys(("auto", "none")), **known})
