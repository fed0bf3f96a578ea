"""GAP: proprioception learns less from the samples in which the motion changes."""

from collections.abc import Sequence
from typing import ClassVar, Literal, final

import torch
from torch import Tensor

from equipoise.balance.balancer import Balancer
from equipoise.balance.losses import LossValues, Weights
from equipoise.util.errors import BadInput, unknown_name


@final
class GAP(Balancer):
    """Gradient adjustment with phase guidance: one encoder learns little from samples in which the motion changes.

    The encoder of one modality, proprioception, moves along Σ_i c_i · ∇f_mm,i / B with c_i = λ (1 − ρ_i), all others
    along ∇f_mm. f_mm,i is the fused loss of sample i of B; ρ_i is the probability that the motion changes there, from
    `equipoise.control.motion` or elsewhere, given as ``scores={"proprioception": rho}`` beside the losses. Outside its
    epochs every c_i is one. The table shows the mean of c_i over the samples that have the sensor.

    That is the rule of the paper, for each sample its own. The released code has the factor 1 − λ max_i ρ_i, the same
    for the whole batch, which is 1 − λ for nearly every large batch; ``form="released"`` is 1 − λ ρ_i.

    The factor acts on gradients, not on the optimiser's update. Adam divides out what all samples of many steps have in
    common, λ above all; what differs from sample to sample stays. The authors train with Adam.

    Tasks: any. A sample without the sensor needs no score.

    UNVERIFIED: the equation of the paper names no sample; that each has a factor of its own is a reading of its words
    "fine-grained". The features of a sensor that a sample lacks, where a model reads them, get the mean factor.

    Paper: Lu et al., "When would Vision-Proprioception Policies Fail in Robotic Manipulation?" (ICLR 2026).
    Cost: one backward pass.

    Args:
        strength: λ. The authors use 0.3, and find 0.2 to 0.4 alike.
        modality: Whose encoder is held back.
        form: "published" for λ (1 − ρ_i), or "released" for 1 − λ ρ_i.
        start: First epoch that modulates.
        stop: First epoch that no longer does. The authors modulate for 50 of 100 epochs.

    Example:
        >>> from equipoise import LateFusion
        >>> encoders = {"proprioception": torch.nn.Linear(3, 4), "camera": torch.nn.Linear(5, 4)}
        >>> model = LateFusion(encoders, classes=2, unimodal="detached")
        >>> balancer = GAP(strength=1.0).attach(model)
        >>> outputs = model({"proprioception": torch.randn(2, 3), "camera": torch.randn(2, 5)})
        >>> losses = {name: logits.square().mean(1) for name, logits in outputs.items()}
        >>> balancer(losses, scores={"proprioception": torch.tensor([0.9, 0.1])}).backward()
        >>> balancer.table.at("fused", "proprioception")
        tensor(0.5000)
    """

    route = "fused"
    unimodal = "detached"
    search: ClassVar = {"strength": (0.2, 0.3, 0.4)}
    needs_unimodal = False

    def __init__(
        self,
        strength: float = 0.3,
        modality: str = "proprioception",
        form: Literal["published", "released"] = "published",
        start: int = 0,
        stop: int | None = 50,
    ) -> None:
        super().__init__(start=start, stop=stop)
        self.check_arguments((0 <= strength <= 1, "strength should be between zero and one", strength))
        self.strength, self.modality, self.form = strength, modality, form
        self.scored_samples = (modality,)

    def settle(self, modalities: Sequence[str], device: torch.device) -> None:
        """Fix the modalities, of which one has to be the one that is held back."""
        if modalities and self.modality not in modalities:
            raise BadInput(f"GAP: unknown modality={unknown_name(self.modality, modalities)}")
        super().settle(modalities, device)

    def weigh(self, values: LossValues) -> Weights:
        """The mean factor of the samples, which is the factor of their mean score; ones for the others."""
        factors = torch.ones_like(values.unimodal)
        place = self.modalities.index(self.modality)
        factors[place] = self.sample_factors(self.modality, values.scores[place])
        return Weights.joint(values, factors)

    def sample_factors(self, modality: str, scores: Tensor) -> Tensor:  # noqa: ARG002
        """Return λ (1 − ρ), or 1 − λ ρ."""
        return self.strength * (1 - scores) if self.form == "published" else 1 - self.strength * scores
