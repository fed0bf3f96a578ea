"""The question a study asks, and the answer its numbers allow, in words."""

from __future__ import annotations

from collections.abc import Sequence

from equipoise.report.aggregate import RunGroup
from equipoise.report.paired import Difference

MOST_NAMES = 6


def question(data: str, baseline: str) -> str:
    """What the study asks."""
    return f"Which methods beat joint training ({baseline}) on {data}?"


def answer(lines: Sequence[RunGroup], differences: Sequence[Difference], baseline: str, measure: str) -> str:
    """What may be claimed about one measure, from its paired differences.

    Args:
        lines: All lines of the study, the best first.
        differences: Paired differences of the measure.
        baseline: What they are taken to.
        measure: The measure's name in a sentence, for example "fused accuracy".
    """
    if not differences:
        nothing = f"These runs hold no pair with joint training ({baseline}), so nothing can be said about {measure}."
        best = lines[0]
        return nothing + (
            f" The highest fused accuracy is {100 * best.fused.mean:.1f} %, by {best.label}." if best.fused else ""
        )
    by_verdict: dict[str, list[Difference]] = {}
    for each in sorted(differences, key=lambda each: -each.mean):
        by_verdict.setdefault(each.verdict, []).append(each)
    better, same, worse, unknown = (
        by_verdict.get(verdict, []) for verdict in ("better", "no clear difference", "worse", "too few runs")
    )
    parts = []
    if better:
        parts.append(f"clearly better than joint training: {_names(better)} ({_most(better, 'most')})")
    elif same or worse:
        parts.append("none is clearly better than joint training")
    if same:
        covers = "" if better else f" ({_most(same, 'largest')}, which covers zero)"
        parts.append(f"no clear difference: {_names(same)}{covers}")
    if worse:
        parts.append(f"clearly worse: {_names(worse)}")
    if unknown:
        parts.append(f"too few runs to compare with joint training: {_names(unknown)} ({_most(unknown, 'largest')})")
    return f"In {measure}, {'; '.join(parts)}."


def caution(differences: Sequence[Difference]) -> str:
    """What the intervals do not say."""
    judged = [each for each in differences if each.low is not None]
    texts = []
    if any(each.over == "seeds" for each in judged):
        texts.append(
            "Intervals over seeds speak of chance in training on this one split, not of other people or recordings."
        )
    if any(each.over == "folds" for each in judged):
        texts.append("Training sets of different folds overlap, so intervals over folds are somewhat too narrow.")
    if len(judged) > 2:
        texts.append(f"{len(judged)} comparisons are made, and the intervals are not widened for that.")
    return " ".join(texts)


def _names(differences: Sequence[Difference]) -> str:
    names = ", ".join(each.label for each in differences[:MOST_NAMES])
    return names + (f" and {len(differences) - MOST_NAMES} more" if len(differences) > MOST_NAMES else "")


def _most(differences: Sequence[Difference], word: str) -> str:
    """The first of them in numbers, named where there are others."""
    first = differences[0]
    return _said(first) if len(differences) == 1 else f"{word}: {first.label} {_said(first)}"


def _said(difference: Difference) -> str:
    mean = f"{_signed(difference.mean)} points"
    if difference.low is None or difference.high is None:
        return mean
    interval = f"95 % interval {_signed(difference.low)} to {_signed(difference.high)}"
    return f"{mean}, {interval} over {difference.pairs} {difference.over}"


def _signed(value: float) -> str:
    return f"{100 * value:+.1f}".replace("-", "−")
