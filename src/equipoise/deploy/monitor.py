"""The monitor: names the sensor that has probably failed, from the outputs of a model's heads, window by window.

Only what the heads say is read, and only healthy streams are needed to calibrate it. Each head has three statistics:

- movement: log of the mean |x_t − x_{t−1}|. A dead sensor stands still, a noisy one jumps.
- sharpness: log of the root mean square of x: the head's own confidence, or how far its numbers are from the usual.
- disagreement with the other heads.

| task | x | disagreement, with q the mean of the other heads |
|---|---|---|
| classes | log-probabilities; for the sharpness around their mean over classes | −log Σ_c p(c) q(c) |
| labels | log-odds | −log of the probability that both say the same, the mean over labels |
| regression | numbers, standardised by the mean and deviation of all heads in calibration | the mean of abs(x − q) |

Each has a running average a ← a + memory · (x − a), and limits around its healthy median: the farthest 1 % and 99 %
quantiles of any one healthy stream. A level is how far an average is from the median, in units of that, and there is an
alarm above a height. A height is found stream by stream: what a stream needs to stay below it nearly always, by limits
from the other streams; then what one more stream will hardly need, given how far those at hand differ.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, final, get_args

import torch
from torch import Tensor

from equipoise.models.evaluation import LEAST_LOG
from equipoise.models.task import TaskKind
from equipoise.util.errors import raise_all
from equipoise.util.schema import (
    ANYTHING,
    NUMBER,
    POSITIVE,
    TEXT,
    every,
    is_number,
    one_of,
    or_null,
    read_json,
    record,
    rule,
    short,
)

WARM_UP = 5  # windows that an average takes to forget where it began
FORMAT, TASK_FORMAT = 1, 2
SMALLEST = 1e-12  # deviation of numbers that never vary
MOVEMENT, DISAGREEMENT = 0, 2  # their places among the three
TAIL = 0.01  # of a healthy stream's averages lies beyond a limit, on either side
STILL, CERTAIN = 1e-4, 1e-9  # below these, movement and agreement are as good as none
STUDENT = (6.314, 2.920, 2.353, 2.132, 2.015, 1.943, 1.895, 1.860, 1.833, 1.812, 1.796, 1.782, 1.771, 1.761, 1.753)
"""Student's t at 95 %, one-sided, for 1 to 15 degrees of freedom; more have nearly the last."""
NEVER = 1e9  # a limit that no movement reaches
NARROWEST = 1e-3  # a statistic that never varies has limits all the same


class Limits(NamedTuple):
    """The range of healthy averages.

    Args:
        centre: Their medians, [K, 3].
        below: How far below that they go, [K, 3].
        above: How far above, [K, 3].
    """

    centre: Tensor
    below: Tensor
    above: Tensor

    def levels(self, average: Tensor) -> Tensor:
        """Return how far averages [..., K, 3] are from the centre, in units of the limits, [..., K, 5].

        Below for movement and sharpness, then above for all three: to agree is never odd.
        """
        far = average - self.centre
        below = (-far / self.below)[..., :DISAGREEMENT]
        return torch.cat([below, far / self.above], dim=-1).clamp(min=0)

    def of_standstill(self, windows: int, memory: float) -> float:
        """Return the level of movement that every head that may not rest reaches which says the same for so long."""
        reached, moves = 1 - (1 - memory) ** windows, self.below[:, MOVEMENT] < NEVER
        levels = reached * (self.centre[:, MOVEMENT] - math.log(STILL)) / self.below[:, MOVEMENT]
        return float(levels[moves].min())

    def allowing_rest(self, resting: Tensor) -> Limits:
        """Return the same, but no standstill of some heads, booleans [K], is odd."""
        below = self.below.clone()
        below[resting, MOVEMENT] = NEVER
        return self._replace(below=below)

    @classmethod
    def of(cls, streams: Sequence[Tensor]) -> Limits:
        """Take the farthest 1 % and 99 % quantiles of any one stream [N, K, 3], around the median of all."""
        centre = torch.cat(list(streams)).quantile(0.5, dim=0)
        edges = torch.stack([stream.quantile(torch.tensor([TAIL, 1 - TAIL]), dim=0) for stream in streams])
        lowest, highest = edges[:, 0].amin(dim=0), edges[:, 1].amax(dim=0)
        return cls(centre, (centre - lowest).clamp(min=NARROWEST), (highest - centre).clamp(min=NARROWEST))


