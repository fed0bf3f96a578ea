"""The figure of an ablation: accuracy over each parameter, with error bars."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from equipoise.paper.ablation import Curve, in_words
from equipoise.paper.ablation_report import protocol_of, setting_of
from equipoise.paper.ablation_runs import Outcome
from equipoise.report import drawing
from equipoise.report.aggregate import PROTOCOLS, MeanStd
from equipoise.report.drawing import FAINT, JOINT, MODALITIES

if TYPE_CHECKING:
    from matplotlib.axes import Axes

NAME = "ablation"
SYMBOLS = {"penalty": "penalty λ", "smoothing": "smoothing μ", "lr": "learning rate"}
WIDTH = 3.3  # inches of a panel


def draw(outcome: Outcome, folder: Path, made: str) -> list[Path]:
    """One panel per parameter, and one where the learning rate was divided, as SVG and PNG.

    Args:
        outcome: What came out.
        folder: Where to.
        made: How it was made, the first sentence of the caption.
    """
    panels: dict[tuple[str, bool], list[Curve]] = {}
    for curve in outcome.sweep.curves:
        panels.setdefault((curve.axis, curve.divided), []).append(curve)
    with drawing.style():
        figure = drawing.canvas(max(6.4, WIDTH * len(panels)), 3.6)
        row = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
        for axes, curves in zip(row, panels.values(), strict=True):
            _panel(axes, outcome, curves)
        row[0].set_ylabel("accuracy in %")
        if not outcome.sweep.grid:  # above the panels, since curves may be anywhere in them
            figure.legend(*row[0].get_legend_handles_labels(), loc="outside upper left", ncols=5)
        return drawing.save(figure, folder, NAME, _caption(outcome, made))


def _panel(axes: Axes, outcome: Outcome, curves: Sequence[Curve]) -> None:
    """Values stand at equal distances: they are words or powers more often than not."""
    first = curves[0]
    if outcome.sweep.grid and first.others:
        for number, curve in enumerate(curves):
            colour = MODALITIES[number % len(MODALITIES)]
            name = ", ".join(f"{each} {in_words(value)}" for each, value in curve.others.items())
            shift = 0.24 * ((number + 0.5) / len(curves) - 0.5)
            _line(axes, [point.accuracy("test") for point in outcome.along(curve).values()], colour, "o-", name, shift)
    else:
        _one_curve(axes, outcome, first)
    values = list(first.labels)
    axes.set_xticks(range(len(values)), [in_words(value) for value in values])
    axes.set(xlabel=SYMBOLS.get(first.axis, first.axis), xlim=(-0.4, len(values) - 0.6))
    if first.axis != "lr":
        axes.set_title(f"learning rate {outcome.sweep.base.settings.lr:g}" + (" / (1 + λ)" if first.divided else ""))
    axes.grid(axis="y", color="#d1d9e0", lw=0.6)
    if outcome.sweep.grid and first.others:
        axes.legend()


def _one_curve(axes: Axes, outcome: Outcome, curve: Curve) -> None:
    points = list(outcome.along(curve).values())
    names = list(dict.fromkeys(name for point in points for name in point.alone("test")))
    for number, name in enumerate(names):
        colour = MODALITIES[number % len(MODALITIES)]
        alone = [point.alone("test").get(name) for point in points]
        _line(axes, alone, colour, "^:", f"{name} alone, test", 0.05 * (number + 1))
    _line(axes, [point.accuracy("validation") for point in points], FAINT, "s--", "fused, validation", -0.05)
    _line(axes, [point.accuracy("test") for point in points], JOINT, "o-", "fused, test", 0.0)
    chosen = outcome.chosen(curve)
    if chosen is not None:
        at = list(curve.labels).index(chosen)
        axes.axvline(at, color=FAINT, lw=0.8, ls=(0, (2, 3)), zorder=0)
        axes.annotate(
            "chosen", (at, 0), xycoords=("data", "axes fraction"), xytext=(3, 4), textcoords="offset points",
            fontsize=8, color=FAINT, rotation=90, va="bottom",
        )  # fmt: skip
    for at, point in enumerate(points):
        if point.failed:
            axes.annotate(
                "runs fail", (at, 0.5), xycoords=("data", "axes fraction"), fontsize=8, color=FAINT, rotation=90,
                ha="center", va="center",
            )  # fmt: skip


def _line(axes: Axes, found: Sequence[MeanStd | None], colour: str, look: str, name: str, shift: float) -> None:
    there: list[tuple[int, MeanStd]] = [(at, each) for at, each in enumerate(found) if each is not None]
    bars: Any = [100 * (each.deviation or 0.0) for _, each in there]
    axes.errorbar(
        [at + shift for at, _ in there], [100 * each.mean for _, each in there], yerr=bars, fmt=look, color=colour,
        ms=4, lw=1.6 if look == "o-" else 1.1, elinewidth=1.0, capsize=2.5, label=name,
    )  # fmt: skip


def _caption(outcome: Outcome, made: str) -> str:
    protocol = protocol_of(outcome)
    alone = f" Modalities alone: {PROTOCOLS[protocol]} (protocol {protocol})." if protocol is not None else ""
    failed = " A point is left out where a run failed." if any(each.failed for each in outcome.points.values()) else ""
    if outcome.sweep.grid:
        shown = "All combinations; fused accuracy on test."
        alone = ""
    else:
        shown = "One parameter moves, the others stay; the dotted line is what validation chooses."
    return (
        f"{made} Ablation of {setting_of(outcome)}; {outcome.about}. {shown}{alone} Mean and one standard deviation "
        f"over runs.{failed}"
    )
