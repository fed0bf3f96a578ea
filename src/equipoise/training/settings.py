"""Every setting of a run, by name, checked together; and published settings as presets."""

from __future__ import annotations

import dataclasses
import difflib
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import NoneType
from typing import Any, Literal, TypeAlias, final, get_args, get_origin, get_type_hints

from equipoise.util.errors import BadInput, demand, look_up
from equipoise.util.named import is_path

Precision = Literal["auto", "fp32", "bf16", "fp16"]
Switch: TypeAlias = "bool | Literal['auto']"
Fusion = Literal["concat", "sum", "gated", "film"]
MetricName = Literal["auto", "accuracy", "balanced_accuracy", "macro_f1", "auroc", "auprc", "mae", "rmse", "r2"]
_WEIGHTS = "none, balanced, or a number above zero for each class, such as 1,2,5"


@final
@dataclass(frozen=True)
class Settings:
    """Settings of a run: how a model is built and trained. The command line takes every field as ``name=value``.

    Args:
        epochs: Passes over the training part.
        batch: Samples per step of the optimiser.
        lr: Learning rate.
        optimizer: "sgd", "adam" or "adamw".
        step: The learning rate as "given" by lr, or "safe": 1/L̂ of the paper's Proposition 1, estimated on a batch
            before training. For plain SGD under joint training, EW and MIMO.
        momentum: Of SGD.
        weight_decay: Of every optimiser.
        layer_decay: Learning rate of a layer of an encoder, divided by that of the next layer towards the heads; 1: all
            equal. For encoders that were trained before. Below 1, biases and norms are not subject to weight decay.
        schedule: "constant", "cosine" (to zero), or "step" (a tenth after 70 % of the epochs).
        precision: "fp32", "bf16", "fp16", or "auto": bf16 on a GPU that has it, fp32 elsewhere.
        accumulate: Micro-batches that a batch is cut into. Each is balanced by its own losses; in a loop of your own,
            `Window` balances whole batches.
        compile: Compile the encoders; "auto" where a GPU runs long enough to make up for it, and measures faster.
        capture: Capture a step once in a CUDA graph and replay it; "auto" on a GPU, where the model allows it.
        clip: Largest norm of the whole gradient; None for none.
        task: "classes", "regression", "labels" (any number of them for each sample), or "auto": by the label.
        loss: Of a regression: "huber", "mse" or "mae", between standardised numbers; "auto": huber. Classes and labels
            have cross-entropy, and "auto" only.
        metric: The number by which models are judged: in tables, in `select`, `patience` and tuning. "accuracy",
            "balanced_accuracy", "macro_f1", "auroc" or "auprc" of classes and labels; "mae", "rmse" or "r2" of a
            regression; "auto": accuracy of classes, mae of a regression, macro_f1 of labels.
        class_weight: Weights of the classes in the training loss: "none"; "balanced", so that every class weighs alike;
            or a number for each in their order, "1,2,5". Of labels, weights of their positives.
        select: Keep the "last" epoch, or the "best" one by the metric on the validation part.
        patience: Stop after this many epochs without a better metric on the validation part; None for never.
        encoder: "auto" chooses by the shape of each modality; a name ("resnet18") or a dotted path
            ("my.module.Encoder") serves all; "audio:lenet,image:cnn2d" names some of them.
        model: "auto" builds late fusion from encoders; a dotted path ("my_file.Model") names a model of one's own, with
            its own encoders and fusion.
        features: Size of each encoder's output, where the encoder does not fix it.
        fusion: "concat", "sum", "gated" or "film".
        dropout: Modality dropout, the probability with which a sample's modality is zeroed in the fused path.
        device: "auto", "cpu", "cuda" or "cuda:1".
        feed: Keep the data on the device ("resident"), read batches ahead from where it lies ("streamed"), or whichever
            fits ("auto").
        parallel: How several processes share a model: "ddp", a copy in each; or "fsdp", a shard in each.
        deterministic: Ask for the same bits again on a GPU too, at some cost: fp32, and neither captured nor compiled
            unless asked for.
    """

    epochs: int = 30
    batch: int = 64
    lr: float = 0.01
    step: Literal["given", "safe"] = "given"
    optimizer: Literal["sgd", "adam", "adamw"] = "sgd"
    momentum: float = 0.9
    weight_decay: float = 1e-4
    layer_decay: float = 1.0
    schedule: Literal["constant", "cosine", "step"] = "constant"
    precision: Precision = "auto"
    accumulate: int = 1
    compile: Switch = "auto"
    capture: Switch = "auto"
    clip: float | None = None
    task: Literal["auto", "classes", "regression", "labels"] = "auto"
    loss: Literal["auto", "huber", "mse", "mae"] = "auto"
    metric: MetricName = "auto"
    class_weight: str = "none"
    select: Literal["last", "best"] = "last"
    patience: int | None = None
    encoder: str = "auto"
    model: str = "auto"
    features: int = 64
    fusion: Fusion = "concat"
    dropout: float = 0.0
    device: str = "auto"
    feed: Literal["auto", "resident", "streamed"] = "auto"
    parallel: Literal["ddp", "fsdp"] = "ddp"
    deterministic: bool = False

    def __post_init__(self) -> None:
        demand(
            "settings",
            *((holds, f"{name} should be {rule}", getattr(self, name)) for name, rule, holds in self._rules()),
        )

    def _rules(self) -> Iterable[tuple[str, str, bool]]:
        for name, least in (("epochs", 0), ("batch", 1), ("accumulate", 1), ("features", 1)):
            yield name, f"a whole number of at least {least}", getattr(self, name) >= least
        yield "lr", "above zero and finite", 0 < self.lr < math.inf
        yield "momentum", "at least 0 and below 1", 0 <= self.momentum < 1
        yield "weight_decay", "zero or more, and finite", 0 <= self.weight_decay < math.inf
        yield "layer_decay", "above zero and at most 1", 0 < self.layer_decay <= 1
        yield "dropout", "at least 0 and below 1", 0 <= self.dropout < 1
        yield "clip", "above zero, or none", self.clip is None or self.clip > 0
        yield "patience", "at least one epoch, or none", self.patience is None or self.patience >= 1
        yield "model", "auto, or a dotted path such as my_file.Model", self.model == "auto" or is_path(self.model)
        for name, plain in (("encoder", "auto"), ("dropout", 0), ("step", "given")):
            own = f"{plain} with a model of one's own ({self.model})"
            yield name, own, self.model == "auto" or getattr(self, name) == plain
        yield "device", "auto, cpu, cuda or cuda:1", re.fullmatch(r"auto|cpu|cuda(:\d+)?", self.device) is not None
        yield "class_weight", _WEIGHTS, self.class_weight in ("none", "balanced") or bool(self.class_weights())
        kinds = get_type_hints(type(self))
        switches = dict.fromkeys(("compile", "capture"), Literal[True, False, "auto"])
        named = ("optimizer", "schedule", "step", "precision", "select", "fusion", "feed", "parallel", *switches)
        for name in (*named, "task", "loss", "metric"):
            choices = get_args(switches.get(name, kinds[name]))
            yield name, f"one of {', '.join(map(str, choices))}", getattr(self, name) in choices

    def class_weights(self) -> tuple[float, ...]:
        """Return the numbers of class_weight; none where it is a word, or anything else."""
        try:
            numbers = tuple(float(one) for one in self.class_weight.split(","))
        except ValueError:
            return ()
        return numbers if all(0 < one < math.inf for one in numbers) else ()

    def changed(self, words: Mapping[str, Any]) -> Settings:
        """Return the same settings with some replaced."""
        return dataclasses.replace(self, **words)

    def as_dict(self) -> dict[str, Any]:
        """Return plain values, for a row of results."""
        return dataclasses.asdict(self)


