"""Many small runs on one GPU: side by side, as a study does them, against one after the other in one process.

    python benchmarks/many.py
    python benchmarks/many.py --methods msl,mimo --seeds 2 --device cpu epochs=3

Both are whole commands, in turn. Beside the wall clock stands the time of the runs proper, from the start of the first
process to the row of the last, and what is in the way before that: imports, data, and counting GPUs. Rows of the two
are compared to the last bit.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

METHODS = "unimodal,msl,ew,mimo,mgda,mmpareto,ogmge,agm,mslr,mses"
WAYS = {"side by side": 0, "one after the other": 1}
NOT_RESULTS = ("seconds", "memory")


def main() -> None:
    """Time both ways in turn, print the table, and say which rows differ."""
    arguments = _arguments()
    if arguments.child:
        study(arguments)
        return
    found: dict[str, list[dict[str, float]]] = {name: [] for name in WAYS}
    rows: dict[str, list[dict[str, Any]]] = {}
    for _ in range(arguments.rounds):
        for name, workers in WAYS.items():
            seconds, rows[name] = _command(workers)
            found[name].append(seconds)
            print(f"{name}: " + ", ".join(f"{what} {took:.1f} s" for what, took in seconds.items()), flush=True)
    for what in found["side by side"][0]:
        beside, after = (median(each[what] for each in found[name]) for name in WAYS)
        print(f"{what}: {beside:.1f} s and {after:.1f} s, {after / beside:.2f} ×")
    _say_differences(rows["side by side"], rows["one after the other"])


def study(arguments: argparse.Namespace) -> None:
    """Do all runs, and leave what they took and their rows in the folder."""
    from equipoise.data.source import all_data
    from equipoise.study.registry import entries
    from equipoise.study.store import Store
    from equipoise.study.study import plan, run_study

    settings = [f"device={arguments.device}", *arguments.settings]
    chosen = entries(arguments.methods.split(","), settings)
    jobs, splits = plan(chosen, all_data()["watch"], list(range(arguments.seeds)), [None])
    moments: list[float] = []
    rows = run_study(
        jobs,
        splits,
        Store(arguments.child),
        workers=arguments.workers or None,
        on_event=lambda *_: moments.append(time.time()),
    )
    seconds = {"before the first run": moments[0] - arguments.since, "runs": moments[-1] - moments[0]}
    (arguments.child / "many.json").write_text(json.dumps([seconds, rows]), encoding="utf-8")


def _command(workers: int) -> tuple[dict[str, float], list[dict[str, Any]]]:
    with tempfile.TemporaryDirectory() as folder:
        since = time.time()
        told = ["--child", folder, "--workers", str(workers), "--since", str(since)]
        subprocess.run([sys.executable, __file__, *sys.argv[1:], *told], check=True)
        whole = time.time() - since
        seconds, rows = json.loads((Path(folder) / "many.json").read_text(encoding="utf-8"))
    return {**seconds, "whole command": whole}, rows


def _say_differences(one: list[dict[str, Any]], other: list[dict[str, Any]]) -> None:
    different = [
        f"{mine['method']}, seed {mine['seed']}: {', '.join(names)}"
        for mine, theirs in zip(one, other, strict=True)
        if (names := [name for name in mine if name not in NOT_RESULTS and mine[name] != theirs[name]])
    ]
    print(f"{len(one) - len(different)} of {len(one)} rows are equal to the last bit", *different, sep="\n  ")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--methods", default=METHODS)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("settings", nargs="*", help="of every run, as for `equipoise compare`: epochs=3")
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--workers", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--since", type=float, help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    main()
