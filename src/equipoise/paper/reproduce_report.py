"""The report of a reproduced table: tables in the paper's layout, its claims, notes, and the figure."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from equipoise.measure.timing import OWN
from equipoise.paper.claims import WIDTH, claim_lines, count, in_words
from equipoise.paper.published import PaperRow
from equipoise.paper.reproduce import CONTROL, ReproducedTable
from equipoise.paper.reproduce_claims import claims, summary
from equipoise.report import FORMATS, as_dict, drawing, print_table
from equipoise.report.aggregate import PROTOCOLS, MeanStd, RunGroup
from equipoise.report.columns import ResultColumn, measured, time_columns
from equipoise.report.differences import Difference, paired_differences
from equipoise.report.drawing import FAINT, JOINT, MODALITIES
from equipoise.report.notes import notes_below
from equipoise.report.step_times import time_note
from equipoise.report.table import ResultTable, build_table, underline_fastest
from equipoise.util.files import write_atomic

if TYPE_CHECKING:
    from matplotlib.axes import Axes

NAME = "reproduce"
SUFFIXES = {"markdown": "md", "latex": "tex", "csv": "csv"}


def show(outcome: ReproducedTable) -> None:
    """Print tables, claims and notes."""
    for table in tables(outcome).values():
        print_table(table)
        print()
    print("\n".join(words(outcome)))


def write(outcome: ReproducedTable, out: Path, figures: list[Path]) -> dict[str, Any]:
    """Write the tables in every format, and all numbers as JSON, which is also returned."""
    for name, table in tables(outcome).items():
        for form, suffix in SUFFIXES.items():
            write_atomic(out, f"{NAME}-{name}.{suffix}", FORMATS[form][0](table))
    write_atomic(out, f"{NAME}.txt", "\n".join(words(outcome)) + "\n")
    content = {**in_values(outcome), "figures": [str(path) for path in figures]}
    write_atomic(out, f"{NAME}.json", json.dumps(content, indent=1, ensure_ascii=False) + "\n")
    return content


def in_values(outcome: ReproducedTable) -> dict[str, Any]:
    """Return the report in plain values."""
    plan = outcome.plan
    return {
        "table": plan.table,
        "title": outcome.table.title,
        "scale": plan.scale,
        "data": plan.data,
        "cut": plan.about,
        "seeds": plan.seeds,
        "settings": plan.settings,
        "params": plan.params,
        "departures": plan.departures,
        "complete": not outcome.missing,
        "missing": dict(outcome.missing),
        "grid": {
            "choice": plan.choice,
            "seeds": plan.grid_seeds,
            "chosen": outcome.chosen,
            "points": [{**params, "validation": score} for params, score in outcome.scores],
        },
        "tables": {name: as_dict(table) for name, table in tables(outcome).items()},
        "claims": [claim._asdict() for claim in claims(outcome)],
        "notes": list(outcome.table.notes) if outcome.beside_paper else [],
    }


def words(outcome: ReproducedTable) -> list[str]:
    """Return the grid, the claims and the notes, in lines."""
    lines = [*_grid(outcome), *_claims(outcome)]
    if outcome.beside_paper:
        lines += ["Before anything is compared with the paper's numbers:"]
        wrap = textwrap.TextWrapper(WIDTH, initial_indent="  - ", subsequent_indent="    ")
        lines += [wrap.fill(note) for note in outcome.table.notes]
    else:
        lines += [
            "A made-up stand-in, tiny encoders, a small grid: this shows that the pipeline runs, and nothing else.",
            f"No number of the paper stands beside it. On the data itself: equipoise reproduce {outcome.table.name}",
        ]
    return lines


def _grid(outcome: ReproducedTable) -> Iterator[str]:
    if not outcome.scores:
        return
    seeds = count(outcome.plan.grid_seeds, "seed")
    yield f"Validation accuracy of MIMO over {' and '.join(outcome.scores[0][0])}, {seeds} each:"
    for params, score in outcome.scores:
        values = "  ".join(f"{name}={in_words(value):<6}" for name, value in params.items())
        accuracy = "no end" if score is None else f"{100 * score:.2f} %"
        yield f"  {values} {accuracy}" + ("  chosen" if params == outcome.chosen else "")
    yield ""


def _claims(outcome: ReproducedTable) -> Iterator[str]:
    if every := claims(outcome):
        yield "What the paper says, and what was measured: test part, paired by seed, 95 % intervals."
        yield from claim_lines(every, places=False)
        yield summary(every)
        yield "open: the interval cannot tell, or the two readings of t disagree."
        yield "Seeds of one split say nothing of other data."
        yield ""


# -- tables --

BASELINE = "MSL"
MILLISECONDS = 1000.0
READINGS = {"with backward": "t, wide", "without backward": "t, narrow"}
"""The paper's time by two readings of its words, as titles of columns."""


