"""What `equipoise reproduce` says: the tables, what the paper claims of them, and what to know of its numbers."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from equipoise.paper.ablation import in_words
from equipoise.paper.claims import WIDTH, claim_lines
from equipoise.paper.reproduce_claims import claims, summary
from equipoise.paper.reproduce_outcome import Outcome
from equipoise.paper.reproduce_tables import tables
from equipoise.report import FORMATS, as_dict, print_table
from equipoise.util.files import write_atomic

NAME = "reproduce"
SUFFIXES = {"markdown": "md", "latex": "tex", "csv": "csv"}


def show(outcome: Outcome) -> None:
    """Print everything."""
    for table in tables(outcome).values():
        print_table(table)
        print()
    print("\n".join(words(outcome)))


def write(outcome: Outcome, out: Path, figures: list[Path]) -> dict[str, Any]:
    """Write the tables in every format, and all numbers as JSON, which is also given back."""
    for name, table in tables(outcome).items():
        for form, suffix in SUFFIXES.items():
            write_atomic(out, f"{NAME}-{name}.{suffix}", FORMATS[form][0](table))
    write_atomic(out, f"{NAME}.txt", "\n".join(words(outcome)) + "\n")
    content = {**in_values(outcome), "figures": [str(path) for path in figures]}
    write_atomic(out, f"{NAME}.json", json.dumps(content, indent=1, ensure_ascii=False) + "\n")
    return content


def in_values(outcome: Outcome) -> dict[str, Any]:
    """Everything in plain values."""
    plan, found = outcome.plan, claims(outcome)
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
        "claims": [claim._asdict() for claim in found],
        "notes": list(outcome.table.notes) if outcome.beside_paper else [],
    }


def words(outcome: Outcome) -> list[str]:
    """The grid, the claims and the notes, in lines."""
    lines = [*_grid(outcome), *_claims(outcome)]
    if outcome.beside_paper:
        lines += ["Before anything is compared with the paper's numbers:"]
        lines += [_wrapped(note, "  - ") for note in outcome.table.notes]
    else:
        lines += [
            "A made-up stand-in, tiny encoders, a small grid: this shows that the pipeline runs, and nothing else.",
            f"No number of the paper stands beside it. On the data itself: equipoise reproduce {outcome.table.name}",
        ]
    return lines


def _grid(outcome: Outcome) -> Iterator[str]:
    if not outcome.scores:
        return
    names = list(outcome.scores[0][0])
    chosen = outcome.chosen
    seeds = outcome.plan.grid_seeds
    yield f"Validation accuracy of MIMO over {' and '.join(names)}, {seeds} seed{'s' if seeds > 1 else ''} each:"
    for params, score in outcome.scores:
        told = "no end" if score is None else f"{100 * score:.2f} %"
        mark = "  chosen" if params == chosen else ""
        yield "  " + "  ".join(f"{name}={in_words(value):<6}" for name, value in params.items()) + f" {told}{mark}"
    yield ""


def _claims(outcome: Outcome) -> Iterator[str]:
    found = claims(outcome)
    if not found:
        return
    yield "What the paper says, and what was measured: test part, paired by seed, 95 % intervals."
    yield from claim_lines(found, places=False)
    yield summary(found)
    yield "open: the interval cannot tell, or the two readings of t disagree."
    yield "Seeds of one split say nothing of other data."
    yield ""


def _wrapped(text: str, start: str) -> str:
    return textwrap.fill(text, WIDTH, initial_indent=start, subsequent_indent=" " * len(start))
