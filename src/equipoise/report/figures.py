"""The figures of the page: what each shows, with its caption, its legend and its numbers as a table."""

from __future__ import annotations

from collections.abc import Sequence

from equipoise.report.aggregate import RunGroup, dig, modalities, number
from equipoise.report.charts import Bar, Dot, Series, axis, bar_chart, dot_plot, line_chart
from equipoise.report.curves import EpochCurve, accuracy_curves, balancing_curves, changes
from equipoise.report.markup import data_table, figure
from equipoise.report.notes import listed
from equipoise.report.paired import Difference
from equipoise.report.results import Results
from equipoise.report.table import MISSING

STYLES = 8
PARTS = ("forward", "backward", "balance", "update")
# Enough points for a smooth line, few enough that a study of many methods stays a small page.
_POINTS, _POINTS_OF_ALL, _TABLE_POINTS = 100, 12_000, 9


def accuracy_over_epochs(identity: str, results: Results, lines: Sequence[RunGroup]) -> str:
    """Validation accuracy of fused and each modality, one chart per method, all on one scale."""
    found = {line.label: curves for line in lines if (curves := accuracy_curves(results, line))}
    if not found:
        return ""
    names = list(dict.fromkeys(name for curves in found.values() for name in curves))
    names.sort(key=lambda name: name != "fused")
    styles = {
        name: "ink" if name == "fused" else f"s{(at - ('fused' in names)) % STYLES}" for at, name in enumerate(names)
    }
    curves = [curve for each in found.values() for curve in each.values()]
    x = axis("epoch", [epoch for curve in curves for epoch in curve.epochs], include=[min(c.epochs[0] for c in curves)])
    y = axis("validation accuracy (%)", [100 * value for curve in curves for value in (*curve.low, *curve.high)])
    most = max(12, min(_POINTS, _POINTS_OF_ALL // len(curves)))
    charts = []
    for at, (label, each) in enumerate(found.items()):
        series = [_series(name, styles[name], each[name].thinned(most), 100) for name in names if name in each]
        last = ", ".join(f"{name} {100 * each[name].mean[-1]:.1f} %" for name in names if name in each)
        description = f"Validation accuracy over epochs, mean over runs with range. At the last epoch: {last}."
        charts.append(line_chart(f"{identity}-{at}", label, description, x, y, series))
    data = _curve_table("Validation accuracy in percent, mean over runs", names, found, 100, 1)
    return figure(
        "Validation accuracy of the fused prediction and of each modality alone. "
        "Lines are means over runs, bands their range.",
        charts, [(styles[name], name) for name in names], data,
    )  # fmt: skip


def balancing_over_epochs(identity: str, results: Results, lines: Sequence[RunGroup]) -> str:
    """The coefficients c[objective, block] of the methods that change them."""
    charts, tables, legend = [], [], {}
    for line in lines:
        curves = balancing_curves(results, line)
        moving = {name: curve for name, curve in curves.items() if changes(curve)}
        if not moving:
            continue
        objectives = list(dict.fromkeys(objective for objective, _ in curves))
        objectives.sort(key=lambda name: name != "fused")
        series = []
        for at, ((objective, blocks), curve) in enumerate(moving.items()):
            style = "ink" if objective == "fused" else f"s{(objectives.index(objective) - 1) % STYLES}"
            several = sum(other == objective for other, _ in moving) > 1
            dashes = f" d{at % 4}" if several else ""
            legend[style + dashes, f"{objective} → {blocks}"] = None
            series.append(_series(f"{objective} → {blocks}", style + dashes, curve.thinned(_POINTS), 1))
        fixed = "; ".join(f"{o} → {b} {c.mean[0]:g}" for (o, b), c in curves.items() if not changes(c))
        x = axis(
            "epoch",
            [epoch for c in moving.values() for epoch in c.epochs],
            include=[min(c.epochs[0] for c in moving.values())],
        )
        y = axis("coefficient", [value for c in moving.values() for value in (*c.low, *c.high)], include=[0.0])
        description = f"Coefficients over epochs, mean over runs with range. Constant: {fixed or 'none'}."
        charts.append(line_chart(f"{identity}-{len(charts)}", line.label, description, x, y, series))
        named = {f"{o} → {b}": curve for (o, b), curve in curves.items()}
        tables.append(
            _curve_table(f"Coefficients of {line.label}, mean over runs", list(named), {line.label: named}, 1, 3)
        )
    return figure(
        "The coefficient c[objective, block] with which the gradient of an objective moves a block "
        "of parameters (objective → block). Each chart has its own scale; coefficients that never change are in the "
        "table.",
        charts, list(legend), "".join(tables),
    )  # fmt: skip


def noise_curves(identity: str, lines: Sequence[RunGroup], styles: dict[str, str]) -> str:
    """Accuracy against noise, one chart per modality and decision, one line per method."""
    rows = [row for line in lines for row in line.rows]
    found: dict[tuple[str, str], dict[str, list[tuple[float, float]]]] = {}
    for name in modalities(rows):
        for decision in ("fused", "committee"):
            points = {line.label: _noise(line, name, decision) for line in lines}
            points = {label: each for label, each in points.items() if len(each) > 1}
            if points:
                found[name, decision] = points
    if not found:
        return ""
    every = [point for points in found.values() for each in points.values() for point in each]
    x = axis("noise, in standard deviations of the signal", [level for level, _ in every], include=[0.0])
    y = axis("test accuracy (%)", [value for _, value in every])
    levels = sorted({level for level, _ in every})
    head = ["method", "sensor", "decision", *(f"noise {level:g}" for level in levels)]
    charts, table_rows = [], []
    for at, ((name, decision), points) in enumerate(found.items()):
        title = f"noise on {name}: {decision}"
        worst = ", ".join(f"{label} {each[-1][1]:.1f} %" for label, each in points.items())
        series = [Series(label, styles[label], each) for label, each in points.items()]
        charts.append(line_chart(f"{identity}-{at}", title, f"At the highest level: {worst}.", x, y, series))
        for label, each in points.items():
            at_level = {level: f"{value:.1f}" for level, value in each}
            table_rows.append([label, name, decision, *(at_level.get(level, MISSING) for level in levels)])
    labels = [line.label for line in lines if any(line.label in points for points in found.values())]
    return figure(
        "Test accuracy while one sensor is noisy, mean over runs. Noise 0 is the clean test set.",
        charts,
        [(styles[label], label) for label in labels],
        data_table("Test accuracy in percent by noise level", head, table_rows),
        pairs=True,
    )  # fmt: skip


def time_per_step(identity: str, lines: Sequence[RunGroup]) -> str:
    """Where the time of a step goes, part by part, and beside it what a step took while it trained."""
    bars, rows = [], []
    for line in lines:
        parts = {name: each.mean for name in PARTS if (each := line.of("seconds", name))}
        if not parts:
            continue
        total = f"{1000 * sum(parts.values()):.2f}"
        trained = MISSING if line.step is None else f"{1000 * line.step.mean:.2f}"
        bars.append(
            Bar(line.label, [(f"p{PARTS.index(name)}", 1000 * parts[name]) for name in PARTS if name in parts], total)
        )
        rows.append([line.label, *(f"{1000 * parts[n]:.2f}" if n in parts else MISSING for n in PARTS), total, trained])
    if not bars:
        return ""
    x = axis("milliseconds", [sum(length for _, length in bar.parts) for bar in bars], include=[0.0])
    chart = bar_chart(
        identity, "Parts of a step", "; ".join(f"{bar.label} {bar.end} ms" for bar in bars) + ".", x, bars
    )
    data = data_table("Milliseconds", ["method", *PARTS, "parts together", "step as trained"], rows)
    legend = [(f"bar p{at}", name) for at, name in enumerate(PARTS)]
    ways = dict.fromkeys(str(dig(row, "timing", "parts") or "after training") for line in lines for row in line.rows)
    return figure(
        f"Where a step spends its time, mean over runs: timed {' or '.join(ways)}. A step that trains may take less or "
        "more; the table has both.",
        [chart], legend, data,
    )  # fmt: skip


def difference_plots(identity: str, differences: dict[str, list[Difference]]) -> str:
    """Paired differences with their intervals, one chart per measure."""
    differences = {title: each for title, each in differences.items() if each}
    if not differences:
        return ""
    charts, rows = [], []
    for at, (title, each) in enumerate(differences.items()):
        ends = [100 * end for d in each for end in (d.low, d.mean, d.high) if end is not None]
        x = axis("difference (points)", [*ends, 0.0])
        dots = [Dot(d.label, 100 * d.mean, _points(d.low), _points(d.high)) for d in each]
        description = "; ".join(f"{d.label} {_interval(d)}" for d in each) + "."
        charts.append(dot_plot(f"{identity}-{at}", title, description, x, dots))
        rows += [(d.label, title, _interval(d), f"{d.pairs} {d.over}", d.verdict) for d in each]
    data = data_table("Paired differences in points", ["method", "measure", "difference", "over", "verdict"], rows)
    baselines = listed(list(dict.fromkeys(d.baseline for each in differences.values() for d in each)))
    return figure(
        f"Difference to {baselines} on the same folds and seeds, with 95 % intervals. "
        "Coloured where the interval does not cover zero. Each chart has its own scale.",
        charts, (), data, pairs=True,
    )  # fmt: skip


# -- from numbers to lines --


def _series(name: str, style: str, curve: EpochCurve, scale: float) -> Series:
    points = [(epoch, scale * value) for epoch, value in zip(curve.epochs, curve.mean, strict=True)]
    band = [(e, scale * low, scale * high) for e, low, high in zip(curve.epochs, curve.low, curve.high, strict=True)]
    return Series(name, style, points, band if any(low != high for _, low, high in band) else ())


def _curve_table(
    caption: str, names: Sequence[str], found: dict[str, dict[str, EpochCurve]], scale: float, decimals: int
) -> str:
    rows = []
    for label, curves in found.items():
        longest = max(curves.values(), key=lambda curve: len(curve.epochs)).thinned(_TABLE_POINTS)
        for epoch in longest.epochs:
            at = {name: dict(zip(curve.epochs, curve.mean, strict=True)).get(epoch) for name, curve in curves.items()}
            texts = [MISSING if (v := at.get(name)) is None else f"{scale * v:.{decimals}f}" for name in names]
            rows.append([label, str(epoch), *texts])
    return data_table(caption, ["method", "epoch", *names], rows)


def _noise(line: RunGroup, name: str, decision: str) -> list[tuple[float, float]]:
    """(level, accuracy in percent) in order, from the clean test set on."""
    levels = {}
    for row in line.rows:
        faults = ((row.get("test") or {}).get("faults") or {}).get(name)
        noisy = faults.get("noisy") if isinstance(faults, dict) else None
        levels |= {level: key for key in noisy or {} if (level := _as_level(key)) is not None}
    clean = line.of("test", decision)
    points = [(0.0, 100 * clean.mean)] if clean else []
    for level, key in sorted(levels.items()):
        accuracy = line.of("test", "faults", name, "noisy", key, decision)
        points += [(level, 100 * accuracy.mean)] if accuracy and level > 0 else []
    return points


def _as_level(key: str) -> float | None:
    try:
        return number(float(key))
    except ValueError:
        return None


def _points(value: float | None) -> float | None:
    return None if value is None else 100 * value


def _interval(difference: Difference) -> str:
    mean = f"{100 * difference.mean:+.1f}"
    if difference.low is None or difference.high is None:
        return mean
    return f"{mean} [{100 * difference.low:+.1f}, {100 * difference.high:+.1f}]"