def tables(outcome: ReproducedTable) -> dict[str, ResultTable]:
    """Build all tables, by the names their files have."""
    beside = {"beside": beside_table(outcome)} if outcome.beside_paper else {}
    return {"table": layout_table(outcome), **beside, "time": time_table(outcome)}


def layout_table(outcome: ReproducedTable) -> ResultTable:
    """Build our numbers in the paper's layout: its rows in its order, Acc, Acc of each modality, and t."""
    lines = list(outcome.lines.values())
    rows = [row for line in lines if line.fused for row in line.rows]
    differences = {difference.label: difference for difference in paired_differences(rows, BASELINE, ("test", "fused"))}
    columns = [
        ResultColumn("acc", "Acc", lambda line: line.fused, decimals=2, better="higher"),
        *(
            ResultColumn(f"acc.{name}", f"Acc_{letter}", _alone(name), f"{name}, %", decimals=2, better="higher",
                   by_protocol=True)
            for name, letter in outcome.table.modalities.items()
        ),
        *time_columns("ms", "time", "t"),
        ResultColumn("disparity", "disparity", lambda line: line.disparity, "points", decimals=2, better="lower",
               by_protocol=True),
        ResultColumn("protocol", "alone by", lambda line: line.protocol, "", kind="words"),
        ResultColumn("difference", f"vs {BASELINE}", lambda line: differences.get(line.label), "points",
                     kind="difference", decimals=2),
    ]  # fmt: skip
    title = f"{outcome.table.title}: the paper's table, run here"
    if not outcome.beside_paper:
        title = f"{outcome.table.title} on a made-up stand-in: these numbers are no results"
    table = build_table(title, columns, lines, _notes(outcome, list(differences.values())))
    return underline_fastest(table, lines, "t", "fused")


def beside_table(outcome: ReproducedTable) -> ResultTable:
    """Build every accuracy and disparity here, in the paper, and the difference."""
    columns = _three(outcome, "acc", "Acc", lambda line: line.fused, lambda row: row.fused)
    for name, letter in outcome.table.modalities.items():
        columns += _three(outcome, f"acc.{name}", f"Acc_{letter}", _alone(name), lambda row, name=name: row.of(name))
    columns += _three(outcome, "disparity", "disparity", lambda line: line.disparity, _paper_disparity)
    notes = [
        "Difference: ours minus the paper's, in points. Numbers of the paper as printed: mean and standard deviation "
        "of three seeds; its disparity is computed from its columns.",
        "The paper measures single-sensor accuracy by heads trained on each encoder's features; whether their "
        "gradient reaches the encoders of MSL and of the modulating methods it does not say. Here it does not.",
    ]
    title = f"{outcome.table.title}: ours beside the paper's"
    return build_table(title, columns, list(outcome.lines.values()), notes)


