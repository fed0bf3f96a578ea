"""The ways from losses to gradients: encoders learn from the fused loss, from a weighted sum, or from a mixture."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, TypeAlias, final

import torch
from torch import Tensor

from equipoise import delivery, features, ranks
from equipoise.delivery import Gradients, Pass, Reach
from equipoise.features import Cut, Tap
from equipoise.observe import Seen

if TYPE_CHECKING:
    from equipoise.balancer import Balancer

Group: TypeAlias = "tuple[list[int], list[Tensor]]"
"""Encoders that are decided on together, and where their gradients were taken."""


class Weights(NamedTuple):
    """A method's answer to `weigh`: encoder b moves along encoders[b] · Σ_i losses[i] · ∇_b f_i.

    Args:
        losses: Weight of the fused loss and of each uni-modal one, shape [K + 1].
        encoders: Factor on each encoder's gradient, shape [K]; None means ones.
        heads: Weight of each loss on the heads, shape [K + 1]; None means the same as ``losses``.
        value: What the returned scalar says; None means Σ_i losses[i] · f_i.
    """

    losses: Tensor
    encoders: Tensor | None = None
    heads: Tensor | None = None
    value: Tensor | None = None

    @staticmethod
    def joint(seen: Seen, encoders: Tensor | None = None) -> Weights:
        """Joint training: encoders learn from the fused loss, times a factor each; heads from every loss at one."""
        losses = torch.cat([torch.ones_like(seen.fused)[None], torch.zeros_like(seen.unimodal)])
        return Weights(losses, encoders=encoders, heads=torch.ones_like(losses), value=seen.fused)

    def table(self, modalities: int) -> Tensor:
        """The coefficients c[objective, block] these weights stand for."""
        factors = self.encoders if self.encoders is not None else self.losses.new_ones(modalities)
        heads = self.heads if self.heads is not None else self.losses
        return torch.cat([self.losses[:, None] * factors, heads[:, None]], dim=1)


@final
@dataclass
class Held:
    """One decision for several micro-batches.

    Args:
        seen: The losses of the whole window.
        weights: What the method made of them; None to let every micro-batch decide for itself.
        advanced: Whether the method's state has moved on for this window.
        record: The losses of the micro-batches that came by.
    """

    seen: Seen | None = None
    weights: Weights | None = None
    advanced: bool = False
    record: list[dict[str, Tensor]] = field(default_factory=list)


def weighted_sum(scalars: list[Tensor | None], extra: Tensor | None, weights: Weights, value: Tensor) -> Tensor:
    """A scalar of the objective's value whose gradient is the weighted sum of the losses' gradients."""
    chosen = weights.losses if weights.heads is None else weights.heads
    given = [place for place, scalar in enumerate(scalars) if scalar is not None]
    parts = torch.stack([scalar for scalar in scalars if scalar is not None])
    picked = chosen if len(given) == len(scalars) else torch.stack([chosen[place] for place in given])
    total = torch.dot(picked.to(parts.dtype), parts)
    result = total + (value - total).detach()
    return result if extra is None else result + extra


@final
class Step:
    """One step on the gradient path.

    Args:
        method: The balancer whose step it is.
        losses: The fused scalar (None where not given) and one per modality.
        extra: The sum of losses that belong to no modality.
        seen: The values of those losses.
        weights: What the method made of them; None on the "gram" route, which decides from gradients.
        encoders: Trainable tensors per modality, in the same order; empty for a method that needs none.
        taps: What remembers the encoders' outputs, for a method that decides there.
    """

    def __init__(
        self,
        method: Balancer,
        losses: Sequence[Tensor | None],
        extra: Tensor | None,
        seen: Seen,
        weights: Weights | None,
        encoders: Sequence[Sequence[Tensor]],
        taps: Sequence[Tap | None] = (),
    ) -> None:
        self.method, self.losses, self.extra, self.seen, self.weights = method, losses, extra, seen, weights
        self.reach = Reach(losses, extra, encoders)
        self.cut = Cut(losses, taps, self.reach) if taps else None
        self.encoder_tensors = list({id(t): t for block in self.reach.encoders for t in block}.values())

    def scalar(self, value: Tensor) -> Tensor:
        """A scalar of this value whose backward pass does the method's work."""
        return delivery.deliver(self._gradients, value, self.reach.leaves.values())

    def problems(self) -> list[str]:
        """Why this model and method do not fit, in sentences; empty when they do."""
        found = []
        tells_heads_apart = self.method.route == "fused" or (
            self.method.route == "weighted" and self.method.unimodal != "head"
        )
        if tells_heads_apart and self.reach.blurred():
            found.append(
                "the model was compiled as a whole, so that it cannot be told which heads a loss trains: compile the "
                "encoders alone (model.compile_encoders(), or torch.compile on each)"
            )
        for block, name in enumerate(self.method.modalities[: len(self.reach.encoders)]):
            if block in self.reach.frozen:
                continue
            if self.method.route in {"fused", "gram"} and not self.reach.reaches(0, block):
                found.append(f"the fused loss sends no gradient to encoder {name!r}: is it the module that ran?")
            learns_from_own = self.method.unimodal == "head" or self.method.route == "weighted"
            if learns_from_own and not self.reach.reaches(block + 1, block):
                found.append(
                    f"loss {name!r} sends no gradient to encoder {name!r}, which this method needs: compute it on the "
                    f"encoder's own features, not on detached ones (LateFusion(…, unimodal={self.method.unimodal!r}))"
                )
            if self.method.modulates and not any(map(self.method.touches, self.reach.encoders[block])):
                found.append(f"encoder {name!r} has no tensor that this method modulates; choose parameters='all'")
        if self.cut is not None and not found:
            found = self.cut.problems(self.method.modalities, type(self.method).__name__)
        return found

    def _gradients(self, scale: Tensor) -> Gradients:
        if self.weights is not None:
            return self._weighted_sum(scale, self.weights)
        return self._mixture(scale) if self.cut is None else features.mixture(self, self.cut, scale)

    def _weighted_sum(self, scale: Tensor, weights: Weights) -> Gradients:
        """Encoders learn from the fused loss, or from a weighted sum: one pass through them."""
        *others, last = delivery.run([*self.extra_pass(), *self._passes(weights)], scale)
        found = self._modulated(self._of_encoders(last), weights.encoders)
        for more in (*others, self._of_heads(last)):
            delivery.add(found, more)
        return found

    def extra_pass(self) -> list[Pass]:
        """The losses that belong to no modality, which count at weight one everywhere."""
        return [] if self.extra is None else [Pass([self.extra], None, list(self.reach.leaves.values()))]

    def _passes(self, weights: Weights) -> list[Pass]:
        reach, fused, unimodal = self.reach, self.losses[:1], self.losses[1:]
        on_heads = weights.heads if weights.heads is not None else weights.losses
        own_heads = Pass(unimodal, on_heads[1:].unbind(), reach.own_heads)
        if self.method.route == "fused":
            return [own_heads, Pass(fused, on_heads[:1].unbind(), [*reach.fused_heads, *self.encoder_tensors])]
        encoders = Pass(self.losses, weights.losses.unbind(), self.encoder_tensors)
        if self.method.unimodal == "head":
            return [Pass(self.losses, on_heads.unbind(), reach.heads), encoders]
        # The uni-modal outputs are shares of the fused head: it learns from the fused loss alone.
        return [own_heads, Pass(fused, on_heads[:1].unbind(), reach.fused_heads), encoders]

    def _modulated(self, found: Gradients, factors: Tensor | None) -> Gradients:
        """Scale the gradient of each encoder by its factor, then let the method refine it."""
        method = self.method
        if method.refines:
            (found,) = self._averaged([found])
        if method.advances or method.scales_updates:
            finite = delivery.all_finite(found.values()) if found else self.seen.fused.isfinite()
            finite = ranks.everywhere(finite, method.group)
            if method.advances:
                method.move_on(self.seen, finite)
            if factors is not None:
                method.note_factors(factors, finite)
        delivered: Gradients = {}
        for group, tensors in self._groups(found):
            gradients = [found[id(tensor)] for tensor in tensors]
            mixed = gradients
            if factors is not None and not method.scales_updates:
                # Picked one by one: a list as an index would be copied to the device, and the device would wait.
                factor = torch.stack([factors[block] for block in group]).mean()
                moved = delivery.scaled(gradients, factor)
                mixed = [m if method.touches(t) else g for t, m, g in zip(tensors, moved, gradients, strict=True)]
            if method.refines:
                mixed = method.refined(method.modalities[group[0]], mixed, [gradients])
            delivered.update((id(tensor), gradient) for tensor, gradient in zip(tensors, mixed, strict=True))
        return delivered

    def objectives(self, tensors: Sequence[Tensor], *, separate: bool) -> list[Pass]:
        """A pass for the fused loss and one for all the others, or one for each where encoders are entangled."""
        unimodal = [self.losses[1:]] if separate else [[loss] for loss in self.losses[1:]]
        return [Pass(losses, None, tensors) for losses in (self.losses[:1], *unimodal)]

    def _mixture(self, scale: Tensor) -> Gradients:
        """Encoders learn from a mixture that their gradients decide: two passes, or K + 1 where they are entangled."""
        separate = self.reach.separate()
        objectives = self.objectives([*self.reach.heads, *self.encoder_tensors], separate=separate)
        results = delivery.run([*self.extra_pass(), *objectives], scale)
        extra, results = results[: -len(objectives)], results[-len(objectives) :]
        found = self._mixed(self._averaged([self._of_encoders(result) for result in results]), separate=separate)
        for more in (*extra, *(self._of_heads(result) for result in results)):
            delivery.add(found, more)
        return found

    def _mixed(self, objectives: Sequence[Gradients], *, separate: bool) -> Gradients:
        method = self.method
        groups = list(self._groups(objectives[0]))
        parts = [[[found[id(t)] for t in tensors] for found in objectives] for _, tensors in groups]
        if not parts:
            self.fill([], None, separate=separate)
            return {}
        gram = torch.stack([delivery.gram_matrix(part) for part in parts])
        coefficients = self.decided(groups, gram, separate=separate)
        delivered: Gradients = {}
        for (group, tensors), part, weights in zip(groups, parts, coefficients.unbind(), strict=True):
            mixed = method.refined(method.modalities[group[0]], delivery.combined(part, weights), part)
            delivered.update((id(tensor), gradient) for tensor, gradient in zip(tensors, mixed, strict=True))
        return delivered

    def decided(self, groups: Sequence[Group], gram: Tensor, *, separate: bool) -> Tensor:
        """What the method makes of inner products; the table is filled with it."""
        largest = gram.diagonal(dim1=1, dim2=2).amax(dim=1)[:, None, None]
        coefficients = self.method.mix(torch.where(largest == 0, gram, gram / largest))
        self.fill(groups, coefficients, separate=separate)
        return coefficients

    def fill(self, groups: Sequence[Group], mixture: Tensor | None, *, separate: bool) -> None:
        """Keep the table of a mixture; None where there was nothing to mix."""
        known = self.seen.fused.new_zeros(0, 1) if mixture is None else mixture
        self.method.fill(self._table(groups, known, separate=separate))

    def _table(self, groups: Sequence[Group], mixture: Tensor, *, separate: bool) -> Tensor:
        """The table of a mixture; the heads learn from every loss at weight one."""
        count = len(self.method.modalities)
        table = mixture.new_zeros(count + 1, count + 1)
        table[:, -1] = 1
        for (group, _), weights in zip(groups, mixture.unbind(), strict=True):
            for block in group:
                rows = [0, block + 1] if separate else range(count + 1)
                for row, weight in zip(rows, weights.unbind(), strict=True):
                    table[row, block] = weight
        return table

    def _groups(self, found: Gradients) -> list[Group]:
        """Encoders with their tensors that have a gradient; encoders that share parameters come together."""
        together = []
        for group in self.reach.groups():
            tensors = {id(t): t for block in group for t in self.reach.encoders[block] if id(t) in found}
            if tensors:
                together.append((group, list(tensors.values())))
        return together

    def _averaged(self, results: Sequence[Gradients]) -> list[Gradients]:
        """Encoder gradients averaged over ranks, zeros where a loss does not reach: what decisions rest on."""
        keys = [id(tensor) for tensor in self.encoder_tensors]
        filled = [found.get(id(t), None) for found in results for t in self.encoder_tensors]
        likes = [tensor for _ in results for tensor in self.encoder_tensors]
        whole = [torch.zeros_like(t) if g is None else g for g, t in zip(filled, likes, strict=True)]
        averaged = ranks.mean_of_each(whole, self.method.group)
        chunks = [averaged[start : start + len(keys)] for start in range(0, len(averaged), max(len(keys), 1))]
        return [dict(zip(keys, chunk, strict=True)) for chunk in chunks] or [{} for _ in results]

    def _of_encoders(self, found: Gradients) -> Gradients:
        return {key: gradient for key, gradient in found.items() if key in self.reach.owners}

    def _of_heads(self, found: Gradients) -> Gradients:
        return {key: gradient for key, gradient in found.items() if key not in self.reach.owners}
