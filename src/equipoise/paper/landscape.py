"""The paper's Figure 2: the loss around the solutions of joint training and of MIMO, and the modality that leads there.

The training steps are those of every run. `equipoise.training.train` counts epochs, and never touches the test part; a
figure of the test loss has to. Nothing is chosen by what is seen here.
"""

import copy
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import count, islice
from typing import Any, Literal, NamedTuple, cast, final, get_args

import numpy as np
import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from equipoise.data.splits import Part, Splits
from equipoise.models.encoded import EncodedModel
from equipoise.models.evaluation import evaluating
from equipoise.models.fusion import NamedModules
from equipoise.paper.landscape_plane import Plane, values_at
from equipoise.study.registry import Entry
from equipoise.training.components import as_read, with_components
from equipoise.training.launch import device_of
from equipoise.training.settings import Settings
from equipoise.training.step import build_model, evaluate
from equipoise.training.train import Run
from equipoise.util.errors import BadInput, raise_all
from equipoise.util.pool import Tell, parallel_workers, run_parallel

PlaneKind = Literal["own", "both"]
Protocol = Literal["split", "head", "masked"]
CurvePoint = dict[str, Any]
"""After a number of steps: {"step": …, "train": {output: {"loss": …, "accuracy": …}}, "test": …}."""

PARTS = ("train", "test")
TITLES = {"msl": "joint training", "mimo": "MIMO"}
MARGIN = 0.5  # of the way between two solutions, that their plane shows on either side
CURVE_POINTS, MESSAGES_EVERY = 50, 10
"""Number of measurements during training, and of measurements between messages to the user."""
MOST_POINTS, LEAST_POINTS = 51, 15
"""Points along a side of a plane where nobody says how many: fewer, the longer each takes."""
AFFORDABLE, SPEED = 4 * 60.0, 3e10
"""Seconds that all points may take one core then, and operations a second of a slow one."""


@final
@dataclass(frozen=True)
class LandscapeSettings:
    """The picture to draw.

    Args:
        steps: Iterations of training.
        points: Points along each side of a plane; None for 51, or fewer where they would take a core of the CPU more
            than about four minutes.
        reach: Distance from its solution that a plane shows; at 1 every filter has moved by its own length.
        samples: Of the training and of the test part, each; stratified by class.
        plane: "own": one plane around each solution, in the same random draw; "both": one through the two.
        protocol: Where uni-modal accuracies are read. "split": from each modality's share of the fused output, which
            needs an additive fusion; "head": from heads of their own; "masked": from the model with the other sensors
            masked, under hybrid or early fusion. None for "split" where there is one.
        seed: Of weights, batches, subsets and directions.
    """

    steps: int = 1500
    points: int | None = None
    reach: float = 1.0
    samples: int = 200
    plane: PlaneKind = "own"
    protocol: Protocol | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        least, values = {"steps": 1, "samples": 2, **({} if self.points is None else {"points": 3})}, asdict(self)
        problems = [
            f"{name} should be a whole number of at least {low}, found {values[name]!r}"
            for name, low in least.items()
            if not (isinstance(values[name], int) and values[name] >= low)
        ]
        if not 0 < self.reach < math.inf:
            problems.append(f"reach should be above zero and finite, found {self.reach!r}")
        for name, choices in {"plane": get_args(PlaneKind), "protocol": (*get_args(Protocol), None)}.items():
            if values[name] not in choices:
                words = ", ".join(filter(None, choices))
                problems.append(f"{name} should be one of {words}, found {values[name]!r}")
        raise_all(problems)

    @property
    def stem(self) -> str:
        """The name of the files, so that both kinds of planes can lie in one folder."""
        return "landscape" if self.plane == "own" else f"landscape-{self.plane}"

    @property
    def side(self) -> int:
        """The number of points along a side; 51 where nothing says otherwise."""
        return self.points or MOST_POINTS

    @property
    def planes(self) -> int:
        """The number of planes that are evaluated."""
        return 2 if self.plane == "own" else 1

    def protocol_for(self, run: Settings) -> Protocol:
        """Choose the protocol of uni-modal accuracies that a model allows, or refuse the one that was asked for."""
        own: Protocol = "masked" if run.masks else "head"
        additive = run.fusion in ("sum", "concat")
        if self.protocol == "split" and not additive:
            expected = "--protocol split expected an additive fusion, sum or concat"
            raise BadInput(f"{expected}, found {run.fusion}; type --protocol {own}")
        if self.protocol not in (None, "split", own):
            objective = "masked" if self.protocol == "masked" else "head"
            raise BadInput(
                f"--protocol {self.protocol} expected objective={objective}, found a model whose objectives are of "
                f"{own}; type --protocol {own}"
            )
        return self.protocol or ("split" if additive else own)


