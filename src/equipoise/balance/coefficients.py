"""The losses of a step as plain values (`Losses`), a method's answer to them (`Coefficients`), and the table of it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor

from equipoise.util.errors import BadInput

FUSED = "fused"
TRUNK, FUSED_HEAD, OWN_HEADS = "trunk", "fused head", "own heads"
Tensors: TypeAlias = Mapping[str, Tensor]  # by name


class Losses(NamedTuple):
    """The losses of a step as plain values: no graph, averaged over samples and ranks.

    They have a graph where second derivatives are wanted: then `weigh` is asked once more, in the backward pass.

    Args:
        fused: The fused loss, or zero where it was not given.
        unimodal: One loss per modality, zero where it was not given.
        scores: One score per modality, of the kind that the method needs; of several kinds one column each, [K, S].
        presence: The share of samples that have each sensor, where masks were given; None where all have all. A sensor
            that no sample has: its loss is zero, and its score the mean of the others'.
        further: The objectives beyond one per modality; None where they were not given.
    """

    fused: Tensor
    unimodal: Tensor
    scores: Tensor
    presence: Tensor | None = None
    further: Tensor | None = None

    @property
    def all(self) -> Tensor:
        """Every objective in the order of the table: the fused loss, one per modality, and those beyond."""
        further = [] if self.further is None else [self.further]
        return torch.cat([self.fused[None], self.unimodal, *further])

    def at_hand(self, gaps: Tensor) -> Tensor:
        """Put a sensor that no sample has infinitely far ahead, where another is there, so that a maximum passes it."""
        if self.presence is None:
            return gaps
        return torch.where((self.presence > 0) | (self.presence <= 0).all(), gaps, -torch.inf)

    def weights(self, fused: float, unimodal: float) -> Tensor:
        """Return constant weights of the fused and of every uni-modal loss, [K + 1]."""
        weights = self.unimodal.new_full((1 + len(self.unimodal),), unimodal)
        if fused != unimodal:
            weights[0] = fused
        return weights


class Coefficients(NamedTuple):
    """A method's answer: block b of the parameters moves along Σ_i c[i, b] · ∇_b f_i.

    The objectives i are n: the fused loss, K uni-modal ones, and further ones where they were given. The blocks are an
    encoder per modality, the fused head, the trunk where encoders meet, and the modalities' own heads: parameters that
    the fused loss does not reach. Where a block is None, the fused head moves as the encoders, the other two as the
    fused head. A column of one row speaks of the fused loss alone, and then what of an encoder that loss does not reach
    counts as an own head.

    Args:
        encoders: One column for all encoders, shape [n] or [1], or one for each, [n, K].
        fused_head: Shape [n] or [1]; None: as the encoders.
        trunk: Shape [n] or [1]; None: as the fused head.
        own_heads: Shape [n]; None: as the fused head.
        factors: One per encoder, shape [K], on its gradient or, under an optimiser such as Adam, on its update; None
            for ones.
        value: The value of the returned scalar; None for the sum that encoders, or else the fused head, move along.
    """

    encoders: Tensor
    fused_head: Tensor | None = None
    trunk: Tensor | None = None
    own_heads: Tensor | None = None
    factors: Tensor | None = None
    value: Tensor | None = None

    @staticmethod
    def shared(weights: Tensor, value: Tensor | None = None) -> Coefficients:
        """All parameters move along one weighted sum of the losses: no model needs to be attached."""
        return Coefficients(weights, value=value)

    @staticmethod
    def joint(losses: Losses, factors: Tensor | None = None) -> Coefficients:
        """Let all that the fused loss reaches learn from it, encoders times a factor, own heads from their losses."""
        ones = losses.weights(1.0, 1.0)
        return Coefficients(ones[:1], own_heads=ones, factors=factors, value=losses.fused)

    @staticmethod
    def weighted(
        weights: Tensor, heads: Tensor, factors: Tensor | None = None, value: Tensor | None = None
    ) -> Coefficients:
        """Encoders move along one weighted sum, times a factor each, all heads and the trunk along another."""
        return Coefficients(weights, fused_head=heads, factors=factors, value=value)

    @staticmethod
    def full(encoders: Tensor, heads: Tensor, value: Tensor | None = None) -> Coefficients:
        """Each encoder moves along a weighted sum of its own, all heads and the trunk along another."""
        return Coefficients(encoders, fused_head=heads, value=value)

    @property
    def moves_alike(self) -> bool:
        """True if all that is no own head moves along one sum, so that encoders need not be known."""
        return self.encoders.dim() == 1 and self.fused_head is None and self.trunk is None and self.factors is None

    @property
    def parts(self) -> list[Tensor]:
        """The columns and factors that were given."""
        return [
            one for one in (self.encoders, self.fused_head, self.trunk, self.own_heads, self.factors) if one is not None
        ]

    @property
    def is_alone(self) -> bool:
        """True if encoders learn from the fused loss alone."""
        return len(self.encoders) == 1

    @property
    def is_sum(self) -> bool:
        """True if all parameters move along one sum."""
        return self.own_heads is None and self.moves_alike

    @property
    def rows(self) -> int:
        """The number of objectives that the answer speaks of."""
        return max(len(self.encoders), *(len(column) for column in self.heads()))

    def heads(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return the columns of the fused head, the trunk and the own heads."""
        fused = self.encoders if self.fused_head is None else self.fused_head
        return fused, fused if self.trunk is None else self.trunk, fused if self.own_heads is None else self.own_heads

    def table(self, modalities: int, *, trunk: bool) -> Tensor:
        """Return all coefficients as one tensor, the columns in the order of `Table`.

        Args:
            modalities: Their number K.
            trunk: Whether the model has one.
        """
        fused, middle, own = self.heads()
        encoders = self.encoders if self.encoders.dim() == 2 else self.encoders[:, None].expand(-1, modalities)
        encoders = encoders if self.factors is None else encoders * self.factors
        columns = [*encoders.unbind(dim=1), *([middle] if trunk else []), fused, own]
        rows = max(1 + modalities, self.rows)
        return torch.stack([torch.cat([one, one.new_zeros(rows - len(one))]) for one in columns], dim=1).detach()

    def problems(self, objectives: int, modalities: int) -> list[str]:
        """Return every reason why this is no answer for so many objectives and modalities."""
        count, column = objectives, [(objectives,), (1,)]
        sizes = {"encoders": [*column, (count, modalities)], "fused_head": column, "trunk": column}
        sizes |= {"own_heads": [(count,)], "factors": [(modalities,)]}
        wrong = []
        for name, known in sizes.items():
            part = getattr(self, name)
            if part is None and name != "encoders":
                continue
            if not isinstance(part, Tensor):
                wrong.append(f"{name} of type {type(part).__name__}, expected a tensor")
            elif part.shape not in known:
                wrong.append(f"{name} of shape {list(part.shape)}, expected {' or '.join(map(str, map(list, known)))}")
        if not wrong and self.encoders.dim() == 2 and self.fused_head is None:
            wrong.append("a column for each encoder, and fused_head of None, which has no encoder to follow")
        return wrong