def bound_for_the_next(needs: Tensor) -> Tensor:
    """Bound the need of one more stream with a confidence of 95 %, given what n have needed, [n, charts] → [charts].

    The one-sided prediction bound of a log-normal law: exp(mean + t · s · √(1 + 1/n)) over the logs of the needs. Few
    streams may agree by chance, so s² is the mean of a chart's own variance and that of all charts, with twice the
    degrees of freedom. A single stream shows no spread, and gets a factor of two.
    """
    logs, count = needs.clamp(min=NARROWEST).log(), len(needs)
    if count == 1:
        return 2 * needs[0]
    own = logs.var(dim=0)
    deviation = ((own + own.mean()) / 2).sqrt()
    quantile = STUDENT[min(2 * (count - 1), len(STUDENT)) - 1]
    return (logs.mean(dim=0) + quantile * deviation * math.sqrt(1 + 1 / count)).exp()


def statistics(
    says: Tensor, last: Tensor, present: Tensor, seen: Tensor, kind: TaskKind = "classes"
) -> tuple[Tensor, Tensor]:
    """Compute the three statistics of each head, and which of them can be told, [S, K, 3] both."""
    movement = ((says - last).abs().mean(dim=2) + STILL).log()
    centred = says - says.mean(dim=2, keepdim=True) if kind == "classes" else says
    sharpness = (centred.square().mean(dim=2).sqrt() + STILL).log()
    answers = {"classes": says.exp, "labels": says.sigmoid, "regression": says.clone}[kind]()
    votes = answers * present.unsqueeze(2)
    others = present.sum(dim=1, keepdim=True) - present.long()
    rest = (votes.sum(dim=1, keepdim=True) - votes) / others.clamp(min=1).unsqueeze(2)
    if kind == "classes":
        disagreement = -((answers * rest).sum(dim=2) + CERTAIN).log()
    elif kind == "labels":
        disagreement = -(answers * rest + (1 - answers) * (1 - rest) + CERTAIN).log().mean(dim=2)
    else:
        disagreement = (answers - rest).abs().mean(dim=2)
    values = torch.stack([movement, sharpness, disagreement], dim=2)
    return values, torch.stack([present & seen, present, present & (others > 0)], dim=2)


def averaged(says: Tensor, memory: float, start: Tensor | None = None, kind: TaskKind = "classes") -> Tensor:
    """Compute the running averages along one stream, [N, K, 3], from its own first window or from a centre on."""
    present = torch.ones(says.shape[:2], dtype=torch.bool)
    values, _ = statistics(says, torch.cat([says[1:2], says[:-1]]), present, present, kind)
    average = values[0] if start is None else start
    averages = []
    for value in values:
        average = average + memory * (value - average)
        averages.append(average)
    return torch.stack(averages)


class MonitorOutput(NamedTuple):
    """The monitor's answer after a window, for each of S streams.

    Args:
        failed: Which sensor has probably failed, by its place in `modalities`; −1 where none, [S].
        level: How odd each sensor looks; an alarm is above 1, [S, K].
        modalities: Their names, in order.
    """

    failed: Tensor
    level: Tensor
    modalities: tuple[str, ...]

    def names(self) -> list[str | None]:
        """Return the sensor of each stream by name; None where all seem healthy."""
        return [None if number < 0 else self.modalities[number] for number in self.failed.tolist()]


class MonitorState(NamedTuple):
    """The monitor's memory of S streams.

    Args:
        last: What the heads said of the last window, [S, K, C].
        seen: Whether there was one, [S, K].
        average: The running averages, [S, K, 3].
    """

    last: Tensor
    seen: Tensor
    average: Tensor


