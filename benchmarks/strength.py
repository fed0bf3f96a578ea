"""What a stranger gets: `equipoise train` beside ordinary ways to the same answer, on the same parts, in one table.

    make anchors
    python benchmarks/strength.py --data utd.npz phonewatch.npz watch --folds 10 --seeds 3 --out runs/strength
    python benchmarks/strength.py --data utd.npz phonewatch.npz watch --folds 10 --seeds 3 --part test

The anchors (`benchmarks/anchors/`): MiniRocket or MultiRocket and HYDRA of aeon, then ridge regression, on all sensors
and on each; gradient boosting on summaries of each channel; joint training with torch alone. They learn from the
training part. All lines answer the same part, and the same part with one sensor after the other broken by the package's
fault suite. Under a missing sensor Equipoise is told so; for an anchor, zeros (the mean of each channel) or the mean
training sample stand in, whichever is better for it.

While anything is still being chosen, `--part validation` (the default) scores on the validation part, and nothing of
the test part is in any file that a line reads. Equipoise needs a validation part of its own: it is run twice, each time
with one half of the validation part to choose on and the other to answer. `--part test` is for the end.

Computing time is that of fitting and answering on one thread, without compiling and importing. Each (set, fold, line,
seed) is a file in OUT, and is not computed again. `--folds` is for data sets of the package; a file keeps its parts.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, final

import numpy as np
import torch
from strength_table import summary, tables

from equipoise.data import Part, Splits
from equipoise.data.source import data_set
from equipoise.deploy import load
from equipoise.measure.faults import faulty_parts, training_statistics

ANCHORS = ("minirocket", "multirocket-hydra", "boosting", "joint")
OURS = {
    "equipoise train": [],
    "equipoise train --method instant": ["--method", "instant"],
    "equipoise train --method ensemble": ["--method", "ensemble"],
}
"""Words behind the command. The ensemble is there for its members, sensors that were trained separately."""
ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS"), "1")
FIT = Path(__file__).parent / "anchors" / "fit.py"
Arrays = dict[str, np.ndarray]


@final
@dataclass(frozen=True)
class Case:
    """One set, or one fold of it, as every line reads it.

    Args:
        name: Of the set.
        fold: Its number; None for the cut that the set comes with.
        splits: The parts.
        part: The part that is answered, "validation" or "test".
    """

    name: str
    fold: int | None
    splits: Splits
    part: str

    @property
    def judged(self) -> Part:
        """The part that is answered."""
        return self.splits.parts[self.part]

    def recorded(self, name: str, values: torch.Tensor) -> np.ndarray:
        """Return values of a sensor as they were recorded, before they were standardised."""
        mean, deviation = self.splits.scales[name]
        return (values * deviation + mean).numpy().astype(np.float32)

    def arrays(self) -> Arrays:
        """Return the samples, recorded, with their marks: 0 train, 1 validation, 2 answered. No others are there."""
        marks = {"train": 0, "test": 2, "validation": 1} if self.part == "test" else {"train": 0, "validation": 2}
        parts = [self.splits.parts[name] for name in marks]
        sensors = {name: torch.cat([part.inputs[name] for part in parts]) for name in self.splits.modalities}
        beside = {"label": torch.cat([part.label for part in parts]).squeeze(-1).numpy()}
        beside["split"] = np.repeat(list(marks.values()), [len(part) for part in parts])
        groups = [part.group for part in parts]
        if all(group is not None for group in groups):
            beside["group"] = torch.cat([group for group in groups if group is not None]).numpy()
        return {name: self.recorded(name, values) for name, values in sensors.items()} | beside

    def broken(self, folder: Path, seed: int) -> None:
        """Write the answered part with each sensor broken, an .npz per sensor with an array for each fault."""
        training, part = training_statistics(self.splits.train), self.judged.in_memory().ready()
        for name in self.splits.modalities:
            faults = faulty_parts(part, name, training, seed)
            np.savez(
                folder / f"{name}.npz",
                **{
                    f"{fault}/{level}": self.recorded(name, x.inputs[name])
                    for fault, level, x in faults
                    if name in x.inputs
                },
            )


def cases(data: list[str], folds: int, part: str) -> Iterator[Case]:
    """Load the sets one after the other, each fold of those that are cut into folds."""
    for text in data:
        source, own = data_set(text), Path(text).suffix == ".npz"
        source = source if own or not folds else source.cut_into(folds)
        for fold in [None] if own or not folds else range(folds):
            splits = source.load(fold)
            if splits.task.kind == "labels" or len(splits.classes) < 1 + (splits.task.kind == "classes"):
                raise SystemExit(f"{text}: expected classes or one number as label")
            yield Case(Path(text).stem, fold, splits, part)


# -- the lines --


def anchor(python: Path, line: str, case: Path, faults: Path, seed: int) -> Arrays:
    """Fit an anchor in its own environment, and return what it wrote."""
    with TemporaryDirectory() as folder:
        out = Path(folder) / "answers.npz"
        words = [str(FIT), str(case), str(faults), "--line", line, "--seed", str(seed), "--out", str(out)]
        quiet = ("-W", "ignore::UserWarning")  # of channels that stand still, which a fault makes them do
        subprocess.run([str(python), *quiet, *words], check=True, env=os.environ | ONE_THREAD)
        with np.load(out) as file:
            return {name: file[name] for name in file.files}


def ours(words: list[str], arrays: Arrays, faults: Path, seed: int) -> Arrays:
    """Run `equipoise train` on a case and let its model answer, in the form of an anchor's answers."""
    judged = np.flatnonzero(arrays["split"] == 2)
    halves = [] if (arrays["split"] == 1).any() else [arrays | halved(arrays, half) for half in (0, 1)]
    runs = halves or [arrays]
    found: Arrays = {}
    for case in runs:
        rows = np.flatnonzero(case["split"][judged] == 2)
        for name, values in _ours_once(words, case, faults, rows, seed).items():
            if name.startswith("seconds"):
                found[name] = found.get(name, np.zeros(())) + values / len(runs)
            else:
                found.setdefault(name, np.zeros(len(judged), values.dtype))[rows] = values
    return found


