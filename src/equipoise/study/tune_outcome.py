"""What came out of a search."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, final

from equipoise.study.tune import Search


@final
@dataclass(frozen=True)
class Tried:
    """One trial.

    Args:
        number: In the order they were begun.
        values: What was tried.
        state: "finished", "pruned", "diverged", "failed", or "killed": its process was, and the same command runs it
            again.
        score: Accuracy on validation, at the end or when it was pruned; None where there is none.
        epochs: How many it trained.
        reason: Why it failed or was killed.
    """

    number: int
    values: dict[str, Any]
    state: str
    score: float | None
    epochs: int
    reason: str = ""


@final
@dataclass(frozen=True)
class Outcome:
    """A search that was run.

    Args:
        search: What was looked for.
        data: The name of the data set.
        about: How it was cut, in words.
        judged_on: Validation samples.
        seed: Of every run.
        trials: In their order.
        importance: The share of each parameter in what decides whether a trial is among the best; none where there are
            too few trials to tell.
    """

    search: Search
    data: str
    about: str
    judged_on: int
    seed: int
    trials: list[Tried]
    importance: dict[str, float]

    @property
    def best(self) -> Tried:
        """The first of the best that were finished."""
        return max((each for each in self.trials if each.state == "finished"), key=lambda each: each.score or 0.0)
