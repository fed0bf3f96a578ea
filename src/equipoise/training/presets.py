"""Settings by name: published ones, the recipe that needs no tuning, and those of the smartwatch."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, final

from equipoise.training.recipe import RECIPE
from equipoise.training.settings import Settings
from equipoise.util.errors import look_up

MethodParams = dict[str, dict[str, Any]]


@final
@dataclass(frozen=True)
class Preset:
    """Settings under a name.

    Args:
        name: What users type.
        data: The data set it is for; "" for any.
        settings: How models are built and trained.
        params: Per method the parameters that differ from its defaults.
        source: Where the numbers come from, and which of them nobody published.
    """

    name: str
    data: str
    settings: Settings
    params: MethodParams = field(default_factory=dict)
    source: str = ""


_PLAIN: dict[str, Any] = {  # named one by one: what was published does not move where a default does
    "step": "given", "optimizer": "sgd", "momentum": 0.9, "weight_decay": 1e-4, "layer_decay": 1.0, "average": 0.0,
    "accumulate": 1, "clip": None, "loss": "auto", "metric": "auto", "class_weight": "none", "label_smoothing": 0.0,
    "augment": "none", "select": "last", "patience": None, "features": 64, "dropout": 0.0,
}  # fmt: skip
_PAPER = Settings(epochs=100, batch=64, lr=1e-3, schedule="step", encoder="resnet18", fusion="sum", **_PLAIN)
_WATCH = Settings(epochs=30, batch=64, lr=0.01, schedule="constant", encoder="cnn1d", fusion="concat", **_PLAIN)
_COMMON = (
    "Optimiser, learning rate, epochs, λ and μ: the MIMO paper. Momentum, weight decay, a tenth of the rate after 70 "
    "of 100 epochs, and the sum of linear heads: the AGM code it builds on. Batch 64: the AGM and OGM-GE codes; the "
    "paper does not say. "
)
_RECIPE_SOURCE = (
    "Chosen on validation parts and on folds by group inside training parts of several sensor sets, to need no tuning. "
    "epochs=auto: 1,200 steps for 500 samples and fewer, 1,500 for 1,000, 3,800 for 10,000, never more than 20,000."
)
_WATCH_SOURCE = "The plain settings and small 1-D CNNs, with which the smartwatch protocol was measured first."
_RESNETS = "ResNet-18 for both sensors, from scratch: OGM-GE and AGM."
_LENETS = {"encoder": "lenet", "epochs": 30, "batch": 40, "lr": 0.1, "schedule": "constant", "fusion": "concat"}
# Name, data set, λ, μ, settings that differ from those of the paper, and where they come from.
_TABLE: tuple[tuple[str, str, float, float, dict[str, Any], str], ...] = (
    ("cremad", "cremad", 100.0, 0.01, {}, _RESNETS + " OGM-GE's strength 0.8: its authors."),
    ("urfunny", "urfunny", 10.0, 1.0, {"encoder": "first-step", "features": 768},
     "Transformers of 8 layers and 4 heads, 768 wide, their first step read out: AGM."),
    ("kinetics-sounds", "kinetics-sounds", 10.0, 0.01, {}, _RESNETS),
    ("vggsound", "vggsound", 10.0, 0.01, {}, _RESNETS + " OGM-GE's strength 0.1: its authors."),
    ("avmnist", "avmnist", 10.0, 0.1, {}, "ResNet-18 for both, also for 28×28 images: AGM."),
    ("avmnist-lenet", "avmnist", 10.0, 0.1, _LENETS,
     "LeNets of 6 base channels, features concatenated, SGD, learning rate 0.1, weight decay 1e-4, 30 epochs at a "
     "constant rate, batch 40: MultiBench, for joint training. λ and μ: the MIMO paper, with another network. Momentum "
     "0.9: nobody says it for this network; it is that of the other presets."),
    ("mosei", "mosei", 100.0, 0.001, {"encoder": "text:words,audio:attention", "lr": 1e-4, "features": 1024},
     "Learning rate 1e-4: the MIMO paper. Six layers of attention, 512 wide, pooled to 1024: AGM; but there sound "
     "attends to text, and here nothing is shared before the fusion. Words are learnt from their numbers; with "
     "vectors=… prepared, type encoder=text:lstm-attention,audio:attention."),
    ("ave", "ave", 100.0, 0.01, {}, _RESNETS + " For clips."),
    ("ave-segments", "ave", 100.0, 0.01, {"encoder": "video:pooled-map,audio:mlp", "features": 128},
     "Small networks on the published features of every second: the paper's network lets the two attend to each other, "
     "and here nothing is shared before the fusion."),
)  # fmt: skip


def all_presets() -> dict[str, Preset]:
    """Return every preset by name. The name of a published data set is that of its first preset."""
    presets = {
        "recipe": Preset("recipe", "", RECIPE, source=_RECIPE_SOURCE),
        "smartwatch": Preset("smartwatch", "watch", _WATCH, source=_WATCH_SOURCE),
    }
    for name, data, penalty, smoothing, changes, note in _TABLE:
        settings = _PAPER.changed(changes)
        params: MethodParams = {"mimo": {"penalty": penalty, "smoothing": smoothing}}
        presets[name] = Preset(name, data, settings, params, note if changes is _LENETS else _COMMON + note)
    presets["cremad"].params["ogmge"] = {"strength": 0.8}
    presets["vggsound"].params["ogmge"] = {"strength": 0.1}
    return presets


def preset_for(name: str, data: str) -> Preset | None:
    """Return the preset a user means.

    Args:
        name: Of a preset; "none" for none, that is, plain `Settings()`; or "auto" for the published one of the data
            set, and the recipe where there is none.
        data: The name of the data set.
    """
    known = all_presets()
    if name == "auto":
        return own if (own := known.get(data)) is not None and own.data == data else known["recipe"]
    if name == "none":
        return None
    return look_up("preset", name, {**dict.fromkeys(("auto", "none")), **known})
