"""Scores of answers, means with standard errors, and the tables of `strength.py`."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from statistics import fmean, stdev
from typing import Any

import numpy as np

FIRST = "minirocket"  # computing times are compared with its
OWN = "equipoise"  # lines of ours begin with it
Record = dict[str, Any]


def score(answer: np.ndarray, label: np.ndarray) -> float:
    """Return the accuracy of classes in %, or the mean absolute error of numbers."""
    if label.dtype.kind == "f":
        return float(np.abs(answer - label).mean())
    return 100 * float((answer == label).mean())


def macro_f1(answer: np.ndarray, label: np.ndarray) -> float:
    """Return the mean F1 over the classes that are in the labels or the answers, in %."""
    values = []
    for one in np.union1d(answer, label):
        both, either = ((answer == one) & (label == one)).sum(), (answer == one).sum() + (label == one).sum()
        values.append(2 * both / either)
    return 100 * float(np.mean(values))


def summary(found: dict[str, np.ndarray], label: np.ndarray) -> Record:
    """Score all answers of a line.

    Args:
        found: "DECISION|", "DECISION|SENSOR/FAULT/LEVEL" and "seconds|DECISION", as the lines give them. Where only
            some faults of a decision are there, the others are of sensors that it does not read. Where none is, it has
            no scores under faults.
        label: Of the answered part.

    Returns:
        "task", and under "answers" of each decision "score", "f1" (of classes), "faults", "missing", the "fill" of the
        missing sensor, "seconds", and "broken", the score under each fault. A missing sensor is left out of the inputs
        where the line can do that ("absent"); otherwise zeros or the mean training sample, whichever is better over all
        sensors. In "faults" every fault of every sensor counts alike, whatever its number of levels.
    """
    numbers = label.dtype.kind == "f"
    decisions = [name.removesuffix("|") for name in found if name.endswith("|")]
    faults = sorted({name.split("|")[1] for name in found if "/" in name})
    answers = {}
    for decision in decisions:
        clean = found[f"{decision}|"]
        broken = {fault: score(found.get(f"{decision}|{fault}", clean), label) for fault in faults}
        one: Record = {"score": score(clean, label), "seconds": float(found[f"seconds|{decision}"])}
        if not numbers:
            one["f1"] = macro_f1(clean, label)
        fills = {fault.split("/")[2] for fault in faults if "/missing/" in fault and f"{decision}|{fault}" in found}
        means = {fill: _means(broken, fill) for fill in sorted({"absent"} & fills or fills)}
        if means:
            one["broken"] = broken
            better = min if numbers else max
            one["fill"] = better(means, key=lambda fill: means[fill][1])
            one["faults"], one["missing"] = means[one["fill"]]
        answers[decision] = one
    return {"task": "numbers" if numbers else "classes", "answers": answers}


def _means(broken: dict[str, float], fill: str) -> tuple[float, float]:
    """Return the mean over all faults, missing sensors filled in one way, and that over missing sensors alone."""
    levels: dict[tuple[str, str], list[float]] = {}
    for name, value in broken.items():
        sensor, fault, level = name.split("/")
        if fault != "missing" or level == fill:
            levels.setdefault((sensor, fault), []).append(value)
    missing = [fmean(values) for (_, fault), values in levels.items() if fault == "missing"]
    return fmean(map(fmean, levels.values())), fmean(missing)


def units(records: Iterable[Record], line: str, decision: str, column: str) -> dict[Any, float]:
    """Return the values that a standard error is over: of each fold, over its seeds; or of each seed."""
    values: dict[Any, list[float]] = {}
    for record in records:
        number = record["answers"].get(decision, {}).get(column) if record["line"] == line else None
        if number is not None:
            values.setdefault(record["seed"] if record["fold"] is None else f"fold {record['fold']}", []).append(number)
    return {unit: fmean(some) for unit, some in values.items()}


def with_error(values: Sequence[float]) -> str:
    """Return a mean with its standard error; alone where there is one value."""
    if not values:
        return "–"
    error = f" ± {standard_error(values):.2f}" if len(values) > 1 else ""
    return f"{fmean(values):.2f}{error}"


def standard_error(values: Sequence[float]) -> float:
    """Return the standard error of a mean; 0 of one value."""
    return stdev(values) / math.sqrt(len(values)) if len(values) > 1 else 0.0


def tables(records: list[Record]) -> str:
    """Return a table for each set, and one of our lines beside the best anchor of each."""
    sets = list(dict.fromkeys(record["set"] for record in records))
    blocks = [_table(name, [record for record in records if record["set"] == name]) for name in sets]
    own = list(dict.fromkeys(record["line"] for record in records if record["line"].startswith(OWN)))
    if own and any(not record["line"].startswith(OWN) for record in records):
        blocks.append(_beside(records, sets, own))
    return "\n\n".join(blocks)


def _lines(records: list[Record]) -> list[tuple[str, str]]:
    return list(dict.fromkeys((record["line"], decision) for record in records for decision in record["answers"]))


def _table(name: str, records: list[Record]) -> str:
    task, part = records[0]["task"], records[0]["part"]
    counted = "fold" if records[0]["fold"] is not None else "seed"
    runs = len({record[counted] for record in records})
    first = "accuracy, %" if task == "classes" else "mean absolute error"
    rows = [f"**{name}**, {part} part, {runs} {counted}{'s' * (runs > 1)}; ± standard error\n"]
    rows.append(
        f"| line | {first} | macro-F1, % | mean over faults | a sensor missing | computing time, s | × MiniRocket |"
    )
    rows.append("|---|---|---|---|---|---|---|")
    beside = units(records, FIRST, "all", "seconds").values()
    for line, decision in _lines(records):
        cells = [
            list(units(records, line, decision, column).values()) for column in ("score", "f1", "faults", "missing")
        ]
        seconds = fmean(units(records, line, decision, "seconds").values())
        ratio = f"{seconds / fmean(beside):.2f}" if beside else "–"
        label = line if decision == "all" else f"{line}, {decision} alone"
        rows.append(f"| {label} | {' | '.join(map(with_error, cells))} | {seconds:.1f} | {ratio} |")
    return "\n".join(rows)


def _beside(records: list[Record], sets: list[str], own: list[str]) -> str:
    """Return how far each of our lines is ahead of the best anchor, paired by fold or seed."""
    rows = [
        "Ahead of the best anchor, single sensors included; below zero is behind; ± standard error of the difference\n"
    ]
    rows += ["| line | set | score | mean over faults | a sensor missing |", "|---|---|---|---|---|"]
    for line in own:
        saved = []
        for name in sets:
            some = [record for record in records if record["set"] == name]
            cells = []
            for column in ("score", "faults", "missing"):
                mine, rival, best = _rivals(some, line, column)
                sign = 1 if some[0]["task"] == "classes" else -1
                shared = [unit for unit in mine if unit in best]
                cells.append(f"{with_error([sign * (mine[unit] - best[unit]) for unit in shared])} ({rival})")
                if column == "score" and sign == 1 and mine and best:
                    saved.append((100 - fmean(mine.values()), 100 - fmean(best.values())))
            rows.append(f"| {line} | {name} | {' | '.join(cells)} |")
        if saved:
            mine, best = (fmean(column) for column in zip(*saved, strict=True))
            fewer = f"{1 - mine / best:.1%} fewer" if best else "as many"
            rows.append(
                f"| {line} | mean error rate over {len(saved)} sets | {mine:.2f} % against {best:.2f} %: {fewer} | | |"
            )
    return "\n".join(rows)


def _rivals(records: list[Record], line: str, column: str) -> tuple[dict[Any, float], str, dict[Any, float]]:
    """Return our values, and the name and values of the best anchor in a column."""
    mine = units(records, line, "all", column)
    others = {
        (other, decision): values
        for other, decision in _lines(records)
        if not other.startswith(OWN) and (values := units(records, other, decision, column))
    }
    if not others:
        return mine, "none", {}
    better = max if records[0]["task"] == "classes" else min
    other, decision = better(others, key=lambda key: fmean(others[key].values()))
    return mine, other if decision == "all" else f"{other}, {decision}", others[other, decision]
