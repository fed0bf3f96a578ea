"""What came out of the runs for a table, under the paper's names for its rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

from equipoise.paper.published import TABLES, PaperTable
from equipoise.paper.reproduce_runs import GRID_FOLDER, MIMO, Parameters, Plan, diverged, scores_of
from equipoise.report.aggregate import Row, RunGroup
from equipoise.study.job import SEE
from equipoise.study.store import Store
from equipoise.util.errors import BadInput
from equipoise.util.files import inside


@final
@dataclass(frozen=True)
class Outcome:
    """Everything that a report of a table is made from.

    Args:
        plan: What was asked for.
        table: Of the paper.
        lines: The runs of each row of the table that were finished, by the paper's name; empty where none was. A
            control, which the paper has not got, comes after them.
        missing: What is not there, by the same names, in words.
        scores: Validation accuracy of each point of the grid; None where it came to no end, or not yet.
    """

    plan: Plan
    table: PaperTable
    lines: Mapping[str, RunGroup]
    missing: Mapping[str, str]
    scores: Sequence[tuple[Parameters, float | None]]

    @property
    def beside_paper(self) -> bool:
        """Whether the numbers are about the paper's data, and may stand beside the paper's."""
        return self.plan.scale == "full"

    @property
    def chosen(self) -> Parameters | None:
        """MIMO's λ and μ; None as long as the grid is not searched."""
        if self.plan.trials and not self.plan.jobs[MIMO]:
            return None
        return {name: self.plan.params[MIMO][name] for name in ("penalty", "smoothing")}


def outcome_of(out: Path, name: str) -> Outcome:
    """What a folder holds of a table, finished or not; neither data nor a GPU is needed.

    Args:
        out: A folder that `run` wrote.
        name: Of the table.

    Raises:
        BadInput: If it holds another table, or none.
    """
    plan = Plan.load(out)
    if plan.table != name:
        raise BadInput(f"{out}: expected runs for {name}, found those for {plan.table}; give their folder with --out")
    return collect(plan, Store(out).rows(), Store(inside(out, GRID_FOLDER)).rows() if plan.trials else [])


def collect(plan: Plan, rows: Sequence[Row], trials: Sequence[Row]) -> Outcome:
    """The rows of each line of the table. A folder may hold other runs as well, which are left alone."""
    table = TABLES[plan.table]
    known = {row["config"]: row for row in rows}
    lines, missing = {}, {}
    printed = [(row.name, row.method, row.sensor) for row in table.rows]
    for name, method, sensor in [*printed, *((each, each, None) for each in plan.jobs if each not in table.methods)]:
        configs = plan.jobs[method]
        there = [known[config] for config in configs if config in known and not diverged(known[config])]
        lines[name] = RunGroup(name, tuple(_as_row(row, name, sensor) for row in there))
        if told := _missing(plan, configs, known):
            missing[name] = told
    return Outcome(plan, table, lines, missing, scores_of(plan, trials))


def _as_row(row: Row, name: str, sensor: str | None) -> Row:
    """A row under the paper's name: its own uni-modal protocol, and its times; of a single sensor, that one alone."""
    test, seconds = row["test"], row["seconds"]
    view = test["view"]
    alone = test[view] if sensor is None else {sensor: test[view][sensor]}
    own = {"fused": test["fused"], "view": view, view: alone}
    if sensor is not None:
        return {**row, "label": name, "test": own, "time": {}}
    subroutine = seconds["balance"] + seconds["update"]
    time = {"subroutine": subroutine, "with backward": subroutine + seconds["backward"], "step": seconds["step"]}
    return {**row, "label": name, "test": {**own, "disparity": test["disparity"]}, "time": time}


def _missing(plan: Plan, configs: Sequence[str], known: Mapping[str, Any]) -> str:
    """In words, what there is not."""
    ended = {config for config in configs if config in known and diverged(known[config])}
    failed = [config for config in configs if config not in known and config in plan.failures]
    waiting = plan.seeds - sum(config in known for config in configs) - len(failed)
    reasons = dict.fromkeys(plan.failures[config].partition(": ")[2].partition(SEE)[0] for config in failed)
    told = [f"{len(ended)} of {plan.seeds} diverged"] if ended else []
    told += [f"{len(failed)} of {plan.seeds} failed ({'; '.join(reasons)})"] if failed else []
    told += [f"{waiting} of {plan.seeds} not run yet"] if waiting else []
    return ", ".join(told)
