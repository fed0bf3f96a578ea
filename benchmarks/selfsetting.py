"""Does a method that sets itself keep up with tuned ones? Equal tuning on one fold, five folds, learning rates.

    python benchmarks/selfsetting.py run --data watch.npz --out selfsetting/watch --workers 4
    python benchmarks/selfsetting.py table selfsetting/*

`run` does one data set, in stages whose numbers of runs it prints first: every method but the self-setting one tries
as many settings on the validation part of the first fold; the best is run on all folds with all seeds, measured with
broken sensors unless --quick; the self-setting one and joint training are run at ten times the learning rate on all
folds; and every method, with its own defaults, over learning rates on the first fold. Rows are kept in OUT: started
again, it goes on. `table` reads them all: accuracies or errors, differences to the best tuned method paired by fold and
seed, mean ranks over data sets, and areas over learning rates.
"""

import argparse
import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from paired import interval
from scipy import stats

from equipoise.data.feed import epoch_steps
from equipoise.data.source import DataSet, data_set
from equipoise.models.metrics import METRICS
from equipoise.study.job import FoldSplits, Job, Measure
from equipoise.study.registry import Entry, entries
from equipoise.study.robustness import RATES
from equipoise.study.store import Store
from equipoise.study.study import plan, run_progress, run_study
from equipoise.study.tuning import merit, trials
from equipoise.training.presets import preset_for
from equipoise.util.errors import FailedRuns

NAMES = ("msl", "moddrop", "ew", "mimo", "mmpareto", "ogmge", "primaldual")
SELF = "primaldual"
FOLDS, SEEDS, TRIALS = 5, 2, 8


def lines(words: Sequence[str], modalities: int) -> list[Entry]:
    """Return the lines of the study: the methods by their defaults, and EW at the mean weight of MIMO's penalty."""
    made = entries(NAMES, words, preset_for("auto", ""))
    by_label = {one.label: one for one in made}
    weight = {"weight": by_label["mimo"].params["penalty"] / modalities}
    return [*made, replace(by_label["ew"].changed(weight, {}, "ew at λ/K"), fixed=("weight",))]


def words_of(given: argparse.Namespace, samples: int) -> list[str]:
    """Return the settings of every run; a number of steps is a number of epochs."""
    epochs = max(1, round(given.steps / epoch_steps(samples, 64)))
    return [f"epochs={epochs}", f"encoder={given.encoder}", f"device={given.device}", *given.words]


def done(jobs: Iterable[Job], splits: FoldSplits, store: Store, title: str, workers: int) -> dict[str, dict[str, Any]]:
    """Run what is missing, and return the rows by config; a run that diverges has none."""
    jobs = list(jobs)
    print(f"{title}: {len(jobs)} runs planned, {store.missing(job.config for job in jobs)} to do", flush=True)
    try:
        with run_progress(store.missing(job.config for job in jobs), title, quiet=True) as tell:
            run_study(jobs, splits, store, workers=workers, on_event=tell, checkpoint_seconds=1e9)
    except FailedRuns as error:
        print(error, flush=True)
    return {row["config"]: row for row in store.rows()}


def tuned(chosen: Sequence[Entry], jobs: Sequence[Job], splits: FoldSplits, store: Store, given: Any) -> list[Entry]:
    """Return every line at its best trial on the validation part of the first fold; the self-setting one as it is."""
    first = jobs[0]
    tried = {
        entry.label: [replace(first, entry=one, measure="validation") for one in trials(entry, given.trials)]
        for entry in chosen
        if entry.label != SELF
    }
    rows = done((job for some in tried.values() for job in some), splits, store, "tuning", given.workers)
    best = {
        label: max(some, key=lambda job: merit(rows[job.config]) if job.config in rows else -math.inf).entry
        for label, some in tried.items()
    }
    return [best.get(entry.label, entry) for entry in chosen]


def over_rates(chosen: Sequence[Entry], rates: Sequence[float]) -> list[Entry]:
    """Return every line with its own parameters at each learning rate, the rate in its label."""
    return [
        one.changed({}, {"lr": one.settings.lr * rate}, f"{one.label} at lr × {rate:g}")
        for one in chosen
        for rate in rates
    ]


