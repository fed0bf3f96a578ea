"""The report of `equipoise bench`: tables, files, and a figure of the cost against the number of modalities."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from equipoise.measure.timing import PIECES, Load
from equipoise.paper.bench import BARE, JOINT, RECORDED, TORCHJD, WRITTEN, BenchCase, BenchRow, growth
from equipoise.report import drawing
from equipoise.report.drawing import FAINT, INK, MODALITIES
from equipoise.util import VERSION
from equipoise.util.files import write_atomic

if TYPE_CHECKING:
    from matplotlib.axes import Axes

NAME = "bench"
OTHERS = "#c4ccd4"
LOOKS = {
    BARE: (FAINT, "s:"),
    JOINT: (INK, "o-"),
    "mimo": (drawing.JOINT, "o-"),
    "mgda": (MODALITIES[0], "o-"),
    "mgda-features": (MODALITIES[0], "^--"),
    "mmpareto": (MODALITIES[1], "o-"),
    "mmpareto-features": (MODALITIES[1], "^--"),
    TORCHJD: (MODALITIES[3], "x-"),
}
TextTable = tuple[str, list[str], list[list[str]]]
"""A title, the heads of columns, and rows of cells."""


BASELINES = {BARE: "bare", JOINT: "msl"}
"""What every ratio is to, and how it is named: the bare loop, and `MSL().attach`."""


def as_dict(rows: Sequence[BenchRow], load: Load, device: torch.device, rounds: int, command: str) -> dict[str, Any]:
    """Everything in plain values."""
    return {
        "command": command,
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU",
        "threads": torch.get_num_threads(),
        "rounds": rounds,
        "load": load._asdict(),
        "trusted": not load.doubts(),
        "versions": {"equipoise": VERSION, "torch": str(torch.__version__)},
        "rows": [row.as_dict() for row in rows],
        "growth per modality": [
            {
                "encoder": encoder,
                "batch": batch,
                "line": line,
                "way": way,
                "baseline": baseline,
                "share of its step": slope,
            }
            for (encoder, batch), sweep in _sweeps(rows).items()
            for line in dict.fromkeys(row.line for row in sweep)
            for way in (WRITTEN, RECORDED)
            for baseline in BASELINES
            if (slope := growth(sweep, line, way, baseline)) is not None
        ],
    }


def write(content: dict[str, Any], rows: Sequence[BenchRow], load: Load, folder: Path) -> list[Path]:
    """Write bench.json, bench.csv with one row per line and case, and bench.md with the tables and how to read them."""
    folder.mkdir(parents=True, exist_ok=True)
    texts = {
        "json": json.dumps(content, indent=1) + "\n",
        "csv": as_csv(rows),
        "md": "\n\n".join([*map(as_markdown, tables(rows)), *notes(rows, load)]) + "\n",
    }
    return [write_atomic(folder, f"{NAME}.{ending}", text) for ending, text in texts.items()]


# -- tables --


def tables(rows: Sequence[BenchRow]) -> list[TextTable]:
    """The step in pieces for every case, and cost against the number of modalities where it was varied."""
    cases = dict.fromkeys(row.case for row in rows)
    made = [_pieces_table(case, [row for row in rows if row.case == case]) for case in cases]
    for (encoder, batch), sweep in _sweeps(rows).items():
        made += [_sweep_table(encoder, batch, way, base, sweep) for way in _ways(sweep) for base in BASELINES]
    return made


def brief_tables(rows: Sequence[BenchRow]) -> list[TextTable]:
    """Of the cases that differ in the number of modalities alone, the pieces of the smallest; and all sweeps."""
    least = {(row.case.encoder, row.case.batch): row.case.modalities for row in reversed(rows)}
    shown = [row for row in rows if row.case.modalities == least[row.case.encoder, row.case.batch]]
    return [*tables(shown), *tables(rows)[len({row.case for row in rows}) :]]


def _pieces_table(case: BenchCase, rows: Sequence[BenchRow]) -> TextTable:
    recorded = any(RECORDED in row.whole for row in rows)
    ratios = [f"× {name}" for name in BASELINES.values()]
    heads = [
        "line",
        "whole",
        *ratios,
        *([RECORDED, *ratios] if recorded else []),
        "t",
        *ratios,
        "t CPU",
        *PIECES,
        "MiB",
    ]
    cells = []
    for row in rows:
        *times, memory = (value for name, value in row.numbers.items() if recorded or not name.endswith(RECORDED))
        cells.append([row.line, *map(_number, times), f"{memory:.1f}"])
    title = f"{case.encoder} encoders, {case.modalities} modalities, batch {case.batch}: a step, t and pieces in ms"
    return title, heads, cells


def _sweep_table(encoder: str, batch: int, way: str, baseline: str, rows: Sequence[BenchRow]) -> TextTable:
    counts = sorted({row.case.modalities for row in rows})
    cells = []
    for line in dict.fromkeys(row.line for row in rows):
        ratios = {row.case.modalities: row.ratios(baseline).get(way) for row in rows if row.line == line}
        slope = growth(rows, line, way, baseline)
        if slope is not None:
            by_count = [_number(ratios.get(count)) for count in counts]
            cells.append([line, *by_count, f"{round(100 * slope, 1) + 0.0:+.1f} %"])  # no minus before a zero
    heads = ["line", *(f"K = {count}" for count in counts), "per modality"]
    title = (
        f"{encoder} encoders, batch {batch}: whole step × {BASELINES[baseline]}, {way}, by the number of modalities K"
    )
    return title, heads, cells


def _sweeps(rows: Sequence[BenchRow]) -> dict[tuple[str, int], list[BenchRow]]:
    """Rows that differ in the number of modalities alone, where there are several."""
    groups: dict[tuple[str, int], list[BenchRow]] = {}
    for row in rows:
        groups.setdefault((row.case.encoder, row.case.batch), []).append(row)
    return {key: group for key, group in groups.items() if len({row.case.modalities for row in group}) > 1}


def _ways(rows: Sequence[BenchRow]) -> list[str]:
    return list(dict.fromkeys(way for row in rows for way in row.whole))


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"


def as_markdown(table: TextTable) -> str:
    """Print a table in markdown."""
    title, heads, cells = table
    lines = [heads, ["---", *["---:"] * (len(heads) - 1)], *cells]
    return f"**{title}**\n\n" + "\n".join(f"| {' | '.join(line)} |" for line in lines)


def as_text(table: TextTable) -> str:
    """Print a table in columns, for a terminal."""
    title, heads, cells = table
    widths = [max(map(len, column)) for column in zip(heads, *cells, strict=True)]
    lines = []
    for first, *others in (heads, *cells):
        padded = [cell.rjust(width) for cell, width in zip(others, widths[1:], strict=True)]
        lines.append("  ".join([first.ljust(widths[0]), *padded]))
    return "\n".join([title, "", lines[0], "─" * len(lines[0]), *lines[1:]])


def as_csv(rows: Sequence[BenchRow]) -> str:
    """Print one row per line and case, every number in full."""
    written = io.StringIO()
    table = csv.writer(written, lineterminator="\n")
    table.writerow([*BenchCase._fields, "line", *rows[0].numbers])
    table.writerows([*row.case, row.line, *row.numbers.values()] for row in rows)
    return written.getvalue()


def notes(rows: Sequence[BenchRow], load: Load) -> list[str]:
    """Say what stands in the tables, and whether it is to be trusted."""
    batches = sorted({row.batches for row in rows})
    few = f"{batches[0]}" if len(batches) == 1 else f"{batches[0]} to {batches[-1]}"
    words = (
        f"Two baselines: × bare is over the {BARE}, joint training without a library, always as written; × msl over "
        "MSL().attach, joint training here, with a head beside each encoder. "
        f"t: the time after the losses are there, balance and backward, mean over {few} batches, as the pieces; whole "
        "steps and ratios: medians over rounds. t CPU: what this process computed in t, on all threads."
    )
    if any(row.line == TORCHJD for row in rows):
        words += f" {TORCHJD}: the mixture of `mgda`, by that package."
    if any(row.line.endswith("-features") for row in rows):
        words += " -features: decided at the encoders' outputs."
    doubts = load.doubts()
    warning = f"NOT TO BE TRUSTED: these times were taken under {', '.join(doubts)}. Run it again without other work."
    return [*([warning] if doubts else []), words]


# -- the figure --


def draw(rows: Sequence[BenchRow], folder: Path, made: str) -> list[Path]:
    """Draw milliseconds and ratios against K, one row of panels for each way that steps ran; nothing if K is constant.

    Args:
        rows: Of any number of cases; the first encoder and batch size of which K was varied are drawn.
        folder: Where to.
        made: How it was made, the first sentence of the caption.
    """
    sweep = next(iter(_sweeps(rows).values()), None)
    if sweep is None:
        return []
    ways = _ways(sweep)
    with drawing.style():
        figure = drawing.canvas(11.0, 3.4 * len(ways) + 0.6)
        grid = figure.subplots(len(ways), 1 + len(BASELINES), squeeze=False, sharex=True)
        for way, panels in zip(ways, grid, strict=True):
            for axes, baseline in zip(panels, (None, *BASELINES), strict=True):
                _panel(axes, sweep, way, baseline)
        for axes in grid[-1]:
            axes.set_xlabel("modalities K")
        handles = dict(zip(*reversed(grid[0][0].get_legend_handles_labels()), strict=True))
        figure.legend(handles.values(), handles.keys(), loc="outside upper left", ncols=5)
        case = sweep[0].case
        caption = (
            f"{made} Cost of a whole training step against the number of modalities: {case.encoder} encoders, batch "
            f"{case.batch}; medians over rounds that measure every line in turn. Left in milliseconds, beside it as "
            f"ratios to the {BARE} and to MSL().attach (msl) of the same round."
        )
        return drawing.save(figure, folder, NAME, caption)


def _panel(axes: Axes, rows: Sequence[BenchRow], way: str, baseline: str | None) -> None:
    counts = sorted({row.case.modalities for row in rows})
    for line in sorted(dict.fromkeys(row.line for row in rows), key=lambda line: line in LOOKS):
        some = [row for row in rows if row.line == line]
        own = {row.case.modalities: row.whole if baseline is None else row.ratios(baseline) for row in some}
        points = {count: values[way] for count, values in sorted(own.items()) if way in values}
        colour, look = LOOKS.get(line, (OTHERS, "-"))
        name, width = (line, 1.7) if line in LOOKS else ("other methods", 1.0)
        axes.plot(list(points), list(points.values()), look, color=colour, lw=width, ms=4, label=name)
    axes.set_title(f"milliseconds per step, {way}" if baseline is None else f"× {BASELINES[baseline]}, {way}")
    axes.set_xticks(counts)
    axes.set_xlim(counts[0] - 0.25, counts[-1] + 0.25)
    axes.set_ylim(bottom=0)
    axes.grid(axis="y", color="#d1d9e0", lw=0.6)
