"""The paper's Figure 2: the loss around the solutions of joint training and of MIMO, and who leads there."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any, Literal, final, get_args

import numpy as np
import torch

from equipoise.data.splits import Part, Splits
from equipoise.paper.landscape_plane import Plane, Values, values_at
from equipoise.paper.landscape_training import Look, Protocol, Solution, solve, subset
from equipoise.study.registry import Entry
from equipoise.training.launch import device_of
from equipoise.training.step import evaluate
from equipoise.util.errors import BadInput, raise_all
from equipoise.util.pool import Tell, run_parallel

Through = Literal["own", "both"]
TITLES = {"msl": "joint training", "mimo": "MIMO"}
MARGIN = 0.5  # of the way between two solutions, that their plane shows on either side


@final
@dataclass(frozen=True)
class Recipe:
    """What to draw.

    Args:
        steps: Iterations of training.
        points: Places along each side of a plane.
        reach: How far a plane goes from its solution; at 1 every filter has moved by its own length.
        samples: Of the training and of the test part, each; stratified by class.
        plane: "own": one plane around each solution, in the same random draw; "both": one through the two.
        protocol: Where uni-modal accuracies are read. "split": from each modality's share of the fused output, which
            needs an additive fusion; "head": from heads of their own. None for "split" where there is one.
        seed: Of weights, batches, subsets and directions.
    """

    steps: int = 1500
    points: int = 51
    reach: float = 1.0
    samples: int = 200
    plane: Through = "own"
    protocol: Protocol | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        least = (("steps", 1), ("points", 3), ("samples", 2))
        problems = [
            f"{name} should be a whole number of at least {low}, found {getattr(self, name)!r}"
            for name, low in least
            if not (isinstance(getattr(self, name), int) and getattr(self, name) >= low)
        ]
        if not 0 < self.reach < math.inf:
            problems.append(f"reach should be above zero and finite, found {self.reach!r}")
        for name, choices in (("plane", get_args(Through)), ("protocol", (*get_args(Protocol), None))):
            if getattr(self, name) not in choices:
                words = ", ".join(choice for choice in choices if choice)
                problems.append(f"{name} should be one of {words}, found {getattr(self, name)!r}")
        raise_all(problems)

    @property
    def stem(self) -> str:
        """What the files are called, so that both kinds of planes can lie in one folder."""
        return "landscape" if self.plane == "own" else f"landscape-{self.plane}"


@final
@dataclass(frozen=True)
class Star:
    """A solution in its plane.

    Args:
        name: Of its method.
        x: Where it lies.
        y: Where it lies.
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
        """How far the plane is from the model itself, the larger of both parts."""
        return max(abs(self.loss[part] - self.alone[part]) for part in self.loss)


