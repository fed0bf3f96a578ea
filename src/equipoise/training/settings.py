"""Every setting of a run, by name, checked together."""

from __future__ import annotations

import dataclasses
import difflib
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import NoneType
from typing import Any, Literal, TypeAlias, final, get_args, get_origin, get_type_hints

from equipoise.util.errors import BadInput, demand
from equipoise.util.named import is_path

Precision = Literal["auto", "fp32", "bf16", "fp16"]
Switch: TypeAlias = "bool | Literal['auto']"
Fusion = Literal["concat", "sum", "gated", "film", "hybrid", "early"]
MetricName = Literal[
    "auto", "accuracy", "balanced_accuracy", "macro_f1", "auroc", "auprc", "recall", "mae", "rmse", "r2"
]
MOST_EPOCHS, MOST_SAMPLES, MOST_FEATURES = 10**6, 2**31 - 1, 2**16
_WEIGHTS = "none, balanced, or a number above zero for each class, such as 1,2,5"


@final
@dataclass(frozen=True)
class Settings:
    """Settings of a run: how a model is built and trained. The command line takes every field as ``name=value``.

    Args:
        epochs: Passes over the training part; "auto": by its size, so that small data gets enough steps and large data
            not too many (`equipoise.training.recipe`). A number as soon as the data is known.
        batch: Samples per step of the optimiser.
        lr: Learning rate.
        optimizer: "sgd", "adam" or "adamw".
        step: The learning rate as "given" by lr, or "safe": 1/L̂ of the paper's Proposition 1, estimated on a batch
            before training. For plain SGD under joint training, EW and MIMO.
        momentum: Of SGD.
        weight_decay: Of every optimiser.
        layer_decay: Learning rate of a layer of an encoder, divided by that of the next layer towards the heads; 1: all
            equal. For encoders that were trained before. Below 1, biases and norms are not subject to weight decay.
        schedule: "constant", "cosine" (to zero), "step" (a tenth after 70 % of the epochs), or "warmup-cosine": up to
            lr in the first 5 % of the steps, then down to zero by a cosine, step by step.
        average: Decay of an exponential moving average of the weights, such as 0.999, which is then validated, selected
            and returned in their place; 0 for none. After t steps the decay is at most (1 + t) / (10 + t).
        precision: "fp32", "bf16", "fp16", or "auto": bf16 on a GPU that has it, fp32 elsewhere.
        accumulate: Micro-batches that a batch is cut into. Each is balanced by its own losses; in a loop of your own,
            `Window` balances whole batches.
        compile: Compile the encoders; "auto" where a GPU runs long enough to make up for it, and measures faster.
        capture: Capture a step once in a CUDA graph and replay it; "auto" on a GPU, where the model allows it.
        clip: Largest norm of the whole gradient; None for none.
        task: "classes", "regression", "labels" (any number of them for each sample), or "auto": by the label.
        loss: Of a regression: "huber", "mse" or "mae", between standardised numbers; "auto": huber. Of classes: "auto",
            which is cross-entropy, or "tcmax", by which the fused output learns (`equipoise.tcmax_loss`) while heads
            keep cross-entropy; it needs fusion=concat or sum, and knows no class weights and no modality dropout. Of
            labels: "auto", cross-entropy.
        metric: The number by which models are judged: in tables, in `select`, `patience` and tuning. "accuracy",
            "balanced_accuracy", "macro_f1", "auroc", "auprc" or "recall" of classes and labels; "mae", "rmse" or "r2"
            of a regression; "auto": accuracy of classes, mae of a regression, macro_f1 of labels.
        positive: The class or label that auroc, auprc and recall are of, by its name, such as "died"; "auto": of two
            classes the rarer one, and the mean over all of more classes and of labels.
        class_weight: Weights of the classes in the training loss, the closed form and the committee: "none";
            "balanced", so that every class weighs alike; or a number for each in their order, "1,2,5". Of labels,
            weights of their positives.
        label_smoothing: The share of the target that is spread evenly over all classes in the training loss. Measured
            losses have none, and so have labels and numbers, whatever this says.
        augment: "auto" varies the training samples at random by the kind of each sensor, see `equipoise.data.augment`;
            "none" leaves them as they are.
        select: Keep the "last" epoch, the "best" one by the metric on the validation part, or the one of the least
            "loss" there: of the fused decision, or the mean of the modalities without one; smoothed as in training.
        patience: Stop after this many epochs without a better metric on the validation part, or without a smaller loss
            where select=loss; None for never.
        encoder: "auto" chooses by the shape of each modality; a name ("resnet18") or a dotted path
            ("my.module.Encoder") serves all; "audio:lenet,image:cnn2d" names some of them.
        model: "auto" builds late fusion from encoders; a dotted path ("my_file.Model") names a model of one's own, with
            its own encoders and fusion.
        features: Size of each encoder's output, where the encoder does not fix it.
        fusion: "concat", "sum", "gated" or "film" of late fusion; "hybrid", encoders that meet in a trunk of attention
            over their tokens; or "early", one trunk on inputs cut into tokens.
        objective: The output whose loss is the objective of a modality: that of a "head" on its features, or of the
            model itself with all other sensors "masked", which needs fusion=hybrid or early, or a model of one's own;
            "auto": masked where fusion is hybrid or early, head elsewhere.
        dropout: Modality dropout, the probability with which a sample's modality is zeroed in the fused path.
        device: "auto", "cpu", "cuda" or "cuda:1".
        feed: Keep the data on the device ("resident"), read batches ahead from where it lies ("streamed"), or whichever
            fits ("auto").
        parallel: How several processes share a model: "ddp", a copy in each; or "fsdp", a shard in each.
        deterministic: Ask for the same bits again on a GPU too, at some cost: fp32, and neither captured nor compiled
            unless asked for.
    """

    epochs: int | Literal["auto"] = 30
    batch: int = 64
    lr: float = 0.01
    step: Literal["given", "safe"] = "given"
    optimizer: Literal["sgd", "adam", "adamw"] = "sgd"
    momentum: float = 0.9
    weight_decay: float = 1e-4
    layer_decay: float = 1.0
    schedule: Literal["constant", "cosine", "step", "warmup-cosine"] = "constant"
    average: float = 0.0
    precision: Precision = "auto"
    accumulate: int = 1
    compile: Switch = "auto"
    capture: Switch = "auto"
    clip: float | None = None
    task: Literal["auto", "classes", "regression", "labels"] = "auto"
    loss: Literal["auto", "huber", "mse", "mae", "tcmax"] = "auto"
    metric: MetricName = "auto"
    positive: str = "auto"
    class_weight: str = "none"
    label_smoothing: float = 0.0
    augment: Literal["none", "auto"] = "none"
    select: Literal["last", "best", "loss"] = "last"
    patience: int | None = None
    encoder: str = "auto"
    model: str = "auto"
    features: int = 64
    fusion: Fusion = "concat"
    objective: Literal["auto", "head", "masked"] = "auto"
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
        yield "epochs", f"0 to {MOST_EPOCHS:,}, or auto", self.epochs == "auto" or 0 <= self.epochs <= MOST_EPOCHS
        for name, most in (("batch", MOST_SAMPLES), ("accumulate", MOST_SAMPLES), ("features", MOST_FEATURES)):
            yield name, f"a whole number from 1 to {most:,}", 1 <= getattr(self, name) <= most
        yield "lr", "above zero and finite", 0 < self.lr < math.inf
        yield "momentum", "at least 0 and below 1", 0 <= self.momentum < 1
        yield "weight_decay", "zero or more, and finite", 0 <= self.weight_decay < math.inf
        yield "layer_decay", "above zero and at most 1", 0 < self.layer_decay <= 1
        for name in ("dropout", "average", "label_smoothing"):
            yield name, "at least 0 and below 1", 0 <= getattr(self, name) < 1
        yield "clip", "above zero, or none", self.clip is None or self.clip > 0
        patient = self.patience is None or 1 <= self.patience <= MOST_EPOCHS
        yield "patience", f"1 to {MOST_EPOCHS:,} epochs, or none", patient
        yield "model", "auto, or a dotted path such as my_file.Model", self.model == "auto" or is_path(self.model)
        for name, plain in (("encoder", "auto"), ("dropout", 0), ("step", "given")):
            own = f"{plain} with a model of one's own ({self.model})"
            yield name, own, self.model == "auto" or getattr(self, name) == plain
        if self.meets_early and self.model == "auto":
            for name, plain in (("step", "given"), ("parallel", "ddp")):
                yield name, f"{plain} with fusion={self.fusion}", getattr(self, name) == plain
        stems = "auto with fusion=early, which cuts inputs into tokens; type fusion=hybrid for encoders that meet later"
        yield "encoder", stems, self.fusion != "early" or self.encoder == "auto"
        late = "auto or head with late fusion; type fusion=hybrid"
        masks = self.meets_early or self.model != "auto"
        yield "objective", late, self.objective != "masked" or masks
        yield "device", "auto, cpu, cuda or cuda:1", re.fullmatch(r"auto|cpu|cuda(:\d+)?", self.device) is not None
        yield "class_weight", _WEIGHTS, self.class_weight in ("none", "balanced") or bool(self.class_weights())
        kinds = get_type_hints(type(self))
        switches = dict.fromkeys(("compile", "capture"), Literal[True, False, "auto"])
        named = (
            "optimizer",
            "schedule",
            "step",
            "precision",
            "augment",
            "select",
            "fusion",
            "objective",
            "feed",
            "parallel",
            *switches,
        )
        for name in (*named, "task", "loss", "metric"):
            choices = get_args(switches.get(name, kinds[name]))
            yield name, f"one of {', '.join(map(str, choices))}", getattr(self, name) in choices

    @property
    def passes(self) -> int:
        """The number of epochs.

        Raises:
            TypeError: If it is "auto" still; `equipoise.training.recipe.resolved` tells it from the data.
        """
        if self.epochs == "auto":
            raise TypeError("epochs=auto: expected a number here; resolved(settings, samples) gives it")
        return self.epochs

    @property
    def meets_early(self) -> bool:
        """True if sensors meet in a trunk before the fused head."""
        return self.fusion in ("hybrid", "early")

    @property
    def masks(self) -> bool:
        """True if the objective of a modality is the loss of the model itself with all other sensors masked."""
        late = self.model != "auto" or not self.meets_early
        return self.objective == "masked" or (self.objective == "auto" and not late)

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
        int: " or ".join(["a whole number", *words]),
        float: "a number",
    }
    try:
        return {None: {}.__getitem__, bool: _read_switch, int: int, float: float}.get(plain, str)(text)
    except (KeyError, ValueError):
        raise BadInput(f"{name} should be {expected[plain]}, found {text!r}") from None


def _read_switch(text: str) -> bool:
    return {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}[text.lower()]
