"""What the monitor looks at: three statistics of each head, their running averages, and where healthy ones lie.

- movement: log of the mean |log p_t − log p_{t−1}| over classes. A dead sensor stands still, a noisy one jumps.
- sharpness: log of the root mean square of log p around its mean over classes: the head's own confidence.
- disagreement: −log Σ_c p(c) q(c) with q the mean of the other heads' probabilities.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

MOVEMENT, DISAGREEMENT = 0, 2  # their places among the three
TAIL = 0.01  # of a healthy stream's averages lies beyond a limit, on either side
STILL, CERTAIN = 1e-4, 1e-9  # below these, movement and agreement are as good as none
STUDENT = (6.314, 2.920, 2.353, 2.132, 2.015, 1.943, 1.895, 1.860, 1.833, 1.812, 1.796, 1.782, 1.771, 1.761, 1.753)
"""Student's t at 95 %, one-sided, for 1 to 15 degrees of freedom; more have nearly the last."""

NARROWEST = 1e-3  # a statistic that never varies has limits all the same


@final
@dataclass(frozen=True, eq=False)
class Limits:
    """Where healthy averages lie.

    Args:
        centre: Their medians, [K, 3].
        below: How far below that they go, [K, 3].
        above: How far above, [K, 3].
    """

    centre: Tensor
    below: Tensor
    above: Tensor

    def levels(self, average: Tensor) -> Tensor:
        """How far averages [..., K, 3] are from the centre, in units of the limits, [..., K, 5].

        Below for movement and sharpness, then above for all three: to agree is never odd.
        """
        far = average - self.centre
        below = (-far / self.below)[..., :DISAGREEMENT]
        return torch.cat([below, far / self.above], dim=-1).clamp(min=0)

    def of_standstill(self, windows: int, memory: float) -> float:
        """The level of movement that every head reaches which says the same for so many windows."""
        reached = 1 - (1 - memory) ** windows
        return float((reached * (self.centre[:, MOVEMENT] - math.log(STILL)) / self.below[:, MOVEMENT]).min())

    @classmethod
    def of(cls, streams: Sequence[Tensor]) -> Limits:
        """Around the median of all, the farthest 1 % and 99 % quantiles of any one stream [N, K, 3]."""
        centre = torch.cat(list(streams)).quantile(0.5, dim=0)
        edges = torch.stack([each.quantile(torch.tensor([TAIL, 1 - TAIL]), dim=0) for each in streams])
        lowest, highest = edges[:, 0].amin(dim=0), edges[:, 1].amax(dim=0)
        return cls(centre, (centre - lowest).clamp(min=NARROWEST), (highest - centre).clamp(min=NARROWEST))


def bound_for_the_next(needs: Tensor) -> Tensor:
    """What one more stream will not need, with a confidence of 95 %, given what n have needed, [n, charts] → [charts].

    The one-sided prediction bound of a log-normal law: exp(mean + t · s · √(1 + 1/n)) over the logs of the needs. Few
    streams may agree by chance, so s² is the mean of a chart's own variance and that of all charts, with twice the
    degrees of freedom. A single stream shows no spread, and gets a factor of two.
    """
    logs, count = needs.clamp(min=NARROWEST).log(), len(needs)
    if count == 1:
        return 2 * needs[0]
    own = logs.var(dim=0)
    spread = ((own + own.mean()) / 2).sqrt()
    quantile = STUDENT[min(2 * (count - 1), len(STUDENT)) - 1]
    return (logs.mean(dim=0) + quantile * spread * math.sqrt(1 + 1 / count)).exp()


def statistics(logs: Tensor, last: Tensor, there: Tensor, seen: Tensor) -> tuple[Tensor, Tensor]:
    """The three statistics of each head, and which of them can be told, [S, K, 3] both."""
    movement = ((logs - last).abs().mean(dim=2) + STILL).log()
    spread = logs - logs.mean(dim=2, keepdim=True)
    sharpness = (spread.square().mean(dim=2).sqrt() + STILL).log()
    votes = logs.exp() * there.unsqueeze(2)
    others = there.sum(dim=1, keepdim=True) - there.long()
    rest = (votes.sum(dim=1, keepdim=True) - votes) / others.clamp(min=1).unsqueeze(2)
    disagreement = -((logs.exp() * rest).sum(dim=2) + CERTAIN).log()
    found = torch.stack([movement, sharpness, disagreement], dim=2)
    return found, torch.stack([there & seen, there, there & (others > 0)], dim=2)


def averaged(logs: Tensor, memory: float, start: Tensor | None = None) -> Tensor:
    """The running averages along one stream, [N, K, 3], from its own first window or from a centre on."""
    there = torch.ones(logs.shape[:2], dtype=torch.bool)
    found, _ = statistics(logs, torch.cat([logs[1:2], logs[:-1]]), there, there)
    average = found[0] if start is None else start
    averages = []
    for each in found:
        average = average + memory * (each - average)
        averages.append(average)
    return torch.stack(averages)
