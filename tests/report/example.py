"""Folders of results as a study leaves them, made up, for tests and for looking at pages."""

from __future__ import annotations

import hashlib
import json
import math
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

SENSORS = ("accelerometer", "gyroscope")
# Label: method, protocol, fused, committee, per sensor, loss under noise, milliseconds, parameters.
METHODS: dict[str, tuple[str, str, float | None, float | None, tuple[float, ...], float, float, dict[str, Any]]] = {
    "unimodal": ("unimodal", "head", None, None, (0.745, 0.712), 0.2, 2.9, {"modality": None}),
    "ensemble": ("ensemble", "", 0.801, None, (), 0.25, 2.9, {}),
    "msl": ("msl", "detached", 0.774, None, (0.731, 0.604), 0.55, 2.8, {}),
    "ew": ("ew", "head", 0.789, 0.792, (0.728, 0.661), 0.42, 3.0, {"weight": 1.0}),
    "ew (weight 5)": ("ew", "head", 0.797, 0.801, (0.735, 0.688), 0.35, 3.0, {"weight": 5.0}),
    "ogmge": ("ogmge", "split", 0.779, None, (0.668, 0.655), 0.5, 3.6, {"alpha": 0.5}),
    "mmpareto": ("mmpareto", "head", 0.796, 0.798, (0.739, 0.695), 0.37, 5.4, {}),
    "mimo": ("mimo", "head", 0.807, 0.812, (0.733, 0.709), 0.22, 3.1, {"penalty": 10.0, "smoothing": 0.1}),
}


