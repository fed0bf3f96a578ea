"""Methods ranked on validation data by the decision that is shipped."""

import shlex
from collections.abc import Sequence
from typing import Any, NamedTuple

from equipoise.report.aggregate import MeanStd, RunGroup, headline, mean_std, number
from equipoise.report.formats import text_table
from equipoise.report.headline import Row, metric_of_row
from equipoise.report.results import Results
from equipoise.util.errors import BadInput


class Ranked(NamedTuple):
    """A method in the ranking.

    Args:
        label: Its name in tables.
        decision: What its models ship: the committee where they have one, otherwise fused.
        validation: Mean and deviation of that decision on validation data, over seeds and folds.
        row: The run whose model is shipped: the best of them on validation data.
    """

    label: str
    decision: str
    validation: MeanStd
    row: Row


def shipped(row: Row) -> tuple[str, float | None]:
    """Return the decision that the model of a run ships, and its number on validation data; None where it has none."""
    for decision in ("committee", "fused"):
        if (value := number(row, "validation", decision)) is not None:
            return decision, value
    return "fused", None


def ranking(results: Results, data: str | None = None) -> list[Ranked]:
    """Rank the methods of one data set, the best first.

    Args:
        results: The finished runs.
        data: The name of the data set; None where there is one.

    Raises:
        BadInput: If there are several data sets and none is named, or nothing can be shipped.
    """
    names = ", ".join(results.groups)
    if data is None and len(results.groups) > 1:
        first, choose = next(iter(results.groups)), "expected the name of one data set"
        how = f"ranking(results, data={first!r}), or --data {shlex.quote(first)}"
        raise BadInput(f"{results.folder}: {choose}, found {names}; give one: {how}")
    if data is not None and data not in results.groups:
        raise BadInput(f"data {data!r}: expected one of {names}")
    groups = results.groups[data] if data is not None else next(iter(results.groups.values()))
    ranked = ranked_groups(groups)
    if not ranked:
        raise BadInput(f"{results.folder}: expected a method with one decision to ship, found none; train with mimo")
    return ranked


def ranked_groups(groups: Sequence[RunGroup]) -> list[Ranked]:
    """Rank the groups of one data set that have something to ship, the best first."""
    ranked = [one for one in map(_ranked, groups) if one is not None]
    return sorted(ranked, key=lambda one: (-groups[0].metric.merit(one.validation.mean), one.label))


def _ranked(group: RunGroup) -> Ranked | None:
    values = [(row, *shipped(row)) for row in group.rows]
    mean = mean_std(value for _, _, value in values)
    if mean is None:
        return None
    best = max(values, key=lambda one: metric_of_row(one[0]).merit(one[2]))
    return Ranked(group.label, best[1], mean, best[0])


def ranking_text(ranked: Sequence[Ranked], results: Results) -> str:
    """Write the ranking, what is chosen, and why."""
    first, groups = ranked[0], results.groups
    own = next(groups[data] for data in groups if any(first.row in group.rows for group in groups[data]))
    head = headline(own)
    lines = [
        [
            one.label,
            one.decision,
            head.written(one.validation.mean)
            + ("" if one.validation.deviation is None else f" ± {head.written(one.validation.deviation)}"),
            str(one.validation.count),
        ]
        for one in ranked
    ]
    table = text_table(["method", "ships", f"validation {head.in_axis}", "runs"], lines)
    seed, fold = first.row.get("seed"), first.row.get("fold")
    run = f"seed {seed}" + ("" if fold is None else f", fold {fold}")
    why = f"its {first.decision} has the {head.best} {head.label} on validation data"
    count = first.validation.count
    over = f", on average over {count} runs; of these {run} is the best" if count > 1 else f" ({run})"
    folds = "" if fold is None else " A model of a fold has not seen the test groups of that fold."
    return "\n".join([*table, f"Chosen: {first.label}, since {why}{over}.{folds}"])


def ranking_as_dicts(ranked: Sequence[Ranked]) -> list[dict[str, Any]]:
    """Return the ranking in plain values."""
    return [
        {"label": one.label, "ships": one.decision, "validation": one.validation._asdict(), "config": one.row["config"]}
        for one in ranked
    ]
