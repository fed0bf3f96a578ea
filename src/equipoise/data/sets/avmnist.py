"""AV-MNIST: an image of a digit that lost most of its detail, and the same digit spoken in noise.

The data set of Vielzeuf et al., "CentralNet: a Multilayer Approach for Multimodal Fusion" (2018). The files that go
round were made by others after its description, and disagree. Here it is made from its sources, so that every sound
says the digit that is on its image; the published files can be read too: pairs without names, speakers unknown.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import ClassVar, final

import numpy as np
import torch

from equipoise.data.prepare.original import Clip, Clips, DecodedClips, Field, Problems, Protocol, Published, by_group
from equipoise.data.sets import avmnist_sources as sources
from equipoise.data.splits import PARTS
from equipoise.data.views import Rescaled
from equipoise.util.errors import BadInput, Unreadable, collect, demand, raise_all
from equipoise.util.files import reading

CLASSES = tuple(map(str, sources.DIGITS))
SPEAKERS = "speakers"
Takes = list[sources.SpokenDigit]
AGM, MULTIBENCH = "agm-54000-9000-7000", "multibench-55000-5000-10000"
FILES = {"image": "image/{}_data.npy", "audio": "audio/{}_data.npy", "label": "{}_labels.npy"}
SHAPES = {"image": (784,), "audio": (112, 112), "label": ()}


@final
@dataclass(frozen=True)
class AVMNIST(Published):
    """Digits seen and heard: modalities `image` (1 × 28 × 28) and `sound` (1 × 112 × 112).

    Pair i is image i of MNIST, its 60,000 training images before its 10,000 test images. Take, noise and the stretch of
    noise are drawn by a hash of the seed and i, so a pair depends on nothing else, whoever makes it and when.

    Args:
        snr: Power of the spoken digit over that of the noise during it, in decibels; `inf` for no noise.
        energy: The leading principal components are kept that together hold at most this share of the variance.
        seed: Of the draws.
        validation_images: So many of the last training images validate.
        validation_speakers: Who is heard in validation, names with commas between; with `test_speakers`, in place of a
            hash of their names.
        test_speakers: Who is heard in the test.
        mnist: Folder of the images, inside the source.
        spoken: Folder of the spoken digits; "" for `fsdd` or `audiomnist`, whichever there is.
        noises: Folder of the noises.
    """

    name = "avmnist"
    summary = "digits seen through three principal components, and spoken in noise; 70,000 pairs"
    layout = """\