class SolutionPoint(NamedTuple):
    """A solution in its plane.

    Args:
        name: Of its method.
        x: Its coordinate to the right.
        y: Its coordinate up.
        loss: On the training and on the test samples, as the plane has it.
        error: Standard error of these over samples, as if they were independent.
        alone: The same losses by evaluating the model itself, beside any plane.
        accuracy: Per part, of the fused output and of each modality.
    """

    name: str
    x: float
    y: float
    loss: dict[str, float]
    error: dict[str, float]
    alone: dict[str, float]
    accuracy: dict[str, dict[str, float]]

    @property
    def difference(self) -> float:
        """The distance of the plane from the model itself, the larger of both parts."""
        return max(abs(self.loss[part] - self.alone[part]) for part in self.loss)


class LossSurface(NamedTuple):
    """The measurements in one plane; rows go up, columns to the right.

    Args:
        x: The columns.
        y: The rows.
        train: Fused loss on the training samples, [rows, columns].
        test: Fused loss on the test samples.
        accuracy: Training accuracy of each modality.
        stars: The solutions in this plane.
    """

    x: np.ndarray
    y: np.ndarray
    train: np.ndarray
    test: np.ndarray
    accuracy: dict[str, np.ndarray]
    stars: list[SolutionPoint]


class LandscapeResults(NamedTuple):
    """Everything that was measured.

    Args:
        settings: The picture that was asked for.
        data: Name of the data set.
        protocol: Of the uni-modal accuracies.
        samples: Number of samples of each part.
        curves: Losses and accuracies during training, per method.
        surfaces: One around each solution, or one through both.
        normalised: True if the model has batch norm, whose statistics then have to be spoken of.
    """

    settings: LandscapeSettings
    data: str
    protocol: Protocol
    samples: dict[str, int]
    curves: dict[str, list[CurvePoint]]
    surfaces: list[LossSurface]
    normalised: bool

    @property
    def modalities(self) -> tuple[str, ...]:
        """Their names."""
        return tuple(self.surfaces[0].accuracy)

    @property
    def stars(self) -> list[SolutionPoint]:
        """Every solution, joint training first."""
        return [star for surface in self.surfaces for star in surface.stars]

    def late(self, name: str) -> tuple[float, float]:
        """The least and the largest test loss over the last fifth of training: how much of the end is chance."""
        curve = [point for point in self.curves[name] if point["step"] >= 0.8 * self.settings.steps]
        losses = [point["test"]["fused"]["loss"] for point in curve]
        return min(losses), max(losses)

    def as_dict(self) -> dict[str, Any]:
        """All but the grids, in plain values."""
        names = ("data", "protocol", "samples", "normalised", "curves")
        stars = [[star._asdict() for star in surface.stars] for surface in self.surfaces]
        return {"recipe": asdict(self.settings), **{name: getattr(self, name) for name in names}, "stars": stars}


# -- training --


class Solution(NamedTuple):
    """A trained model.

    Args:
        name: Of the method.
        model: In the view that uni-modal accuracies are read from.
        curve: Losses and accuracies during training.
    """

    name: str
    model: EncodedModel
    curve: list[CurvePoint]


def stratified(label: Tensor, size: int, seed: int = 0) -> Tensor:
    """Draw rows of a fixed subset in which every class has its share, to within one sample.

    Args:
        label: The classes, [N].
        size: Number of rows; all where there are fewer.
        seed: Of the draw.

    Example:
        >>> rows = stratified(torch.tensor([0, 0, 0, 0, 1, 1]), 3)
        >>> torch.tensor([0, 0, 0, 0, 1, 1])[rows].tolist()
        [0, 0, 1]
    """
    order = torch.randperm(len(label), generator=torch.Generator().manual_seed(seed)).to(label.device)
    by_class = order[label[order].argsort(stable=True)]
    size = min(size, len(label))
    # Equal strides through the samples in the order of their classes.
    chosen = (torch.arange(size, dtype=torch.float64) + 0.5) * (len(label) / max(size, 1))
    return by_class[chosen.long().to(label.device)].sort().values


