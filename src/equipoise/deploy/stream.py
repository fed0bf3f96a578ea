"""Windows cut from samples as they arrive, several sensors at their own rates, and an answer for each window.

A window spans W seconds, the longest of the trained windows; window k ends at W + k · stride, and each sensor gives the
last samples of its trained length that lie before that end. So answers depend on the samples alone, and not on the
chunks in which they come.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, final

import numpy as np
import torch
from torch import Tensor

from equipoise.data.own.columns import as_numpy
from equipoise.data.views import TimeLast, VideoFrames
from equipoise.deploy.deployable import HEAD, LENGTH, USED, VALID, InputSpec
from equipoise.deploy.monitor import SensorMonitor
from equipoise.deploy.recorded import COLOURS, Recorded, expected, read_recorded, read_sensor
from equipoise.util.errors import BadInput, raise_all, unknown_name

if TYPE_CHECKING:
    from equipoise.deploy.prediction import Prediction
    from equipoise.deploy.saved_model import SavedModel
    from equipoise.models.late_fusion import Decision


SPREAD = 10**9
"""Times that the fastest sensor may be faster than the slowest, so that steps can be counted in 64 bits."""

ROUNDED = 1 - Fraction(1, 10**9)
"""One step, less what a stride of 1 / 30 loses when it is written as a decimal number."""

PATIENCE = 100
"""Windows, or strides where these are longer, that a sensor may be behind the others."""


class Answering(Protocol):
    """The part of a `Predictor` that a stream asks."""

    saved: SavedModel
    words: dict[str, int]

    @abstractmethod
    def run(self, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        """Run the graph."""

    @abstractmethod
    def prediction(self, outputs: dict[str, Tensor], recorded: Recorded, decision: Decision) -> Prediction:
        """Put outputs of the graph into names and numbers."""


class StreamAnswer(NamedTuple):
    """The answer for one window.

    Args:
        start: Seconds from the first sample to the window's start; samples where no rate was given.
        end: The same to its end.
        prediction: The answer, and the sensors it rests on.
        failed: The sensor that the monitor names; None where all seem healthy, or nothing watches.
    """

    start: float
    end: float
    prediction: Prediction
    failed: str | None


@final
@dataclass
class _Buffer:
    """The samples of one sensor that a later window may need.

    Args:
        spec: What the model expects.
        rate: Samples per second.
        axis: Of time in one sample; None where a sample has no time, and counts as one step.
        values: [n, …], one step each; a step that is not there is not held.
        numbers: Of the steps held, from the start of the stream, [n].
        count: Steps since the start of the stream, there or not.
    """

    spec: InputSpec
    rate: Fraction
    axis: int | None
    values: Tensor
    numbers: Tensor
    count: int = 0

    @property
    def steps(self) -> int:
        return 1 if self.axis is None else self.spec.shape[self.axis]

    def add(self, values: Tensor, valid: Tensor) -> None:
        """Take the next steps, of which some are not there."""
        numbers = torch.arange(self.count, self.count + len(valid))
        self.values, self.numbers = torch.cat([self.values, values[valid]]), torch.cat([self.numbers, numbers[valid]])
        self.count += len(valid)

    def window(self, end: int) -> tuple[Tensor, Tensor]:
        """Return the sample that ends before a step, with an axis of one sample, and whether all of it is there."""
        start = end - self.steps
        low, high = torch.searchsorted(self.numbers, torch.tensor([start, end])).tolist()
        values = self.values.new_zeros(self.steps, *self.values.shape[1:])
        values[self.numbers[low:high] - start] = self.values[low:high]
        one = values if self.axis is None else values.movedim(0, self.axis).unsqueeze(0)
        return one, torch.tensor([high - low == self.steps])

    def forget(self, until: int) -> None:
        """Drop the steps before one."""
        dropped = int(torch.searchsorted(self.numbers, min(max(0, until), self.count)))
        self.values, self.numbers = self.values[dropped:], self.numbers[dropped:]


@final
class Stream:
    """One stream of one device: takes samples in chunks of any size, and answers when a window is complete.

    A sensor that sends nothing is waited for, for a hundred windows; then `push` refuses more samples of the others,
    which would have to be kept, until it is said whether the sensor is off. Say that it is off with None in place of
    its samples: from then on windows do without it, until samples of it come again, which count from the present moment
    of the others. A step that holds NaN or infinity is not there, and a window with such a step does without its
    sensor.

    With a monitor, a sensor that it names is masked in the answer, as long as another one is left.

    Args:
        predictor: A `Predictor`, whose `stream` makes this.
        rate: Samples per second of the sensors that `rates` does not name.
        rates: Samples per second by sensor.
        stride: Seconds between windows; None for the length of one.
        decision: As for `Predictor.predict`.
        monitor: Watches the heads; this stream gets a state of its own. It should have been calibrated at this stride.

    Raises:
        BadInput: If a rate is missing or no positive number, or a sensor cannot be cut into windows.
    """

    def __init__(
        self,
        predictor: Answering,
        *,
        rate: float | None,
        rates: Mapping[str, float],
        stride: float | None,
        decision: Decision,
        monitor: SensorMonitor | None,
    ) -> None:
        specs = predictor.saved.input_specs
        raise_all(_problems(specs, rate, rates, stride))
        known = _known(specs, rate, rates)
        self._predictor, self._decision = predictor, decision
        self._buffers = {name: _empty(spec, _exact(known[name])) for name, spec in specs.items()}
        self.window = max(buffer.steps / buffer.rate for buffer in self._buffers.values())
        self.stride = self.window if stride is None else _exact(stride)
        self._monitor, self._number = None if monitor is None else monitor.fresh(), 0
        self._off: set[str] = set()

    def push(self, chunks: Mapping[str, Any]) -> list[StreamAnswer]:
        """Take the samples that arrived, and answer for every window that is complete now.

        Args:
            chunks: By sensor: series [C, n] or one step [C]; frames [n, H, W, C]; vectors and pictures as for
                `predict`, one or many. None for a sensor that is off. A sensor left out sent nothing yet.

        Raises:
            BadInput: With everything that is wrong; the stream stays as it was.
        """
        read, problems = {}, []
        for name, chunk in chunks.items():
            if name not in self._buffers:
                problems.append(f"unknown sensor: {unknown_name(name, self._buffers)}")
            elif chunk is not None:
                try:
                    read[name] = self._read(name, chunk)
                except BadInput as problem:
                    problems.append(str(problem))
        off = (self._off | {name for name, chunk in chunks.items() if chunk is None}) - {*read}
        more = {name: len(valid) for name, (_, valid) in read.items()}
        until = {name: (buffer.count + more.get(name, 0)) / buffer.rate for name, buffer in self._buffers.items()}
        clock = max(until.values())
        raise_all([*problems, *self._late({name: end for name, end in until.items() if name not in off}, clock)])
        self._off = off
        for name, (values, valid) in read.items():
            self._buffers[name].add(values, valid)
        for name in off:
            buffer = self._buffers[name]
            buffer.count = max(buffer.count, math.floor(clock * buffer.rate))
        answers = []
        while all(buffer.count >= self._end(buffer) for buffer in self._buffers.values()):
            answers.append(self._answer())
            self._number += 1
        for buffer in self._buffers.values():
            buffer.forget(self._end(buffer) - buffer.steps)
        return answers

    def _late(self, until: Mapping[str, Fraction], clock: Fraction) -> Iterator[str]:
        """Name the sensors that are so late that all that the others sent could no longer be kept."""
        for name, end in until.items():
            if clock - end > PATIENCE * max(self.window, self.stride):
                found = f"found those until {float(end):g} s, and others until {float(clock):g} s"
                yield f"{name}: expected its samples too, {found}; if it is off, push this again with {name!r}: None"

    def _end(self, buffer: _Buffer) -> int:
        """Return the step of a sensor before which the next window ends."""
        return math.floor((self.window + self._number * self.stride) * buffer.rate)

    def _answer(self) -> StreamAnswer:
        inputs: dict[str, Tensor] = {}
        for name, buffer in self._buffers.items():
            inputs[name], inputs[name + VALID] = buffer.window(self._end(buffer))
            if buffer.spec.ragged:
                inputs[name + LENGTH] = torch.tensor([buffer.spec.steps])
        outputs, failed = self._predictor.run(inputs), None
        if self._monitor is not None:
            heads = {name: outputs[name + HEAD] for name in self._monitor.modalities}
            (failed,) = self._monitor.update(heads, {name: outputs[name + USED] for name in heads}).names()
            if failed is not None and any(outputs[name + USED] for name in self._buffers if name != failed):
                inputs[failed + VALID] = torch.zeros(1, dtype=torch.bool)
                outputs = self._predictor.run(inputs)
        prediction = self._predictor.prediction(outputs, Recorded(inputs, single=True), self._decision)
        end = self.window + self._number * self.stride
        return StreamAnswer(float(end - self.window), float(end), prediction, failed)

    def _read(self, name: str, chunk: Any) -> tuple[Tensor, Tensor]:
        """Read the steps of a chunk, [n, …], and which of them are real."""
        buffer, words = self._buffers[name], self._predictor.words
        try:
            array = as_numpy(chunk)
        except (ValueError, TypeError) as why:
            raise BadInput(f"{name}: expected an array of numbers, found what numpy cannot read: {why}") from None
        if np.size(array) == 0:
            return buffer.values[:0], torch.zeros(0, dtype=torch.bool)
        if buffer.axis is None:
            read = read_recorded({name: buffer.spec}, {name: chunk}, words)
            return read.inputs[name], read.inputs[name + VALID]
        array = _batch_of_one(name, array, buffer)
        steps = 1 + (buffer.axis if array.shape[-1] not in COLOURS or array.ndim < 5 else 0)
        others = tuple(axis for axis in range(array.ndim) if axis != steps)
        valid = np.asarray(np.isfinite(array).all(axis=others))
        shape = [len(valid) if axis == steps else 1 for axis in range(array.ndim)]
        array = np.where(valid.reshape(shape), array, np.zeros((), array.dtype))
        values, *_ = read_sensor(name, buffer.spec, array, None, words.get(name), steps=True)
        return values[0].movedim(buffer.axis, 0), torch.from_numpy(valid)


def _batch_of_one(name: str, array: np.ndarray, buffer: _Buffer) -> np.ndarray:
    """Return a chunk as one sample of some steps, [1, …]; a single step gets its axis of time."""
    axes, spec = len(buffer.spec.shape), buffer.spec
    if array.dtype.kind not in "biuf" or array.ndim not in (axes, axes - 1):
        found = f"found an array of {array.dtype} of shape {list(array.shape)}"
        raise BadInput(f"{name}: expected {expected(spec, steps=True)}; {found}")
    if array.ndim == axes - 1:
        last = array.ndim == 3 and array.shape[-1] in COLOURS
        array = np.expand_dims(array, 0 if last else int(buffer.axis or 0))
    return array[None]


def _empty(spec: InputSpec, rate: Fraction) -> _Buffer:
    axis = None
    if len(spec.shape) in (2, 4) and not spec.spatial:
        axis = 0 if isinstance(spec.view, TimeLast) else 1
    step = spec.shape if axis is None else (*spec.shape[:axis], *spec.shape[axis + 1 :])
    return _Buffer(spec, rate, axis, torch.zeros(0, *step, dtype=spec.dtype), torch.zeros(0, dtype=torch.int64))


def _exact(number: float) -> Fraction:
    """Return a number as it was written: 0.1 is a tenth, so that windows do not drift."""
    return Fraction(str(number))


def _known(specs: Iterable[str], rate: float | None, rates: Mapping[str, float]) -> dict[str, float]:
    """Return the samples per second of every sensor."""
    return {name: rates.get(name, 1 if rate is None else rate) for name in specs}


def _problems(
    specs: Mapping[str, InputSpec], rate: float | None, rates: Mapping[str, float], stride: float | None
) -> list[str]:
    if not isinstance(rates, Mapping):
        return [f"rates: expected {{sensor: samples per second, …}}, found {rates!r}"]
    problems = [f"rates: unknown sensor: {unknown_name(name, specs)}" for name in rates if name not in specs]
    given = {"rate": rate, "stride": stride, **{f"rates[{name!r}]": value for name, value in rates.items()}}
    for key, value in given.items():
        if value is not None and not (isinstance(value, (int, float)) and 0 < value < math.inf):
            problems.append(f"{key}: expected a number above zero, found {value!r}")
    if rates and rate is None:
        missing = [name for name in specs if name not in rates]
        problems += [f"rates: expected samples per second of every sensor, found none of {name!r}" for name in missing]
    if not problems:
        known = _known(specs, rate, rates).values()
        slowest, fastest = min(known), max(known)
        if _exact(fastest) > SPREAD * _exact(slowest):
            least = f"expected the fastest at most {SPREAD:,} times as fast as the slowest"
            problems.append(f"rates: {least}; found {slowest!r} and {fastest!r}")
        if stride is not None and _exact(stride) * _exact(fastest) < ROUNDED:
            step = f"one step of the fastest sensor, 1 / {fastest!r}"
            problems.append(f"stride: expected at least {step}; found {stride!r}")
    for name, spec in specs.items():
        if isinstance(spec.before, VideoFrames):
            problems.append(
                f"{name}: expected a sensor whose windows can be cut; its frames are chosen from a whole clip"
            )
    return problems
