"""The paper's toy problem: two linear sensors, of which the louder is learnt first and the quieter knows the answer."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, NamedTuple, final, get_args

import torch
from torch import Tensor

from equipoise.balance.optimum import least_squares
from equipoise.util.errors import demand

Label = Literal["sum", "mean", "first"]


@final
@dataclass(frozen=True)
class Recipe:
    """How the problem is drawn and trained. The defaults are those of the paper's appendix on its toy example.

    The appendix writes y = 0.001·x₁ + x₂ with vectors x₁ and x₂ and a number y, and does not say how the vector becomes
    the number; and that all parameters start close to zero, but not how close. ``label`` and ``start`` are our choices.

    Args:
        samples: N.
        inputs: How many inputs each modality has.
        hidden: Width of each encoder.
        scales: Standard deviation of the inputs, per modality; as many as there are modalities.
        coefficients: What an input counts in the label, per modality.
        label: How the vector becomes a number: the "sum" over its entries, their "mean", or the "first" entry alone.
        start: Standard deviation of the weights at the start.
        lr: Learning rate of gradient descent on all samples.
        penalty: λ of MIMO.
        smoothing: μ of MIMO.
        steps: How long to train for the figure.
        level: A fused loss; how many steps a run needs to get there is how runs are compared.
    """

    samples: int = 700
    inputs: int = 50
    hidden: int = 100
    scales: tuple[float, ...] = (5.0, 0.5)
    coefficients: tuple[float, ...] = (0.001, 1.0)
    label: Label = "sum"
    start: float = 0.001
    lr: float = 0.01
    penalty: float = 10.0
    smoothing: float = 0.2
    steps: int = 300
    level: float = 1.0

    def __post_init__(self) -> None:
        positive = {name: getattr(self, name) for name in ("start", "lr", "penalty", "smoothing", "level")}
        modalities = len(self.scales)
        demand(
            "toy",
            (self.inputs >= 1, "inputs should be at least one", self.inputs),
            (self.hidden >= 1, "hidden should be at least one", self.hidden),
            (self.steps >= 1, "steps should be at least one", self.steps),
            (self.samples > self.inputs, f"samples should be more than inputs ({self.inputs})", self.samples),
            (modalities >= 2, "scales should name at least two modalities", self.scales),
            (all(0 < each < math.inf for each in self.scales), "scales should be above zero", self.scales),
            (
                len(self.coefficients) == modalities,
                f"coefficients should be as many as scales ({modalities})",
                self.coefficients,
            ),
            (self.label in get_args(Label), f"label should be one of {', '.join(get_args(Label))}", self.label),
            *(
                (0 < each < math.inf, f"{name} should be above zero and finite", each)
                for name, each in positive.items()
            ),
        )
        square = self.expected_square
        lower = f"level should be below the loss at the start, about {square:.3g}, such as level={0.08 * square:.2g}"
        demand("toy", (self.level < square, lower, self.level))

    @property
    def expected_square(self) -> float:
        """E[y²], which is the loss at the start, where all outputs are near zero."""
        entry = sum((weight * scale) ** 2 for weight, scale in zip(self.coefficients, self.scales, strict=True))
        return entry * {"sum": self.inputs, "mean": 1 / self.inputs, "first": 1}[self.label]

    @property
    def names(self) -> tuple[str, ...]:
        """The modalities: m1, m2, and so on."""
        return tuple(f"m{number}" for number in range(1, len(self.scales) + 1))


@final
@dataclass(frozen=True)
class Toy:
    """Data of the problem.

    Args:
        inputs: Per modality an array [N, D].
        target: y, [N].
    """

    inputs: dict[str, Tensor]
    target: Tensor

    def only(self, name: str) -> Toy:
        """The same problem with one modality, as if the others were held at zero."""
        return Toy({name: self.inputs[name]}, self.target)

    @cached_property
    def correlations(self) -> Correlations:
        """The statistics that everything on this problem depends on."""
        count = len(self.target)
        between = {(a, b): x.T @ z / count for a, x in self.inputs.items() for b, z in self.inputs.items()}
        with_target = {name: x.T @ self.target / count for name, x in self.inputs.items()}
        return Correlations(between, with_target, float(self.target.square().mean()))

    @cached_property
    def optimum(self) -> dict[str, float]:
        """f*_k, the least that modality k reaches alone; also f_mm on the manifold M_k, where the others are zero."""
        return least_squares(self.inputs, self.target)


class Correlations(NamedTuple):
    """C of the appendix, without subtracting means: C_jk, C_yk, and the mean of y²."""

    inputs: dict[tuple[str, str], Tensor]
    target: dict[str, Tensor]
    square: float


def draw(recipe: Recipe, seed: int) -> Toy:
    """Data as the appendix says: every input a Gaussian of its modality's scale, the label their weighted sum.

    Example:
        >>> toy = draw(Recipe(), seed=0)
        >>> {name: tuple(x.shape) for name, x in toy.inputs.items()}
        {'m1': (700, 50), 'm2': (700, 50)}
    """
    random = torch.Generator().manual_seed(seed)
    shape = (recipe.samples, recipe.inputs)
    inputs = {
        name: scale * torch.randn(shape, generator=random, dtype=torch.float64)
        for name, scale in zip(recipe.names, recipe.scales, strict=True)
    }
    parts = [weight * x for weight, x in zip(recipe.coefficients, inputs.values(), strict=True)]
    vector = torch.stack(parts).sum(dim=0)
    reduce = {"sum": lambda v: v.sum(dim=1), "mean": lambda v: v.mean(dim=1), "first": lambda v: v[:, 0]}
    return Toy(inputs, reduce[recipe.label](vector))


class Preference(NamedTuple):
    """The appendix's condition for superficial modality preference, on data.

    Args:
        pull: ‖C_yk‖ per modality: near zero, its weights grow at a rate proportional to this.
        explained: C_yk C_k⁻¹ C_ykᵀ per modality: how much it lowers the loss alone.
    """

    pull: dict[str, float]
    explained: dict[str, float]

    @property
    def first(self) -> str:
        """The modality that joint training learns first."""
        return max(self.pull, key=self.pull.__getitem__)

    @property
    def most_useful(self) -> str:
        """The modality that lowers the loss most."""
        return max(self.explained, key=self.explained.__getitem__)

    @property
    def superficial(self) -> bool:
        """Whether what is learnt first is not what is most useful."""
        return self.first != self.most_useful


def preference(toy: Toy) -> Preference:
    """What the condition of the appendix compares, measured on this data."""
    found = toy.correlations
    pull = {name: float(column.norm()) for name, column in found.target.items()}
    explained = {
        name: float(column @ torch.linalg.solve(found.inputs[name, name], column))
        for name, column in found.target.items()
    }
    return Preference(pull, explained)


class Share(NamedTuple):
    """How often the condition holds at a number of samples, and the mean of each ‖C_yk‖."""

    samples: int
    holds: float
    pull: dict[str, float]


def preference_by_samples(recipe: Recipe, counts: Iterable[int], seeds: Sequence[int]) -> list[Share]:
    """How the condition fares as the number of samples grows."""
    rows = []
    for count in counts:
        larger = dataclasses.replace(recipe, samples=count)
        found = [preference(draw(larger, seed)) for seed in seeds]
        pull = {name: sum(each.pull[name] for each in found) / len(found) for name in recipe.names}
        rows.append(Share(count, sum(each.superficial for each in found) / len(found), pull))
    return rows


def samples_where_noise_ends(recipe: Recipe) -> float:
    """N at which E‖C_y1‖² falls to E‖C_y2‖², for two modalities and the "sum": beyond it the condition tends to fail.

    Each of the D entries of C_yk has mean a_k s_k² and variance (s_k² E[y²] + a_k² s_k⁴) / N, with a the coefficient
    and s the scale. For modality 1 of the paper the mean is 0.025, and the standard deviation at N = 700 is 0.67: its
    ‖C_y1‖ is sampling noise.

    Example:
        >>> round(samples_where_noise_ends(Recipe()))
        5000
    """
    demand(
        "samples_where_noise_ends",
        (len(recipe.scales) == 2, "recipe should have two modalities", len(recipe.scales)),
        (recipe.label == "sum", "label should be 'sum'", recipe.label),
    )
    pairs = list(zip(recipe.coefficients, recipe.scales, strict=True))
    (noise_1, mean_1), (noise_2, mean_2) = [
        (s**2 * recipe.expected_square + a**2 * s**4, a**2 * s**4) for a, s in pairs
    ]
    return (noise_1 - noise_2) / (mean_2 - mean_1)
