"""Theorem 1 and rates of convergence, on a problem whose objectives conflict.

The lexicographic problem, its ε-relaxation and the penalty are solved directly; the hard and the smooth maximum are
minimised where the maximum has a kink at the solution.
"""

import itertools
import math
from collections.abc import Sequence
from statistics import linear_regression
from typing import NamedTuple, final

import torch
from torch import Tensor
from torch.autograd.functional import hessian, jacobian

from equipoise.paper.toy import ToyData, losses

SHARED = 0.6  # of the variance, that all modalities have in common
RATES = tuple(10 ** (-4 + 0.25 * number) for number in range(11))  # 1e-4 … 3e-2; the largest diverge
SMOOTHINGS = (1e-2, 1e-3, 3e-4, 1e-4, 3e-5, 1e-5)
ACCURACIES = (1e-1, 1e-2, 3e-3, 1e-3, 3e-4)
MAXIMA = {
    "hard": "hard maximum, fixed step",
    "decaying": "hard maximum, step ∝ 1/√t",
    "smooth": "smooth maximum, fixed step",
}


def generate_correlated(seed: int, modalities: int = 2, inputs: int = 3, samples: int = 60) -> ToyData:
    """Draw modalities that share a part of their variance, and a label to which each adds.

    Args:
        seed: Of everything.
        modalities: K.
        inputs: D, for each of them.
        samples: N.
    """
    random = torch.Generator().manual_seed(seed)

    def gaussian(*shape: int) -> Tensor:
        return torch.randn(shape, generator=random, dtype=torch.float64)

    common, arrays = gaussian(samples, inputs), {}
    for number in range(1, modalities + 1):
        turned = common @ torch.linalg.qr(gaussian(inputs, inputs)).Q
        arrays[f"m{number}"] = math.sqrt(SHARED) * turned + math.sqrt(1 - SHARED) * gaussian(samples, inputs)
    return ToyData(arrays, torch.stack([x @ gaussian(inputs) for x in arrays.values()]).sum(dim=0))


class ConflictSolution(NamedTuple):
    """A point that solves the lexicographic, the relaxed or the penalised problem.

    Args:
        fused: f_mm there.
        gaps: f_k − f*_k there.
        multipliers: The weight of each constraint, or of each modality under the penalty; lexicographically infinite.
        offset: The encoders, relative to the best of each modality.
    """

    fused: float
    gaps: list[float]
    multipliers: list[float]
    offset: Tensor

    @property
    def worst(self) -> float:
        """max_k (f_k − f*_k)."""
        return max(self.gaps)


