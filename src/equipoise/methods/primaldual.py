"""PrimalDual: the fused loss subject to every modality being near what it reaches alone; it sets its own penalties."""

from __future__ import annotations

from typing import Literal, NamedTuple, final

import torch
from torch import Tensor

from equipoise.balance.coefficients import Coefficients, Losses
from equipoise.balance.needs import Needs
from equipoise.balance.optimum import Optimum, OptimumWeighting

DIVERGING = 0.25
"""A loss this much above the one at the start, and above its own mean, tells that steps are too long; in its scale."""


@final
class PrimalDual(OptimumWeighting):
    """Minimise the fused loss subject to every uni-modal gap being at most ε, with a multiplier per modality.

    min f_mm subject to f_k − f*_k ≤ ε · s for every modality k: f_mm is the fused loss, f_k the loss of modality k,
    f*_k what it reaches alone, s the mean of the uni-modal losses at the first step, so that losses of any scale work.
    With v̄_k the running mean of the violation (f_k − f*_k) / s − ε, the encoder of modality k moves along ∇f_mm + w_k
    ∇f_k with w_k = [λ_k + η v̄_k]₊, and then λ_k ← [λ_k + η v̄_k]₊, at most `ceiling`: a PI controller of the violation,
    the same as the gradient of the augmented Lagrangian. A modality that keeps its constraint has no weight in the end;
    one that breaks it gets more until it keeps it. Where a loss is above the one it began with and leaves its own
    running mean behind, the step is too long, and a larger weight would make it longer: λ_k shrinks instead. Nothing is
    to be tuned.

    Tasks: any; a modality is compared with itself, in units of the loss that it began with.

    Paper: Sohrabi et al., "On PI Controllers for Updating Lagrange Multipliers in Constrained Optimization" (ICML
    2024), applied to the ε-relaxed problem of Fernando et al., "Balancing Multi-modal Sensor Learning via
    Multi-objective Optimization".
    Cost: one backward pass. With optimum="trajectory", the default, also a uni-modal run before, once for all runs of
    the same data and settings; with optimum="twin" a uni-modal model beside, on a part of each batch.

    Args:
        optimum: f*: "trajectory", a uni-modal run before, at the same step, or "final", at its end (in a loop of your
            own: `refer`); "twin", a uni-modal model that trains beside (`track`); "zero"; a number, numbers by
            modality, or a `Trajectory`.
        tolerance: ε, a share of the loss at the first step.
        rate: η, the rate of the multipliers.
        ceiling: The most that λ_k can be.
        heads: "plain" trains uni-modal heads at weight one, so that f_k says what the encoder offers also where λ_k is
            zero; "scaled" at w_k, as the Lagrangian has it.
        memory: Steps over which a violation is averaged.
        every: The twin trains on every so many samples of a batch.

    Example:
        >>> balancer = PrimalDual(optimum={"audio": 1.0, "video": 0.5}, tolerance=0.0, rate=0.5, heads="scaled")
        >>> losses = {"fused": torch.tensor(1.0), "audio": torch.tensor(1.0), "video": torch.tensor(1.0)}
        >>> print(balancer(losses).item())  # 1 + 0.25 · 0.5: video is 0.5 behind, in units of 1
        1.125
    """

    multiplier: Tensor
    violation: Tensor
    first: Tensor
    taken: Tensor

    def __init__(
        self,
        optimum: Optimum = "trajectory",
        tolerance: float = 0.0,
        rate: float = 0.2,
        ceiling: float = 10.0,
        heads: Literal["plain", "scaled"] = "plain",
        memory: int = 20,
        every: int = 5,
    ) -> None:
        super().__init__(optimum, smooth=1, every=every)
        self.check_arguments(
            self.optimum_rule(optimum),
            (tolerance >= 0, "tolerance should be zero or more", tolerance),
            (rate > 0, "rate should be above zero", rate),
            (ceiling > 0, "ceiling should be above zero", ceiling),
            (memory >= 1, "memory should be at least one step", memory),
            (every >= 1, "every should be at least one sample", every),
        )
        self.tolerance, self.rate, self.ceiling, self.heads, self.memory = tolerance, rate, ceiling, heads, memory
        self.needs = Needs(encoders=heads == "plain")
        self.add_state("multiplier")
        self.add_state("violation")
        self.add_state("first", fill=torch.nan)
        self.add_state("taken")  # steps in which the sensor was there

    def weigh(self, losses: Losses) -> Coefficients:
        """The fused loss at one, modality k at the multiplier that its violation leads to."""
        moved = self._moved(losses)
        weights = torch.cat([torch.ones_like(losses.fused)[None], torch.where(moved.here, moved.multiplier, 0.0)])
        value = losses.fused + (weights[1:] * (moved.gaps - self.tolerance * moved.scale)).sum()
        if self.heads == "plain":
            return Coefficients.weighted(weights, heads=torch.ones_like(weights), value=value)
        return Coefficients.shared(weights, value)

    def on_backward(self, losses: Losses, finite: Tensor) -> None:
        """Move the multipliers on with a step that is taken."""
        moved = self._moved(losses)
        states = (self.multiplier, self.violation, self.first, self.taken)
        news = (moved.multiplier, moved.violation, moved.first, self.taken + moved.here)
        for state, new in zip(states, news, strict=True):
            state.copy_(torch.where(finite, new.to(state.dtype), state))
        super().on_backward(losses, finite)

    def _moved(self, losses: Losses) -> _Moved:
        """Return the state after this step."""
        unimodal, dtype = losses.unimodal, losses.unimodal.dtype
        gaps = unimodal - self.optimum_now().to(dtype)
        here = torch.ones_like(unimodal, dtype=torch.bool) if losses.presence is None else losses.presence > 0
        first = torch.where(self.first.isnan() & here, unimodal, self.first.to(dtype))
        scale = first.nan_to_num().abs().sum() / (~first.isnan()).sum().clamp(min=1)
        scale = torch.where(scale > 0, scale, 1.0)
        share = torch.where(here, 1.0 / (self.taken + 1).clamp(max=self.memory).to(dtype), 0.0)
        now, known = gaps / scale - self.tolerance, self.violation.to(dtype)
        above = unimodal > first + DIVERGING * scale
        # A loss that runs away must not leave a mean that takes as long to come down: there it at most doubles.
        violation = torch.lerp(known, torch.where(above, now.minimum(known + known.abs().clamp(min=1)), now), share)
        before = self.multiplier.to(dtype)
        raised = (before + self.rate * violation).clamp(0, self.ceiling)
        # Above the loss at the start, one that rests breaks its constraint, and one that leaves its mean diverges.
        diverging = above & (now > violation + DIVERGING)
        multiplier = torch.where(diverging, before / (1 + self.rate), torch.where(here, raised, before))
        return _Moved(multiplier, violation, first, scale, gaps, here)


class _Moved(NamedTuple):
    """The multipliers after a step, and what they come from: by modality, but for the scale."""

    multiplier: Tensor
    violation: Tensor
    first: Tensor
    scale: Tensor
    gaps: Tensor
    here: Tensor
