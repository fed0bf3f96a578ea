"""Samples that a model has seen: those of the parts that it was trained and chosen on, known by their digests."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import final

import numpy as np
import torch
from torch import Tensor

from equipoise.data.digests import NOTHING, sample_digests
from equipoise.data.part import PRESENT, Part
from equipoise.deploy.deployable import LENGTH, VALID, InputSpec
from equipoise.models.encoders import real_steps
from equipoise.study.job import SEEN
from equipoise.util.errors import BadInput, first_line
from equipoise.util.extras import needs
from equipoise.util.files import inside

PARTS = ("train", "validation")
"""The parts that a model has seen."""


@final
class SeenSamples:
    """The samples of the training and the validation part of a run, by their digests.

    Args:
        digests: Of each part.
        key: Of the digests: the fingerprint of the data.
        specs: What the sensors of the model give.
    """

    def __init__(self, digests: Mapping[str, np.ndarray], key: str, specs: Mapping[str, InputSpec]) -> None:
        self.digests, self.key = digests, key
        self.specs = {name: spec for name, spec in specs.items() if spec.before is None}

    @classmethod
    def of(cls, folder: Path, key: str, specs: Mapping[str, InputSpec]) -> SeenSamples | None:
        """Read them from the folder of a run; None where it kept none.

        Raises:
            BadInput: If the file is damaged.
        """
        with needs("a saved model", "predict"):
            from safetensors import SafetensorError
            from safetensors.numpy import load_file

        path = inside(folder, SEEN)
        if not path.is_file():
            return None
        try:
            stored = load_file(path)
            return cls({part: stored[part].astype(np.int64, casting="no") for part in PARTS}, key, specs)
        except (OSError, SafetensorError, KeyError, TypeError) as error:
            expected = f"{path}: expected digests of the samples that the model was trained on"
            raise BadInput(f"{expected}, found: {first_line(error)}; remove it to do without") from None

    def part_of(self, inputs: Mapping[str, Tensor]) -> list[str]:
        """Return the part of each sample: "train", "validation", or "" for one that the model has not seen.

        A sample is known by all of its sensors together: with one of them left out it is another one.

        Args:
            inputs: NAME, NAME_length and NAME_valid of every sensor, as `read_recorded` gives them.
        """
        arrays = {name: self._as_trained(name, inputs) for name in self.specs}
        arrays |= {f"{name}{PRESENT}": inputs[f"{name}{VALID}"] for name in self.specs}
        arrays |= {name: inputs[name] for name in (f"{name}{LENGTH}" for name in self.specs) if name in inputs}
        label = torch.zeros(len(next(iter(inputs.values()))))
        found = sample_digests(Part(arrays, label), self.specs, self.key)
        parts = np.full(len(found), "", dtype=object)
        for name, digests in self.digests.items():
            parts[np.isin(found, digests) & (found != NOTHING) & (parts == "")] = name
        return parts.tolist()

    def _as_trained(self, name: str, inputs: Mapping[str, Tensor]) -> Tensor:
        """Return the numbers of a sensor to the last bit as the training part holds them."""
        raw, spec, lengths = inputs[name], self.specs[name], inputs.get(f"{name}{LENGTH}")
        if spec.mean is None or spec.deviation is None:
            return raw
        scaled = (raw - spec.mean) / spec.deviation
        return scaled if lengths is None else scaled.where(real_steps(lengths, scaled, 2), 0)
