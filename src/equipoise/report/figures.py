"""The figures of the page, each with its caption, its legend and its numbers as a table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from equipoise.report.aggregate import RunGroup, dig, modalities, number
from equipoise.report.columns import MISSING, time_columns
from equipoise.report.differences import Difference
from equipoise.report.headline import Headline
from equipoise.report.markup import Axis, Bar, Series, axis, bar_chart, data_table, dot_plot, figure, line_chart
from equipoise.report.notes import listed
from equipoise.report.results import Epoch, Results
from equipoise.report.step_times import DOUBTED, doubt_note, load_of, time_note

STYLES = 8
PARTS = ("forward", "backward", "balance", "update")
# Enough points for a smooth line, few enough that a study of many methods stays a small page.
_POINTS, _POINTS_OF_ALL, _TABLE_POINTS = 100, 12_000, 9


class EpochCurve(NamedTuple):
    """A number over epochs, averaged over the runs of a group.

    Args:
        epochs: The epochs.
        mean: Mean over the runs that reached the epoch.
        low: The lowest of them.
        high: The highest of them.
    """

    epochs: tuple[int, ...]
    mean: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]

    def thinned(self, most: int) -> EpochCurve:
        """Keep at most so many epochs, evenly spaced, the first and the last among them."""
        count = len(self.epochs)
        if count <= most:
            return self
        kept = sorted({round(step * (count - 1) / (most - 1)) for step in range(most)})
        mean, low, high = (tuple(values[at] for at in kept) for values in (self.mean, self.low, self.high))
        return EpochCurve(tuple(self.epochs[at] for at in kept), mean, low, high)

    def changes(self) -> bool:
        """Return True if the number moved at all, between epochs or between runs."""
        high, low = max(self.high), min(self.low)
        return high - low > 1e-6 * max(abs(high), abs(low))

    def series(self, name: str, style: str, scale: float) -> Series:
        """Return the line and band of a chart."""
        points = [(epoch, scale * value) for epoch, value in zip(self.epochs, self.mean, strict=True)]
        band = [(e, scale * low, scale * high) for e, low, high in zip(self.epochs, self.low, self.high, strict=True)]
        return Series(name, style, points, band if any(low != high for _, low, high in band) else ())


def headline_curves(results: Results, group: RunGroup) -> dict[str, EpochCurve]:
    """Average the validation metric of each modality, and of the fused prediction where the group trains one.

    The sensors of an ensemble are trained alone and vote only afterwards: what runs of earlier versions recorded as
    its fused number is that of a head that nothing trained.
    """
    fused = group.fused is not None and group.method != "ensemble"
    curves = {name: _over_epochs(results, group, "validation", name) for name in _keys(results, group, "validation")}
    return {name: curve for name, curve in curves.items() if curve is not None and (fused or name != "fused")}


def balancing_curves(results: Results, group: RunGroup) -> dict[tuple[str, str], EpochCurve]:
    """Average the balancing table c[objective, block] over epochs, under (objective, blocks).

    Blocks on which an objective has the same coefficient all along are put together.
    """
    named = {}
    for objective in _keys(results, group, "table"):
        alike: dict[EpochCurve, list[str]] = {}
        every_block = _keys(results, group, "table", objective)
        for block in every_block:
            if curve := _over_epochs(results, group, "table", objective, block):
                alike.setdefault(curve, []).append(block)
        for curve, blocks in alike.items():
            everywhere = len(blocks) == len(every_block) > 1
            named[objective, "every block" if everywhere else ", ".join(blocks)] = curve
    return named


def headline_over_epochs(identity: str, results: Results, groups: Sequence[RunGroup], head: Headline) -> str:
    """Draw the metric of fused and each modality on validation data, one chart per method, all on one scale."""
    curves_of = {group.label: curves for group in groups if (curves := headline_curves(results, group))}
    if not curves_of:
        return ""
    names = sorted(dict.fromkeys(name for curves in curves_of.values() for name in curves), key=lambda n: n != "fused")
    colours = [f"s{at % STYLES}" for at in range(len(names))]
    styles = dict(zip(names, ["ink", *colours] if names[0] == "fused" else colours, strict=False))
    every = [curve for curves in curves_of.values() for curve in curves.values()]
    x, y = _axes(every, f"validation {head.in_axis}", head.scale)
    most = max(12, min(_POINTS, _POINTS_OF_ALL // len(every)))
    charts = []
    for at, (label, curves) in enumerate(curves_of.items()):
        shown = {name: curves[name] for name in names if name in curves}
        series = [curve.thinned(most).series(name, styles[name], head.scale) for name, curve in shown.items()]
        last = ", ".join(f"{name} {head.in_words(curve.mean[-1])}" for name, curve in shown.items())
        description = f"Validation {head.label} over epochs, mean over runs with range. At the last epoch: {last}."
        charts.append(line_chart(f"{identity}-{at}", label, description, x, y, series))
    caption = f"Validation {head.label}{head.in_percent}, mean over runs"
    data = _curve_table(caption, names, curves_of, head.scale, head.decimals)
    caption = (
        f"Validation {head.label} of the fused prediction and of each modality alone. "
        "Lines are means over runs, bands their range."
    )
    return figure(caption, charts, [(styles[name], name) for name in names], data)


def balancing_over_epochs(identity: str, results: Results, groups: Sequence[RunGroup]) -> str:
    """Draw the coefficients c[objective, block] of the methods that change them."""
    charts, tables, legend = [], [], {}
    for group in groups:
        curves = balancing_curves(results, group)
        moving = {name: curve for name, curve in curves.items() if curve.changes()}
        if not moving:
            continue
        objectives = sorted(dict.fromkeys(objective for objective, _ in curves), key=lambda name: name != "fused")
        series = []
        for at, ((objective, blocks), curve) in enumerate(moving.items()):
            style = "ink" if objective == "fused" else f"s{(objectives.index(objective) - 1) % STYLES}"
            style += f" d{at % 4}" if sum(other == objective for other, _ in moving) > 1 else ""
            legend[style, f"{objective} → {blocks}"] = None
            series.append(curve.thinned(_POINTS).series(f"{objective} → {blocks}", style, 1))
        fixed = "; ".join(f"{o} → {b} {c.mean[0]:g}" for (o, b), c in curves.items() if not c.changes())
        x, y = _axes(list(moving.values()), "coefficient", 1, include=[0.0])
        description = f"Coefficients over epochs, mean over runs with range. Constant: {fixed or 'none'}."
        charts.append(line_chart(f"{identity}-{len(charts)}", group.label, description, x, y, series))
        named = {f"{objective} → {blocks}": curve for (objective, blocks), curve in curves.items()}
        caption = f"Coefficients of {group.label}, mean over runs"
        tables.append(_curve_table(caption, list(named), {group.label: named}, 1, 3))
    caption = (
        "The coefficient c[objective, block] with which the gradient of an objective moves a block of parameters "
        "(objective → block). Each chart has its own scale; coefficients that never change are in the table."
    )
    return figure(caption, charts, list(legend), "".join(tables))


def attention_over_epochs(identity: str, results: Results, groups: Sequence[RunGroup]) -> str:
    """Draw each sensor's share in the attention of the fused token, one chart per method that has a trunk."""
    curves_of: dict[str, dict[str, EpochCurve]] = {}
    for group in groups:
        curves = {name: _over_epochs(results, group, "attention", name) for name in _keys(results, group, "attention")}
        if known := {name: curve for name, curve in curves.items() if curve is not None}:
            curves_of[group.label] = known
    if not curves_of:
        return ""
    names = list(dict.fromkeys(name for curves in curves_of.values() for name in curves))
    styles = {name: f"s{at % STYLES}" for at, name in enumerate(names)}
    every = [curve for curves in curves_of.values() for curve in curves.values()]
    x, y = _axes(every, "share of attention, %", 100, include=[0.0])
    charts = []
    for at, (label, curves) in enumerate(curves_of.items()):
        series = [curve.thinned(_POINTS).series(name, styles[name], 100) for name, curve in curves.items()]
        last = ", ".join(f"{name} {100 * curve.mean[-1]:.1f} %" for name, curve in curves.items())
        description = f"Share of attention over epochs, mean over runs with range. At the last epoch: {last}."
        charts.append(line_chart(f"{identity}-{at}", label, description, x, y, series))
    data = _curve_table("Share of attention in %, mean over runs", names, curves_of, 100, 1)
    caption = (
        "The attention that the token of the fused head pays to each sensor, on validation data, as a share of what it "
        "pays to all: the mean over layers and attention heads. Lines are means over runs, bands their range."
    )
    return figure(caption, charts, [(styles[name], name) for name in names], data)


