"""Small models of many kinds, in double precision, and the batches and losses that are computed with them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple, TypeAlias, final

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from equipoise import HybridFusion, LateFusion

INPUTS, HIDDEN, CLASSES = 3, 4, 3
View: TypeAlias = Literal["head", "detached", "split", "masked", "masked_detached"]


class Shape(NamedTuple):
    """How a model is built; equal shapes give equal weights.

    Args:
        modalities: Their names.
        kind: "late" is a `LateFusion`, "hybrid" a `HybridFusion`, "own" a model as a user would write it.
        fusion: Of a LateFusion "concat", "sum", "gated", "film" or "custom"; of one's own "linear" or "mlp".
        unimodal: Where a modality's own output comes from: "head", "detached", "split", "masked", "masked_detached".
        layers: Of the encoders: "linear", "tanh", "relu", "conv", "norm".
        bias: Whether encoders have biases.
        shared: What the first two encoders have in common: "", "stem", "whole".
        entangled: How features mix before any head reads them: "", "attend", "chain".
        side: A layer inside each encoder that its uni-modal output alone reads: "", "attached", "detached".
        trunk: Whether the balancer is told where encoders meet: the trunk of a hybrid, what mixes entangled features.
        blind: Whether the fused output leaves out the last modality.
        frozen: Encoders that do not train, by number.
        frozen_stem: Whether the stem of the first encoder does not train.
        spare: Whether encoders and the model hold a parameter that nothing uses.
        seed: Of the weights.
    """

    modalities: tuple[str, ...]
    kind: str = "own"
    fusion: str = "linear"
    unimodal: View = "head"
    layers: str = "tanh"
    bias: bool = True
    shared: str = ""
    entangled: str = ""
    side: str = ""
    trunk: bool = False
    blind: bool = False
    frozen: tuple[int, ...] = ()
    frozen_stem: bool = False
    spare: bool = False
    seed: int = 0


@final
class Encoder(nn.Module):
    """A stem and a body, with an activation between them."""

    def __init__(self, shape: Shape, features: int, stem: nn.Module | None) -> None:
        super().__init__()
        self.features, self.layers = features, shape.layers
        self.stem = stem if stem is not None else _stem(shape)
        width = 2 * (INPUTS - 1) if shape.layers == "conv" else HIDDEN
        self.body = nn.Linear(width, features, bias=shape.bias)
        if shape.side:
            self.side = nn.Linear(features, CLASSES)
        if shape.spare:
            self.spare = nn.Parameter(torch.randn(2))

    def forward(self, inputs: Tensor) -> Tensor:
        if self.layers == "conv":
            return self.body(self.stem(inputs.unsqueeze(1)).tanh().flatten(1))
        hidden = self.stem(inputs)
        if self.layers == "relu":
            hidden = hidden.relu()
        elif self.layers != "linear":
            hidden = hidden.tanh()
        return self.body(hidden)


def _stem(shape: Shape) -> nn.Module:
    if shape.layers == "conv":
        return nn.Conv1d(1, 2, 2, bias=shape.bias)
    linear = nn.Linear(INPUTS, HIDDEN, bias=shape.bias)
    return nn.Sequential(linear, nn.BatchNorm1d(HIDDEN)) if shape.layers == "norm" else linear


def _encoders(shape: Shape) -> list[Encoder]:
    made: list[Encoder] = []
    for number in range(len(shape.modalities)):
        features = 3 if shape.shared or shape.entangled else 2 + number % 3
        if number == 1 and shape.shared == "whole":
            made.append(made[0])
        else:
            stem = made[0].stem if number == 1 and shape.shared == "stem" else None
            made.append(Encoder(shape, features, stem))
    return made


@final
class Join(nn.Module):
    """A fusion of a user's own: the product of two projections of all features."""

    def __init__(self, sizes: Sequence[int]) -> None:
        super().__init__()
        self.features = 3
        self.left, self.right = (nn.Linear(sum(sizes), self.features) for _ in range(2))

    def forward(self, features: Mapping[str, Tensor]) -> Tensor:
        joined = torch.cat(list(features.values()), dim=1)
        return self.left(joined) * self.right(joined).tanh()


