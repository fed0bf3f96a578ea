"""The model: one encoder per modality, a fusion, and a head per modality beside it."""

from collections.abc import Mapping
from typing import final

import torch
from torch import Tensor, nn

from equipoise.models.encoded import EncodedModel, head_maker
from equipoise.models.evaluation import varies_in_training, widened
from equipoise.models.fusion import HeadMaker, HeadPart, NamedModules, build_fusion
from equipoise.models.fusion_model import Decision as Decision
from equipoise.models.fusion_model import Inputs, Lengths, Tensors
from equipoise.models.fusion_model import Unimodal as Unimodal
from equipoise.models.task import Task
from equipoise.util.errors import raise_all


@final
class LateFusion(EncodedModel):
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
            trained beside it, on detached features; "split", its share of the additive fused output; None for
            no such outputs.
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
        super().__init__(encoders, classes, head, task, unimodal, features, dropout)
        if unimodal in ("masked", "masked_detached"):
            hint = f"found {unimodal!r}. Use HybridFusion, or unimodal='head'."
            raise ValueError(f"LateFusion expected unimodal='head', 'detached' or 'split'; {hint}")
        make_head = head_maker(None if self.task is None else self.task.size, head)
        # The fused head comes before the others, so that a seed starts it alike whatever `unimodal` says.
        self.fusion = build_fusion(fusion, self.sizes, make_head)
        if unimodal == "split" and not self.fusion.additive:
            kind = type(self.fusion).__name__
            hint = "Use fusion='concat' with a Linear head or fusion='sum', or unimodal='head'."
            raise ValueError(f"unimodal='split' expected an additive fusion; {kind} with this head is not. {hint}")
        own = self.sizes if unimodal in ("head", "detached") else {}
        self.heads = NamedModules({name: make_head(size) for name, size in own.items()})

    def forward(self, inputs: Inputs, lengths: Lengths | None = None) -> dict[str, Tensor]:
        """Give the fused output, then the output of each modality at hand, in the order of the encoders.

        Args:
            inputs: The modalities by name; one that is absent or None is a missing sensor. Beside "audio",
                "audio_length" may hold its lengths, and "audio_present" the samples that have it, booleans [B].
            lengths: For ragged time, the number of real steps of each sample, [B], by modality.

        Returns:
            The outputs by name, "fused" first.
        """
        return self._read(self.features(inputs, lengths), shares=self.unimodal == "split")[0]

    def with_shares(self, inputs: Inputs, lengths: Lengths | None = None) -> tuple[Tensors, Tensors]:
        """Give the outputs as `forward` does, and beside them each modality's share of the additive fused output.

        For methods that compare shares while heads of their own, trained beside, are measured.
        """
        return self._read(self.features(inputs, lengths), shares=True)

    def training_outputs(self, inputs: Inputs, features: Tensors, lengths: Lengths | None) -> Tensors:  # noqa: ARG002
        """Give the outputs as `forward` does, from features of these inputs."""
        return self._read(features, shares=self.unimodal == "split")[0]

    def missing(self, name: str) -> Tensor:
        """Return zeros."""
        return self.committee.new_zeros(self.sizes[name])

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

    def with_responses(self, inputs: Inputs, lengths: Lengths | None = None) -> tuple[Tensors, Tensors]:
        """Give the outputs as `forward` does, the shares being responses, and beside them each modality's response.

        The response of modality m is φ_m = s_m − s_m(0) + mean_j s_j(0): s_m is its share, s_m(0) its share where its
        input is zero. It equals the 2^K forward passes of `ShapleyResponses` for an additive model that does the same
        in training as in evaluation. The fused output is the sum of the responses.

        Raises:
            ValueError: If the responses are not known in closed form, or a sensor is missing.
        """
        problems = self.response_problems()
        raise_all([f"Shapley responses in closed form: {'; '.join(problems)}."] if problems else [])
        features = self.features(inputs, lengths)
        missing = [name for name in self.encoders if name not in features]
        raise_all(
            f"Shapley responses expected an input for every modality; found none for {name!r}." for name in missing
        )
        sensors, steps, _ = self._sort_inputs(inputs, lengths or {})
        # The features of one sample of zeros stand for all, but of a ragged encoder they depend on the lengths.
        zeros = {name: torch.zeros_like(sensor if name in steps else sensor[:1]) for name, sensor in sensors.items()}
        shares, at_zero = self.fusion.share(features), self.fusion.share(self._encode(zeros, steps))
        mean = torch.stack(torch.broadcast_tensors(*at_zero.values())).mean(dim=0)
        responses = {name: widened(shares[name] - at_zero[name] + mean) for name in shares}
        own = responses if self.unimodal == "split" else self.unimodal_outputs(features)
        return {"fused": torch.stack(list(responses.values())).sum(dim=0)} | own, responses

    def _read(self, features: Tensors, *, shares: bool) -> tuple[Tensors, Tensors]:
        fused = self.fusion(self.complete(self.drop(features)))
        terms = self.fusion.share(self.complete(features)) if shares else {}
        terms = {name: terms[name] for name in features if name in terms}
        return {"fused": fused} | (terms if self.unimodal == "split" else self.unimodal_outputs(features)), terms