@final
class Conflict:
    """Encoders of width one: a modality shows one number of itself, and the best one alone is not the best fused.

    Heads are no unknowns: for given encoders the best ones are least squares. Of an encoder only its direction counts,
    so it is written as w_k + B_k z_k, with w_k the best for modality k alone, B_k an orthonormal basis of what is
    perpendicular to it, and z_k its offset. All gaps are zero at z = 0, and only there.

    Args:
        data: The data, with correlated modalities.
    """

    def __init__(self, data: ToyData) -> None:
        self.data, self.names = data, list(data.inputs)
        self._best = [data.solution(name) for name in self.names]
        self._bases = [torch.linalg.svd(best[None, :]).Vh[1:].T for best in self._best]
        self._sizes = [basis.shape[1] for basis in self._bases]
        self._zero = torch.zeros(sum(self._sizes), dtype=torch.float64)

    def encoders(self, offset: Tensor) -> list[Tensor]:
        """θ_k, one vector per modality."""
        parts = zip(self._best, self._bases, offset.split(self._sizes), strict=True)
        return [best + basis @ part for best, basis, part in parts]

    def gaps(self, offset: Tensor) -> Tensor:
        """f_k − f*_k with the best head s: (w_k − s θ_k)ᵀ C_k (w_k − s θ_k).

        No difference of two large numbers is taken, so that tiny gaps are exact.
        """
        gaps = []
        for name, best, encoder in zip(self.names, self._best, self.encoders(offset), strict=True):
            inputs = self.data.correlations.inputs[name, name]
            rest = best - (encoder @ inputs @ best) / (encoder @ inputs @ encoder) * encoder
            gaps.append(rest @ inputs @ rest)
        return torch.stack(gaps)

    def fused(self, offset: Tensor) -> Tensor:
        """f_mm with the best fused head."""
        correlations, encoders = self.data.correlations, dict(zip(self.names, self.encoders(offset), strict=True))
        rows = [[encoders[a] @ correlations.inputs[a, b] @ encoders[b] for b in encoders] for a in encoders]
        gram = torch.stack([torch.stack(row) for row in rows])
        target = torch.stack([encoders[name] @ correlations.target[name] for name in encoders])
        return correlations.square - target @ torch.linalg.solve(gram, target)

    def strengths(self) -> Tensor:
        """The strength with which the fused loss pulls each modality from its best: s_k = √(g_kᵀ H_k⁻¹ g_k).

        g_k is the gradient of f_mm and H_k the Hessian of gap_k, at z_k = 0. For large λ they say everything: the worst
        gap is (Σ s_k)² / (2λ²), and modality k weighs λ s_k / Σ s_j.
        """
        return torch.stack([(pull @ step).sqrt() for pull, step in self._pulls()])

    def predicted_gap(self, penalty: float) -> float:
        """The worst gap under a large penalty λ, to first order in 1/λ²."""
        return float(self.strengths().sum() / penalty) ** 2 / 2

    def lexicographic(self) -> ConflictSolution:
        """Minimise f_mm among all that minimise max_k (f_k − f*_k).

        Modalities share no parameters, so all gaps can be zero at once, and only z = 0 is left. The maximum has no part
        in this: the sum of the gaps has the same minimisers.
        """
        return self._solution(self._zero, torch.full((len(self.names),), math.inf, dtype=torch.float64))

    def relaxed(self, slack: float) -> ConflictSolution:
        """Minimise f_mm subject to max_k (f_k − f*_k) ≤ ε, the ``slack``."""
        return self._newton(math.sqrt(2 * slack) / self.strengths(), slack, None)

    def penalised(self, penalty: float) -> ConflictSolution:
        """Minimise f_mm + λ max_k (f_k − f*_k), λ being the ``penalty``."""
        strengths = self.strengths()
        return self._newton(strengths.sum() / penalty / strengths, self.predicted_gap(penalty), penalty)

    def _newton(self, share: Tensor, gap: float, penalty: float | None) -> ConflictSolution:
        """Newton's method on the conditions of Karush, Kuhn and Tucker, with the gaps of all modalities at their limit.

        Unknowns are the offset z and the multipliers ν with ∇f_mm + Σ_k ν_k ∇gap_k = 0 and gap_k = t; under a penalty
        also t, with Σ_k ν_k = λ. The first guess is what is exact for small gaps: z_k = −H_k⁻¹ g_k / ν_k.
        """
        offset = torch.cat([-part * step for part, (_, step) in zip(share, self._pulls(), strict=True)])
        multipliers, level = 1 / share, torch.tensor(gap, dtype=torch.float64)
        count, size = len(offset), len(offset) + len(self.names) + 1
        for _ in range(50):
            slopes = jacobian(self.gaps, offset)
            bend = hessian(lambda z, held=multipliers: self.fused(z) + held @ self.gaps(z), offset)
            system = torch.zeros(size, size, dtype=torch.float64)
            system[:count, :count], system[:count, count:-1], system[count:-1, :count] = bend, slopes.T, slopes
            # The last unknown is t. Under a penalty the multipliers sum to λ; else t stays as it is.
            system[count:-1, -1] = -1.0 if penalty is not None else 0.0
            system[-1, count:-1], system[-1, -1] = (1.0, 0.0) if penalty is not None else (0.0, 1.0)
            spare = multipliers.sum() - penalty if penalty is not None else torch.zeros(())
            stationary = jacobian(self.fused, offset) + multipliers @ slopes
            residual = torch.cat([stationary, self.gaps(offset) - level, spare.reshape(1)])
            change = torch.linalg.solve(system, -residual)
            offset, multipliers, level = offset + change[:count], multipliers + change[count:-1], level + change[-1]
            if change[:count].norm() <= 1e-13 * (1 + offset.norm()):
                break
        if not (multipliers > 0).all() or not torch.linalg.eigvalsh(bend)[0] > 0:
            msg = (
                "conflict: expected a minimum at which the gaps of all modalities are equal, found multipliers "
                f"{[round(value, 4) for value in multipliers.tolist()]}; take a larger penalty, or a smaller slack"
            )
            raise ValueError(msg)
        return self._solution(offset, multipliers)

    def _pulls(self) -> list[tuple[Tensor, Tensor]]:
        """Per modality g_k, and H_k⁻¹ g_k."""
        pulls = jacobian(self.fused, self._zero).split(self._sizes)
        bends = hessian(lambda z: self.gaps(z).sum(), self._zero)  # block by block: gap_k depends on z_k alone
        blocks = [rows.split(self._sizes, dim=1)[at] for at, rows in enumerate(bends.split(self._sizes))]
        return [(pull, torch.linalg.solve(block, pull)) for pull, block in zip(pulls, blocks, strict=True)]

    def _solution(self, offset: Tensor, multipliers: Tensor) -> ConflictSolution:
        return ConflictSolution(float(self.fused(offset)), self.gaps(offset).tolist(), multipliers.tolist(), offset)