def check_answer(method: str, answer: object, objectives: Sequence[str], modalities: int) -> Coefficients:
    """Return a method's answer, or raise an error that says what `weigh` should return.

    Args:
        method: The name of its class.
        answer: What it returned.
        objectives: The fused loss, the modalities, and further objectives.
        modalities: Their number K.
    """
    count = len(objectives)
    if isinstance(answer, Coefficients):
        plain = isinstance(answer.encoders, Tensor) and answer.encoders.shape == (count,)
        if plain and answer.is_sum:  # the usual answer, and the quick way
            return answer
        wrong = answer.problems(count, modalities)
        if not wrong:
            return answer
    else:
        found = f"a tensor of shape {list(answer.shape)}" if isinstance(answer, Tensor) else type(answer).__name__
        wrong = [f"{found} instead"]
    raise BadInput(
        f"{method}.weigh: expected it to return equipoise.Coefficients, such as Coefficients.shared(weights) with a "
        f"tensor of {count} weights, of {', '.join(objectives)}; found {'; '.join(wrong)}"
    )


class Table(NamedTuple):
    """The coefficients of the last step: block b moved along Σ_i c[i, b] · ∇_b f_i.

    Rows are objectives: the fused loss, one loss per modality, further ones. Columns are blocks of parameters: one
    encoder per modality, the trunk where encoders meet in one, the fused head, and the modalities' own heads.

    Args:
        objectives: Names of the rows.
        blocks: Names of the columns.
        values: The coefficients c, on the device they were computed on; NaN where a loss does not reach a block, and
            where it is not known whether it does.
        known: True if a model is attached, so that it is known which loss reaches which block.
        notes: What the method does to gradients or updates after this table.
    """

    objectives: tuple[str, ...]
    blocks: tuple[str, ...]
    values: Tensor
    known: bool = True
    notes: tuple[str, ...] = ()

    def at(self, objective: str, block: str) -> Tensor:
        """Return the coefficient of one objective on one block, still on its device."""
        return self.values[self.objectives.index(objective), self.blocks.index(block)]

    def numbers(self) -> dict[str, dict[str, float]]:
        """Return the table as plain numbers, ``{objective: {block: coefficient}}``, without the cells that are NaN.

        Waits for the device.
        """
        return {
            objective: {block: value for block, value in zip(self.blocks, row, strict=True) if not math.isnan(value)}
            for objective, row in zip(self.objectives, self.values.tolist(), strict=True)
        }

    def __str__(self) -> str:
        first = max(len(name) for name in self.objectives)
        rows = {"": dict(zip(self.blocks, self.blocks, strict=True))}
        rows |= {name: {block: f"{c:.4g}" for block, c in row.items()} for name, row in self.numbers().items()}
        lines = [
            " ".join([f"{name:<{first}}", *(f"{self._cell(name, row, b):>{max(len(b), 9)}}" for b in self.blocks)])
            for name, row in rows.items()
        ]
        return "\n".join([*lines, *self.notes])

    def _cell(self, objective: str, row: Mapping[str, str], block: str) -> str:
        unknown = not self.known and (objective, block) != (FUSED, OWN_HEADS)
        return row.get(block, "?" if unknown else "–")


def ratios(scores: Tensor) -> Tensor:
    """ρ_m = mean over j ≠ m of s_m / s_j, from log scores [K]; one for a single modality."""
    count = len(scores)
    if count == 1:
        return torch.ones_like(scores)
    largest = 80.0  # exp of anything beyond is as good as infinite for a hyperbolic tangent, and still a number
    pairs = (scores[:, None] - scores[None, :]).clamp(-largest, largest).exp()
    return (pairs.sum(dim=1) - 1) / (count - 1)  # the diagonal is one


def mean_of_others(values: Tensor) -> Tensor:
    """For each entry the mean of the others; itself where there are none."""
    count = len(values)
    return values if count == 1 else (values.sum() - values) / (count - 1)
