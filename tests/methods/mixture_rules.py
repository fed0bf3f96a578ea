"""The rules of the methods that mix gradients: at each encoder, of the losses that reach it."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping
from typing import final

import numpy as np
import torch
from torch import Tensor

from methods.expected import FUSED, Plain, Total, shortest
from methods.rules import MIXED, Delivered, Rule, Scores

TRUNK: list[str] = []
"""A group of no encoders: the trunk, whose gradients are always taken at its parameters."""


class Mixture(Rule):
    """Encoders learn from a mixture that their gradients decide; heads from every loss."""

    def deliver(self, plain: Plain, scores: Scores, *, counts_steps: bool) -> Delivered:  # noqa: ARG002
        total, groups, mixed_names = Total(), list(self.layout.groups), set(self.layout.groups_of)
        if any(self.layout.reaches_trunk(found) for loss, found in plain.gradients.items() if loss != FUSED):
            groups.append(TRUNK)  # where the fused loss alone reaches it, it is as good as a head
            mixed_names |= self.layout.trunk
        for gradients in plain.gradients.values():
            total.add_all({name: each for name, each in gradients.items() if name not in mixed_names})
        for group in groups:
            held = self.layout.trunk if group == TRUNK else {n for member in group for n in self.layout.blocks[member]}
            parts = {
                loss: {name: each for name, each in gradients.items() if name in held}
                for loss, gradients in plain.gradients.items()
            }
            ends = {
                loss: {name: found[name] for name in group if name in found} for loss, found in plain.features.items()
            }
            places = ends if self.options["at"] == "features" and group != TRUNK else parts
            lengths = {
                loss: sum(float(each.square().sum()) for each in found.values()) for loss, found in places.items()
            }
            reaching = [loss for loss, length in lengths.items() if length > 0]  # another loss takes no part
            if not reaching:
                continue
            coefficients = self.mixed(_rows([places[loss] for loss in reaching]))
            mixed = Total()
            for loss, coefficient in zip(reaching, coefficients, strict=True):
                mixed.add_all(parts[loss], float(coefficient))
            self.rescale(mixed, parts)
            total.values |= mixed.values
            total.sizes |= mixed.sizes
        stretched = "boost" in self.options and self.options["at"] == "parameters"
        return Delivered(total, total, {}, tolerance=MIXED, linear=not stretched)

    @abstractmethod
    def mixed(self, rows: np.ndarray) -> np.ndarray:
        """Coefficients of gradients, one to a row."""

    def rescale(self, mixed: Total, parts: Mapping[str, Mapping[str, Tensor]]) -> None:
        """Change what came out."""


def _rows(places: list[dict[str, Tensor]]) -> np.ndarray:
    like = {name: each for found in places for name, each in found.items()}
    rows = [torch.cat([found.get(name, torch.zeros_like(like[name])).flatten() for name in like]) for found in places]
    return torch.stack(rows).numpy()


@final
class MGDA(Mixture):
    def mixed(self, rows: np.ndarray) -> np.ndarray:
        return shortest(rows)


@final
class MMPareto(Mixture):
    def mixed(self, rows: np.ndarray) -> np.ndarray:
        products = rows @ rows.T
        agree = all(products[i, j] > 0 for i in range(len(rows)) for j in range(i))
        weights = np.ones(len(rows)) if agree else len(rows) * shortest(rows)
        if self.options["at"] == "features":
            weights = weights * _stretch(float(np.linalg.norm(rows.sum(axis=0))), float(np.linalg.norm(weights @ rows)))
        return self.options["boost"] * weights

    def rescale(self, mixed: Total, parts: Mapping[str, Mapping[str, Tensor]]) -> None:
        if self.options["at"] == "features":
            return
        plain = Total()
        for gradients in parts.values():
            plain.add_all(dict(gradients), self.options["boost"])
        wanted = {name: float(plain.values[name].norm()) for name in mixed.values}
        found = {name: float(value.norm()) for name, value in mixed.values.items()}
        if self.options["rescale"] == "encoder":
            wanted, found = (dict.fromkeys(each, math.hypot(*each.values())) for each in (wanted, found))
        for name in mixed.values:
            stretch = _stretch(wanted[name], found[name])
            mixed.values[name] = mixed.values[name] * stretch
            mixed.sizes[name] *= stretch


def _stretch(wanted: float, found: float) -> float:
    return 1.0 if found == 0 else max(1.0, wanted / found)
