"""Gradient accumulation: one decision for all micro-batches of a window."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager
from typing import final

import torch
from torch import Tensor

from equipoise.balance.balancer import Balancer
from equipoise.balance.coefficients import Tensors
from equipoise.balance.held import HeldDecision
from equipoise.balance.kinds import Weighting
from equipoise.balance.presence import together
from equipoise.balance.reading import GivenStep


@final
class Window:
    """Makes gradient accumulation give the gradient of the whole window.

    A method that weighs losses by their values weighs those of a micro-batch differently from those of the window:
    under a maximum that is hardly smoothed the accumulated gradient then points elsewhere. A window measures all its
    micro-batches first, in one more forward pass without gradients, and holds the weights that follow; that is exact.
    With ``lag=True`` it holds the weights of the window before instead: an approximation, at no cost.

    Divide the loss by the number of micro-batches as always, and let them be of equal size.

    Args:
        balancer: A balancer that weighs losses. One that mixes gradients decides at each micro-batch.
        lag: Hold the weights of the window before.
    """

    balancer: Weighting

    def __init__(self, balancer: Balancer, *, lag: bool = False) -> None:
        if not isinstance(balancer, Weighting):
            raise ValueError(
                f"Window: {type(balancer).__name__} decides by gradients, not by the values of losses, and decides "
                "anew at each micro-batch; use larger batches, or a method that weighs losses"
            )
        self.balancer, self.lag = balancer, lag
        self._next = HeldDecision()

    @property
    def exact(self) -> bool:
        """True if the accumulated gradient is that of the window."""
        return not self.lag

    @contextmanager
    def open(
        self,
        losses: Iterable[Tensors] | None = None,
        *,
        scores: Iterable[Tensors] | None = None,
        present: Iterable[Tensors | None] | None = None,
    ) -> Generator[None, None, None]:
        """Hold one decision until the block ends; step the optimiser inside it or after it.

        Args:
            losses: The losses of every micro-batch, computed under ``torch.no_grad()``. Not needed with ``lag=True``.
            scores: The scores of every micro-batch, for a method that is given some; their mean decides. With
                ``lag=True`` they are given to the balancer at each call instead.
            present: The masks of every micro-batch, where samples may lack a sensor, None for one that is complete; the
                balancer is given them at each call too. A loss is then the mean over the window's samples that have
                the sensor. With ``lag=True`` they are given at each call only, and each micro-batch is averaged by
                itself.
        """
        if self.lag == (losses is not None):
            needed = "none: the weights come from the window before" if self.lag else "the losses of every micro-batch"
            given = "losses were given" if self.lag else "none were given"
            raise ValueError(f"Window(lag={self.lag}).open: expected {needed}, but {given}")
        if self.lag and (scores is not None or present is not None):
            named = "scores" if scores is not None else "masks"
            raise ValueError(f"Window(lag=True).open: expected no {named} here, give them to the balancer at each call")
        held = self._next
        if losses is not None:
            held = self._decided(_micro_batches(list(losses), scores, present))
        self.balancer.hold(held)
        try:
            yield
        finally:
            self.balancer.hold(None)
        if self.lag and held.seen:
            self._next = self._decided(held.seen)

    def _decided(self, batches: Sequence[GivenStep]) -> HeldDecision:
        if not batches:
            raise ValueError("Window: expected the losses of at least one micro-batch, found none")
        losses, masks = [batch.losses for batch in batches], [batch.present for batch in batches]
        whole = {name: torch.cat([batch[name].detach().reshape(-1) for batch in losses]) for name in losses[0]}
        scores = self._joined([batch.scores for batch in batches], losses) if batches[0].scores is not None else None
        present = together(losses, masks) if any(one is not None for one in masks) else None
        further = None  # an exact window is given them at each call
        if (first := batches[0].further) is not None:
            rows = [batch.further or {} for batch in batches]
            further = {name: torch.stack([row[name].mean() for row in rows]).mean() for name in first}
        with torch.no_grad():
            decided = self.balancer.read(GivenStep(whole, scores, present, further)).losses
        return HeldDecision(decided, self.balancer.decide(decided), lag=self.lag)

    def _joined(self, scores: Sequence[Tensors | None], losses: Sequence[Tensors]) -> dict[str, Tensor]:
        """Join the scores of samples, which masks apply to; of micro-batches that have a score each, take the mean."""
        several, joined = len(self.balancer.needs.scores) > 1, {}
        given = [one or {} for one in scores]
        for name in given[0]:
            pieces = [torch.as_tensor(batch[name]) for batch in given]
            pieces = [piece if piece.is_floating_point() else piece.float() for piece in pieces]
            sizes = [len(batch[name]) if name in batch and batch[name].dim() else 0 for batch in losses]
            if all(p.dim() == 1 + several and len(p) == n for p, n in zip(pieces, sizes, strict=True)):
                joined[name] = torch.cat(pieces)
            else:
                means = [p.mean(dim=0) if p.dim() == 2 else p if several else p.mean() for p in pieces]
                joined[name] = torch.stack(means).mean(dim=0)
        return joined


def _micro_batches(
    losses: Sequence[Tensors], scores: Iterable[Tensors] | None, present: Iterable[Tensors | None] | None
) -> list[GivenStep]:
    """Pair what is given of each micro-batch."""
    columns: dict[str, Sequence[Tensors | None]] = {}
    for name, given in {"scores": scores, "present": present}.items():
        columns[name] = [None] * len(losses) if given is None else list(given)
        if len(columns[name]) != len(losses):
            found = f"{name} for each of {len(losses)} micro-batches, found {len(columns[name])}; give all or none"
            raise ValueError(f"Window: expected {found}")
    rows = zip(losses, columns["scores"], columns["present"], strict=True)
    return [GivenStep(*row) for row in rows]
