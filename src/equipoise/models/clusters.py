"""Purity of clusters: how well classes separate in the features of a modality, without looking at any head."""

import warnings

import numpy as np
import torch
from torch import Tensor

from equipoise.util.errors import demand
from equipoise.util.extras import needs

LIMIT = 4000
"""Samples that are looked at, evenly spaced: k-means of more takes long and says the same."""


def purity(features: Tensor, labels: Tensor, clusters: int, *, seed: int = 0) -> float:
    """Return the purity of k-means clusters of features: the share of samples of their cluster's most frequent class.

    Each feature is scaled to [−1, 1] first. Of more than 4,000 samples, 4,000 evenly spaced ones are looked at; of none
    the purity is 0. Needs scikit-learn.

    Args:
        features: One vector per sample, [B, F].
        labels: The classes, whole numbers from 0 on, [B].
        clusters: How many; usually the number of classes.
        seed: Of k-means.

    Example:
        >>> features = torch.tensor([[0.0], [0.1], [0.2], [5.0], [5.1]])
        >>> purity(features, torch.tensor([0, 0, 1, 1, 1]), clusters=2)
        0.8
    """
    demand(
        "purity",
        (features.dim() == 2, "features should be one vector per sample, [B, F]", list(features.shape)),
        (labels.dim() == 1 and len(labels) == len(features), "labels should be one class per sample", labels.shape),
        (clusters >= 1, "clusters should be at least one", clusters),
    )
    with needs("purity", "train"):
        from sklearn.cluster import KMeans
        from sklearn.exceptions import ConvergenceWarning

    if len(features) == 0:
        return 0.0
    rows = torch.linspace(0, len(features) - 1, min(len(features), LIMIT)).round().long()
    chosen, classes = features.detach().cpu().double().numpy()[rows], labels.cpu().numpy()[rows]
    low, high = chosen.min(axis=0), chosen.max(axis=0)
    scaled = 2 * (chosen - low) / np.where(high > low, high - low, 1.0) - 1
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # of fewer distinct samples than clusters
        found = KMeans(min(clusters, len(scaled)), n_init=10, random_state=seed).fit_predict(scaled)
    counts = np.zeros((clusters, int(classes.max()) + 1))
    np.add.at(counts, (found, classes), 1)
    return float(counts.max(axis=1).sum() / len(scaled))
