"""The paper's toy problem: two linear modalities, of which the louder is learnt first and the quieter counts.

The data and the condition on it, a two-layer linear model, and training runs: joint training, MIMO, and the controls.
"""

import dataclasses
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from typing import Literal, NamedTuple, final, get_args

import torch
from torch import Tensor, nn

from equipoise.balance.balancer import Balancer
from equipoise.balance.coefficients import FUSED
from equipoise.balance.optimum import OptimumWeighting
from equipoise.balance.theory import least_squares
from equipoise.methods import EW, MIMO, MSL, PrimalDual
from equipoise.util.errors import demand

Label = Literal["sum", "mean", "first"]
NamedTensors = Mapping[str, Tensor]
"""Tensors by parameter: encoders.m1 is θ_m1 [D, H], fused.m1 is ϑ_mm,m1 [H], heads.m1 is ϑ_m1 [H]."""

DIVERGED = 1e6  # growth of the loss, as a factor, from which a run does not recover


@final
@dataclass(frozen=True)
class ToySettings:
    """Sizes of the problem, and how it is trained. The defaults are those of the paper's appendix on its toy example.

    The appendix writes y = 0.001·x₁ + x₂ with vectors x₁ and x₂ and a number y, and does not say how the vector becomes
    the number; and that all parameters start close to zero, but not how close. ``label`` and ``start`` are our choices.

    Args:
        samples: N.
        inputs: Inputs of each modality.
        hidden: Width of each encoder.
        scales: Standard deviation of the inputs, per modality; as many as there are modalities.
        coefficients: Weight of an input in the label, per modality.
        label: How the vector becomes a number: the "sum" over its entries, their "mean", or the "first" entry alone.
        start: Standard deviation of the weights at the start.
        lr: Learning rate of gradient descent on all samples.
        penalty: λ of MIMO.
        smoothing: μ of MIMO.
        steps: Length of the runs in the figure.
        level: A fused loss; runs are compared by the steps that they need to get there.
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
        values, count, labels = dataclasses.asdict(self), len(self.scales), get_args(Label)
        sizes, positive = ("inputs", "hidden", "steps"), ("start", "lr", "penalty", "smoothing", "level")
        demand(
            "toy",
            *((values[name] >= 1, f"{name} should be at least one", values[name]) for name in sizes),
            (self.samples > self.inputs, f"samples should be more than inputs ({self.inputs})", self.samples),
            (count >= 2, "scales should name at least two modalities", self.scales),
            (all(0 < scale < math.inf for scale in self.scales), "scales should be above zero", self.scales),
            (len(self.coefficients) == count, f"coefficients should be as many as scales ({count})", self.coefficients),
            (self.label in labels, f"label should be one of {', '.join(labels)}", self.label),
            *((0 < values[key] < math.inf, f"{key} should be above zero and finite", values[key]) for key in positive),
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


# -- the data, and the condition on it --


class Correlations(NamedTuple):
    """C of the appendix, without subtracting means: C_jk, C_yk, and the mean of y²."""

    inputs: dict[tuple[str, str], Tensor]
    target: dict[str, Tensor]
    square: float


@final
@dataclass(frozen=True)
class ToyData:
    """Data of the problem.

    Args:
        inputs: An array [N, D] per modality.
        target: y, [N].
    """

    inputs: dict[str, Tensor]
    target: Tensor

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

    def solution(self, name: str) -> Tensor:
        """Solve least squares on one modality: w_k = C_k⁻¹ C_yk."""
        return torch.linalg.solve(self.correlations.inputs[name, name], self.correlations.target[name])


def generate(settings: ToySettings, seed: int) -> ToyData:
    """Draw data as the appendix says: every input a Gaussian of its modality's scale, the label their weighted sum.

    Example:
        >>> data = generate(ToySettings(), seed=0)
        >>> {name: tuple(x.shape) for name, x in data.inputs.items()}
        {'m1': (700, 50), 'm2': (700, 50)}
    """
    random = torch.Generator().manual_seed(seed)
    shape = (settings.samples, settings.inputs)
    inputs = {
        name: scale * torch.randn(shape, generator=random, dtype=torch.float64)
        for name, scale in zip(settings.names, settings.scales, strict=True)
    }
    parts = [weight * x for weight, x in zip(settings.coefficients, inputs.values(), strict=True)]
    vector = torch.stack(parts).sum(dim=0)
    reduce = {"sum": lambda v: v.sum(dim=1), "mean": lambda v: v.mean(dim=1), "first": lambda v: v[:, 0]}
    return ToyData(inputs, reduce[settings.label](vector))


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
        """True if the modality that is learnt first is not the most useful one."""
        return self.first != self.most_useful


def preference(data: ToyData) -> Preference:
    """Measure both sides of the appendix's condition."""
    columns = data.correlations.target.items()
    explained = {name: float(column @ data.solution(name)) for name, column in columns}
    return Preference({name: float(column.norm()) for name, column in columns}, explained)


