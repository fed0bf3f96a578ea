"""The report of a search (`equipoise tune`): its best trials, what mattered, the command for the best, and a figure."""

from __future__ import annotations

import itertools
import textwrap
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from equipoise.report import drawing
from equipoise.report.drawing import FAINT, INK, JOINT, MODALITIES
from equipoise.report.formats import text_table
from equipoise.study.tuning import Interval, SearchResult, SearchTrial, as_typed

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SHOWN = 10  # trials in the table that is printed
COLUMNS = 3  # panels of parameters in a row
GRID = "#d1d9e0"
STATES = ("finished", "pruned", "diverged", "failed", "killed")


def text(result: SearchResult, command: str) -> str:
    """Write the report for the terminal."""
    titles, *rows = _rows(result)
    lines = [*textwrap.wrap(summary(result), 118), "", *text_table(titles, rows[:SHOWN]), ""]
    lines += [*textwrap.wrap(_importance(result), 118), *textwrap.wrap(_caution(result), 118), ""]
    return "\n".join([*lines, "To train with the best, type:", f"  {command}"])


def markdown(result: SearchResult, command: str) -> str:
    """Write the report with every trial."""
    titles, *rows = (f"| {' | '.join(row)} |" for row in _rows(result))
    table = "\n".join([titles, "|" + "---|" * (len(result.search.space) + 4), *rows])
    return f"{summary(result)}\n\n{table}\n\n{_importance(result)} {_caution(result)}\n\n    {command}\n"


def as_dict(result: SearchResult, command: str) -> dict[str, Any]:
    """Return all numbers in plain values."""
    base = result.search.base
    return {
        "data": result.data,
        "cut": result.about,
        "judged on": result.judged_on,
        "seed": result.seed,
        "metric": result.metric.name,
        "method": base.method.name,
        "base": {"params": base.params, "run": base.settings.as_dict()},
        "space": {key: str(values) for key, values in result.search.space.items()},
        "best": result.best._asdict(),
        "importance": result.importance,
        "command": command,
        "trials": [trial._asdict() for trial in result.trials],
    }


def ranked(result: SearchResult) -> list[SearchTrial]:
    """Sort the trials, the best first; those that did not come to their end after all that did."""
    merit = result.metric.merit
    return sorted(result.trials, key=lambda trial: (STATES.index(trial.state), -merit(trial.score), trial.number))


def summary(result: SearchResult) -> str:
    """Describe the search in a sentence or two."""
    base, states, label = result.search.base, [trial.state for trial in result.trials], result.metric.label
    space = " ".join(f"{key}={values}" for key, values in result.search.space.items())
    counts = ", ".join(f"{states.count(state)} {state}" for state in sorted(set(states)))
    return (
        f"Search of {base.method.name} on {result.data}: {space}; {len(states)} trials ({counts}), "
        f"{base.settings.epochs} epochs, seed {result.seed}. {label[0].upper()}{label[1:]} on the {result.judged_on} "
        "validation samples; the test part was not read."
    )


def _importance(result: SearchResult) -> str:
    if not result.importance:
        return "What mattered: too few trials to tell."
    shares = ", ".join(f"{key} {100 * share:.0f} %" for key, share in result.importance.items())
    return f"What mattered, as a share of what decides whether a trial is among the best (PED-ANOVA): {shares}."


def _caution(result: SearchResult) -> str:
    """Say what the best is worth."""
    start = next((trial for trial in result.trials if trial.number == 0 and trial.state == "finished"), None)
    beside = ""
    if start is not None and start.values == result.search.start() and result.best.number != 0:
        beside = f"As it stood the method had {_shown(start, result)}{' %' if result.metric.percent else ''}. "
    luck = (
        f"The best of {len(result.trials)} is partly luck; the test {result.metric.label} of the command below is not."
    )
    killed = sum(trial.state == "killed" for trial in result.trials)
    again = f" Killed: {killed}; to run what was killed, type the same command again." if killed else ""
    return beside + luck + again


def _shown(trial: SearchTrial, result: SearchResult) -> str:
    if trial.score is None:
        return "–"
    return f"{100 * trial.score:.1f}" if result.metric.percent else f"{trial.score:.4g}"


def _heights(trials: Iterable[SearchTrial], result: SearchResult) -> list[float]:
    """Return scores for an axis, in percent where the metric is."""
    return [(100 if result.metric.percent else 1) * (trial.score or 0.0) for trial in trials]


def _axis(result: SearchResult) -> str:
    return "validation, %" if result.metric.percent else f"validation, {result.metric.name}"


def _rows(result: SearchResult) -> list[list[str]]:
    """Return the titles and the cells of each trial, the best first."""
    rows = [["trial", *result.search.space, _axis(result).replace(", %", " %"), "epochs", ""]]
    for trial in ranked(result):
        values = (as_typed(trial.values[key]) if key in trial.values else "–" for key in result.search.space)
        state = "" if trial.state == "finished" else trial.state
        note = "best" if trial.number == result.best.number else state
        rows.append([str(trial.number), *values, _shown(trial, result), str(trial.epochs), note])
    return rows


