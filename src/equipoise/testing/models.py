"""Small models in double precision, batches and losses for them, and the gradients that a table stands for."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypeAlias, final

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from equipoise.balance.balancer import Balancer
from equipoise.balance.coefficients import FUSED, FUSED_HEAD, OWN_HEADS, TRUNK
from equipoise.models.evaluation import cross_entropies
from equipoise.models.hybrid_fusion import HybridFusion
from equipoise.models.late_fusion import LateFusion

Batch: TypeAlias = "tuple[dict[str, Tensor], Tensor]"  # inputs by modality, and labels


def names(count: int) -> list[str]:
    """Names for any number of modalities."""
    return ["audio", "video", "text", "depth", "touch", "radar", "lidar", "pulse"][:count]


@final
class SmallModel(nn.Module):
    """Separate encoders, a head each, and a fused head on all features: small and smooth.

    Args:
        modalities: Their names.
        detached: Put the uni-modal heads on detached features.
        seed: Of the weights.
    """

    def __init__(self, modalities: Sequence[str], *, detached: bool = False, seed: int = 0) -> None:
        super().__init__()
        with torch.random.fork_rng():
            # One seed per name, so that the order of modalities does not decide which gets which weights.
            self.encoders = nn.ModuleDict({name: _seeded(name, seed) for name in modalities})
            torch.manual_seed(seed)
            self.heads = nn.ModuleDict({name: nn.Linear(4, 3) for name in sorted(modalities)})
            self.fused = nn.ModuleDict({name: nn.Linear(4, 3) for name in sorted(modalities)})
        self.detached = detached
        self.double()

    def forward(self, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        """Logits by name, fused first."""
        features = {name: encoder(inputs[name]) for name, encoder in self.encoders.items()}
        outputs = {FUSED: torch.stack([self.fused[name](h) for name, h in features.items()]).sum(0)}
        for name, feature in features.items():
            outputs[name] = self.heads[name](feature.detach() if self.detached else feature)
        return outputs


def _seeded(name: str, seed: int) -> nn.Sequential:
    torch.manual_seed(sum(map(ord, name)) + seed)
    return nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 4))


def shares_model(modalities: Sequence[str]) -> LateFusion:
    """Separate encoders under one fused head, whose output divides into a share of each modality."""
    with torch.random.fork_rng():
        torch.manual_seed(len(modalities))
        return LateFusion({name: _seeded(name, 0) for name in modalities}, classes=3, unimodal="split").double()


def hybrid_model(modalities: Sequence[str], unimodal: Literal["masked", "head"] = "masked") -> HybridFusion:
    """Encoders that meet in a small trunk."""
    with torch.random.fork_rng():
        torch.manual_seed(len(modalities))
        encoders = {name: _seeded(name, 0) for name in modalities}
        model = HybridFusion(encoders, classes=3, unimodal=unimodal, width=4, depth=1)
        for vector in model.absent:  # they start as zeros
            nn.init.normal_(vector)
    return model.double()


MODELS: dict[str, Callable[[Sequence[str]], nn.Module]] = {
    "separate heads": SmallModel,
    "shares": shares_model,
    "a trunk": hybrid_model,
}
"""The models that every method is held against."""


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


def masks_for(modalities: Sequence[str], size: int = 12, seed: int = 0) -> dict[str, Tensor]:
    """Masks under which some samples lack a sensor, by modality; at least one has it, and at least one does not."""
    masks = {}
    for name in modalities:
        random = torch.Generator().manual_seed(sum(map(ord, name)) + seed)
        masks[name] = torch.rand(size, generator=random) < 0.6
        masks[name][:2] = torch.tensor([True, False])
    return masks


def gradients_of(model: nn.Module) -> dict[str, Tensor]:
    """The gradients by parameter name; zeros where a parameter has no gradient."""
    return {name: torch.zeros_like(p) if p.grad is None else p.grad.clone() for name, p in model.named_parameters()}


def beside(balancer: Balancer, losses: Mapping[str, Tensor]) -> dict[str, dict[str, Tensor]]:
    """Scores and further objectives made up from losses, for a method that has to be given some: arguments by name."""
    given: dict[str, dict[str, Tensor]] = {}
    modalities = sorted(name for name in losses if name != FUSED)
    kinds, held = balancer.needs.given_scores, balancer.held
    if kinds and (held is None or held.answer is None or held.lag):  # else a window was given the scores
        columns = range(1, len(kinds) + 1)
        scores = {name: [(-losses[name].detach() / place).exp() for place in columns] for name in modalities}
        given["scores"] = {n: rows[0] if len(rows) == 1 else torch.stack(rows, dim=-1) for n, rows in scores.items()}
    if balancer.needs.further and torch.is_grad_enabled():
        given["further"] = {n: -(losses[FUSED] * place).tanh() for place, n in enumerate(modalities, start=2)}
    return given


def balanced(balancer: Balancer, losses: Mapping[str, Tensor], **more: Any) -> Tensor:
    """Call a balancer on losses, and give it besides them what it needs."""
    return balancer(losses, **{**beside(balancer, losses), **more})


def objectives_of(balancer: Balancer, losses: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The losses by the names that they have in the table, with those made up beside them."""
    further = beside(balancer, losses).get("further", {})
    return {**losses, **{f"{balancer.needs.further} {name}": loss for name, loss in further.items()}}


