"""Small finished runs that tests of shipping load, with the data they were trained on as it was recorded."""

from pathlib import Path
from typing import Any

import numpy as np

from equipoise.data.source import DataSet
from equipoise.data.splits import Splits
from equipoise.study.job import Job, run_job
from equipoise.study.registry import entries

SAMPLES = 60


def recorded(samples: int = SAMPLES, seed: int = 0) -> dict[str, Any]:
    """Sensors of every kind, as their owner has them."""
    random = np.random.default_rng(seed)
    lengths = random.integers(4, 9, samples)
    lengths[:4] = 8
    return {
        "vector": random.normal(3, 5, (samples, 4)),
        "heat": random.normal(20, 5, samples),
        "series": random.normal(1, 2, (samples, 2, 6)).astype(np.float32),
        "speech": [random.normal(0, 1, (3, length)) for length in lengths],
        "camera": random.integers(0, 256, (samples, 8, 10, 3), dtype=np.uint8),
    }


def trained(folder: Path, arrays: dict[str, Any], label: Any, *words: str, method: str = "msl", **more: Any) -> Splits:
    """Train for an epoch, and leave the run in a folder."""
    marks = np.arange(len(label)) % 3
    splits = Splits.from_arrays(arrays, label, split=marks, **more)
    train_on(splits, folder, *words, method=method)
    return splits


def train_on(splits: Splits, folder: Path, *words: str, method: str = "msl") -> None:
    """Train on splits for an epoch, and leave the run in a folder."""
    (entry,) = entries([method], ["epochs=1", "features=4", "device=cpu", *words])
    job = Job(entry, DataSet("own", lambda _: splits, 0, ""), None, 0, splits.fingerprint(), measure="quick")
    run_job(job, splits, folder)


def rows_of(arrays: dict[str, Any], rows: Any) -> dict[str, Any]:
    """Some samples, as they were recorded."""
    return {name: [values[row] for row in rows] for name, values in arrays.items()}
