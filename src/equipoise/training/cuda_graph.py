"""A training step captured once in a CUDA graph and replayed: one launch instead of a thousand.

A graph freezes the kernels and the memory they work on. So all that moves during training is a tensor that is changed
in place (weights, a method's state, the learning rate, sums), or has the step captured again (`Balancer.phase`), or is
a generator that the graph knows of.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any, TypeAlias, final

import torch
from torch import Tensor

from equipoise.balance.balancer import Balancer
from equipoise.data.feed import Batch, Feed, MicroBatch
from equipoise.data.splits import Part
from equipoise.training.launch import precision_of
from equipoise.training.settings import Settings

WARM_UP = 4
"""Steps before capturing: libraries choose their kernels, the optimiser makes its state."""
LEAST_STEPS = 40
"""Steps below which capturing costs more than it saves."""

Step: TypeAlias = "Callable[[Batch, Sequence[MicroBatch]], None]"


def why_not_captured(settings: Settings, device: torch.device, ranks: int, steps: int) -> str:
    """Say why the steps of a run are not captured; "" where they are to be.

    Args:
        settings: Of the run.
        device: Of the run.
        ranks: Processes that train together.
        steps: Of the whole run.
    """
    if settings.capture is False:
        return "capture=false"
    if device.type != "cuda":
        return "only a GPU plays steps back"
    if precision_of(settings, device) == "fp16":
        return "with fp16 every step asks the gradients whether it may be taken; type precision=bf16"
    if ranks > 1:
        return f"{ranks} processes train together"
    if settings.capture == "auto" and settings.deterministic:
        return "deterministic=true"
    if settings.capture == "auto" and steps < LEAST_STEPS:
        return f"{steps} steps are too few to earn it back"
    return ""


@final
class CapturedStep:
    """Takes the steps of a run: replayed from a graph where possible, as written elsewhere.

    Args:
        step: The whole step, from a batch to moved weights.
        recover: Restores everything after a step that failed half way.
        balancer: The method, which knows what its step depends on.
        feed: Makes the batches, with a generator of its own.
        size: Samples of a full batch; others are never captured.
        why_not: Why this run is not to be captured; "" where it may.
    """

    def __init__(
        self, step: Step, recover: Callable[[], None], balancer: Balancer, feed: Feed, size: int, why_not: str = ""
    ) -> None:
        self.why_not = why_not
        self._step, self._recover, self._balancer, self._feed, self._size = step, recover, balancer, feed, size
        self._stream = _stream_of(feed.device) if not why_not else None
        self.reset()

    def reset(self) -> None:
        """Discard the graph: the step has changed."""
        self._graph: _Graph | None = None
        self._phase: Any = None
        self._warm_up = WARM_UP

    @property
    def captured(self) -> bool:
        """True once steps are replayed."""
        return self._graph is not None

    def __call__(self, batch: Batch, pieces: Sequence[MicroBatch]) -> None:
        """Take one step.

        Args:
            batch: Its samples.
            pieces: Its micro-batches; those of full batches are alike, so that a graph serves all.
        """
        if not self.why_not and len(batch) == self._size and self._balancer.phase is None:
            self.why_not = f"{type(self._balancer).__name__} keeps state outside of tensors (its `phase` is None)"
        if self.why_not or len(batch) != self._size:
            self._step(batch, pieces)
            return
        if (phase := self._balancer.phase) != self._phase:
            self.reset()
            self._phase = phase
        if self._graph is not None:
            self._graph.replay(batch)
        elif self._warm_up > 0:
            self._warm_up -= 1
            with _on_stream(self._stream):
                if self._warm_up > 0:
                    self._step(batch, pieces)
                else:  # the last one is watched
                    self.why_not = _synchronises(lambda: self._step(batch, pieces))
        else:
            self._capture(batch, pieces)

    def _capture(self, batch: Batch, pieces: Sequence[MicroBatch]) -> None:
        generators = [self._feed.random, *self._balancer.generators()]
        try:
            graph = _Graph(self._step, batch, pieces, generators, self._stream)
        except Exception as problem:  # whatever a model does that cannot be captured, it can still be trained
            self.why_not = f"it could not be recorded ({str(problem).strip().splitlines()[0]})"
            torch.cuda.synchronize()
            for generator in [*generators, *torch.cuda.default_generators]:  # which would wait for the graph's end
                generator.graphsafe_set_state(generator.clone_state())
            self._recover()
            self._step(batch, pieces)
            return
        self._graph = graph
        graph.replay(batch)


@final
class _Graph:
    """One step in a CUDA graph, captured but not yet computed, and the memory its batch is copied into."""

    def __init__(
        self,
        step: Step,
        batch: Batch,
        pieces: Sequence[MicroBatch],
        generators: Sequence[torch.Generator],
        stream: torch.cuda.Stream | None,
    ) -> None:
        self._batch, self._graph = _copy_of(batch), torch.cuda.CUDAGraph()
        for generator in generators:
            self._graph.register_generator_state(generator)
        # Other threads may go on using the device meanwhile.
        with torch.cuda.graph(self._graph, stream=stream, capture_error_mode="thread_local"):
            step(self._batch, pieces)

    def replay(self, batch: Batch) -> None:
        """Take the step with another batch."""
        for target, source in zip(_tensors(self._batch), _tensors(batch), strict=True):
            target.copy_(source, non_blocking=True)
        self._graph.replay()


@cache
def _stream_of(device: torch.device) -> torch.cuda.Stream:
    """Return the stream steps are captured on. One for all runs: libraries keep memory for each stream they meet."""
    return torch.cuda.Stream(device)


def _tensors(batch: Batch) -> list[Tensor]:
    return [batch] if isinstance(batch, Tensor) else [*batch.inputs.values(), batch.label]


def _copy_of(batch: Batch) -> Batch:
    if isinstance(batch, Tensor):
        return batch.clone()
    return Part({name: array.clone() for name, array in batch.inputs.items()}, batch.label.clone(), views=batch.views)


def _synchronises(work: Callable[[], None]) -> str:
    """Do some work, and say where it waits for the device, which cannot be captured; "" where it does not."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            work()
        finally:
            torch.cuda.set_sync_debug_mode("default")
    places = [f"{one.filename}:{one.lineno}" for one in caught if "called a synchronizing" in str(one.message)]
    return f"its step waits for the device (at {places[0]})" if places else ""


@contextmanager
def _on_stream(stream: Any) -> Generator[None]:
    """Work on another stream, in order with this one."""
    stream.wait_stream(torch.cuda.current_stream())
    try:
        with torch.cuda.stream(stream):
            yield
    finally:
        torch.cuda.current_stream().wait_stream(stream)
