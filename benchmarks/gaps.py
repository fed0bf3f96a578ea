"""Train with 30 % of one sensor's samples missing: masked, left out, or filled with the mean; beside complete data.

    python benchmarks/gaps.py --data phonewatch.npz utd.npz --seeds 5 --out gaps.jsonl

Each sensor in turn loses samples of the training and the validation part, drawn anew for every seed; the test part is
complete. Runs of one sensor and seed share the draw, so that their differences are paired. What is done is kept in
OUT, one line a run: started again, the script goes on. The table at the end gives mean differences in points of test
accuracy, with 95 % intervals of Student's t over sensors and seeds.
"""

import argparse
import json
import math
from collections.abc import Iterator
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy import stats

from equipoise import MIMO, MSL
from equipoise.data.splits import Splits
from equipoise.measure import measure_run
from equipoise.training.settings import Settings
from equipoise.training.train import train

SHARE = 0.3
WAYS = ("complete", "masked", "left out", "mean")
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


def jobs_of(paths: list[str], seeds: int, steps: int) -> Iterator[Job]:
    """List the runs; complete data once for all sensors."""
    for path in paths:
        sensors = list(arrays_of(path)[0])
        for seed in range(seeds):
            for method in METHODS:
                yield path, method, sensors[0], "complete", seed, steps
                yield from ((path, method, one, way, seed, steps) for one in sensors for way in WAYS[1:])


def table(rows: list[dict[str, Any]]) -> str:
    """Return the differences of masking to the other ways, paired by sensor and seed."""
    lines = ["| data | method | decision | complete | masked | masked − complete | − left out | − mean filled |"]
    lines.append("|---|---|---|---|---|---|---|---|")
    for data, method in sorted({(row["data"], row["method"]) for row in rows}):
        own = [row for row in rows if (row["data"], row["method"]) == (data, method)]
        for decision in ("fused", "committee"):
            value = {(row["way"], row["sensor"], row["seed"]): 100 * row[decision] for row in own}
            masked = {key[1:]: one for key, one in value.items() if key[0] == "masked"}
            complete = {seed: one for (way, _, seed), one in value.items() if way == "complete"}
            cells = [f"{np.mean(list(complete.values())):.1f}", f"{np.mean(list(masked.values())):.1f}"]
            cells.append(_interval([one - complete[seed] for (_, seed), one in masked.items()]))
            cells += [_interval([one - value[(way, *key)] for key, one in masked.items()]) for way in WAYS[2:]]
            lines.append(f"| {data} | {method} | {decision} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _interval(differences: list[float]) -> str:
    mean, error = np.mean(differences), np.std(differences, ddof=1) / math.sqrt(len(differences))
    half = float(stats.t.ppf(0.975, len(differences) - 1)) * error
    return f"{mean:+.1f} ({mean - half:+.1f} to {mean + half:+.1f})"


def main() -> None:
    """Run what is missing, and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", nargs="+", required=True)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=1500)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--out", type=Path, default=Path("gaps.jsonl"))
    given = parser.parse_args()
    rows = [json.loads(line) for line in given.out.read_text().splitlines()] if given.out.exists() else []
    done = {tuple(row[key] for key in ("data", "method", "sensor", "way", "seed", "steps")) for row in rows}
    jobs = [job for job in jobs_of(given.data, given.seeds, given.steps) if (Path(job[0]).stem, *job[1:]) not in done]
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
