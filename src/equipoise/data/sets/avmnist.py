"""AV-MNIST: an image of a digit that lost most of its detail, and the same digit spoken in noise.

The data set of Vielzeuf et al., "CentralNet: a Multilayer Approach for Multimodal Fusion" (2018). The files that go
round were made by others after its description, and disagree. Here it is made from its ingredients, so that every sound
says the digit that is on its image; the files that go round can be read too.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, final

import numpy as np
import torch

from equipoise.data.prepare.original import Clip, Clips, Field, Original, Protocol
from equipoise.data.sets.avmnist_ingredients import (
    DIGITS,
    SIDE,
    Images,
    Noise,
    Take,
    read_images,
    read_noises,
    read_takes,
)
from equipoise.data.sets.avmnist_published import PROTOCOLS, is_published, open_published
from equipoise.data.sets.avmnist_sound import COLUMNS, ROWS, SAMPLES, mixed, spectrogram
from equipoise.data.sets.lists import refuse
from equipoise.data.splits import PARTS
from equipoise.data.views import Rescaled
from equipoise.util.errors import BadInput, collect, demand

SPEAKERS = "speakers"


@final
@dataclass(frozen=True)
class AVMNIST(Original):
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

    name: ClassVar[str] = "avmnist"
    summary: ClassVar[str] = "digits seen through three principal components, and spoken in noise; 70,000 pairs"
    layout: ClassVar[str] = (
        "Either the ingredients:\n"
        "  mnist/{train,t10k}-{images-idx3,labels-idx1}-ubyte[.gz]   MNIST (LeCun, Cortes, Burges)\n"
        "  fsdd/recordings/DIGIT_SPEAKER_INDEX.wav                  Free Spoken Digit Dataset, or\n"
        "  audiomnist/data/SPEAKER/DIGIT_SPEAKER_INDEX.wav          AudioMNIST\n"
        "  esc50/audio/*.wav and esc50/meta/esc50.csv               ESC-50, whole or in part\n"
        "or the files that go round:\n"
        "  image/{train,test}_data.npy, audio/{train,test}_data.npy, {train,test}_labels.npy"
    )
    protocols: ClassVar[dict[str, Protocol]] = {
        SPEAKERS: Protocol(
            "MNIST's training images but its last 5,000, those 5,000, and its test images; "
            "no speaker and no noise is heard in two parts; selection sees validation only",
            by_group=True,
            folds=False,  # images and noises were cut too, and the components fitted on this training part
        ),
        **PROTOCOLS,
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
        """Images with white at 1 and no limits, since what is left of an image may be blacker than black."""
        return {
            "image": Field((1, SIDE, SIDE), "float16", view=Rescaled(1.0)),
            "sound": Field((1, ROWS, COLUMNS), "uint8", view=Rescaled(1 / 255)),
        }

    def open(self, source: Path) -> Clips:
        """Read all ingredients into memory, where workers that are forked share them; or map the files that go round.

        Raises:
            BadInput: With everything that is wrong with the folder.
        """
        try:
            if is_published(source):
                return open_published(source, self.validation_images)
            images, takes, noises = collect(
                lambda: read_images(source, self.mnist, self.validation_images),
                lambda: read_takes(source, self.spoken, _names(self.validation_speakers), _names(self.test_speakers)),
                lambda: read_noises(source, self.noises),
            )
            return Pairs(self, images, takes, noises)
        except BadInput as problems:
            refuse(self, source, str(problems).splitlines())
            raise

    def classes(self, clips: Clips) -> tuple[str, ...]:  # noqa: ARG002 (the same for all)
        """The ten digits."""
        return tuple(map(str, DIGITS))


@final
@dataclass
class Pairs(Clips):
    """Pairs made of their ingredients.

    Args:
        options: How.
        images: All images.
        takes: All spoken digits.
        noises: All noises.
    """

    options: AVMNIST
    images: Images
    takes: Sequence[Take]
    noises: Sequence[Noise]
    listed: Sequence[Clip] = field(init=False)
    remains: Remains = field(init=False)

    def __post_init__(self) -> None:
        self._said = {(part, digit): [] for part in PARTS for digit in DIGITS}
        for take in self.takes:
            self._said[take.part, take.digit].append(take)
        self._heard = {part: [noise for noise in self.noises if noise.part == part] for part in PARTS}
        self.remains = Remains.of(self.images.pixels[self.images.part == "train"], self.options.energy)
        self.listed = [self._clip(number) for number in range(len(self.images.label))]

    def read(self, number: int) -> dict[str, np.ndarray]:
        """Make one pair."""
        take, noise, start = self.drawn(number)
        sound = spectrogram(mixed(take.wave, noise.wave[start : start + SAMPLES], self.options.snr))
        image = self.remains.seen(self.images.pixels[number]) / 255
        return {"image": image.astype(np.float16)[None], "sound": sound[None]}

    def drawn(self, number: int) -> tuple[Take, Noise, int]:
        """What is heard beside an image: a take of its digit, a noise, and where in the noise the second starts."""
        digest = hashlib.sha256(f"{self.options.seed}/{number}".encode()).digest()
        draws = [int.from_bytes(digest[start : start + 8], "big") for start in (0, 8, 16)]
        part = str(self.images.part[number])
        said, heard = self._said[part, int(self.images.label[number])], self._heard[part]
        take, noise = said[draws[0] % len(said)], heard[draws[1] % len(heard)]
        return take, noise, draws[2] % (len(noise.wave) - SAMPLES)

    def _clip(self, number: int) -> Clip:
        take, noise, _ = self.drawn(number)
        parts = {SPEAKERS: str(self.images.part[number])}
        return Clip(f"{number:05d}/{take.name}/{noise.name}", int(self.images.label[number]), take.speaker, parts)


@final
@dataclass(frozen=True)
class Remains:
    """What is left of images when only their leading principal components are kept.

    Args:
        mean: Of the training images, [784].
        components: The kept ones as rows, [k, 784].
        kept: Share of the training images' variance that they hold.
    """

    mean: np.ndarray
    components: np.ndarray
    kept: float

    @classmethod
    def of(cls, training: np.ndarray, energy: float) -> Remains:
        """As many leading components of the training images as hold at most this share of their variance.

        Args:
            training: Bytes, [N, 28, 28].
            energy: The share.

        Raises:
            BadInput: If the first one holds more than that.
        """
        pixels = torch.from_numpy(training.reshape(len(training), -1))
        size = pixels.shape[1]
        total, products = torch.zeros(size, dtype=torch.float64), torch.zeros(size, size, dtype=torch.float64)
        for some in pixels.split(4096):
            # Sums of products of bytes are whole numbers below 2⁵³: exact, in whatever order they are added up.
            exact = some.double()
            total += exact.sum(dim=0)
            products += exact.T @ exact
        mean = total / len(pixels)
        variance, vectors = torch.linalg.eigh(products / len(pixels) - torch.outer(mean, mean))
        variance, components = variance.flip(0).clamp(min=0), vectors.T.flip(0)
        share = (variance.cumsum(0) / variance.sum().clamp(min=torch.finfo(torch.float64).tiny)).numpy()
        count = int(np.sum(share <= energy + 1e-9))
        if count == 0:
            raise BadInput(
                f"avmnist: energy: expected at least {share[0]:.4f}, the share of the first component, found {energy}"
            )
        return cls(mean.numpy(), components[:count].numpy(), float(share[count - 1]))

    def seen(self, image: np.ndarray) -> np.ndarray:
        """What is left of one image [28, 28], on the scale of its bytes but beyond their limits."""
        # einsum, since matrix products may add up in another order where there are other threads.
        weights = np.einsum("kp,p->k", self.components, image.reshape(-1) - self.mean)
        return (self.mean + np.einsum("k,kp->p", weights, self.components)).reshape(image.shape)


def _names(text: str) -> list[str]:
    return [name for word in text.split(",") if (name := word.strip())]
