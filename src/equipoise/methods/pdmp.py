"""PDMP: fixed factors, above one for the modality that is best alone, below one for the others."""

from collections.abc import Mapping, Sequence
from typing import ClassVar, final

import torch
from torch import Tensor

from equipoise.balance.balancer import Balancer
from equipoise.balance.losses import LossValues, Weights
from equipoise.util.errors import BadInput, unknown_name


@final
class PDMP(Balancer):
    """Performance-dominant modality prioritisation: the encoder of the modality that is best alone learns faster.

    Encoder k moves along c_k · ∇f_mm, f_mm the fused loss: c_k is γ_p for the modality that is best alone, γ_r for
    every other. Which one that is, uni-modal runs tell (``equipoise compare --methods unimodal``, then ``dominant=…``).
    Where it is not said, it is the one with the best validation accuracy after the first epochs: give it to
    `end_epoch`. Until then all factors are one, and so is that of a modality alone. Modalities that tie for the best
    have γ_p each.

    The paper ranks by uni-modal runs and calls the two coefficients γ_p and γ_r; their values, and the ranking by the
    heads of the first epochs, are choices of this implementation.

    Tasks: any, with an accuracy as for `MSLR`: of several labels the share of right ones, of a number the mean of
    exp(−f_k), f_k the error of the standardised number.

    Paper: Wei et al., "PDMP: Rethinking Balanced Multimodal Learning via Performance-Dominant Modality Prioritization"
    (arXiv 2604.05773, 2026).
    Cost: one backward pass, and the uni-modal runs.

    Args:
        dominant: The modality that is best alone; None to find out after the first epochs.
        boost: γ_p.
        rest: γ_r.
        factors: All factors by modality, in the place of the three above.
        after: After how many epochs the validation accuracy decides.

    Example:
        >>> from equipoise import LateFusion
        >>> model = LateFusion({"audio": torch.nn.Linear(3, 4), "video": torch.nn.Linear(5, 4)}, classes=2)
        >>> balancer = PDMP().attach(model, optimizer=torch.optim.SGD(model.parameters(), 0.1))
        >>> balancer.end_epoch({"audio": {"accuracy": 0.6}, "video": {"accuracy": 0.4}})
        >>> balancer.factor.tolist()
        [1.5, 0.5]
    """

    route = "fused"
    unimodal = "detached"
    search: ClassVar = {"boost": (1.25, 1.5, 2.0)}
    modulates = True
    needs = ("accuracy",)
    factor: Tensor

    def __init__(
        self,
        dominant: str | None = None,
        boost: float = 1.5,
        rest: float = 0.5,
        factors: Mapping[str, float] | None = None,
        after: int = 1,
    ) -> None:
        super().__init__()
        self.check_arguments(
            (boost >= 1, "boost should be one or more", boost),
            (0 <= rest <= 1, "rest should be between zero and one", rest),
            (dominant is None or factors is None, "dominant should be left out where factors are given", dominant),
            (all(one >= 0 for one in (factors or {}).values()), "factors should be zero or more", factors),
            (after >= 1, "after should be at least one epoch", after),
        )
        self.dominant, self.boost, self.rest, self.after = dominant, boost, rest, after
        if factors is not None:
            self.add_given_state("factor", factors)
        else:
            self.add_state("factor", fill=1.0)
        if dominant is not None or factors is not None:
            self.needs = ()

    def settle(self, modalities: Sequence[str], device: torch.device) -> None:
        """Fix the modalities, and the factors where it is known who is best."""
        first = bool(modalities) and not self.modalities
        if first and self.dominant is not None and self.dominant not in modalities:
            raise BadInput(f"PDMP: unknown modality dominant={unknown_name(self.dominant, modalities)}")
        super().settle(modalities, device)
        if first and self.dominant is not None:
            self.factor.copy_(self._ranked(torch.tensor([name == self.dominant for name in modalities], device=device)))

    def weigh(self, values: LossValues) -> Weights:
        """The factor of each modality, on the fused gradient."""
        return Weights.joint(values, self.factor.to(values.fused.dtype))

    def learn(self, metrics: dict[str, Tensor]) -> None:
        """Prioritise whoever is best, once."""
        if self.needs:
            best = metrics["accuracy"] == metrics["accuracy"].max()
            self.factor.copy_(torch.where(self.epoch + 1 == self.after, self._ranked(best), self.factor))

    def _ranked(self, best: Tensor) -> Tensor:
        if len(best) == 1:
            return torch.ones_like(self.factor)
        return torch.where(best, self.boost, self.rest).to(self.factor.dtype)