@final
class SensorMonitor:
    """Watches the heads of a model and names the sensor that has probably failed.

    It works on streams: windows of one device in their order. Many streams are watched at once, one row each.

    Args:
        modalities: The sensors, in order.
        limits: The range of healthy averages.
        heights: The level of each chart above which there is an alarm, [5].
        memory: Weight of the newest window in the averages.
        facts: How it was calibrated, in plain values.
        kind: Of the task: "classes", "labels" or "regression".
        scale: Of numbers, the mean and deviation of each column that all heads had in calibration, [2, D].

    Example:
        >>> heads = {name: torch.randn(400, 3) for name in ("wrist", "ankle")}
        >>> person = torch.arange(400) // 100
        >>> monitor = SensorMonitor.fit(heads, person)
        >>> for _ in range(10):  # the ankle's sensor hangs: its head says the same again and again
        ...     answer = monitor.update({"wrist": torch.randn(1, 3), "ankle": torch.tensor([[0.0, 1.0, 0.0]])})
        >>> answer.names()
        ['ankle']
    """

    def __init__(
        self,
        modalities: Sequence[str],
        limits: Limits,
        heights: Tensor,
        memory: float = 0.4,
        facts: Mapping[str, Any] | None = None,
        kind: TaskKind = "classes",
        scale: Tensor | None = None,
    ) -> None:
        self.modalities, self.limits, self.heights, self.kind, self.scale = (
            tuple(modalities),
            limits,
            heights,
            kind,
            scale,
        )
        self.memory, self.facts = memory, dict(facts or {})
        self._state: MonitorState | None = None

    @classmethod
    def fit(
        cls,
        heads: Mapping[str, Tensor],
        group: Tensor | None = None,
        *,
        false_alarms: float = 0.01,
        stretch: int = 10,
        memory: float = 0.4,
        kind: TaskKind = "classes",
        may_rest: Collection[str] = (),
    ) -> SensorMonitor:
        """Calibrate on healthy data that the model was not trained on.

        Args:
            heads: The outputs of each head, [N, C]: scores or log-probabilities of classes, log-odds of labels, or
                numbers; "fused" is passed over.
            group: The stream of each window, [N]: the person or device. The windows of a stream are in their order.
                Without groups all are one stream, and how streams differ cannot be known.
            false_alarms: The share of stretches of a healthy stream in which an alarm may be up, at any window of the
                stretch; divided evenly among the five charts.
            stretch: How many windows a stretch has.
            memory: Weight of the newest window in the averages.
            kind: Of the task: "classes", "labels" or "regression".
            may_rest: Sensors whose healthy head may say the same for long, as that of a force sensor in free air does:
                their standstill is no alarm. That of others always is one.

        Raises:
            ValueError: If the data does not fit together, or a stream is too short.
        """
        modalities = [name for name in heads if name != "fused"]
        problems = [f"what the head of at least one sensor says; found {sorted(heads)}."] if not modalities else []
        problems += _data_problems({name: heads[name] for name in modalities}, group, stretch) if modalities else ()
        problems += [f"false_alarms between 0 and 1; found {false_alarms}."] if not 0 < false_alarms < 1 else []
        problems += [f"memory above 0 and at most 1; found {memory}."] if not 0 < memory <= 1 else []
        problems += [f"stretch to be at least 1; found {stretch}."] if stretch < 1 else []
        strangers = sorted({*may_rest} - {*modalities})
        problems += [f"may_rest to name some of {modalities}; found {strangers}."] if strangers else []
        raise_all(f"SensorMonitor.fit expected {problem}" for problem in problems)
        stacked, scale = _stacked(heads, modalities), None
        if kind == "regression":
            numbers = stacked.flatten(0, 1)
            scale = torch.stack([numbers.mean(dim=0), numbers.std(dim=0).clamp(min=SMALLEST)])
        says = comparable(stacked, kind, scale)
        streams = [says] if group is None else [says[group == number] for number in group.unique()]
        averages = [averaged(stream, memory, kind=kind) for stream in streams]
        settled = [average[WARM_UP:] for average in averages]
        resting = torch.tensor([name in may_rest for name in modalities])
        limits = Limits.of(settled).allowing_rest(resting)

        needs = []
        for number, stream in enumerate(streams):
            by = Limits.of([*settled[:number], *settled[number + 1 :]] or [averages[number]]).allowing_rest(resting)
            levels = by.levels(averaged(stream, memory, by.centre, kind)).amax(dim=1)
            highest = levels.unfold(0, stretch, 1).amax(dim=2)
            needs.append(highest.quantile(1 - false_alarms / levels.shape[1], dim=0))
        facts = {"streams": len(streams), "windows": len(says), "false_alarms": false_alarms, "stretch": stretch}
        facts["needed_by_stream"] = [need.tolist() for need in needs]
        heights = bound_for_the_next(torch.stack(needs))
        # However odd healthy streams are: a sensor that says the same for a whole stretch must not go unnoticed.
        if not bool(resting.all()):
            heights[MOVEMENT] = heights[MOVEMENT].clamp(max=0.9 * limits.of_standstill(stretch, memory))
        return cls(modalities, limits, heights, memory, facts, kind, scale)

    def update(self, heads: Mapping[str, Any], valid: Mapping[str, Any] | None = None) -> MonitorOutput:
        """Look at the next window of every stream.

        Args:
            heads: The outputs of each head, [S, C], in the form of `fit`.
            valid: Which sensors are there at all, [S] each; all of them by default. One that is known to be missing is
                not watched, and no other is compared with it.

        Returns:
            The answer for each stream.

        Raises:
            ValueError: If a sensor is not among the heads, or the number of streams has changed: type `reset()`.
        """
        logs = self.comparable(_stacked(heads, self.modalities))
        present = torch.ones(logs.shape[:2], dtype=torch.bool, device=logs.device)
        for place, name in enumerate(self.modalities):
            if valid is not None and name in valid:
                present[:, place] = torch.as_tensor(valid[name], device=logs.device).bool()
        state = self._state or self.start(logs)
        if state.last.shape != logs.shape:
            raise ValueError(
                f"update expected {list(state.last.shape)} streams, sensors and classes, as before; found "
                f"{list(logs.shape)}. Type monitor.reset() to watch other streams."
            )
        self._state, output = self.step(state, logs, present)
        return output

    def fresh(self) -> SensorMonitor:
        """Return a monitor of the same calibration that has seen nothing yet."""
        return SensorMonitor(self.modalities, self.limits, self.heights, self.memory, self.facts, self.kind, self.scale)

    def comparable(self, heads: Tensor) -> Tensor:
        """Return what heads say, [..., C], in the form that statistics are taken of."""
        return comparable(heads, self.kind, self.scale)

    def reset(self) -> None:
        """Forget the streams; the calibration stays."""
        self._state = None

    def start(self, logs: Tensor) -> MonitorState:
        """Return the state before the first window, for what heads say in this shape [S, K, C]."""
        centre = self.limits.centre.to(logs)
        seen = torch.zeros(logs.shape[:2], dtype=torch.bool, device=logs.device)
        return MonitorState(logs, seen, centre.expand(len(logs), -1, -1))

    def step(self, state: MonitorState, logs: Tensor, present: Tensor) -> tuple[MonitorState, MonitorOutput]:
        """Take one window [S, K, C], from one state to the next: what `update` does, for whoever keeps states."""
        values, known = statistics(logs, state.last, present, state.seen, self.kind)
        average = torch.where(known, state.average + self.memory * (values - state.average), state.average)
        levels = (self.limits.levels(average.cpu()) / self.heights).to(logs)
        level = levels.amax(dim=2).where(present, 0)
        # What two heads disagree about counts against both alike: all that is odd about a head tells which it is.
        blame = levels.square().sum(dim=2).where(present, -1)
        failed = blame.argmax(dim=1).where(level.amax(dim=1) > 1, -1)
        last = torch.where(present.unsqueeze(2), logs, state.last)
        return MonitorState(last, present, average), MonitorOutput(failed, level, self.modalities)

    def save(self, file: Path | str) -> None:
        """Write it as a plain JSON file."""
        content = {
            "format": FORMAT if self.kind == "classes" else TASK_FORMAT,
            "kind": self.kind,
            "scale": None if self.scale is None else self.scale.tolist(),
            "modalities": list(self.modalities),
            "heights": self.heights.tolist(),
            "memory": self.memory,
            **{name: limit.tolist() for name, limit in self.limits._asdict().items()},
            "calibration": self.facts,
        }
        Path(file).write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, file: Path | str) -> SensorMonitor:
        """Read what `save` wrote.

        Raises:
            BadInput: If the file is no such thing.
        """
        path = Path(os.path.realpath(file))
        expected, advice = "a monitor as SensorMonitor.save writes it", "Make one: equipoise monitor RUN"
        content = read_json(path.parent, path.name, _check_file, expected, advice=advice)
        limits = Limits(*(torch.tensor(content[name]) for name in Limits._fields))
        scale = None if content.get("scale") is None else torch.tensor(content["scale"])
        heights, kind = torch.tensor(content["heights"]), content.get("kind", "classes")
        return cls(content["modalities"], limits, heights, content["memory"], content["calibration"], kind, scale)