def run(given: argparse.Namespace) -> None:
    """Do the stages that are asked for, of one data set."""
    torch.set_num_threads(1)
    data: DataSet = data_set(str(given.data)).cut_into(FOLDS)
    cut = data.load(0)
    chosen = lines(words_of(given, len(cut.train)), len(cut.modalities))
    chosen = [entry for entry in chosen if not given.labels or entry.label in given.labels]
    measure: Measure = "quick" if given.quick else "all"
    jobs, splits = plan(chosen, data, [0], list(range(FOLDS if "report" in given.stages else 1)))
    resolved = [job.entry for job in jobs if job.fold == 0]
    store = Store(given.out)
    if "tune" in given.stages or "report" in given.stages:
        best = tuned(resolved, jobs, splits, Store(given.out / "tuning"), given)
    if "report" in given.stages:
        marks = {job.fold: job.split for job in jobs}
        runs = [
            replace(jobs[0], entry=one, fold=fold, seed=seed, split=marks[fold], measure=measure)
            for fold in marks
            for seed in range(given.seeds)
            for one in best
        ]
        done(runs, splits, store, "report", given.workers)
    if "tenfold" in given.stages:
        marks = {fold: data.load(fold).fingerprint() for fold in range(FOLDS)}
        cuts = splits | {fold: data.load(fold).check() for fold in range(FOLDS) if fold not in splits}
        two = over_rates([one for one in resolved if one.label in ("msl", SELF)], RATES[-1:])
        runs = [
            replace(jobs[0], entry=one, fold=f, split=mark, measure="quick") for f, mark in marks.items() for one in two
        ]
        done(runs, cuts, Store(given.out / "tenfold"), "ten times the learning rate", given.workers)
    if "rates" in given.stages:
        rated = [replace(jobs[0], entry=one, measure="quick") for one in over_rates(resolved, RATES)]
        done(rated, splits, Store(given.out / "rates"), "learning rates", given.workers)


def rows_of(folder: Path) -> list[dict[str, Any]]:
    """Return the rows of a folder, none where there is none."""
    file = folder / "results.jsonl"
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def value(row: dict[str, Any], decision: str, fault: bool = False) -> float:
    """Return the metric of a row on test, in % for an accuracy."""
    test = row["test"]["faults"]["mean"] if fault else row["test"]
    return float(test[decision]) * (100 if METRICS[row["metric"]].higher else 1)


def table(given: argparse.Namespace) -> None:
    """Print the report, the ranks and the areas of all folders."""
    merits: dict[tuple[str, bool], dict[str, dict[str, float]]] = {}
    areas: dict[str, dict[str, float]] = {}
    for folder in given.folders:
        rows = rows_of(folder)
        if rows:
            _print_report(folder.name, rows, merits)
        if tenfold := rows_of(folder / "tenfold"):
            _print_tenfold(folder.name, tenfold)
        if rated := rows_of(folder / "rates"):
            areas[folder.name] = _print_rates(folder.name, rated)
    for (decision, fault), by_data in merits.items():
        labels = list(next(iter(by_data.values())))
        ranks = {label: [] for label in labels}
        for values in by_data.values():
            order = stats.rankdata([-values[label] for label in labels])
            for label, rank in zip(labels, order, strict=True):
                ranks[label].append(float(rank))
        told = ", ".join(
            f"{label} {np.mean(own):.2f}" for label, own in sorted(ranks.items(), key=lambda x: np.mean(x[1]))
        )
        print(f"\nmean ranks over {len(by_data)} sets, {decision}{' under faults' if fault else ''}: {told}")
    if areas:
        labels = list(next(iter(areas.values())))
        told = {label: np.mean([own[label] for own in areas.values()]) for label in labels}
        print("\nmean area over learning rates, relative to joint training, %: ", end="")
        print(", ".join(f"{label} {area:+.2f}" for label, area in sorted(told.items(), key=lambda x: -x[1])))


