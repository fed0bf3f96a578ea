"""One step of training, and one look at a part: what the loop and the measuring of time share."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from equipoise.balance import collectives
from equipoise.balance.balancer import Balancer
from equipoise.data.feed import Feed
from equipoise.data.splits import Part, Splits
from equipoise.models import LateFusion
from equipoise.models.choose import build_encoders
from equipoise.models.evaluation import evaluating
from equipoise.training.settings import Settings
from equipoise.training.tokens import check_words


def build_model(splits: Splits, balancer: Balancer, settings: Settings) -> LateFusion:
    """A late-fusion model for this data, whose uni-modal heads learn with the encoders or beside them."""
    encoders = build_encoders(settings.encoder, splits.shapes, settings.features)
    check_words(encoders, splits)
    view = "head" if balancer.unimodal == "head" else "detached"
    return LateFusion(encoders, len(splits.classes), fusion=settings.fusion, unimodal=view, dropout=settings.dropout)


def losses_of(model: LateFusion, balancer: Balancer, part: Part) -> tuple[Tensor, dict[str, Tensor]]:
    """The balanced loss of a batch, and the losses of its samples by objective."""
    compared, beside, seen = step_losses(model, balancer, part)
    return balancer(compared, extra=beside), seen


Losses = dict[str, Tensor]


def step_losses(model: LateFusion, balancer: Balancer, part: Part) -> tuple[Losses, Losses | None, Losses]:
    """What a balancer is given for a batch, what learns beside it, and the losses of the model's own outputs.

    A method that compares shares of the fused output gets those; the heads that are measured then learn beside it.
    """
    if balancer.unimodal == "split" and model.unimodal == "detached" and model.fusion.additive:
        outputs, shares = model.with_shares(part.inputs)
        seen = _cross_entropies(outputs, part.label)
        compared = {"fused": seen["fused"], **_cross_entropies(shares, part.label)}
        beside = torch.stack([loss.mean() for name, loss in seen.items() if name != "fused"]).sum()
        return compared, {"heads beside": beside}, seen
    seen = _cross_entropies(model(part.inputs), part.label)
    return seen, None, seen


def evaluate(model: LateFusion, part: Part | Feed, batch: int = 1024) -> dict[str, dict[str, float]]:
    """Loss and accuracy of the fused decision and of every head, counting each sample once.

    The processes that share a feed each take a part of it, and all give what they found together.
    """
    feed = part if isinstance(part, Feed) else Feed(part, part.label.device)
    sums: dict[str, Tensor] = {}
    with evaluating(model), torch.no_grad():
        for some, counts in feed.own_fixed(batch):
            for name, logits in model(some.inputs).items():
                loss = F.cross_entropy(logits, some.label, reduction="sum")
                hits = (logits.argmax(dim=1) == some.label).sum()
                sums[name] = sums.get(name, 0) + torch.stack([loss, hits]) * counts
    together = (
        collectives.total(torch.stack(list(sums.values()))) if feed.ranks > 1 else torch.stack(list(sums.values()))
    )
    means = (together / len(feed)).tolist()
    return {name: {"loss": loss, "accuracy": hits} for name, (loss, hits) in zip(sums, means, strict=True)}


def _cross_entropies(outputs: dict[str, Tensor], label: Tensor) -> dict[str, Tensor]:
    return {name: F.cross_entropy(logits, label, reduction="none") for name, logits in outputs.items()}