Either the ingredients:
  mnist/{train,t10k}-{images-idx3,labels-idx1}-ubyte[.gz]   MNIST (LeCun, Cortes, Burges)
  fsdd/recordings/DIGIT_SPEAKER_INDEX.wav                  Free Spoken Digit Dataset, or
  audiomnist/data/SPEAKER/DIGIT_SPEAKER_INDEX.wav          AudioMNIST
  esc50/audio/*.wav and esc50/meta/esc50.csv               ESC-50, whole or in part
or the files that go round:
  image/{train,test}_data.npy, audio/{train,test}_data.npy, {train,test}_labels.npy"""
    protocols: ClassVar[dict[str, Protocol]] = {
        SPEAKERS: by_group(
            "MNIST's training images but its last 5,000, those 5,000, and its test images; "
            "no speaker and no noise is heard in two parts; selection sees validation only",
            folds=False,  # images and noises were cut too, and the components fitted on this training part
        ),
        MULTIBENCH: Protocol(
            "the published files: all training pairs but the last 5,000, those 5,000, and all test pairs, as"
            " MultiBench cuts them; speakers are in all parts; selection sees validation only"
        ),
        AGM: Protocol(
            "the published files: the first 90 % of the training pairs, the first 90 % of the test pairs as validation,"
            " and both tails as test, as AGM's code cuts them; it selects on its 9,000 of validation and reports the"
            " same",
            selects_on_test=True,
        ),
    }

    snr: float = 0.0
    energy: float = 0.25
    seed: int = 0
    validation_images: int = 5_000
    validation_speakers: str = ""
    test_speakers: str = ""
    mnist: str = "mnist"
    spoken: str = ""
    noises: str = "esc50"

    def __post_init__(self) -> None:
        demand(
            "avmnist",
            (self.snr >= -100, "snr: at least -100 decibels; inf for no noise", self.snr),
            (0 < self.energy <= 1, "energy: a share above 0 and at most 1", self.energy),
            (self.validation_images >= 1, "validation_images: at least 1", self.validation_images),
        )

    @property
    def fields(self) -> dict[str, Field]:
        """Describe images, with white at 1 but no limits, since what is left may be blacker than black, and sounds."""
        return {
            "image": Field((1, sources.SIDE, sources.SIDE), "float16", view=Rescaled(1.0)),
            "sound": Field((1, sources.ROWS, sources.COLUMNS), "uint8", view=Rescaled(1 / 255)),
        }

    def find(self, source: Path, problems: Problems) -> Clips | None:
        """Read all sources into memory, where workers that are forked share them; or map the published files."""
        try:
            if any((source / file.format(part)).is_file() for file in FILES.values() for part in ("train", "test")):
                return open_published(source, self.validation_images)
            named = (self.validation_speakers, self.test_speakers)
            speakers = [list(filter(None, map(str.strip, names.split(",")))) for names in named]
            images, takes, noises = collect(
                partial(sources.read_images, source, self.mnist, self.validation_images),
                partial(sources.read_spoken_digits, source, self.spoken, *speakers),
                partial(sources.read_noises, source, self.noises),
            )
            return Pairs(self, images, takes, noises)
        except BadInput as problem:
            problems += str(problem).splitlines()
            return None


@final
class Pairs(Clips):
    """Pairs made of their sources.

    Args:
        options: How they are made.
        images: All images.
        takes: All spoken digits.
        noises: All noises.
    """

    classes = CLASSES

    def __init__(
        self, options: AVMNIST, images: sources.DigitImages, takes: Takes, noises: list[sources.NoiseRecording]
    ) -> None:
        self.options, self.images, self.takes = options, images, takes
        self._takes = {(part, digit): [] for part in PARTS for digit in sources.DIGITS}
        for take in takes:
            self._takes[take.part, take.digit].append(take)
        self._noises = {part: [noise for noise in noises if noise.part == part] for part in PARTS}
        self.components = PrincipalComponents.fit(images.pixels[images.part == "train"], options.energy)
        self.listed = []
        for number, (label, part) in enumerate(zip(images.label.tolist(), images.part.tolist(), strict=True)):
            take, noise, _ = self.drawn(number)
            name = f"{number:05d}/{take.name}/{noise.name}"
            self.listed.append(Clip(name, label, take.speaker, {SPEAKERS: part}))

    def read(self, number: int) -> dict[str, np.ndarray]:
        """Make one pair."""
        take, noise, start = self.drawn(number)
        wave = sources.mixed(take.wave, noise.wave[start : start + sources.SAMPLES], self.options.snr)
        image = self.components.project(self.images.pixels[number]) / 255
        return {"image": image.astype(np.float16)[None], "sound": sources.spectrogram(wave)[None]}

    def drawn(self, number: int) -> tuple[sources.SpokenDigit, sources.NoiseRecording, int]:
        """Draw what is heard with an image: a take of its digit, a noise, and where in the noise the second starts."""
        digest = hashlib.sha256(f"{self.options.seed}/{number}".encode()).digest()
        first, second, third = (int.from_bytes(digest[start : start + 8], "big") for start in (0, 8, 16))
        part = str(self.images.part[number])
        takes, noises = self._takes[part, int(self.images.label[number])], self._noises[part]
        noise = noises[second % len(noises)]
        return takes[first % len(takes)], noise, third % (len(noise.wave) - sources.SAMPLES)


@final
@dataclass(frozen=True)
class PrincipalComponents:
    """The leading principal components of images.

    Args:
        mean: Of the training images, [784].
        components: The kept ones as rows, [k, 784].
        kept: Share of the training images' variance that they hold.
    """

    mean: np.ndarray
    components: np.ndarray
    kept: float

    @classmethod
    def fit(cls, training: np.ndarray, energy: float) -> PrincipalComponents:
        """Keep as many leading components of the training images as hold at most this share of their variance.

        Args:
            training: Bytes, [N, 28, 28].
            energy: The share.

        Raises:
            BadInput: If the first one holds more than that.
        """
        pixels = torch.from_numpy(training.reshape(len(training), -1))
        size = pixels.shape[1]
        total, products = torch.zeros(size, dtype=torch.float64), torch.zeros(size, size, dtype=torch.float64)
        for batch in pixels.split(4096):
            # Sums of products of bytes are whole numbers below 2⁵³: exact, in whatever order they are added up.
            exact = batch.double()
            total += exact.sum(dim=0)
            products += exact.T @ exact
        mean = total / len(pixels)
        variance, vectors = torch.linalg.eigh(products / len(pixels) - torch.outer(mean, mean))
        variance, components = variance.flip(0).clamp(min=0), vectors.T.flip(0)
        share = (variance.cumsum(0) / variance.sum().clamp(min=torch.finfo(torch.float64).tiny)).numpy()
        count = int(np.sum(share <= energy + 1e-9))
        if count == 0:
            least = f"expected at least {share[0]:.4f}, the share of the first component"
            raise BadInput(f"avmnist: energy: {least}, found {energy}")
        return cls(mean.numpy(), components[:count].numpy(), float(share[count - 1]))

    def project(self, image: np.ndarray) -> np.ndarray:
        """Return what is left of one image [28, 28], on the scale of its bytes but beyond their limits."""
        # einsum, since matrix products may add up in another order where there are other threads.
        weights = np.einsum("kp,p->k", self.components, image.reshape(-1) - self.mean)
        return (self.mean + np.einsum("k,kp->p", weights, self.components)).reshape(image.shape)


def open_published(source: Path, validation: int) -> DecodedClips:
    """Map the published files.

    Args:
        source: Their folder.
        validation: How many of the last training pairs validate in MultiBench's split.

    Raises:
        BadInput: With everything that is wrong.
    """
    paths = {(part, kind): source / FILES[kind].format(part) for part in ("train", "test") for kind in SHAPES}
    arrays = dict(zip(paths, collect(*(partial(_map_array, path) for path in paths.values())), strict=True))
    problems = []
    for (part, kind), array in arrays.items():
        path, shape, count = paths[part, kind], SHAPES[kind], len(np.atleast_1d(arrays[part, "label"]))
        if array.shape[1:] != shape or not array.ndim or array.dtype.kind not in ("iu" if kind == "label" else "iuf"):
            expected = " × ".join(map(str, ("N", *shape)))
            problems.append(f"{path}: expected numbers, {expected}, found {array.dtype} of shape {array.shape}")
        elif len(array) != count or not count:
            problems.append(f"{path}: expected {count} samples, one per label, found {len(array)}")
        elif kind == "label" and not 0 <= array.min() <= array.max() <= 9:
            problems.append(f"{path}: expected labels from 0 to 9, found {array.min()} to {array.max()}")
    if not problems and validation >= (count := len(arrays["train", "label"])):
        problems.append(f"validation_images: expected fewer than the {count} training pairs, found {validation}")
    raise_all(problems)
    return published_clips(arrays, validation)


def _map_array(path: Path) -> np.ndarray:
    with reading(path) as path:
        try:
            return np.load(path, mmap_mode="r", allow_pickle=False)
        except Exception as problem:  # numpy raises whatever it likes at a file that is none of its own
            expected = "expected a whole array in numpy's format, found another file or a damaged one"
            raise Unreadable(f"{path}: {expected} ({problem})") from None


def published_clips(arrays: Mapping[tuple[str, str], np.ndarray], validation: int) -> DecodedClips:
    """List the pairs of the published files: those of the training files, then those of the test files.

    Args:
        arrays: By part and kind, one array each.
        validation: How many of the last training pairs validate in MultiBench's split.
    """
    train, test = arrays["train", "label"], arrays["test", "label"]
    rows = [("train", row) for row in range(len(train))] + [("test", row) for row in range(len(test))]
    multibench = np.repeat(PARTS, (len(train) - validation, validation, len(test)))
    heads = {"train": len(train) * 9 // 10, "test": len(test) * 9 // 10}
    listed = []
    for (part, row), placed, label in zip(rows, multibench.tolist(), [*train.tolist(), *test.tolist()], strict=True):
        agm = "test" if row >= heads[part] else {"train": "train", "test": "validation"}[part]
        name = f"{part}-{row:05d}"  # who speaks is not told: every pair stands for itself
        listed.append(Clip(name, label, name, {MULTIBENCH: placed, AGM: agm}))

    def read(number: int) -> dict[str, np.ndarray]:
        """Scale one pair: the image so that 255 becomes 1, as those who train on these files do."""
        part, row = rows[number]
        image, sound = (np.asarray(arrays[part, kind][row], np.float64) for kind in ("image", "audio"))
        name = listed[number].id
        if not np.isfinite(image).all():
            raise Unreadable(f"{name}: image: expected finite numbers, found NaN or infinity")
        if not (np.isfinite(sound).all() and sound.min() >= 0 and sound.max() <= 255):
            raise Unreadable(f"{name}: sound: expected numbers from 0 to 255, found {sound.min():g} to {sound.max():g}")
        image = (image / 255).astype(np.float16).reshape(1, 28, 28)
        return {"image": image, "sound": np.rint(sound).astype(np.uint8)[None]}

    return DecodedClips(listed, read, CLASSES)