def _print_report(name: str, rows: list[dict[str, Any]], merits: dict[tuple[str, bool], Any]) -> None:
    metric = METRICS[rows[0]["metric"]]
    sign = 1 if metric.higher else -1
    labels = list(dict.fromkeys(row["label"] for row in rows))
    print(f"\n{name} ({metric.name}, n = {len(rows) // len(labels)})")
    for decision in ("fused", "committee"):
        for fault in (False, True):
            known = [row for row in rows if not fault or row["test"].get("faults")]
            if not known:
                continue
            means = {
                label: np.mean([value(r, decision, fault) for r in known if r["label"] == label]) for label in labels
            }
            merits.setdefault((decision, fault), {})[name] = {label: sign * mean for label, mean in means.items()}
            best = max((label for label in labels if label != SELF), key=lambda label: sign * means[label])
            by = {(row["label"], row["fold"], row["seed"]): value(row, decision, fault) for row in known}
            cells = []
            for label in labels:
                pairs = [
                    sign * (own - by[(best, fold, seed)])
                    for (one, fold, seed), own in by.items()
                    if one == label and (best, fold, seed) in by
                ]
                cells.append(f"{label} {means[label]:.2f} [{interval(pairs) if label != best else 'best tuned'}]")
            print(f"  {decision}{' under faults' if fault else ''}: " + "; ".join(cells))


def _print_tenfold(name: str, rows: list[dict[str, Any]]) -> None:
    sign = 1 if METRICS[rows[0]["metric"]].higher else -1
    for decision in ("fused", "committee"):
        by = {(row["method"], row["fold"]): value(row, decision) for row in rows}
        pairs = [
            sign * (by[SELF, fold] - by["msl", fold])
            for fold in range(FOLDS)
            if {("msl", fold), (SELF, fold)} <= by.keys()
        ]
        print(f"\n{name}, {decision} at lr × {RATES[-1]:g}: {SELF} − msl {interval(pairs)}, {len(pairs)} folds")


def _print_rates(name: str, rows: list[dict[str, Any]]) -> dict[str, float]:
    metric = METRICS[rows[0]["metric"]]
    by: dict[str, dict[float, float]] = {}
    for row in rows:
        label, _, rate = row["label"].partition(" at lr × ")
        by.setdefault(label, {})[float(rate)] = value(row, "fused")
    worst = (
        min(min(own.values()) for own in by.values())
        if metric.higher
        else max(max(own.values()) for own in by.values())
    )
    areas = {label: float(np.mean([own.get(rate, worst) for rate in RATES])) for label, own in by.items()}
    print(f"\n{name}, fused by learning rate × {RATES} (a run that diverged counts as the worst of all: {worst:.2f})")
    for label, own in sorted(by.items(), key=lambda item: -areas[item[0]] if metric.higher else areas[item[0]]):
        cells = ", ".join(f"{own[rate]:.2f}" if rate in own else "diverged" for rate in RATES)
        print(f"  {label}: {cells}; area {areas[label]:.2f}")
    base = areas["msl"]
    return {label: 100 * (area / base - 1) * (1 if metric.higher else -1) for label, area in areas.items()}


def main() -> None:
    """Run one data set, or print the tables of several."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    runner = commands.add_parser("run")
    runner.add_argument("--data", type=Path, required=True)
    runner.add_argument("--out", type=Path, required=True)
    runner.add_argument("--stages", nargs="+", default=["tune", "report", "tenfold", "rates"])
    runner.add_argument("--steps", type=int, default=800)
    runner.add_argument("--trials", type=int, default=TRIALS)
    runner.add_argument("--seeds", type=int, default=SEEDS)
    runner.add_argument("--encoder", default="rocket")
    runner.add_argument("--device", default="cpu")
    runner.add_argument("--workers", type=int, default=2)
    runner.add_argument("--labels", nargs="+", help="some lines alone")
    runner.add_argument("--quick", action="store_true", help="measure no broken sensors")
    runner.add_argument("words", nargs="*", help="further settings, name=value")
    printer = commands.add_parser("table")
    printer.add_argument("folders", nargs="+", type=Path)
    given = parser.parse_args()
    {"run": run, "table": table}[given.command](given)


if __name__ == "__main__":
    main()
