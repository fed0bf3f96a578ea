"""Purities of the features of every modality, for methods that ask how well encoders generalise."""

from collections.abc import Mapping

import torch
from torch import Tensor

from equipoise.data.feed import Feed
from equipoise.models.clusters import LIMIT, purity
from equipoise.models.encoded import EncodedModel
from equipoise.models.evaluation import evaluating
from equipoise.models.fusion_model import FusionModel
from equipoise.training import launch

BATCH = 1024
"""Samples that are read at a time."""


def purities(model: FusionModel, feeds: Mapping[str, Feed]) -> dict[str, dict[str, float]]:
    """Return the purity of the clusters of each modality's features, by modality and name of the feed.

    The first process computes them, and all return the same. Samples that lack a sensor do not count for it.

    Args:
        model: In evaluation mode for the while. Of a model of one's own, whose features are not known, the outputs of
            the modalities take their place.
        feeds: By the name that their purity gets.
    """
    found: dict[str, dict[str, float]] = {}
    if launch.is_main():
        clusters = model.known_task().size
        for key, feed in feeds.items():
            features, labels, masks = _features(model, feed)
            for name, rows in features.items():
                here = masks.get(name, torch.ones(len(rows), dtype=torch.bool))
                found.setdefault(name, {})[key] = purity(rows[here], labels[here], clusters)
    return launch.broadcast(found)


def _features(model: FusionModel, feed: Feed) -> tuple[dict[str, Tensor], Tensor, dict[str, Tensor]]:
    """Return features by modality, labels, and who has which sensor, of evenly spaced samples."""
    rows = torch.linspace(0, len(feed) - 1, min(len(feed), LIMIT)).round().long()
    features: dict[str, list[Tensor]] = {}
    masks: dict[str, list[Tensor]] = {}
    labels = []
    with evaluating(model), torch.no_grad():
        for batch in feed.batches(rows.split(BATCH)):
            part = feed.make(batch, at_random=False)
            read = model.features(part.inputs)
            for name, vectors in (read if isinstance(model, EncodedModel) else model.unimodal_outputs(read)).items():
                features.setdefault(name, []).append(vectors.float().cpu())
            for name, mask in part.present.items():
                masks.setdefault(name, []).append(mask.cpu())
            labels.append(part.label.cpu())
    joined = [{name: torch.cat(parts) for name, parts in each.items()} for each in (features, masks)]
    return joined[0], torch.cat(labels), joined[1]
