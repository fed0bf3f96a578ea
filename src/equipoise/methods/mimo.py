"""MIMO: the fused loss plus a smooth maximum of how far each modality is from its own optimum."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar, Literal, final

import torch
from torch import Tensor

from equipoise.balance.balancer import Balancer
from equipoise.balance.losses import LossValues, Weights
from equipoise.balance.theory import Trajectory, doubled_smoothing, smooth_maximum, smoothness

LEAST_SMOOTHING = 1e-30  # below it, single precision cannot hold a loss divided by μ


def mimo_objective(
    fused: Tensor, unimodal: Tensor, penalty: float = 10.0, smoothing: float = 0.1, optimum: Tensor | float = 0.0
) -> Tensor:
    """MIMO's objective as a pure function of tensors, differentiable any number of times.

    Args:
        fused: f_mm, a scalar.
        unimodal: f_k, one value per modality, shape [K].
        penalty: λ.
        smoothing: μ; zero is the maximum itself.
        optimum: f*_k, shape [K] or one number.

    Example:
        >>> mimo_objective(torch.tensor(1.0), torch.tensor([2.0, 2.0]), penalty=1.0, smoothing=0.0)
        tensor(3.)
    """
    return fused + penalty * smooth_maximum(unimodal - optimum, smoothing)


@final
class MIMO(Balancer):
    """Minimise the fused loss plus λ times a smooth maximum of the uni-modal losses.

    f_mm + λ · μ · log Σ_k exp((f_k − f*_k) / μ): f_mm is the fused loss, f_k the loss of modality k, f*_k the least
    it can reach alone, λ the penalty, μ the smoothing. Encoder k moves along ∇f_mm + λσ_k∇f_k with σ = softmax((f −
    f*) / μ), so the modality that is furthest behind learns most.

    Tasks: any, since all modalities have the same one: losses are compared as they are, and μ is in their unit. A
    number should be standardised.

    Paper: Fernando et al., "Balancing Multi-modal Sensor Learning via Multi-objective Optimization".
    Cost: one backward pass.

    Args:
        penalty: λ. The paper takes 10 or 100.
        smoothing: μ. Zero is the hard maximum of the paper's equation before smoothing.
        optimum: f*: None for zero, numbers per modality, or a `Trajectory` of uni-modal training.
        overflow: "stable" shifts the exponents; "double" is the paper's rule: μ doubles, batch by batch, until they
            fit.
        floor: A weight that every uni-modal loss keeps besides; 1.0 gives EW plus MIMO.
        heads: "scaled" trains uni-modal heads at λσ_k as the formula says; "plain" at weight one, so that a large λ
            does not blow up their steps. Needs `attach`.

    Example:
        >>> balancer = MIMO(penalty=10.0, smoothing=0.5)
        >>> loss = balancer({"fused": torch.tensor(1.0), "audio": torch.tensor(2.0), "video": torch.tensor(1.0)})
        >>> print(balancer.table)
                  audio     video     heads
        fused         1         1         1
        audio     8.808         –     8.808
        video         –     1.192     1.192
    """

    unimodal = "head"
    search: ClassVar = {"penalty": (1.0, 10.0, 100.0), "smoothing": (0.01, 0.1, 1.0)}
    optimum: Tensor
    step: Tensor

    def __init__(
        self,
        penalty: float = 10.0,
        smoothing: float = 0.1,
        optimum: Mapping[str, float] | Trajectory | None = None,
        overflow: Literal["stable", "double"] = "stable",
        floor: float = 0.0,
        heads: Literal["scaled", "plain"] = "scaled",
    ) -> None:
        super().__init__()
        known = optimum is None or isinstance(optimum, (Mapping, Trajectory))
        numbers = "optimum should be numbers by modality, {'audio': 0.3, …}, a Trajectory, or None for zero"
        smooth = smoothing == 0 or LEAST_SMOOTHING <= smoothing < math.inf
        between = f"smoothing should be zero, or between {LEAST_SMOOTHING:g} and any finite number"
        self.check_arguments(
            (0 <= penalty < math.inf, "penalty should be a finite number of zero or more", penalty),
            (smooth, between, smoothing),
            (known, numbers, optimum),
            (0 <= floor < math.inf, "floor should be a finite number of zero or more", floor),
        )
        self.penalty, self.smoothing, self.overflow, self.floor, self.heads = penalty, smoothing, overflow, floor, heads
        self.route = "weighted" if heads == "plain" else "loss"
        if optimum is None:
            self.add_state("optimum", (1,))
        else:
            given = optimum.values() if isinstance(optimum, Trajectory) else optimum
            rows = {name: torch.as_tensor(row, dtype=torch.float64).reshape(-1) for name, row in given.items()}
            self.add_given_state("optimum", rows)
        self.register_buffer("step", torch.zeros(1, dtype=torch.int64))

    def weigh(self, values: LossValues) -> Weights:
        """The fused loss at one, modality k at λσ_k plus the floor."""
        optimum = self._optimum_now().to(values.unimodal.dtype)
        here = None if values.presence is None else (values.presence > 0) | (values.presence <= 0).all()
        gaps = _at_hand(values.unimodal - optimum, here)
        smoothing = self._smoothing_for(gaps)
        weights = self._weights(gaps, smoothing)
        value = values.fused + self.penalty * smooth_maximum(gaps, smoothing) + self.floor * values.unimodal.sum()
        plain = torch.ones_like(weights) if self.heads == "plain" else None
        recompute = None
        if self.route == "loss":

            def recompute(losses: Tensor) -> Tensor:
                return self._weights(_at_hand(losses[1:] - optimum.to(losses.dtype), here), smoothing)

        return Weights(weights, heads=plain, value=value, recompute=recompute)

    def smoothness_problem(self) -> str:
        """The maximum itself has kinks, and plain heads do not follow the objective's gradient."""
        if self.smoothing == 0:
            return "the objective is smooth for μ > 0 only, found smoothing=0; type mimo.smoothing=0.1"
        plain = self.heads == "plain"
        return "plain heads do not follow the objective's gradient; type mimo.heads=scaled" if plain else ""

    def smoothness(self, of_loss: Callable[..., tuple[float, float]], modalities: Sequence[str]) -> float:
        """L_mm + λ · Σ_k (L_k + G_k² / μ), plus the floor · Σ_k L_k."""
        fused, unimodal = of_loss("fused")[0], [of_loss(name) for name in modalities]
        return smoothness(fused, unimodal, self.penalty, self.smoothing) + self.floor * sum(
            bend for bend, _ in unimodal
        )

    def _smoothing_for(self, gaps: Tensor) -> Tensor | float:
        doubles = self.overflow == "double" and self.smoothing > 0
        return doubled_smoothing(gaps, self.smoothing) if doubles else self.smoothing

    def _weights(self, gaps: Tensor, smoothing: Tensor | float) -> Tensor:
        if isinstance(smoothing, (int, float)) and smoothing == 0:
            furthest = (gaps == gaps.amax()).to(gaps.dtype)
            shares = furthest / furthest.sum()  # a tie is shared, as it is in the limit of a small μ
        else:
            shares = torch.softmax(gaps / smoothing, dim=0)
        return torch.cat([gaps.new_ones(1), self.penalty * shares + self.floor])

    def stepped(self, taken: Tensor | int = 1) -> None:
        """Move along the trajectory with the optimiser, so that a skipped step does not count."""
        self.step += taken

    def _optimum_now(self) -> Tensor:
        now = self.optimum.index_select(1, self.step.clamp(max=self.optimum.shape[1] - 1))[:, 0]
        if self.training and torch.is_grad_enabled() and not self.follows_optimizer:
            self.step += 1
        return now


def _at_hand(gaps: Tensor, here: Tensor | None) -> Tensor:
    """Put a sensor that no sample of the batch has behind none: its share of the penalty is zero."""
    return gaps if here is None else torch.where(here, gaps, -torch.inf)
