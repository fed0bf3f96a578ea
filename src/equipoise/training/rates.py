"""Learning rates by depth, for encoders that were trained before."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor, nn

from equipoise.balance.attach import Attachment, Encoder
from equipoise.util.errors import demand

_LISTS = (nn.Sequential, nn.ModuleList)


def layerwise(
    model: nn.Module, lr: float | Tensor, decay: float = 0.8, *, encoders: Mapping[str, Encoder] | None = None
) -> list[dict[str, Any]]:
    """Groups of parameters for an optimiser: heads learn at ``lr``, each layer of an encoder more slowly than the next.

    The n-th layer from an encoder's top learns at lr · decayⁿ, its last one at lr · decay. Layers are modules of one
    kind in a list, such as the blocks of a transformer or a ResNet, and what comes before and after such lists; a norm
    belongs to the layer before it. Biases, norms and single tokens are not subject to weight decay.

    Args:
        model: The model, bare or wrapped.
        lr: Learning rate of everything that is in no encoder.
        decay: By how much a layer is slower than the one above it; 1 means not at all.
        encoders: As for `Balancer.attach`; a model with a mapping ``encoders``, such as LateFusion, needs no telling.

    Returns:
        One group per rate, slowest first; ``torch.optim.AdamW(layerwise(model, 1e-4), weight_decay=0.05)``.

    Example:
        >>> from equipoise import LateFusion
        >>> encoder = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 4))
        >>> model = LateFusion({"audio": encoder}, classes=2)
        >>> [(group["lr"], len(group["params"])) for group in layerwise(model, 1.0, 0.5) if "weight_decay" not in group]
        [(0.25, 1), (0.5, 1), (1.0, 2)]
    """
    demand("layerwise", (0 < decay <= 1, "decay should be above zero and at most 1", decay))
    attachment = Attachment(model, encoders, None)
    depths: dict[int, int] = {}  # of each parameter of an encoder; a shared one is as deep as where it is least deep
    for parts in attachment.encoders.values():
        layers = _joined([layer for part in parts for layer in _layers(part)])
        for number, tensors in enumerate(layers):
            for tensor in tensors:
                depths[id(tensor)] = min(depths.get(id(tensor), len(layers)), len(layers) - number)
    groups: dict[tuple[int, bool], list[Tensor]] = {}
    for tensor in (attachment.model or model).parameters():
        groups.setdefault((depths.get(id(tensor), 0), not _weighs(tensor)), []).append(tensor)
    return [
        {"params": groups[depth, vector], "lr": lr * decay**depth} | ({"weight_decay": 0.0} if vector else {})
        for depth, vector in sorted(groups, key=lambda key: (-key[0], key[1]))
    ]


def _layers(part: nn.Module | Tensor, *, listed: bool = False) -> Iterator[list[Tensor]]:
    """The parameters of an encoder in layers, from the bottom up.

    Args:
        part: The encoder, or a part of it.
        listed: Whether it stands in a list of unlike parts. Then it is one layer, unless it has a stack of layers
            inside.
    """
    if isinstance(part, Tensor):
        yield [part]
    elif _is_stack(part):
        yield from (list(child.parameters()) for child in part.children())
    elif any(_is_stack(inner) if listed else isinstance(inner, _LISTS) for inner in part.modules()):
        own = list(part.parameters(recurse=False))  # such as positions, which go with what comes first
        for child in part.children():
            for layer in _layers(child, listed=listed or isinstance(part, _LISTS)):
                yield own + layer
                own = []
    else:
        yield list(part.parameters())


def _is_stack(module: nn.Module) -> bool:
    """Whether it is a list of several layers of one kind."""
    kinds = [type(each) for each in module.children() if next(each.parameters(), None) is not None]
    return isinstance(module, _LISTS) and len(kinds) > 1 and len(set(kinds)) == 1


def _joined(layers: list[list[Tensor]]) -> list[list[Tensor]]:
    """Layers without a matrix, such as norms, go with the one before; what comes before all of them, with the first."""
    joined: list[list[Tensor]] = []
    early: list[Tensor] = []
    for tensors in layers:
        if any(_weighs(tensor) for tensor in tensors):
            joined.append([*early, *tensors])
            early = []
        elif joined:
            joined[-1] += tensors
        else:
            early += tensors
    return joined or [early]


def _weighs(tensor: Tensor) -> bool:
    """Whether it is a matrix or a kernel: tokens and positions are stored with leading ones."""
    return sum(size > 1 for size in tensor.shape) > 1
