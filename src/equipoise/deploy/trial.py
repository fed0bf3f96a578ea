"""A monitor on trial: healthy streams of people it has not met, then faults that it was not told of."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from equipoise.data.splits import Part
from equipoise.deploy.monitor import MonitorState, SensorMonitor
from equipoise.measure.faults import TrainingStatistics, faulty_parts
from equipoise.measure.outputs import read_features, reading
from equipoise.models.late_fusion import LateFusion
from equipoise.util.errors import raise_all

DEAD = ("missing zeros", "missing mean", "stuck")
"""Total failures: the sensor says one and the same for ever."""

BETWEEN = 20  # windows between the onsets of two trials
GAINS, DRIFT = (0.25, 4.0), 0.1
FLOOR = 0.01  # of the training deviation: what electronics add to a dead signal


class FaultDetection(NamedTuple):
    """How a monitor did against one fault of one sensor.

    Args:
        fault: What went wrong.
        sensor: With which one.
        trials: How often, with onsets all along the streams.
        found: The share that raised an alarm within a stretch.
        delay: Windows until it did, the first faulty one counted, mean over those found; None where none was.
        named: The share of those found whose alarm named this sensor; None where none was.
    """

    fault: str
    sensor: str
    trials: int
    found: float
    delay: float | None
    named: float | None


class MonitorEvaluation(NamedTuple):
    """What a trial showed.

    Args:
        stretches: The share of healthy stretches in which an alarm was up, over all streams.
        windows: The share of healthy windows.
        worst: The share of stretches in the worst of the streams.
        streams: How many streams there were.
        faults: One entry per fault and sensor.
    """

    stretches: float
    windows: float
    worst: float
    streams: int
    faults: list[FaultDetection]

    def dead(self) -> float:
        """The share of total failures found within a stretch."""
        some = [each for each in self.faults if each.fault in DEAD]
        return sum(each.found * each.trials for each in some) / max(1, sum(each.trials for each in some))

    def as_dict(self) -> dict[str, Any]:
        """Plain values."""
        return {
            **self._asdict(),
            "faults": [each._asdict() for each in self.faults],
            "total_failures_found": self.dead(),
        }


def fit_monitor(model: LateFusion, part: Part, **how: Any) -> SensorMonitor:
    """Calibrate a monitor for a model on a healthy part that it was not trained on.

    Args:
        model: With a head per modality.
        part: Streams: the samples of each group in their order.
        how: As for `SensorMonitor.fit`.

    Raises:
        ValueError: If the model has no uni-modal outputs, or the part is too short.
    """
    if model.unimodal is None:
        raise ValueError("A monitor watches the heads of the sensors; this model was built with unimodal=None.")
    heads = _heads(model, part)
    return SensorMonitor.fit(dict(zip(model.encoders, heads.unbind(dim=1), strict=True)), part.group, **how)


def evaluate_monitor(
    monitor: SensorMonitor,
    model: LateFusion,
    part: Part,
    training: TrainingStatistics,
    *,
    stretch: int = 10,
    seed: int = 0,
) -> MonitorEvaluation:
    """Run a monitor over a part: as it is, and with every sensor failing in every way from many moments on.

    A trial is healthy up to its onset, and lasts a stretch. Onsets at which an alarm is up already are left out.

    Args:
        monitor: Calibrated elsewhere: never on the part.
        model: Whose heads it watches.
        part: Streams: the samples of each group in their order; all of them where there are no groups.
        training: What `training_statistics` says of the training part.
        stretch: How many windows an alarm may take.
        seed: Of the faults' draws.

    Raises:
        ValueError: If a sensor gives no floating-point numbers, or no stream is longer than a stretch.
    """
    raise_all(_problems(monitor, part, training, stretch))
    ready = part.in_memory().ready()
    group = torch.zeros(len(part)) if ready.group is None else ready.group
    up, outcomes = [], {}
    for number in group.unique():
        stream = ready.take(group == number)
        if len(stream) <= stretch:
            continue
        heads = _heads(model, stream)
        states, alarms = _along(monitor, heads)
        up.append(alarms)
        last = len(stream) - stretch
        onsets = torch.arange(min(BETWEEN, last), last + 1, BETWEEN)  # a short stream has one trial, at its end
        onsets = onsets[~alarms[onsets - 1]]
        if len(onsets) == 0:
            continue
        before = MonitorState(
            *(torch.stack(each) for each in zip(*[states[at - 1] for at in onsets.tolist()], strict=True))
        )
        for place, sensor in enumerate(monitor.modalities):
            for fault, broken in _broken(stream, sensor, training, onsets, stretch, seed):
                said = heads[onsets.unsqueeze(1) + torch.arange(stretch)].clone()
                said[:, :, place] = _heads(model, broken, sensor)[:, 0].unflatten(0, (len(onsets), stretch))
                outcomes.setdefault((fault, sensor), []).append(_watch(monitor, before, said, place))
    spans = [each.unfold(0, stretch, 1).any(dim=1).double() for each in up]
    return MonitorEvaluation(
        float(torch.cat(spans).mean()),
        float(torch.cat(up).double().mean()),
        max(float(each.mean()) for each in spans),
        len(up),
        [_summed(fault, sensor, torch.cat(some)) for (fault, sensor), some in outcomes.items()],
    )


def _problems(monitor: SensorMonitor, part: Part, training: TrainingStatistics, stretch: int) -> Iterator[str]:
    for name in monitor.modalities:
        if name not in training.mean:
            yield f"A trial expected numbers that can be disturbed; {name!r} gives none, such as the numbers of words."
    longest = len(part) if part.group is None else int(part.group.unique(return_counts=True)[1].max())
    if longest <= stretch:
        yield f"A trial expected a stream of more than {stretch} windows; the longest group has {longest}."


def _heads(model: LateFusion, part: Part, only: str | None = None) -> Tensor:
    """What the heads say, [N, K, C]; or only one of them."""
    names = list(model.encoders) if only is None else [only]
    with reading(model):
        scores = model.unimodal_outputs(read_features(model, replace(part, inputs=_of(part, names))))
        return torch.stack([scores[name].float().log_softmax(dim=1) for name in names], dim=1).cpu()


def _of(part: Part, names: Sequence[str]) -> dict[str, Tensor]:
    return {key: array for key, array in part.inputs.items() if key.removesuffix("_length") in names}


def _along(monitor: SensorMonitor, heads: Tensor) -> tuple[list[MonitorState], Tensor]:
    """The state after each window of one healthy stream, and whether an alarm was up."""
    state, there = monitor.start(heads[:1]), torch.ones(heads[:1].shape[:2], dtype=torch.bool)
    states, alarms = [], []
    for window in heads.unsqueeze(1):
        state, verdict = monitor.step(state, window, there)
        states.append(MonitorState(*(each[0] for each in state)))
        alarms.append(bool(verdict.failed[0] >= 0))
    return states, torch.tensor(alarms)


def _watch(monitor: SensorMonitor, state: MonitorState, said: Tensor, place: int) -> Tensor:
    """For each trial [S, stretch, K, C]: windows until the alarm, 0 where there was none; and whether it was right."""
    there = torch.ones(said.shape[0], said.shape[2], dtype=torch.bool)
    failed = []
    for window in said.unbind(dim=1):
        state, verdict = monitor.step(state, window, there)
        failed.append(verdict.failed)
    told = torch.stack(failed, dim=1)
    alarm = told >= 0
    first = alarm.int().argmax(dim=1)
    right = told.gather(1, first.unsqueeze(1)).squeeze(1) == place
    return torch.stack([(first + 1).where(alarm.any(dim=1), 0), right.long()], dim=1)


def _summed(fault: str, sensor: str, trials: Tensor) -> FaultDetection:
    delays, right = trials.double().unbind(dim=1)
    hit = delays > 0
    delay, named = (float(delays[hit].mean()), float(right[hit].mean())) if hit.any() else (None, None)
    return FaultDetection(fault, sensor, len(trials), float(hit.double().mean()), delay, named)


def _broken(
    stream: Part, sensor: str, training: TrainingStatistics, onsets: Tensor, stretch: int, seed: int
) -> Iterator[tuple[str, Part]]:
    """The windows of all trials, one trial after the other, with one sensor broken; fault by fault."""
    rows = (onsets.unsqueeze(1) + torch.arange(stretch)).flatten()
    whole = stream.inputs[sensor]

    def broken(values: Tensor) -> Part:
        return replace(stream.take(rows), inputs={**stream.take(rows).inputs, sensor: values})

    for fault, level, faulty in faulty_parts(stream, sensor, training, seed):
        if sensor in faulty.inputs:
            yield f"{fault} {level}", faulty.take(rows)
    array = whole[rows]
    mean, deviation = training.mean[sensor].to(array), training.deviation[sensor].to(array)
    last = whole[onsets - 1].repeat_interleave(stretch, dim=0)
    yield "stuck", broken(last[:, :, -1:].expand_as(array) if array.dim() == 3 else last)
    random = torch.Generator().manual_seed(seed)
    floor = FLOOR * deviation * torch.randn(array.shape, generator=random).to(array)
    yield f"silent, {FLOOR:.0%} noise", broken(mean + floor)
    yield "noise alone", broken(mean + deviation * torch.randn(array.shape, generator=random).to(array))
    yield "windows shuffled", broken(whole[torch.randint(len(whole), (len(rows),), generator=random)])
    for gain in GAINS:
        yield f"gain {gain:g}", broken(array * gain)
    since = (torch.arange(stretch) + 1).repeat(len(onsets)).to(array).reshape(-1, *[1] * (array.dim() - 1))
    yield f"drift {DRIFT:g} per window", broken(array + DRIFT * since * deviation)
