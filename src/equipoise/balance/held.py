"""One decision for several micro-batches."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import final

import torch
from torch import Tensor

from equipoise.balance.coefficients import Coefficients, Losses
from equipoise.balance.reading import GivenStep


@final
@dataclass
class HeldDecision:
    """One decision for several micro-batches.

    Args:
        losses: The losses of the whole window.
        answer: The method's decision; None to let every micro-batch decide for itself.
        lag: Whether it is that of the window before.
        advanced: Whether the method's state has moved on for this window.
        seen: The micro-batches that came by, without their graph.
    """

    losses: Losses | None = None
    answer: Coefficients | None = None
    lag: bool = False
    advanced: bool = False
    seen: list[GivenStep] = field(default_factory=list)

    @property
    def presence(self) -> Tensor | None:
        """The share of samples that have each sensor, over the whole window; None without masks, or where it lags."""
        return None if self.lag or self.losses is None else self.losses.presence

    def check(self, given: GivenStep) -> None:
        """Raise an error where a micro-batch is given what the whole window was asked for."""
        if self.answer is None:
            return
        wide = self.losses is not None and self.answer.rows > 1 + len(self.losses.unimodal)
        if wide and given.further is None and torch.is_grad_enabled():
            raise ValueError("further: the Window decided with further objectives; pass further={name: loss} here")
        if self.lag:
            return
        if given.further is not None and not wide:
            raise ValueError("further: the Window decided without these; see the `form` of the method")
        unwanted = {"scores": given.scores, "present": given.present if self.presence is None else None}
        for name, value in unwanted.items():
            if value is not None:
                instead = f"type Window(…).open(losses, {name}=[…])"
                raise ValueError(f"{name}: a Window holds the decision; expected none here, {instead}")

    def decided(self, losses: Losses) -> Losses:
        """Return the losses that decide: those of the window, with what is given at each call alone."""
        return losses if self.losses is None else self.losses._replace(further=losses.further)

    def note(self, given: GivenStep) -> None:
        """Remember a micro-batch: the next window may decide by it."""
        detached = {name: loss.detach() for name, loss in given.losses.items()}
        further = None if given.further is None else {name: one.detach() for name, one in given.further.items()}
        self.seen.append(given._replace(losses=detached, further=further))
