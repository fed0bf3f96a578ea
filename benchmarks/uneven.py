"""Uneven classes, as a clinic has them: the plain command beside class weights, the table of docs/uneven.md.

    python benchmarks/uneven.py --folds 5 --seeds 3

Made-up data of forty patients: 80 % of the windows are "stable", 15 % "warning", 5 % "critical". Heart and breath tell
them apart, temperature hardly; every patient has an offset of their own. Thirty trainings, about ten seconds each on
one core.
"""

import argparse
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from equipoise.data.source import data_set
from equipoise.data.splits import Splits
from equipoise.measure import measure_run
from equipoise.models import LateFusion
from equipoise.study.compare import compare
from equipoise.study.registry import entries
from equipoise.training.train import train

CLASSES, SHARES = ("stable", "warning", "critical"), (0.80, 0.15, 0.05)
WORDS = {"plain": (), "balanced": ("metric=balanced_accuracy", "class_weight=balanced")}


def clinic(patients: int = 40, windows: int = 100, seed: int = 0) -> dict[str, np.ndarray]:
    """Make up windows of several patients: features of three sensors, the classes, and who each window is of."""
    random = np.random.default_rng(seed)
    group = np.repeat(np.arange(patients), windows)
    label = random.choice(len(CLASSES), len(group), p=SHARES)
    arrays = {"label": np.array(CLASSES)[label], "group": group}
    for name, features, strength in (("heart", 8, 0.35), ("breath", 6, 0.35), ("temperature", 3, 0.1)):
        direction = strength * random.choice([-1.0, 1.0], features)
        offset = 0.5 * random.normal(size=(patients, features))[group]
        seen = label[:, None] * direction + offset + random.normal(size=(len(group), features))
        arrays[name] = seen.astype(np.float32)
    return arrays


def runs(
    arrays: dict[str, np.ndarray], folds: int, seeds: int, epochs: int
) -> Iterator[tuple[str, int, dict[str, Any]]]:
    """Train each kind on each fold with each seed; give its name, the fold, and its measurements by one metric."""
    inputs = {name: array for name, array in arrays.items() if name not in ("label", "group")}
    for fold in range(folds):
        splits = Splits.from_arrays(inputs, arrays["label"], group=arrays["group"], fold=fold)
        for seed in range(seeds):
            for kind, words in WORDS.items():
                (entry,) = entries(["mimo"], [f"epochs={epochs}", "encoder=mlp", *words])
                model: LateFusion = train(splits, entry.balancer(), entry.settings, seed=seed).model
                yield (
                    kind,
                    fold,
                    measure_run(model, splits, seed=seed, faults=False, protocols=False, metric="balanced_accuracy")[
                        "test"
                    ],
                )


def interval(values: Sequence[float], folds: int) -> tuple[float, float, float]:
    """Return mean, low and high of differences: Student's t over folds, each of which is a mean over its seeds."""
    from scipy.stats import t

    by_fold = np.array(values).reshape(folds, -1).mean(axis=1)
    half = t.ppf(0.975, folds - 1) * by_fold.std(ddof=1) / np.sqrt(folds)
    return by_fold.mean(), by_fold.mean() - half, by_fold.mean() + half


def constant_model(arrays: dict[str, np.ndarray]) -> list[str]:
    """Train the plain command for two epochs on the weak sensor alone, and return what its row says."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "weak.npz"
        np.savez(file, **{name: arrays[name] for name in ("temperature", "label", "group")})
        lines = entries(["msl"], ["epochs=2", "encoder=mlp"])
        rows = compare(lines, data_set(str(file)), [0], Path(folder) / "out", quiet=True)
    return rows[0]["warnings"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folds", type=int, default=5)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=30)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    arrays = clinic()
    found: dict[str, dict[str, list[float]]] = {kind: {"fused": [], "committee": []} for kind in WORDS}
    for kind, fold, test in runs(arrays, asked.folds, asked.seeds, asked.epochs):
        for decision, values in found[kind].items():
            values.append(100 * test[decision])
        print(
            f"fold {fold}, {kind}: {100 * test['fused']:.1f} fused, {100 * test['committee']:.1f} committee", flush=True
        )
    print("\n| balanced accuracy, % | plain | balanced | difference | 95 % interval |")
    print("|---|---:|---:|---:|---:|")
    for decision in ("fused", "committee"):
        plain, balanced = (np.array(found[kind][decision]) for kind in WORDS)
        mean, low, high = interval(balanced - plain, asked.folds)
        print(f"| {decision} | {plain.mean():.1f} | {balanced.mean():.1f} | {mean:+.1f} | {low:+.1f} to {high:+.1f} |")
    print("\nA model that always says one class is named in words:")
    for sentence in constant_model(arrays):
        print(f"- {sentence}")


if __name__ == "__main__":
    main()
