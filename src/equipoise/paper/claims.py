"""Claims of the paper beside measurements."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterator, Sequence
from typing import Any, Literal, NamedTuple

from equipoise.report.differences import Difference

WIDTH = 118  # letters of a line in a terminal
INDENT = " " * 9  # the longest verdict and a space

Verdict = Literal["agrees", "differs", "open"]
"""The outcome of a comparison with the paper; "open" where the measurement cannot tell."""


class Claim(NamedTuple):
    """A statement of the paper, and the measurement beside it.

    Args:
        where: The place in the paper that makes it.
        says: The statement.
        measured: The measurement, in words, and why it leads to the verdict.
        verdict: The outcome of the comparison.
    """

    where: str
    says: str
    measured: str
    verdict: Verdict


def verdict_of(holds: bool) -> Verdict:
    """Turn the outcome of a measurement that always decides into a verdict."""
    return "agrees" if holds else "differs"


def opposite(verdict: Verdict) -> Verdict:
    """Give the verdict on the negation of a statement."""
    return {"agrees": "differs", "differs": "agrees", "open": "open"}[verdict]


def all_of(verdicts: Sequence[Verdict]) -> Verdict:
    """Give the verdict on a statement about several things: it fails if it fails for one, and holds if for all."""
    if "differs" in verdicts:
        return "differs"
    return "open" if not verdicts or "open" in verdicts else "agrees"


def tally(claims: Sequence[Claim]) -> str:
    """Count verdicts, in words.

    Example:
        >>> tally([Claim("Table I", "it is fast", "twice as slow", "differs")])
        '0 agree, 1 differ, 0 stay open'
    """
    verdicts = [claim.verdict for claim in claims]
    return ", ".join(f"{verdicts.count(verdict)} {words}" for verdict, words in _IN_WORDS.items())


_IN_WORDS: dict[Verdict, str] = {"agrees": "agree", "differs": "differ", "open": "stay open"}


def claim_lines(claims: Sequence[Claim], *, places: bool = True, stop: str = ".") -> Iterator[str]:
    """Print each claim as a verdict with the statement, and the measurement below it.

    Args:
        claims: The claims.
        places: Name the place in the paper before each statement.
        stop: The end of a measurement.
    """
    for claim in claims:
        statement = f"{claim.where}: {claim.says}" if places else claim.says
        yield textwrap.fill(f"{claim.verdict:<8} {statement}.", WIDTH, subsequent_indent=INDENT)
        yield textwrap.fill(f"{claim.measured}{stop}", WIDTH, initial_indent=INDENT, subsequent_indent=INDENT)


class Change(NamedTuple):
    """A paired difference with its 95 % interval; the ends are infinite where one run bounds nothing.

    Args:
        mean: Mean difference.
        low: Lower end of its interval.
        high: Upper end.
    """

    mean: float
    low: float
    high: float

    @classmethod
    def of(cls, difference: Difference) -> Change:
        """Take the numbers of a paired difference."""
        low, high = difference.low, difference.high
        return cls(difference.mean, -math.inf if low is None else low, math.inf if high is None else high)

    def points(self, decimals: int = 1) -> str:
        """Print the change in percentage points."""
        if math.isinf(self.mean):
            return "runs fail"
        mean, low, high = (f"{100 * value:+.{decimals}f}" for value in self)
        bounded = math.isfinite(self.low) and math.isfinite(self.high)
        return f"{mean} points [{low}, {high}]" if bounded else f"{mean} points (one run, no interval)"

    def above(self, low: float = 0.0, high: float = 0.0) -> Verdict:
        """Agree where the change is surely above `low`, differ where it is surely below `high`."""
        return "agrees" if self.low > low else "differs" if self.high < high else "open"


def in_words(value: Any) -> str:
    """Print a value as one would type it."""
    return f"{value:g}" if isinstance(value, float) else str(value).lower() if isinstance(value, bool) else str(value)


def count(number: int, noun: str) -> str:
    """Print a number with its noun.

    Example:
        >>> count(1, "seed"), count(3, "seed")
        ('1 seed', '3 seeds')
    """
    return f"{number} {noun}{'s' if number > 1 else ''}"
