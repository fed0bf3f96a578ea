"""The model: one encoder per modality, a fusion, and a head per modality beside it."""

import weakref
from collections.abc import Callable, Iterator, Mapping
from inspect import Parameter, signature
from numbers import Integral
from types import FunctionType
from typing import Any, final, get_args

import torch
from torch import Tensor, nn

from equipoise.models.encoders import features_of
from equipoise.models.evaluation import varies_in_training
from equipoise.models.fusion import HeadMaker, HeadPart, NamedModules, build_fusion
from equipoise.models.fusion_model import Decision as Decision
from equipoise.models.fusion_model import FusionModel, Inputs, Lengths, Tensors
from equipoise.models.fusion_model import Unimodal as Unimodal
from equipoise.models.permuted import permutation_losses
from equipoise.models.task import Classification, Task
from equipoise.util.errors import name_problems, raise_all, unknown_name
from equipoise.util.graph import scale_gradient


@final
class LateFusion(FusionModel):
    """Encodes each modality alone and fuses the feature vectors: {name: input} → {"fused": …, name: …}.

    A sensor that is missing from the inputs counts as a feature vector of zeros in the fused path and has no output of
    its own. One that only some samples lack, as "NAME_present" says, counts as zeros in those; what its own output says
    of them means nothing.

    Args:
        encoders: One per modality, by name: any modules that turn an input into [B, size]. One that has a parameter
            `lengths` can read ragged time.
        classes: Number of classes, for classification. Give either this or `task`.
        head: Makes a head from a feature size, e.g. `lambda size: nn.Linear(size, 1)`; None for a Linear of the size
            that the task needs. With neither classes nor a task, what its outputs mean is not known, and there is no
            `predict`.
        task: The task: `Regression(["angle"])`, `MultiLabel(["cough", "fever"])`.
        fusion: "concat", "sum", "gated", "film", or a module; see `build_fusion`.
        unimodal: The source of a modality's own output: "head", a head trained with its encoder; "detached", a head
            trained beside it, on detached features; "split", its share of the additive fused output (where AGM is
            attached and the model trains, its Shapley response); None for no such outputs.
        features: The size of an encoder's output where the encoder does not tell: by default it is read from the
            attribute `features`, `out_features` or `num_features`, or from the last Linear inside.
        dropout: In training, the probability with which a sample's modality is zeroed in the fused path, never all of a
            sample: where chance would have it so, one is spared. The heads of the modalities see everything.

    Raises:
        ValueError: If something does not fit; the message names all of it.
    """

    def __init__(
        self,
        encoders: Mapping[str, nn.Module],
        classes: int | None = None,
        *,
        head: HeadMaker | None = None,
        task: Task | None = None,
        fusion: str | nn.Module = "concat",
        unimodal: Unimodal | None = "head",
        features: Mapping[str, int] | None = None,
        dropout: float = 0.0,
    ) -> None:
        others = _other_problems(classes, head, task, unimodal, dropout)
        raise_all([*_encoder_problems(encoders, features or {}), *others])
        if classes is not None:
            task = Classification(list(map(str, range(int(classes)))))
        super().__init__(len(encoders), task, unimodal)
        sizes = {name: features_of(encoder) for name, encoder in encoders.items()} | dict(features or {})
        self.sizes = {name: int(size) for name, size in sizes.items() if size is not None}
        self.dropout = dropout
        make_head = _head_maker(None if self.task is None else self.task.size, head)

        # The fused head comes before the others, so that a seed starts it alike whatever `unimodal` says.
        self.encoders = NamedModules(encoders)
        self.fusion = build_fusion(fusion, self.sizes, make_head)
        if unimodal == "split" and not self.fusion.additive:
            kind = type(self.fusion).__name__
            hint = "Use fusion='concat' with a Linear head or fusion='sum', or unimodal='head'."
            raise ValueError(f"unimodal='split' expected an additive fusion; {kind} with this head is not. {hint}")
        own = self.sizes if unimodal in ("head", "detached") else {}
        self.heads = NamedModules({name: make_head(size) for name, size in own.items()})
        self._responder: weakref.ref[object] | None = None
        self._takes_lengths = {name for name, encoder in encoders.items() if takes_lengths(encoder)}

    def forward(self, inputs: Inputs, lengths: Lengths | None = None) -> dict[str, Tensor]:
        """Give the fused output, then the output of each modality at hand, in the order of the encoders.

        Args:
            inputs: The modalities by name; one that is absent or None is a missing sensor. Beside "audio",
                "audio_length" may hold its lengths, and "audio_present" the samples that have it, booleans [B].
            lengths: For ragged time, the number of real steps of each sample, [B], by modality.

        Returns:
            The outputs by name, "fused" first.
        """
        return self._read(inputs, lengths, self.features(inputs, lengths), shares=self.unimodal == "split")[0]

    def with_shares(self, inputs: Inputs, lengths: Lengths | None = None) -> tuple[Tensors, Tensors]:
        """Give the outputs as `forward` does, and beside them each modality's share of the additive fused output.

        For methods that compare shares while heads of their own, trained beside, are measured.
        """
        return self._read(inputs, lengths, self.features(inputs, lengths), shares=True)

    def with_permuted(
        self, inputs: Inputs, permutations: int, lengths: Lengths | None = None
    ) -> tuple[Tensors, Tensors]:
        """Give the outputs as `forward` does, and beside them what `permutation_losses` gives for the batch."""
        features = self.features(inputs, lengths)
        outputs, _ = self._read(inputs, lengths, features, shares=self.unimodal == "split")
        return outputs, permutation_losses(self, features, outputs["fused"], permutations, self.gaps(inputs))

    def features(self, inputs: Inputs, lengths: Lengths | None = None) -> dict[str, Tensor]:
        """Give the feature vector of each modality at hand, [B, size], in the order of the encoders."""
        if not isinstance(inputs, Mapping):
            names = ", ".join(f"{name!r}: …" for name in self.encoders)
            raise TypeError(f"LateFusion expected its inputs by name, {{{names}}}; found {type(inputs).__name__}.")
        sensors, steps, present = self._sort_inputs(inputs, lengths or {})
        if self.training:  # of which batch statistics are taken
            sensors, steps = _fill_gaps(sensors, steps, present)
        features = self._encode(sensors, steps)
        self._check_features(features)
        return {name: x.where(present[name][:, None], 0) if name in present else x for name, x in features.items()}

    def complete(self, features: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Add a feature vector of zeros for each missing modality."""
        first, sizes = next(iter(features.values())), self.sizes.items()
        return {name: features[name] if name in features else first.new_zeros(len(first), size) for name, size in sizes}

    def silenced(self, features: Mapping[str, Tensor], names: set[str]) -> dict[str, Tensor]:
        """Return features with those of some modalities zero, as if they were missing."""
        return {name: torch.zeros_like(feature) if name in names else feature for name, feature in features.items()}

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
        """Give the feature vector of one modality, zero where a sample lacks it."""
        given = {} if lengths is None else {"lengths": lengths}
        return {name: self.encoders[name](read, **given).where(here.unsqueeze(1), 0)}

    def unimodal_outputs(self, features: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Give the own output of each modality from its features; nothing where the model has no such outputs."""
        if self.unimodal is None or not features:
            return {}
        if self.unimodal == "split":
            shares = self.fusion.share(self.complete(features))
            return {name: shares[name] for name in features}
        if self.unimodal == "detached":
            features = {name: feature.detach() for name, feature in features.items()}
        return {name: self.heads[name](feature) for name, feature in features.items()}

    def fused_head_parts(self) -> dict[str, list[HeadPart]]:
        """List, per modality, the parameters of the fused head that only its term of an additive fused output has."""
        return self.fusion.parts()

    def output_layers(self) -> dict[str, tuple[Tensor, HeadPart]]:
        """Give of each modality the weight of its own Linear head, and its part of the additive fused one.

        Empty where the fused output is no sum over modalities, or a head is none or no Linear.
        """
        own = {name: head.weight for name, head in self.heads.items() if isinstance(head, nn.Linear)}
        fused = {
            name: [part for part in parts if part[0].dim() == 2] for name, parts in self.fused_head_parts().items()
        }
        known = [name for name in own if len(fused.get(name, [])) == 1]
        return {name: (own[name], fused[name][0]) for name in known} if len(known) == len(self.encoders) else {}

    def response_problems(self) -> list[str]:
        """Say why the Shapley responses of this model are not known in closed form; empty where they are."""
        kinds = ", ".join(sorted({type(module).__name__ for module in self.modules() if varies_in_training(module)}))
        fusion = type(self.fusion).__name__
        problems = {
            f"its fused output is no sum over modalities (fusion {fusion})": not self.fusion.additive,
            f"it drops modalities in training (dropout={self.dropout:g})": self.dropout > 0,
            f"it has layers that do otherwise in training than in evaluation ({kinds})": kinds,
        }
        return [problem for problem, exists in problems.items() if exists]

    def respond(self, balancer: object | None) -> None:
        """In training, give Shapley responses in place of shares, for as long as this balancer lives.

        The response of modality m is φ_m = s_m − s_m(0) + mean_j s_j(0): s_m is its share, s_m(0) its share where its
        input is zero. It equals the 2^K forward passes of `ShapleyResponses` for an additive model that does the same
        in training as in evaluation. The fused output is the sum of the responses, as before, and the balancer may
        scale the gradient that each receives from it (`scaled_responses`).

        Args:
            balancer: The balancer; None for shares again.

        Raises:
            ValueError: If the responses are not known in closed form.
        """
        problems = self.response_problems() if balancer is not None else []
        raise_all([f"Shapley responses in closed form: {'; '.join(problems)}."] if problems else [])
        self._responder = None if balancer is None else weakref.ref(balancer)

    @property
    def responds(self) -> bool:
        """True if shares are Shapley responses in training."""
        return self._responder is not None and self._responder() is not None

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

    def __getstate__(self) -> dict[str, Any]:
        """Copies give shares again: no balancer is attached to them."""
        return {**self.__dict__, "_responder": None}

    def _read(
        self, inputs: Inputs, lengths: Lengths | None, features: Tensors, *, shares: bool
    ) -> tuple[Tensors, Tensors]:
        terms: dict[str, Tensor] = {}
        if self.training and self.responds:
            fused, terms = self._respond(features, inputs, lengths)
        else:
            dropped = drop_modalities(features, self.dropout) if self.training and self.dropout > 0 else features
            fused = self.fusion(self.complete(dropped))
            if shares:
                terms = self.fusion.share(self.complete(features))
        terms = {name: terms[name] for name in features if name in terms}
        return {"fused": fused} | (terms if self.unimodal == "split" else self.unimodal_outputs(features)), terms

    def _respond(self, features: Tensors, inputs: Inputs, lengths: Lengths | None) -> tuple[Tensor, Tensors]:
        """Give the fused output as a sum of responses whose gradients can be scaled, and the responses."""
        missing = [name for name in self.encoders if name not in features]
        raise_all(
            f"Shapley responses expected an input for every modality; found none for {name!r}." for name in missing
        )
        sensors, steps, _ = self._sort_inputs(inputs, lengths or {})
        # The features of one sample of zeros stand for all, but of a ragged encoder they depend on the lengths.
        zeros = {name: torch.zeros_like(sensor if name in steps else sensor[:1]) for name, sensor in sensors.items()}
        shares, at_zero = self.fusion.share(features), self.fusion.share(self._encode(zeros, steps))
        mean = torch.stack(torch.broadcast_tensors(*at_zero.values())).mean(dim=0)
        responses = {name: shares[name] - at_zero[name] + mean for name in shares}
        scaled = [scale_gradient(response, name) for name, response in responses.items()]
        return torch.stack(scaled).sum(dim=0), responses

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


def drop_modalities(features: Mapping[str, Tensor], probability: float) -> dict[str, Tensor]:
    """Zero each modality of each sample with the given probability, but never all modalities of a sample."""
    first = next(iter(features.values()))
    luck = torch.rand(first.shape[0], len(features), device=first.device)
    dropped = (luck < probability) & (luck < luck.amax(dim=1, keepdim=True))
    return {
        name: feature.masked_fill(column.unsqueeze(1), 0)
        for (name, feature), column in zip(features.items(), dropped.unbind(dim=1), strict=True)
    }


def check_model(owner: str, model: object) -> None:
    """Raise a TypeError that says what to pass where a model is neither a `LateFusion` nor an `OwnModel`."""
    if not isinstance(model, FusionModel):
        hint = "Pass the model inside its wrapper, e.g. model.module."
        raise TypeError(f"{owner} expected a LateFusion; found {type(model).__name__}. {hint}")


def takes_lengths(encoder: nn.Module) -> bool:
    """Tell whether an encoder reads ragged time: by its attribute `takes_lengths`, or the parameters of its forward."""
    if isinstance(known := getattr(encoder, "takes_lengths", None), bool):
        return known
    try:
        parameters = signature(encoder.forward).parameters
    except ValueError:  # scripted modules do not show theirs: the call will tell
        return True
    return "lengths" in parameters or any(one.kind is Parameter.VAR_KEYWORD for one in parameters.values())


def _head_maker(outputs: int | None, head: HeadMaker | None) -> HeadMaker:
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


def _encoder_problems(encoders: Mapping[str, object], features: Mapping[str, int]) -> Iterator[str]:
    """List what is wrong with the encoders, and with what is said of their sizes."""
    if not encoders:
        yield "LateFusion expected at least one encoder; found none. Write LateFusion({'audio': encoder}, classes=…)."
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
    classes: int | None, head: HeadMaker | None, task: Task | None, unimodal: str | None, dropout: float
) -> Iterator[str]:
    """List what is wrong with the number of classes, the maker of heads, and the remaining options."""
    if (classes is None) == (task is None) and not (classes is None and head is not None):
        count = "neither" if task is None else "both"
        yield f"LateFusion expected either classes or a task; found {count}. Write classes=… alone for classification."
    elif classes is not None and (not isinstance(classes, Integral) or classes < 2):
        hint = "For a single output write head=lambda size: nn.Linear(size, 1)."
        yield f"classes must be a whole number of at least 2, found {classes!r}. {hint}"
    if unimodal is not None and unimodal not in get_args(Unimodal):
        yield f"Unknown unimodal: {unknown_name(unimodal, get_args(Unimodal))} None means no uni-modal outputs."
    if not 0 <= dropout < 1:
        yield f"dropout must be at least 0 and less than 1, found {dropout!r}. Write dropout=0.0 for none."
