"""The monitor: which sensor has probably failed, told from what the heads of a deployed model say, window by window.

Nothing but the heads' log-probabilities is looked at, and nothing but healthy streams is needed to set it up. Each head
has three statistics (see `equipoise.deploy.charts`): how much it moves, how sharp it is, how far from the others.

Each has a running average a ← a + memory · (x − a), and limits around its healthy median: the farthest 1 % and 99 %
quantiles of any one healthy stream. A level is how far an average is from the median, in units of that, and there is an
alarm above a height. A height is found stream by stream: what a stream needs to stay below it nearly always, by limits
from the other streams; then what one more stream will hardly need, given how far those at hand differ.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, final

import torch
from torch import Tensor

from equipoise.deploy.charts import MOVEMENT, Limits, averaged, bound_for_the_next, statistics
from equipoise.util.errors import BadInput, raise_all

WARM_UP = 5  # windows that an average takes to forget where it began
FORMAT = 1


class MonitorOutput(NamedTuple):
    """What the monitor says after a window, for each of S streams.

    Args:
        failed: Which sensor has probably failed, by its place in `modalities`; −1 where none, [S].
        level: How odd each sensor looks; an alarm is above 1, [S, K].
        modalities: Their names, in order.
    """

    failed: Tensor
    level: Tensor
    modalities: tuple[str, ...]

    def names(self) -> list[str | None]:
        """The sensor of each stream by name; None where all seem healthy."""
        return [None if number < 0 else self.modalities[number] for number in self.failed.tolist()]


class MonitorState(NamedTuple):
    """What the monitor remembers of S streams.

    Args:
        last: The log-probabilities of the last window, [S, K, C].
        seen: Whether there was one, [S, K].
        average: The running averages, [S, K, 3].
    """

    last: Tensor
    seen: Tensor
    average: Tensor

    def take(self, streams: Tensor) -> MonitorState:
        """The state of some of the streams."""
        return MonitorState(*(each[streams] for each in self))


@final
class SensorMonitor:
    """Watches the heads of a model and names the sensor that has probably failed.

    It works on streams: windows of one device in their order. Many streams are watched at once, one row each.

    Args:
        modalities: The sensors, in order.
        limits: Where healthy averages lie.
        heights: The level of each chart above which there is an alarm, [5].
        memory: Weight of the newest window in the averages.
        facts: How it was calibrated, in plain values.

    Example:
        >>> heads = {name: torch.randn(400, 3) for name in ("wrist", "ankle")}
        >>> person = torch.arange(400) // 100
        >>> monitor = SensorMonitor.fit(heads, person)
        >>> for _ in range(10):  # the ankle's sensor hangs: its head says the same again and again
        ...     verdict = monitor.update({"wrist": torch.randn(1, 3), "ankle": torch.tensor([[0.0, 1.0, 0.0]])})
        >>> verdict.names()
        ['ankle']
    """

    def __init__(
        self,
        modalities: Sequence[str],
        limits: Limits,
        heights: Tensor,
        memory: float = 0.4,
        facts: Mapping[str, Any] | None = None,
    ) -> None:
        self.modalities = tuple(modalities)
        self.limits, self.heights, self.memory = limits, heights, memory
        self.facts = dict(facts or {})
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
    ) -> SensorMonitor:
        """Calibrate on healthy data that the model was not trained on.

        Args:
            heads: What each head said, [N, C], as scores or log-probabilities; "fused" is passed over.
            group: The stream of each window, [N]: the person or device. The windows of a stream are in their order.
                Without groups all are one stream, and how streams differ cannot be known.
            false_alarms: The share of stretches of a healthy stream in which an alarm may be up, at any window of the
                stretch; divided evenly among the five charts.
            stretch: How many windows a stretch has.
            memory: Weight of the newest window in the averages.

        Raises:
            ValueError: If the data does not fit together, or a stream is too short.
        """
        modalities = [name for name in heads if name != "fused"]
        raise_all(_problems(heads, modalities, group, false_alarms, stretch, memory))
        logs = _stacked(heads, modalities)
        streams = [logs] if group is None else [logs[group == number] for number in group.unique()]
        averages = [averaged(each, memory) for each in streams]
        limits = Limits.of([each[WARM_UP:] for each in averages])

        needs = []
        for number, stream in enumerate(streams):
            others = [each[WARM_UP:] for at, each in enumerate(averages) if at != number] or [averages[number]]
            by = Limits.of(others)
            levels = by.levels(averaged(stream, memory, by.centre)).amax(dim=1)
            highest = levels.unfold(0, stretch, 1).amax(dim=2)
            needs.append(highest.quantile(1 - false_alarms / levels.shape[1], dim=0))
        facts = {
            "streams": len(streams),
            "windows": len(logs),
            "false_alarms": false_alarms,
            "stretch": stretch,
            "needed_by_stream": [each.tolist() for each in needs],
        }
        heights = bound_for_the_next(torch.stack(needs))
        # However odd healthy streams are: a sensor that says the same for a whole stretch must not go unnoticed.
        heights[MOVEMENT] = heights[MOVEMENT].clamp(max=0.9 * limits.of_standstill(stretch, memory))
        return cls(modalities, limits, heights, memory, facts)

    def update(self, heads: Mapping[str, Any], valid: Mapping[str, Any] | None = None) -> MonitorOutput:
        """Look at the next window of every stream.

        Args:
            heads: What each head said, [S, C], as scores or log-probabilities.
            valid: Which sensors are there at all, [S] each; all of them by default. One that is known to be missing is
                not watched, and no other is compared with it.

        Returns:
            The verdict on each stream.

        Raises:
            ValueError: If a sensor is not among the heads, or the number of streams has changed: type `reset()`.
        """
        logs = _stacked(heads, self.modalities)
        there = torch.ones(logs.shape[:2], dtype=torch.bool, device=logs.device)
        for place, name in enumerate(self.modalities):
            if valid is not None and name in valid:
                there[:, place] = torch.as_tensor(valid[name], device=logs.device).bool()
        state = self._state or self.start(logs)
        if state.last.shape != logs.shape:
            raise ValueError(
                f"update expected {list(state.last.shape)} streams, sensors and classes, as before; found "
                f"{list(logs.shape)}. Type monitor.reset() to watch other streams."
            )
        self._state, verdict = self.step(state, logs, there)
        return verdict

    def reset(self) -> None:
        """Forget the streams; the calibration stays."""
        self._state = None

    def start(self, logs: Tensor) -> MonitorState:
        """The state before the first window, for log-probabilities of this shape [S, K, C]."""
        centre = self.limits.centre.to(logs)
        seen = torch.zeros(logs.shape[:2], dtype=torch.bool, device=logs.device)
        return MonitorState(logs, seen, centre.expand(len(logs), -1, -1))

    def step(self, state: MonitorState, logs: Tensor, there: Tensor) -> tuple[MonitorState, MonitorOutput]:
        """One window [S, K, C], from one state to the next: what `update` does, for whoever keeps states."""
        found, known = statistics(logs, state.last, there, state.seen)
        average = torch.where(known, state.average + self.memory * (found - state.average), state.average)
        levels = (self.limits.levels(average.cpu()) / self.heights).to(logs)
        level = levels.amax(dim=2).where(there, 0)
        # What two heads disagree about counts against both alike: all that is odd about a head tells which it is.
        blame = levels.square().sum(dim=2).where(there, -1)
        failed = blame.argmax(dim=1).where(level.amax(dim=1) > 1, -1)
        last = torch.where(there.unsqueeze(2), logs, state.last)
        return MonitorState(last, there, average), MonitorOutput(failed, level, self.modalities)

    def save(self, file: Path | str) -> None:
        """Write it as a plain JSON file."""
        content = {
            "format": FORMAT,
            "modalities": list(self.modalities),
            "heights": self.heights.tolist(),
            "memory": self.memory,
            **{name: getattr(self.limits, name).tolist() for name in ("centre", "below", "above")},
            "calibration": self.facts,
        }
        Path(file).write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, file: Path | str) -> SensorMonitor:
        """Read what `save` wrote.

        Raises:
            BadInput: If it is none.
        """
        try:
            content = json.loads(Path(file).read_text(encoding="utf-8"))
            limits = Limits(*(torch.tensor(content[name]) for name in ("centre", "below", "above")))
            heights, memory = torch.tensor(content["heights"]), float(content["memory"])
            return cls(content["modalities"], limits, heights, memory, content["calibration"])
        except (ValueError, KeyError, TypeError) as found:
            raise BadInput(
                f"{file}: expected a monitor as SensorMonitor.save writes it, found: {type(found).__name__} {found}. "
                "Make one: equipoise monitor RUN"
            ) from None


def _stacked(heads: Mapping[str, Any], modalities: Sequence[str]) -> Tensor:
    """Log-probabilities of all heads, [S, K, C]."""
    raise_all(
        f"The monitor expected what the head of {name!r} says; found {sorted(heads)}."
        for name in modalities
        if name not in heads
    )
    return torch.stack([torch.as_tensor(heads[name]).float().log_softmax(dim=1) for name in modalities], dim=1)


def _problems(
    heads: Mapping[str, Tensor],
    modalities: Sequence[str],
    group: Tensor | None,
    false_alarms: float,
    stretch: int,
    memory: float,
) -> list[str]:
    if not modalities:
        return [f"SensorMonitor.fit expected what the head of at least one sensor says; found {sorted(heads)}."]
    problems = []
    shapes = {name: list(heads[name].shape) for name in modalities}
    windows = shapes[modalities[0]][0]
    if len(set(map(tuple, shapes.values()))) > 1 or len(shapes[modalities[0]]) != 2:
        problems.append(f"SensorMonitor.fit expected scores [N, C], the same for every head; found {shapes}.")
    elif group is not None and group.shape != (windows,):
        problems.append(f"SensorMonitor.fit expected a group per window, [{windows}]; found {list(group.shape)}.")
    else:
        sizes = [windows] if group is None else group.unique(return_counts=True)[1].tolist()
        least = stretch + WARM_UP
        if min(sizes, default=0) < least:
            problems.append(
                f"SensorMonitor.fit expected streams of at least {least} windows; found one of {min(sizes, default=0)}"
                ". Leave short streams out, or join those of one person."
            )
    if not 0 < false_alarms < 1:
        problems.append(f"SensorMonitor.fit expected false_alarms between 0 and 1; found {false_alarms}.")
    if not 0 < memory <= 1:
        problems.append(f"SensorMonitor.fit expected memory above 0 and at most 1; found {memory}.")
    if stretch < 1:
        problems.append(f"SensorMonitor.fit expected stretch to be at least 1; found {stretch}.")
    return problems
