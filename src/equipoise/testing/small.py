"""A model and a batch small enough to check every gradient of."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias, final

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from equipoise.balance.balancer import Balancer
from equipoise.balance.losses import Table
from equipoise.models.evaluation import cross_entropies

Batch: TypeAlias = "tuple[dict[str, Tensor], Tensor]"  # inputs by modality, and labels


def names(count: int) -> list[str]:
    """Names for any number of modalities."""
    return ["audio", "video", "text", "depth", "touch", "radar", "lidar", "pulse"][:count]


@final
class SmallModel(nn.Module):
    """Separate encoders, a head each, and a fused head on all features: small, smooth, in double precision.

    Args:
        modalities: Their names.
        detached: Put the uni-modal heads on detached features.
        seed: Of the weights.
    """

    def __init__(self, modalities: Sequence[str], *, detached: bool = False, seed: int = 0) -> None:
        super().__init__()
        with torch.random.fork_rng():
            # One seed per name, so that the order of modalities does not decide who gets which weights.
            self.encoders = nn.ModuleDict({name: _seeded(name, seed) for name in modalities})
            torch.manual_seed(seed)
            self.heads = nn.ModuleDict({name: nn.Linear(4, 3) for name in sorted(modalities)})
            self.fused = nn.ModuleDict({name: nn.Linear(4, 3) for name in sorted(modalities)})
        self.detached = detached
        self.double()

    def forward(self, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        """Logits by name, fused first."""
        features = {name: encoder(inputs[name]) for name, encoder in self.encoders.items()}
        outputs = {"fused": torch.stack([self.fused[name](h) for name, h in features.items()]).sum(0)}
        for name, feature in features.items():
            outputs[name] = self.heads[name](feature.detach() if self.detached else feature)
        return outputs


def _seeded(name: str, seed: int) -> nn.Sequential:
    torch.manual_seed(sum(map(ord, name)) + seed)
    return nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 4))


def batch(modalities: Sequence[str], size: int = 12, seed: int = 0) -> Batch:
    """Inputs in which the first name says more about the label than the last."""
    random = torch.Generator().manual_seed(seed)
    label = torch.randint(0, 3, (size,), generator=random)
    inputs = {}
    for rank, name in enumerate(sorted(modalities), start=1):
        own = torch.Generator().manual_seed(sum(map(ord, name)) + seed)
        inputs[name] = torch.randn(size, 3, generator=own, dtype=torch.float64) + 1 / rank * F.one_hot(label, 3)
    return inputs, label


def losses_of(model: nn.Module, data: Batch, factor: float = 1.0) -> dict[str, Tensor]:
    """Cross-entropies per sample, by name."""
    inputs, label = data
    return {name: factor * loss for name, loss in cross_entropies(model(inputs), label).items()}


def gradients_of(model: nn.Module) -> dict[str, Tensor]:
    """The gradients by parameter name; zeros where there is none."""
    return {name: torch.zeros_like(p) if p.grad is None else p.grad.clone() for name, p in model.named_parameters()}


def told_by(table: Table, model: nn.Module, data: Batch) -> dict[str, Tensor]:
    """The gradients that a table says were delivered: of each objective its own, times its coefficient, summed.

    NaN where an objective does reach a block that the table says it does not.
    """
    told = {name: torch.zeros_like(p) for name, p in model.named_parameters()}
    for objective, loss in losses_of(model, data).items():
        model.zero_grad()
        loss.mean().backward(retain_graph=True)
        for name, gradient in gradients_of(model).items():
            block = name.split(".")[1] if name.startswith("encoders.") else "heads"
            if gradient.any():
                told[name] += table.at(objective, block).double() * gradient
    return told


def attached(balancer: Balancer, model: nn.Module, optimizer: Any | None = None) -> Balancer:
    """Attach with a plain SGD optimiser, so that modulation acts on gradients."""
    return balancer.attach(model, optimizer=optimizer or torch.optim.SGD(model.parameters(), lr=0.1))