def noise_curves(identity: str, groups: Sequence[RunGroup], styles: dict[str, str], head: Headline) -> str:
    """Draw the metric against noise, one chart per modality and decision, one line per method."""
    shown: dict[tuple[str, str], dict[str, list[tuple[float, float]]]] = {}
    for name in modalities(row for group in groups for row in group.rows):
        for decision in ("fused", "committee"):
            points_of = {group.label: _noise(group, name, decision, head.scale) for group in groups}
            if points_of := {label: points for label, points in points_of.items() if len(points) > 1}:
                shown[name, decision] = points_of
    if not shown:
        return ""
    every = [point for points_of in shown.values() for points in points_of.values() for point in points]
    x = axis("noise, in standard deviations of the signal", [level for level, _ in every], include=[0.0])
    y = axis(f"test {head.in_axis}", [value for _, value in every])
    levels = sorted({level for level, _ in every})
    charts, rows = [], []
    for at, ((name, decision), points_of) in enumerate(shown.items()):
        worst = ", ".join(f"{label} {head.in_words(points[-1][1] / head.scale)}" for label, points in points_of.items())
        series = [Series(label, styles[label], points) for label, points in points_of.items()]
        title, description = f"noise on {name}: {decision}", f"At the highest level: {worst}."
        charts.append(line_chart(f"{identity}-{at}", title, description, x, y, series))
        for label, points in points_of.items():
            texts = {level: f"{value:.{head.decimals}f}" for level, value in points}
            rows.append([label, name, decision, *(texts.get(level, MISSING) for level in levels)])
    titles = ["method", "sensor", "decision", *(f"noise {level:g}" for level in levels)]
    labels = [group.label for group in groups if any(group.label in points_of for points_of in shown.values())]
    caption = f"Test {head.label} while one sensor is noisy, mean over runs. Noise 0 is the clean test set."
    data = data_table(f"Test {head.label}{head.in_percent} by noise level", titles, rows)
    return figure(caption, charts, [(styles[label], label) for label in labels], data, pairs=True)