def subset(part: Part, size: int, seed: int, device: torch.device | str) -> Part:
    """A stratified subset of a part, as encoders read it in evaluation."""
    return part.take(stratified(part.label, size, seed)).to(device).ready()


def solve(
    splits: Splits, entry: Entry, settings: LandscapeSettings, protocol: Protocol, parts: dict[str, Part], tell: Tell
) -> Solution:
    """Train for a number of iterations, and measure losses and accuracies on the way.

    Args:
        splits: The data.
        entry: The method, which must not need the end of an epoch, and how to build and train the model.
        settings: Steps and seed; the same start for every method.
        protocol: Of the uni-modal accuracies.
        parts: The samples to measure on, by name, as `subset` gives them.
        tell: Called with words on the progress.

    Raises:
        BadInput: If training diverged.
    """
    steps, run = settings.steps, Run(splits, entry.balancer(), entry.settings, settings.seed)
    every = max(1, steps // CURVE_POINTS)

    def view() -> EncodedModel:
        """Copy the model with uni-modal outputs of the protocol; under "split" it has no other heads to perturb."""
        model = cast("EncodedModel", copy.deepcopy(run.model))
        model.unimodal = protocol
        if protocol == "split":
            model.heads = NamedModules({})
        return model.eval()

    def measured(step: int) -> CurvePoint:
        model = view()
        return {"step": step, **{name: evaluate(model, part) for name, part in parts.items()}}

    try:
        curve = [measured(0)]
        for step in islice(_steps_of(run), steps):
            if step % every == 0 or step == steps:
                curve.append(measured(step))
            if step % (MESSAGES_EVERY * every) == 0 or step == steps:
                tell(f"training {entry.label}: step {step:,} of {steps:,}")
        loss = curve[-1]["train"]["fused"]["loss"]
        if not math.isfinite(loss):
            raise FloatingPointError(f"expected a finite training loss after {steps} steps, found {loss}")
    except FloatingPointError as problem:
        raise BadInput(
            f"{entry.label} diverged, and there is nothing to draw around; type a smaller learning rate than "
            f"lr={entry.settings.lr:g}. {problem}"
        ) from None
    return Solution(entry.method.name, view(), curve)


def _steps_of(run: Run) -> Iterator[int]:
    """Take the steps of a run from one on, without an end, each when it is asked for."""
    numbers = count(1)
    while True:
        for _ in run.steps():
            yield next(numbers)
        run.end_epoch()


# -- surfaces --


def untrained(splits: Splits, entry: Entry) -> EncodedModel:
    """Build a model as a run does, to prepare samples for it and to tell what evaluating it takes."""
    model = build_model(splits, entry.balancer(), entry.settings)
    if not isinstance(model, EncodedModel):
        raise BadInput(f"model={entry.settings.model}: expected a model made of encoders; leave model=… out")
    if still := [name for name, encoder in model.encoders.items() if not list(encoder.parameters())]:
        expected = f"encoder={entry.settings.encoder}: expected encoders with weights that are trained"
        raise BadInput(f"{expected}, found none in {', '.join(still)}; type encoder=rocket, or leave it out")
    with_components(model, splits)
    return model.to(device_of(entry.settings))


def with_points(splits: Splits, entry: Entry, settings: LandscapeSettings) -> LandscapeSettings:
    """Fill in how many points a side has where nobody said it: by the model's operations, so the same everywhere."""
    if settings.points is not None or device_of(entry.settings) != "cpu":
        return settings
    model = untrained(splits, entry)
    one = as_read(model, subset(splits.train, 1, settings.seed, "cpu"))
    with evaluating(model), torch.no_grad(), FlopCounterMode(display=False) as counter:
        model(one.inputs)
    samples = sum(min(settings.samples, len(splits.parts[name])) for name in PARTS)
    seconds = settings.planes * samples * counter.get_total_flops() / SPEED
    side = int(math.sqrt(AFFORDABLE / max(seconds, 1e-9)))
    side -= 1 - side % 2  # odd, so that the solution is one of them
    return replace(settings, points=min(max(side, LEAST_POINTS), MOST_POINTS))


def _budget(model: EncodedModel, parts: dict[str, Part], settings: LandscapeSettings, batch: int) -> str:
    """Say what is going to be computed, and about how long it takes, from the time that one point takes now."""
    points = settings.planes * settings.side**2 * len(parts)
    steps = len(TITLES) * settings.steps
    work = f"{steps:,} steps of training, and {points:,} points with {settings.samples:,} samples each"
    part = parts["train"]
    if part.label.device.type != "cpu":
        return work
    for _ in range(2):  # the first call is slower
        started = time.perf_counter()
        evaluate(model, part)
        seconds = time.perf_counter() - started
    workers = parallel_workers()
    training = steps * 3 * batch / len(part) * seconds / min(len(TITLES), workers)
    minutes = (training + points * seconds / workers) / 60
    about = f"{minutes:.0f} minutes" if minutes > 1.5 else "a minute" if minutes > 0.5 else "half a minute at most"
    return f"{work}: about {about} on {workers} core{'s' if workers > 1 else ''}"


def gather(
    splits: Splits, entries: Sequence[Entry], settings: LandscapeSettings, tell: Tell = lambda _: None
) -> LandscapeResults:
    """Train both models, and evaluate them all over their planes.

    Args:
        splits: The data.
        entries: Joint training and MIMO, with the settings of both.
        settings: The picture to draw.
        tell: Called with words on the progress.

    Raises:
        BadInput: If training diverged.
        ValueError: If the fusion does not allow the protocol.
    """
    protocol, settings = settings.protocol_for(entries[0].settings), with_points(splits, entries[0], settings)
    device, seed, model = device_of(entries[0].settings), settings.seed, untrained(splits, entries[0])
    parts = {name: as_read(model, subset(splits.parts[name], settings.samples, seed, device)) for name in PARTS}
    tell(_budget(model, parts, settings, entries[0].settings.batch))
    works = [partial(solve, splits, entry, settings, protocol, parts) for entry in entries]
    solutions = run_parallel(works, tell)
    side = np.linspace(-settings.reach, settings.reach, settings.side)
    if settings.plane == "both":
        plane = Plane.through(solutions[0].model, solutions[1].model, seed)
        along = np.linspace(-MARGIN, 1 + MARGIN, settings.side)
        surfaces = [_surface(plane, along, side, solutions, parts, tell)]
    else:
        surfaces = [_surface(Plane.around(one.model, seed), side, side, [one], parts, tell) for one in solutions]
    counts = {name: len(part) for name, part in parts.items()}
    curves = {solution.name: solution.curve for solution in solutions}
    normalised = any("running_mean" in name for name, _ in solutions[0].model.named_buffers())
    return LandscapeResults(settings, splits.name, protocol, counts, curves, surfaces, normalised)


def _surface(
    plane: Plane, x: np.ndarray, y: np.ndarray, solutions: Sequence[Solution], parts: dict[str, Part], tell: Tell
) -> LossSurface:
    """Evaluate every point of a grid, and the solutions at x = 0 and 1, which need not be on the grid."""
    grid = [(float(column), float(row)) for row in y for column in x]
    points = torch.tensor([*grid, *((float(at), 0.0) for at in range(len(solutions)))], dtype=torch.float64)
    titles = " and ".join(TITLES[solution.name] for solution in solutions)

    def progress(name: str) -> Callable[[int], None]:
        """Count points that are done, and tell of every tenth row of the grid."""
        done = 0

        def add(more: int) -> None:
            nonlocal done
            done += more
            if done % (10 * len(x)) < more or done == len(points):
                tell(f"{name} loss around {titles}: {done:,} of {len(points):,} points")

        return add

    model = solutions[0].model
    values = {name: values_at(model, plane, points, part, tell=progress(name)) for name, part in parts.items()}
    shape, size = (len(y), len(x)), len(grid)
    train, test = (values[name].loss[:size].reshape(shape).numpy() for name in ("train", "test"))
    accuracy = {name: column[:size].reshape(shape).numpy() for name, column in values["train"].accuracy.items()}
    del accuracy["fused"]
    stars = [
        SolutionPoint(
            solution.name,
            *points[at].tolist(),
            loss={name: float(part.loss[at]) for name, part in values.items()},
            error={name: float(part.error[at]) for name, part in values.items()},
            alone={name: evaluate(solution.model, part)["fused"]["loss"] for name, part in parts.items()},
            accuracy={name: {one: float(p[at]) for one, p in part.accuracy.items()} for name, part in values.items()},
        )
        for at, solution in enumerate(solutions, start=size)
    ]
    return LossSurface(x, y, train, test, accuracy, stars)
