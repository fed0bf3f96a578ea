"""The model: one encoder per modality, a fusion, and a head per modality beside it."""

import weakref
from collections.abc import Mapping
from inspect import Parameter, signature
from typing import Any, Literal, final, get_args

import torch
from torch import Tensor, nn

from equipoise.models.arguments import Unimodal, encoder_problems, head_problems, modules_in, option_problems
from equipoise.models.committee import pool
from equipoise.models.compiled import compiled_call
from equipoise.models.encoders import features_of
from equipoise.models.evaluation import class_log_probabilities, evaluating
from equipoise.models.fusion import HeadMaker, HeadPart, build_fusion
from equipoise.models.shapley import varies_in_training
from equipoise.util.errors import raise_all
from equipoise.util.graph import scale_gradient
from equipoise.util.names import NamedModules, unknown_name

Decision = Literal["fused", "committee"]


@final
class LateFusion(nn.Module):
    """Encodes each modality alone and fuses the feature vectors: {name: input} → {"fused": …, name: …}.

    A sensor that is missing from the inputs counts as a feature vector of zeros in the fused path and has no output of
    its own.

    Args:
        encoders: One per modality, by name: any modules that turn an input into [B, size]. One that has a parameter
            `lengths` can read ragged time.
        classes: How many classes; every head is then a Linear. Give either this or `head`.
        head: Makes a head from a feature size, e.g. `lambda size: nn.Linear(size, 1)` for regression.
        fusion: "concat", "sum", "gated", "film", or a module; see `build_fusion`.
        unimodal: Where a modality's own output comes from: "head", a head trained with its encoder; "detached", a head
            trained beside it, on detached features; "split", its share of the additive fused output (where AGM is
            attached and the model trains, its Shapley response); None, nowhere.
        features: The size of an encoder's output where the encoder does not tell: by default it is read from the
            attribute `features`, `out_features` or `num_features`, or from the last Linear inside.
        dropout: In training, the probability with which a sample's modality is zeroed in the fused path, never all of a
            sample: where chance would have it so, one is spared. The heads of the modalities see everything.

    Raises:
        ValueError: If something does not fit; the message names all of it.
    """

    committee: Tensor

    def __init__(
        self,
        encoders: Mapping[str, nn.Module],
        classes: int | None = None,
        *,
        head: HeadMaker | None = None,
        fusion: str | nn.Module = "concat",
        unimodal: Unimodal | None = "head",
        features: Mapping[str, int] | None = None,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        told = {**{name: features_of(encoder) for name, encoder in modules_in(encoders)}, **(features or {})}
        raise_all(
            [
                *encoder_problems(encoders, features or {}, told),
                *head_problems(classes, head),
                *option_problems(unimodal, dropout),
            ]
        )
        self.sizes = {name: int(size) for name in encoders if (size := told[name]) is not None}
        self.unimodal = unimodal
        self.dropout = dropout
        make_head = _head_maker(classes, head)

        # The fused head comes before the others, so that a seed starts it alike whatever `unimodal` says.
        self.encoders = NamedModules(encoders)
        self.fusion = build_fusion(fusion, self.sizes, make_head)
        if unimodal == "split" and not self.fusion.additive:
            raise ValueError(
                f"unimodal='split' expected an additive fusion; {type(self.fusion).__name__} with this head is not. "
                "Use fusion='concat' with a Linear head or fusion='sum', or unimodal='head'."
            )
        own = self.sizes if unimodal in ("head", "detached") else {}
        self.heads = NamedModules({name: make_head(size) for name, size in own.items()})
        self._responder: weakref.ref[object] | None = None
        self._takes_lengths = {name for name, encoder in encoders.items() if takes_lengths(encoder)}
        self.register_buffer("committee", torch.full((len(self.sizes) + 1,), 1 / (len(self.sizes) + 1)))

    def forward(
        self, inputs: Mapping[str, Tensor | None], lengths: Mapping[str, Tensor] | None = None
    ) -> dict[str, Tensor]:
        """Give the fused output, then the output of each modality at hand, in the order of the encoders.

        Args:
            inputs: The modalities by name; one that is absent or None is a missing sensor. Beside "audio",
                "audio_length" may hold its lengths.
            lengths: For ragged time, the number of real steps of each sample, [B], by modality.

        Returns:
            The outputs by name, "fused" first.
        """
        return self._read(inputs, lengths, shares=self.unimodal == "split")[0]

    def with_shares(
        self, inputs: Mapping[str, Tensor | None], lengths: Mapping[str, Tensor] | None = None
    ) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Give the outputs as `forward` does, and beside them each modality's share of the additive fused output.

        For methods that compare shares while heads of their own, trained beside, are measured.
        """
        return self._read(inputs, lengths, shares=True)

    def _read(
        self, inputs: Mapping[str, Tensor | None], lengths: Mapping[str, Tensor] | None, *, shares: bool
    ) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        features = self.features(inputs, lengths)
        whole = self._with_zeros_for_missing(features)
        terms: dict[str, Tensor] = {}
        if self.training and self.responds:
            fused, terms = self._respond(whole, inputs, lengths)
        else:
            seen = whole
            if self.training and self.dropout > 0:
                seen = self._with_zeros_for_missing(drop_modalities(features, self.dropout))
            fused = self.fusion(seen)
            if shares:
                terms = self.fusion.share(whole)
        outputs = {"fused": fused}
        if self.unimodal == "head":
            outputs |= {name: self.heads[name](feature) for name, feature in features.items()}
        elif self.unimodal == "detached":
            outputs |= {name: self.heads[name](feature.detach()) for name, feature in features.items()}
        terms = {name: terms[name] for name in features if name in terms}
        return (outputs | terms if self.unimodal == "split" else outputs), terms

    def response_problems(self) -> list[str]:
        """Say why the Shapley responses of this model are not known in closed form; empty where they are."""
        problems = []
        if not self.fusion.additive:
            problems.append(f"its fused output is no sum over modalities (fusion {type(self.fusion).__name__})")
        if self.dropout > 0:
            problems.append(f"it drops modalities in training (dropout={self.dropout:g})")
        kinds = sorted({type(module).__name__ for module in self.modules() if varies_in_training(module)})
        if kinds:
            problems.append(f"it has layers that do otherwise in training than in evaluation ({', '.join(kinds)})")
        return problems

    def respond(self, balancer: object | None) -> None:
        """In training, give Shapley responses in place of shares, for as long as this balancer lives.

        The response of modality m is φ_m = s_m − s_m(0) + mean_j s_j(0): s_m is its share, s_m(0) its share where its
        input is zero. It equals the 2^K forward passes of `ShapleyResponses` for an additive model that does the same
        in training as in evaluation. The fused output is the sum of the responses, as before, and the balancer may
        scale the gradient that each receives from it (`scaled_responses`).

        Args:
            balancer: For whom; None for shares again.

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

    def fused_head_parts(self) -> dict[str, list[HeadPart]]:
        """List, per modality, the parameters of the fused head that only its term of an additive fused output has."""
        return self.fusion.parts()

    def _respond(
        self, features: Mapping[str, Tensor], inputs: Mapping[str, Tensor | None], lengths: Mapping[str, Tensor] | None
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Give the fused output as a sum of responses whose gradients can be scaled, and the responses."""
        sensors, steps = self._sort_inputs(inputs, lengths or {})
        raise_all(
            f"Shapley responses expected an input for every modality; found none for {name!r}."
            for name in self.encoders
            if name not in sensors
        )
        zeros = {}
        for name, encoder in self.encoders.items():
            if name in steps:  # what a ragged encoder makes of zeros depends on how many there are
                zeros[name] = encoder(torch.zeros_like(sensors[name]), lengths=steps[name])
            else:
                zeros[name] = encoder(torch.zeros_like(sensors[name][:1]))
        shares, at_zero = self.fusion.share(features), self.fusion.share(zeros)
        mean = torch.stack(torch.broadcast_tensors(*at_zero.values())).mean(dim=0)
        responses = {name: shares[name] - at_zero[name] + mean for name in shares}
        scaled = [scale_gradient(response, name) for name, response in responses.items()]
        return torch.stack(scaled).sum(dim=0), responses

    def __getstate__(self) -> dict[str, Any]:
        """Copies give shares again: they are nobody's."""
        return {**self.__dict__, "_responder": None}

    def features(
        self, inputs: Mapping[str, Tensor | None], lengths: Mapping[str, Tensor] | None = None
    ) -> dict[str, Tensor]:
        """Give the feature vector of each modality at hand, [B, size], in the order of the encoders."""
        if not isinstance(inputs, Mapping):
            names = ", ".join(f"{name!r}: …" for name in self.encoders)
            raise TypeError(f"LateFusion expected its inputs by name, {{{names}}}; found {type(inputs).__name__}.")
        sensors, steps = self._sort_inputs(inputs, lengths or {})
        features = {}
        for name, encoder in self.encoders.items():
            if name in sensors:
                given = {"lengths": steps[name]} if name in steps else {}
                features[name] = encoder(sensors[name], **given)
        self._check_features(features)
        return features

    def predict(
        self,
        inputs: Mapping[str, Tensor | None],
        decision: Decision = "fused",
        lengths: Mapping[str, Tensor] | None = None,
    ) -> Tensor:
        """Give class probabilities [B, C], in evaluation mode and without gradients.

        Args:
            inputs: As for `forward`; any non-empty subset of the modalities.
            decision: "fused": the fused head decides. "committee": all heads vote with the weights in `committee`; with
                a sensor missing, the heads of those at hand.
            lengths: As for `forward`.

        Returns:
            The probabilities.

        Raises:
            ValueError: If the decision is unknown or needs outputs that the model does not have, or these are no class
                scores.
        """
        raise_all(self._decision_problems(decision))
        with evaluating(self), torch.no_grad():
            outputs = self(inputs, lengths)
        logs = class_log_probabilities(outputs)
        if decision == "fused":
            return logs["fused"].exp()
        return pool(logs, dict(zip(["fused", *self.encoders], self.committee.float().unbind(), strict=True)))

    def compile_encoders(self, *, steady: bool = False, **options: object) -> None:
        """Compile each encoder in place with `torch.compile(…, **options)`; names and state dict stay as they are.

        Args:
            steady: Compile for the shape of the first training batch alone. Batches of other sizes, and evaluation, run
                uncompiled, so that none of them is waited for.
            options: Of `torch.compile`.
        """
        for name, encoder in self.encoders.items():
            encoder._compiled_call_impl = compiled_call(encoder, name, options, steady=steady)

    def uncompile_encoders(self) -> None:
        """Take that back."""
        for encoder in self.encoders.values():
            encoder._compiled_call_impl = None

    def _with_zeros_for_missing(self, features: Mapping[str, Tensor]) -> dict[str, Tensor]:
        one = next(iter(features.values()))
        return {
            name: features[name] if name in features else one.new_zeros(one.shape[0], size)
            for name, size in self.sizes.items()
        }

    def _sort_inputs(
        self, inputs: Mapping[str, Tensor | None], lengths: Mapping[str, Tensor]
    ) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Tell sensors from lengths, and leave out what is missing."""
        length_of = {f"{name}_length": name for name in self.encoders}
        steps = {length_of[key]: value for key, value in inputs.items() if key in length_of and value is not None}
        steps.update(lengths)
        sensors = {key: value for key, value in inputs.items() if key in self.encoders and value is not None}
        keys = [*(key for key in inputs if key not in length_of), *lengths]
        problems = [f"Unknown modality: {unknown_name(key, self.encoders)}" for key in keys if key not in self.encoders]
        problems += [
            f"The encoder of {name!r} takes no lengths. Give its forward a parameter `lengths`, or leave them out."
            for name in steps
            if name in self.encoders and name not in self._takes_lengths
        ]
        if not sensors:
            problems.append(
                f"Expected an input for at least one of {', '.join(map(repr, self.encoders))}; found none. "
                f"Pass {{{next(iter(self.encoders))!r}: tensor}}."
            )
        raise_all(problems)
        return sensors, steps

    def _check_features(self, features: Mapping[str, Tensor]) -> None:
        # An encoder of the user's may give anything at all.
        found = {name: list(each.shape) if isinstance(each, Tensor) else type(each) for name, each in features.items()}
        batch = next((shape[0] for shape in found.values() if isinstance(shape, list) and shape), "B")
        raise_all(
            f"The encoder of {name!r} was expected to give [{batch}, {self.sizes[name]}]; found {shape}. "
            f"Give inputs of one batch size, and tell the encoder's size: features={{{name!r}: …}}."
            for name, shape in found.items()
            if shape != [batch, self.sizes[name]]
        )

    def _decision_problems(self, decision: str) -> list[str]:
        if decision not in get_args(Decision):
            return [f"Unknown decision: {unknown_name(decision, get_args(Decision))}"]
        if decision == "committee" and self.unimodal is None:
            return [
                "decision='committee' expected a model with uni-modal outputs; this one was built with unimodal=None. "
                "Write LateFusion(…, unimodal='head') or decision='fused'."
            ]
        return []


def drop_modalities(features: Mapping[str, Tensor], probability: float) -> dict[str, Tensor]:
    """Zero each modality of each sample with the given probability, but never all of a sample: the luckiest is kept."""
    one = next(iter(features.values()))
    luck = torch.rand(one.shape[0], len(features), device=one.device)
    dropped = (luck < probability) & (luck < luck.amax(dim=1, keepdim=True))
    return {
        name: feature.masked_fill(column.unsqueeze(1), 0)
        for (name, feature), column in zip(features.items(), dropped.unbind(dim=1), strict=True)
    }


def _head_maker(classes: int | None, head: HeadMaker | None) -> HeadMaker:
    def make(size: int) -> nn.Module:
        if head is None:
            return nn.Linear(size, int(classes or 0))
        made = head(size)
        if not isinstance(made, nn.Module):
            raise TypeError(
                f"head must make an nn.Module from a feature size; found {type(made).__name__}. "
                "Write head=lambda size: nn.Linear(size, 1)."
            )
        return made

    return make


def takes_lengths(encoder: nn.Module) -> bool:
    """Tell whether the forward of an encoder has a parameter `lengths`."""
    try:
        parameters = signature(encoder.forward).parameters
    except ValueError:  # scripted modules do not show theirs: the call will tell
        return True
    return "lengths" in parameters or any(each.kind is Parameter.VAR_KEYWORD for each in parameters.values())