_TABLE, _POSITIVE_TABLE = (every(every(each, list, 3, 3), list, least=1) for each in (NUMBER, POSITIVE))
_FILE = record(
    {
        "modalities": every(TEXT, list, least=1),
        "heights": every(POSITIVE, list, 5, 5),
        "memory": rule("a number above 0, at most 1", lambda value: is_number(value) and 0 < value <= 1),
        "centre": _TABLE,
        "below": _POSITIVE_TABLE,
        "above": _POSITIVE_TABLE,
        "calibration": every(ANYTHING),
    },
    {"kind": one_of(*get_args(TaskKind)), "scale": or_null(every(every(NUMBER, list, least=1), list, 2, 2))},
)


def _check_file(content: Any, where: str) -> Iterator[str]:
    """Find what is wrong with the file of a monitor."""
    if problems := [*_FILE(content, where)]:
        yield from problems
        return
    sensors, scale = len(content["modalities"]), content.get("scale")
    for name in Limits._fields:
        if len(content[name]) != sensors:
            yield f"{name}: expected a row for each of {sensors} sensors, found {len(content[name])}"
    if (content.get("kind") == "regression") != (scale is not None):
        yield f"scale: expected it for numbers, and for numbers alone, found {short(scale)}"
    elif scale is not None and (len(scale[0]) != len(scale[1]) or min(scale[1]) <= 0):
        yield f"scale: expected as many deviations above zero as means, found {short(scale)}"


