"""Fusions: how the feature vectors of all modalities become one output."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from itertools import accumulate
from typing import final

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from equipoise.models.encoders import known_features
from equipoise.util.errors import unknown_name

HeadPart = tuple[Tensor, slice | None]
"""A parameter of the fused head, and its columns that belong to one modality; None where all of it does."""
HeadMaker = Callable[[int], nn.Module]
"""Makes a fresh head from the size of the feature vector it will read."""


@final
class NamedModules(nn.Module, Mapping[str, nn.Module]):
    """Modules by name, in the order given, for any name that a modality may have.

    `nn.ModuleDict` refuses names of its own attributes, such as "keys". Here those are stored with a "%" behind them,
    so that only they look odd in a state dict, and "audio" stays "audio".

    Args:
        modules: The modules by name.
    """

    def __init__(self, modules: Mapping[str, nn.Module]) -> None:
        super().__init__()
        self._named: dict[str, str] = {}  # the key of each name
        for name, module in modules.items():
            # A name that ends in "%" itself gets one more, so that no two names share a key.
            self._named[name] = f"{name}%" if not name or name.endswith("%") or hasattr(self, name) else name
            self.add_module(self._named[name], module)

    def __getitem__(self, name: str) -> nn.Module:
        return self._modules[self._named[name]]  # ty: ignore[invalid-return-type]

    def __iter__(self) -> Iterator[str]:
        return iter(self._named)

    def __len__(self) -> int:
        return len(self._named)

    # A mapping compares by content and so has no hash; torch keeps modules in sets, by identity.
    __eq__, __hash__ = object.__eq__, object.__hash__


class Fusion(nn.Module, ABC):
    """Turns the features of all modalities, [B, size of each], into the fused output.

    A fusion is additive if its output is a sum with one term per modality; then `share` gives the terms.
    """

    additive: bool = False
    """True if the output is a sum with one term per modality."""

    @abstractmethod
    def forward(self, features: Mapping[str, Tensor]) -> Tensor:
        """Give the fused output; every modality must be there."""

    def share(self, features: Mapping[str, Tensor]) -> dict[str, Tensor]:  # noqa: ARG002
        """Give each modality's own term of the fused output.

        Raises:
            ValueError: If the fusion is not additive: its output cannot be divided among the modalities.
        """
        raise ValueError(
            f"{type(self).__name__} has no shares: its output is no sum with one term per modality. "
            "Use fusion='concat' with a Linear head or fusion='sum', or give each modality a head: unimodal='head'."
        )

    def parts(self) -> dict[str, list[HeadPart]]:
        """List the parameters that only one modality's term has; none where the fusion is not additive."""
        return {}


def build_fusion(fusion: str | nn.Module, sizes: Mapping[str, int], head: HeadMaker) -> Fusion:
    """Build a fusion by name, or around a module of the user's.

    Args:
        fusion: "concat", "sum", "gated" or "film"; or a `Fusion`, taken as it is; or any module that turns a dict of
            features into one feature vector [B, features] and has the integer attribute `features`: a head is put on
            top of it.
        sizes: The size of each modality's feature vector, in the order of the modalities.
        head: Makes a head from a feature size.

    Returns:
        The fusion.

    Raises:
        ValueError: If the name is unknown, or the module does not tell its output size.
    """
    by_name = {"concat": Concat, "sum": Sum, "gated": Gated, "film": FiLM}
    if isinstance(fusion, nn.Module):
        return fusion if isinstance(fusion, Fusion) else Custom(fusion, head)
    if fusion not in by_name:
        raise ValueError(f"Unknown fusion: {unknown_name(fusion, by_name)} A module of your own works too.")
    return by_name[fusion](sizes, head)