def time_table(outcome: ReproducedTable) -> ResultTable:
    """Build the cost of a batch: t, and the paper's time by two readings of its words, each over both baselines."""
    singles = {row.name for row in outcome.table.rows if row.sensor}
    lines = [line for line in outcome.lines.values() if line.label not in singles]
    columns = [
        *time_columns("ms", "time", "t"),
        ResultColumn("t.cpu", "t", measured("timing", "t", OWN, "cpu"), "ms of CPU", scale=MILLISECONDS, decimals=2,
                     timed=True),
        *(
            column
            for key, title in READINGS.items()
            for column in time_columns("ms", "time", key, key=key, title=title)
        ),
        ResultColumn("step", "whole step", lambda line: line.step, "ms", scale=MILLISECONDS, decimals=2, timed=True),
    ]  # fmt: skip
    if outcome.beside_paper:
        printed = {row.name: row.seconds for row in outcome.table.rows}

        def ratio(line: RunGroup) -> MeanStd | None:
            own = printed.get(line.label)
            return None if own is None else MeanStd(own.mean / printed[BASELINE].mean, None, 1)

        columns += [
            ResultColumn("paper", "paper's", lambda line: printed.get(line.label), "ms", scale=MILLISECONDS,
                         decimals=1),
            ResultColumn("paper.ratio", "paper's", ratio, f"× paper's {BASELINE}", scale=1.0),
        ]  # fmt: skip
    return build_table(f"{outcome.table.title}: seconds per batch", columns, lines, _time_notes(outcome))


# -- columns --


def _three(
    outcome: ReproducedTable,
    key: str,
    title: str,
    ours: Callable[[RunGroup], MeanStd | None],
    printed: Callable[[PaperRow], MeanStd | None],
) -> list[ResultColumn]:
    """Build the columns of ours, the paper's, and the difference."""

    def paper(line: RunGroup) -> MeanStd | None:
        row = outcome.table.row(line.label)
        return None if row is None else printed(row)

    def difference(line: RunGroup) -> Difference | None:
        one, other = ours(line), paper(line)
        if one is None or other is None:
            return None
        return Difference(line.label, "paper", one.mean - other.mean, None, None, one.count, "seeds")

    unit = "points" if key == "disparity" else "%"
    return [
        ResultColumn(key, title, ours, f"ours, {unit}", decimals=2),
        ResultColumn(f"{key}.paper", title, paper, f"paper, {unit}", decimals=2),
        ResultColumn(f"{key}.difference", title, difference, "difference", kind="difference", decimals=2),
    ]


def _alone(name: str) -> Callable[[RunGroup], MeanStd | None]:
    return lambda line: line.alone.get(name)


def _paper_disparity(row: PaperRow) -> MeanStd | None:
    return None if row.disparity is None else MeanStd(row.disparity, None, 1)


# -- notes --


def _notes(outcome: ReproducedTable, differences: list[Difference]) -> list[str]:
    plan, there = outcome.plan, [line for line in _once(outcome) if line.rows]
    notes = [_parameters(outcome), *(notes_below(there, differences, decision="fused") if there else [])]
    notes += [note for note in [time_note([row for line in there for row in line.rows])] if note]
    if plan.seeds > 1 and differences:
        notes.append("An interval over seeds of one split speaks of the seeds alone, not of other data.")
    if singles := [row.name for row in outcome.table.rows if row.sensor]:
        notes.append(f"{', '.join(singles)}: one run trains each sensor for itself, side by side, so t is left out.")
    if CONTROL in outcome.lines:
        notes.append(
            f"{CONTROL}: no row of the paper. λ also enlarges the step; equal weights that are as large together tell "
            "what the maximum adds."
        )
    alike: dict[str, list[str]] = {}
    for name, words in outcome.missing.items():
        alike.setdefault(words, []).append(name)
    if alike:
        notes.append("NOT COMPLETE: " + "; ".join(f"{', '.join(some)}: {words}" for words, some in alike.items()) + ".")
    if plan.departures:
        notes.append(f"DEPARTURES from the paper's preset {outcome.table.name}: {', '.join(plan.departures)}.")
    return notes


def _parameters(outcome: ReproducedTable) -> str:
    """Say where MIMO's λ and μ come from."""
    plan, chosen = outcome.plan, outcome.chosen
    runs = f"{count(plan.grid_seeds, 'seed')} each"
    if chosen is None:
        return f"MIMO's λ and μ are being chosen on validation data, of {len(plan.trials)} points, {runs}."
    told = f"MIMO: λ = {in_words(chosen['penalty'])}, μ = {in_words(chosen['smoothing'])}, "
    if plan.choice == "grid":
        known = sum(score is not None for _, score in outcome.scores)
        return (
            f"{told}chosen on validation accuracy of {known} of {len(plan.trials)} points that came to an end, {runs}, "
            "before the test part was read. As in the paper no other method was tuned; equipoise compare --tune gives "
            "all the same trials."
        )
    if not outcome.beside_paper:
        return f"{told}nothing was searched."
    return told + ("as the paper gives them; nothing was searched." if plan.choice == "paper" else "as typed.")


