"""The tables that `equipoise reproduce` prints: the paper's layout, our numbers beside the paper's, and the time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from equipoise.paper.ablation import in_words
from equipoise.paper.published import PaperRow
from equipoise.paper.reproduce import CONTROL
from equipoise.paper.reproduce_outcome import Outcome
from equipoise.report.aggregate import MeanStd, RunGroup
from equipoise.report.notes import notes_below
from equipoise.report.paired import Difference, paired_differences
from equipoise.report.table import ResultColumn, ResultTable, build_table

BASELINE = "MSL"
MILLISECONDS = 1000.0


def tables(outcome: Outcome) -> dict[str, ResultTable]:
    """All of them, by the names their files have."""
    found = {"table": layout_table(outcome)}
    if outcome.beside_paper:
        found["beside"] = beside_table(outcome)
    return {**found, "time": time_table(outcome)}


def layout_table(outcome: Outcome) -> ResultTable:
    """Our numbers in the paper's layout: its rows in its order, Acc, Acc of each modality, and t."""
    lines = list(outcome.lines.values())
    differences = {each.label: each for each in differences_to_baseline(outcome)}
    columns = [
        ResultColumn("acc", "Acc", lambda line: line.fused, decimals=2, better="higher"),
        *(
            ResultColumn(f"acc.{name}", f"Acc_{letter}", _alone(name), f"{name}, %", decimals=2, better="higher",
                   by_protocol=True)
            for name, letter in outcome.table.modalities.items()
        ),
        ResultColumn("t", "t", _time("subroutine"), "ms", scale=MILLISECONDS, decimals=2),
        ResultColumn("disparity", "disparity", lambda line: line.disparity, "points", decimals=2, better="lower",
               by_protocol=True),
        ResultColumn("protocol", "alone by", lambda line: line.protocol, "", kind="words"),
        ResultColumn("difference", f"vs {BASELINE}", lambda line: differences.get(line.label), "points",
                     kind="difference", decimals=2),
    ]  # fmt: skip
    title = f"{outcome.table.title}: the paper's table, run here"
    if not outcome.beside_paper:
        title = f"{outcome.table.title} on a made-up stand-in: these numbers mean nothing"
    return _underline_fastest(build_table(title, columns, lines, _notes(outcome, list(differences.values()))), lines)


def beside_table(outcome: Outcome) -> ResultTable:
    """Every accuracy and disparity here, in the paper, and the difference."""
    columns = _three(outcome, "acc", "Acc", lambda line: line.fused, lambda row: row.fused)
    for name, letter in outcome.table.modalities.items():
        columns += _three(outcome, f"acc.{name}", f"Acc_{letter}", _alone(name), lambda row, name=name: row.of(name))
    columns += _three(outcome, "disparity", "disparity", lambda line: line.disparity, _paper_disparity)
    notes = [
        "Difference: ours minus the paper's, in points. Numbers of the paper as printed: mean and standard deviation "
        "of three seeds; its disparity is computed from its columns.",
        "The paper measures single-sensor accuracy by heads trained on each encoder's features; whether their "
        "gradient reaches the encoders of MSL and of the modulating methods it does not say. Here it does not.",
    ]
    title = f"{outcome.table.title}: ours beside the paper's"
    return build_table(title, columns, list(outcome.lines.values()), notes)


def time_table(outcome: Outcome) -> ResultTable:
    """What a batch costs by two readings of the paper's definition, each also over the time of joint training."""
    singles = {row.name for row in outcome.table.rows if row.sensor}
    lines = [line for line in outcome.lines.values() if line.label not in singles]
    base = outcome.lines.get(BASELINE)
    columns: list[ResultColumn] = []
    for key, title in (("subroutine", "t"), ("with backward", "t + backward"), ("step", "whole step")):
        columns += [
            ResultColumn(key, title, _time(key), "ms", scale=MILLISECONDS, decimals=2),
            ResultColumn(f"{key}.ratio", title, _ratio(_time(key), base), f"× {BASELINE}", scale=1.0),
        ]
    if outcome.beside_paper:
        printed = {row.name: row.seconds for row in outcome.table.rows}
        columns += [
            ResultColumn("paper", "paper's t", lambda line: printed.get(line.label), "ms", scale=MILLISECONDS,
                         decimals=1),
            ResultColumn("paper.ratio", "paper's t",
                         _ratio(lambda line: printed.get(line.label), base or RunGroup(BASELINE, ())), f"× {BASELINE}",
                         scale=1.0),
        ]  # fmt: skip
    return build_table(f"{outcome.table.title}: seconds per batch", columns, lines, _time_notes(outcome))


def differences_to_baseline(outcome: Outcome) -> list[Difference]:
    """How far each row's fused accuracy lies above joint training, seed by seed."""
    rows = [row for line in outcome.lines.values() if line.fused for row in line.rows]
    return paired_differences(rows, BASELINE)


# -- columns --


def _three(
    outcome: Outcome,
    key: str,
    title: str,
    ours: Callable[[RunGroup], MeanStd | None],
    printed: Callable[[PaperRow], MeanStd | None],
) -> list[ResultColumn]:
    """Ours, the paper's, and the difference."""

    def paper(line: RunGroup) -> MeanStd | None:
        row = outcome.table.row(line.label)
        return None if row is None else printed(row)

    def difference(line: RunGroup) -> Difference | None:
        one, other = ours(line), paper(line)
        if one is None or other is None:
            return None
        return Difference(line.label, "paper", one.mean - other.mean, None, None, one.count, "seeds")

    unit = "points" if key == "disparity" else "%"
    return [
        ResultColumn(key, title, ours, f"ours, {unit}", decimals=2),
        ResultColumn(f"{key}.paper", title, paper, f"paper, {unit}", decimals=2),
        ResultColumn(f"{key}.difference", title, difference, "difference", kind="difference", decimals=2),
    ]


