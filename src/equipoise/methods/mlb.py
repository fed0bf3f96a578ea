"""MLB: speed up the modality that is behind, slow the one that is ahead, with uni-modal losses beside the fused one."""

from typing import Annotated, final

import torch

from equipoise.balance.coefficients import Coefficients, Losses, ratios
from equipoise.balance.kinds import Weighting
from equipoise.balance.needs import Needs
from equipoise.util.annotated import Tried


@final
class MLB(Weighting):
    """Multi-task learning balanced by the ratio of uni-modal scores.

    Encoder m moves along c_m · ∇(f_mm + f_m), its head along c_m · ∇f_m, with c_m = 1 + tanh(α(ρ_m − 1)); above one,
    the rise is (β − 1) · tanh instead. ρ_m is the mean over the other modalities j of s_j / s_m, s_m the mean
    probability of the right class as modality m sees it, exp(−f_m) sample by sample, f_m its loss, f_mm the fused loss.

    Tasks: any. exp(−f_m) is the geometric mean of the probabilities of a sample's right answers where it has several
    labels, and the likelihood of a standardised number, up to a factor, where f_m is an error.

    Paper: Kontras et al., "Improving Multimodal Learning with Multi-Loss Gradient Modulation" (BMVC 2024).
    Cost: one backward pass.

    Args:
        strength: α, 0.8 for CREMA-D.
        ceiling: β, the largest factor; 2 makes both branches the same.
        start: First epoch that modulates.
        stop: First epoch that no longer does.

    Example:
        >>> from equipoise import LateFusion
        >>> model = LateFusion({"audio": torch.nn.Linear(3, 4), "video": torch.nn.Linear(5, 4)}, classes=2)
        >>> balancer = MLB().attach(model, optimizer=torch.optim.SGD(model.parameters(), 0.1))
        >>> outputs = model({"audio": torch.randn(8, 3), "video": torch.randn(8, 5)})
        >>> balancer({name: logits.square().mean(1) for name, logits in outputs.items()}).backward()
    """

    needs = Needs(factors=True, scores=("likelihood",))

    def __init__(
        self,
        strength: Annotated[float, Tried(0.4, 0.8, 1.6)] = 0.8,
        ceiling: float = 2.0,
        start: int = 0,
        stop: int | None = None,
    ) -> None:
        super().__init__(start=start, stop=stop)
        self.check_arguments(
            (strength >= 0, "strength should be zero or more", strength),
            (ceiling >= 1, "ceiling should be one or more", ceiling),
        )
        self.strength, self.ceiling = strength, ceiling

    def weigh(self, losses: Losses) -> Coefficients:
        """A factor above one for a modality that is behind."""
        rise = torch.tanh(self.strength * (ratios(-losses.scores) - 1))
        factors = self.gated(1 + torch.where(rise > 0, (self.ceiling - 1) * rise, rise))
        ones = losses.weights(1.0, 1.0)
        return Coefficients.weighted(ones, heads=torch.cat([ones[:1], factors]), factors=factors)
