"""PrimalDual: the fused loss subject to every modality being near what it reaches alone; it sets its own penalties."""

from typing import Literal, final

import torch
from torch import Tensor

from equipoise.balance.losses import LossValues, Weights
from equipoise.balance.optimum import Optimum, OptimumBalancer

DIVERGING = 0.25
"""A loss this much above the one at the start, in units of the scale, tells that steps are too long."""


@final
class PrimalDual(OptimumBalancer):
    """Minimise the fused loss subject to every uni-modal gap being at most ε, with a multiplier per modality.

    min f_mm subject to f_k − f*_k ≤ ε · s for every modality k: f_mm is the fused loss, f_k the loss of modality k,
    f*_k what it reaches alone, s the mean of the uni-modal losses at the first step, so that losses of any scale work.
    With v̄_k the running mean of the violation (f_k − f*_k) / s − ε, the encoder of modality k moves along ∇f_mm + w_k
    ∇f_k with w_k = [λ_k + η v̄_k]₊, and then λ_k ← [λ_k + η v̄_k]₊, at most `ceiling`: a PI controller of the violation,
    the same as the gradient of the augmented Lagrangian. A modality that keeps its constraint has no weight in the end;
    one that breaks it gets more until it keeps it. Where a loss is above the one it began with, the step is too long,
    and a larger weight would make it longer: λ_k shrinks instead. Nothing is to be tuned.

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

    unimodal = "head"
    advances = True
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
        self.route = "weighted" if heads == "plain" else "loss"
        self.add_state("multiplier")
        self.add_state("violation")
        self.add_state("first", fill=torch.nan)
        self.add_state("taken")  # steps in which the sensor was there
        self._next: tuple[Tensor, ...] | None = None

    def weigh(self, values: LossValues) -> Weights:
        """The fused loss at one, modality k at the multiplier that its violation leads to."""
        losses, optimum = values.unimodal, self.optimum_now().to(values.unimodal.dtype)
        here = torch.ones_like(losses, dtype=torch.bool) if values.presence is None else values.presence > 0
        first = torch.where(self.first.isnan() & here, losses, self.first.to(losses.dtype))
        scale = first.nan_to_num().abs().sum() / (~first.isnan()).sum().clamp(min=1)
        scale = torch.where(scale > 0, scale, 1.0)
        now = (losses - optimum) / scale - self.tolerance
        share = torch.where(here, 1.0 / (self.taken + 1).clamp(max=self.memory).to(losses.dtype), 0.0)
        violation = torch.lerp(self.violation.to(losses.dtype), now, share)
        before = self.multiplier.to(losses.dtype)
        raised = (before + self.rate * violation).clamp(0, self.ceiling)
        diverging = losses > first + DIVERGING * scale
        multiplier = torch.where(diverging, before / (1 + self.rate), torch.where(here, raised, before))
        self._next = (multiplier, violation, first, self.taken + here)
        weights = torch.cat([torch.ones_like(values.fused)[None], torch.where(here, multiplier, 0.0)])
        value = values.fused + (weights[1:] * (losses - optimum - self.tolerance * scale)).sum()
        return Weights(weights, heads=torch.ones_like(weights) if self.heads == "plain" else None, value=value)

    def advance(self, values: LossValues, finite: Tensor) -> None:  # noqa: ARG002
        """Move the multipliers on; a sum of losses does not know its gradients, so that the optimiser tells of it."""
        if self.route != "loss" or not self.follows_optimizer:
            self._move(finite)

    def stepped(self, taken: Tensor | int = 1) -> None:
        """Move the multipliers on with a step of the optimiser, where gradients are not seen."""
        super().stepped(taken)
        if self.route == "loss" and self._next is not None:
            self._move(taken > 0 if isinstance(taken, Tensor) else torch.full_like(self.step[0], taken > 0).bool())

    def _move(self, is_taken: Tensor) -> None:
        assert self._next is not None
        states = (self.multiplier, self.violation, self.first, self.taken)
        for state, new in zip(states, self._next, strict=True):
            state.copy_(torch.where(is_taken, new.to(state.dtype), state))
