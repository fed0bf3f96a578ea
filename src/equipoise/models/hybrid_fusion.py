"""A model whose encoders meet before the end: a trunk of attention over the tokens of all sensors."""

from collections.abc import Mapping
from typing import final

import torch
from torch import Tensor, nn

from equipoise.models.encoded import EncodedModel, head_maker
from equipoise.models.fusion import HeadMaker, NamedModules
from equipoise.models.fusion_model import Inputs, Lengths, Tensors, Unimodal
from equipoise.models.task import Task
from equipoise.models.trunk import Trunk

MASKED = ("masked", "masked_detached")
"""The views in which a modality's own output is that of the whole model with the other sensors masked."""


@final
class HybridFusion(EncodedModel):
    """Encodes each modality, lets all meet in a trunk of attention, and reads the fused output off the trunk.

    With encoders that hardly compute anything (`Stem`) this is early fusion: one trunk does all the work.

    A sensor that is missing, from a batch or from some of its samples, is a learned vector in the place of its
    features. Objectives need no heads of their own: under ``unimodal="masked"`` the output of modality k is that of the
    model itself with all other sensors masked by these vectors, and all K + 1 passes through the trunk run as one
    batch. The members of the committee are these passes.

    Args:
        encoders: One per modality, by name: any modules that turn an input into [B, size]. One that has an integer
            attribute `tokens` gives so many tokens side by side. One that has a parameter `lengths` can read ragged
            time.
        classes: Number of classes, for classification. Give either this or `task`.
        head: Makes a head from a feature size; None for a Linear of the size that the task needs.
        task: The task: `Regression(["angle"])`, `MultiLabel(["cough", "fever"])`.
        unimodal: The source of a modality's own output: "masked"; "masked_detached", the same pass, off which only the
            vectors of missing sensors learn; "head", a head on its features, trained with its encoder; "detached", a
            head on detached features; None for no such outputs.
        features: The size of an encoder's output where the encoder does not tell.
        dropout: In training, the probability with which a sample's modality is masked in the fused path, never all of a
            sample.
        width: Size of a token of the trunk.
        depth: Layers of the trunk.

    Raises:
        ValueError: If something does not fit; the message names all of it.

    Example:
        >>> model = HybridFusion({"audio": nn.Linear(3, 8), "video": nn.Linear(5, 8)}, classes=2, width=8)
        >>> inputs = {"audio": torch.randn(4, 3), "video": torch.randn(4, 5)}
        >>> {name: list(output.shape) for name, output in model(inputs).items()}
        {'fused': [4, 2], 'audio': [4, 2], 'video': [4, 2]}
        >>> alone = model({"audio": inputs["audio"]})
        >>> bool((alone["fused"] - model(inputs)["audio"]).abs().max() < 1e-6)  # the other sensor is masked in both
        True
    """

    def __init__(
        self,
        encoders: Mapping[str, nn.Module],
        classes: int | None = None,
        *,
        head: HeadMaker | None = None,
        task: Task | None = None,
        unimodal: Unimodal | None = "masked",
        features: Mapping[str, int] | None = None,
        dropout: float = 0.0,
        width: int = 64,
        depth: int = 2,
    ) -> None:
        super().__init__(encoders, classes, head, task, unimodal, features, dropout)
        if unimodal == "split":
            hint = "found 'split': the output of a trunk is no sum with one term per modality. Use unimodal='masked'."
            raise ValueError(f"HybridFusion expected unimodal='masked', 'head' or 'detached'; {hint}")
        make_head = head_maker(None if self.task is None else self.task.size, head)
        told = {name: getattr(encoder, "tokens", None) for name, encoder in encoders.items()}
        tokens = {name: count for name, count in told.items() if isinstance(count, int)}
        self.fusion = Trunk(self.sizes, tokens, make_head, width, depth)
        own = self.sizes if unimodal in ("head", "detached") else {}
        self.heads = NamedModules({name: make_head(size) for name, size in own.items()})
        self.absent = nn.ParameterList([nn.Parameter(torch.zeros(size)) for size in self.sizes.values()])
        # Elsewhere the vectors of missing sensors are part of every step, as DistributedDataParallel expects.
        self._connects = unimodal not in MASKED or len(encoders) == 1

    @property
    def trunk(self) -> list[Tensor]:
        """The parameters between the encoders and the fused head, which a balancer treats as one block."""
        return self._trunk_of().parameters_below_head()

    def forward(self, inputs: Inputs, lengths: Lengths | None = None) -> dict[str, Tensor]:
        """Give the fused output, then the output of each modality at hand, in the order of the encoders.

        Args:
            inputs: The modalities by name; one that is absent or None is a missing sensor. Beside "audio",
                "audio_length" may hold its lengths, and "audio_present" the samples that have it, booleans [B].
            lengths: For ragged time, the number of real steps of each sample, [B], by modality.

        Returns:
            The outputs by name, "fused" first.
        """
        return self.training_outputs(inputs, self.features(inputs, lengths), lengths)

    def training_outputs(self, inputs: Inputs, features: Tensors, lengths: Lengths | None) -> Tensors:  # noqa: ARG002
        """Give the outputs as `forward` does, from features of these inputs."""
        heard = self.drop(features)
        if self.training and self._connects:
            every = torch.ones_like(next(iter(features.values()))[:, 0], dtype=torch.bool)
            heard = {name: self.masked(name, feature, every) for name, feature in heard.items()}
        return self._outputs(heard, features)

    def outputs_from(
        self,
        features: Mapping[str, Tensor],
        skip: Mapping[str, object] | None = None,
        batch: int | None = None,  # noqa: ARG002 (features are small)
    ) -> dict[str, Tensor]:
        """Give the outputs from features, the fused one first, as `forward` does behind the encoders."""
        return self._outputs(features, {name: x for name, x in features.items() if not skip or name not in skip})

    def unimodal_outputs(self, features: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Give the own output of each modality from its features; nothing where the model has no such outputs."""
        if self.unimodal is None or not features:
            return {}
        if self.unimodal not in MASKED:
            given = {name: x.detach() if self.unimodal == "detached" else x for name, x in features.items()}
            return {name: self.heads[name](feature) for name, feature in given.items()}
        alone = [self.complete({name: feature}) for name, feature in features.items()]
        if self.unimodal == "masked_detached" and torch.is_grad_enabled():
            constants = {name: parameter.detach() for name, parameter in self.fusion.named_parameters()}
            fixed = [
                {other: x if other != name else x.detach() for other, x in one.items()}
                for name, one in zip(features, alone, strict=True)
            ]
            output = torch.func.functional_call(self.fusion, constants, (joined(fixed),))
        else:
            output = self.fusion(joined(alone))
        return dict(zip(features, parted(output, len(features)), strict=True))

    def missing(self, name: str) -> Tensor:
        """Return the learned vector of a missing sensor."""
        return self.absent[list(self.sizes).index(name)]

    def attention_shares(self, features: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Give the share of each sensor in the attention of the fused head's token, [B]; they add up to one."""
        return self._trunk_of().attention_shares(self.complete(features))

    def _trunk_of(self) -> Trunk:
        assert isinstance(self.fusion, Trunk)
        return self.fusion

    def _outputs(self, heard: Mapping[str, Tensor], own: Mapping[str, Tensor]) -> Tensors:
        """Give the fused output of some features and the own outputs of others, as one batch where all are passes."""
        if self.unimodal != "masked" or not own:
            return {"fused": self.fusion(self.complete(heard)), **self.unimodal_outputs(own)}
        passes = [self.complete(heard), *(self.complete({name: feature}) for name, feature in own.items())]
        return dict(zip(["fused", *own], parted(self.fusion(joined(passes)), len(passes)), strict=True))


def joined(passes: list[Tensors]) -> Tensors:
    """Lay the features of several passes behind one another."""
    return {name: torch.cat([one[name] for one in passes]) for name in passes[0]}


def parted(outputs: Tensor, passes: int) -> tuple[Tensor, ...]:
    """Take the outputs of several passes apart again, whatever the size of the batch."""
    return outputs.unflatten(0, (passes, -1)).unbind()
