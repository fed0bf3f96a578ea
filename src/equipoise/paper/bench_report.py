"""What came out of `equipoise bench`, for people and for programs."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from equipoise.measure.timing import PIECES
from equipoise.paper.bench import RECORDED, WRITTEN, Case, Row, growth
from equipoise.paper.bench_lines import BARE, JOINT, TORCHJD
from equipoise.util.files import write_atomic
from equipoise.util.version import VERSION

NAME = "bench"
Table = tuple[str, list[str], list[list[str]]]
"""A title, the heads of columns, and rows of cells."""


def facts_of(rows: Sequence[Row], device: torch.device, rounds: int, command: str) -> dict[str, Any]:
    """Everything, for JSON."""
    where = torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"
    return {
        "command": command,
        "device": where,
        "threads": torch.get_num_threads(),
        "rounds": rounds,
        "versions": {"equipoise": VERSION, "torch": str(torch.__version__)},
        "rows": [row.as_dict() for row in rows],
        "growth per modality": [
            {"encoder": encoder, "batch": batch, "line": line, "way": way, "share of a joint step": slope}
            for (encoder, batch), some in _swept(rows).items()
            for line in dict.fromkeys(row.line for row in some)
            for way in (WRITTEN, RECORDED)
            if (slope := growth(some, line, way)) is not None
        ],
    }


def write(facts: dict[str, Any], rows: Sequence[Row], folder: Path) -> list[Path]:
    """bench.json, bench.csv with one row per line and case, and bench.md with the tables."""
    folder.mkdir(parents=True, exist_ok=True)
    content = {
        "json": json.dumps(facts, indent=1) + "\n",
        "csv": as_csv(rows),
        "md": "\n\n".join(as_markdown(table) for table in tables(rows)) + "\n",
    }
    return [write_atomic(folder, f"{NAME}.{ending}", text) for ending, text in content.items()]


def tables(rows: Sequence[Row]) -> list[Table]:
    """The step in pieces for every case, and cost against the number of modalities where it was varied."""
    cases: dict[Case, list[Row]] = {}
    for row in rows:
        cases.setdefault(row.case, []).append(row)
    found = [_split(case, some) for case, some in cases.items()]
    for (encoder, batch), some in _swept(rows).items():
        ways = dict.fromkeys(way for row in some for way in row.whole)
        found += [_sweep(encoder, batch, way, some) for way in ways]
    return found


def in_brief(rows: Sequence[Row]) -> list[Table]:
    """Of the cases that differ in the number of modalities alone, the pieces of the smallest."""
    least = {(row.case.encoder, row.case.batch): row.case.modalities for row in reversed(rows)}
    shown = [row for row in rows if row.case.modalities == least[row.case.encoder, row.case.batch]]
    return [*tables(shown), *tables(rows)[len({row.case for row in rows}) :]]


def _split(case: Case, rows: Sequence[Row]) -> Table:
    recorded = any(RECORDED in row.whole for row in rows)
    heads = ["line", "ms", "× joint", "× bare", *([f"ms {RECORDED}", "× joint"] if recorded else []), *PIECES, "MiB"]
    cells = []
    for row in rows:
        played = [_number(row.whole.get(RECORDED)), _number(row.to_joint.get(RECORDED))] if recorded else []
        whole = [row.whole[WRITTEN], row.to_joint[WRITTEN], row.to_bare[WRITTEN]]
        pieces = [row.pieces[piece] for piece in PIECES]
        cells.append([row.line, *map(_number, whole), *played, *map(_number, pieces), f"{row.memory:.1f}"])
    title = f"{case.encoder} encoders, {case.modalities} modalities, batch {case.batch}: a step, and its pieces in ms"
    return title, heads, cells


def _sweep(encoder: str, batch: int, way: str, rows: Sequence[Row]) -> Table:
    counts = sorted({row.case.modalities for row in rows})
    cells = []
    for line in dict.fromkeys(row.line for row in rows):
        ratios = {row.case.modalities: row.to_joint.get(way) for row in rows if row.line == line}
        slope = growth(rows, line, way)
        if slope is not None:
            by_count = [_number(ratios.get(count)) for count in counts]
            cells.append([line, *by_count, f"{round(100 * slope, 1) + 0.0:+.1f} %"])  # no minus before a zero
    heads = ["line", *(f"K = {count}" for count in counts), "per modality"]
    return f"{encoder} encoders, batch {batch}: × joint training, {way}, by the number of modalities K", heads, cells


def _swept(rows: Sequence[Row]) -> dict[tuple[str, int], list[Row]]:
    """Rows that differ in the number of modalities alone, where there are several."""
    found: dict[tuple[str, int], list[Row]] = {}
    for row in rows:
        found.setdefault((row.case.encoder, row.case.batch), []).append(row)
    return {key: some for key, some in found.items() if len({row.case.modalities for row in some}) > 1}


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"


def as_markdown(table: Table) -> str:
    """One table."""
    title, heads, cells = table
    lines = [heads, ["---", *["---:"] * (len(heads) - 1)], *cells]
    return f"**{title}**\n\n" + "\n".join(f"| {' | '.join(line)} |" for line in lines)


def as_text(table: Table) -> str:
    """The same in columns, for a terminal."""
    title, heads, cells = table
    widths = [max(len(line[place]) for line in (heads, *cells)) for place in range(len(heads))]
    pad: list[Callable[[str, int], str]] = [str.ljust, *[str.rjust] * (len(heads) - 1)]
    lines = ["  ".join(do(c, w) for do, c, w in zip(pad, line, widths, strict=True)) for line in (heads, *cells)]
    return "\n".join([title, "", lines[0], "─" * len(lines[0]), *lines[1:]])


def as_csv(rows: Sequence[Row]) -> str:
    """One row per line and case, every number in full."""
    written = io.StringIO()
    heads = ["encoder", "modalities", "batch", "line", "ms", "to_joint", "to_bare", "ms_recorded", "to_joint_recorded"]
    heads += [*(f"ms_{piece}" for piece in PIECES), "memory_mib"]
    table = csv.writer(written, lineterminator="\n")
    table.writerow(heads)
    for row in rows:
        whole = [row.whole[WRITTEN], row.to_joint[WRITTEN], row.to_bare[WRITTEN]]
        played = [row.whole.get(RECORDED, ""), row.to_joint.get(RECORDED, "")]
        table.writerow([*row.case, row.line, *whole, *played, *(row.pieces[piece] for piece in PIECES), row.memory])
    return written.getvalue()


def legend(rows: Sequence[Row]) -> str:
    """What the lines that are no methods are."""
    said = [f"{BARE}: joint training without a library. {JOINT}: joint training here, with a head beside each encoder."]
    if any(row.line == TORCHJD for row in rows):
        said.append(f"{TORCHJD}: the mixture of `mgda`, by that package.")
    if any(row.line.endswith("-features") for row in rows):
        said.append("-features: decided at the encoders' outputs.")
    return " ".join(said)
