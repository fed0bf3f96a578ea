"""A training step captured once in a CUDA graph and replayed: one launch instead of a thousand.

A graph freezes the kernels and the memory they work on. So all that moves during training is a tensor that is changed
in place (weights, a method's state, the learning rate, sums), or has the step captured again (numbers of the state that
are read on the host), or is a generator that the graph knows of.
"""

import warnings
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any, final

import torch
from torch import Tensor

from equipoise.data.feed import Batch, MicroBatch
from equipoise.training.settings import Settings
from equipoise.training.step import TrainingStep

WARM_UP = 4
"""Steps before capturing: libraries choose their kernels, the optimiser makes its state."""
LEAST_STEPS = 40
"""Steps below which capturing costs more than it saves."""


def why_not_captured(settings: Settings, device: torch.device, ranks: int, steps: int) -> str:
    """Say why the steps of a run are not captured; "" where they are to be.

    Args:
        settings: Of the run.
        device: Of the run.
        ranks: Processes that train together.
        steps: Of the whole run.
    """
    auto = settings.capture == "auto"
    reasons = {
        "capture=false": settings.capture is False,
        "steps are captured on a GPU only": device.type != "cuda",
        "with fp16 every step asks the gradients whether it may be taken; type precision=bf16": settings.precision
        == "fp16",
        f"{ranks} processes train together": ranks > 1,
        "deterministic=true": auto and settings.deterministic,
        f"{steps} steps are too few to be worth it": auto and steps < LEAST_STEPS,
    }
    return next((reason for reason, applies in reasons.items() if applies), "")


@final
class CapturedStep:
    """Takes the steps of a run: replayed from a graph where possible, as written elsewhere.

    Args:
        step: The whole step, from a batch to moved weights.
        size: Samples of a full batch; others are never captured.
        why_not: Why this run is not to be captured; "" where it may.
    """

    def __init__(self, step: TrainingStep, size: int, why_not: str = "") -> None:
        self._step, self._size, self.why_not = step, size, why_not
        self._stream = _stream_of(step.feed.device) if not why_not else None
        self.reset()

    def reset(self) -> None:
        """Discard the graph: the step has changed."""
        self._graph: torch.cuda.CUDAGraph | None = None
        self._host: Any = None
        self._warm_up = WARM_UP

    @property
    def captured(self) -> bool:
        """True once steps are replayed."""
        return self._graph is not None

    def __call__(self, batch: Batch, micro_batches: Sequence[MicroBatch]) -> None:
        """Take one step.

        Args:
            batch: Its samples.
            micro_batches: Its micro-batches; those of full batches are alike, so that a graph serves all.
        """
        balancer = self._step.balancer
        if not self.why_not and balancer.host_values() != balancer.host_values():
            self.why_not = f"{type(balancer).__name__} decides anew on the host in every step"
        if self.why_not or len(batch) != self._size:
            self._step(batch, micro_batches)
            return
        if (host := balancer.host_values()) != self._host:
            self.reset()
            self._host = host
        if self._graph is None and self._warm_up > 0:
            self._warm_up -= 1
            with _on_stream(self._stream):
                if self._warm_up > 0:
                    self._step(batch, micro_batches)
                else:  # the last one is watched
                    self.why_not = _synchronises(lambda: self._step(batch, micro_batches))
        elif self._graph is not None or self._capture(batch, micro_batches):
            self._replay(batch)

    def _replay(self, batch: Batch) -> None:
        for target, source in zip(_tensors(self._batch), _tensors(batch), strict=True):
            target.copy_(source, non_blocking=True)
        assert self._graph is not None
        self._graph.replay()
        self._step.balancer.answered = self._answered  # another batch may have been taken as written meanwhile

    def _capture(self, batch: Batch, micro_batches: Sequence[MicroBatch]) -> bool:
        """Capture the step, which computes nothing yet; where that fails, take it as written and return False."""
        generators = [self._step.feed.random, *self._step.balancer.generators]
        memory = batch.clone() if isinstance(batch, Tensor) else batch.apply(torch.clone)
        graph = torch.cuda.CUDAGraph()
        try:
            for generator in generators:
                graph.register_generator_state(generator)
            # Other threads may go on using the device meanwhile.
            with torch.cuda.graph(graph, stream=self._stream, capture_error_mode="thread_local"):
                self._step(memory, micro_batches)
        except Exception as problem:  # whatever a model does that cannot be captured, it can still be trained
            self.why_not = f"it could not be recorded ({str(problem).strip().splitlines()[0]})"
            torch.cuda.synchronize()
            for generator in [*generators, *torch.cuda.default_generators]:  # which would wait for the graph's end
                generator.graphsafe_set_state(generator.clone_state())
            self._step.attach()  # restores all that the failed one left
            self._step(batch, micro_batches)
            return False
        self._graph, self._batch, self._answered = graph, memory, self._step.balancer.answered
        return True


@cache
def _stream_of(device: torch.device) -> torch.cuda.Stream:
    """Return the stream steps are captured on. One for all runs: libraries keep memory for each stream they meet."""
    return torch.cuda.Stream(device)


def _tensors(batch: Batch) -> list[Tensor]:
    return [batch] if isinstance(batch, Tensor) else [*batch.inputs.values(), batch.label]


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
