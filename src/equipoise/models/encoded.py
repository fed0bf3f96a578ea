"""Models with one encoder per modality that gives a vector: how inputs are sorted, gaps filled and heads made."""

import inspect
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping
from inspect import Parameter
from numbers import Integral
from types import FunctionType
from typing import Any, get_args

import torch
from torch import Tensor, nn

from equipoise.models.encoders import features_of
from equipoise.models.fusion import HeadMaker, NamedModules
from equipoise.models.fusion_model import FusionModel, Inputs, Lengths, Tensors, Unimodal
from equipoise.models.permuted import permutation_losses
from equipoise.models.task import Classification, Task
from equipoise.util.errors import name_problems, raise_all, unknown_name


class EncodedModel(FusionModel):
    """Base of the models whose encoders each turn one modality into a vector: `LateFusion` and `HybridFusion`.

    Args:
        encoders: One per modality, by name: any modules that turn an input into [B, size]. One that has a parameter
            `lengths` can read ragged time.
        classes: Number of classes, for classification. Give either this or `task`.
        head: Makes a head from a feature size; None for a Linear of the size that the task needs.
        task: The task; None where `classes` or `head` is given.
        unimodal: The source of a modality's own output; None for no such outputs.
        features: The size of an encoder's output where the encoder does not tell.
        dropout: In training, the probability with which a sample's modality is missing in the fused path.

    Raises:
        ValueError: If something does not fit; the message names all of it.
    """

    heads: NamedModules
    """A head per modality; none where the model has no such heads."""

    def __init__(
        self,
        encoders: Mapping[str, nn.Module],
        classes: int | None,
        head: HeadMaker | None,
        task: Task | None,
        unimodal: Unimodal | None,
        features: Mapping[str, int] | None,
        dropout: float,
    ) -> None:
        owner = type(self).__name__
        others = _other_problems(owner, classes, head, task, unimodal, dropout)
        raise_all([*_encoder_problems(owner, encoders, features or {}), *others])
        if classes is not None:
            task = Classification(list(map(str, range(int(classes)))))
        super().__init__(len(encoders), task, unimodal)
        sizes = {name: features_of(encoder) for name, encoder in encoders.items()} | dict(features or {})
        self.sizes = {name: int(size) for name, size in sizes.items() if size is not None}
        self.dropout = dropout
        self.encoders = NamedModules(encoders)
        self._takes_lengths = {name for name, encoder in encoders.items() if takes_lengths(encoder)}

    @abstractmethod
    def missing(self, name: str) -> Tensor:
        """Return the feature vector that stands for a modality that is missing, [size]."""

    def with_permuted(
        self, inputs: Inputs, permutations: int, lengths: Lengths | None = None
    ) -> tuple[Tensors, Tensors]:
        """Give the outputs as `forward` does, and beside them what `permutation_losses` gives for the batch."""
        features = self.features(inputs, lengths)
        outputs = self.training_outputs(inputs, features, lengths)
        return outputs, permutation_losses(self, features, outputs["fused"], permutations, self.gaps(inputs))

    @abstractmethod
    def training_outputs(self, inputs: Inputs, features: Tensors, lengths: Lengths | None) -> Tensors:
        """Give the outputs as `forward` does, from features of these inputs."""

    def features(self, inputs: Inputs, lengths: Lengths | None = None) -> dict[str, Tensor]:
        """Give the feature vector of each modality at hand, [B, size], in the order of the encoders."""
        if not isinstance(inputs, Mapping):
            names = ", ".join(f"{name!r}: …" for name in self.encoders)
            owner, found = type(self).__name__, type(inputs).__name__
            raise TypeError(f"{owner} expected its inputs by name, {{{names}}}; found {found}.")
        sensors, steps, present = self._sort_inputs(inputs, lengths or {})
        if self.training:  # of which batch statistics are taken
            sensors, steps = _fill_gaps(sensors, steps, present)
        features = self._encode(sensors, steps)
        self._check_features(features)
        return {name: self.masked(name, x, present[name]) if name in present else x for name, x in features.items()}

    def masked(self, name: str, feature: Tensor, here: Tensor) -> Tensor:
        """Return features [B, size] with that of a missing modality in the samples that lack it."""
        return feature.where(here.unsqueeze(1), self.missing(name).to(feature.dtype))

    def complete(self, features: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Add the feature vector of a missing modality for each that is not there."""
        first = next(iter(features.values()))
        return {
            name: features[name]
            if name in features
            else self.missing(name).to(first.dtype).expand(first.shape[0], size)
            for name, size in self.sizes.items()
        }

    def silenced(self, features: Mapping[str, Tensor], names: set[str]) -> dict[str, Tensor]:
        """Return features with those of some modalities as if they were missing."""
        return {
            name: self.missing(name).to(feature.dtype).expand_as(feature) if name in names else feature
            for name, feature in features.items()
        }

    def drop(self, features: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """In training, let each modality of each sample miss with the probability `dropout`, but never all of one."""
        if not (self.training and self.dropout > 0):
            return dict(features)
        kept = kept_modalities(features, self.dropout)
        return {name: self.masked(name, feature, kept[name]) for name, feature in features.items()}

    def outputs_from(
        self,
        features: Mapping[str, Tensor],
        skip: Mapping[str, Any] | None = None,
        batch: int | None = None,  # noqa: ARG002 (features are small)
    ) -> dict[str, Tensor]:
        """Give the outputs of the heads from features, the fused one first, as `forward` does behind the encoders."""
        own = {name: feature for name, feature in features.items() if not skip or name not in skip}
        return {"fused": self.fusion(self.complete(features)), **self.unimodal_outputs(own)}

    def graph_features(self, name: str, read: Tensor, lengths: Tensor | None, here: Tensor) -> dict[str, Tensor]:
        """Give the feature vector of one modality, that of a missing modality where a sample lacks it."""
        given = {} if lengths is None else {"lengths": lengths}
        return {name: self.masked(name, self.encoders[name](read, **given), here)}

    def compile_encoders(self, *, steady: bool = False, **options: object) -> None:
        """Compile each encoder in place with `torch.compile(…, **options)`; names and state dict stay as they are.

        Args:
            steady: Compile for the shape of the first training batch alone. Batches of other sizes, and evaluation, run
                uncompiled, so that none of them is waited for.
            options: Of `torch.compile`.
        """
        for name, encoder in self.encoders.items():
            encoder._compiled_call_impl = _compiled_call(encoder, name, options, steady=steady)

    def uncompile_encoders(self) -> None:
        """Run the encoders as they are written again."""
        for encoder in self.encoders.values():
            encoder._compiled_call_impl = None

    def _encode(self, sensors: Tensors, steps: Tensors) -> Tensors:
        return {
            name: encoder(sensors[name], **({"lengths": steps[name]} if name in steps else {}))
            for name, encoder in self.encoders.items()
            if name in sensors
        }

    def _sort_inputs(self, inputs: Inputs, lengths: Lengths) -> tuple[Tensors, Tensors, Tensors]:
        """Tell sensors from lengths and gaps, and leave out what is missing."""
        length_of = {f"{name}_length": name for name in self.encoders}
        beside = {*length_of, *(f"{name}_present" for name in self.encoders)} - {*self.encoders}
        steps = {length_of[key]: value for key, value in inputs.items() if key in length_of and value is not None}
        steps.update(lengths)
        sensors = {key: value for key, value in inputs.items() if key in self.encoders and value is not None}
        keys = [*(key for key in inputs if key not in beside), *lengths]
        problems = [f"Unknown modality: {unknown_name(key, self.encoders)}" for key in keys if key not in self.encoders]
        problems += [
            f"The encoder of {name!r} takes no lengths. Give its forward a parameter `lengths`, or leave them out."
            for name in steps
            if name in self.encoders and name not in self._takes_lengths
        ]
        if not sensors:
            hint = f"found none. Pass {{{next(iter(self.encoders))!r}: tensor}}."
            problems.append(f"Expected an input for at least one of {', '.join(map(repr, self.encoders))}; {hint}")
        present = self.gaps(inputs)
        problems += [
            f"{name}_present: expected one truth value per sample, [{len(sensors[name])}]; found {list(mask.shape)}."
            for name, mask in present.items()
            if mask.shape != sensors[name].shape[:1]
        ]
        raise_all(problems)
        return sensors, steps, present

    def _check_features(self, features: Mapping[str, Any]) -> None:
        # An encoder of the user's may give anything at all.
        shapes = {name: list(x.shape) if isinstance(x, Tensor) else type(x) for name, x in features.items()}
        batch = next((shape[0] for shape in shapes.values() if isinstance(shape, list) and shape), "B")
        raise_all(
            f"The encoder of {name!r} was expected to give [{batch}, {self.sizes[name]}]; found {shape}. "
            f"Give inputs of one batch size, and tell the encoder's size: features={{{name!r}: …}}."
            for name, shape in shapes.items()
            if shape != [batch, self.sizes[name]]
        )


def _fill_gaps(sensors: Tensors, steps: Tensors, present: Tensors) -> tuple[Tensors, Tensors]:
    """Put copies of samples that have a sensor in the place of those that lack it.

    Their features are zeroed and their losses masked, but batch statistics are taken of all that an encoder reads, and
    are to be those of real signals. To choose the others alone would have to wait for the device.
    """
    sensors, steps = dict(sensors), dict(steps)
    for name, mask in present.items():
        order = (~mask).to(torch.uint8).argsort(stable=True)  # those that have it first
        turn = (~mask).cumsum(dim=0) % mask.sum().clamp(min=1)  # one after the other, so that all are copied alike
        row = torch.where(mask, torch.arange(len(mask), device=mask.device), order[turn])
        sensors[name] = sensors[name][row]
        if name in steps:
            steps[name] = steps[name][row]
    return sensors, steps


def kept_modalities(features: Mapping[str, Tensor], dropout: float) -> dict[str, Tensor]:
    """Draw which samples keep each modality, booleans [B]; no sample loses all of them."""
    first = next(iter(features.values()))
    luck = torch.rand(first.shape[0], len(features), device=first.device)
    dropped = (luck < dropout) & (luck < luck.amax(dim=1, keepdim=True))
    return dict(zip(features, (~dropped).unbind(dim=1), strict=True))


def check_model(owner: str, model: object) -> None:
    """Raise a TypeError that says what to pass where a model is none that is trained and measured here."""
    if not isinstance(model, FusionModel):
        hint = "Pass the model inside its wrapper, e.g. model.module."
        raise TypeError(f"{owner} expected a LateFusion; found {type(model).__name__}. {hint}")


def takes_lengths(encoder: nn.Module) -> bool:
    """Tell whether an encoder reads ragged time: by its attribute `takes_lengths`, or the parameters of its forward."""
    if isinstance(known := getattr(encoder, "takes_lengths", None), bool):
        return known
    try:
        parameters = inspect.signature(encoder.forward).parameters
    except ValueError:  # scripted modules do not show theirs: the call will tell
        return True
    return "lengths" in parameters or any(one.kind is Parameter.VAR_KEYWORD for one in parameters.values())


def head_maker(outputs: int | None, head: HeadMaker | None) -> HeadMaker:
    """Return the function that makes a head from a feature size: the user's own, or a Linear."""

    def make(size: int) -> nn.Module:
        made = nn.Linear(size, int(outputs or 0)) if head is None else head(size)
        if not isinstance(made, nn.Module):
            hint = "Write head=lambda size: nn.Linear(size, 1)."
            raise TypeError(f"head must make an nn.Module from a feature size; found {type(made).__name__}. {hint}")
        return made

    return make


def _compiled_call(encoder: nn.Module, name: str, options: Mapping[str, Any], *, steady: bool) -> Callable[..., Tensor]:
    """Compile the call of an encoder.

    `encoder.compile()` does nothing to modules of torch's own, such as nn.Sequential, whose frames are skipped.
    """

    def call(*args: Any, **kwargs: Any) -> Tensor:
        return encoder._call_impl(*args, **kwargs)

    # Code of its own for each: what was compiled is kept by code, and a second shape of one code is taken to vary.
    own = FunctionType(call.__code__.replace(co_name=f"encoder_{name}"), globals(), name, None, call.__closure__)
    chosen_options: dict[str, Any] = {**({"dynamic": False} if steady else {}), **options}
    compiled = torch.compile(own, **chosen_options)
    if not steady:
        return compiled
    first: list[torch.Size] = []

    def chosen(inputs: Tensor, **kwargs: Any) -> Tensor:
        if not (encoder.training and torch.is_grad_enabled()):
            return call(inputs, **kwargs)
        if not first:
            first.append(inputs.shape)
        return (compiled if inputs.shape == first[0] else call)(inputs, **kwargs)

    return chosen


def _encoder_problems(owner: str, encoders: Mapping[str, object], features: Mapping[str, int]) -> Iterator[str]:
    """List what is wrong with the encoders, and with what is said of their sizes."""
    if not encoders:
        yield f"{owner} expected at least one encoder; found none. Write {owner}({{'audio': encoder}}, classes=…)."
    yield from name_problems(encoders)
    for name, encoder in encoders.items():
        if not isinstance(encoder, nn.Module):
            yield f"The encoder of {name!r} must be an nn.Module, found {type(encoder).__name__}."
        elif name not in features and features_of(encoder) is None:
            hint = f"Write features={{{name!r}: …}}."
            yield f"The output size of the encoder of {name!r}, {type(encoder).__name__}, could not be told. {hint}"
    for name, size in features.items():
        if name not in encoders:
            yield f"features names an unknown modality: {unknown_name(name, encoders)}"
        if not isinstance(size, Integral) or size < 1:
            yield f"features[{name!r}] must be a whole number of at least 1, found {size!r}."


def _other_problems(
    owner: str, classes: int | None, head: HeadMaker | None, task: Task | None, unimodal: str | None, dropout: float
) -> Iterator[str]:
    """List what is wrong with the number of classes, the maker of heads, and the remaining options."""
    if (classes is None) == (task is None) and not (classes is None and head is not None):
        count = "neither" if task is None else "both"
        yield f"{owner} expected either classes or a task; found {count}. Write classes=… alone for classification."
    elif classes is not None and (not isinstance(classes, Integral) or classes < 2):
        hint = "For a single output write head=lambda size: nn.Linear(size, 1)."
        yield f"classes must be a whole number of at least 2, found {classes!r}. {hint}"
    if unimodal is not None and unimodal not in get_args(Unimodal):
        yield f"Unknown unimodal: {unknown_name(unimodal, get_args(Unimodal))} None means no uni-modal outputs."
    if not 0 <= dropout < 1:
        yield f"dropout must be at least 0 and less than 1, found {dropout!r}. Write dropout=0.0 for none."