def names() -> tuple[str, ...]:
    """Return the names of all settings."""
    return tuple(field.name for field in dataclasses.fields(Settings))


def parse(name: str, text: str) -> Any:
    """Read the value of a setting from the text of ``name=value``; a BadInput says what was expected."""
    return convert(name, text, get_type_hints(Settings)[name])


def convert(name: str, text: str, kind: Any) -> Any:
    """Read a word as a value of some type.

    Args:
        name: Whose value it is, for the message.
        text: What was typed.
        kind: int, float, bool, str, a Literal, or one of these or None.
    """
    members = (kind,) if get_origin(kind) is Literal else get_args(kind) or (kind,)
    words = [word for member in members if get_origin(member) is Literal for word in get_args(member)]
    plain = next((one for one in members if one is not NoneType and get_origin(one) is not Literal), None)
    if text in words or (plain is None and not words):
        return text
    if NoneType in members and text.lower() in {"none", "null"}:
        return None
    near = difflib.get_close_matches(text, words, n=1)
    expected = {
        None: f"one of {', '.join(words)}" + (f" (did you mean {near[0]}?)" if near else ""),
        bool: ", ".join(["true or false", *words]),
        int: "a whole number",
        float: "a number",
    }
    try:
        return {None: {}.__getitem__, bool: _read_switch, int: int, float: float}.get(plain, str)(text)
    except (KeyError, ValueError):
        raise BadInput(f"{name} should be {expected[plain]}, found {text!r}") from None


