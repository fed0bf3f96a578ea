"""The gain of the answer that a study ships, over joint training and over the closed-form model."""

from collections.abc import Mapping, Sequence

from equipoise.report.aggregate import Difference, RunGroup, difference_of, headline, mean_std, number
from equipoise.report.headline import Headline
from equipoise.report.ranking import ranked_groups
from equipoise.study.compare import WORTH, WORTH_OF_ERROR

OVER = {"msl": "joint training", "instant": "the closed-form model"}
"""The methods that a user has without a study, whose plain fused decision is what there is to gain on."""
MEASURES = {"with all sensors": ("test",), "under sensor faults": ("test", "faults", "mean")}
VERDICTS = {
    "better": "clearly better than",
    "worse": "clearly worse than",
    "no clear difference": "not clearly different from",
}


def gain(groups: Sequence[RunGroup]) -> tuple[str, str] | None:
    """State what the shipped answer gains, in a sentence without numbers and in one with them.

    Shipped is the line and the decision that are first on validation data. The first sentence calls a difference clear
    where its paired interval leaves out zero and it is as large as `diagnose` takes to be worth treating, two points:
    so it stays the same where budgets differ and numbers move a little.

    Args:
        groups: All groups of one data set.

    Returns:
        The two sentences; None where no pair of runs can be compared, or each comparison has only one.
    """
    ranked = ranked_groups(groups)
    if not ranked:
        return None
    first, head = ranked[0], headline(groups)
    shipped = next(group for group in groups if group.label == first.label)
    verdicts, figures = {}, []
    for where, path in MEASURES.items():
        ours = (*path, first.decision)
        found = {
            name: difference
            for method, name in OVER.items()
            if (base := _line_of(groups, method)) is not None and (base.label, "fused") != (first.label, first.decision)
            if (difference := difference_of(shipped, ours, base, (*path, "fused"))) is not None
            and difference.low is not None
        }
        if found:
            mean = mean_std(number(row, *ours) for row in shipped.rows)
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