def blocks_of(balancer: Balancer, model: nn.Module, fused: Tensor) -> dict[str, str]:
    """The column of the table that each parameter of a model belongs to, by its name.

    Args:
        balancer: What is attached to the model.
        model: One that is made here.
        fused: The fused loss of a batch.
    """
    parameters = dict(model.named_parameters())
    reached = torch.autograd.grad(fused.sum(), list(parameters.values()), retain_graph=True, allow_unused=True)
    trunk = {id(tensor) for tensor in balancer.attachment.trunk()} if balancer.attachment is not None else set()
    blocks = {}
    for (name, tensor), gradient in zip(parameters.items(), reached, strict=True):
        # Pieces of one tensor connect the fused loss with more than it depends on: there its gradient is zero.
        alone = gradient is None or not gradient.any()
        blocks[name] = OWN_HEADS if alone else TRUNK if id(tensor) in trunk else FUSED_HEAD
        if name.startswith("encoders."):
            blocks[name] = name.split(".")[1]
    return blocks


def told_by(
    balancer: Balancer, model: nn.Module, losses: Mapping[str, Tensor], masks: Mapping[str, Tensor] | None = None
) -> dict[str, Tensor]:
    """The gradients that the table of a step says were delivered: of each objective its own, times its coefficient.

    NaN where an objective does reach a block that the table says it does not.

    Args:
        balancer: It has been called on these losses.
        model: It is attached to.
        losses: One value per sample, with their graph.
        masks: Of the samples that have a sensor.
    """
    table, parameters = balancer.table, dict(model.named_parameters())
    blocks = blocks_of(balancer, model, losses[FUSED])
    parts = balancer.attachment.head_parts() if balancer.attachment is not None else {}
    told = {name: torch.zeros_like(tensor) for name, tensor in parameters.items()}
    for objective, loss in objectives_of(balancer, losses).items():
        mask = (masks or {}).get(objective)
        mean = loss.mean() if mask is None else torch.where(mask, loss, 0.0).sum() / mask.sum().clamp(min=1)
        gradients = torch.autograd.grad(mean, list(parameters.values()), retain_graph=True, allow_unused=True)
        for (name, tensor), gradient in zip(parameters.items(), gradients, strict=True):
            if gradient is None or not gradient.any():
                continue
            term = _weighed(gradient, table.at(objective, blocks[name]))
            for modality, own in parts.items():  # a part of the fused head may belong to the block of an encoder
                for part in own:
                    if part.tensor is tensor:
                        part.of(term).copy_(_weighed(part.of(gradient), table.at(objective, modality)))
            told[name] += term
    return told


def _weighed(gradient: Tensor, coefficient: Tensor) -> Tensor:
    return torch.where(gradient == 0, 0.0, coefficient.double() * gradient)


def attached(balancer: Balancer, model: nn.Module, optimizer: Any | None = None) -> Balancer:
    """Attach with a plain SGD optimiser, so that modulation acts on gradients."""
    return balancer.attach(model, optimizer=optimizer or torch.optim.SGD(model.parameters(), lr=0.1))
