"""One decision for all micro-batches of an accumulation window."""

from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager
from typing import final

import torch

from equipoise.balance.balancer import Balancer
from equipoise.balance.losses import HeldDecision, Tensors


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
        self, losses: Iterable[Tensors] | None = None, *, scores: Iterable[Tensors] | None = None
    ) -> Generator[None, None, None]:
        """Hold one decision until the block ends; step the optimiser inside it or after it.

        Args:
            losses: The losses of every micro-batch, computed under ``torch.no_grad()``. Not needed with ``lag=True``.
            scores: The scores of every micro-batch, for a method that is given some; their mean decides. With
                ``lag=True`` they are given to the balancer at each call instead.
        """
        if self.lag == (losses is not None):
            needed = "none: the weights come from the window before" if self.lag else "the losses of every micro-batch"
            given = "losses were given" if self.lag else "none were given"
            raise ValueError(f"Window(lag={self.lag}).open: expected {needed}, but {given}")
        if self.lag and scores is not None:
            call = "type balancer(losses, scores=…) at each micro-batch"
            raise ValueError(f"Window(lag=True).open: expected no scores here, {call}")
        held = self._next
        if losses is not None:
            held = self._decided(list(losses), None if scores is None else list(scores))
        self.balancer.hold(held)
        try:
            yield
        finally:
            self.balancer.hold(None)
        if self.lag and held.losses:
            self._next = self._decided(held.losses, held.scores or None)

    def _decided(self, losses: Sequence[Tensors], scores: Sequence[Tensors] | None) -> HeldDecision:
        if not losses:
            raise ValueError("Window: expected the losses of at least one micro-batch, found none")
        if scores is not None and len(scores) != len(losses):
            given = f"scores for each of {len(losses)} micro-batches, found {len(scores)}; give all or none"
            raise ValueError(f"Window: expected {given}")
        together = {name: torch.cat([batch[name].detach().reshape(-1) for batch in losses]) for name in losses[0]}
        means = None
        if scores:
            means = {
                name: torch.stack([torch.as_tensor(batch[name]).float().mean() for batch in scores]).mean()
                for name in scores[0]
            }
        values = self.balancer.values_of(together, means)
        return HeldDecision(values, self.balancer.decide(values), scored=scores is not None)
