"""Seconds of computing and peak memory of `equipoise report`, by the number of rows.

    python benchmarks/report.py --rows 1000 10000 100000 --runs 5

Rows are made up, in the form and size of those that `compare` writes: four data sets of two sensors, ten methods, whose
settings vary so that each line of the tables has so many runs. Every number of rows is reported by its own process,
with the page and the tables in the terminal; with `--curves`, runs have the curves of so many epochs.
"""

import argparse
import hashlib
import json
import random
import resource
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

DATA = ("watch", "gloves", "room", "street")
METHODS = ("msl", "mimo", "ew", "ogm", "ogmge", "agm", "mmpareto", "mgda", "dgl", "mslr")
SENSORS = ("accelerometer", "gyroscope")
LEVELS = {
    "missing": ("zeros", "mean", "absent"),
    "noisy": ("0.5", "1", "2", "4"),
    "frozen": ("random",),
    "delayed": ("10%", "25%", "50%"),
    "bursts": ("25%", "50%"),
}
SETTINGS = {
    "epochs": 20, "batch": 64, "step": "given", "optimizer": "sgd", "momentum": 0.9, "weight_decay": 0.0001,
    "layer_decay": 1.0, "schedule": "constant", "precision": "auto", "accumulate": 1, "compile": "auto",
    "capture": "auto", "clip": None, "select": "last", "patience": None, "encoder": "auto", "features": 64,
    "fusion": "concat", "dropout": 0.0, "device": "auto", "feed": "auto", "parallel": "ddp", "deterministic": False,
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, nargs="+", default=[1_000, 10_000, 100_000])
    parser.add_argument("--runs", type=int, default=5, help="of each line of the tables")
    parser.add_argument("--curves", type=int, default=0, help="epochs that each run has curves of")
    parser.add_argument("--folder", help="report it, and print what that took; for the process of its own")
    asked = parser.parse_args()
    if asked.folder:
        report(asked.folder)
        return
    print(f"{'rows':>9}{'file (MB)':>11}{'computing (s)':>15}{'peak (MB)':>11}{'page (MB)':>11}")
    for count in asked.rows:
        with tempfile.TemporaryDirectory() as folder:
            write(Path(folder), count, asked.runs, asked.curves)
            command = [sys.executable, __file__, "--folder", folder]
            said = subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
            seconds, peak = said.stderr.split()[-2:]
            sizes = [(Path(folder) / name).stat().st_size / 1e6 for name in ("results.jsonl", "report.html")]
            print(f"{count:>9,}{sizes[0]:>11.0f}{seconds:>15}{peak:>11}{sizes[1]:>11.1f}", flush=True)


def report(folder: str) -> None:
    """What the command does, and on the standard error the seconds and megabytes that it took."""
    from equipoise.cli import main as cli

    sys.argv = ["equipoise", "report", folder]
    try:
        cli.main()
    finally:
        used = resource.getrusage(resource.RUSAGE_SELF)
        print(f"{used.ru_utime + used.ru_stime:.1f} {used.ru_maxrss / 1e3:.0f}", file=sys.stderr)


def write(folder: Path, count: int, runs: int, epochs: int) -> None:
    chance = random.Random(0)
    with (folder / "results.jsonl").open("w", encoding="utf-8") as out:
        for number in range(count):
            row = make_row(number, runs, chance)
            out.write(json.dumps(row) + "\n")
            if epochs:
                run = folder / "runs" / row["config"].removeprefix("sha256:")[:12]
                run.mkdir(parents=True)
                lines = [json.dumps(epoch(at + 1, chance)) for at in range(epochs)]
                (run / "curves.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")


def make_row(number: int, runs: int, chance: random.Random) -> dict[str, Any]:
    line, seed = divmod(number, runs)
    way, place = divmod(line, len(DATA) * len(METHODS))
    data, method = DATA[place % len(DATA)], METHODS[place // len(DATA)]
    params = {"penalty": 10.0 + way, "smoothing": 0.1} if method == "mimo" else {}
    decisions = ("fused", "committee")

    def part() -> dict[str, Any]:
        qualities = {f"{each}{end}": chance.random() for each in decisions for end in ("", "_f1", "_ece", "_loss")}
        alone = ("head", "split", "probe", "zeroed", "shapley")
        return {**qualities, "view": "head", **{each: {name: chance.random() for name in SENSORS} for each in alone}}

    def answers() -> dict[str, float]:
        return {each: chance.random() for each in decisions}

    faults: dict[str, Any] = {
        name: {fault: {level: answers() for level in levels} for fault, levels in LEVELS.items()} for name in SENSORS
    }
    test = {**part(), "disparity": chance.random(), "beats_best_single": chance.random() < 0.5}
    parts = {name: chance.random() / 100 for name in ("forward", "backward", "balance", "update", "step", "total")}
    return {
        "schema": 1, "data": data, "split": f"sha256:{hashlib.sha256(data.encode()).hexdigest()}", "fold": None,
        "method": method, "label": method, "params": params, "run": {**SETTINGS, "lr": round(0.001 * (1 + way), 6)},
        "seed": seed, "threads": 1, "measure": "all", "device": "cpu", "version": "0.1.0",
        "config": f"sha256:{hashlib.sha256(str(number).encode()).hexdigest()}", "status": "done", "protocol": "",
        "about": "people 0 to 5 train, 6 to 8 validate, 9 tests", "selected": {"epoch": 20, "by": "last"},
        "validation": part(), "test": {**test, "faults": {**faults, "mean": answers(), "worst": answers()}},
        "seconds": parts, "memory": 276.0 + chance.random(),
        "versions": {"equipoise": "0.1.0", "torch": "2.13.0", "python": "3.11.7", "platform": "Linux"},
        "path": {"precision": "fp32", "captured": "only a GPU plays steps back", "compiled": "no"},
    }  # fmt: skip


def epoch(number: int, chance: random.Random) -> dict[str, Any]:
    losses = {name: chance.random() for name in ("fused", *SENSORS)}
    blocks = {"fused": (*SENSORS, "fused head"), **{name: (name, "own heads") for name in SENSORS}}
    table = {objective: {block: chance.random() for block in blocks[objective]} for objective in losses}
    return {"epoch": number, "seconds": 0.1, "train": losses, "validation": losses, "table": table}


if __name__ == "__main__":
    main()