@final
class Own(nn.Module):
    """A model as a user would write it: a list of networks, a fused head, and a head for each network."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        nets = _encoders(shape)
        self.nets = nn.ModuleList(nets)
        sizes = [net.features for net in nets]
        read = sizes[:-1] if shape.blind else sizes
        if shape.entangled == "attend":
            self.mix = nn.Linear(3, 3)
        elif shape.entangled == "chain":
            self.link = nn.Linear(3, INPUTS)
        self.fused = nn.Linear(sum(read), CLASSES)
        if shape.fusion == "mlp":
            self.fused = nn.Sequential(nn.Linear(sum(read), HIDDEN), nn.Tanh(), nn.Linear(HIDDEN, CLASSES))
        self.heads = nn.ModuleList(nn.Linear(size, CLASSES) for size in sizes)
        if shape.spare:
            self.spare = nn.Parameter(torch.randn(2))

    def forward(self, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        shape = self.shape
        features: list[Tensor] = []
        for name, net in zip(shape.modalities, self.nets, strict=True):
            linked = self.link(features[-1]) if shape.entangled == "chain" and features else 0
            features.append(net(inputs[name] + linked))
        if shape.entangled == "attend":
            every = torch.stack(features)  # [K, B, 3]
            attention = torch.einsum("kbf,jbf->bkj", every, every).softmax(dim=-1)
            features = list((every + self.mix(torch.einsum("bkj,jbf->kbf", attention, every))).unbind())
        outputs = {"fused": self.fused(torch.cat(features[:-1] if shape.blind else features, dim=1))}
        for name, net, head, feature in zip(shape.modalities, self.nets, self.heads, features, strict=True):
            outputs[name] = head(feature.detach() if shape.unimodal == "detached" else feature)
            if shape.side:
                outputs[name] = outputs[name] + net.get_submodule("side")(
                    feature.detach() if shape.side == "detached" else feature
                )
        return outputs


def build(shape: Shape) -> nn.Module:
    """The model of a shape. It is called with inputs by name and gives outputs by name, "fused" first."""
    torch.manual_seed(shape.seed)
    if shape.kind == "own":
        model: nn.Module = Own(shape)
    elif shape.kind == "hybrid":
        named = dict(zip(shape.modalities, _encoders(shape), strict=True))
        model = HybridFusion(named, CLASSES, unimodal=shape.unimodal, width=4, depth=1)
        for vector in model.absent:  # they start as zeros
            nn.init.normal_(vector)
    else:
        encoders = _encoders(shape)
        fusion = Join([encoder.features for encoder in encoders]) if shape.fusion == "custom" else shape.fusion
        model = LateFusion(
            dict(zip(shape.modalities, encoders, strict=True)), CLASSES, fusion=fusion, unimodal=shape.unimodal
        )
    encoders = encoders_of(model, shape)
    if shape.frozen_stem:
        encoders[shape.modalities[0]].stem.requires_grad_(False)
    for number in shape.frozen:
        encoders[shape.modalities[number]].requires_grad_(False)
    return model.double()


def encoders_of(model: nn.Module, shape: Shape) -> dict[str, Any]:
    """The encoders of a model by modality."""
    if isinstance(model, Own):
        return dict(zip(shape.modalities, model.nets, strict=True))
    assert isinstance(model, LateFusion | HybridFusion)
    return dict(model.encoders.items())


def trunk_of(model: nn.Module) -> list[nn.Module | Tensor]:
    """The part in which encoders meet, as a balancer is told of it; some name a layer of an encoder too."""
    if isinstance(model, HybridFusion):
        return list(model.trunk)
    assert isinstance(model, Own)
    parts = [part for name in ("mix", "link") if isinstance(part := getattr(model, name, None), nn.Module)]
    return [*parts, model.nets[0].get_submodule("body")] if model.shape.seed % 2 else list(parts)


class Batch(NamedTuple):
    """Inputs by modality, and labels."""

    inputs: dict[str, Tensor]
    labels: Tensor


def batch(shape: Shape, seed: int) -> Batch:
    """A few samples; modalities tell more or less of the label."""
    random = torch.Generator().manual_seed(seed)
    size = 4 + seed % 4
    labels = torch.randint(CLASSES, (size,), generator=random)
    inputs = {}
    for number, name in enumerate(shape.modalities):
        noise = torch.randn(size, INPUTS, generator=random, dtype=torch.float64)
        inputs[name] = noise + F.one_hot(labels, INPUTS) / (1 + number)
    return Batch(inputs, labels)


FORMS = ("vectorised", "vectorised unimodal", "stack zip", "stack unbind", "stack select", "stack split")
"""Ways in which several losses are slices of one tensor."""


def separate_losses(
    outputs: Mapping[str, Tensor], labels: Tensor, scalars: frozenset[str], factors: Mapping[str, float]
) -> dict[str, Tensor]:
    """Cross-entropies by name, each from its own output: a mean where the name is in ``scalars``, else per sample."""
    return {
        name: factors.get(name, 1.0) * F.cross_entropy(logits, labels, reduction="mean" if name in scalars else "none")
        for name, logits in outputs.items()
    }


def losses_of(
    outputs: Mapping[str, Tensor], labels: Tensor, scalars: frozenset[str], factors: Mapping[str, float], form: str
) -> dict[str, Tensor]:
    """The same losses as `separate_losses`, as slices of one tensor where ``form`` says so."""
    if form == "separate":
        return separate_losses(outputs, labels, scalars, factors)
    names = [name for name in outputs if name != "fused" or form != "vectorised unimodal"]
    if form.startswith("vectorised"):
        logits = torch.stack([outputs[name] for name in names])
        samples = F.cross_entropy(logits.flatten(0, 1), labels.repeat(len(names)), reduction="none")
        whole = samples.view(len(names), -1) * samples.new_tensor([factors.get(name, 1.0) for name in names])[:, None]
        whole = whole.mean(dim=1) if scalars else whole
        found = dict(zip(names, whole, strict=True))
        rest = {name: logits for name, logits in outputs.items() if name not in names}
        return separate_losses(rest, labels, scalars, factors) | found
    whole = torch.stack(list(separate_losses(outputs, labels, scalars, factors).values()))
    if form == "stack unbind":
        slices: Sequence[Tensor] = whole.unbind()
    elif form == "stack select":
        slices = [whole[number] for number in range(len(names))]
    elif form == "stack split":
        slices = [piece.squeeze(0) for piece in whole.split(1)]
    else:
        return dict(zip(names, whole, strict=True))
    return dict(zip(names, slices, strict=True))


def extra_of(model: nn.Module, outputs: Mapping[str, Tensor], kind: str) -> dict[str, Tensor]:
    """Losses that belong to no modality: a decay of every parameter, one of a few, and one that reads outputs."""
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if kind == "decay":
        return {"decay": 0.1 * torch.stack([parameter.square().sum() for parameter in parameters]).sum()}
    if kind == "some":
        return {"some": 0.1 * parameters[0].square().sum(), "last": parameters[-1].sum()}
    return {"outputs": torch.stack([each.square().mean(dim=1) for each in outputs.values()]).sum(dim=0)}