@final
@dataclass(frozen=True)
class Surface:
    """What was found in one plane; rows go up, columns to the right.

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
    stars: list[Star]


@final
@dataclass(frozen=True)
class Facts:
    """Everything that was measured.

    Args:
        recipe: What was asked for.
        data: Name of the data set.
        protocol: Of the uni-modal accuracies.
        samples: How many samples each part gave.
        curves: Per method what was seen while it trained.
        surfaces: One around each solution, or one through both.
        normalised: Whether the model has batch norm, whose statistics then have to be spoken of.
    """

    recipe: Recipe
    data: str
    protocol: Protocol
    samples: dict[str, int]
    curves: dict[str, list[Look]]
    surfaces: list[Surface] = field(default_factory=list)
    normalised: bool = False

    @property
    def modalities(self) -> tuple[str, ...]:
        """Their names."""
        return tuple(self.surfaces[0].accuracy)

    @property
    def stars(self) -> list[Star]:
        """Every solution, joint training first."""
        return [star for surface in self.surfaces for star in surface.stars]

    def late(self, name: str) -> tuple[float, float]:
        """The least and the largest test loss over the last fifth of training: how much of the end is chance."""
        late = [look for look in self.curves[name] if look["step"] >= 0.8 * self.recipe.steps]
        losses = [look["test"]["fused"]["loss"] for look in late]
        return min(losses), max(losses)

    def as_dict(self) -> dict[str, Any]:
        """All but the grids, in plain values."""
        return {
            "recipe": asdict(self.recipe),
            "data": self.data,
            "protocol": self.protocol,
            "samples": self.samples,
            "normalised": self.normalised,
            "curves": self.curves,
            "stars": [[asdict(star) for star in surface.stars] for surface in self.surfaces],
        }


def chosen_protocol(recipe: Recipe, fusion: str) -> Protocol:
    """The protocol of uni-modal accuracies that a fusion allows."""
    additive = fusion in ("sum", "concat")
    if recipe.protocol == "split" and not additive:
        raise BadInput(
            f"--protocol split expected an additive fusion, sum or concat, found {fusion}; type --protocol head"
        )
    return recipe.protocol or ("split" if additive else "head")


def gather(splits: Splits, entries: Sequence[Entry], recipe: Recipe, tell: Tell = lambda _: None) -> Facts:
    """Train both models, and judge them all over their planes.

    Args:
        splits: The data.
        entries: Joint training and MIMO, with the settings of both.
        recipe: What to draw.
        tell: Called with words on how far it is.

    Raises:
        BadInput: If training diverged.
        ValueError: If the fusion does not allow the protocol.
    """
    protocol = chosen_protocol(recipe, entries[0].settings.fusion)
    device = device_of(entries[0].settings)
    parts = {name: subset(splits.parts[name], recipe.samples, recipe.seed, device) for name in ("train", "test")}
    found = run_parallel([partial(_solved, splits, entry, recipe, protocol, parts) for entry in entries], tell)
    if recipe.plane == "both":
        surfaces = [_through(found[0], found[1], recipe, parts, tell)]
    else:
        surfaces = [_around(solution, recipe, parts, tell) for solution in found]
    counts = {name: len(part) for name, part in parts.items()}
    curves = {solution.name: solution.curves for solution in found}
    return Facts(recipe, splits.name, protocol, counts, curves, surfaces, _normalised(found[0]))


def _solved(
    splits: Splits, entry: Entry, recipe: Recipe, protocol: Protocol, parts: dict[str, Part], tell: Tell
) -> Solution:
    try:
        return solve(splits, entry, recipe.steps, recipe.seed, protocol, parts, tell)
    except FloatingPointError as found:
        raise BadInput(
            f"{entry.label} diverged, and there is nothing to draw around; type a smaller learning rate than "
            f"lr={entry.settings.lr:g}. {found}"
        ) from None


def _around(solution: Solution, recipe: Recipe, parts: dict[str, Part], tell: Tell) -> Surface:
    plane = Plane.around(solution.model, recipe.seed)
    side = np.linspace(-recipe.reach, recipe.reach, recipe.points)
    return _survey(plane, side, side, [(solution, 0.0)], parts, tell)


def _through(one: Solution, other: Solution, recipe: Recipe, parts: dict[str, Part], tell: Tell) -> Surface:
    plane = Plane.through(one.model, other.model, recipe.seed)
    along = np.linspace(-MARGIN, 1 + MARGIN, recipe.points)
    across = np.linspace(-recipe.reach, recipe.reach, recipe.points)
    return _survey(plane, along, across, [(one, 0.0), (other, 1.0)], parts, tell)


def _survey(
    plane: Plane,
    x: np.ndarray,
    y: np.ndarray,
    solutions: Sequence[tuple[Solution, float]],
    parts: dict[str, Part],
    tell: Tell,
) -> Surface:
    """Judge every place of a grid, and each solution where it lies, which need not be on the grid."""
    grid = [(float(column), float(row)) for row in y for column in x]
    places = torch.tensor([*grid, *((place, 0.0) for _, place in solutions)], dtype=torch.float64)
    model, who = solutions[0][0].model, " and ".join(TITLES[each.name] for each, _ in solutions)
    values: dict[str, Values] = {}
    for name, part in parts.items():
        done = [0]

        def count(more: int, done: list[int] = done, name: str = name) -> None:
            done[0] += more
            if done[0] % (10 * len(x)) < more or done[0] == len(places):
                tell(f"{name} loss around {who}: {done[0]:,} of {len(places):,} points")

        values[name] = values_at(model, plane, places, part, on_done=count)
    shape, size = (len(y), len(x)), len(grid)
    loss = {name: each.loss[:size].reshape(shape).numpy() for name, each in values.items()}
    accuracy = {
        name: column[:size].reshape(shape).numpy()
        for name, column in values["train"].accuracy.items()
        if name != "fused"
    }
    stars = [
        _star(solution, place, {name: _only(each, size + number) for name, each in values.items()}, parts)
        for number, (solution, place) in enumerate(solutions)
    ]
    return Surface(x, y, loss["train"], loss["test"], accuracy, stars)


def _only(values: Values, place: int) -> Values:
    accuracy = {name: column[place] for name, column in values.accuracy.items()}
    return Values(values.loss[place], values.error[place], accuracy)


def _star(solution: Solution, place: float, values: dict[str, Values], parts: dict[str, Part]) -> Star:
    alone = {name: evaluate(solution.model, part)["fused"]["loss"] for name, part in parts.items()}
    return Star(
        solution.name,
        place,
        0.0,
        {name: float(each.loss) for name, each in values.items()},
        {name: float(each.error) for name, each in values.items()},
        alone,
        {name: {one: float(right) for one, right in each.accuracy.items()} for name, each in values.items()},
    )


def _normalised(solution: Solution) -> bool:
    return any("running_mean" in name for name, _ in solution.model.named_buffers())