def time_per_step(identity: str, groups: Sequence[RunGroup]) -> str:
    """Draw where the time of a step goes, part by part, and list beside it what a step took while it trained."""
    bars, rows = [], []
    for group in groups:
        seconds = [group.of("seconds", name) for name in PARTS]
        lengths = [(f"p{at}", 1000 * time.mean) for at, time in enumerate(seconds) if time]
        if lengths:
            total = f"{1000 * sum(time.mean for time in seconds if time):.2f}"
            bars.append(Bar(group.label, lengths, total))
            texts = [MISSING if time is None else f"{1000 * time.mean:.2f}" for time in (*seconds, group.step)]
            t = [column.cell(column.of(group)).main for column in time_columns()]
            doubt = DOUBTED if load_of(group.rows).doubts() else ""
            rows.append([group.label, *texts[:-1], total, *t, f"{texts[-1]} {doubt}".rstrip()])
    if not bars:
        return ""
    x = axis("milliseconds", [sum(length for _, length in bar.parts) for bar in bars], include=[0.0])
    description = "; ".join(f"{bar.label} {bar.end} ms" for bar in bars) + "."
    chart = bar_chart(identity, "Parts of a step", description, x, bars)
    heads = ["t", *(column.heading for column in time_columns()[1:])]
    data = data_table("Milliseconds", ["method", *PARTS, "parts together", *heads, "step as trained"], rows)
    every = [row for group in groups for row in group.rows]
    ways = dict.fromkeys(str(dig(row, "timing", "parts") or "after training") for row in every)
    caption = (
        f"Where a step spends its time, mean over runs: timed {' or '.join(ways)}. Methods that work on gradients "
        "balance inside the backward pass. A step that trains may take less or more; the table has both. "
        + " ".join(note for note in (time_note(every), doubt_note(every)) if note)
    )
    return figure(caption, [chart], [(f"bar p{at}", name) for at, name in enumerate(PARTS)], data)


