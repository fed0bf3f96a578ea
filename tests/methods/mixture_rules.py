"""The rules of the methods that mix gradients: at each encoder, of the losses that reach it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple, final

import numpy as np
import torch
from torch import Tensor

from methods.expected import FUSED, Plain, Total, shortest
from methods.rules import MIXED, Delivered, Rule, Scores

TRUNK: list[str] = []
"""A group of no encoders: the trunk, whose gradients are always taken at its parameters."""


class Place(NamedTuple):
    """Encoders that are decided on together, or the trunk: the losses that reach it, and their gradients."""

    group: list[str]
    reaching: list[str]
    parts: dict[str, dict[str, Tensor]]
    rows: np.ndarray


class Mixture(Rule):
    """Encoders learn from a mixture that their gradients decide; heads from every loss."""

    def deliver(self, plain: Plain, scores: Scores, *, counts_steps: bool) -> Delivered:  # noqa: ARG002
        total, groups, mixed_names = Total(), list(self.layout.groups), set(self.layout.groups_of)
        if any(self.layout.reaches_trunk(found) for loss, found in plain.gradients.items() if loss != FUSED):
            groups.append(TRUNK)  # where the fused loss alone reaches it, it is as good as a head
            mixed_names |= self.layout.trunk
        for gradients in plain.gradients.values():
            total.add_all({name: each for name, each in gradients.items() if name not in mixed_names})
        found: list[Place] = []
        for group in groups:
            held = self.layout.trunk if group == TRUNK else {n for member in group for n in self.layout.blocks[member]}
            parts = {
                loss: {name: each for name, each in gradients.items() if name in held}
                for loss, gradients in plain.gradients.items()
            }
            ends = {loss: {name: ends[name] for name in group if name in ends} for loss, ends in plain.features.items()}
            places = ends if self.options["at"] == "features" and group != TRUNK else parts
            lengths = {
                loss: sum(float(each.square().sum()) for each in found.values()) for loss, found in places.items()
            }
            reaching = [loss for loss, length in lengths.items() if length > 0]  # another loss takes no part
            if reaching:
                found.append(Place(group, reaching, parts, _rows([places[loss] for loss in reaching])))
        for (_, reaching, parts, _), coefficients in zip(found, self.coefficients(plain, found), strict=True):
            mixed = Total()
            for loss, coefficient in zip(reaching, coefficients, strict=True):
                mixed.add_all(parts[loss], float(coefficient))
            self.rescale(mixed, parts)
            total.values |= mixed.values
            total.sizes |= mixed.sizes
        stretched = "boost" in self.options and self.options["at"] == "parameters"
        return Delivered(total, total, {}, tolerance=MIXED, linear=not stretched)

    def coefficients(self, plain: Plain, places: Sequence[Place]) -> list[np.ndarray]:  # noqa: ARG002
        """Coefficients of the gradients at each place."""
        return [self.mixed(place.rows) for place in places]

    def mixed(self, rows: np.ndarray) -> np.ndarray:
        """Coefficients of gradients, one to a row."""
        raise NotImplementedError

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


@final
class Barrier(Mixture):
    def coefficients(self, plain: Plain, places: Sequence[Place]) -> list[np.ndarray]:
        means = {name: float(plain.losses[name].mean()) / self.options["smoothing"] for name in self.names}
        powers = {name: math.exp(mean - max(means.values())) for name, mean in means.items()}
        shares = {name: power / sum(powers.values()) for name, power in powers.items()} | {FUSED: 0.0}
        weights = [np.array([shares[loss] for loss in place.reaching]) for place in places]
        slopes = [weight @ place.rows for weight, place in zip(weights, places, strict=True)]
        coefficients = []
        for weight, place in zip(weights, places, strict=True):
            together = [n for n, other in enumerate(places) if (other.group == TRUNK) == (place.group == TRUNK)]
            inner = sum(float(slopes[n] @ self._fused(places[n])) for n in together)
            squared = sum(float(slopes[n] @ slopes[n]) for n in together)
            penalty = max(0.0, self.options["strength"] - (inner / squared if squared else 0.0))
            coefficients.append(np.array([float(loss == FUSED) for loss in place.reaching]) + penalty * weight)
        return coefficients

    def _fused(self, place: Place) -> np.ndarray:
        return place.rows[place.reaching.index(FUSED)] if FUSED in place.reaching else 0 * place.rows[0]


def _stretch(wanted: float, found: float) -> float:
    return 1.0 if found == 0 else max(1.0, wanted / found)
