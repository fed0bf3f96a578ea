"""Gradient accumulation: one decision for all micro-batches of a window."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import final

import torch
from torch import Tensor

from equipoise.balance.balancer import Balancer
from equipoise.balance.losses import HeldDecision, Tensors
from equipoise.balance.presence import together


@final
class Window:
    """Makes gradient accumulation give the gradient of the whole window.

    A method that weighs losses by their values weighs those of a micro-batch differently from those of the window:
    with MIMO at a small μ the accumulated gradient then points elsewhere. A window measures all its micro-batches
    first, in one more forward pass without gradients, and holds the weights that follow; that is exact. With
    ``lag=True`` it holds the weights of the window before instead: an approximation, at no cost.

    Divide the loss by the number of micro-batches as always, and let them be of equal size.

    Args:
        balancer: A balancer that weighs losses. One that mixes gradients (MGDA, MMPareto) decides at each micro-batch.
        lag: Hold the weights of the window before.

    Example:
        >>> from equipoise import MIMO
        >>> balancer = MIMO(smoothing=0.01)
        >>> losses = [{"fused": torch.tensor(1.0), "a": torch.tensor(2.0), "b": torch.tensor(b)} for b in (1.0, 3.0)]
        >>> with Window(balancer).open(losses):  # the window's means of a and b are equal, so they share λ
        ...     _ = balancer(losses[0])
        >>> balancer.table.at("a", "heads")
        tensor(5.)
    """

    def __init__(self, balancer: Balancer, *, lag: bool = False) -> None:
        if balancer.route == "gram":
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
        for name, given in {"scores": scores, "present": present}.items():
            if self.lag and given is not None:
                call = f"type balancer(losses, {name}=…) at each micro-batch"
                raise ValueError(f"Window(lag=True).open: expected no {name} here, {call}")
        held = self._next
        if losses is not None:
            held = self._decided(
                list(losses), None if scores is None else list(scores), None if present is None else list(present)
            )
        self.balancer.hold(held)
        try:
            yield
        finally:
            self.balancer.hold(None)
        if self.lag and held.losses:
            masks = held.present if any(one is not None for one in held.present) else None
            self._next = replace(self._decided(held.losses, held.scores or None, masks), lag=True)

    def _decided(
        self, losses: Sequence[Tensors], scores: Sequence[Tensors] | None, present: Sequence[Tensors | None] | None
    ) -> HeldDecision:
        if not losses:
            raise ValueError("Window: expected the losses of at least one micro-batch, found none")
        for name, given in {"scores": scores, "present": present}.items():
            if given is not None and len(given) != len(losses):
                found = f"{name} for each of {len(losses)} micro-batches, found {len(given)}; give all or none"
                raise ValueError(f"Window: expected {found}")
        whole = {name: torch.cat([batch[name].detach().reshape(-1) for batch in losses]) for name in losses[0]}
        known = self._joined(scores, losses) if scores else None
        with torch.no_grad():  # further objectives are given at each call
            values = self.balancer.values_of(whole, known, None if present is None else together(losses, present))
        return HeldDecision(values, self.balancer.decide(values), scored=scores is not None)

    def _joined(self, scores: Sequence[Tensors], losses: Sequence[Tensors]) -> dict[str, Tensor]:
        """Join the scores of samples, which masks apply to; of micro-batches that have a score each, take the mean."""
        several, joined = len(self.balancer.scored_by) > 1, {}
        for name in scores[0]:
            pieces = [torch.as_tensor(batch[name]) for batch in scores]
            pieces = [piece if piece.is_floating_point() else piece.float() for piece in pieces]
            sizes = [len(batch[name]) if name in batch and batch[name].dim() else 0 for batch in losses]
            if all(p.dim() == 1 + several and len(p) == n for p, n in zip(pieces, sizes, strict=True)):
                joined[name] = torch.cat(pieces)
            else:
                means = [p.mean(dim=0) if p.dim() == 2 else p if several else p.mean() for p in pieces]
                joined[name] = torch.stack(means).mean(dim=0)
        return joined
