"""Further tables of the page: without one sensor, every protocol, other measures, every fault."""

from collections.abc import Callable, Iterator, Sequence

from equipoise.report.aggregate import PROTOCOLS, MeanStd, RunGroup, dig, modalities, number
from equipoise.report.columns import measure_columns, measured, rows_of, score_columns
from equipoise.report.step_times import time_note
from equipoise.report.table import ResultTable, build_table

SHAPLEY_ERROR = "shapley_error"
SHAPLEY_NOTE = (
    "Shapley values of more than eight modalities are estimated from random orders; ± standard error is that of one "
    "run's estimate, mean over runs."
)


def missing_table(groups: Sequence[RunGroup], names: Sequence[str]) -> ResultTable:
    """Build the table of the headline without one sensor, by each way to go on without it."""
    head, score = score_columns(groups)
    faults = ((name, dig(row, "test", "faults", name, "missing") or {}) for name in names for row in rows_of(groups))
    columns = [
        score(f"{name}.{answer}", f"no {name}", _without(name, answer), unit=f"{answer}, {head.unit}")
        for name, answer in dict.fromkeys((name, answer) for name, answers in faults for answer in answers)
    ]
    return build_table(f"{_capital(head.label)} without one sensor", columns, groups)


def protocol_table(groups: Sequence[RunGroup], names: Sequence[str]) -> ResultTable:
    """Build the table of each modality alone by every protocol measured; estimated Shapley values with their error."""
    head, score = score_columns(groups)
    columns = [
        score(f"{protocol}.{name}", name, measured("test", protocol, name), unit=f"{protocol}, {head.unit}")
        for protocol in PROTOCOLS
        for name in names
    ]
    unit = f"± standard error of shapley, {head.unit}"
    columns += [
        score(f"{SHAPLEY_ERROR}.{name}", name, measured("test", SHAPLEY_ERROR, name), unit=unit, better=None)
        for name in names
    ]
    notes = [SHAPLEY_NOTE] if any(dig(row, "test", SHAPLEY_ERROR) for row in rows_of(groups)) else []
    return build_table(f"{_capital(head.label)} of each modality alone, by every protocol", columns, groups, notes)


def measure_table(groups: Sequence[RunGroup]) -> ResultTable:
    """Build the table of the other measures of both decisions, and of what a run costs."""
    note = time_note(rows_of(groups))
    return build_table("More measures", measure_columns(groups), groups, [note] if note else [])


def fault_table(groups: Sequence[RunGroup], decision: str) -> ResultTable:
    """Build the table of one decision under every fault at every level."""
    head, score = score_columns(groups)
    rows = rows_of(groups)
    names = modalities(rows)
    faults = ((name, dig(row, "test", "faults", name)) for row in rows for name in names)
    paths = dict.fromkeys((name, *path) for name, levels in faults for path in _paths(levels, decision))
    columns = [score(".".join(path), " ".join(path), measured("test", "faults", *path, decision)) for path in paths]
    return build_table(f"{_capital(head.label)} under every fault, {decision}", columns, groups)


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _without(name: str, answer: str) -> Callable[[RunGroup], MeanStd | None]:
    """Filled inputs are judged by the fused prediction; the committee drops a member and needs no filling."""
    path = ("test", "faults", name, "missing", answer)
    decision = "fused" if answer in ("zeros", "mean") else "committee"
    return lambda group: group.of(*path) or group.of(*path, decision)


def _paths(faults: object, decision: str) -> Iterator[tuple[str, ...]]:
    """List the paths of keys below which the decision has a number."""
    if isinstance(faults, dict):
        if number(faults, decision) is not None:
            yield ()
        for key, inner in faults.items():
            yield from ((key, *path) for path in _paths(inner, decision))