def _stacked(heads: Mapping[str, Any], modalities: Sequence[str]) -> Tensor:
    """Stack what all heads say, [S, K, C]."""
    missing = (name for name in modalities if name not in heads)
    raise_all(f"The monitor expected what the head of {name!r} says; found {sorted(heads)}." for name in missing)
    return torch.stack([torch.as_tensor(heads[name]).float() for name in modalities], dim=1)


def comparable(heads: Tensor, kind: TaskKind, scale: Tensor | None) -> Tensor:
    """Return what heads say, [..., C], in the form that statistics are taken of."""
    if kind == "classes":
        return heads.log_softmax(dim=-1)
    if kind == "labels":
        return heads.clamp(min=LEAST_LOG, max=-LEAST_LOG)
    assert scale is not None
    return (heads - scale[0].to(heads)) / scale[1].to(heads)


def _data_problems(heads: Mapping[str, Tensor], group: Tensor | None, stretch: int) -> Iterator[str]:
    shapes = {name: list(scores.shape) for name, scores in heads.items()}
    first = next(iter(shapes.values()))
    windows, least = first[0], stretch + WARM_UP
    if len(first) != 2 or any(shape != first for shape in shapes.values()):
        yield f"scores [N, C], the same for every head; found {shapes}."
    elif group is not None and group.shape != (windows,):
        yield f"a group per window, [{windows}]; found {list(group.shape)}."
    else:
        sizes = [windows] if group is None else group.unique(return_counts=True)[1].tolist()
        if (shortest := min(sizes, default=0)) < least:
            advice = "Leave short streams out, or join those of one person."
            yield f"streams of at least {least} windows; found one of {shortest}. {advice}"