def _once(outcome: ReproducedTable) -> list[RunGroup]:
    """Return the lines, with single sensors together: they are the same runs."""
    singles = [row.name for row in outcome.table.rows if row.sensor]
    together = [RunGroup(", ".join(singles), outcome.lines[singles[0]].rows)] if singles else []
    return together + [line for name, line in outcome.lines.items() if name not in singles]


def _time_notes(outcome: ReproducedTable) -> list[str]:
    plan = outcome.plan
    devices = dict.fromkeys(str(row.get("device")) for line in outcome.lines.values() for row in line.rows)
    here, usual = "", "one per core, or as many as the GPUs carry"
    if plan.on is not None:
        here, usual = f", sent to {plan.on}", "as there is room"
    note = time_note([row for line in outcome.lines.values() for row in line.rows])
    notes = [
        *([note] if note else []),
        "The paper times 'the subroutine used for balancing modalities (if any) and updating the model parameters', by "
        "the wall clock, mean over every batch of 100 epochs of one seed, and does not say whether the backward pass "
        f"belongs to it. So it stands here twice: {READINGS['with backward']}, is t and the update, as its times of "
        f"MSL suggest; {READINGS['without backward']}, is balancing and the update, where balancing is what t takes "
        "beyond that of a bare step, which balances nothing. ± is the standard deviation over seeds. Whole step: as "
        "trained, by the wall clock of the epochs after the first, without waiting: the others are no parts of it.",
        f"On {', '.join(devices) or 'nothing yet'}{here}; runs side by side: {plan.workers or usual}.",
    ]
    if outcome.beside_paper:
        notes.append(
            "The paper's times are of RTX 3090 and A6000 cards, of one seed, and as far as it says without waiting "
            "for the device: compare ratios, not milliseconds."
        )
    return notes


# -- the figure --

PANEL, ROW = 2.6, 0.27  # inches
SHIFT = 0.16


def draw(outcome: ReproducedTable, folder: Path) -> list[Path]:
    """Draw one panel for the fused accuracy and one for each modality alone, rows as in the paper, as SVG and PNG."""
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


def caption(outcome: ReproducedTable) -> str:
    """Say how the figure was made."""
    plan, settings = outcome.plan, outcome.plan.settings
    protocols: dict[str, list[str]] = {}
    for line in outcome.lines.values():
        if line.protocol is not None:
            protocols.setdefault(line.protocol, []).append(line.label)
    alone = "; ".join(f"{', '.join(names)} by {PROTOCOLS[each]}" for each, names in protocols.items())
    chosen = outcome.chosen
    at = "" if chosen is None else f" MIMO at λ = {in_words(chosen['penalty'])}, μ = {in_words(chosen['smoothing'])}."
    paper = " Squares: the paper's numbers." if outcome.beside_paper else " Made-up data: the numbers are no results."
    missing = f" Not complete: {', '.join(outcome.missing)}." if outcome.missing else ""
    return (
        f"Made by `{plan.command}`. {outcome.table.title}, {plan.about.rstrip('.')}. {settings['epochs']} epochs, "
        f"batch {settings['batch']}, learning rate {settings['lr']:g}, encoder {settings['encoder']}, {plan.seeds} "
        f"seeds; test part, mean and one standard deviation over seeds.{at} Modalities alone: {alone}.{paper}{missing}"
    )


def _points(axes: Axes, means: Sequence[MeanStd | None], colour: str, mark: str, name: str, shift: float) -> None:
    there = [(at, mean) for at, mean in enumerate(means) if mean is not None]
    errors: Any = [100 * (mean.deviation or 0.0) for _, mean in there]
    style: Any = {
        "ms": 4.5,
        "elinewidth": 1.0,
        "capsize": 2.5,
        "mfc": "white" if mark == "s" else colour,
        "label": name,
    }
    places, numbers = [at + shift for at, _ in there], [100 * mean.mean for _, mean in there]
    axes.errorbar(numbers, places, xerr=errors, fmt=mark, color=colour, **style)
