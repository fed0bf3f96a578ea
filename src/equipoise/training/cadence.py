"""When a run writes its state: seldom enough to cost little, and at the same moment in all its processes."""

from __future__ import annotations

import time
from typing import final

from equipoise.balance import collectives
from equipoise.training import distributed

WITHIN_EPOCH = 1.0  # seconds an epoch lasts at least before it is kept half done


@final
class Cadence:
    """Counts the seconds since the state was last written.

    Args:
        seconds: Least time between two checkpoints inside an epoch.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._saved, self._cost, self._asks_at = time.perf_counter(), 0.0, 0

    def due(self, patience: float) -> bool:
        """Whether the state was last written so many seconds ago. All processes have to ask together."""
        return distributed.agreed(self._since() >= patience)

    def due_within(self, batch: int, started: float) -> bool:
        """Whether to write inside an epoch: short ones need none, and writing should cost little.

        Several processes ask each other about once a second: at every step it would cost as much as the step.

        Args:
            batch: How many batches of the epoch are done.
            started: When the epoch was.
        """
        patience = max(self._seconds, WITHIN_EPOCH, 30 * self._cost)
        if collectives.size() == 1:
            return self._since() >= patience
        if batch < self._asks_at:
            return False
        each = (time.perf_counter() - started) / batch
        due, self._asks_at = distributed.agreed((self._since() >= patience, batch + max(1, int(1.0 / each))))
        return due

    def new_epoch(self) -> None:
        """Batches are counted from the start again."""
        self._asks_at = 0

    def written(self, started: float | None = None) -> None:
        """The state has been written, beginning at this time; or nobody wants it."""
        self._saved = time.perf_counter()
        self._cost = 0.0 if started is None else self._saved - started

    def _since(self) -> float:
        return time.perf_counter() - self._saved
