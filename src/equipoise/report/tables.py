"""The tables of a study: the main one, and those that back it up."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from equipoise.report.aggregate import PROTOCOLS, Line, Spread, aggregate, modalities, varying
from equipoise.report.paired import BASELINE, Difference, paired
from equipoise.report.results import Results, Row, dig
from equipoise.report.table import Column, Table, build


def tables(results: Results, baseline: str = BASELINE) -> list[Table]:
    """The main table of each data set."""
    return [
        main_table(rows, data, baseline, (results.warning,) if results.warning else ())
        for data, rows in results.by_data().items()
    ]


def main_table(rows: Sequence[Row], data: str, baseline: str = BASELINE, extra_notes: Sequence[str] = ()) -> Table:
    """Accuracy, balance, robustness and cost of every label, as the paper prints it.

    Args:
        rows: Runs of one data set.
        data: Its name.
        baseline: What paired differences are taken to.
        extra_notes: Notes to print below the table's own.
    """
    lines = aggregate(rows)
    differences = {each.label: each for each in paired(rows, baseline)}
    protocols = sorted({line.protocol for line in lines if line.protocol})
    # A protocol that all lines share is named in the heading; several get a column of their own.
    alone_unit = f"{protocols[0]}, %" if len(protocols) == 1 else "%"
    columns = [
        Column("fused", "fused", lambda line: line.fused, better="higher"),
        Column("difference", f"vs {baseline}", lambda line: differences.get(line.label), "points", kind="difference"),
        Column("committee", "committee", lambda line: line.committee, better="higher"),
        *(
            Column(f"alone.{name}", name, partial(_alone, name), alone_unit, better="higher", by_protocol=True)
            for name in modalities(rows)
        ),
        *(
            [Column("protocol", "alone by", lambda line: line.protocol, "", kind="words")]
            if len(protocols) > 1
            else []
        ),
        Column("disparity", "disparity", lambda line: line.disparity, "points", better="lower", by_protocol=True),
        Column("faults.fused", "faults, fused", lambda line: line.faults, better="higher"),
        Column("faults.committee", "faults, committee", partial(_of, "test", "faults", "mean", "committee"), better="higher"),
        Column("step", "step", lambda line: line.step, "ms", scale=1000.0, decimals=2),
    ]  # fmt: skip
    notes = [*_notes(lines, list(differences.values())), *extra_notes]
    table = build(f"{data}: accuracy on the test set", columns, lines, notes)
    return _underline_fastest(table, lines)


def missing_table(rows: Sequence[Row]) -> Table:
    """What is left when a sensor is missing, by each way to go on without it."""
    lines = aggregate(rows)
    columns = [
        Column(f"{name}.{answer}", f"no {name}: {answer}", partial(_missing, name, answer), better="higher")
        for name in modalities(rows)
        for answer in dict.fromkeys(key for row in rows for key in dig(row, "test", "faults", name, "missing") or {})
    ]
    return build("Accuracy without one sensor", columns, lines)


def protocol_table(rows: Sequence[Row]) -> Table:
    """Uni-modal accuracy by every protocol that was measured."""
    columns = [
        Column(f"{protocol}.{name}", f"{protocol}: {name}", partial(_of, "test", protocol, name), better="higher")
        for protocol in PROTOCOLS
        for name in modalities(rows)
    ]
    return build("Accuracy of each modality alone, by every protocol", columns, aggregate(rows))


def measure_table(rows: Sequence[Row]) -> Table:
    """The other measures of both decisions, and what a run costs."""
    columns = [
        *(
            Column(f"{decision}_{key}", f"{decision} {title}", partial(_of, "test", f"{decision}_{key}"), **how)
            for decision in ("fused", "committee")
            for key, title, how in (
                ("f1", "macro F1", {"better": "higher"}),
                ("ece", "calibration error", {"better": "lower"}),
                ("loss", "loss", {"unit": "nats", "scale": 1.0, "decimals": 3, "better": "lower"}),
            )
        ),
        Column("beats", "fused beats best modality", _beats, "% of runs", decimals=0),
        Column("worst.fused", "worst fault, fused", partial(_of, "test", "faults", "worst", "fused"), better="higher"),
        Column("worst.committee", "worst fault, committee", partial(_of, "test", "faults", "worst", "committee"),
               better="higher"),
        Column("total", "whole run", partial(_of, "seconds", "total"), "s", scale=1.0, decimals=1),
        Column("memory", "peak memory", partial(_of, "memory"), "MB", scale=1.0, decimals=0),
        Column("runs", "runs", lambda line: str(len(line.rows)), "", kind="words"),
    ]  # fmt: skip
    return build("More measures", columns, aggregate(rows))


def fault_table(rows: Sequence[Row], decision: str) -> Table:
    """Accuracy of one decision under every fault at every level."""
    paths = dict.fromkeys(
        path
        for row in rows
        for name in modalities(rows)
        for path in _leaves(dig(row, "test", "faults", name), (name,), decision)
    )
    columns = [
        Column(".".join(path), " ".join(path), partial(_of, "test", "faults", *path, decision), better="higher")
        for path in paths
    ]
    return build(f"Accuracy under every fault, {decision}", columns, aggregate(rows))


# -- what columns show --


def _of(*path_and_line: str | Line) -> Spread | None:
    *path, line = path_and_line
    return line.of(*path)  # ty: ignore[unresolved-attribute, invalid-argument-type]


def _alone(name: str, line: Line) -> Spread | None:
    return line.alone.get(name)


def _missing(name: str, answer: str, line: Line) -> Spread | None:
    """Filled inputs are judged by the fused prediction; the committee drops a member and needs no filling."""
    path = ("test", "faults", name, "missing", answer)
    decision = "committee" if answer == "committee" else "fused"
    return line.of(*path) or line.of(*path, decision)


def _beats(line: Line) -> Spread | None:
    answers = [dig(row, "test", "beats_best_single") for row in line.rows]
    known = [answer for answer in answers if isinstance(answer, bool)]
    return Spread(sum(known) / len(known), None, len(known)) if known else None


def _leaves(faults: object, path: tuple[str, ...], decision: str) -> list[tuple[str, ...]]:
    if not isinstance(faults, dict):
        return []
    if decision in faults and not isinstance(faults[decision], dict):
        inner = {key: each for key, each in faults.items() if isinstance(each, dict)}
        return [path] + _leaves(inner, path, decision) if len(path) != 2 or not inner else _leaves(inner, path, decision)
    return [leaf for key, each in faults.items() for leaf in _leaves(each, (*path, key), decision)]
