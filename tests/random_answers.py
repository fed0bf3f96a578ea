"""Answers of every layout that a method may give, with random numbers, and what each means for a block."""

from __future__ import annotations

import itertools
import random
from collections.abc import Mapping
from typing import Literal, final

import torch
from torch import Tensor

from equipoise import Coefficients, Losses, Weighting
from equipoise.balance.needs import Needs

Part = Literal["all", "one", "each", None]
"""How a part of an answer looks: rows of all objectives or of the fused one, a column for each encoder, or left out."""
LAYOUTS: list[dict[str, Part]] = [
    {"encoders": encoders, "fused_head": fused, "trunk": trunk, "own_heads": own, "factors": factors}
    for encoders, fused, trunk, own, factors in itertools.product(
        ("all", "one", "each"), (None, "all", "one"), (None, "all", "one"), (None, "all"), (None, "each")
    )
    if not (encoders == "each" and fused is None)
]


def drawn_answer(layout: Mapping[str, Part], draw: random.Random, objectives: int, modalities: int) -> Coefficients:
    """An answer of this layout with numbers of any sign."""

    def numbers(*shape: int) -> Tensor:
        count = torch.Size(shape).numel()
        return torch.tensor([draw.uniform(-2, 2) for _ in range(count)], dtype=torch.float64).view(shape)

    columns = {"all": (objectives,), "one": (1,), "each": (modalities,)}
    encoders = {**columns, "each": (objectives, modalities)}
    others = {name: numbers(*columns[part]) for name, part in layout.items() if part is not None}
    return Coefficients(**{**others, "encoders": numbers(*encoders[layout["encoders"] or "all"])})


def name_of(layout: Mapping[str, Part]) -> str:
    """A short name, for the list of tests."""
    return " ".join(f"{name}={part}" for name, part in layout.items() if part is not None)


def coefficient(answer: Coefficients, objective: int, block: int | str) -> float:
    """What an answer says of one block, an encoder by its number or another by name, cell by cell."""
    if isinstance(block, int):
        factor = 1.0 if answer.factors is None else float(answer.factors[block])
        return factor * _at(answer.encoders if answer.encoders.dim() == 1 else answer.encoders[:, block], objective)
    before = {"trunk": "fused head", "own heads": "fused head"}
    own = {"fused head": answer.fused_head, "trunk": answer.trunk, "own heads": answer.own_heads}[block]
    if own is not None:
        return _at(own, objective)
    return coefficient(answer, objective, before[block]) if block in before else _at(answer.encoders, objective)


def _at(column: Tensor, objective: int) -> float:
    return float(column[objective]) if objective < len(column) else 0.0


@final
class Answers(Weighting):
    """A method that gives one answer whatever the losses.

    Args:
        answer: What it says.
        further: The prefix of the names of further objectives; "" for none.
    """

    def __init__(self, answer: Coefficients, further: str = "") -> None:
        super().__init__()
        self.given = answer
        self.needs = Needs(encoders=not answer.moves_alike, learns_from_own=False, further=further)

    def weigh(self, losses: Losses) -> Coefficients:  # noqa: ARG002
        return self.given
