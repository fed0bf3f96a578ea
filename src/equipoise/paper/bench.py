"""What a training step costs: whole and in pieces, for every method, any number of modalities and batch sizes.

Whole steps go through `equipoise.training.train`, from prepared data on the device to moved weights. Pieces are timed
apart, waiting for the device before and after each. Every round measures every line in turn, so that a drifting clock
touches all alike; ratios are taken within a round, and everything that is said is a median over rounds.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any, NamedTuple, final

import torch
from torch import Tensor

from equipoise.balance.balancer import Balancer
from equipoise.data.feed import Feed
from equipoise.data.splits import Part, Splits
from equipoise.measure.timing import PIECES, Stopwatch, TimedStep, time_steps, timed_step
from equipoise.models import LateFusion
from equipoise.models.choose import build_encoders
from equipoise.paper.bench_lines import BARE, JOINT, Maker, loops, views_of
from equipoise.paper.bench_memory import peak_of
from equipoise.training.machinery import make_optimizer, precision_of, to_channels_last
from equipoise.training.settings import Optimizer, Settings
from equipoise.training.step import build_model
from equipoise.training.train import train

WRITTEN, RECORDED = "as written", "recorded"
CLASSES = 6
WARM_UP = 3
Tell = Callable[[str], None]


class Kind(NamedTuple):
    """A kind of encoder, and what it is fed.

    Args:
        encoder: As in the settings of a run.
        optimizer: As in the settings of a run.
        shapes: Of one sample of each modality, taken in turn.
        on_cpu: The same, where a CPU would take minutes.
    """

    encoder: str
    optimizer: Optimizer
    shapes: tuple[tuple[int, ...], ...]
    on_cpu: tuple[tuple[int, ...], ...] | None = None


KINDS = {
    "small": Kind("mlp", "sgd", ((64,),)),
    "resnet18": Kind("resnet18", "sgd", ((1, 257, 188), (3, 2, 224, 224)), ((1, 32, 32), (3, 2, 32, 32))),
    "transformer": Kind("equipoise.paper.bench_lines.transformer", "adamw", ((64, 64),), ((8, 32),)),
}


class Case(NamedTuple):
    """One shape of the problem.

    Args:
        encoder: One of `KINDS`.
        modalities: How many.
        batch: Samples of a step.
    """

    encoder: str
    modalities: int
    batch: int


@final
@dataclass
class Row:
    """What one line costs in one case; all times in milliseconds.

    Args:
        case: The case.
        line: A method, or a loop that is not ours.
        whole: A whole step, by the way it runs.
        to_joint: Its ratio to joint training that runs the same way.
        to_bare: Its ratio to the bare loop, which always runs as it is written.
        pieces: The step in pieces.
        memory: MiB that tensors took at once during a step, beyond the model and what the optimiser keeps.
        path: Whether steps were recorded, or why not.
    """

    case: Case
    line: str
    whole: dict[str, float] = field(default_factory=dict)
    to_joint: dict[str, float] = field(default_factory=dict)
    to_bare: dict[str, float] = field(default_factory=dict)
    pieces: dict[str, float] = field(default_factory=dict)
    memory: float = 0.0
    path: str = ""

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            **self.case._asdict(),
            "optimizer": KINDS[self.case.encoder].optimizer,
            "line": self.line,
            "milliseconds": self.whole,
            "ratio to joint training": self.to_joint,
            "ratio to the bare loop": self.to_bare,
            "pieces": self.pieces,
            "pieces together": sum(self.pieces.values()),
            "memory MiB": self.memory,
            "recorded": self.path,
        }


def measure(
    cases: Sequence[Case],
    chosen: dict[str, Callable[[], Balancer]],
    device: torch.device,
    rounds: int,
    tell: Tell = lambda _: None,
) -> list[Row]:
    """Measure every line in every case.

    Args:
        cases: What to measure.
        chosen: Methods by name; joint training has to be among them.
        device: Where.
        rounds: How often.
        tell: Called with words on how far it is.
    """
    found: list[Row] = []
    for number, case in enumerate(cases, 1):
        what = f"{case.encoder}, K = {case.modalities}, batch {case.batch} ({number} of {len(cases)})"
        found += _Bench(case, chosen, device).rows(rounds, lambda words, what=what: tell(f"{what}: {words}"))
        gc.collect()
    return found


@final
class _Bench:
    """One case: its data, and everything that is measured on it."""

    def __init__(self, case: Case, chosen: dict[str, Callable[[], Balancer]], device: torch.device) -> None:
        self.case, self.device, self.methods = case, device, chosen
        kind = KINDS[case.encoder]
        self.steps = 30 if device.type == "cuda" else 8 if case.encoder == "small" else 4
        self.epochs = 3 if device.type == "cuda" else 2  # of a measured run; the first warms up
        shapes = kind.shapes if device.type == "cuda" or kind.on_cpu is None else kind.on_cpu
        self.splits = made_up(shapes, case.modalities, case.batch * self.steps)
        self.settings = Settings(
            epochs=self.epochs, batch=case.batch, lr=1e-3, encoder=kind.encoder, optimizer=kind.optimizer,
            device=str(device), compile=False, capture=False,
        )  # fmt: skip
        self.feed = Feed(self.splits.train, device)
        self.batches = list(torch.arange(len(self.feed), device=device).split(case.batch))
        self.loops = loops(list(chosen))
        self.ways = (WRITTEN, RECORDED) if device.type == "cuda" else (WRITTEN,)

    def rows(self, rounds: int, tell: Tell) -> list[Row]:
        lines = [BARE, *self.methods, *(name for name in self.loops if name != BARE)]
        found = {line: Row(self.case, line) for line in lines}
        split = {line: self._step(line, beside=True) for line in lines}
        whole = {(line, way): [] for line in lines for way in self.ways if way == WRITTEN or line in self.methods}
        pieces: dict[str, list[dict[str, float]]] = {line: [] for line in lines}
        for turn in range(rounds):
            for line in lines:
                tell(f"round {turn + 1} of {rounds}, {line}")
                for way in self.ways:
                    if (line, way) in whole:
                        whole[line, way].append(self._whole(found[line], way))
                pieces[line] += self._pieces(split[line], WARM_UP if turn == 0 else 1)
        for line, row in found.items():
            for way in self.ways:
                if (line, way) in whole:
                    row.whole[way] = median(whole[line, way])
                    row.to_joint[way] = _ratio(whole[line, way], whole[JOINT, way])
                    row.to_bare[way] = _ratio(whole[line, way], whole[BARE, WRITTEN])
            row.pieces = {piece: 1e3 * median(each[piece] for each in pieces[line]) for piece in PIECES}
            row.memory = self._memory(line)
        return list(found.values())

    def _whole(self, row: Row, way: str) -> float:
        """Milliseconds of a whole step, the median over epochs after the first."""
        if row.line not in self.methods:
            return self._loop(row.line)
        settings = self.settings.changed({"capture": way == RECORDED})
        trained = train(self.splits, self.methods[row.line](), settings)
        if way == self.ways[-1]:
            row.path = trained.path["captured"]
        return 1e3 * median(epoch["seconds"] for epoch in trained.curves[1:]) / self.steps

    def _loop(self, line: str) -> float:
        step = self._step(line, beside=False)
        epochs = []
        for _ in range(self.epochs):
            watch = Stopwatch(self.device)
            with watch("update"):
                for rows in self.batches:
                    step(Stopwatch(self.device, synchronise=False), self.feed.made(rows))
            epochs.append(watch.seconds["update"])
        return 1e3 * median(epochs[1:]) / self.steps

    def _pieces(self, step: TimedStep, warm_up: int) -> list[dict[str, float]]:
        times = time_steps(step, lambda number: self.feed.made(self.batches[number]), len(self.batches), self.device)
        return times[warm_up:]

    def _memory(self, line: str) -> float:
        step = self._step(line, beside=False)
        part = self.feed.made(self.batches[0])
        watch = Stopwatch(self.device, synchronise=False)
        step(watch, part)  # makes what the optimiser keeps
        return peak_of(lambda: step(watch, part), self.device)

    def _step(self, line: str, *, beside: bool) -> TimedStep:
        """A step whose pieces are named; `beside` takes a plain backward pass beside it where one is needed."""
        torch.manual_seed(0)
        if line not in self.methods:
            make: Maker = self.loops[line]
            encoders = build_encoders(self.settings.encoder, self.splits.shapes, self.settings.features)
            model = self._prepared(LateFusion(encoders, CLASSES, unimodal=views_of(line)))
            return make(model, make_optimizer(model, self.settings), beside)
        balancer = self.methods[line]()
        model = self._prepared(build_model(self.splits, balancer, self.settings))
        optimizer = make_optimizer(model, self.settings)
        balancer.to(self.device).attach(model, optimizer=optimizer)
        return timed_step(model, balancer, optimizer)

    def _prepared(self, model: LateFusion) -> LateFusion:
        """A model as `train` would have it: on the device, in its memory format, its encoders in its precision."""
        model = model.to(self.device).train()
        if self.device.type == "cuda":
            to_channels_last(model)
        if precision_of(self.settings, self.device) == "bf16":
            features = model.features

            def in_bf16(*args: Any) -> dict[str, Tensor]:
                with torch.autocast(self.device.type, torch.bfloat16):
                    return {name: feature.float() for name, feature in features(*args).items()}

            model.features = in_bf16  # ty: ignore[invalid-assignment]
        return model


def made_up(shapes: Sequence[tuple[int, ...]], modalities: int, count: int) -> Splits:
    """Noise of these shapes, taken in turn, with labels."""
    random = torch.Generator().manual_seed(0)
    inputs = {
        f"sensor {number + 1}": torch.randn(count, *shapes[number % len(shapes)], generator=random)
        for number in range(modalities)
    }
    part = Part(inputs, torch.arange(count) % CLASSES)
    few = part.take(torch.arange(min(count, 32)))
    return Splits("made up", part, few, few, tuple(map(str, range(CLASSES))))


def growth(rows: Sequence[Row], line: str, way: str = WRITTEN) -> float | None:
    """By how much of a joint step the cost over joint training grows with each modality: a least-squares slope."""
    points = [(row.case.modalities, row.to_joint[way]) for row in rows if row.line == line and way in row.to_joint]
    if len({count for count, _ in points}) < 2:
        return None
    middle = sum(count for count, _ in points) / len(points)
    spread = sum((count - middle) ** 2 for count, _ in points)
    return sum((count - middle) * ratio for count, ratio in points) / spread


def _ratio(own: Sequence[float], other: Sequence[float]) -> float:
    return median(a / b for a, b in zip(own, other, strict=True))
