"""The tables of a study: the main one, and those that back it up."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from equipoise.report.aggregate import PROTOCOLS, MeanStd, Row, RunGroup, aggregate, dig, modalities, number
from equipoise.report.notes import notes_below
from equipoise.report.paired import BASELINE, compared_with, differences_between
from equipoise.report.results import Results
from equipoise.report.table import ResultColumn, ResultTable, build_table

ERROR = "shapley_error"


def tables(results: Results, baseline: str = BASELINE) -> list[ResultTable]:
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
    lines: Sequence[RunGroup] | None = None,
) -> ResultTable:
    """Accuracy, balance, robustness and cost of every label, as the paper prints it.

    Args:
        rows: Runs of one data set.
        data: Its name.
        baseline: What paired differences are taken to.
        extra_notes: Notes to print below the table's own.
        lines: The rows, aggregated; None where nobody has done so yet.
    """
    lines = aggregate(rows) if lines is None else lines
    differences = {each.label: each for each in differences_between(lines, baseline)}
    versus = f"vs {compared_with(list(differences.values()), baseline)}"
    protocols = sorted({line.protocol for line in lines if line.protocol})
    # A protocol that all lines share is named in the heading; several get a column of their own.
    alone_unit = f"{protocols[0]}, %" if len(protocols) == 1 else "%"
    columns = [
        ResultColumn("fused", "fused", lambda line: line.fused, better="higher"),
        ResultColumn("difference", versus, lambda line: differences.get(line.label), "points", kind="difference"),
        ResultColumn("committee", "committee", lambda line: line.committee, better="higher"),
        *(
            ResultColumn(f"alone.{name}", name, _alone(name), alone_unit, better="higher", by_protocol=True)
            for name in modalities(rows)
        ),
        *(
            [ResultColumn("protocol", "alone by", lambda line: line.protocol, "", kind="words")]
            if len(protocols) > 1
            else []
        ),
        ResultColumn("disparity", "disparity", lambda line: line.disparity, "points", better="lower", by_protocol=True),
        ResultColumn("faults.fused", "faults", lambda line: line.faults, "fused, %", better="higher"),
        ResultColumn("faults.committee", "faults", _at("test", "faults", "mean", "committee"), "committee, %",
               better="higher"),
        ResultColumn("step", "step", lambda line: line.step, "ms, as trained", scale=1000.0, decimals=2),
    ]  # fmt: skip
    notes = [*notes_below(lines, list(differences.values())), *extra_notes]
    table = build_table(f"{data}: accuracy on the test set", columns, lines, notes)
    return _underline_fastest(table, lines)


def missing_table(lines: Sequence[RunGroup], names: Sequence[str]) -> ResultTable:
    """What is left when a sensor is missing, by each way to go on without it."""
    rows = _rows(lines)
    columns = [
        ResultColumn(f"{name}.{answer}", f"no {name}", _without(name, answer), f"{answer}, %", better="higher")
        for name in names
        for answer in dict.fromkeys(key for row in rows for key in dig(row, "test", "faults", name, "missing") or {})
    ]
    return build_table("Accuracy without one sensor", columns, lines)


def protocol_table(lines: Sequence[RunGroup], names: Sequence[str]) -> ResultTable:
    """Uni-modal accuracy by every protocol that was measured; Shapley values that were estimated, with their error."""
    columns = [
        ResultColumn(f"{protocol}.{name}", name, _at("test", protocol, name), f"{protocol}, %", better="higher")
        for protocol in PROTOCOLS
        for name in names
    ]
    columns += [
        ResultColumn(f"{ERROR}.{name}", name, _at("test", ERROR, name), "± standard error of shapley, %")
        for name in names
    ]
    estimated = any(dig(row, "test", ERROR) for row in _rows(lines))
    notes = [
        "Shapley values of more than eight modalities are estimated from random orders; ± standard error is that of "
        "one run's estimate, mean over runs."
    ]
    return build_table("Accuracy of each modality alone, by every protocol", columns, lines, notes if estimated else ())


def measure_table(lines: Sequence[RunGroup]) -> ResultTable:
    """The other measures of both decisions, and what a run costs."""
    columns = [
        *(column for decision in ("fused", "committee") for column in _qualities(decision)),
        ResultColumn("beats", "fused beats best modality", _beats_best_modality, "% of runs", decimals=0),
        ResultColumn("worst.fused", "worst fault, fused", _at("test", "faults", "worst", "fused"), better="higher"),
        ResultColumn("worst.committee", "worst fault, committee", _at("test", "faults", "worst", "committee"),
               better="higher"),
        ResultColumn("total", "whole run", _at("seconds", "total"), "s", scale=1.0, decimals=1),
        ResultColumn("memory", "peak memory", _at("memory"), "MB", scale=1.0, decimals=0),
        ResultColumn("runs", "runs", lambda line: str(len(line.rows)), "", kind="words"),
    ]  # fmt: skip
    return build_table("More measures", columns, lines)


def fault_table(lines: Sequence[RunGroup], decision: str) -> ResultTable:
    """Accuracy of one decision under every fault at every level."""
    rows = _rows(lines)
    names = modalities(rows)
    paths: dict[tuple[str, ...], None] = {}
    for row in rows:
        for name in names:
            _add_faults(paths, dig(row, "test", "faults", name), (name,), decision)
    columns = [
        ResultColumn(".".join(path), " ".join(path), _at("test", "faults", *path, decision), better="higher")
        for path in paths
    ]
    return build_table(f"Accuracy under every fault, {decision}", columns, lines)


# -- what columns show --


def _rows(lines: Sequence[RunGroup]) -> list[Row]:
    return [row for line in lines for row in line.rows]


def _qualities(decision: str) -> list[ResultColumn]:
    """F1, calibration error and loss of one decision."""
    f1, ece, loss = (f"{decision}_{key}" for key in ("f1", "ece", "loss"))
    return [
        ResultColumn(f1, f"{decision} macro F1", _at("test", f1), better="higher"),
        ResultColumn(ece, f"{decision} calibration error", _at("test", ece), better="lower"),
        ResultColumn(loss, f"{decision} loss", _at("test", loss), "nats", scale=1.0, decimals=3, better="lower"),
    ]


def _at(*path: str) -> Callable[[RunGroup], MeanStd | None]:
    return lambda line: line.of(*path)


def _alone(name: str) -> Callable[[RunGroup], MeanStd | None]:
    return lambda line: line.alone.get(name)


def _without(name: str, answer: str) -> Callable[[RunGroup], MeanStd | None]:
    """Filled inputs are judged by the fused prediction; the committee drops a member and needs no filling."""
    path = ("test", "faults", name, "missing", answer)
    decision = "committee" if answer == "committee" else "fused"
    return lambda line: line.of(*path) or line.of(*path, decision)


def _beats_best_modality(line: RunGroup) -> MeanStd | None:
    answers = [dig(row, "test", "beats_best_single") for row in line.rows]
    known = [answer for answer in answers if isinstance(answer, bool)]
    return MeanStd(sum(known) / len(known), None, len(known)) if known else None


def _add_faults(paths: dict[tuple[str, ...], None], faults: object, path: tuple[str, ...], decision: str) -> None:
    """Add every path below which the decision has a number."""
    if isinstance(faults, dict):
        if number(faults, decision) is not None:
            paths[path] = None
        for key, inner in faults.items():
            if isinstance(inner, dict):
                _add_faults(paths, inner, (*path, key), decision)


def _underline_fastest(table: ResultTable, lines: Sequence[RunGroup]) -> ResultTable:
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