def log_slope(x: Sequence[float], y: Sequence[float]) -> float:
    """Fit the slope of log y over log x by least squares; for the worst gap over λ, Theorem 1 says −2."""
    return linear_regression([math.log(value) for value in x], [math.log(value) for value in y]).slope


# -- rates of convergence of the hard and the smooth maximum --


Setting = tuple[str, float, float]
"""One of `MAXIMA`, its μ, and a learning rate."""


class Convergence(NamedTuple):
    """The steps that a form of the maximum needs, with its learning rate (and μ) tuned for each accuracy.

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
    """Minimise f_mm + λ max_k (f_k − f*_k) by gradient descent, all maxima and settings side by side.

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
    solution, results = conflict.penalised(penalty), {}
    excess = _descend(conflict.data, penalty, settings, steps, seed) - (solution.fused + penalty * solution.worst)
    for maximum in MAXIMA:
        own = [at for at, setting in enumerate(settings) if setting[0] == maximum]
        needed = {accuracy: _settled(excess[:, own], accuracy) for accuracy in ACCURACIES}
        fine = {1 / accuracy: count for accuracy, count in needed.items() if accuracy <= 1e-2 and count}
        exponent = log_slope(list(fine), list(fine.values())) if len(fine) > 1 else math.nan
        sharpest = own[-len(RATES) :]
        floors = excess[-steps // 4 :, sharpest].amax(dim=0).tolist()
        by_rate = {settings[at][2]: floor for at, floor in zip(sharpest, floors, strict=True)}
        results[maximum] = Convergence(needed, exponent, by_rate)
    return results


def _descend(data: ToyData, penalty: float, settings: Sequence[Setting], steps: int, seed: int) -> Tensor:
    """F of every run before every step, [steps, runs]."""
    random = torch.Generator().manual_seed(seed)
    optimum = torch.tensor([data.optimum[name] for name in data.inputs], dtype=torch.float64)
    parameters = {}
    for name, x in data.inputs.items():
        for block, shape in (("encoders", (x.shape[1], 1)), ("fused", (1,)), ("heads", (1,))):
            start = 0.3 * torch.randn(shape, generator=random, dtype=torch.float64)
            parameters[f"{block}.{name}"] = start.expand(len(settings), *shape).clone().requires_grad_()
    smoothing, rates = (torch.tensor([one[at] for one in settings], dtype=torch.float64) for at in (1, 2))
    decaying = torch.tensor([one[0] == "decaying" for one in settings])
    width, values = smoothing.clamp(min=1e-12), []
    for step in range(steps):
        fused, *unimodal = losses(parameters, data).values()
        gaps = torch.stack(unimodal, dim=-1) - optimum
        hard = gaps.amax(dim=-1)
        smooth = width * torch.logsumexp(gaps / width[:, None], dim=-1)
        objective = fused + penalty * torch.where(smoothing > 0, smooth, hard)
        values.append((fused + penalty * hard).detach())
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
