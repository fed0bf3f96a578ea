"""MIMO: the fused loss plus a smooth maximum of how far each modality is from its own optimum."""

import math
from typing import Annotated, Literal, final

import torch
from torch import Tensor

from equipoise.balance.coefficients import Coefficients, Losses
from equipoise.balance.needs import Needs
from equipoise.balance.optimum import Optimum, OptimumWeighting
from equipoise.balance.theory import doubled_smoothing, relative_smoothing, smooth_maximum
from equipoise.util.annotated import Tried

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
class MIMO(OptimumWeighting):
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
        optimum: f*: None or "zero"; a number, or numbers by modality; a `Trajectory` of uni-modal training; "twin", a
            uni-modal model that trains beside; "trajectory" or "final", a uni-modal run before, at the same step or at
            its end.
        overflow: "stable" shifts the exponents; "double" is the paper's rule: μ doubles, batch by batch, until they
            fit.
        floor: A weight that every uni-modal loss keeps besides; 1.0 gives EW plus MIMO.
        heads: "scaled" trains uni-modal heads at λσ_k as the formula says; "plain" at weight one, so that a large λ
            does not blow up their steps. Needs `attach`.
        relative: Read the smoothing as a share δ of the largest gap: μ = δ · max_k |f_k − f*_k| / log K at each step,
            so that the smooth maximum is at most that share above the maximum, in losses of any scale. μ counts as
            constant in derivatives.
        every: With optimum="twin", the twin trains on every so many samples of a batch.

    Example:
        >>> balancer = MIMO(penalty=10.0, smoothing=0.5)
        >>> loss = balancer({"fused": torch.tensor(1.0), "audio": torch.tensor(2.0), "video": torch.tensor(1.0)})
        >>> print(balancer.table)
                  audio     video fused head own heads
        fused         ?         ?          1         –
        audio         ?         ?          ?     8.808
        video         ?         ?          ?     1.192
        ? is known once a model is attached: type balancer.attach(model, encoders={…})
    """

    def __init__(
        self,
        penalty: Annotated[float, Tried(1.0, 10.0, 100.0)] = 10.0,
        smoothing: Annotated[float, Tried(0.01, 0.1, 1.0)] = 0.1,
        optimum: Optimum = None,
        overflow: Literal["stable", "double"] = "stable",
        floor: float = 0.0,
        heads: Literal["scaled", "plain"] = "scaled",
        relative: bool = False,
        every: int = 5,
    ) -> None:
        super().__init__(optimum, every=every)
        smooth = smoothing == 0 or LEAST_SMOOTHING <= smoothing < math.inf
        between = f"smoothing should be zero, or between {LEAST_SMOOTHING:g} and any finite number"
        self.check_arguments(
            (0 <= penalty < math.inf, "penalty should be a finite number of zero or more", penalty),
            (smooth, between, smoothing),
            self.optimum_rule(optimum),
            (every >= 1, "every should be at least one sample", every),
            (0 <= floor < math.inf, "floor should be a finite number of zero or more", floor),
        )
        self.penalty, self.smoothing, self.overflow, self.floor, self.heads = penalty, smoothing, overflow, floor, heads
        self.relative = relative
        self.needs = Needs(encoders=heads == "plain")

    def weigh(self, losses: Losses) -> Coefficients:
        """The fused loss at one, modality k at λσ_k plus the floor."""
        gaps = losses.at_hand(losses.unimodal - self.optimum_now().to(losses.unimodal.dtype))
        smoothing = self._smoothing_for(gaps)
        if isinstance(smoothing, (int, float)) and smoothing == 0:
            furthest = (gaps == gaps.amax()).to(gaps.dtype)
            shares, maximum = furthest / furthest.sum(), gaps.amax()  # a tie is shared, as in the limit of a small μ
        else:
            scaled = gaps / smoothing
            shares = torch.softmax(scaled, dim=0)
            maximum = smoothing * (scaled.amax() - shares.amax().log())  # μ log Σ exp, without a second sum
        penalised = self.penalty * shares
        weights = torch.cat([gaps.new_ones(1), penalised + self.floor if self.floor else penalised])
        value = losses.fused + self.penalty * maximum
        if self.floor:
            value = value + self.floor * losses.unimodal.sum()
        if self.heads == "plain":
            return Coefficients.weighted(weights, heads=torch.ones_like(weights), value=value)
        return Coefficients.shared(weights, value)

    def _smoothing_for(self, gaps: Tensor) -> Tensor | float:
        if self.relative and self.smoothing > 0:
            return relative_smoothing(gaps.detach(), self.smoothing)
        doubles = self.overflow == "double" and self.smoothing > 0
        return doubled_smoothing(gaps.detach(), self.smoothing) if doubles else self.smoothing