def difference_plots(identity: str, differences: dict[str, list[Difference]], head: Headline) -> str:
    """Draw paired differences with their intervals, one chart per measure."""
    charts, rows, baselines = [], [], {}
    for title, measured in differences.items():
        if not measured:
            continue
        ends = [head.scale * end for d in measured for end in (d.low, d.mean, d.high) if end is not None]
        x = axis(f"difference ({head.points}{'' if head.metric.higher else ', below zero is better'})", [*ends, 0.0])
        description = "; ".join(f"{d.label} {_interval(d, head)}" for d in measured) + "."
        charts.append(dot_plot(f"{identity}-{len(charts)}", title, description, x, measured, head.scale))
        rows += [(d.label, title, _interval(d, head), f"{d.pairs} {d.over}", d.verdict) for d in measured]
        baselines |= dict.fromkeys(d.baseline for d in measured)
    data = data_table(
        f"Paired differences in {head.points}", ["method", "measure", "difference", "over", "verdict"], rows
    )
    caption = (
        f"Difference to {listed(list(baselines))} on the same folds and seeds, with 95 % intervals. "
        "Coloured where the interval does not cover zero. Each chart has its own scale."
    )
    return figure(caption, charts, (), data, pairs=True)


# -- from results to curves --


def _epochs(results: Results, group: RunGroup) -> Iterator[Epoch]:
    for row in group.rows:
        yield from results.curves.get(str(row.get("config")), [])


def _keys(results: Results, group: RunGroup, *path: str) -> list[str]:
    inner = (dig(epoch, *path) for epoch in _epochs(results, group))
    return list(dict.fromkeys(key for keys in inner if isinstance(keys, dict) for key in keys))


def _over_epochs(results: Results, group: RunGroup, *path: str) -> EpochCurve | None:
    """Average the number at a path of keys of every epoch; None where no run has it."""
    by_epoch: dict[int, list[float]] = {}
    for epoch in _epochs(results, group):
        if (value := number(epoch, *path)) is not None:
            by_epoch.setdefault(int(epoch["epoch"]), []).append(value)
    if not by_epoch:
        return None
    epochs, values = zip(*sorted(by_epoch.items()), strict=True)
    means = tuple(sum(some) / len(some) for some in values)
    return EpochCurve(epochs, means, tuple(map(min, values)), tuple(map(max, values)))


def _axes(curves: Sequence[EpochCurve], title: str, scale: float, include: Sequence[float] = ()) -> tuple[Axis, Axis]:
    epochs = [epoch for curve in curves for epoch in curve.epochs]
    values = [scale * value for curve in curves for value in (*curve.low, *curve.high)]
    first = min(curve.epochs[0] for curve in curves)
    return axis("epoch", epochs, include=[first]), axis(title, values, include=include)


def _curve_table(
    caption: str, names: Sequence[str], curves_of: Mapping[str, Mapping[str, EpochCurve]], scale: float, decimals: int
) -> str:
    rows = []
    for label, curves in curves_of.items():
        longest = max(curves.values(), key=lambda curve: len(curve.epochs)).thinned(_TABLE_POINTS)
        values = {name: dict(zip(curve.epochs, curve.mean, strict=True)) for name, curve in curves.items()}
        for epoch in longest.epochs:
            at = [values.get(name, {}).get(epoch) for name in names]
            rows.append([label, str(epoch), *(MISSING if v is None else f"{scale * v:.{decimals}f}" for v in at)])
    return data_table(caption, ["method", "epoch", *names], rows)


def _noise(group: RunGroup, name: str, decision: str, scale: float) -> list[tuple[float, float]]:
    """Return (level, metric as written) in order, from the clean test set on."""
    levels = {
        level: key
        for row in group.rows
        for key in dig(row, "test", "faults", name, "noisy") or {}
        if (level := _as_level(key)) is not None
    }
    measured = [(0.0, group.of("test", decision))]
    measured += [
        (level, group.of("test", "faults", name, "noisy", key, decision))
        for level, key in sorted(levels.items())
        if level > 0
    ]
    return [(level, scale * mean.mean) for level, mean in measured if mean]


def _as_level(key: str) -> float | None:
    try:
        return number(float(key))
    except ValueError:
        return None


def _interval(difference: Difference, head: Headline) -> str:
    ends = [head.written(end, "+") for end in (difference.low, difference.high) if end is not None]
    return head.written(difference.mean, "+") + (f" [{', '.join(ends)}]" if ends else "")
