"""One decision for all micro-batches of an accumulation window."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from typing import final

import torch
from torch import Tensor

from equipoise.balance.balancer import Balancer
from equipoise.balance.method import HeldDecision


@final
class Window:
    """Makes gradient accumulation give the gradient of the whole window.

    A method that weighs losses by their values weighs those of a micro-batch differently from those of the window:
    with MIMO at a small μ the accumulated gradient then points elsewhere. A window measures all its micro-batches
    first, in one more forward pass without gradients, and holds the weights that follow; that is exact. With
    ``lag=True`` it holds the weights of the window before
    instead: an approximation, at no cost.

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
            msg = (
                f"Window: {type(balancer).__name__} decides by gradients, not by the values of losses, and decides "
                "anew at each micro-batch; use larger batches, or a method that weighs losses"
            )
            raise ValueError(msg)
        self.balancer, self.lag = balancer, lag
        self._next = HeldDecision()

    @property
    def exact(self) -> bool:
        """Whether the accumulated gradient is that of the window."""
        return not self.lag

    @contextmanager
    def open(
        self,
        losses: Iterable[Mapping[str, Tensor]] | None = None,
        *,
        scores: Iterable[Mapping[str, Tensor]] | None = None,
    ) -> Generator[None, None, None]:
        """Hold one decision until the block ends; step the optimiser inside it or after it.

        Args:
            losses: The losses of every micro-batch, computed under ``torch.no_grad()``. Not needed with ``lag=True``.
            scores: The scores of every micro-batch, for a method that is given some; their mean decides. With
                ``lag=True`` they are given to the balancer at each call instead.
        """
        if self.lag == (losses is not None):
            found = "losses were given" if self.lag else "none were given"
            needed = "none: the weights come from the window before" if self.lag else "the losses of every micro-batch"
            msg = f"Window(lag={self.lag}).open: expected {needed}, but {found}"
            raise ValueError(msg)
        if self.lag and scores is not None:
            msg = "Window(lag=True).open: expected no scores here, type balancer(losses, scores=…) at each micro-batch"
            raise ValueError(msg)
        held = self._next
        if losses is not None:
            batches, given = list(losses), None if scores is None else list(scores)
            if given is not None and len(given) != len(batches):
                msg = f"Window.open: expected scores for each of {len(batches)} micro-batches, found {len(given)}"
                raise ValueError(msg)
            held = self._decided(list(zip(batches, given or [None] * len(batches), strict=True)))
        self.balancer.hold(held)
        try:
            yield
        finally:
            self.balancer.hold(None)
        if self.lag and held.record:
            self._next = self._decided(held.record)

    def _decided(self, batches: Sequence[tuple[Mapping[str, Tensor], Mapping[str, Tensor] | None]]) -> HeldDecision:
        if not batches:
            msg = "Window: expected the losses of at least one micro-batch, found none"
            raise ValueError(msg)
        losses = [each for each, _ in batches]
        scores = [each for _, each in batches if each is not None]
        if scores and len(scores) < len(batches):
            msg = f"Window: expected scores for all {len(batches)} micro-batches or for none, found {len(scores)}"
            raise ValueError(msg)
        together = {name: torch.cat([each[name].detach().reshape(-1) for each in losses]) for name in losses[0]}
        means = {
            name: torch.stack([torch.as_tensor(each[name]).float().mean() for each in scores]).mean()
            for name in (scores[0] if scores else ())
        }
        values = self.balancer.values_of(together, means or None)
        return HeldDecision(values, self.balancer.decide(values), scored=bool(scores))