class ConditionRate(NamedTuple):
    """The share of seeds in which the condition holds at a number of samples, and the mean of each ‖C_yk‖."""

    samples: int
    holds: float
    pull: dict[str, float]


def preference_by_samples(settings: ToySettings, counts: Iterable[int], seeds: Sequence[int]) -> list[ConditionRate]:
    """Measure the condition as the number of samples grows."""
    rows = []
    for count in counts:
        larger = dataclasses.replace(settings, samples=count)
        measured = [preference(generate(larger, seed)) for seed in seeds]
        pull = {name: sum(one.pull[name] for one in measured) / len(seeds) for name in settings.names}
        rows.append(ConditionRate(count, sum(one.superficial for one in measured) / len(seeds), pull))
    return rows


def samples_where_noise_ends(settings: ToySettings) -> float:
    """N at which E‖C_y1‖² falls to E‖C_y2‖², for two modalities and the "sum": beyond it the condition tends to fail.

    Each of the D entries of C_yk has mean a_k s_k² and variance (s_k² E[y²] + a_k² s_k⁴) / N, with a the coefficient
    and s the scale. For modality 1 of the paper the mean is 0.025, and the standard deviation at N = 700 is 0.67: its
    ‖C_y1‖ is sampling noise.

    Example:
        >>> round(samples_where_noise_ends(ToySettings()))
        5000
    """
    demand(
        "samples_where_noise_ends",
        (len(settings.scales) == 2, "scales should name two modalities", len(settings.scales)),
        (settings.label == "sum", "label should be 'sum'", settings.label),
    )
    (noise_1, mean_1), (noise_2, mean_2) = [
        (s**2 * settings.expected_square + a**2 * s**4, a**2 * s**4)
        for a, s in zip(settings.coefficients, settings.scales, strict=True)
    ]
    return (noise_1 - noise_2) / (mean_2 - mean_1)


# -- the model --


@final
class TwoLayer(nn.Module):
    """A linear encoder per modality, its part of the fused head, and its own head; no biases.

    The fused output is Σ_k ϑ_mm,kᵀ θ_kᵀ x_k, the output of modality k alone ϑ_kᵀ θ_kᵀ x_k.

    Args:
        settings: Sizes, and how close to zero weights start.
        seed: Of the weights; not that of the data, though the numbers may agree.
        names: The modalities; those of the settings by default.
    """

    encoders: nn.ParameterDict
    fused: nn.ParameterDict
    heads: nn.ParameterDict

    def __init__(self, settings: ToySettings, seed: int, names: Sequence[str] | None = None) -> None:
        super().__init__()
        random = torch.Generator().manual_seed(10_000 + seed)
        inputs, hidden = settings.inputs, settings.hidden
        shapes = {"encoders": (inputs, hidden), "fused": (hidden,), "heads": (hidden,)}
        for block, shape in shapes.items():
            # All are drawn even where few are kept, so that a modality starts alike with and without the others.
            drawn = {name: torch.randn(shape, generator=random, dtype=torch.float64) for name in settings.names}
            kept = {name: nn.Parameter(settings.start * drawn[name]) for name in names or settings.names}
            setattr(self, block, nn.ParameterDict(kept))


