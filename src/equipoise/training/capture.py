"""A training step recorded once and played back: one launch instead of a thousand, where the device allows it.

What is recorded is frozen: the kernels and the memory they work on. So all that moves during training is a tensor that
is changed in place (weights, a method's state, the learning rate, sums), or makes the step be recorded again
(`Balancer.phase`), or is a generator that the recording knows of.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, final

import torch
from torch import Tensor

from equipoise.balance.balancer import Balancer
from equipoise.data.feed import Batch, Feed
from equipoise.data.splits import Part

WARM_UP = 4
"""Steps before recording: libraries choose their kernels, the optimiser makes its state."""
EARNS = 40
"""Steps below which recording costs more than it saves."""


@final
class Player:
    """Does the step of a run: as it is written where it must, from a recording where it can.

    Args:
        work: The whole step, from a batch to moved weights.
        recover: Makes everything as it was before a step that was given up half way.
        balancer: The method, which knows what its step depends on.
        feed: Makes the batches, with a generator of its own.
        size: Samples of a full batch; others are never recorded.
        why_not: Why this run is not to be recorded; "" where it may.
    """

    def __init__(
        self,
        work: Callable[[Batch], None],
        recover: Callable[[], None],
        balancer: Balancer,
        feed: Feed,
        size: int,
        why_not: str = "",
    ) -> None:
        self.why_not = why_not
        self._work, self._recover, self._balancer, self._feed, self._size = work, recover, balancer, feed, size
        self._stream = _stream_of(feed.device) if not why_not else None
        self.start_again()

    def start_again(self) -> None:
        """Forget the recording: the step has changed."""
        self._recording: _Recording | None = None
        self._phase: Any = None
        self._warm_up = WARM_UP

    @property
    def recorded(self) -> bool:
        """Whether steps are played back."""
        return self._recording is not None

    def __call__(self, batch: Batch) -> None:
        """One step."""
        if self.why_not or len(batch) != self._size:
            self._work(batch)
            return
        phase = self._balancer.phase
        if phase is None:
            self.why_not = f"{type(self._balancer).__name__} keeps state outside of tensors (its `phase` is None)"
            self._work(batch)
            return
        if phase != self._phase:
            self.start_again()
            self._phase = phase
        if self._recording is not None:
            self._recording.play(batch)
        elif self._warm_up > 0:
            self._warm_up -= 1
            with _aside(self._stream):
                self._warm_step(batch)
        else:
            self._record(batch)

    def _warm_step(self, batch: Batch) -> None:
        """A step on the stream of the recording; the last of them is watched for waits."""
        if self._warm_up > 0:
            self._work(batch)
        else:
            self.why_not = _waits(lambda: self._work(batch))

    def _record(self, batch: Batch) -> None:
        recording = _Recording(batch)
        try:
            recording.take(self._work, [self._feed.random, *self._balancer.generators()], self._stream)
        except Exception as found:  # whatever a model does that cannot be recorded, it can still be trained
            self.why_not = f"it could not be recorded ({str(found).strip().splitlines()[0]})"
            torch.cuda.synchronize()
            _release_generators([self._feed.random, *self._balancer.generators()])
            self._recover()
            self._work(batch)
            return
        self._recording = recording
        recording.play(batch)


@final
class _Recording:
    """One step in a CUDA graph, and the memory its batch is put into."""

    def __init__(self, batch: Batch) -> None:
        self._batch = _copy_of(batch)
        self._graph = torch.cuda.CUDAGraph()

    def take(self, work: Callable[[Batch], None], generators: Sequence[torch.Generator], stream: Any) -> None:
        """Record; nothing is computed yet."""
        for generator in generators:
            self._graph.register_generator_state(generator)
        # Other threads may go on using the device meanwhile.
        with torch.cuda.graph(self._graph, stream=stream, capture_error_mode="thread_local"):
            work(self._batch)

    def play(self, batch: Batch) -> None:
        """Do the step with another batch."""
        for place, given in zip(_tensors(self._batch), _tensors(batch), strict=True):
            place.copy_(given, non_blocking=True)
        self._graph.replay()


@cache
def _stream_of(device: torch.device) -> Any:
    """The stream steps are recorded on. One for all runs: libraries keep memory for each stream they meet."""
    return torch.cuda.Stream(device)


def _tensors(batch: Batch) -> list[Tensor]:
    return [batch] if isinstance(batch, Tensor) else [*batch.inputs.values(), batch.label]


def _copy_of(batch: Batch) -> Batch:
    if isinstance(batch, Tensor):
        return batch.clone()
    return Part({name: array.clone() for name, array in batch.inputs.items()}, batch.label.clone(), views=batch.views)


def _waits(work: Callable[[], None]) -> str:
    """Do some work, and say if it waits for the device, which cannot be recorded; "" where it does not."""
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            work()
        finally:
            torch.cuda.set_sync_debug_mode("default")
    places = [f"{each.filename}:{each.lineno}" for each in found if "called a synchronizing" in str(each.message)]
    return f"its step waits for the device (at {places[0]})" if places else ""


@final
class _aside:  # noqa: N801 (reads as a word)
    """Work on another stream, in order with this one."""

    def __init__(self, stream: Any) -> None:
        self._stream, self._context = stream, torch.cuda.stream(stream)

    def __enter__(self) -> None:
        self._stream.wait_stream(torch.cuda.current_stream())
        self._context.__enter__()

    def __exit__(self, *found: Any) -> None:
        self._context.__exit__(*found)
        torch.cuda.current_stream().wait_stream(self._stream)


def _release_generators(generators: Sequence[torch.Generator]) -> None:
    """Take generators out of a recording that failed: they would go on waiting for its end."""
    for generator in [*generators, *torch.cuda.default_generators]:
        generator.graphsafe_set_state(generator.clone_state())
