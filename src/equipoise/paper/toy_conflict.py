"""The lexicographic problem, its ε-relaxation and the penalty, solved directly where the objectives really conflict."""

from __future__ import annotations

import math
from typing import NamedTuple, final

import torch
from torch import Tensor

from equipoise.paper.toy import Toy


def draw_correlated(seed: int, modalities: int = 2, inputs: int = 3, samples: int = 60, shared: float = 0.6) -> Toy:
    """Modalities that share a part of their variance, and a label to which each adds.

    Args:
        seed: Of everything.
        modalities: K.
        inputs: D, for each of them.
        samples: N.
        shared: The share of variance that all modalities have in common.
    """
    random = torch.Generator().manual_seed(seed)

    def gaussian(*shape: int) -> Tensor:
        return torch.randn(shape, generator=random, dtype=torch.float64)

    common, found = gaussian(samples, inputs), {}
    for number in range(1, modalities + 1):
        turned = common @ torch.linalg.qr(gaussian(inputs, inputs)).Q
        found[f"m{number}"] = math.sqrt(shared) * turned + math.sqrt(1 - shared) * gaussian(samples, inputs)
    target = torch.stack([x @ gaussian(inputs) for x in found.values()]).sum(dim=0)
    return Toy(found, target)


class Solution(NamedTuple):
    """A point that solves one of the three problems.

    Args:
        fused: f_mm there.
        gaps: f_k − f*_k there.
        multipliers: What each constraint, or each modality under the penalty, weighs; lexicographically infinite.
        offset: Where encoders stand, relative to the best of each modality.
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
        toy: The data, with correlated modalities.
    """

    def __init__(self, toy: Toy) -> None:
        self.toy, self.names = toy, list(toy.inputs)
        found = toy.correlations
        self._best = [torch.linalg.solve(found.inputs[name, name], found.target[name]) for name in self.names]
        self._bases = [torch.linalg.svd(best[None, :]).Vh[1:].T for best in self._best]
        self.count = sum(basis.shape[1] for basis in self._bases)

    def encoders(self, offset: Tensor) -> list[Tensor]:
        """θ_k, one vector per modality."""
        parts = offset.split([basis.shape[1] for basis in self._bases])
        return [w + basis @ part for w, basis, part in zip(self._best, self._bases, parts, strict=True)]

    def gaps(self, offset: Tensor) -> Tensor:
        """f_k − f*_k with the best head s: (w_k − s θ_k)ᵀ C_k (w_k − s θ_k).

        No difference of two large numbers is taken, so that tiny gaps are exact.
        """
        found = []
        for name, best, encoder in zip(self.names, self._best, self.encoders(offset), strict=True):
            inputs = self.toy.correlations.inputs[name, name]
            rest = best - (encoder @ inputs @ best) / (encoder @ inputs @ encoder) * encoder
            found.append(rest @ inputs @ rest)
        return torch.stack(found)

    def fused(self, offset: Tensor) -> Tensor:
        """f_mm with the best fused head."""
        correlations, encoders = self.toy.correlations, dict(zip(self.names, self.encoders(offset), strict=True))
        gram = torch.stack(
            [torch.stack([encoders[a] @ correlations.inputs[a, b] @ encoders[b] for b in encoders]) for a in encoders]
        )
        target = torch.stack([encoders[name] @ correlations.target[name] for name in encoders])
        return correlations.square - target @ torch.linalg.solve(gram, target)

    def strengths(self) -> Tensor:
        """How hard the fused loss pulls each modality from its best: s_k = √(g_kᵀ H_k⁻¹ g_k).

        g_k is the gradient of f_mm and H_k the Hessian of gap_k, at z_k = 0. For large λ they say everything: the worst
        gap is (Σ s_k)² / (2λ²), and modality k weighs λ s_k / Σ s_j.
        """
        return torch.stack([(pull @ step).sqrt() for pull, step in self._pulls()])

    def predicted_gap(self, penalty: float) -> float:
        """The worst gap under a large penalty λ, to first order in 1/λ²."""
        return float(self.strengths().sum() / penalty) ** 2 / 2

    # -- the three problems --

    def lexicographic(self) -> Solution:
        """Minimise f_mm among all that minimise max_k (f_k − f*_k).

        Modalities share no parameters, so all gaps can be zero at once, and only z = 0 is left. The maximum has no part
        in this: the sum of the gaps has the same minimisers.
        """
        nowhere = torch.zeros(self.count, dtype=torch.float64)
        return self._solution(nowhere, torch.full((len(self.names),), math.inf, dtype=torch.float64))

    def relaxed(self, slack: float) -> Solution:
        """Minimise f_mm subject to max_k (f_k − f*_k) ≤ ε, the ``slack``."""
        return self._newton(math.sqrt(2 * slack) / self.strengths(), slack, None)

    def penalised(self, penalty: float) -> Solution:
        """Minimise f_mm + λ max_k (f_k − f*_k), λ being the ``penalty``."""
        strengths = self.strengths()
        share = strengths.sum() / penalty / strengths
        return self._newton(share, self.predicted_gap(penalty), penalty)

    # -- how they are solved --

    def _newton(self, share: Tensor, gap: float, penalty: float | None) -> Solution:
        """Newton's method on the conditions of Karush, Kuhn and Tucker, with the gaps of all modalities at their limit.

        Unknowns are the offset z and the multipliers ν with ∇f_mm + Σ_k ν_k ∇gap_k = 0 and gap_k = t; under a penalty
        also t, with Σ_k ν_k = λ. The first guess is what is exact for small gaps: z_k = −H_k⁻¹ g_k / ν_k.
        """
        offset = torch.cat([-part * step for part, (_, step) in zip(share, self._pulls(), strict=True)])
        multipliers, level = 1 / share, torch.tensor(gap, dtype=torch.float64)
        count, modalities = self.count, len(self.names)
        for _ in range(50):
            slopes = _jacobian(self.gaps, offset)
            bend = _hessian(lambda z, held=multipliers: self.fused(z) + held @ self.gaps(z), offset)
            system = torch.zeros(count + modalities + 1, count + modalities + 1, dtype=torch.float64)
            system[:count, :count], system[:count, count:-1], system[count:-1, :count] = bend, slopes.T, slopes
            # The last unknown is t. Under a penalty the multipliers sum to λ; else t stays as it is.
            system[count:-1, -1] = -1.0 if penalty is not None else 0.0
            system[-1, count:-1], system[-1, -1] = (1.0, 0.0) if penalty is not None else (0.0, 1.0)
            spare = multipliers.sum() - penalty if penalty is not None else torch.zeros(())
            stationary = _jacobian(self.fused, offset) + multipliers @ slopes
            wrong = torch.cat([stationary, self.gaps(offset) - level, spare.reshape(1)])
            change = torch.linalg.solve(system, -wrong)
            offset, multipliers, level = offset + change[:count], multipliers + change[count:-1], level + change[-1]
            if change[:count].norm() <= 1e-13 * (1 + offset.norm()):
                break
        if not (multipliers > 0).all() or not torch.linalg.eigvalsh(bend)[0] > 0:
            msg = (
                "conflict: expected a minimum at which the gaps of all modalities are equal, found multipliers "
                f"{[round(each, 4) for each in multipliers.tolist()]}; take a larger penalty, or a smaller slack"
            )
            raise ValueError(msg)
        return self._solution(offset, multipliers)

    def _pulls(self) -> list[tuple[Tensor, Tensor]]:
        """Per modality g_k, and H_k⁻¹ g_k."""
        nowhere = torch.zeros(self.count, dtype=torch.float64)
        sizes = [basis.shape[1] for basis in self._bases]
        pulls = _jacobian(self.fused, nowhere).split(sizes)
        bends = _hessian(lambda z: self.gaps(z).sum(), nowhere)  # block by block: gap_k depends on z_k alone
        ends = torch.tensor([0, *sizes]).cumsum(dim=0).tolist()
        return [
            (pull, torch.linalg.solve(bends[low:high, low:high], pull))
            for pull, low, high in zip(pulls, ends, ends[1:], strict=False)
        ]

    def _solution(self, offset: Tensor, multipliers: Tensor) -> Solution:
        return Solution(float(self.fused(offset)), self.gaps(offset).tolist(), multipliers.tolist(), offset)


def slope(penalties: list[float], gaps: list[float]) -> float:
    """The slope of log gap over log λ, by least squares. Theorem 1 says −2."""
    x, y = (torch.tensor(each, dtype=torch.float64).log() for each in (penalties, gaps))
    return float(((x - x.mean()) * (y - y.mean())).sum() / (x - x.mean()).square().sum())


def _jacobian(function: object, point: Tensor) -> Tensor:
    found = torch.autograd.functional.jacobian(function, point)
    assert isinstance(found, Tensor)
    return found


def _hessian(function: object, point: Tensor) -> Tensor:
    found = torch.autograd.functional.hessian(function, point)
    assert isinstance(found, Tensor)
    return found
