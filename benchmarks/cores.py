"""`equipoise compare --data watch` as two checkouts of the project do it, in turn, on this machine.

    git worktree add ../before 207bdc4
    python benchmarks/cores.py --before ../before

Both run under this interpreter, whatever else the machine does meanwhile: commands of the two alternate, and beside the
wall clock stands the time that their processes spent computing, which others disturb less.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parents[1]
METHODS = "msl,ew,mimo,ogm,ogmge,agm,mslr,mses,dgl,mlb,arl,cggm,mcr,mgda,mmpareto,unimodal,ensemble"
NOT_RESULTS = ("seconds", "memory", "versions", "version", "config", "path", "run", "schema")


def main() -> None:
    """Time both, print the table, and say by how much the results differ."""
    arguments = _arguments()
    names = arguments.methods.split(",")
    size = arguments.at_a_time or len(names)
    groups = [",".join(names[start : start + size]) for start in range(0, len(names), size)]
    checkouts = {"before": arguments.before.resolve(), "after": arguments.after.resolve()}
    wall, busy = dict.fromkeys(checkouts, 0.0), dict.fromkeys(checkouts, 0.0)
    differences: dict[str, float] = {}
    for number, group in enumerate(groups * arguments.rounds):
        rows = {}
        for version in sorted(checkouts, reverse=bool(number % 2)):  # who goes first changes
            with tempfile.TemporaryDirectory() as out:
                seconds = _run(checkouts[version], group, arguments, Path(out))
                rows[version] = _rows(Path(out))
            wall[version] += seconds[0]
            busy[version] += seconds[1]
            print(f"{group}: {version} {seconds[0]:.1f} s, computing {seconds[1]:.1f} s", flush=True)
        for run, before in rows["before"].items():
            _compare(before, rows["after"][run], "", differences)
    for name, spent in {"wall clock": wall, "computing": busy}.items():
        ratio = spent["after"] / spent["before"]
        print(f"{name}: before {spent['before']:.1f} s, after {spent['after']:.1f} s, ratio {ratio:.3f}")
    print("largest difference of each measured number:")
    for field, difference in differences.items():
        print(f"  {field}: {difference:.3g}")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--before", type=Path, required=True, help="the older checkout")
    parser.add_argument("--after", type=Path, default=HERE, help="the newer one; this one by default")
    parser.add_argument("--methods", default=METHODS)
    parser.add_argument("--at-a-time", type=int, default=0, help="methods per command; all by default")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("words", nargs="*", help="settings, such as epochs=3")
    return parser.parse_args()


def _run(checkout: Path, methods: str, arguments: argparse.Namespace, out: Path) -> tuple[float, float]:
    """Seconds of a comparison: by the clock, and computing in all of its processes."""
    command = [sys.executable, "-m", "equipoise.cli", "compare", "--data", "watch", "--methods", methods]
    command += ["--seeds", str(arguments.seeds), "--out", str(out), "--json", *arguments.words]
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    environment = {**os.environ, "PYTHONPATH": str(checkout / "src")}
    subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    after, end = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    return end - start, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def _rows(out: Path) -> dict[tuple[str, int], dict[str, Any]]:
    found = map(json.loads, (out / "results.jsonl").read_text(encoding="utf-8").splitlines())
    return {(row["label"], row["seed"]): row for row in found}


def _compare(before: Any, after: Any, field: str, differences: dict[str, float]) -> None:
    """Note the largest difference of each number, modalities and levels of faults taken together."""
    if isinstance(before, dict):
        for name, value in before.items():
            if name not in NOT_RESULTS and name in after:
                part = f"{field}.{name}" if field.count(".") < 1 and field else field or name
                _compare(value, after[name], part, differences)
    elif isinstance(before, float) and isinstance(after, float):
        differences[field] = max(differences.get(field, 0.0), abs(before - after))
    elif before != after and not isinstance(before, str):
        differences[field] = float("inf")


if __name__ == "__main__":
    main()
