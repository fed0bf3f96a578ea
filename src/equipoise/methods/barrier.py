"""Barrier: the fused loss descends, and the smooth maximum of the uni-modal ones at least at a rate of its own."""

from typing import Annotated, final

import torch
from torch import Tensor

from equipoise.balance.coefficients import Losses
from equipoise.balance.kinds import Mixing
from equipoise.balance.mixture import Gram
from equipoise.util.annotated import Tried


@final
class Barrier(Mixing):
    """The dynamic barrier: a penalty that is chosen at each step so that the uni-modal losses keep falling.

    Encoders move along ∇f_mm + λ ∇q with λ = max(0, α − ⟨∇f_mm, ∇q⟩ / ‖∇q‖²), which is the direction nearest to ∇f_mm
    along which q falls at a rate of at least α ‖∇q‖². f_mm is the fused loss, f_k the loss of modality k, and q =
    μ log Σ_k exp(f_k / μ) their smooth maximum, so that ∇q = Σ_k σ_k ∇f_k with σ = softmax(f / μ). Where f_mm and q
    agree by themselves, λ is zero. λ is one number for all encoders; a trunk that uni-modal losses reach has one of its
    own. Heads follow their own losses.

    Tasks: any, with losses in one unit: μ is in theirs.

    Paper: Gong, Liu and Liu, "Bi-objective Trade-off with Dynamic Barrier Gradient Descent" (NeurIPS 2021), with the
    smooth maximum of the uni-modal losses as the objective that has to fall.
    Cost: two backward passes through separate encoders, K + 1 otherwise.

    Args:
        strength: α. One leaves f_mm alone where the two gradients are orthogonal and adds ∇q.
        smoothing: μ.

    Example:
        >>> from equipoise import LateFusion
        >>> model = LateFusion({"audio": torch.nn.Linear(3, 4), "video": torch.nn.Linear(5, 4)}, classes=2)
        >>> balancer = Barrier().attach(model)
        >>> outputs = model({"audio": torch.randn(8, 3), "video": torch.randn(8, 5)})
        >>> balancer({name: logits.square().mean() for name, logits in outputs.items()}).backward()
        >>> balancer.table.at("fused", "audio")
        tensor(1., dtype=torch.float64)
    """

    def __init__(self, strength: Annotated[float, Tried(0.5, 1.0, 5.0)] = 1.0, smoothing: float = 0.1) -> None:
        super().__init__()
        self.check_arguments(
            (strength >= 0, "strength should be zero or more", strength),
            (smoothing > 0, "smoothing should be above zero", smoothing),
        )
        self.strength, self.smoothing = strength, smoothing

    def mix(self, gram: Gram, losses: Losses) -> Tensor:
        """The fused gradient at one, that of modality k at λσ_k."""
        products, gaps = gram.products, losses.at_hand(losses.unimodal)
        shares = torch.softmax(gaps / self.smoothing, dim=0).to(products.dtype)
        weights = gram.of(torch.cat([torch.zeros_like(shares[:1]), shares]))
        inner = (products[:, 0] * weights).sum()
        squared = torch.einsum("bi,bij,bj->", weights, products, weights)
        penalty = (self.strength - torch.where(squared > 0, inner / squared, 0.0)).clamp(min=0)
        fused = torch.zeros_like(weights)
        fused[:, 0] = 1
        return fused + penalty * weights
