"""TCMax: a fused loss that asks for all that modalities and the label have in common."""

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from equipoise.models.evaluation import widened
from equipoise.util.errors import raise_all


def tcmax_loss(shares: Mapping[str, Tensor], label: Tensor, smoothing: float = 0.0) -> Tensor:
    """TCMax for an additive fused output Σ_k z_k, one value per sample, [B]; its mean is the loss of the batch.

    −Σ_k z_k,i[y_i] + log Σ_c Π_k mean_j exp(z_k,j[c]): i and j are samples, y_i the label of i, c a class, and z_k the
    share of modality k. The second term is the mean of exp over all B^K ways to put the batch's modalities together,
    which for a sum takes O(K · B · C) operations. Minimising it maximises a lower bound of the total correlation of
    the modalities and the label, that of Donsker and Varadhan.

    With K = 1 it is a cross-entropy that is normalised over the batch instead of each sample: the same where Σ_c
    exp(z_i[c]) is the same for all samples, larger on average elsewhere, and the same for a batch of one. The paper's
    formula subtracts log C from it, its code for K = 2 adds log B; gradients are the same.

    Paper: "Multimodal Classification via Total Correlation Maximization" (ICLR 2026).

    Args:
        shares: Each modality's share of the fused output, [B, C], such as `LateFusion.with_shares` gives.
        label: The classes, [B].
        smoothing: The share of the target that is spread evenly over all classes.

    Raises:
        ValueError: If the shapes do not fit.

    Example:
        >>> shares = {"audio": torch.tensor([[2.0, 0.0], [0.0, 2.0]]), "video": torch.tensor([[1.0, 0.0], [0.0, 1.0]])}
        >>> tcmax_loss(shares, torch.tensor([0, 1]))
        tensor([-0.2530, -0.2530])
        >>> tcmax_loss({"audio": shares["audio"][:1]}, torch.tensor([0]))  # alone, the cross-entropy
        tensor([0.1269])
    """
    shapes = {name: tuple(share.shape) for name, share in shares.items()}
    expected = f"expected shares of one shape [{len(label)}, C], as many rows as labels"
    hint = "type outputs, shares = model.with_shares(inputs)"
    fits = len(set(shapes.values())) == 1 and all(len(shape) == 2 for shape in shapes.values()) and label.dim() == 1
    if not fits or len(label) != next(iter(shapes.values()))[0] or not len(label):
        raise_all([f"tcmax_loss: {expected}; found {shapes or 'none'} and labels {list(label.shape)}; {hint}"])
    terms = torch.stack([widened(share) for share in shares.values()])  # [K, B, C]
    means = terms.logsumexp(dim=1) - math.log(len(label))
    fused = terms.sum(dim=0)
    right = fused.gather(1, label[:, None])[:, 0]
    if smoothing:
        right = (1 - smoothing) * right + smoothing * fused.mean(dim=1)
    return means.sum(dim=0).logsumexp(dim=0) - right