@final
class Concat(Fusion):
    """One head on the concatenated features: out = W [h_1; …; h_K] + b.

    With a Linear head the share of modality k is W_k h_k + b/K, W_k being the columns of W that read h_k.

    Args:
        sizes: The size of each modality's feature vector.
        head: Makes a head from a feature size.
    """

    def __init__(self, sizes: Mapping[str, int], head: HeadMaker) -> None:
        super().__init__()
        self.sizes = dict(sizes)
        self.head = head(sum(sizes.values()))
        self.additive = isinstance(self.head, nn.Linear)

    def forward(self, features: Mapping[str, Tensor]) -> Tensor:
        """Give the fused output."""
        return self.head(torch.cat([features[name] for name in self.sizes], dim=1))

    def share(self, features: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Give each modality's own term of the fused output."""
        if not isinstance(self.head, nn.Linear):
            return super().share(features)
        columns = self.head.weight.split(list(self.sizes.values()), dim=1)
        bias = None if self.head.bias is None else self.head.bias / len(self.sizes)
        return {name: F.linear(features[name], own, bias) for name, own in zip(self.sizes, columns, strict=True)}

    def parts(self) -> dict[str, list[HeadPart]]:
        """List each modality's columns of the weight; the bias is shared by all."""
        if not isinstance(self.head, nn.Linear):
            return {}
        ends = zip(self.sizes.items(), accumulate(self.sizes.values()), strict=True)
        return {name: [(self.head.weight, slice(end - size, end))] for (name, size), end in ends}


@final
class Sum(Fusion):
    """One head per modality, outputs summed: out = Σ_k (V_k h_k + c_k). The terms are the shares.

    Args:
        sizes: The size of each modality's feature vector.
        head: Makes a head from a feature size.
    """

    additive = True

    def __init__(self, sizes: Mapping[str, int], head: HeadMaker) -> None:
        super().__init__()
        self.heads = NamedModules({name: head(size) for name, size in sizes.items()})

    def forward(self, features: Mapping[str, Tensor]) -> Tensor:
        """Give the fused output."""
        return torch.stack(list(self.share(features).values())).sum(dim=0)

    def share(self, features: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Give each modality's own term of the fused output."""
        return {name: head(features[name]) for name, head in self.heads.items()}

    def parts(self) -> dict[str, list[HeadPart]]:
        """List the parameters of each modality's head."""
        return {name: [(parameter, None) for parameter in head.parameters()] for name, head in self.heads.items()}


@final
class Gated(Fusion):
    """The other modalities gate the carrier: out = head(mean_k sigmoid(G_k h_k) ⊙ P h_carrier).

    The carrier alone, K = 1, is projected and not gated. With two modalities this is the gated fusion of the papers.

    Args:
        sizes: The size of each modality's feature vector.
        head: Makes a head from a feature size.
        carrier: The modality that is gated; the last one by default.

    Raises:
        ValueError: If the carrier is none of the modalities.
    """

    def __init__(self, sizes: Mapping[str, int], head: HeadMaker, carrier: str | None = None) -> None:
        super().__init__()
        self.carrier = _chosen("carrier", carrier, sizes, default=-1)
        width = sizes[self.carrier]
        self.project = nn.Linear(width, width)
        self.gates = NamedModules({name: nn.Linear(sizes[name], width) for name in sizes if name != self.carrier})
        self.head = head(width)

    def forward(self, features: Mapping[str, Tensor]) -> Tensor:
        """Give the fused output."""
        carried = self.project(features[self.carrier])
        if self.gates:
            gates = [gate(features[name]).sigmoid() for name, gate in self.gates.items()]
            carried = carried * torch.stack(gates).mean(dim=0)
        return self.head(carried)


@final
class FiLM(Fusion):
    """The conditioner scales and shifts the others: out = head(γ ⊙ v + β).

    γ and β are linear in the conditioner's features; v is all others concatenated.
    With two modalities this is the FiLM fusion of the papers. From "FiLM: Visual Reasoning with a General Conditioning
    Layer" (Perez et al., 2018).

    Args:
        sizes: The size of each modality's feature vector.
        head: Makes a head from a feature size.
        conditioner: The modality that scales and shifts; the first one by default.

    Raises:
        ValueError: If the conditioner is none of the modalities, or the only one.
    """

    def __init__(self, sizes: Mapping[str, int], head: HeadMaker, conditioner: str | None = None) -> None:
        super().__init__()
        self.conditioner = _chosen("conditioner", conditioner, sizes, default=0)
        self.conditioned = [name for name in sizes if name != self.conditioner]
        if not self.conditioned:
            hint = f"found only {self.conditioner!r}. Use fusion='concat'."
            raise ValueError(f"FiLM expected at least two modalities, one that conditions the others; {hint}")
        width = sum(sizes[name] for name in self.conditioned)
        self.scale_and_shift = nn.Linear(sizes[self.conditioner], 2 * width)
        self.head = head(width)

    def forward(self, features: Mapping[str, Tensor]) -> Tensor:
        """Give the fused output."""
        scale, shift = self.scale_and_shift(features[self.conditioner]).chunk(2, dim=1)
        others = torch.cat([features[name] for name in self.conditioned], dim=1)
        return self.head(scale * others + shift)


@final
class Custom(Fusion):
    """A head on the feature vector that a module of the user's computes.

    Args:
        joint: Turns a dict of features into one feature vector [B, features]; has the integer attribute `features`.
        head: Makes a head from a feature size.

    Raises:
        ValueError: If the module does not tell its output size.
    """

    def __init__(self, joint: nn.Module, head: HeadMaker) -> None:
        super().__init__()
        self.joint = joint
        self.head = head(known_features("LateFusion", joint, "fusion"))

    def forward(self, features: Mapping[str, Tensor]) -> Tensor:
        """Give the fused output."""
        return self.head(self.joint(dict(features)))


def _chosen(role: str, name: str | None, sizes: Mapping[str, int], default: int) -> str:
    if name is not None and name not in sizes:
        raise ValueError(f"Unknown {role}: {unknown_name(name, sizes)}")
    return list(sizes)[default] if name is None else name
