"""The diagnosis of an imbalance: joint training against uni-modal training, measured alike."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import mean, stdev
from typing import Any, Literal, NamedTuple

from scipy.special import stdtrit

from equipoise.study.job import finite

WORTH = 0.02
"""A loss of two points is worth treating; less is not."""


class Gap(NamedTuple):
    """The accuracy that a modality loses in joint training.

    Args:
        modality: Its name.
        alone: Its accuracy when trained alone.
        joint: Its accuracy after joint training.
        low: Lower end of the 95 % interval of the difference; minus infinity from a single run.
        high: Upper end.
    """

    modality: str
    alone: float
    joint: float
    low: float
    high: float

    @property
    def difference(self) -> float:
        """Points lost."""
        return self.alone - self.joint

    def as_dict(self) -> dict[str, Any]:
        """Return it for JSON, which has no infinity: an end that a single run cannot tell is None."""
        return finite({**self._asdict(), "difference": self.difference})


class Diagnosis(NamedTuple):
    """The answer, and the gaps that it rests on.

    Args:
        answer: Whether there is an imbalance worth treating.
        gaps: One per modality.
        advice: What to try.
    """

    answer: Literal["yes", "no", "unclear"]
    gaps: list[Gap]
    advice: str


def diagnose(joint: Sequence[dict[str, Any]], alone: Sequence[dict[str, Any]]) -> Diagnosis:
    """Compare rows of joint training with rows of uni-modal training, by the probe protocol, on the same splits.

    Args:
        joint: Rows of method msl.
        alone: Rows of method unimodal, in the same order.
    """
    gaps = []
    for name in joint[0]["test"]["probe"]:
        single, together = ([row["test"]["probe"][name] for row in rows] for rows in (alone, joint))
        low, high = _interval([one - other for one, other in zip(single, together, strict=True)])
        gaps.append(Gap(name, mean(single), mean(together), low, high))
    worst = max(gaps, key=lambda gap: gap.difference)
    if worst.low > 0 and worst.difference >= WORTH:
        advice = f"joint training neglects {worst.modality}: try mimo, then compare with ew and mmpareto on your folds"
        return Diagnosis("yes", gaps, advice)
    if all(gap.high < WORTH for gap in gaps):
        return Diagnosis("no", gaps, "every sensor is used about as well as alone: keep joint training (msl)")
    return Diagnosis(
        "unclear", gaps, "the runs scatter too much to tell: use more seeds or folds (--seeds 10, --folds)"
    )


def _interval(values: Sequence[float]) -> tuple[float, float]:
    if len(values) < 2:
        return -math.inf, math.inf
    half = float(stdtrit(len(values) - 1, 0.975)) * stdev(values) / math.sqrt(len(values))
    return mean(values) - half, mean(values) + half
