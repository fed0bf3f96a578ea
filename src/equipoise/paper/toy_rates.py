"""How fast the hard and the smooth maximum converge, measured where the maximum has a kink at the solution."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from equipoise.balance.table import FUSED
from equipoise.paper.toy_conflict import Conflict
from equipoise.paper.toy_model import losses

RATES = tuple(10 ** (-4 + 0.25 * each) for each in range(11))  # 1e-4 … 3e-2; the largest diverge
SMOOTHINGS = (1e-2, 1e-3, 3e-4, 1e-4, 3e-5, 1e-5)
ACCURACIES = (1e-1, 1e-2, 3e-3, 1e-3, 3e-4)
VARIANTS = {
    "hard": "hard maximum, fixed step",
    "decaying": "hard maximum, step ∝ 1/√t",
    "smooth": "smooth maximum, fixed step",
}


class Convergence(NamedTuple):
    """What a way to treat the maximum needs, with its step (and μ) tuned for each accuracy.

    Args:
        steps: Per accuracy δ the fewest steps after which F − F* stays within δ; None where no setting gets there.
        exponent: p in steps ∝ δ^−p over the accuracies from 1e-2 on, by least squares; nan where fewer than two were
            reached.
        floors: Per learning rate the largest F − F* in the last quarter of the run, with the smallest μ there is.
    """

    steps: dict[float, int | None]
    exponent: float
    floors: dict[float, float]


def convergence(conflict: Conflict, penalty: float = 10.0, steps: int = 2500, seed: int = 0) -> dict[str, Convergence]:
    """Gradient descent on f_mm + λ max_k (f_k − f*_k), all variants and settings side by side.

    F is the objective with the hard maximum for all of them, F* its least value by `Conflict.penalised`.

    Args:
        conflict: A problem whose solution lies on the kink.
        penalty: λ.
        steps: Length of the runs.
        seed: Of the start.
    """
    settings = [
        *(("hard", 0.0, rate) for rate in RATES),
        *(("decaying", 0.0, 10 * rate) for rate in RATES),
        *(("smooth", smoothing, rate) for smoothing, rate in itertools.product(SMOOTHINGS, RATES)),
    ]
    solution = conflict.penalised(penalty)
    excess = _descend(conflict, penalty, settings, steps, seed) - (solution.fused + penalty * solution.worst)
    found = {}
    for variant in VARIANTS:
        own = [at for at, setting in enumerate(settings) if setting[0] == variant]
        needed = {accuracy: _settled(excess[:, own], accuracy) for accuracy in ACCURACIES}
        sharpest = own[-len(RATES) :]
        floors = excess[-steps // 4 :, sharpest].amax(dim=0).tolist()
        rates = [settings[at][2] for at in sharpest]
        found[variant] = Convergence(needed, _exponent(needed), dict(zip(rates, floors, strict=True)))
    return found


def _descend(
    conflict: Conflict, penalty: float, settings: Sequence[tuple[str, float, float]], steps: int, seed: int
) -> Tensor:
    """F of every run before every step, [steps, runs]."""
    toy, runs = conflict.toy, len(settings)
    random = torch.Generator().manual_seed(seed)
    optimum = torch.tensor([toy.optimum[name] for name in toy.inputs], dtype=torch.float64)
    parameters = {}
    for name, x in toy.inputs.items():
        for block, shape in (("encoders", (x.shape[1], 1)), ("fused", (1,)), ("heads", (1,))):
            start = 0.3 * torch.randn(shape, generator=random, dtype=torch.float64)
            parameters[f"{block}.{name}"] = start.expand(runs, *shape).clone().requires_grad_()
    smoothing = torch.tensor([each[1] for each in settings], dtype=torch.float64)
    rates = torch.tensor([each[2] for each in settings], dtype=torch.float64)
    decaying = torch.tensor([each[0] == "decaying" for each in settings])
    values = []
    for step in range(steps):
        found = losses(parameters, toy)
        gaps = torch.stack([found[name] for name in toy.inputs], dim=-1) - optimum
        hard = gaps.amax(dim=-1)
        width = smoothing.clamp(min=1e-12)
        smooth = width * torch.logsumexp(gaps / width[:, None], dim=-1)
        objective = found[FUSED] + penalty * torch.where(smoothing > 0, smooth, hard)
        values.append((found[FUSED] + penalty * hard).detach())
        gradients = torch.autograd.grad(objective.sum(), list(parameters.values()))
        rate = torch.where(decaying, rates / math.sqrt(step + 1), rates)
        with torch.no_grad():
            for parameter, gradient in zip(parameters.values(), gradients, strict=True):
                parameter -= rate.reshape(-1, *[1] * (gradient.dim() - 1)) * gradient
    return torch.stack(values).nan_to_num(nan=math.inf)


def _settled(excess: Tensor, accuracy: float) -> int | None:
    """The fewest steps after which one of the runs stays within the accuracy to its end."""
    above = excess > accuracy
    last = torch.where(above.any(dim=0), len(excess) - above.flip(0).int().argmax(dim=0), 0)
    fewest = int(last.min())
    # A run that gets there only in its last quarter has not shown that it stays.
    return fewest if fewest <= 3 * len(excess) // 4 else None


def _exponent(needed: dict[float, int | None]) -> float:
    fine = {accuracy: steps for accuracy, steps in needed.items() if accuracy <= 1e-2 and steps}
    if len(fine) < 2:
        return math.nan
    points = [(math.log(1 / accuracy), math.log(steps)) for accuracy, steps in fine.items()]
    x, y = (torch.tensor(each, dtype=torch.float64) for each in zip(*points, strict=True))
    return float(((x - x.mean()) * (y - y.mean())).sum() / (x - x.mean()).square().sum())
