"""The smoothness constant of a method's objective, from those of its losses: what a safe step is the inverse of."""

from abc import abstractmethod
from collections.abc import Sequence
from functools import singledispatch
from typing import Protocol

from equipoise.balance.balancer import Balancer
from equipoise.balance.theory import smoothness
from equipoise.methods import EW, MIMO, MSL


class OfLoss(Protocol):
    """Gives the smoothness and the Lipschitz constant of a loss by name, in all parameters or in those of its head."""

    @abstractmethod
    def __call__(self, name: str, *, head_alone: bool = False) -> tuple[float, float]:
        """Return both constants."""
        ...


@singledispatch
def smoothness_problem(balancer: Balancer) -> str:
    """Return why no step is known to be safe for a method's objective; "" where `smoothness_of` knows it."""
    return (
        f"{type(balancer).__name__} follows no gradient of a smooth objective, so no step is known to be safe; choose "
        "msl, ew or mimo"
    )


@smoothness_problem.register(MSL)
@smoothness_problem.register(EW)
def _(balancer: MSL | EW) -> str:  # noqa: ARG001
    return ""


@smoothness_problem.register
def _(balancer: MIMO) -> str:
    if balancer.smoothing == 0 or balancer.relative:
        found = "smoothing=0" if balancer.smoothing == 0 else "relative=true, with which μ vanishes with the gaps"
        return f"the objective is smooth for a fixed μ > 0 only, found {found}; type mimo.smoothing=0.1"
    plain = balancer.heads == "plain"
    return "plain heads do not follow the objective's gradient; type mimo.heads=scaled" if plain else ""


@singledispatch
def smoothness_of(balancer: Balancer, of_loss: OfLoss, modalities: Sequence[str]) -> float:
    """Return the smoothness constant of a method's objective, where `smoothness_problem` says nothing."""
    raise NotImplementedError(smoothness_problem(balancer))


@smoothness_of.register
def _(balancer: MSL, of_loss: OfLoss, modalities: Sequence[str]) -> float:  # noqa: ARG001
    """The largest constant: of the fused loss, or of a uni-modal head on features that carry no gradient."""
    heads = [of_loss(name, head_alone=True)[0] for name in modalities]
    return max([of_loss("fused")[0], *heads])


@smoothness_of.register
def _(balancer: EW, of_loss: OfLoss, modalities: Sequence[str]) -> float:
    """L_mm + w · Σ_k L_k."""
    return of_loss("fused")[0] + balancer.weight * sum(of_loss(name)[0] for name in modalities)


@smoothness_of.register
def _(balancer: MIMO, of_loss: OfLoss, modalities: Sequence[str]) -> float:
    """L_mm + λ · Σ_k (L_k + G_k² / μ), plus the floor · Σ_k L_k."""
    fused, unimodal = of_loss("fused")[0], [of_loss(name) for name in modalities]
    whole = smoothness(fused, unimodal, balancer.penalty, balancer.smoothing)
    return whole + balancer.floor * sum(bend for bend, _ in unimodal)
