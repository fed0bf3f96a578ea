"""Train with 30 % of one sensor's samples missing: masked, left out, or filled with the mean; beside complete data.

    python benchmarks/gaps.py --data phonewatch.npz utd.npz --seeds 5 --out gaps.jsonl

Each sensor in turn loses samples of the training and the validation part, drawn anew for every seed; the test part is
complete. All runs of a seed share the draw, so that their differences are paired. Each way has as many optimiser steps.
What is done is kept in OUT, one line a run: started again, the script goes on. The table at the end gives mean
differences in points of test accuracy, over sensors and then over seeds, with 95 % intervals of Student's t over seeds.
"""

import argparse
import json
import math
from collections.abc import Iterator
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch
from paired import interval

from equipoise import MIMO, MSL
from equipoise.data.splits import Splits
from equipoise.measure import measure_run
from equipoise.training.settings import Settings
from equipoise.training.train import train

SHARE = 0.3
WAYS, SHARED = ("complete", "masked", "left out", "mean"), ("complete", "left out")
METHODS = {"mimo": MIMO, "msl": MSL}
KNOWN = ("label", "split", "group", "classes")
Job = tuple[str, str, str, str, int, int]
"""Data, method, sensor, way, seed, optimiser steps."""


def arrays_of(path: str) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Return the sensors of a file, and its label, parts and groups."""
    with np.load(path) as file:
        content = {name: file[name] for name in file.files}
    return {name: x for name, x in content.items() if name not in KNOWN}, {
        name: x for name, x in content.items() if name in KNOWN
    }


def damaged(path: str, sensor: str, way: str, seed: int) -> Splits:
    """Return the parts of a file with some samples of a sensor gone, treated in one way."""
    sensors, known = arrays_of(path)
    random = np.random.default_rng(seed)
    lost = (random.random(len(known["split"])) < SHARE) & (known["split"] != 2)
    if way == "masked":
        sensors[f"{sensor}_present"] = ~lost
    elif way == "left out":
        sensors = {name: x[~lost] for name, x in sensors.items()}
        known = {name: x if name == "classes" else x[~lost] for name, x in known.items()}
    elif way == "mean":
        array = sensors[sensor].copy()
        array[lost] = array[(known["split"] == 0) & ~lost].mean(axis=0, dtype=np.float64).astype(array.dtype)
        sensors[sensor] = array
    return Splits.from_arrays(sensors, **known)


def run(job: Job) -> dict[str, Any]:
    """Train and measure one model."""
    path, method, sensor, way, seed, steps = job
    torch.set_num_threads(1)
    splits = damaged(path, sensor, way, seed)
    # As many steps whatever the number of samples, so that nothing but the data differs.
    epochs = max(1, round(steps / math.ceil(len(splits.train) / 64)))
    settings = Settings(epochs=epochs, optimizer="adamw", lr=1e-3, weight_decay=0.01, schedule="cosine", compile=False)
    trained = train(splits, METHODS[method](), settings, seed=seed)
    test = measure_run(trained.model, splits, seed=seed, faults=False, protocols=False)["test"]
    names = ("data", "method", "sensor", "way", "seed", "steps")
    facts = dict(zip(names, (Path(path).stem, *job[1:]), strict=True))
    return {**facts, "fused": test["fused"], "committee": test["committee"]}


def jobs_of(paths: list[str], methods: list[str], seeds: int, steps: int) -> Iterator[Job]:
    """List the runs; complete data, and samples left out, are the same whatever sensor lost them."""
    for path, method, seed in product(paths, methods, range(seeds)):
        sensors = list(arrays_of(path)[0])
        yield from ((path, method, sensors[0], way, seed, steps) for way in SHARED)
        yield from ((path, method, one, way, seed, steps) for one in sensors for way in WAYS if way not in SHARED)


def table(rows: list[dict[str, Any]]) -> str:
    """Return the differences of masking to the other ways, paired by sensor and seed."""
    lines = ["| data | method | decision | complete | masked | masked − complete | − left out | − mean filled |"]
    lines.append("|---|---|---|---|---|---|---|---|")
    for data, method in sorted({(row["data"], row["method"]) for row in rows}):
        own = [row for row in rows if (row["data"], row["method"]) == (data, method)]
        for decision in ("fused", "committee"):
            mean = {way: _by_seed([row for row in own if row["way"] == way], decision) for way in WAYS}
            cells = [f"{np.mean(list(mean[way].values())):.1f}" for way in WAYS[:2]]
            others = (mean[way] for way in WAYS if way != "masked")
            cells += [interval([one - other[seed] for seed, one in mean["masked"].items()]) for other in others]
            lines.append(f"| {data} | {method} | {decision} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _by_seed(rows: list[dict[str, Any]], decision: str) -> dict[int, float]:
    """Return the mean accuracy in percent over sensors, of each seed."""
    seeds = sorted({row["seed"] for row in rows})
    return {seed: 100 * float(np.mean([row[decision] for row in rows if row["seed"] == seed])) for seed in seeds}


def main() -> None:
    """Run what is missing, and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", nargs="+", required=True)
    parser.add_argument("--methods", nargs="+", choices=list(METHODS), default=list(METHODS))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=1500)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--out", type=Path, default=Path("gaps.jsonl"))
    given = parser.parse_args()
    rows = [json.loads(line) for line in given.out.read_text().splitlines()] if given.out.exists() else []
    done = {tuple(row[key] for key in ("data", "method", "sensor", "way", "seed", "steps")) for row in rows}
    jobs = [
        job
        for job in jobs_of(given.data, given.methods, given.seeds, given.steps)
        if (Path(job[0]).stem, *job[1:]) not in done
    ]
    print(f"{len(jobs)} runs to do, {len(rows)} done", flush=True)
    with get_context("spawn").Pool(given.workers) as pool, given.out.open("a") as file:
        for number, row in enumerate(pool.imap_unordered(run, jobs), 1):
            rows.append(row)
            file.write(json.dumps(row) + "\n")
            file.flush()
            if number % 20 == 0:
                print(f"{number} of {len(jobs)}", flush=True)
    print(table(rows))


if __name__ == "__main__":
    main()