def write_study(
    folder: Path,
    labels: Sequence[str] = tuple(METHODS),
    seeds: int = 3,
    folds: int = 0,
    epochs: int = 30,
    data: str = "watch",
) -> Path:
    """Write ``results.jsonl`` and the curves of every run; the same arguments give the same bytes."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "results.jsonl").open("a", encoding="utf-8") as out:
        for label in labels:
            for fold in range(folds) if folds else [None]:
                for seed in range(seeds):
                    row = make_row(label, seed, fold, data, epochs)
                    out.write(json.dumps(row, ensure_ascii=False) + "\n")
                    run = folder / "runs" / row["config"].removeprefix("sha256:")[:12]
                    run.mkdir(parents=True, exist_ok=True)
                    curves = (json.dumps(each) for each in make_curves(label, row, epochs))
                    (run / "curves.jsonl").write_text("".join(f"{each}\n" for each in curves), encoding="utf-8")
    return folder


def make_row(
    label: str, seed: int = 0, fold: int | None = None, data: str = "watch", epochs: int = 30
) -> dict[str, Any]:
    """One finished run."""
    known = label if label in METHODS else "mimo"
    method, protocol, fused, committee, alone, fragility, milliseconds, params = METHODS[known]
    fold_chance = random.Random(f"{data} {fold}").gauss(0, 0.03 if fold is not None else 0)
    chance = random.Random(f"{label} {seed} {fold} {data}")

    def noisy(value: float | None) -> float | None:
        return None if value is None else min(1.0, max(0.0, value + fold_chance + chance.gauss(0, 0.012)))

    test: dict[str, Any] = {"fused": noisy(fused), "committee": noisy(committee)}
    for decision, accuracy in (("fused", test["fused"]), ("committee", test["committee"])):
        known_accuracy = accuracy is not None
        test[f"{decision}_f1"] = accuracy - 0.012 if known_accuracy else None
        test[f"{decision}_ece"] = abs(chance.gauss(0.06, 0.01)) if known_accuracy else None
        test[f"{decision}_loss"] = -math.log(accuracy) * 2.4 if known_accuracy else None
    if alone:
        test[protocol] = {name: noisy(value) for name, value in zip(SENSORS, alone, strict=True)}
        test["probe"] = {name: value + 0.02 for name, value in test[protocol].items()}
        test["disparity"] = max(test[protocol].values()) - min(test[protocol].values())
    if alone and fused is not None:
        test["zeroed"] = {name: value - 0.2 for name, value in test[protocol].items()}
        test["shapley"] = {name: value / 2 for name, value in test[protocol].items()}
        test["beats_best_single"] = test["fused"] > max(test[protocol].values())
    if fused is not None:
        test["faults"] = make_faults(test, fragility)
    step = milliseconds / 1000 * (1 + chance.gauss(0, 0.02))
    shares = {
        "forward": 0.3,
        "backward": 0.45,
        "balance": 0.02 if method in ("msl", "ensemble") else 0.08,
        "update": 0.1,
    }
    settings = {"epochs": epochs, "lr": 0.01, "batch": 64, "optimizer": "sgd", "momentum": 0.9, "precision": "fp32"}
    row: dict[str, Any] = {
        "schema": 1, "status": "done", "run": settings, "fold": fold, "threads": 1,
        "selected": {"epoch": epochs, "by": "last"}, "data": data, "method": method, "label": label, "params": params,
        "seed": seed, "split": _fingerprint(data, fold), "test": test,
        "validation": {decision: test[decision] for decision in ("fused", "committee")},
        "seconds": {"total": step * 4000, "step": step, **{name: step * share for name, share in shares.items()}},
        "timing": {"step": "wall clock", "parts": "after training, on a copy", "workers": 2, **make_times(step)},
        "memory": 410.0 + chance.random(), "versions": {"torch": "2.13.0", "python": "3.11.7", "equipoise": "0.1.0"},
        "device": "cpu",
    }  # fmt: skip
    return {"config": _fingerprint(label, seed, fold, data, epochs), **row}


def make_times(step: float) -> dict[str, Any]:
    """The time after the losses, and the update, of a run and of both baselines; half of it computed."""

    def clocks(*seconds: float) -> dict[str, Any]:
        lines = zip(("own", "bare", "msl"), seconds, strict=True)
        return {line: {"wall": each, "cpu": each / 2} for line, each in lines}

    load = {"workers": 2, "average": 1.5, "cores": 2, "waited": 0.1}
    times = {"t": clocks(step * 0.6, step * 0.5, step * 0.55), "update": clocks(*[step * 0.1] * 3)}
    return {"batches": 10, **times, "load": load, "trusted": False}


def make_faults(test: dict[str, Any], fragility: float) -> dict[str, Any]:
    """Every fault of every sensor, with its mean and worst case."""

    def struck(by: float, shift: float) -> dict[str, float | None]:
        lost = {"fused": fragility * by * shift, "committee": 0.4 * fragility * by * shift}
        return {name: test[name] and max(0.15, test[name] - loss) for name, loss in lost.items()}

    faults: dict[str, Any] = {}
    for name, shift in zip(SENSORS, (1.0, 0.5), strict=True):
        faults[name] = {
            "missing": {
                "zeros": struck(1, shift), "mean": struck(0.9, shift), "absent": struck(0.7, shift),
            },
            "noisy": {f"{level:g}": struck(level**0.7 / 2.2, shift) for level in (0.25, 0.5, 1, 2, 4)},
            "frozen": struck(0.8, shift),
            "delayed": {f"{seconds:g}": struck(seconds, shift) for seconds in (0.1, 0.2, 0.5)},
            "bursts": {f"{share:g}": struck(share, shift) for share in (0.1, 0.25, 0.5)},
        }  # fmt: skip
    frozen = [faults[name]["frozen"] for name in SENSORS]
    for decision in ("fused", "committee"):
        found = [each[decision] for each in frozen if each[decision] is not None]
        for what, take in (("mean", lambda values: sum(values) / len(values)), ("worst", min)):
            faults.setdefault(what, {})[decision] = take(found) if found else None
    return faults


def make_curves(label: str, row: dict[str, Any], epochs: int) -> list[dict[str, Any]]:
    """Epochs that end near the run's accuracies, with a balancing table that moves for some methods."""
    chance = random.Random(f"curves {label} {row['seed']} {row['fold']}")
    protocol = next((name for name in ("head", "detached", "split") if name in row["test"]), None)
    ends = {"fused": row["test"]["fused"], **(row["test"][protocol] if protocol else {})}
    blocks = {"fused": (*SENSORS, "fused head"), **{name: (name, "own heads") for name in SENSORS}}
    found = []
    for epoch in range(1, epochs + 1):
        rise = 1 - math.exp(-5 * epoch / epochs)
        validation = {
            n: None if e is None else 0.15 + (e - 0.15) * rise + chance.gauss(0, 0.01) for n, e in ends.items()
        }
        lean = 1 / (1 + math.exp(1.5 * rise + chance.gauss(0, 0.1)))
        weights = {"fused": 1.0, "accelerometer": 1.0, "gyroscope": 1.0}
        if label == "mimo":
            weights |= {"accelerometer": 10 * lean, "gyroscope": 10 - 10 * lean}
        table = {objective: dict.fromkeys(blocks[objective], weight) for objective, weight in weights.items()}
        if label == "ogmge":
            table["fused"] = {"accelerometer": 2 * lean, "gyroscope": 1.0, "fused head": 1.0}
        train = {name: None if end is None else 2 * math.exp(-3 * epoch / epochs) for name, end in ends.items()}
        found.append({"epoch": epoch, "seconds": 0.1, "train": train, "validation": validation, "table": table})
    return found


def _fingerprint(*what: object) -> str:
    return "sha256:" + hashlib.sha256(repr(what).encode()).hexdigest()