def _read_switch(text: str) -> bool:
    return {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}[text.lower()]


MethodParams = dict[str, dict[str, Any]]


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
    params: MethodParams = field(default_factory=dict)
    source: str = ""


_PAPER = Settings(epochs=100, batch=64, lr=1e-3, momentum=0.9, weight_decay=1e-4, schedule="step", fusion="sum")
_COMMON = (
    "Optimiser, learning rate, epochs, λ and μ: the MIMO paper. Momentum, weight decay, a tenth of the rate after 70 "
    "of 100 epochs, and the sum of linear heads: the AGM code it builds on. Batch 64: the AGM and OGM-GE codes; the "
    "paper does not say. "
)
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
     "LeNets of 6 base channels, batch 40, learning rate 0.1, 30 epochs, constant: MultiBench, for joint training; λ "
     "and μ are those of the MIMO paper."),
    ("mosei", "mosei", 100.0, 0.001, {"encoder": "text:words,audio:attention", "lr": 1e-4, "features": 1024},
     "Learning rate 1e-4: the MIMO paper. Six layers of attention, 512 wide, pooled to 1024: AGM; but there sound "
     "attends to text, and here nothing is shared before the fusion. Words are learnt from their numbers; with "
     "vectors=… prepared, type encoder=text:lstm-attention,audio:attention."),
    ("ave", "ave", 100.0, 0.01, {}, _RESNETS + " For clips."),
    ("ave-segments", "ave", 100.0, 0.01, {"encoder": "video:pooled-map", "features": 128},
     "Small networks on the published features of every second: the paper's network lets the two attend to each other, "
     "and here nothing is shared before the fusion."),
)  # fmt: skip


def all_presets() -> dict[str, Preset]:
    """Return every preset by name. The name of a data set is that of its first preset."""
    presets = {}
    for name, data, penalty, smoothing, changes, note in _TABLE:
        settings = _PAPER.changed({"encoder": "resnet18", **changes})
        params: MethodParams = {"mimo": {"penalty": penalty, "smoothing": smoothing}}
        presets[name] = Preset(name, data, settings, params, _COMMON + note)
    presets["cremad"].params["ogmge"] = {"strength": 0.8}
    presets["vggsound"].params["ogmge"] = {"strength": 0.1}
    return presets


def preset_for(name: str, data: str) -> Preset | None:
    """Return the preset a user means: by name, "none", or "auto" for the one of the data set, if it has one."""
    known = all_presets()
    if name == "auto":
        return known.get(data)
    if name == "none":
        return None
    return look_up("preset", name, {**dict.fromkeys(("auto", "none")), **known})
