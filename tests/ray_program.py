"""A study of twelve runs on a Ray cluster of two workers, one of which is killed at work. Started by a test."""

import json
import os
import sys
from pathlib import Path
from typing import Any

import psutil
from ray.cluster_utils import Cluster

from equipoise.data.bundled import two_sensors
from equipoise.data.source import DataSet
from equipoise.data.splits import Splits
from equipoise.study.executors import RayCluster
from equipoise.study.executors.ray import RayExecutor
from equipoise.study.job import Job
from equipoise.study.registry import entries
from equipoise.study.store import Store
from equipoise.study.study import plan, run_study

ENOUGH = 3  # rows that are there before the kill


def load(fold: int | None) -> Splits:
    """Small data, in memory."""
    return two_sensors(samples=150, seed=fold or 0)


def planned() -> tuple[list[Job], dict[int | None, Splits]]:
    """Twelve runs."""
    chosen = entries(["msl", "mimo", "mgda"], ["epochs=15", "features=8"])
    return plan(chosen, DataSet("small", load, 10, "Small."), range(4), [None], measure="quick")


def main(folder: Path) -> None:
    """Run them, and tell how often each was begun, and whether somebody was killed."""
    nothing = {"include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, **nothing})
    doomed, _ = [cluster.add_node(num_cpus=1, wait=False, **nothing) for _ in range(2)]
    cluster.wait_for_nodes()
    os.environ["RAY_ADDRESS"] = cluster.address
    told: dict[str, Any] = {"begun": [], "done": 0, "killed": False}
    begin = RayExecutor._begin

    def count(executor: RayExecutor, job: Job, tries: int) -> None:
        told["begun"].append(tries)
        begin(executor, job, tries)

    def kill_at_work(kind: str, *_: object) -> None:
        told["done"] += kind == "done"
        if kind == "epoch" and told["done"] >= ENOUGH and not told["killed"]:
            told["killed"] = kill(doomed.all_processes["raylet"][0].process.pid)

    RayExecutor._begin = count  # ty: ignore[invalid-assignment]
    jobs, splits = planned()
    run_study(jobs, splits, Store(folder), on=RayCluster(), on_event=kill_at_work, checkpoint_seconds=0.1)
    print(json.dumps(told))
    cluster.shutdown()


def kill(raylet: int) -> bool:
    """End a worker and everything on it, as if somebody had pulled the plug; not while it rests."""
    everything = [psutil.Process(raylet), *psutil.Process(raylet).children(recursive=True)]
    titles = [" ".join(each.cmdline()) for each in everything]
    if not any(title.startswith("ray::") and "seed" in title for title in titles):  # which is the name of a run
        return False
    for each in everything:
        each.kill()
    return True


if __name__ == "__main__":
    main(Path(sys.argv[1]))