def _alone(name: str) -> Callable[[RunGroup], MeanStd | None]:
    return lambda line: line.alone.get(name)


def _paper_disparity(row: PaperRow) -> MeanStd | None:
    return None if row.disparity is None else MeanStd(row.disparity, None, 1)


def _time(key: str) -> Callable[[RunGroup], MeanStd | None]:
    return lambda line: line.of("time", key)


def _ratio(of: Callable[[RunGroup], MeanStd | None], base: RunGroup | None) -> Callable[[RunGroup], MeanStd | None]:
    def ratio(line: RunGroup) -> MeanStd | None:
        own, other = of(line), of(base) if base is not None else None
        return None if own is None or other is None or not other.mean else MeanStd(own.mean / other.mean, None, 1)

    return ratio


def _underline_fastest(table: ResultTable, lines: Sequence[RunGroup]) -> ResultTable:
    """As the paper does: the lowest t among the three best by accuracy."""
    best = sorted((line for line in lines if line.fused), key=lambda line: -(line.fused.mean if line.fused else 0))[:3]
    times = {line.label: each.mean for line in best if (each := line.of("time", "subroutine"))}
    at = next((number for number, column in enumerate(table.columns) if column.key == "t"), None)
    if len(times) < 2 or at is None:
        return table
    row = table.labels.index(min(times, key=times.__getitem__))
    cells = [list(some) for some in table.cells]
    cells[row][at] = replace(cells[row][at], fastest=True)
    return replace(table, cells=tuple(map(tuple, cells)))


# -- notes --


def _notes(outcome: Outcome, differences: list[Difference]) -> list[str]:
    plan, there = outcome.plan, [line for line in _once(outcome) if line.rows]
    found = [_parameters(outcome), *(notes_below(there, differences) if there else [])]
    if plan.seeds > 1 and differences:
        found.append("An interval over seeds of one split speaks of the seeds alone, not of other data.")
    if singles := [row.name for row in outcome.table.rows if row.sensor]:
        found.append(f"{', '.join(singles)}: one run trains each sensor for itself, side by side, so t is left out.")
    if CONTROL in outcome.lines:
        found.append(
            f"{CONTROL}: no row of the paper. λ also enlarges the step; equal weights that are as large together tell "
            "what the maximum adds."
        )
    if outcome.missing:
        alike: dict[str, list[str]] = {}
        for name, told in outcome.missing.items():
            alike.setdefault(told, []).append(name)
        found.append("NOT COMPLETE: " + "; ".join(f"{', '.join(some)}: {told}" for told, some in alike.items()) + ".")
    if plan.departures:
        found.append(f"DEPARTURES from the paper's preset {outcome.table.name}: {', '.join(plan.departures)}.")
    return found


def _parameters(outcome: Outcome) -> str:
    """Where MIMO's λ and μ come from."""
    plan, chosen = outcome.plan, outcome.chosen
    runs = f"{plan.grid_seeds} seed{'s' if plan.grid_seeds > 1 else ''} each"
    if chosen is None:
        return f"MIMO's λ and μ are being chosen on validation data, of {len(plan.trials)} points, {runs}."
    told = f"MIMO: λ = {in_words(chosen['penalty'])}, μ = {in_words(chosen['smoothing'])}, "
    if plan.choice == "grid":
        known = sum(score is not None for _, score in outcome.scores)
        return (
            f"{told}chosen on validation accuracy of {known} of {len(plan.trials)} points that came to an end, {runs}, "
            "before the test part was read. As in the paper no other method was tuned; equipoise compare --tune gives "
            "all the same trials."
        )
    if not outcome.beside_paper:
        return f"{told}nothing was searched."
    return told + ("as the paper gives them; nothing was searched." if plan.choice == "paper" else "as typed.")


def _once(outcome: Outcome) -> list[RunGroup]:
    """The lines, with single sensors together: they are the same runs."""
    singles = [row.name for row in outcome.table.rows if row.sensor]
    together = [RunGroup(", ".join(singles), outcome.lines[singles[0]].rows)] if singles else []
    return together + [line for name, line in outcome.lines.items() if name not in singles]


def _time_notes(outcome: Outcome) -> list[str]:
    lines = outcome.lines.values()
    devices = dict.fromkeys(str(row.get("device")) for line in lines for row in line.rows)
    plan = outcome.plan
    here = "" if plan.on is None else f", sent to {plan.on}"
    usual = "one per core, or as many as the GPUs carry" if plan.on is None else "as there is room"
    side = usual if plan.workers is None else f"{plan.workers}"
    return [
        "t: balancing plus update, as the paper words it; where balancing happens inside the backward pass, what that "
        "takes beyond a plain one. t + backward: with the backward pass, which its times of MSL suggest. Medians of "
        "10 steps, the device waited for; mean ± standard deviation over seeds. Whole step: as trained, by the wall "
        "clock of the epochs after the first, in the precision of the runs and nothing waited for; so the others are "
        "no parts of it.",
        f"On {', '.join(devices) or 'nothing yet'}{here}; runs side by side: {side}. "
        "Side by side, they slow one another.",
        *(
            ["The paper's times are of RTX 3090 and A6000 cards, of one seed, and as far as it says without waiting "
             "for the device: compare ratios, not milliseconds."]
            if outcome.beside_paper
            else []
        ),
    ]  # fmt: skip