def losses(parameters: NamedTensors, data: ToyData) -> dict[str, Tensor]:
    """Compute the fused loss and one per modality, each the mean of (y − ŷ)²; parameters may have a batch dimension."""
    fused, alone = torch.zeros_like(data.target), {}
    for name, x in data.inputs.items():
        heads = torch.stack([parameters[f"fused.{name}"], parameters[f"heads.{name}"]], dim=-1)
        # θ_k times both heads first: two columns of D numbers are fewer than N rows of H features.
        shared, own = (x @ (parameters[f"encoders.{name}"] @ heads)).unbind(dim=-1)
        fused = fused + shared
        alone[name] = (data.target - own).square().mean(dim=-1)
    return {FUSED: (data.target - fused).square().mean(dim=-1), **alone}


# -- training --


class TrainingVariant(NamedTuple):
    """A way to train the toy.

    Args:
        title: Its name in figures and tables.
        make: Builds its balancer from the settings and f*.
        faster: The factor on its learning rate, from the settings.
    """

    title: str
    make: Callable[[ToySettings, dict[str, float]], Balancer]
    faster: Callable[[ToySettings], float] = lambda _: 1.0


VARIANTS = {
    "joint": TrainingVariant("joint training", lambda *_: MSL()),
    "mimo-exact": TrainingVariant("MIMO, f* exact", lambda s, optimum: MIMO(s.penalty, s.smoothing, optimum)),
    "mimo-zero": TrainingVariant("MIMO, f* = 0", lambda s, _: MIMO(s.penalty, s.smoothing)),
    "hard-exact": TrainingVariant("hard maximum, f* exact", lambda s, optimum: MIMO(s.penalty, 0.0, optimum)),
    "hard-zero": TrainingVariant("hard maximum, f* = 0", lambda s, _: MIMO(s.penalty, 0.0)),
    "ew": TrainingVariant("EW at λ/K", lambda s, _: EW(s.penalty / len(s.names))),
    "ew-full": TrainingVariant("EW at λ", lambda s, _: EW(s.penalty)),
    "primal-dual": TrainingVariant("PrimalDual, twin", lambda *_: PrimalDual("twin")),
    "primal-dual-exact": TrainingVariant("PrimalDual, f* exact", lambda _, optimum: PrimalDual(optimum)),
    "joint-faster": TrainingVariant("joint, rate × (1 + λ)", lambda *_: MSL(), lambda s: 1 + s.penalty),
}


TrainingState = tuple[TwoLayer, Balancer, dict[str, Tensor]]
"""The model, its balancer and the losses, with gradients in place."""


class Trace(NamedTuple):
    """Measurements during a run. Entry t is before step t, so entry 0 is the start.

    Args:
        fused: The fused loss.
        norms: ‖θ_k‖ per modality.
        weights: λσ_k, the weight of each uni-modal loss in its encoder; zero in joint training.
    """

    fused: Tensor
    norms: dict[str, Tensor]
    weights: dict[str, Tensor]

    def reached(self, level: float) -> int | None:
        """The first step after which the fused loss is at most ``level``; None if it never is."""
        below = (self.fused <= level).nonzero()
        return int(below[0]) if len(below) else None

    def learnt(self, name: str) -> int:
        """The step at which an encoder's norm is halfway from its start to the largest it has."""
        norm = self.norms[name]
        return int((norm >= (norm[0] + norm.max()) / 2).nonzero()[0])

    @property
    def diverged(self) -> bool:
        """True if the loss went out of bounds."""
        return not bool(self.fused[-1] < DIVERGED * self.fused[0])


def twin_losses(data: ToyData, settings: ToySettings, seed: int) -> Iterator[dict[str, Tensor]]:
    """Train every modality alone, on all samples, from a start of its own, without an end; yield the losses of steps.

    A batch is all of the data here. On a share of it f* would be that of other data.
    """
    model = TwoLayer(settings, seed + 1, list(data.inputs))
    optimizer = torch.optim.SGD([*model.encoders.values(), *model.heads.values()], lr=settings.lr)
    while True:
        values = losses(dict(model.named_parameters()), data)
        alone = {name: values[name] for name in data.inputs}
        yield {name: value.detach() for name, value in alone.items()}
        optimizer.zero_grad()
        torch.stack(list(alone.values())).sum().backward()
        optimizer.step()


