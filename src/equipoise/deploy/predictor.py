"""From raw data to an answer: a saved model that reads samples as they were recorded."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, final, get_args

import torch
from torch import Tensor

from equipoise.data.own.columns import listed
from equipoise.data.source import is_file
from equipoise.deploy.deployable import HIGH, LOW, USED, VALID
from equipoise.deploy.monitor import SensorMonitor
from equipoise.deploy.prediction import FAR, Prediction
from equipoise.deploy.recorded import Recorded, read_recorded
from equipoise.deploy.saved_model import SavedModel, load_saved_model
from equipoise.deploy.seen import SeenSamples
from equipoise.deploy.stream import Stream
from equipoise.models.late_fusion import Decision
from equipoise.models.task import Regression
from equipoise.util.errors import BadInput, look_up
from equipoise.util.files import inside

BATCH = 256
Outputs = dict[str, Tensor]


@final
class Predictor:
    """Answers to samples as they were recorded: scaling, resizing and the order of axes are its business.

    It runs the graph that `export` writes, so that both give the same answers.

    Args:
        saved: The model of a finished run, as `load_saved_model` gives it.

    Attributes:
        saved: The model.
        names: The classes, the labels, or the columns of numbers.
        sensors: The names of the sensors.
        kind: "classes", "labels" or "regression".
    """

    def __init__(self, saved: SavedModel) -> None:
        self.saved, self.names, self.sensors = saved, saved.classes, tuple(saved.input_specs)
        self.kind = saved.task.kind
        self.graph = saved.deployable().eval()
        sizes = {name: getattr(encoder, "words", None) for name, encoder in saved.model.encoders.items()}
        self.seen = SeenSamples.of(saved.folder, str(saved.row["split"]), saved.input_specs)
        self.words = {name: size for name, size in sizes.items() if isinstance(size, int)}

    def __repr__(self) -> str:
        """Say what it reads and tells, and of which run it is."""
        told = f"sensors {listed(self.sensors)}; {self.kind} {listed(self.names)}"
        return f"<Predictor of {self.saved.folder}: {told}>"

    def predict(
        self,
        inputs: Any,
        decision: Decision = "committee",
        *,
        many: bool = False,
        most: int | None = None,
        on_batch: Callable[[int, int], None] | None = None,
    ) -> Prediction:
        """Answer to one sample or many.

        Args:
            inputs: {sensor: array, tensor, list or None}, one sample or many of each, as recorded; or a DataFrame with
                a row per sample, whose columns hold an array per cell, or the numbers of vectors: NAME_0, NAME_1, … or
                NAME.x, NAME.y, … A sensor is missing where it is absent or None; from a sample, where its entry is None
                or all NaN, or where "NAME_present" is false. "NAME_length" may hold the lengths of padded series. "id"
                may name the samples, as the index of a DataFrame does.
            decision: "committee": the vote of all heads at hand. "fused": the fused head decides.
            many: Read arrays as many samples where they might be one, such as [1] of a sensor that gives one number.
            most: Refuse more samples than these, as a server should; None for any number.
            on_batch: Called with the samples done and their number.

        Raises:
            BadInput: With everything that is wrong.
        """
        self.check_decision(decision)
        recorded = read_recorded(self.saved.input_specs, inputs, self.words, many=many)
        total, parts = len(recorded), []
        if most is not None and total > most:
            raise BadInput(f"expected at most {most:,} samples at once, found {total:,}")
        for start in range(0, total, BATCH):
            some = {name: value[start : start + BATCH] for name, value in recorded.inputs.items()}
            parts.append(self.run(some))
            if on_batch is not None:
                on_batch(min(start + BATCH, total), total)
        found = self.prediction({key: torch.cat([part[key] for part in parts]) for key in parts[0]}, recorded, decision)
        seen = None if self.seen is None else self.seen.part_of(recorded.inputs)
        return replace(found, seen=seen[0] if seen and recorded.single else seen)

    def stream(
        self,
        *,
        rate: float | None = None,
        rates: Mapping[str, float] | None = None,
        stride: float | None = None,
        decision: Decision = "committee",
        monitor: SensorMonitor | Path | str | bool = False,
    ) -> Stream:
        """Start a stream, which cuts windows from samples as they arrive; see `Stream`.

        Args:
            rate: Samples per second of every sensor that `rates` does not name; without both, time is counted in
                samples.
            rates: Samples per second by sensor.
            stride: Seconds from one window to the next; the length of a window where it is None.
            decision: As for `predict`.
            monitor: A sensor monitor, or its file; True for the one that `equipoise monitor` wrote for this run.
        """
        self.check_decision(decision)
        if monitor is True:
            monitor = inside(self.saved.folder, "export", "monitor.json")
            if not monitor.is_file():
                name = self.saved.row["data"]
                data = f" --data {shlex.quote(name)}" if is_file(name) else ""
                raise BadInput(f"no such file: {monitor}. Make it: equipoise monitor {self.saved.folder}{data}")
        if not isinstance(monitor, (SensorMonitor, Path, str, bool, type(None))):
            raise BadInput(f"monitor: expected a SensorMonitor, its file, True or False; found {monitor!r}")
        watch = SensorMonitor.load(monitor) if isinstance(monitor, (str, Path)) else monitor or None
        rates = {} if rates is None else rates
        return Stream(self, rate=rate, rates=rates, stride=stride, decision=decision, monitor=watch)

    def run(self, inputs: Outputs) -> Outputs:
        """Run the graph."""
        with torch.no_grad():
            return self.graph(inputs)

    def prediction(self, outputs: Outputs, recorded: Recorded, decision: Decision) -> Prediction:
        """Put outputs of the graph into names and numbers."""
        used = torch.stack([outputs[name + USED] for name in self.sensors], dim=1)
        given = torch.stack([recorded.inputs[name + VALID] for name in self.sensors], dim=1)
        keys = {"low": f"{decision}{LOW}", "high": f"{decision}{HIGH}"}
        numbers = self.kind == "regression"
        keys |= {"values": decision} if numbers else {"probabilities": decision}
        arrays = {name: outputs[key].numpy() for name, key in keys.items() if key in outputs}
        names = {"sensors": _named(self.sensors, used), "unusable": _named(self.sensors, given & ~used)}
        if isinstance(task := self.saved.task, Regression):
            names["outside"] = _named(self.names, task.far(outputs[decision], FAR))
        if recorded.single:
            arrays = {name: array[0] for name, array in arrays.items()}
            names = {name: listed[0] for name, listed in names.items()}
        more: dict[str, Any] = {"single": recorded.single, "ids": recorded.ids, **names, **arrays}
        return Prediction(self.kind, self.names, decision=decision, **more)

    def check_decision(self, decision: str) -> None:
        """Refuse a decision that is none, or that the model cannot make."""
        look_up("decision", decision, dict.fromkeys(get_args(Decision)))
        if decision not in self.graph.output_names:
            raise BadInput(f"{self.saved.folder}: this model has no heads that could vote; type decision='fused'")


def _named(names: Sequence[str], chosen: Tensor) -> list[tuple[str, ...]]:
    """Return the names that are chosen in each row, booleans [N, len(names)]."""
    return [tuple(name for name, here in zip(names, row, strict=True) if here) for row in chosen.tolist()]


def load(path: Path | str, *, encoder: str | None = None, model: str | None = None, trust: bool = False) -> Predictor:
    """Load the model of a finished run, ready to answer.

    Args:
        path: The folder of a run, or of a command that made a single one.
        encoder: The encoders as they were named for training, where one was your own.
        model: The model as it was named for training, where it was your own.
        trust: Import the model or the encoders that the folder names.

    Raises:
        BadInput: If there is no such run, or its model cannot be built again.
    """
    return Predictor(load_saved_model(path, encoder=encoder, model=model, trust=trust))
