"""Evaluation of a monitor: on healthy streams of people it has not met, then on faults that it was not told of."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from equipoise.data.splits import Part
from equipoise.deploy.monitor import MonitorState, SensorMonitor
from equipoise.measure.faults import LEGEND, TrainingStatistics, faulty_parts
from equipoise.measure.outputs import read_features, reading
from equipoise.models.fusion_model import FusionModel
from equipoise.util.errors import raise_all

DEAD = ("missing zeros", "missing mean", "stuck")
"""Total failures: the sensor gives a constant signal from then on."""

BETWEEN = 20  # windows between the onsets of two trials
GAINS, DRIFT = (0.25, 4.0), 0.1
FLOOR = 0.01  # of the training deviation: what electronics add to a dead signal
STREAM_LEGEND = {
    **{fault: words for fault, words in LEGEND.items() if fault != "missing absent"},
    "stuck": "the last healthy value is repeated",
    f"silent, {FLOOR:.0%} noise": "the mean training sample, with noise of this share of the training deviation",
    "noise alone": "noise of one training deviation around the mean, and no signal",
    "windows shuffled": "windows of other moments of the same stream",
    f"gain {', '.join(f'{gain:g}' for gain in GAINS)}": "the standardised signal, multiplied",
    f"drift {DRIFT:g} per window": "an offset that grows by so many training deviations with every window",
}
"""Every fault of a trial with its levels, in words."""


class FaultDetection(NamedTuple):
    """The detection of one fault of one sensor.

    Args:
        fault: The fault.
        sensor: The sensor at fault.
        trials: The number of trials, with onsets all along the streams.
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
    """The result of `evaluate_monitor`.

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
        """Return the share of total failures found within a stretch."""
        dead = [fault for fault in self.faults if fault.fault in DEAD]
        return sum(fault.found * fault.trials for fault in dead) / max(1, sum(fault.trials for fault in dead))

    def as_dict(self) -> dict[str, Any]:
        """Return plain values."""
        faults = [fault._asdict() for fault in self.faults]
        return {**self._asdict(), "faults": faults, "total_failures_found": self.dead()}


def fit_monitor(model: FusionModel, part: Part, **how: Any) -> SensorMonitor:
    """Calibrate a monitor for a model on a healthy part that it was not trained on.

    Args:
        model: With a head per modality.
        part: Streams: the samples of each group in their order. Samples that lack a sensor are left out.
        how: As for `SensorMonitor.fit`.

    Raises:
        ValueError: If the model has no uni-modal outputs, or the part is too short.
    """
    if model.unimodal is None:
        raise ValueError("A monitor watches the heads of the sensors; this model was built with unimodal=None.")
    part = _complete(part)
    heads = dict(zip(model.encoders, _heads(model, part).unbind(dim=1), strict=True))
    return SensorMonitor.fit(heads, part.group, kind=model.known_task().kind, **how)


def evaluate_monitor(
    monitor: SensorMonitor,
    model: FusionModel,
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
    part = _complete(part)
    raise_all(_problems(monitor, part, training, stretch))
    ready = part.in_memory().ready()
    group = torch.zeros(len(part)) if ready.group is None else ready.group
    alarms, detections = [], {}
    for number in group.unique():
        stream = ready.take(group == number)
        if len(stream) <= stretch:
            continue
        heads = monitor.comparable(_heads(model, stream))
        states, up = _along(monitor, heads)
        alarms.append(up)
        last = len(stream) - stretch
        onsets = torch.arange(min(BETWEEN, last), last + 1, BETWEEN)  # a short stream has one trial, at its end
        onsets = onsets[~up[onsets - 1]]
        if len(onsets) == 0:
            continue
        before = MonitorState(*map(torch.stack, zip(*[states[at - 1] for at in onsets.tolist()], strict=True)))
        for place, sensor in enumerate(monitor.modalities):
            for fault, broken in _broken(stream, sensor, training, onsets, stretch, seed):
                logs = heads[onsets.unsqueeze(1) + torch.arange(stretch)].clone()
                said = monitor.comparable(_heads(model, broken, sensor)[:, 0])
                logs[:, :, place] = said.unflatten(0, (len(onsets), stretch))
                detections.setdefault((fault, sensor), []).append(_watch(monitor, before, logs, place))
    spans = [up.unfold(0, stretch, 1).any(dim=1).double() for up in alarms]
    return MonitorEvaluation(
        float(torch.cat(spans).mean()),
        float(torch.cat(alarms).double().mean()),
        max(float(span.mean()) for span in spans),
        len(alarms),
        [_summed(fault, sensor, torch.cat(trials)) for (fault, sensor), trials in detections.items()],
    )


def _complete(part: Part) -> Part:
    """Leave out the samples that lack a sensor: a gap that is known is no fault."""
    if not part.present:
        return part
    part = part.in_memory()
    return part.take(torch.stack(list(part.present.values()), dim=1).all(dim=1))


def _problems(monitor: SensorMonitor, part: Part, training: TrainingStatistics, stretch: int) -> Iterator[str]:
    for name in monitor.modalities:
        if name not in training.mean:
            yield f"A trial expected numbers that can be disturbed; {name!r} gives none, such as the numbers of words."
    longest = len(part) if part.group is None else int(part.group.unique(return_counts=True)[1].max())
    if longest <= stretch:
        yield f"A trial expected a stream of more than {stretch} windows; the longest group has {longest}."


def _heads(model: FusionModel, part: Part, only: str | None = None) -> Tensor:
    """Compute what the heads say, as members of a committee, [N, K, C]; or only one of them."""
    names = list(model.encoders) if only is None else [only]
    inputs = {
        key: array
        for key, array in part.inputs.items()
        if key.removesuffix("_length").removesuffix("_present") in names
    }
    with reading(model):
        scores = model.unimodal_outputs(read_features(model, replace(part, inputs=inputs)))
        return torch.stack([model.known_task().member(scores[name]).float() for name in names], dim=1).cpu()


def _along(monitor: SensorMonitor, heads: Tensor) -> tuple[list[MonitorState], Tensor]:
    """Return the state after each window of one healthy stream, and whether an alarm was up."""
    state, present = monitor.start(heads[:1]), torch.ones(heads[:1].shape[:2], dtype=torch.bool)
    states, alarms = [], []
    for window in heads.unsqueeze(1):
        state, output = monitor.step(state, window, present)
        states.append(MonitorState(*(values[0] for values in state)))
        alarms.append(bool(output.failed[0] >= 0))
    return states, torch.tensor(alarms)


def _watch(monitor: SensorMonitor, state: MonitorState, logs: Tensor, place: int) -> Tensor:
    """Return for each trial [S, stretch, K, C] the windows until the alarm, 0 without one, and whether it was right."""
    present = torch.ones(logs.shape[0], logs.shape[2], dtype=torch.bool)
    outputs = []
    for window in logs.unbind(dim=1):
        state, output = monitor.step(state, window, present)
        outputs.append(output.failed)
    failed = torch.stack(outputs, dim=1)
    alarm = failed >= 0
    first = alarm.int().argmax(dim=1)
    right = failed.gather(1, first.unsqueeze(1)).squeeze(1) == place
    return torch.stack([(first + 1).where(alarm.any(dim=1), 0), right.long()], dim=1)


def _summed(fault: str, sensor: str, trials: Tensor) -> FaultDetection:
    delays, right = trials.double().unbind(dim=1)
    hit = delays > 0
    delay, named = (float(delays[hit].mean()), float(right[hit].mean())) if hit.any() else (None, None)
    return FaultDetection(fault, sensor, len(trials), float(hit.double().mean()), delay, named)


def _broken(
    stream: Part, sensor: str, training: TrainingStatistics, onsets: Tensor, stretch: int, seed: int
) -> Iterator[tuple[str, Part]]:
    """Yield fault by fault the windows of all trials, one trial after the other, with one sensor broken."""
    rows = (onsets.unsqueeze(1) + torch.arange(stretch)).flatten()
    for fault, level, faulty in faulty_parts(stream, sensor, training, seed):
        if sensor in faulty.inputs:
            yield f"{fault} {level}", faulty.take(rows)
    healthy, whole = stream.take(rows), stream.inputs[sensor]

    def broken(values: Tensor) -> Part:
        return replace(healthy, inputs={**healthy.inputs, sensor: values})

    array = whole[rows]
    mean, deviation = training.mean[sensor].to(array), training.deviation[sensor].to(array)
    last = whole[onsets - 1].repeat_interleave(stretch, dim=0)
    series = array.dim() == 3 and sensor not in stream.spatial
    yield "stuck", broken(last[:, :, -1:].expand_as(array) if series else last)
    random = torch.Generator().manual_seed(seed)
    floor = FLOOR * deviation * torch.randn(array.shape, generator=random).to(array)
    yield f"silent, {FLOOR:.0%} noise", broken(mean + floor)
    yield "noise alone", broken(mean + deviation * torch.randn(array.shape, generator=random).to(array))
    yield "windows shuffled", broken(whole[torch.randint(len(whole), (len(rows),), generator=random)])
    for gain in GAINS:
        yield f"gain {gain:g}", broken(array * gain)
    since = (torch.arange(stretch) + 1).repeat(len(onsets)).to(array).reshape(-1, *[1] * (array.dim() - 1))
    yield f"drift {DRIFT:g} per window", broken(array + DRIFT * since * deviation)
