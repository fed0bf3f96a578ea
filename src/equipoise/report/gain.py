"""The gain of the answer that a study ships, over joint training and over the closed-form model."""

from collections.abc import Mapping, Sequence

from equipoise.report.aggregate import SHIPPED, RunGroup, headline
from equipoise.report.differences import Difference, difference_of
from equipoise.report.headline import Headline
from equipoise.report.ranking import ranked_groups
from equipoise.report.results import Results
from equipoise.study.compare import WORTH, WORTH_OF_ERROR

OVER = {"msl": "joint training", "instant": "the closed-form model"}
"""The methods that a user has without a study: what they ship is what there is to gain on."""
MEASURES = {"with all sensors": ("test", SHIPPED), "under sensor faults": ("test", "faults", "mean", SHIPPED)}
VERDICTS = {
    "better": "clearly better than",
    "worse": "clearly worse than",
    "no clear difference": "not clearly different from",
}


def gain(groups: Sequence[RunGroup], results: Results | None = None) -> tuple[str, str] | None:
    """State what the shipped answer gains, in a sentence without numbers and in one with them.

    Shipped is the line and the decision that are first on validation data. The first sentence calls a difference clear
    where its paired interval leaves out zero and it is as large as `diagnose` takes to be worth treating, two points:
    so it stays the same where budgets differ and numbers move a little. Nothing is compared with itself.

    Args:
        groups: All groups of one data set.
        results: The study, for intervals of what leaves nothing to chance; see `differences_between`.

    Returns:
        The two sentences; None where no pair of runs can be compared, or no comparison has an interval.
    """
    ranked = ranked_groups(groups)
    if not ranked:
        return None
    first, head = ranked[0], headline(groups)
    shipped = next(group for group in groups if group.label == first.label)
    verdicts, figures = {}, []
    for where, path in MEASURES.items():
        found = {
            name: difference
            for method, name in OVER.items()
            if shipped.method != method and (base := _line_of(groups, method)) is not None
            if (difference := difference_of(shipped, base, path, results)) is not None
            and difference.low is not None
            and not difference.from_few
        }
        if found:
            mean = shipped.of(*path)
            verdicts[where] = _in_words(
                found, WORTH if head.metric.percent else WORTH_OF_ERROR * (mean.mean if mean else 0)
            )
            figures.append(f"{head.in_words(mean.mean) if mean else ''} {where} ({_in_numbers(found, head)})")
    if not verdicts:
        return None
    parts = {verdict: [where for where in verdicts if verdicts[where] == verdict] for verdict in verdicts.values()}
    said = "; ".join(f"{verdict}, {' and '.join(places)}" for verdict, places in parts.items())
    which = f"the {first.decision} decision of {first.label}, first on validation data"
    return f"The answer that is shipped is {said}.", f"It is {which}: {'; '.join(figures)}."


def _line_of(groups: Sequence[RunGroup], method: str) -> RunGroup | None:
    """Return the line of a method: that of its own label, or else the first of that method."""
    lines = [group for group in groups if group.method == method]
    return next((group for group in lines if group.label == method), lines[0] if lines else None)


def _in_words(found: Mapping[str, Difference], worth: float) -> str:
    names: dict[str, list[str]] = {}
    for name, difference in found.items():
        verdict = difference.verdict if abs(difference.mean) >= worth else "no clear difference"
        names.setdefault(VERDICTS[verdict], []).append(name)
    return " and ".join(f"{verdict} {' and '.join(some)}" for verdict, some in names.items())


def _in_numbers(found: Mapping[str, Difference], head: Headline) -> str:
    def written(value: float | None) -> str:
        return head.written(value or 0.0, "+").replace("-", "−")

    unit = f" {head.points}" if head.metric.percent else ""
    return "; ".join(
        f"{written(one.mean)}{unit} to {name}, 95 % interval {written(one.low)} to {written(one.high)} "
        f"over {one.pairs} {one.over}"
        for name, one in found.items()
    )
