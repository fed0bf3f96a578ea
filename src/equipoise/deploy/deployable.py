"""The graph that is shipped: raw inputs and a validity flag per sensor in, probabilities or numbers out.

`LateFusion.predict` decides by the keys of a dictionary; the graph decides sample by sample, in tensors.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor, nn

from equipoise.data.views import View
from equipoise.models.encoded import EncodedModel
from equipoise.models.encoders import real_steps
from equipoise.models.evaluation import surviving_weights
from equipoise.models.fusion import NamedModules
from equipoise.models.fusion_model import FusionModel
from equipoise.models.intervals import rows_of
from equipoise.models.task import Regression, Task
from equipoise.util.errors import raise_all

VALID, LENGTH, HEAD, USED = "_valid", "_length", "_head", "_used"
COMMITTEE, FUSED = "committee", "fused"
LOW, HIGH = "_low", "_high"
RADII = {FUSED: 0, COMMITTEE: 1}  # the places of both decisions in `LateFusion.radii`
LARGEST = 1e15
"""The largest number that an encoder is given, in deviations where inputs are standardised.

Layers square what they read and add it up, and 32 bits hold 3e38: far larger numbers give NaN, or worse, an answer.
"""


@final
@dataclass(frozen=True, eq=False)
class InputSpec:
    """One input of the graph, and what is done to it before its encoder reads it.

    Args:
        shape: Of one sample as the graph takes it.
        dtype: Of its numbers.
        ragged: Whether the graph also takes the number of real steps of each sample.
        view: What the graph does to stored numbers; None for nothing.
        mean: Taken off each channel, [C, 1, …]; None where inputs are not standardised.
        deviation: That each channel is divided by.
        before: The view that the caller has to apply, because it is not in the graph; None for none.
        most: The largest whole number that a sensor of whole numbers may give, for trying a graph.
        stored: Shape and type of one sample that `before` is applied to; None where there is no such view.
        spatial: Whether its last axis is not time, so that a stream takes it sample by sample.
    """

    shape: tuple[int, ...]
    dtype: torch.dtype = torch.float32
    ragged: bool = False
    view: View | None = None
    mean: Tensor | None = None
    deviation: Tensor | None = None
    before: View | None = None
    most: int = 127
    stored: tuple[tuple[int, ...], torch.dtype] | None = None
    spatial: bool = False

    @property
    def recorded(self) -> tuple[tuple[int, ...], torch.dtype]:
        """Shape and type of one sample as it was recorded, before any view."""
        return (self.shape, self.dtype) if self.stored is None else self.stored

    @property
    def steps(self) -> int:
        """The number of steps of a padded sample: axis 2 of a batch as encoders read it, or the only one of words."""
        read = self.shape if self.view is None else self.view.shape(self.shape)
        return read[1] if len(read) > 1 else read[0]

    def like(self, batch: int, random: torch.Generator | None = None) -> Tensor:
        """Draw inputs at random as this sensor might give them."""
        if not self.dtype.is_floating_point:
            return torch.randint(self.most + 1, (batch, *self.shape), generator=random).to(self.dtype)
        drawn = torch.randn(batch, *self.shape, generator=random)
        if self.mean is not None and self.deviation is not None:
            drawn = self.mean.cpu() + self.deviation.cpu() * drawn
        return drawn.to(self.dtype)


@final
class _Reader(nn.Module):
    """Turns a raw input into what an encoder reads: by the view, or the standardisation of training."""

    mean: Tensor
    deviation: Tensor

    def __init__(self, spec: InputSpec) -> None:
        super().__init__()
        self._view, self._standardised = spec.view, spec.mean is not None
        if spec.mean is not None and spec.deviation is not None:
            self.register_buffer("mean", spec.mean.float())
            self.register_buffer("deviation", spec.deviation.float())

    def forward(self, raw: Tensor, lengths: Tensor | None) -> Tensor:
        if self._view is not None:
            read = self._view(raw, lengths, None)
        elif self._standardised:
            read = (raw - self.mean) / self.deviation
        else:
            return raw
        if lengths is None or not read.is_floating_point():
            return read
        return read.where(real_steps(lengths, read, 2), 0)


@final
class Deployable(nn.Module):
    """A model as it is shipped: {input: tensor} → {output: tensor}, for any batch size.

    Inputs, in this order for each sensor NAME: "NAME", raw; "NAME_length" [B] where time is ragged; "NAME_valid" [B], a
    boolean per sample. What stands in the tensor of a sensor that is not valid is never read: it may be anything.

    A sensor counts as not valid, too, in a sample with whose numbers the model cannot compute: NaN, infinity, numbers
    above `LARGEST`, or any that make its features infinite. Where the outputs are not finite all the same, no sensor
    counts. "NAME_used" [B] says which sensors were used.

    Outputs: "committee" and "fused", [B, size] as `LateFusion.predict` gives them for the sensors at hand:
    probabilities of classes or labels, or numbers; "NAME_head", what each sensor's own head says, for a monitor:
    log-probabilities, log-odds or numbers; and "NAME_used". Beside numbers, "committee_low", "committee_high",
    "fused_low" and "fused_high" are the ends of their intervals. A sample without any valid sensor, and the head of a
    sensor that is not valid, say what is known without sensors: every class is as probable, and of a number the mean. A
    model without uni-modal outputs has "fused" and "NAME_used" only.

    Args:
        model: A model that knows its task. It is not copied: its weights are the graph's.
        input_specs: What each input is; None where encoders read what they are given, as `examples` show.
        examples: Inputs as for `LateFusion.forward`, of any batch size; needed where `input_specs` is None.

    Raises:
        ValueError: If the model knows no task, or modalities and input_specs do not match.
    """

    def __init__(
        self,
        model: FusionModel,
        input_specs: Mapping[str, InputSpec] | None = None,
        examples: Mapping[str, Tensor] | None = None,
    ) -> None:
        super().__init__()
        self.input_specs = dict(_specs_of(model, examples or {}) if input_specs is None else input_specs)
        raise_all(_problems(model, self.input_specs))
        self.model = model
        self.readers = NamedModules({name: _Reader(spec) for name, spec in self.input_specs.items()})

    @property
    def input_names(self) -> list[str]:
        """Names of the inputs, in the order of the graph."""
        return [
            f"{name}{suffix}"
            for name, spec in self.input_specs.items()
            for suffix in (("", LENGTH, VALID) if spec.ragged else ("", VALID))
        ]

    @property
    def output_names(self) -> list[str]:
        """Names of the outputs, in the order of the graph."""
        heads = [] if self.model.unimodal is None else [f"{name}{HEAD}" for name in self.input_specs]
        answers = [COMMITTEE, FUSED] if heads else [FUSED]
        numbers = isinstance(self.model.task, Regression)
        ends = [f"{answer}{end}" for answer in answers for end in (LOW, HIGH)] if numbers else []
        return [*answers, *ends, *heads, *(f"{name}{USED}" for name in self.input_specs)]

    def examples(self, batch: int, random: torch.Generator | None = None) -> dict[str, Tensor]:
        """Draw inputs at random, every sensor valid."""
        drawn = {}
        for name, spec in self.input_specs.items():
            drawn[name] = spec.like(batch, random)
            if spec.ragged:
                drawn[name + LENGTH] = torch.randint(1, spec.steps + 1, (batch,), generator=random)
            drawn[name + VALID] = torch.ones(batch, dtype=torch.bool)
        return drawn

    def forward(self, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        """Decide on a batch."""
        features: dict[str, Tensor] = {}
        valid: dict[str, Tensor] = {}
        for name in self.input_specs:
            own, valid[name] = self._features(name, inputs, inputs[name + VALID])
            features |= own
        task = self.model.known_task()
        outputs = self.model.outputs_from(features, batch=None)
        finite = _answerable(task, outputs["fused"])
        for name, here in valid.items():
            finite = finite & (_answerable(task, outputs[name]) | ~here) if name in outputs else finite
        valid = {name: here & finite for name, here in valid.items()}
        present = torch.stack(list(valid.values()), dim=1)
        fused = task.member(outputs["fused"])
        nothing, some = task.nothing(fused), present.any(dim=1, keepdim=True)
        fused = fused.where(some, nothing)
        heads = {
            name: task.member(output).where(valid[name].unsqueeze(1), nothing)
            for name, output in outputs.items()
            if name != "fused"
        }
        answers = {FUSED: task.answer(fused)}
        if heads:
            weights = surviving_weights(self.model.committee.float(), present)
            pooled = task.pool(torch.stack([fused, *heads.values()], dim=1), weights)
            answers = {COMMITTEE: pooled.where(some, task.answer(nothing)), **answers}
        ends = self._intervals(answers, present) if isinstance(task, Regression) else {}
        own = {f"{name}{HEAD}": member for name, member in heads.items()}
        return {**answers, **ends, **own, **{f"{name}{USED}": here for name, here in valid.items()}}

    def _intervals(self, answers: Mapping[str, Tensor], present: Tensor) -> dict[str, Tensor]:
        """Give the ends of the intervals of numbers, by the radii of the sensors at hand."""
        rows, ends = rows_of(present), {}
        for decision, answer in answers.items():
            radius = self.model.radii[RADII[decision]][rows]
            ends |= {f"{decision}{LOW}": answer - radius, f"{decision}{HIGH}": answer + radius}
        return ends

    def _features(self, name: str, inputs: Mapping[str, Tensor], here: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        """Read the input of a sensor, zeros where it is not valid; and say where it is, and can be computed with."""
        raw, ragged = inputs[name], self.input_specs[name].ragged
        if raw.dtype in (torch.int8, torch.int16):  # runtimes choose among wider numbers only
            raw = raw.int()
        known, lengths = _masked(raw, here), inputs[name + LENGTH].where(here, 1) if ragged else None
        read = self.readers[name](known, lengths)
        if read.is_floating_point() and not (ragged and read is known):  # padding that is left may be anything
            here = here & _within(read, LARGEST)
            read = _masked(read, here)
        features = self.model.graph_features(name, read, lengths, here)
        if isinstance(self.model, EncodedModel):
            finite = _within(features[name], torch.finfo(torch.float32).max)
            features[name], here = self.model.masked(name, features[name], finite), here & finite
        return features, here


def _masked(values: Tensor, here: Tensor) -> Tensor:
    """Return values with zeros in the samples that lack them."""
    return values.where(here.reshape(-1, *[1] * (values.dim() - 1)), torch.zeros((), dtype=values.dtype))


def _within(values: Tensor, most: float) -> Tensor:
    """Return which samples hold numbers up to a size only, booleans [B]; NaN is none."""
    return (values.abs() <= most).flatten(1).all(dim=1)


def _answerable(task: Task, output: Tensor) -> Tensor:
    """Return in which samples an output, and the answer it stands for, is finite, booleans [B]."""
    most = torch.finfo(torch.float32).max
    return _within(output, most) & _within(task.answer(task.member(output)), most)


def _specs_of(model: FusionModel, examples: Mapping[str, Tensor]) -> dict[str, InputSpec]:
    specs = {}
    for name in model.encoders:
        if (batch := examples.get(name)) is not None:
            most = 0 if batch.is_floating_point() else int(batch.max())
            specs[name] = InputSpec(tuple(batch.shape[1:]), batch.dtype, name + LENGTH in examples, most=most)
    return specs


def _problems(model: FusionModel, specs: Mapping[str, InputSpec]) -> Iterator[str]:
    if not isinstance(model, FusionModel):
        kind = type(model).__name__
        yield f"Deployable expected a LateFusion; found {kind}. Pass the model inside its wrapper, e.g. model.module."
        return
    if model.task is None:
        hint = "this one was built with head=… alone. Write LateFusion(…, task=Regression(['angle']), head=…)"
        yield f"Deployable expected a model that knows its task; {hint}."
    for name in model.encoders:
        if name not in specs:
            yield f"Deployable expected the input of {name!r}; found {sorted(specs)}. Pass input_specs, or examples."
