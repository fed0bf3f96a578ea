"""The time of a training step after the losses are there, t, beside both baselines, and whether it is to be trusted."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from equipoise.measure.timing import BASELINES, OWN, Load
from equipoise.report.aggregate import MeanStd, Row, RunGroup, dig, mean_std, number

DOUBTED = "!"  # behind a time that is not to be trusted


def over(baseline: str, *path: str) -> Callable[[RunGroup], MeanStd | None]:
    """Return what takes a group and gives a time over that of a baseline, both of the same run.

    Args:
        baseline: A key of `BASELINES`.
        path: Of keys, to the times of the lines.
    """

    def ratio(row: Row) -> float | None:
        own, other = (number(row, *path, line, "wall") for line in (OWN, baseline))
        return None if own is None or not other else own / other

    return lambda group: mean_std([ratio(row) for row in group.rows])


def load_of(rows: Sequence[Row]) -> Load:
    """Return the worst load that the times of some runs were taken under."""
    loads = []
    for row in rows:
        timing, load = dig(row, "timing"), ("timing", "load")
        workers, cores = number(timing, "workers"), number(row, *load, "cores")
        average, waited = number(row, *load, "average"), number(row, *load, "waited")
        loads.append(Load(None if workers is None else int(workers), average, int(cores or 1), waited))
    return Load.worst(loads)


def doubt_note(rows: Sequence[Row]) -> str:
    """Say why the times of some runs are not to be trusted; "" where they are."""
    doubts = load_of(rows).doubts()
    return (
        f"{DOUBTED} Times NOT TO BE TRUSTED: taken under {', '.join(doubts)} (the worst of all runs). For times, type "
        "--workers 1 on a machine without other work."
        if doubts
        else ""
    )


def time_note(rows: Sequence[Row]) -> str:
    """Say what t is; "" where no run has it."""
    counts = sorted({int(count) for row in rows if (count := number(row, "timing", "batches")) is not None})
    if not counts:
        return ""
    words = " and over ".join(f"that of {one}" for one in BASELINES.values())
    return (
        f"t: the time after the losses are there, balance and backward, mean over {' or '.join(map(str, counts))} "
        f"batches after training, the device waited for; × over {words}, which took turns with it in the same run. "
        "The line of msl stands over MSL timed once more: how far it is from 1 is the noise."
    )
