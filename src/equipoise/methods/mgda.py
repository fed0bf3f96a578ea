"""MGDA: per encoder, the shortest mixture of the fused and the uni-modal gradient."""

from typing import Literal, final

from torch import Tensor

from equipoise.balance.coefficients import Losses
from equipoise.balance.kinds import Mixing
from equipoise.balance.mixture import Gram
from equipoise.balance.theory import least_norm


@final
class MGDA(Mixing):
    """The multiple-gradient descent algorithm, on each encoder by itself.

    Encoder k moves along γ · ∇f_mm + (1 − γ) · ∇f_k, the shortest such vector: γ = clip((‖∇f_k‖² − ∇f_mm·∇f_k) /
    ‖∇f_mm − ∇f_k‖², 0, 1). f_mm is the fused loss, f_k the loss of modality k. Both losses fall along it, or the
    encoder is Pareto-stationary. Heads follow their own losses. Where a loss reaches several encoders, all K + 1
    gradients are mixed.

    With ``at="features"`` the mixture is the shortest at what the encoder gives, z, and goes on from there to its
    parameters θ. The two agree where JJᵀ is a multiple of the identity, J = ∂z/∂θ; elsewhere a loss may rise.

    Tasks: any; gradients are compared. An encoder whose sensor no sample of a batch has stands still, since a loss of
    zero has the shortest gradient.

    Paper: Désidéri, "Multiple-gradient descent algorithm (MGDA) for multiobjective optimization" (2012).
    Cost: two backward passes through separate encoders, K + 1 otherwise.

    Args:
        at: Decide at the encoders' "parameters", or at their outputs, the "features": then one pass through encoders.

    Example:
        >>> import torch
        >>> from equipoise import LateFusion
        >>> model = LateFusion({"audio": torch.nn.Linear(3, 4), "video": torch.nn.Linear(5, 4)}, classes=2)
        >>> balancer = MGDA().attach(model)
        >>> outputs = model({"audio": torch.randn(8, 3), "video": torch.randn(8, 5)})
        >>> balancer({name: logits.square().mean() for name, logits in outputs.items()}).backward()
        >>> bool((balancer.table.values[:, :2].nansum(0) - 1).abs().max() < 1e-6)  # mixtures are convex
        True
    """

    def __init__(self, at: Literal["parameters", "features"] = "parameters") -> None:
        super().__init__()
        self.check_arguments()
        self.at = at

    def mix(self, gram: Gram, losses: Losses) -> Tensor:  # noqa: ARG002
        """Weights of the shortest vector in the convex hull."""
        return least_norm(gram.relative())
