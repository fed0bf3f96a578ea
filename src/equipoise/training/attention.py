"""The share of each sensor in the attention of a hybrid model, on a part of the data."""

import torch

from equipoise.balance import collectives
from equipoise.data.feed import Feed
from equipoise.models.evaluation import evaluating
from equipoise.models.hybrid_fusion import HybridFusion

BATCH = 1024


def attention_of(model: HybridFusion, feed: Feed) -> dict[str, float]:
    """Return the mean share of each sensor in the attention of the fused head's token; they add up to one."""
    totals = torch.zeros(len(model.encoders), device=model.committee.device)
    with evaluating(model), torch.no_grad():
        for part, counts, _ in feed.evaluation_batches(BATCH):
            shares = model.attention_shares(model.features(part.inputs))
            totals += torch.stack([share.float().sum() for share in shares.values()]) * counts
    totals = collectives.total(totals) if feed.ranks > 1 else totals
    return dict(zip(model.encoders, (totals / totals.sum()).tolist(), strict=True))