# -- the figure --


def draw(result: SearchResult, folder: Path, made: str) -> list[Path]:
    """Draw the best so far, what mattered, and the metric over each parameter, as SVG and PNG.

    Args:
        result: The search.
        folder: The folder to write to.
        made: The command that made it, the first sentence of the caption.
    """
    keys = list(result.search.space)
    columns = min(COLUMNS, max(2, len(keys)))
    rows = -(-len(keys) // columns)
    colours = {key: MODALITIES[at % len(MODALITIES)] for at, key in enumerate(keys)}
    with drawing.style():
        figure = drawing.canvas(3.1 * columns, 2.7 * (rows + 1))
        upper, lower = figure.add_gridspec(2, 1, height_ratios=[1, rows])
        above, below = upper.subgridspec(1, 2), lower.subgridspec(rows, columns)
        progress = figure.add_subplot(above[0])
        _draw_progress(progress, result)
        _draw_importance(figure.add_subplot(above[1]), result, colours)
        for number, key in enumerate(keys):
            row, column = divmod(number, columns)
            axes = figure.add_subplot(below[row, column], sharey=progress)
            _draw_parameter(axes, result, key, colours[key])
            axes.tick_params(labelleft=column == 0)
            axes.set_ylabel(_axis(result) if column == 0 else "")
        return drawing.save(figure, folder, "tune", f"{made} {summary(result)} {_reading(result)}")


def _draw_progress(axes: Axes, result: SearchResult) -> None:
    """Draw every trial, and the best until then."""
    from matplotlib.ticker import MaxNLocator

    _draw_trials(axes, result, lambda trial: trial.number)
    done = [trial for trial in result.trials if trial.state == "finished"]
    best = list(itertools.accumulate(_heights(done, result), max if result.metric.higher else min))
    last = result.trials[-1].number
    axes.step([*(trial.number for trial in done), last], [*best, best[-1]], where="post", color=JOINT)
    axes.set(title="best so far", xlabel="trial", ylabel=_axis(result))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))


def _draw_importance(axes: Axes, result: SearchResult, colours: dict[str, str]) -> None:
    """Draw how much each parameter decides."""
    axes.set(title="what mattered")
    if not result.importance:
        axes.text(0.5, 0.5, "too few trials to tell", transform=axes.transAxes, ha="center", color=FAINT)
        axes.set(xticks=[], yticks=[])
        return
    keys = list(result.importance)[::-1]
    shares = [100 * result.importance[key] for key in keys]
    bars = axes.barh(keys, shares, color=[colours[key] for key in keys], height=0.6)
    axes.bar_label(bars, [f"{share:.0f}" for share in shares], padding=3, color=INK)
    axes.set(xlabel="share, %", xlim=(0, 112))
    axes.tick_params(axis="y", length=0, labelcolor=INK)


def _draw_parameter(axes: Axes, result: SearchResult, key: str, colour: str) -> None:
    """Draw the metric over one parameter; words and few values stand at equal distances."""
    space = result.search.space[key]
    if isinstance(space, Interval):
        _draw_trials(axes, result, lambda trial: trial.values[key], colour)
        if space.log:
            axes.set_xscale("log")
    else:
        _draw_trials(axes, result, lambda trial: space.values.index(trial.values[key]), colour)
        axes.set_xticks(range(len(space.values)), [as_typed(value) for value in space.values])
        axes.set_xlim(-0.5, len(space.values) - 0.5)
    axes.set_xlabel(key)


def _draw_trials(axes: Axes, result: SearchResult, place: Callable[[SearchTrial], Any], colour: str = FAINT) -> None:
    scored = [trial for trial in result.trials if trial.score is not None]
    finished, pruned = ([trial for trial in scored if trial.state == state] for state in STATES[:2])
    filled: dict[str, Any] = {"color": colour, "s": 18}
    hollow: dict[str, Any] = {"facecolors": "none", "edgecolors": colour, "lw": 0.8, "s": 18}
    ring: dict[str, Any] = {**hollow, "edgecolors": INK, "lw": 1.3, "s": 70}
    for trials, look in ((finished, filled), (pruned, hollow), ([result.best], ring)):
        axes.scatter([place(trial) for trial in trials], _heights(trials, result), **look)
    axes.grid(axis="y", color=GRID, lw=0.6)
    axes.set_axisbelow(True)


def _reading(result: SearchResult) -> str:
    pruned = any(trial.state == "pruned" for trial in result.trials)
    hollow = f" Hollow: pruned, at the {result.metric.label} they had then." if pruned else ""
    left = sum(trial.score is None for trial in result.trials)
    without = f" {left} without a score are left out." if left else ""
    mattered = " What mattered: PED-ANOVA's share of what decides whether a trial is among the best; rough below some "
    return f"A point is a trial, the ring the best.{hollow}{without}{mattered}fifty trials."
