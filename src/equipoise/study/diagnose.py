"""Is there an imbalance worth treating? Joint training against uni-modal training, measured alike."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import mean, stdev
from typing import Any, Literal, NamedTuple

from scipy.special import stdtrit

WORTH = 0.02
"""A loss of two points is worth treating; less is not."""


class Gap(NamedTuple):
    """How much accuracy a modality loses in joint training.

    Args:
        modality: Which.
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
        """For JSON, which has no infinity: an end that a single run cannot tell is None."""
        finite = {
            name: value if math.isfinite(value) else None for name, value in (("low", self.low), ("high", self.high))
        }
        return {**self._asdict(), "difference": self.difference, **finite}


class Diagnosis(NamedTuple):
    """The answer, and what it rests on.

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
    modalities = list(joint[0]["test"]["probe"])
    gaps = []
    for name in modalities:
        pairs = [(b["test"]["probe"][name], a["test"]["probe"][name]) for a, b in zip(joint, alone, strict=True)]
        low, high = _interval([single - together for single, together in pairs])
        gaps.append(Gap(name, mean(single for single, _ in pairs), mean(together for _, together in pairs), low, high))
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
