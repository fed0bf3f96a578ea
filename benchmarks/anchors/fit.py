"""Fit one anchor, an ordinary way to the same answer, on the training part of a case, and write what it answers.

    .venv-anchors/bin/python benchmarks/anchors/fit.py case.npz faults --line minirocket --seed 0 --out answers.npz

It runs in an environment of its own (`make anchors`), with aeon and scikit-learn and without Equipoise; `strength.py`
writes the case, starts it and scores the answers. A case holds an array per sensor, `label`, and `split`: 0 is trained
on and 2 is answered. The folder of faults holds an .npz for each sensor: its array of part 2, broken in several ways.

OUT holds "all|" and "SENSOR|", the answers of a model on all sensors and on one; "all|SENSOR/FAULT/LEVEL", those under
a fault; and "seconds|all", the computing time of fitting and answering part 2, on one thread. Whatever is compiled is
run once on four samples before the clock starts.
"""

from __future__ import annotations

import argparse
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any, final

import numpy as np
from joint import Joint

KERNELS = 4000
MULTIROCKET = 6250  # the default of aeon: 50,000 features a sensor
LARGEST = 4e9  # bytes of the matrix that ridge regression solves for; more kernels than fit into it are left out
ALPHAS = np.logspace(-1, 6, 15)
GRID = 12  # patches along each side of a picture
SHORTEST = 10  # steps that the kernels need; a shorter series is read as a vector
BANDS = 4
BESIDE = ("label", "split", "group", "classes")
Array = np.ndarray


class Encoder(ABC):
    """Features of one sensor: its channels standardised, frames cut into patches, then what a subclass makes of them.

    A vector [N, D] stays itself, standardised.
    """

    def fit(self, array: Array) -> Array:
        """Learn from the training samples, and return their features [N, F]."""
        axes = (0, *range(2, array.ndim))
        self.mean, deviation = array.mean(axes, keepdims=True), array.std(axes, keepdims=True)
        self.deviation = np.where(deviation == 0, 1, deviation)
        plain = self.plain(array)
        return plain if plain.ndim == 2 else self.learn(plain)

    def __call__(self, array: Array) -> Array:
        """Return the features of other samples."""
        plain = self.plain(array)
        return plain if plain.ndim == 2 else self.features(plain)

    def plain(self, array: Array) -> Array:
        """Return vectors [N, D], or series [N, C, T] with patches of a video as channels."""
        array = (array - self.mean) / self.deviation
        array = patches(array) if array.ndim > 3 else array
        short = array.ndim > 2 and array.shape[2] < SHORTEST
        return np.ascontiguousarray(array.reshape(len(array), -1) if short else array, dtype=np.float32)

    @abstractmethod
    def learn(self, series: Array) -> Array:
        """Fit the transform, and return the features of the series it was fitted on."""

    @abstractmethod
    def features(self, series: Array) -> Array:
        """Return the features of series."""


def patches(array: Array, grid: int = GRID) -> Array:
    """Average pictures [N, C, H, W] to vectors, and videos [N, C, T, H, W] to series [N, channel and patch, T]."""
    *rest, height, width = array.shape
    rows, columns = (np.array_split(np.arange(side), min(grid, side)) for side in (height, width))
    array = np.stack([array[..., some, :].mean(-2) for some in rows], axis=-2)
    array = np.stack([array[..., some].mean(-1) for some in columns], axis=-1)
    moved = array if len(rest) == 2 else np.moveaxis(array, 2, -1)
    return moved.reshape((len(array), -1) if len(rest) == 2 else (len(array), -1, rest[2]))


@final
class Kernels(Encoder):
    """Random convolution kernels of aeon, each transform with a scaler of its own.

    Args:
        make: Make the transforms, each with its scaler.
    """

    def __init__(self, make: Callable[[], list[tuple[Any, Any]]]) -> None:
        self.make = make

    def learn(self, series: Array) -> Array:
        self.transforms = self.make()
        return self._side_by_side([scaler.fit_transform(one.fit_transform(series)) for one, scaler in self.transforms])

    def features(self, series: Array) -> Array:
        return self._side_by_side([scaler.transform(one.transform(series)) for one, scaler in self.transforms])

    @staticmethod
    def _side_by_side(blocks: list[Any]) -> Array:
        blocks = [np.asarray(block, dtype=np.float32) for block in blocks]
        return blocks[0] if len(blocks) == 1 else np.concatenate(blocks, axis=1)


@final
class CountScaler:
    """Scales HYDRA's counts as its paper does: square roots, standardised, zeros stay zero (Dempster et al. 2023)."""

    def fit_transform(self, counts: Any) -> Array:
        roots = np.sqrt(np.maximum(np.asarray(counts), 0))
        rare = (roots == 0).mean(axis=0) ** 4 + 1e-8
        self.mean, self.scale = roots.mean(axis=0), roots.std(axis=0, ddof=1) + rare
        return self.transform(counts)

    def transform(self, counts: Any) -> Array:
        roots = np.sqrt(np.maximum(np.asarray(counts), 0))
        return (roots - self.mean) * (roots != 0) / self.scale


