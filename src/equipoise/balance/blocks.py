"""The blocks of parameters that the coefficients of one step act on, read off the graphs of its losses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

from torch import Tensor

from equipoise.balance.graph import Leaves, Reach, edges_of, leaves_under
from equipoise.balance.needs import Needs


@final
class Blocks:
    """The leaves of a step, sorted into encoders, trunk, fused head and own heads.

    Own heads are what the fused loss does not reach. Where encoders learn from the fused loss alone, that takes in
    parts of encoders.

    Args:
        reach: The leaves that each loss is computed from.
        encoders: Trainable tensors per modality.
        trunk: Trainable tensors of the trunk; none without one.
        extra: The sum of losses that belong to no modality; None for none.
        fused_alone: Whether encoders learn from the fused loss alone.
    """

    def __init__(
        self,
        reach: Reach,
        encoders: Sequence[Sequence[Tensor]],
        trunk: Sequence[Tensor],
        extra: Tensor | None,
        *,
        fused_alone: bool,
    ) -> None:
        self.per_loss, fused = reach.per_loss, reach.per_loss[0]
        beside = {key: leaf for own in self.per_loss[1:] for key, leaf in own.items() if key not in fused}
        self.leaves: Leaves = {}
        for leaves in (*self.per_loss, leaves_under(edges_of(extra))):
            self.leaves |= leaves
        away = beside if fused_alone else {}
        self.encoders = [[t for t in ts if id(t) in self.leaves and id(t) not in away] for ts in encoders]
        self.owners: dict[int, list[int]] = {}
        for block, tensors in enumerate(encoders):
            for tensor in tensors:
                self.owners.setdefault(id(tensor), []).append(block)
        self.frozen = {block for block, tensors in enumerate(encoders) if not tensors}
        self.encoder_tensors = list({id(t): t for block in self.encoders for t in block}.values())
        self.has_trunk = bool(trunk)
        self.trunk = [tensor for tensor in trunk if id(tensor) in self.leaves]
        taken = {id(tensor) for tensor in (*self.encoder_tensors, *self.trunk)}
        self.fused_head = [leaf for key, leaf in fused.items() if key not in taken]
        self.own_heads = [leaf for key, leaf in beside.items() if key not in taken]

    def reaches(self, loss: int, block: int) -> bool:
        """Return True if loss number ``loss`` (0 is the fused one) sends a gradient into encoder ``block``."""
        return any(id(tensor) in self.per_loss[loss] for tensor in self.encoders[block])

    def rows(self) -> list[list[bool]]:
        """Return for each loss which columns of the table it reaches."""
        columns = [*self.encoders, *([self.trunk] if self.has_trunk else []), self.fused_head, self.own_heads]
        keys = [{id(tensor) for tensor in column} for column in columns]
        return [[not own.isdisjoint(leaves) for own in keys] for leaves in self.per_loss]

    def shares_trunk(self) -> bool:
        """Return True if another loss than the fused one reaches the trunk, so that gradients there are told apart."""
        return any(id(tensor) in leaves for leaves in self.per_loss[1:] for tensor in self.trunk)

    def reaching_others(self) -> list[int]:
        """List the modalities whose own loss reaches an encoder that is another modality's alone."""
        return [
            block
            for block, leaves in enumerate(self.per_loss[1 : 1 + len(self.encoders)])
            if any(block not in self.owners[key] for key in leaves if key in self.owners)
        ]

    def problems(self, modalities: Sequence[str], needs: Needs, *, mixes: bool) -> list[str]:
        """Return why the losses cannot teach these encoders what a method says.

        Args:
            modalities: Their names.
            needs: Of the method.
            mixes: Whether it mixes the gradients of the fused and the uni-modal losses.
        """
        found = []
        for block, name in enumerate(modalities[: len(self.encoders)]):
            if block in self.frozen:
                continue
            if (mixes or not needs.learns_from_own) and not self.reaches(0, block):
                found.append(f"the fused loss sends no gradient to encoder {name!r}: is it the module that ran?")
            if needs.learns_from_own and not self.reaches(block + 1, block):
                found.append(
                    f"loss {name!r} sends no gradient to encoder {name!r}, which this method needs: compute it on the "
                    f"encoder's own features, not on detached ones (LateFusion(…, unimodal={needs.view!r}))"
                )
        return found

    def separate(self) -> bool:
        """Return True if each uni-modal loss reaches its own encoder only, so that one pass serves all of them.

        Encoders that share a parameter are not separate: a loss that reaches one reaches the other.
        """
        blocks = range(len(self.encoders))
        return not any(self.reaches(k + 1, b) for k in blocks for b in blocks if k != b)

    def groups(self) -> list[list[int]]:
        """Group encoders that share parameters; an encoder that shares nothing is alone."""
        label = list(range(len(self.encoders)))
        for owners in self.owners.values():
            if len(owners) > 1:
                joined = {label[block] for block in owners}
                label = [min(joined) if old in joined else old for old in label]
        return [[block for block, mark in enumerate(label) if mark == first] for first in sorted(set(label))]

    def tensors_of(self, group: Sequence[int]) -> list[Tensor]:
        """List the tensors of some encoders, each once."""
        return list({id(tensor): tensor for block in group for tensor in self.encoders[block]}.values())
