"""Curves over learning rates and sizes of the training set: areas, the choice on validation, tables and the figure.

A run counts at least as much as the answer that reads no sensor: one that diverged, or ended below it, counts as that
answer, which anybody could give instead. So every area is finite, whatever the metric.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from equipoise.report import drawing
from equipoise.report.aggregate import DECISIONS, RunGroup, number
from equipoise.report.columns import ResultColumn
from equipoise.report.drawing import FAINT, JOINT, MODALITIES
from equipoise.report.headline import Headline, baseline_name, headline_of
from equipoise.report.intervals import MeanInterval, MeanStd, Runs, interval_over, mean_std
from equipoise.report.notes import listed, plural
from equipoise.report.table import ResultTable, build_table
from equipoise.study.robustness import Axis, CurveRun, MethodCurve

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MEASURES = {
    **{decision: ("test", decision) for decision in DECISIONS},
    **{f"{decision} under faults": ("test", "faults", "mean", decision) for decision in DECISIONS},
}
"""Numbers that have a curve."""
AXES: dict[Axis, str] = {"rate": "learning rates", "size": "sizes of the training set"}
FILES: dict[Axis, str] = {"rate": "robustness-rates", "size": "robustness-sizes"}
PANEL = 3.4  # inches
CONSTANT = "reads no sensor"
Key = tuple[object, object, object]


# -- numbers --


def counted(curve: MethodCurve, run: CurveRun, measure: str) -> float:
    """Return the number of a run on the test part, and that of the constant answer where the run is no better."""
    value = None if run.row is None else number(run.row, *MEASURES[measure])
    merit = curve.metric.merit
    return run.constant if value is None or merit(value) < merit(run.constant) else value


def is_measured(curve: MethodCurve, measure: str) -> bool:
    """Tell whether a method has a measure: some run has the number, or none was finished, and it is fused."""
    rows = [run.row for runs in curve.runs.values() for run in runs if run.row is not None]
    return any(number(row, *MEASURES[measure]) is not None for row in rows) or (not rows and measure == "fused")


def values_at(curve: MethodCurve, at: float, measure: str) -> dict[Key, float]:
    """Return what each run at one place counts, by fold and seed."""
    return {_key(run): counted(curve, run, measure) for run in curve.runs[at]}


def areas(curve: MethodCurve, measure: str) -> dict[Key, float]:
    """Return the area under the curve of each fold and seed, divided by its width: the mean over the logarithmic axis.

    The curve is that of straight lines between places on the logarithmic axis, so the area is the trapezoidal rule's.
    """
    places = [math.log10(at) for at in curve.runs]
    heights = [values_at(curve, at, measure) for at in curve.runs]
    steps = [after - before for before, after in pairwise(places)]
    between = list(zip(steps, pairwise(heights), strict=True))
    width = places[-1] - places[0]
    return {
        key: sum(step * (one[key] + other[key]) / 2 for step, (one, other) in between) / width for key in heights[0]
    }


def chosen(curve: MethodCurve, decision: str) -> dict[object, float]:
    """Return the place that validation chooses in each fold, by the mean over seeds; of equals the one nearest to 1.

    A place at which a run diverged is chosen only where runs diverged at all of them.
    """
    folds = dict.fromkeys(run.fold for run in next(iter(curve.runs.values())))
    found: dict[object, float] = {}
    for fold in folds:
        scores = {
            at: _validation(curve, [run for run in curve.runs[at] if run.fold == fold], decision) for at in curve.runs
        }
        found[fold] = max(scores, key=lambda at: (scores[at], -abs(math.log(at))))
    return found


def _validation(curve: MethodCurve, runs: Sequence[CurveRun], decision: str) -> float:
    values = [None if run.row is None else number(run.row, "validation", decision) for run in runs]
    return math.fsum(curve.metric.merit(value) for value in values) / len(values) if None not in values else -math.inf


def at_chosen(curve: MethodCurve, decision: str) -> dict[Key, float]:
    """Return what each run counts on the test part at the place that validation chooses in its fold."""
    best = chosen(curve, decision)
    every = {at: values_at(curve, at, decision) for at in curve.runs}
    return {key: every[best[key[0]]][key] for key in next(iter(every.values()))}


def _key(run: CurveRun) -> Key:
    return run.fold, run.seed, None


# -- tables --


def robustness_tables(curves: Sequence[MethodCurve]) -> dict[str, ResultTable]:
    """Build a table for each data set, axis and decision: the metric at each place, the area, and the validated choice.

    Args:
        curves: As `run_robustness` returns them.

    Returns:
        The tables by name, such as "watch, fused over learning rates".
    """
    found = {}
    for (data, axis), own in _panels(curves).items():
        for decision in DECISIONS:
            if shown := [curve for curve in own if is_measured(curve, decision)]:
                found[f"{data}, {decision} over {AXES[axis]}"] = _table(data, axis, decision, shown)
    return found


def _panels(curves: Sequence[MethodCurve]) -> dict[tuple[str, Axis], list[MethodCurve]]:
    panels: dict[tuple[str, Axis], list[MethodCurve]] = {}
    for curve in curves:
        panels.setdefault((curve.data, curve.axis), []).append(curve)
    return panels


def _table(data: str, axis: Axis, decision: str, curves: Sequence[MethodCurve]) -> ResultTable:
    head, by_label = _headline(curves, decision), {curve.label: curve for curve in curves}
    means = {label: _interval(curve, areas(curve, decision)) for label, curve in by_label.items()}
    order = sorted(by_label, key=lambda label: (-head.metric.merit(means[label].mean), label))
    groups = [RunGroup(label, ({"label": label, "method": label},)) for label in order]
    how: dict[str, Any] = {"scale": head.scale, "decimals": head.decimals, "better": head.better}

    def at(place: float) -> ResultColumn:
        def of(group: RunGroup) -> MeanStd | None:
            return mean_std(values_at(by_label[group.label], place, decision).values())

        first = curves[0]
        title = f"lr {first.lr * place:.3g}" if axis == "rate" else f"{first.samples[place]:,} samples"
        return ResultColumn(f"{axis}.{place:g}", title, of, f"× {place:g}", **how)

    columns = [at(place) for place in curves[0].runs]
    columns.append(
        ResultColumn("area", "area", lambda group: means[group.label], f"mean over log {axis}", "interval", **how)
    )
    under = f"{decision} under faults"
    struck = {
        label: _interval(curve, areas(curve, under)) for label, curve in by_label.items() if is_measured(curve, under)
    }
    columns.append(
        ResultColumn("area.faults", "area", lambda group: struck.get(group.label), "under faults", "interval", **how)
    )
    if axis == "rate":
        best = {label: _interval(curve, at_chosen(curve, decision)) for label, curve in by_label.items()}
        words = {label: _choice(chosen(curve, decision)) for label, curve in by_label.items()}
        columns += [
            ResultColumn(
                "best", "at the best", lambda group: best[group.label], "rate by validation", "interval", **how
            ),
            ResultColumn("chosen", "which is", lambda group: words[group.label], "", "words"),
        ]
    title = f"{data}: {decision} {head.label}{head.in_percent} over {AXES[axis]}, on the test set{head.about}"
    return build_table(title, columns, groups, [*_notes(axis, decision, curves, head, next(iter(means.values())))])


def _headline(curves: Sequence[MethodCurve], decision: str) -> Headline:
    values = [value for curve in curves for at in curve.runs for value in values_at(curve, at, decision).values()]
    return Headline(curves[0].metric, headline_of({"metric": curves[0].metric.name}, values).decimals)


def _interval(curve: MethodCurve, runs: Runs) -> MeanInterval:
    """Return mean and interval; a share has no end below 0 or above 1."""
    found = interval_over(runs)
    assert found is not None  # a curve has runs
    if found.low is None or found.high is None or not curve.metric.percent:
        return found
    return found._replace(low=max(found.low, 0.0), high=min(found.high, 1.0))


def _choice(places: Mapping[object, float]) -> str:
    counts = Counter(places.values()).most_common()
    if len(counts) == 1:
        return f"× {counts[0][0]:g}"
    return ", ".join(f"× {at:g} ({count})" for at, count in counts)


def _notes(
    axis: Axis, decision: str, curves: Sequence[MethodCurve], head: Headline, area: MeanInterval
) -> Iterator[str]:
    runs = next(iter(curves[0].runs.values()))
    folds = len({run.fold for run in runs} - {None})
    draws = plural(len({run.seed for run in runs}), "seed") + (f" in each of {folds} folds" if folds else "")
    deviation = "; ± is their standard deviation" if len(runs) > 1 else ""
    yield (
        f"{plural(len(runs), 'run')} at each place ({draws}{deviation}). Area: the mean over the "
        f"logarithm of the {'learning rate' if axis == 'rate' else 'size'}, by the trapezoidal rule. Bold: best of its "
        "column. Lines are ordered by the area."
    )
    if axis == "rate":
        over = ", by the mean of its seeds" if len({run.seed for run in runs}) > 1 else ""
        yield (
            f"At the best: on the test set, at the rate with the {head.best} {decision} {head.label} on validation data"
            + (f", chosen in each fold{over} (in brackets: how many folds)." if folds else f"{over}.")
        )
    if area.low is not None:
        units = "folds, seeds of a fold averaged" if area.over == "folds" else "seeds of one split"
        yield f"[low, high]: 95 % interval (Student's t) over {area.count} {units}."
    constant = mean_std(run.constant for run in runs)
    rows = (run.row for curve in curves for runs in curve.runs.values() for run in runs if run.row is not None)
    name = baseline_name(next(rows, {"metric": head.metric.name}))
    yield (
        f"A run that diverged, or ended worse than the answer that reads no sensor ({name}, "
        f"{head.in_words(constant.mean if constant else math.nan)}), counts as that answer. "
        + (_lost(curves, decision) or "There was none.")
    )


def _lost(curves: Sequence[MethodCurve], decision: str) -> str:
    """List where runs counted as the constant answer."""
    parts = []
    for curve in curves:
        for at, runs in curve.runs.items():
            gone = sum(run.row is None for run in runs)
            worse = sum(run.row is not None and _is_worse(curve, run, decision) for run in runs)
            said = [f"{count} of {len(runs)} {what}" for count, what in ((gone, "diverged"), (worse, "worse")) if count]
            parts += [f"{curve.label} × {at:g} ({', '.join(said)})"] if said else []
    return f"There were: {listed(parts)}." if parts else ""


def _is_worse(curve: MethodCurve, run: CurveRun, decision: str) -> bool:
    value, merit = number(run.row, "test", decision), curve.metric.merit
    return merit(value) < merit(run.constant)


# -- JSON --


def robustness_as_dict(curves: Sequence[MethodCurve]) -> dict[str, Any]:
    """Return every curve in plain values."""
    return {
        "curves": [
            _curve_as_dict(curve, decision)
            for curve in curves
            for decision in DECISIONS
            if is_measured(curve, decision)
        ]
    }


def _curve_as_dict(curve: MethodCurve, decision: str) -> dict[str, Any]:
    points = []
    for at, runs in curve.runs.items():
        mean = mean_std(values_at(curve, at, decision).values())
        assert mean is not None
        place = {"at": at, "lr": curve.lr * (at if curve.axis == "rate" else 1), "samples": curve.samples[at]}
        lost = {
            "diverged": sum(run.row is None for run in runs),
            "worse": sum(run.row is not None and _is_worse(curve, run, decision) for run in runs),
        }
        points.append({**place, **mean._asdict(), **lost})
    about = {"data": curve.data, "method": curve.label, "axis": curve.axis, "decision": decision}
    content: dict[str, Any] = {**about, "metric": curve.metric.name, "points": points}
    content["area"] = _interval(curve, areas(curve, decision))._asdict()
    under = f"{decision} under faults"
    content["area_under_faults"] = (
        _interval(curve, areas(curve, under))._asdict() if is_measured(curve, under) else None
    )
    if curve.axis == "rate":
        best = chosen(curve, decision)
        content["best"] = _interval(curve, at_chosen(curve, decision))._asdict()
        content["chosen"] = [{"fold": fold, "at": at} for fold, at in best.items()]
    return content


# -- the figure --


def draw_robustness(curves: Sequence[MethodCurve], folder: Path, made: str) -> list[Path]:
    """Draw the metric over learning rates, and over sizes where they were run: a line a method, a panel a data set.

    Args:
        curves: As `run_robustness` returns them.
        folder: Where to.
        made: How it was made, the first sentence of the caption.
    """
    return [
        path
        for axis in AXES
        if (own := [curve for curve in curves if curve.axis == axis])
        for path in _draw(axis, own, folder, made)
    ]


def _draw(axis: Axis, curves: Sequence[MethodCurve], folder: Path, made: str) -> list[Path]:
    panels = _panels(curves)
    decisions = [one for one in DECISIONS if any(is_measured(curve, one) for curve in curves)]
    styles = {label: at for at, label in enumerate(dict.fromkeys(curve.label for curve in curves))}
    with drawing.style():
        figure = drawing.canvas(max(5.0, PANEL * len(panels)), 2.6 * len(decisions) + 0.4)
        grid = figure.subplots(len(decisions), len(panels), squeeze=False, sharex="col", sharey="col")
        for column, ((data, _), own) in enumerate(panels.items()):
            for row, decision in enumerate(decisions):
                shown = [curve for curve in own if is_measured(curve, decision)]
                _panel(grid[row, column], decision, shown, styles)
            grid[0, column].set_title(data)
            grid[-1, column].set_xlabel(
                f"factor of the learning rate {own[0].lr:g}" if axis == "rate" else "share of the training samples"
            )
        handles = {
            name: line for axes in grid.flat for line, name in zip(*axes.get_legend_handles_labels(), strict=True)
        }
        handles[CONSTANT] = handles.pop(CONSTANT)  # which makes it the last
        figure.legend(handles.values(), handles.keys(), loc="outside upper left", ncols=5)
        return drawing.save(figure, folder, FILES[axis], _caption(axis, curves, made))


def _panel(axes: Axes, decision: str, curves: Sequence[MethodCurve], styles: Mapping[str, int]) -> None:
    if not curves:
        axes.set_axis_off()
        return
    head, places = _headline(curves, decision), list(curves[0].runs)
    colours, dashes = (JOINT, *MODALITIES), ("-", "--", ":", "-.")
    for curve in curves:
        at = styles[curve.label]
        means = [mean_std(values_at(curve, place, decision).values()) for place in places]
        heights = [head.scale * mean.mean for mean in means if mean]
        bars = [head.scale * (mean.deviation or 0.0) for mean in means if mean]
        look: Any = {"ms": 4, "lw": 1.5, "elinewidth": 0.9, "capsize": 2, "label": curve.label}
        dash = dashes[at // len(colours) % len(dashes)]
        axes.errorbar(places, heights, yerr=bars, fmt=f"o{dash}", color=colours[at % len(colours)], **look)
    constant = mean_std(run.constant for run in curves[0].runs[places[-1]])
    if constant:
        axes.axhline(head.scale * constant.mean, color=FAINT, ls=":", lw=1, label=CONSTANT)
    axes.set_xscale("log")
    axes.set_xticks(places, [f"{place:g}" for place in places])
    axes.minorticks_off()
    axes.set_ylabel(f"{decision} {head.in_axis}")
    axes.grid(axis="y", color="#d1d9e0", lw=0.6)


def _caption(axis: Axis, curves: Sequence[MethodCurve], made: str) -> str:
    count = len(next(iter(curves[0].runs.values())))
    return (
        f"{made} Test metric over {AXES[axis]}: mean and one standard deviation over {plural(count, 'run')}. "
        "A run that diverged or ended worse than the answer that reads no sensor counts as that answer."
    )
