"""Figures for a paper, one file each: confusion, roc, calibration, residuals, bars, ranks."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from equipoise.report import drawing
from equipoise.report.aggregate import RunGroup, baseline_group, headline
from equipoise.report.drawing import FAINT, INK, JOINT, LINE, MODALITIES
from equipoise.report.headline import Headline
from equipoise.report.predictions import predictions_of_run
from equipoise.report.rank_diagram import rank_diagram
from equipoise.report.results import Results
from equipoise.util.errors import BadInput, look_up
from equipoise.util.extras import needs

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_PANELS = 6  # methods with a panel of their own, the best first
MOST_LINES = 8  # methods or classes in one panel
MOST_NAMED = 12  # classes whose numbers are written into a confusion matrix
MOST_POINTS = 2000  # of a panel of residuals
BINS = 10
PANEL = 2.9  # inches
FEWEST = 10  # samples of a bin that is drawn
LEGEND: dict[str, Any] = {
    "fontsize": 7.5,
    "title_fontsize": 7.5,
    "frameon": True,
    "edgecolor": "none",
    "framealpha": 0.85,
}


class Pooled(NamedTuple):
    """The answers of one decision of a method, of all its runs together.

    Args:
        title: The method's name.
        names: Of the classes, labels or columns.
        label: The right answers.
        answer: Probabilities or numbers, [N, size].
    """

    title: str
    names: tuple[str, ...]
    label: np.ndarray
    answer: np.ndarray

    @property
    def columns(self) -> list[tuple[str, np.ndarray, np.ndarray]]:
        """Name, truth and answer of each class against the rest, or of each label or column."""
        classes = self.label.ndim == 1
        truths = [self.label == at if classes else self.label[:, at] for at in range(len(self.names))]
        return [(name, truths[at], self.answer[:, at]) for at, name in enumerate(self.names)]


def write_figures(
    kind: str, results: Results, to: str = "pdf", decision: str = "fused", data: str | None = None
) -> list[Path]:
    """Draw one kind of figure for each data set of a study into its folder ``figures``; ranks is one for all of them.

    Args:
        kind: confusion, roc, calibration, residuals, bars or ranks.
        results: The finished runs.
        to: pdf, svg or png.
        decision: fused or committee; bars and ranks show both.
        data: The name of one data set; None for all that the figure fits.

    Returns:
        The files.

    Raises:
        BadInput: If the figure fits the task of no data set, or its runs kept no answers.
    """
    look_up("figure", kind, {**FIGURES, "ranks": None})
    look_up("format", to, dict.fromkeys(FORMATS))
    look_up("decision", decision, dict.fromkeys(("fused", "committee")))
    if kind == "ranks":
        with drawing.style():
            return [drawing.save_as(rank_diagram(results), results.folder / "figures", kind, to)]
    if data is not None:
        look_up("data set", data, results.groups)
    chosen = {name: groups for name, groups in results.groups.items() if data in (None, name)}
    tasks = {name: str(groups[0].rows[0].get("task") or "classes") for name, groups in chosen.items()}
    fitting = {name: groups for name, groups in chosen.items() if tasks[name] in FIGURES[kind][1]}
    if not fitting:
        known = {task: [one for one in FIGURES if task in FIGURES[one][1]] for task in set(tasks.values())}
        others = "; ".join(f"{', '.join(names)} for {task}" for task, names in sorted(known.items()))
        raise BadInput(f"--figure {kind}: does not fit {' and '.join(sorted(known))}; expected {others}")
    paths = []
    for name, groups in fitting.items():
        with drawing.style():
            figure = FIGURES[kind][0](results, groups, name, decision)
            own = re.sub(r"\.(npz|csv|parquet|jsonl?)\b", "", name)  # the ending of a file is no part of its name
            ending = "" if len(results.groups) == 1 else "-" + re.sub(r"[^\w.]+", "-", own).strip("-")
            shown = "" if kind == "bars" else f"-{decision}"
            paths.append(drawing.save_as(figure, results.folder / "figures", f"{kind}{shown}{ending}", to))
    return paths


def _pooled(results: Results, groups: Sequence[RunGroup], decision: str, most: int) -> list[Pooled]:
    """Return the answers of the best methods, those of all runs of each together."""
    pooled = []
    for group in groups:
        kept = [one for row in group.rows if (one := predictions_of_run(results, row)) and decision in one.answers]
        if kept and len(pooled) < most:
            label, answer = (
                np.concatenate([one.label for one in kept]),
                np.concatenate([one.answers[decision] for one in kept]),
            )
            pooled.append(Pooled(group.label, kept[0].names, label, answer))
    if not pooled:
        again = "runs of an earlier version kept none: run them again in another --out"
        raise BadInput(f"{results.folder}: expected answers of {decision} in its runs, found none; {again}")
    return pooled


def _panels(count: int, title: str, width: float = PANEL, height: float = PANEL) -> tuple[Figure, list[Axes]]:
    """Make a figure of so many panels, three in a row at most, below one title."""
    across = min(count, 3)
    down = -(-count // across)
    wide = max(width * across, 3.6)
    text = textwrap.fill(title, round(wide * 13))
    figure = drawing.canvas(wide, height * down + 0.15 + 0.17 * (text.count("\n") + 1))
    axes = figure.subplots(down, across, squeeze=False).flatten().tolist()
    for empty in axes[count:]:
        empty.remove()
    figure.suptitle(text, fontsize=10, x=0.01, ha="left", color=FAINT)
    return figure, axes[:count]


def _title(data: str, what: str, decision: str) -> str:
    return f"{data}: {what}, {decision}, test samples of all runs together"


def _confusion(results: Results, groups: Sequence[RunGroup], data: str, decision: str) -> Figure:
    """Draw the share of each true class that was taken for each class, and how many samples that is."""
    pooled = _pooled(results, groups, decision, MOST_PANELS)
    names = pooled[0].names
    count = len(names)
    longest = max(map(len, names))
    size = min(max(PANEL, 0.34 * count + 0.085 * min(longest, 18) + 0.7), 7.0)
    figure, panels = _panels(
        len(pooled), _title(data, "confusion matrix, % of each true class and number n", decision), size, size
    )
    texts, size_of_text = [_shortened(name, 18) for name in names], 7.5 if count <= 5 else 5.5
    for at, (axes, one) in enumerate(zip(panels, pooled, strict=True)):
        counts = np.zeros((count, count))
        np.add.at(counts, (one.label, one.answer.argmax(axis=1)), 1)
        shares = 100 * counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
        axes.imshow(shares, cmap="Purples", vmin=0, vmax=100)
        if count <= MOST_NAMED:
            for (right, said), share in np.ndenumerate(shares):
                if share >= 0.5:
                    colour = "white" if share > 55 else INK
                    text = f"{share:.0f}\nn={counts[right, said]:.0f}"
                    axes.text(said, right, text, ha="center", va="center", color=colour, fontsize=size_of_text)
        every = 1 if count <= 30 else -(-count // 30)
        ticks, shown = list(range(0, count, every)), texts[::every]
        turned = longest > 3 or count > MOST_NAMED
        axes.set_xticks(ticks, shown, rotation=45 if turned else 0, ha="right" if turned else "center", fontsize=7.5)
        axes.set_yticks(ticks, shown if at % 3 == 0 else [], fontsize=7.5)
        axes.set(title=one.title, xlabel="predicted", ylabel="true" if at % 3 == 0 else "")
        axes.tick_params(length=0)
        for spine in axes.spines.values():
            spine.set_visible(False)
    return figure


def _roc(results: Results, groups: Sequence[RunGroup], data: str, decision: str) -> Figure:
    """Draw true against false positives: of two classes a line per method, otherwise a line per class or label."""
    with needs("a receiver operating curve", "train"):
        from sklearn.metrics import roc_auc_score, roc_curve

    pooled = _pooled(results, groups, decision, MOST_LINES)
    binary = pooled[0].label.ndim == 1 and len(pooled[0].names) == 2
    if binary:
        positive = pooled[0].names[1]
        lines = [[(one.title, *one.columns[1][1:]) for one in pooled]]
        titles, what = [f"{positive} against {pooled[0].names[0]}"], "receiver operating curve"
    else:
        pooled = pooled[:MOST_PANELS]
        lines = [[one.columns[at] for at in range(len(one.names))] for one in pooled]
        titles, what = [one.title for one in pooled], "each class against the rest"
        what = what if pooled[0].label.ndim == 1 else "each label"
    figure, panels = _panels(len(lines), _title(data, what, decision), 3.3, 3.3)
    for axes, some, title in zip(panels, lines, titles, strict=True):
        known = [line for line in some if 0 < line[1].sum() < len(line[1])]
        areas = [roc_auc_score(truth, answer) for _, truth, answer in known]
        for at, ((name, truth, answer), area) in enumerate(zip(known, areas, strict=True)):
            false, true, _ = roc_curve(truth, answer)
            many = len(known) > MOST_LINES
            label = None if many else f"{_shortened(name, 18)} {area:.3f}"
            axes.plot(false, true, color=FAINT if many else _colour(at), lw=0.8 if many else 1.5, label=label)
        axes.plot([0, 1], [0, 1], color=LINE, lw=0.8, ls=":")
        axes.set(title=title, xlabel="false positive rate", ylabel="true positive rate", aspect="equal")
        axes.set(xlim=(-0.02, 1.02), ylim=(-0.02, 1.02))
        if known and len(known) > MOST_LINES:
            mean = f"{len(known)} curves, mean AUROC {np.mean(areas):.3f}"
            axes.text(0.97, 0.04, mean, transform=axes.transAxes, ha="right", fontsize=8)
        elif known:
            axes.legend(loc="lower right", title="AUROC", **LEGEND)
    return figure


def _calibration(results: Results, groups: Sequence[RunGroup], data: str, decision: str) -> Figure:
    """Draw how often a confidence was right, a line per method."""
    pooled = _pooled(results, groups, decision, MOST_LINES)
    classes = pooled[0].label.ndim == 1
    figure, (axes,) = _panels(1, _title(data, f"calibration in bins of {FEWEST} samples or more", decision), 6.0, 4.0)
    axes.plot([0, 1], [0, 1], color=LINE, lw=0.8, ls=":")
    for at, one in enumerate(pooled):
        if classes:
            said, right = one.answer.max(axis=1), one.answer.argmax(axis=1) == one.label
        else:
            said, right = one.answer.flatten(), one.label.flatten() > 0.5
        place = np.clip(np.ceil(said * BINS).astype(int) - 1, 0, BINS - 1)
        bins = [(said[place == number], right[place == number]) for number in np.unique(place)]
        gaps = [len(some) * abs(some.mean() - hits.mean()) for some, hits in bins]
        drawn = np.array([(some.mean(), hits.mean()) for some, hits in bins if len(some) >= FEWEST]).reshape(-1, 2)
        label = f"{one.title} {100 * sum(gaps) / len(said):.1f}"
        axes.plot(drawn[:, 0], drawn[:, 1], color=_colour(at), marker="o", ms=3.5, lw=1.3, label=label)
    axes.set(
        xlabel="confidence of the predicted class" if classes else "predicted probability of a label",
        ylabel="accuracy" if classes else "share of samples that have it",
        xlim=(-0.02, 1.02),
        ylim=(-0.02, 1.02),
        aspect="equal",
    )
    axes.legend(loc="upper left", bbox_to_anchor=(1.02, 1), title="calibration error, points", **LEGEND)
    return figure


def _residuals(results: Results, groups: Sequence[RunGroup], data: str, decision: str) -> Figure:
    """Draw prediction minus target over the target, a panel per method and column of the target."""
    pooled = _pooled(results, groups, decision, MOST_PANELS)
    several = len(pooled[0].names) > 1
    cells = [(one, *column) for one in pooled for column in one.columns][:MOST_PANELS]
    figure, panels = _panels(
        len(cells),
        _title(data, "residuals (means over samples of all runs; the table has means over runs)", decision),
        3.1,
        2.7,
    )
    limits: dict[str, float] = {}
    for _, name, truth, answer in cells:
        limits[name] = max(limits.get(name, 0.0), float(np.quantile(np.abs(answer - truth), 0.995)) or 1.0)
    for at, (axes, (one, name, truth, answer)) in enumerate(zip(panels, cells, strict=True)):
        residual = answer - truth
        some = np.random.default_rng(0).permutation(len(truth))[:MOST_POINTS]
        axes.scatter(truth[some], residual[some], s=6, alpha=0.35, color=MODALITIES[0], lw=0)
        axes.axhline(0, color=LINE, lw=0.8)
        axes.set_ylim(-1.1 * limits[name], 1.1 * limits[name])
        column = f", {_shortened(name, 16)}" if several else ""
        about = f"mean {residual.mean():+.3g}, mae {np.abs(residual).mean():.3g}"
        axes.set_title(f"{one.title}{column}: {about}", fontsize=9)
        axes.set(xlabel=f"true {name}", ylabel="prediction − target" if at % 3 == 0 else "")
    return figure


def _bars(_results: Results, groups: Sequence[RunGroup], data: str, _decision: str) -> Figure:
    """Draw fused and committee of every method with their deviation over runs, and the answer without sensors."""
    shown = [group for group in groups if group.fused or group.committee][: 2 * MOST_LINES][::-1]
    head, constant = headline(groups), baseline_group(groups)
    figure, (axes,) = _panels(1, f"{data}: {head.in_axis} on the test set{head.about}", 5.6, 0.42 * len(shown) + 1.2)
    for at, (decision, colour) in enumerate((("committee", MODALITIES[0]), ("fused", JOINT))):
        means = [group.of("test", decision) for group in shown]
        known = [(place, mean) for place, mean in enumerate(means) if mean]
        if known:
            places = [place + 0.19 - 0.38 * (1 - at) for place, _ in known]
            values = [head.scale * mean.mean for _, mean in known]
            errors = [head.scale * (mean.deviation or 0.0) for _, mean in known]
            how: dict[str, Any] = {"xerr": errors} if any(errors) else {}
            how |= {"error_kw": {"ecolor": INK, "elinewidth": 1}}
            axes.barh(places, values, height=0.36, color=colour, label=decision, **how)
    ends = _limits(head, [group.of("test", one) for group in shown for one in ("fused", "committee")], constant)
    if constant and constant.fused:
        axes.axvline(head.scale * constant.fused.mean, color=FAINT, ls="--", lw=1, label=constant.label)
    axes.set_yticks(range(len(shown)), [_shortened(group.label, 28) for group in shown])
    axes.set(xlabel=head.in_axis, xlim=ends)
    axes.tick_params(axis="y", length=0, labelcolor=INK)
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(handles[::-1], labels[::-1], loc="outside lower center", ncols=3, fontsize=8)
    return figure


def _limits(head: Headline, means: Iterable[Any], constant: RunGroup | None) -> tuple[float, float]:
    """Return the ends of the axis: bars begin at zero, unless a number lies below it."""
    known = [mean for mean in means if mean]
    ends = [head.scale * (mean.mean + sign * (mean.deviation or 0.0)) for mean in known for sign in (-1, 1)]
    ends += [head.scale * constant.fused.mean] if constant and constant.fused else []
    low, high = min(0.0, *ends), max(0.0, *ends)
    return low * 1.05, min(high * 1.05, 100.0) if head.metric.percent and high <= 100 else high * 1.05


def _colour(at: int) -> str:
    return (JOINT, *MODALITIES)[at % (1 + len(MODALITIES))]


def _shortened(text: str, longest: int) -> str:
    return text if len(text) <= longest else text[: longest - 1] + "…"


Draw = Callable[[Results, Sequence[RunGroup], str, str], "Figure"]
FIGURES: dict[str, tuple[Draw, tuple[str, ...]]] = {
    "confusion": (_confusion, ("classes",)),
    "roc": (_roc, ("classes", "labels")),
    "calibration": (_calibration, ("classes", "labels")),
    "residuals": (_residuals, ("regression",)),
    "bars": (_bars, ("classes", "labels", "regression")),
}
"""Functions that draw each kind of figure, and the tasks it fits."""
FORMATS = ("pdf", "svg", "png")
