"""Methods on strong models: equal tuning on one fold, five folds by person, two seeds, paired differences.

    python benchmarks/balance.py --data watch utd.npz phonewatch.npz --out balance.jsonl

Every model reads the components of frozen kernels (`encoder=rocket`), fitted on the training part of its fold and
computed once for all methods and seeds; the network on them is trained by the recipe. Each method tries as many
settings on the validation part of the first fold: its own, and others of its grid times three learning rates. The best
is run on all folds with all seeds. What is done is kept in OUT, one line a run: started again, the script goes on. The
table gives test accuracy, and differences to joint training paired by fold and seed, with 95 % intervals of Student's
t.
"""

import argparse
import json
import math
from collections.abc import Iterable
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch
from components import FOLDS, components_of
from paired import interval

from equipoise.data.splits import Splits
from equipoise.measure import measure_run
from equipoise.study.registry import Entry, entries
from equipoise.study.tuning import trials
from equipoise.training.presets import preset_for
from equipoise.training.train import train

NAMES = ("msl", "moddrop", "ew", "mimo", "mmpareto", "ogmge", "ensemble")
_data: dict[tuple[str, int], Splits] = {}
"""The components of each data set and fold, which processes are forked off with."""


def prepare(wanted: Iterable[tuple[str, int]], workers: int) -> None:
    """Compute the components of data sets and folds that are not there yet."""
    missing = [one for one in wanted if one not in _data]
    with get_context("fork").Pool(workers) as pool:
        _data.update(zip(missing, pool.starmap(components_of, missing), strict=True))


def lines(modalities: int, steps: int, samples: int) -> dict[str, Entry]:
    """Return the lines of the study, with the recipe's settings and so many steps."""
    epochs = max(1, round(steps / math.ceil(samples / 64)))
    words = [f"epochs={epochs}", "encoder=regularised-mlp", "device=cpu"]
    made = {one.label: one for one in entries(NAMES, words, preset_for("auto", ""))}
    penalty = made["mimo"].params["penalty"]
    weight = {"weight": penalty / modalities}
    made["ew at λ/K"] = replace(made["ew"].changed(weight, {}, "ew at λ/K"), fixed=("weight",))
    return made


Job = tuple[str, int, str, int, int, str]
"""Data, fold, label, seed, steps; and the number of a trial on validation data, or the number of the one chosen."""


def run(job: Job) -> dict[str, Any]:
    """Train and measure one model; a trial is measured on the validation part alone."""
    path, fold, label, seed, steps, trial = job
    splits = _data[path, fold]
    entry = lines(len(splits.modalities), steps, len(splits.train))[label]
    chosen = trials(entry, int(trial.split()[-1]) + 1)[-1]
    trained = train(splits, chosen.balancer(), chosen.settings, seed=seed).model
    model = trained if chosen.method.finish is None else chosen.method.finish(trained)
    only = trial.startswith("trial")
    seen = replace(splits, test=splits.validation) if only else splits
    measured = measure_run(model, seen, seed=seed, faults=False, protocols=False)
    part = measured["validation" if only else "test"]
    names = ("data", "fold", "label", "seed", "steps", "trial")
    facts = dict(zip(names, (Path(path).stem, *job[1:]), strict=True))
    told = {"lr": chosen.settings.lr, **chosen.params}
    return {**facts, "settings": told, "fused": part["fused"], "committee": part["committee"]}


def work(jobs: Iterable[Job], out: Path, workers: int) -> list[dict[str, Any]]:
    """Run what is missing, and return the rows of all."""
    jobs = list(jobs)
    rows = [json.loads(line) for line in out.read_text().splitlines()] if out.exists() else []
    done = {tuple(row[key] for key in ("data", "fold", "label", "seed", "steps", "trial")) for row in rows}
    missing = [job for job in jobs if (Path(job[0]).stem, *job[1:]) not in done]
    print(f"{len(missing)} runs to do, {len(jobs) - len(missing)} done", flush=True)
    prepare({(job[0], job[1]): None for job in missing}, workers)
    if missing:
        with get_context("fork").Pool(workers) as pool, out.open("a") as file:
            for number, row in enumerate(pool.imap_unordered(run, missing), 1):
                rows.append(row)
                file.write(json.dumps(row) + "\n")
                file.flush()
                if number % 20 == 0:
                    print(f"{number} of {len(missing)}", flush=True)
    return rows


def table(rows: list[dict[str, Any]]) -> str:
    """Return accuracies, and differences to joint training paired by fold and seed."""
    lines = ["| data | method | fused | − joint training | committee | − joint training, fused | chosen |"]
    lines.append("|---|---|---|---|---|---|---|")
    for data in dict.fromkeys(row["data"] for row in rows):
        own = [row for row in rows if row["data"] == data]
        base = {(row["fold"], row["seed"]): row["fused"] for row in own if row["label"] == "msl"}
        for label in dict.fromkeys(row["label"] for row in own):
            some = [row for row in own if row["label"] == label]
            cells = []
            for decision in ("fused", "committee"):
                cells.append(f"{100 * np.mean([row[decision] for row in some]):.1f}")
                cells.append(interval([100 * (row[decision] - base[row["fold"], row["seed"]]) for row in some]))
            told = ", ".join(f"{key} {value}" for key, value in some[0]["settings"].items() if value is not None)
            lines.append(f"| {data} | {label} | {' | '.join(cells)} | {told} |")
    return "\n".join(lines)


def main() -> None:
    """Tune, run, and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", nargs="+", required=True)
    parser.add_argument("--trials", type=int, default=5)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--steps", type=int, default=800)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--out", type=Path, default=Path("balance.jsonl"))
    given = parser.parse_args()
    torch.set_num_threads(1)
    labels = [*NAMES, "ew at λ/K"]
    count = len(given.data) * len(labels)
    print(f"{count * given.trials} trials at most and {count * FOLDS * given.seeds} runs are planned", flush=True)
    tried = []
    prepare([(path, 0) for path in given.data], given.workers)
    for path in given.data:
        made = lines(len(_data[path, 0].modalities), given.steps, len(_data[path, 0].train))
        for label in labels:
            numbers = range(len(trials(made[label], given.trials)))
            tried += [(path, 0, label, 0, given.steps, f"trial {number}") for number in numbers]
    rows = work(tried, given.out, given.workers)
    best: dict[tuple[str, str], tuple[float, str]] = {}
    for row in rows:
        key, number = (row["data"], row["label"]), row["trial"].split()[-1]
        if row["trial"].startswith("trial") and (key not in best or row["fused"] > best[key][0]):
            best[key] = (row["fused"], number)
    jobs = [
        (path, fold, label, seed, given.steps, f"best {best[Path(path).stem, label][1]}")
        for path in given.data
        for fold in range(FOLDS)
        for label in labels
        for seed in range(given.seeds)
    ]
    rows = work(jobs, given.out, given.workers)
    print(table([row for row in rows if row["trial"].startswith("best")]))


if __name__ == "__main__":
    main()
