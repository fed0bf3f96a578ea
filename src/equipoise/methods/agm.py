"""AGM: modulate each modality by how far ahead it is now, compared with how far it usually is."""

from __future__ import annotations

import math
from typing import ClassVar, final

import torch
from torch import Tensor

from equipoise.balancer import Balancer
from equipoise.checks import demand
from equipoise.methods.scores import mean_of_others
from equipoise.models.shapley import ShapleyResponses
from equipoise.observe import Seen
from equipoise.routes import Weights

_WORST = -math.log(1e-8)  # probabilities are not read below 1e-8
_LARGEST = 80.0


@final
class AGM(Balancer):
    """Adaptive gradient modulation.

    Encoder m moves along κ_m · ∇f_mm with κ_m = exp(α · min(τ_m − r_m, cap)). r_m = exp(mean_{j≠m} s_j − s_m) says
    how far modality m is ahead in this batch, s_m its loss; τ_m says the same of ŝ_m, the mean of s_m over all
    earlier steps. Whoever is further ahead than usual is slowed. Outside its epochs the factor is one.

    For fused heads that add up modalities (concat, sum) this equals the published method up to batch statistics. For
    others there is the exact form: wrap the model in `ShapleyResponses`, which runs the 2^K forward passes of the
    published method, and say ``AGM(responses=model)``; the factors then act on the responses, and nothing needs
    attaching.

    Paper: Li et al., "Boosting Multi-modal Model Performance with Adaptive Gradient Modulation" (ICCV 2023).
    Cost: one backward pass.

    Args:
        strength: α. The authors' example uses 2.5 for AV-MNIST, and they name 1.5 for CREMA-D.
        cap: Largest value of τ − r; the authors have 10 for CREMA-D, 7 for UR-FUNNY, none elsewhere.
        start: First epoch that modulates.
        stop: First epoch that no longer does. The authors' default is 20.
        responses: The wrapped model, for the exact form.

    Example:
        >>> from equipoise import LateFusion
        >>> model = LateFusion({"audio": torch.nn.Linear(3, 4), "video": torch.nn.Linear(5, 4)}, classes=2)
        >>> balancer = AGM().attach(model, optimizer=torch.optim.SGD(model.parameters(), 0.1))
        >>> loss = balancer(
        ...     {"fused": model({"audio": torch.ones(1, 3), "video": torch.ones(1, 5)})["fused"].sum(),
        ...      "audio": torch.tensor(0.5), "video": torch.tensor(1.0)})
        >>> round(float(balancer.table.at("fused", "audio")), 4)  # exp(1 − e^0.5), since τ starts at one
        0.5227
    """

    unimodal = "split"
    search: ClassVar = {"strength": (0.3, 1.0, 2.5)}
    modulates = True
    advances = True
    mean_score: Tensor
    steps: Tensor

    def __init__(
        self,
        strength: float = 1.0,
        cap: float | None = 10.0,
        start: int = 0,
        stop: int | None = None,
        responses: ShapleyResponses | None = None,
    ) -> None:
        super().__init__(start=start, stop=stop)
        demand("AGM", (strength >= 0, "strength should be zero or more", strength))
        self.strength, self.cap = strength, math.inf if cap is None else cap
        self._responses = () if responses is None else (responses,)  # in a tuple, so that nothing is registered
        self.route = "fused" if responses is None else "loss"
        self.remember("mean_score")
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))

    def score(self, losses: Tensor) -> Tensor:
        """The mean loss, with no sample counted beyond a probability of 1e-8."""
        return losses.clamp(max=_WORST).mean()

    def weigh(self, seen: Seen) -> Weights:
        """A factor from now and from the history before this step."""
        usual = self.mean_score.to(seen.scores.dtype)
        ahead_now = (mean_of_others(seen.scores) - seen.scores).exp()
        ahead_usually = (mean_of_others(usual) - usual).exp()
        exponent = self.strength * (ahead_usually - ahead_now).clamp(max=self.cap)
        factors = self.gated(exponent.clamp(max=_LARGEST).exp())
        for model in self._responses:
            model.factors.copy_(torch.stack([factors[self.modalities.index(name)] for name in model.modalities]))
        return Weights.joint(seen, factors)

    def advance(self, seen: Seen, finite: Tensor) -> None:
        """ŝ becomes the mean over all steps that were taken, this one included."""
        counted = self.steps + finite
        share = finite / counted.clamp(min=1)
        self.mean_score.lerp_(seen.scores.to(self.mean_score.dtype), share.to(self.mean_score.dtype))
        self.steps.copy_(counted)