@final
class Summary(Encoder):
    """Mean, deviation, least, greatest, quartiles and the power in a few bands of frequency, of each channel."""

    def learn(self, series: Array) -> Array:
        return self.features(series)

    def features(self, series: Array) -> Array:
        numbers = [series.mean(-1), series.std(-1), series.min(-1), series.max(-1)]
        numbers += list(np.quantile(series, (0.25, 0.5, 0.75), axis=-1))
        power = np.abs(np.fft.rfft(series - series.mean(-1, keepdims=True), axis=-1))[..., 1:] ** 2
        edges = np.unique(np.geomspace(1, power.shape[-1] + 1, BANDS + 1).round().astype(int)) - 1
        numbers += [np.log(power[..., low:high].mean(-1) + 1e-6) for low, high in pairwise(edges)]
        return np.concatenate(numbers, axis=1).astype(np.float32)


@final
class Plain(Encoder):
    """The standardised series as they are, for a network to read."""

    def learn(self, series: Array) -> Array:
        return series

    def features(self, series: Array) -> Array:
        return series


@final
class OnFeatures:
    """An estimator of scikit-learn on the features of several sensors side by side."""

    def __init__(self, estimator: Any) -> None:
        self.estimator = estimator

    def fit(self, features: list[Array], label: Array) -> None:
        self.estimator.fit(np.concatenate(features, axis=1), label)

    def predict(self, features: list[Array]) -> Array:
        return self.estimator.predict(np.concatenate(features, axis=1))


def minirocket(seed: int, _train: dict[str, Array]) -> Encoder:
    def make() -> list[tuple[Any, Any]]:
        from aeon.transformations.collection.convolution_based import MiniRocket
        from sklearn.preprocessing import StandardScaler

        return [(MiniRocket(n_kernels=KERNELS, random_state=seed, n_jobs=1), StandardScaler())]

    return Kernels(make)


def multirocket_hydra(seed: int, train: dict[str, Array]) -> Encoder:
    samples = len(next(iter(train.values())))
    kernels = min(MULTIROCKET, int(LARGEST / (8 * 8 * samples * len(train))))  # eight features of eight bytes each

    def make() -> list[tuple[Any, Any]]:
        from aeon.transformations.collection.convolution_based import HydraTransformer, MultiRocket
        from sklearn.preprocessing import StandardScaler

        hydra = HydraTransformer(random_state=seed, n_jobs=1)
        multirocket = MultiRocket(n_kernels=kernels, random_state=seed, n_jobs=1)
        return [(hydra, CountScaler()), (multirocket, StandardScaler())]

    return Kernels(make)


def ridge(_seed: int, *, numbers: bool) -> OnFeatures:
    from sklearn.linear_model import RidgeClassifierCV, RidgeCV

    return OnFeatures((RidgeCV if numbers else RidgeClassifierCV)(alphas=ALPHAS))


def boosting(seed: int, *, numbers: bool) -> OnFeatures:
    from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor

    return OnFeatures((HistGradientBoostingRegressor if numbers else HistGradientBoostingClassifier)(random_state=seed))


LINES: dict[str, tuple[Callable[..., Encoder], Callable[..., Any], bool]] = {
    "minirocket": (minirocket, ridge, True),
    "multirocket-hydra": (multirocket_hydra, ridge, True),
    "boosting": (lambda _seed, _train: Summary(), boosting, False),
    "joint": (lambda _seed, _train: Plain(), Joint, False),
}
"""Encoder of a sensor, model on the features, and whether each sensor gets a model of its own beside that on all."""


def parts_of(path: Path) -> tuple[dict[str, Array], Array, dict[str, Array]]:
    """Return the training inputs, their labels, and the inputs to answer."""
    with np.load(path) as file:
        content = {name: file[name] for name in file.files}
    split = content["split"]
    sensors = {name: array.astype(np.float32) for name, array in content.items() if name not in BESIDE}
    train, judged = ({name: array[split == part] for name, array in sensors.items()} for part in (0, 2))
    return train, content["label"][split == 0], judged


def answers(case: Path, faults: Path | None, line: str, seed: int) -> dict[str, Array]:
    """Fit one line with one seed; return its answers and seconds as the module says."""
    make_encoder, make_model, singles = LINES[line]
    train, label, judged = parts_of(case)
    encoders, learnt, heard, spent = {}, {}, {}, {}
    for name in train:
        for warm in (True, False):
            rows = slice(4 if warm else None)
            start = time.process_time()
            encoders[name] = make_encoder(seed, train)
            learnt[name] = encoders[name].fit(train[name][rows])
            heard[name] = encoders[name](judged[name][rows])
            spent[name] = time.process_time() - start
    found: dict[str, Array] = {}
    used = {"all": list(train)} | ({name: [name] for name in train} if singles and len(train) > 1 else {})
    models = {}
    for decision, names in used.items():
        start = time.process_time()
        model = models[decision] = make_model(seed, numbers=label.dtype.kind == "f")
        model.fit([learnt[name] for name in names], label)
        found[f"{decision}|"] = model.predict([heard[name] for name in names])
        seconds = time.process_time() - start + sum(spent[name] for name in names)
        found[f"seconds|{decision}"] = np.array(seconds)
    learnt.clear()
    for name in train if faults is not None else ():
        with np.load(faults / f"{name}.npz") as file:
            for fault in file.files:
                broken = heard | {name: encoders[name](file[fault])}
                for decision, names in used.items():
                    if name in names:
                        answer = models[decision].predict([broken[one] for one in names])
                        found[f"{decision}|{name}/{fault}"] = answer
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("case", type=Path)
    parser.add_argument("faults", type=Path, nargs="?")
    parser.add_argument("--line", choices=list(LINES), required=True)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    found = answers(given.case, given.faults, given.line, given.seed)
    np.savez(given.out, **found)


if __name__ == "__main__":
    main()
