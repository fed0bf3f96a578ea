"""The figure of a reproduced table: for every row the paper's accuracies and ours, with error bars."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from equipoise.paper.ablation import in_words
from equipoise.paper.reproduce_outcome import Outcome
from equipoise.report import drawing
from equipoise.report.aggregate import PROTOCOLS, MeanStd
from equipoise.report.drawing import FAINT, JOINT, MODALITIES

if TYPE_CHECKING:
    from matplotlib.axes import Axes

NAME = "reproduce"
PANEL, ROW = 2.6, 0.27  # inches
SHIFT = 0.16


def draw(outcome: Outcome, folder: Path) -> list[Path]:
    """One panel for the fused accuracy and one for each modality alone, rows as in the paper, as SVG and PNG."""
    lines = list(outcome.lines.values())
    rows = [outcome.table.row(line.label) for line in lines]
    panels = {"fused (Acc)": ([line.fused for line in lines], [row and row.fused for row in rows], JOINT)}
    for number, (name, letter) in enumerate(outcome.table.modalities.items()):
        ours, paper = [line.alone.get(name) for line in lines], [row and row.of(name) for row in rows]
        panels[f"{name} alone (Acc_{letter})"] = (ours, paper, MODALITIES[number])
    with drawing.style():
        figure = drawing.canvas(max(6.4, PANEL * len(panels)), 1.1 + ROW * len(rows))
        row_of_axes = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
        for axes, (title, (ours, paper, colour)) in zip(row_of_axes, panels.items(), strict=True):
            if outcome.beside_paper:
                _points(axes, paper, FAINT, "s", "paper", -SHIFT)
            _points(axes, ours, colour, "o", "ours", SHIFT if outcome.beside_paper else 0.0)
            axes.set(xlabel="accuracy in %", title=title)
            axes.grid(axis="x", color="#d1d9e0", lw=0.6)
        first = row_of_axes[0]
        first.set_yticks(range(len(rows)), list(outcome.lines))
        first.set_ylim(len(rows) - 0.5, -0.5)
        if outcome.beside_paper:
            handles, labels = first.get_legend_handles_labels()
            figure.legend(handles, labels, loc="outside upper left", ncols=2)
        return drawing.save(figure, folder, NAME, caption(outcome))


def caption(outcome: Outcome) -> str:
    """How it was made."""
    plan, settings = outcome.plan, outcome.plan.settings
    protocols: dict[str, list[str]] = {}
    for line in outcome.lines.values():
        if line.protocol is not None:
            protocols.setdefault(line.protocol, []).append(line.label)
    alone = "; ".join(f"{', '.join(names)} by {PROTOCOLS[each]}" for each, names in protocols.items())
    chosen = outcome.chosen
    at = "" if chosen is None else f" MIMO at λ = {in_words(chosen['penalty'])}, μ = {in_words(chosen['smoothing'])}."
    paper = " Squares: the paper's numbers." if outcome.beside_paper else " Made-up data: the numbers mean nothing."
    missing = f" Not complete: {', '.join(outcome.missing)}." if outcome.missing else ""
    return (
        f"Made by `{plan.command}`. {outcome.table.title}, {plan.about.rstrip('.')}. {settings['epochs']} epochs, "
        f"batch {settings['batch']}, learning rate {settings['lr']:g}, encoder {settings['encoder']}, {plan.seeds} "
        f"seeds; test part, mean and one standard deviation over seeds.{at} Modalities alone: {alone}.{paper}{missing}"
    )


def _points(axes: Axes, found: Sequence[MeanStd | None], colour: str, mark: str, name: str, shift: float) -> None:
    there = [(at, each) for at, each in enumerate(found) if each is not None]
    axes.errorbar(
        [100 * each.mean for _, each in there], [at + shift for at, _ in there],
        xerr=[100 * (each.deviation or 0.0) for _, each in there], fmt=mark, color=colour, ms=4.5, elinewidth=1.0,
        capsize=2.5, mfc="white" if mark == "s" else colour, label=name,
    )  # fmt: skip
