"""A small study: its data, its runs, and what of a row has to be the same bits again."""

from typing import Any

from equipoise.data.bundled import two_sensors
from equipoise.data.source import DataSet
from equipoise.study.job import Measure
from equipoise.study.registry import entries
from equipoise.study.study import plan

SHORT = ["epochs=2", "features=8"]
DATA = DataSet("small", lambda fold: two_sensors(samples=150, seed=fold or 0), 10, "Small.")


def jobs_of(*names: str, words: list[str] = SHORT, seeds: int = 1, measure: Measure = "quick") -> Any:
    """Plan runs of methods."""
    return plan(entries(names, words), DATA, list(range(seeds)), [None], measure=measure)


def results(row: dict[str, Any]) -> dict[str, Any]:
    """What must be the same bits again."""
    return {key: row[key] for key in ("test", "validation", "params", "config", "run", "selected", "split", "seed")}
