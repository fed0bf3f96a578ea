"""What `equipoise tune` prints: the best trials, what mattered, and the command that trains with the best of them."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from equipoise.study.tuning import SearchResult, SearchTrial, as_typed

SHOWN = 10  # trials in a table


def text(outcome: SearchResult, command: str) -> str:
    """The whole report."""
    lines = [*textwrap.wrap(head(outcome), 118), ""]
    lines += _aligned([_titles(outcome), *(_cells(outcome, each) for each in ranked(outcome)[:SHOWN])])
    lines += ["", *textwrap.wrap(importance(outcome), 118), *textwrap.wrap(caution(outcome), 118), ""]
    return "\n".join([*lines, "To train with the best, type:", f"  {command}"])


def markdown(outcome: SearchResult, command: str) -> str:
    """The same with every trial."""
    rows = [_titles(outcome), *(_cells(outcome, each) for each in ranked(outcome))]
    table = ["| " + " | ".join(row) + " |" for row in rows]
    table.insert(1, "|" + "---|" * len(rows[0]))
    parts = [head(outcome), "\n".join(table), f"{importance(outcome)} {caution(outcome)}", f"    {command}"]
    return "\n\n".join(parts) + "\n"


def as_dict(outcome: SearchResult, command: str) -> dict[str, Any]:
    """All numbers in plain values."""
    base = outcome.search.base
    return {
        "data": outcome.data,
        "cut": outcome.about,
        "judged on": outcome.judged_on,
        "seed": outcome.seed,
        "method": base.method.name,
        "base": {"params": base.params, "run": base.settings.as_dict()},
        "space": {key: str(each) for key, each in outcome.search.space.items()},
        "best": asdict(outcome.best),
        "importance": outcome.importance,
        "command": command,
        "trials": [asdict(each) for each in outcome.trials],
    }


def ranked(outcome: SearchResult) -> list[SearchTrial]:
    """The best first; what did not come to its end after all that did."""
    order = ("finished", "pruned", "diverged", "failed", "killed")
    return sorted(outcome.trials, key=lambda each: (order.index(each.state), -(each.score or 0.0), each.number))


def head(outcome: SearchResult) -> str:
    """What was done, in one sentence or two."""
    base, states = outcome.search.base, [each.state for each in outcome.trials]
    space = " ".join(f"{key}={each}" for key, each in outcome.search.space.items())
    counts = ", ".join(f"{states.count(state)} {state}" for state in dict.fromkeys(sorted(states)))
    return (
        f"Search of {base.method.name} on {outcome.data}: {space}; {len(states)} trials ({counts}), "
        f"{base.settings.epochs} epochs, seed {outcome.seed}. Accuracy on the {outcome.judged_on} validation samples; "
        "the test part was not read."
    )


def importance(outcome: SearchResult) -> str:
    """What mattered."""
    if not outcome.importance:
        return "What mattered: too few trials to tell."
    shares = ", ".join(f"{key} {100 * share:.0f} %" for key, share in outcome.importance.items())
    return f"What mattered, as a share of what decides whether a trial is among the best (PED-ANOVA): {shares}."


def caution(outcome: SearchResult) -> str:
    """What the best is worth."""
    start = next((each for each in outcome.trials if each.number == 0 and each.score is not None), None)
    stands = outcome.search.start()
    beside = ""
    if start is not None and start.state == "finished" and start.values == stands and outcome.best.number != 0:
        beside = f"As it stood the method had {percent(start)} %. "
    luck = f"The best of {len(outcome.trials)} is partly luck; the test accuracy of the command below is not."
    killed = sum(each.state == "killed" for each in outcome.trials)
    again = f" Killed: {killed}; to run what was killed, type the same command again." if killed else ""
    return beside + luck + again


def percent(each: SearchTrial) -> str:
    """Its score."""
    return "–" if each.score is None else f"{100 * each.score:.1f}"


def _titles(outcome: SearchResult) -> list[str]:
    return ["trial", *outcome.search.space, "validation %", "epochs", ""]


def _cells(outcome: SearchResult, each: SearchTrial) -> list[str]:
    values = [as_typed(each.values[key]) if key in each.values else "–" for key in outcome.search.space]
    note = "" if each.state == "finished" else each.state
    note = "best" if each.number == outcome.best.number else note
    return [str(each.number), *values, percent(each), str(each.epochs), note]


def _aligned(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]))]
    for row in rows:
        yield "  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
