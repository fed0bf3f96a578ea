"""The tables of a study: the main one, and those that back it up."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from equipoise.report.aggregate import PROTOCOLS, Line, Spread, aggregate, modalities
from equipoise.report.notes import notes_below
from equipoise.report.paired import BASELINE, compared_with, paired_lines
from equipoise.report.results import Results, Row, dig, number
from equipoise.report.table import Column, Table, build

ERROR = "shapley_error"


def tables(results: Results, baseline: str = BASELINE) -> list[Table]:
    """The main table of each data set."""
    return [
        main_table(rows, data, baseline, (results.warning,) if results.warning else (), results.lines[data])
        for data, rows in results.by_data().items()
    ]


def main_table(
    rows: Sequence[Row],
    data: str,
    baseline: str = BASELINE,
    extra_notes: Sequence[str] = (),
    lines: Sequence[Line] | None = None,
) -> Table:
    """Accuracy, balance, robustness and cost of every label, as the paper prints it.

    Args:
        rows: Runs of one data set.
        data: Its name.
        baseline: What paired differences are taken to.
        extra_notes: Notes to print below the table's own.
        lines: The rows, aggregated; None where nobody has done so yet.
    """
    lines = aggregate(rows) if lines is None else lines
    differences = {each.label: each for each in paired_lines(lines, baseline)}
    versus = f"vs {compared_with(list(differences.values()), baseline)}"
    protocols = sorted({line.protocol for line in lines if line.protocol})
    # A protocol that all lines share is named in the heading; several get a column of their own.
    alone_unit = f"{protocols[0]}, %" if len(protocols) == 1 else "%"
    columns = [
        Column("fused", "fused", lambda line: line.fused, better="higher"),
        Column("difference", versus, lambda line: differences.get(line.label), "points", kind="difference"),
        Column("committee", "committee", lambda line: line.committee, better="higher"),
        *(
            Column(f"alone.{name}", name, _alone(name), alone_unit, better="higher", by_protocol=True)
            for name in modalities(rows)
        ),
        *(
            [Column("protocol", "alone by", lambda line: line.protocol, "", kind="words")]
            if len(protocols) > 1
            else []
        ),
        Column("disparity", "disparity", lambda line: line.disparity, "points", better="lower", by_protocol=True),
        Column("faults.fused", "faults", lambda line: line.faults, "fused, %", better="higher"),
        Column("faults.committee", "faults", _at("test", "faults", "mean", "committee"), "committee, %",
               better="higher"),
        Column("step", "step", lambda line: line.step, "ms, as trained", scale=1000.0, decimals=2),
    ]  # fmt: skip
    notes = [*notes_below(lines, list(differences.values())), *extra_notes]
    table = build(f"{data}: accuracy on the test set", columns, lines, notes)
    return _underline_fastest(table, lines)


def missing_table(lines: Sequence[Line], names: Sequence[str]) -> Table:
    """What is left when a sensor is missing, by each way to go on without it."""
    rows = _rows(lines)
    columns = [
        Column(f"{name}.{answer}", f"no {name}", _without(name, answer), f"{answer}, %", better="higher")
        for name in names
        for answer in dict.fromkeys(key for row in rows for key in dig(row, "test", "faults", name, "missing") or {})
    ]
    return build("Accuracy without one sensor", columns, lines)


def protocol_table(lines: Sequence[Line], names: Sequence[str]) -> Table:
    """Uni-modal accuracy by every protocol that was measured; Shapley values that were estimated, with their error."""
    columns = [
        Column(f"{protocol}.{name}", name, _at("test", protocol, name), f"{protocol}, %", better="higher")
        for protocol in PROTOCOLS
        for name in names
    ]
    columns += [
        Column(f"{ERROR}.{name}", name, _at("test", ERROR, name), "± standard error of shapley, %") for name in names
    ]
    estimated = any(dig(row, "test", ERROR) for row in _rows(lines))
    notes = [
        "Shapley values of more than eight modalities are estimated from random orders; ± standard error is that of "
        "one run's estimate, mean over runs."
    ]
    return build("Accuracy of each modality alone, by every protocol", columns, lines, notes if estimated else ())


def measure_table(lines: Sequence[Line]) -> Table:
    """The other measures of both decisions, and what a run costs."""
    columns = [
        *(column for decision in ("fused", "committee") for column in _qualities(decision)),
        Column("beats", "fused beats best modality", _beats_best_modality, "% of runs", decimals=0),
        Column("worst.fused", "worst fault, fused", _at("test", "faults", "worst", "fused"), better="higher"),
        Column("worst.committee", "worst fault, committee", _at("test", "faults", "worst", "committee"),
               better="higher"),
        Column("total", "whole run", _at("seconds", "total"), "s", scale=1.0, decimals=1),
        Column("memory", "peak memory", _at("memory"), "MB", scale=1.0, decimals=0),
        Column("runs", "runs", lambda line: str(len(line.rows)), "", kind="words"),
    ]  # fmt: skip
    return build("More measures", columns, lines)


def fault_table(lines: Sequence[Line], decision: str) -> Table:
    """Accuracy of one decision under every fault at every level."""
    rows = _rows(lines)
    names = modalities(rows)
    paths: dict[tuple[str, ...], None] = {}
    for row in rows:
        for name in names:
            _add_faults(paths, dig(row, "test", "faults", name), (name,), decision)
    columns = [
        Column(".".join(path), " ".join(path), _at("test", "faults", *path, decision), better="higher")
        for path in paths
    ]
    return build(f"Accuracy under every fault, {decision}", columns, lines)


# -- what columns show --


def _rows(lines: Sequence[Line]) -> list[Row]:
    return [row for line in lines for row in line.rows]


def _qualities(decision: str) -> list[Column]:
    """F1, calibration error and loss of one decision."""
    f1, ece, loss = (f"{decision}_{key}" for key in ("f1", "ece", "loss"))
    return [
        Column(f1, f"{decision} macro F1", _at("test", f1), better="higher"),
        Column(ece, f"{decision} calibration error", _at("test", ece), better="lower"),
        Column(loss, f"{decision} loss", _at("test", loss), "nats", scale=1.0, decimals=3, better="lower"),
    ]


def _at(*path: str) -> Callable[[Line], Spread | None]:
    return lambda line: line.of(*path)


def _alone(name: str) -> Callable[[Line], Spread | None]:
    return lambda line: line.alone.get(name)


def _without(name: str, answer: str) -> Callable[[Line], Spread | None]:
    """Filled inputs are judged by the fused prediction; the committee drops a member and needs no filling."""
    path = ("test", "faults", name, "missing", answer)
    decision = "committee" if answer == "committee" else "fused"
    return lambda line: line.of(*path) or line.of(*path, decision)


def _beats_best_modality(line: Line) -> Spread | None:
    answers = [dig(row, "test", "beats_best_single") for row in line.rows]
    known = [answer for answer in answers if isinstance(answer, bool)]
    return Spread(sum(known) / len(known), None, len(known)) if known else None


def _add_faults(paths: dict[tuple[str, ...], None], faults: object, path: tuple[str, ...], decision: str) -> None:
    """Add every path below which the decision has a number."""
    if isinstance(faults, dict):
        if number(faults, decision) is not None:
            paths[path] = None
        for key, inner in faults.items():
            if isinstance(inner, dict):
                _add_faults(paths, inner, (*path, key), decision)


def _underline_fastest(table: Table, lines: Sequence[Line]) -> Table:
    """Mark the fastest of the three best by fused accuracy: good and cheap is what the paper is after."""
    top = sorted((line for line in lines if line.fused), key=lambda line: -(line.fused.mean if line.fused else 0))[:3]
    timed = {line.label: line.step.mean for line in top if line.step}
    if len(timed) < 2:
        return table
    fastest = table.labels.index(min(timed, key=timed.__getitem__))
    step = next(at for at, column in enumerate(table.columns) if column.key == "step")
    cells = [list(cells) for cells in table.cells]
    cells[fastest][step] = replace(cells[fastest][step], fastest=True)
    return replace(table, cells=tuple(map(tuple, cells)))