def halved(arrays: Arrays, half: int) -> Arrays:
    """Return marks with one half of the answered samples to choose on: whole groups where there are two or more.

    A single group is cut within its classes, and its halves count as two groups: Equipoise refuses one in two parts.
    """
    split, rows = arrays["split"].copy(), np.flatnonzero(arrays["split"] == 2)
    group = arrays["group"].copy() if "group" in arrays else np.zeros(len(split), int)
    groups = np.unique(group[rows])
    side = np.searchsorted(groups, group[rows]) % 2
    if len(groups) == 1:
        side[np.argsort(arrays["label"][rows], kind="stable")[::2]] = 1
        group[rows[side == 1]] = group.max() + 1
    split[rows[side == half]] = 1
    return {"split": split, "group": group} if "group" in arrays else {"split": split}


def _ours_once(words: list[str], arrays: Arrays, faults: Path, rows: np.ndarray, seed: int) -> Arrays:
    torch.set_num_threads(1)
    sensors = [name for name in arrays if name not in ("label", "split", "group")]
    with TemporaryDirectory() as folder:
        data, out = Path(folder) / "case.npz", Path(folder) / "run"
        np.savez(data, **arrays)
        command = [sys.executable, "-m", "equipoise.cli", "train", "--quick", "--data", str(data), "--seed", str(seed)]
        subprocess.run([*command, "--out", str(out), *words], check=True, stdout=subprocess.DEVNULL)
        row = json.loads((out / "results.jsonl").read_text().splitlines()[-1])
        predictor = load(out)

        def classes_of(values: np.ndarray) -> np.ndarray:
            if predictor.kind == "regression":
                return values[:, 0]
            return np.array([int(name) for name in predictor.names])[values.argmax(axis=1)]

        def answer(inputs: Arrays) -> np.ndarray:
            told = predictor.predict(inputs, many=True)
            return classes_of(np.asarray(told.probabilities if told.values is None else told.values))

        inputs = {name: arrays[name][arrays["split"] == 2] for name in sensors}
        start = time.process_time()
        found = {"all|": answer(inputs)}
        seconds = time.process_time() - start
        found["seconds|all"] = np.array(seconds + row["seconds"]["cpu"])
        if "ensemble" in words:
            with np.load(next(out.glob("runs/*/predictions.npz"))) as file:
                found |= {f"{name}|": classes_of(file[f"alone.{name}"]) for name in sensors}
            found |= {f"seconds|{name}": found["seconds|all"] for name in sensors}
        for name in sensors:
            if len(sensors) > 1:
                found[f"all|{name}/missing/absent"] = answer({one: x for one, x in inputs.items() if one != name})
            with np.load(faults / f"{name}.npz") as file:
                for fault in file.files:
                    found[f"all|{name}/{fault}"] = answer(inputs | {name: file[fault][rows]})
    return found


# -- all of them --


def run(case: Case, lines: list[str], seeds: int, out: Path, python: Path) -> Iterator[dict[str, Any]]:
    """Give the record of every line and seed on a case; compute those that are not there."""
    fold = "" if case.fold is None else f"-{case.fold}"
    for seed in range(seeds):
        files = {
            line: out / case.part / f"{case.name}{fold}" / f"{line.replace(' ', '_')}-{seed}.json" for line in lines
        }
        waiting = [line for line in lines if not files[line].exists()]
        with TemporaryDirectory() as folder:
            if waiting:
                arrays, faults = case.arrays(), Path(folder)
                np.savez(faults / "case.npz", **arrays)
                (faults / "faults").mkdir()
                case.broken(faults / "faults", seed)
            for line in waiting:
                if line in OURS:
                    found = ours(OURS[line], arrays, faults / "faults", seed)
                else:
                    found = anchor(python, line, faults / "case.npz", faults / "faults", seed)
                about = {"part": case.part, "set": case.name, "fold": case.fold, "line": line, "seed": seed}
                record = about | summary(found, arrays["label"][arrays["split"] == 2])
                write(files[line], record)
                told = ", ".join(f"{name} {one['score']:.4g}" for name, one in record["answers"].items())
                print(f"{case.name}{fold} {line} seed {seed}: {told}", file=sys.stderr, flush=True)
        yield from (json.loads(files[line].read_text()) for line in lines)


def write(path: Path, record: dict[str, Any]) -> None:
    """Write a record, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_suffix(".tmp")
    unfinished.write_text(json.dumps(record, indent=1) + "\n")
    unfinished.replace(path)


def main() -> None:
    """Compute what is missing, and print the tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", nargs="+", required=True, help=".npz files, or names of data sets of the package")
    parser.add_argument("--lines", nargs="+", choices=[*ANCHORS, *OURS], default=[*ANCHORS, *OURS])
    parser.add_argument("--part", choices=("validation", "test"), default="validation")
    parser.add_argument("--folds", type=int, default=0, help="of the data sets of the package; 0 for their own cut")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--anchors", type=Path, default=Path(".venv-anchors/bin/python"), help="their Python")
    parser.add_argument("--out", type=Path, default=Path("runs/strength"))
    given = parser.parse_args()
    records = [
        record
        for case in cases(given.data, given.folds, given.part)
        for record in run(case, given.lines, given.seeds, given.out, given.anchors)
    ]
    print(tables(records))


if __name__ == "__main__":
    main()
