"""AV-MNIST as the files that go round have it: pairs without names, their speakers unknown."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import final

import numpy as np

from equipoise.data.prepare.original import Clip, Clips, Protocol
from equipoise.util.errors import Unreadable, collect, raise_all
from equipoise.util.files import reading

AGM, MULTIBENCH = "agm-54000-9000-7000", "multibench-55000-5000-10000"
PROTOCOLS = {
    MULTIBENCH: Protocol(
        "the published files: all training pairs but the last 5,000, those 5,000, and all test pairs, as MultiBench "
        "cuts them; speakers are in all parts; selection sees validation only"
    ),
    AGM: Protocol(
        "the published files: the first 90 % of the training pairs, the first 90 % of the test pairs as validation, "
        "and both tails as test, as AGM's code cuts them; it selects on its 9,000 of validation and reports the same",
        selects_on_test=True,
    ),
}
FILES = {"image": "image/{}_data.npy", "audio": "audio/{}_data.npy", "label": "{}_labels.npy"}
SHAPES = {"image": (784,), "audio": (112, 112), "label": ()}


def is_published(source: Path) -> bool:
    """Whether a folder holds any of the files that go round."""
    return any((source / name.format(part)).is_file() for name in FILES.values() for part in ("train", "test"))


def open_published(source: Path, validation: int) -> PublishedPairs:
    """Map the files.

    Args:
        source: Their folder.
        validation: How many of the last training pairs validate in MultiBench's cut.

    Raises:
        BadInput: With everything that is wrong.
    """
    paths = {(part, kind): source / FILES[kind].format(part) for part in ("train", "test") for kind in SHAPES}
    arrays = dict(zip(paths, collect(*(_question(path) for path in paths.values())), strict=True))
    problems = []
    for (part, kind), array in arrays.items():
        path, shape = paths[part, kind], SHAPES[kind]
        numbers = "iu" if kind == "label" else "iuf"
        if array.ndim != 1 + len(shape) or array.shape[1:] != shape or array.dtype.kind not in numbers:
            what = " × ".join(map(str, ("N", *shape)))
            problems.append(f"{path}: expected numbers, {what}, found {array.dtype} of shape {array.shape}")
        elif len(array) != len(arrays[part, "label"]) or not len(array):
            problems.append(f"{path}: expected {len(arrays[part, 'label'])} samples, one per label, found {len(array)}")
        elif kind == "label" and not 0 <= array.min() <= array.max() <= 9:
            problems.append(f"{path}: expected labels from 0 to 9, found {array.min()} to {array.max()}")
    training = arrays["train", "label"].shape[:1]
    if not problems and validation >= training[0]:
        problems.append(f"validation_images: expected fewer than the {training[0]} training pairs, found {validation}")
    raise_all(problems)
    return PublishedPairs(_listed(arrays["train", "label"], arrays["test", "label"], validation), arrays)


@final
@dataclass
class PublishedPairs(Clips):
    """Pairs of the published files.

    Args:
        listed: Those of the training files, then those of the test files.
        arrays: By part and kind, one array each.
    """

    listed: Sequence[Clip]
    arrays: Mapping[tuple[str, str], np.ndarray]

    def read(self, number: int) -> dict[str, np.ndarray]:
        """Scale one pair: the image so that 255 becomes 1, as those who train on these files do."""
        first = len(self.arrays["train", "label"])
        part, row = ("train", number) if number < first else ("test", number - first)
        image, sound = (np.asarray(self.arrays[part, kind][row], np.float64) for kind in ("image", "audio"))
        if not np.isfinite(image).all():
            raise Unreadable(f"{self.listed[number].id}: image: expected finite numbers, found NaN or infinity")
        if not (np.isfinite(sound).all() and sound.min() >= 0 and sound.max() <= 255):
            found = f"{sound.min():g} to {sound.max():g}"
            raise Unreadable(f"{self.listed[number].id}: sound: expected numbers from 0 to 255, found {found}")
        image = (image / 255).astype(np.float16).reshape(1, 28, 28)
        return {"image": image, "sound": np.rint(sound).astype(np.uint8)[None]}


def _listed(train: np.ndarray, test: np.ndarray, validation: int) -> list[Clip]:
    clips = []
    for part, labels in (("train", train), ("test", test)):
        head = len(labels) * 9 // 10
        for row, label in enumerate(labels.tolist()):
            if part == "train":
                parts = {MULTIBENCH: "validation" if row >= len(labels) - validation else "train"}
            else:
                parts = {MULTIBENCH: "test"}
            parts[AGM] = "test" if row >= head else {"train": "train", "test": "validation"}[part]
            name = f"{part}-{row:05d}"
            clips.append(Clip(name, label, name, parts))  # who speaks is not told: every pair stands for itself
    return clips


def _question(path: Path) -> Callable[[], np.ndarray]:
    return lambda: _mapped(path)


def _mapped(path: Path) -> np.ndarray:
    with reading(path) as path:
        try:
            return np.load(path, mmap_mode="r", allow_pickle=False)
        except Exception as problem:  # numpy raises whatever it likes at a file that is none of its own
            raise Unreadable(
                f"{path}: expected a whole array in numpy's format, found another file or a damaged one ({problem})"
            ) from None