def training_steps(data: ToyData, settings: ToySettings, variant: str, seed: int) -> Iterator[TrainingState]:
    """Train by gradient descent on all samples, without an end, through the balancer that any user would call.

    Yields:
        The state before each step.
    """
    chosen = VARIANTS[variant]
    model, balancer = TwoLayer(settings, seed, list(data.inputs)), chosen.make(settings, data.optimum)
    optimizer = torch.optim.SGD(model.parameters(), lr=settings.lr * chosen.faster(settings))
    if balancer.needs.learns_from_own:
        balancer.attach(model, encoders={name: model.encoders[name] for name in data.inputs})
    twin = twin_losses(data, settings, seed)
    while True:
        if isinstance(balancer, OptimumWeighting) and balancer.source == "twin":
            balancer.track(next(twin))
        values = losses(dict(model.named_parameters()), data)
        optimizer.zero_grad()
        # The model of joint training has no heads of its own for modalities.
        balancer(values if balancer.needs.losses else {FUSED: values[FUSED]}).backward()
        yield model, balancer, values
        optimizer.step()


def run(
    data: ToyData, settings: ToySettings, variant: str, seed: int = 0, steps: int | None = None, until: float = 0.0
) -> Trace:
    """Train, and record losses, norms and weights.

    Args:
        data: All modalities, or one of them.
        settings: Learning rate, λ, μ, and the start.
        variant: One of `VARIANTS`.
        seed: Of the weights at the start.
        steps: Length of the run; that of the settings by default.
        until: Stop when the fused loss is at most this.
    """
    fused, norms, weights = [], [], []
    length = 1 + (settings.steps if steps is None else steps)
    for model, balancer, values in islice(training_steps(data, settings, variant, seed), length):
        fused.append(values[FUSED].detach())
        norms.append(torch.stack([encoder.detach().norm() for encoder in model.encoders.values()]))
        table = balancer.table.values[1:].double()
        weights.append(table.diagonal() if len(table) else torch.zeros(len(data.inputs), dtype=torch.float64))
        value = float(fused[-1])
        if value <= until or not value < DIVERGED * float(fused[0]):
            break
    by_name = [dict(zip(data.inputs, torch.stack(part).unbind(dim=1), strict=True)) for part in (norms, weights)]
    return Trace(torch.stack(fused), *by_name)


class Manifold(NamedTuple):
    """The stationary points M_k of joint training at which modality k is learnt and the others are zero.

    Args:
        loss: f_mm(M_k).
        predicted: t_k in steps, from the exponential growth near zero.
        measured: t_k in steps: nine tenths of the way from the start to f_mm(M_k), the others held at zero.
    """

    loss: float
    predicted: float
    measured: int | None


def manifolds(data: ToyData, settings: ToySettings, seed: int) -> dict[str, Manifold]:
    """Measure and predict the paper's t_mk and f_mm(M_mk).

    Near zero the product θ_k ϑ_mm,k grows along C_yk, by the factor 1 + 2η‖C_yk‖ a step in each of its two parts, from
    what the start holds of that direction to the size that the least-squares solution w_k needs, √‖w_k‖ in each.
    """
    start, places = TwoLayer(settings, seed), {}
    for name, column in data.correlations.target.items():
        along = start.encoders[name].detach().T @ (column / column.norm())
        size = float((along + start.fused[name].detach()).norm() / 2)
        growth = math.log1p(2 * settings.lr * float(column.norm()))
        predicted = max(0.0, math.log(math.sqrt(float(data.solution(name).norm())) / size) / growth)
        loss = data.optimum[name]
        target = loss + 0.1 * (data.correlations.square - loss)
        alone = ToyData({name: data.inputs[name]}, data.target)  # as if the others were held at zero
        trace = run(alone, settings, "joint", seed, steps=round(4 * predicted) + 100, until=target)
        places[name] = Manifold(loss, predicted, trace.reached(target))
    return places


def steps_to_level(data: ToyData, settings: ToySettings, seed: int, variants: Iterable[str]) -> dict[str, int | None]:
    """Count the steps of each way of training to the level of the settings; None where it does not get there."""
    level, most = settings.level, 20 * settings.steps
    return {name: run(data, settings, name, seed, steps=most, until=level).reached(level) for name in variants}
