"""The ways from losses to gradients: encoders learn from the fused loss, from a weighted sum, or from a mixture."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, final

import torch
from torch import Tensor

from equipoise.balance import autograd, collectives, features
from equipoise.balance.autograd import Gradients, Pass
from equipoise.balance.features import Cut, Tap
from equipoise.balance.losses import LossValues
from equipoise.balance.reach import Dependence, Reach, hooks_disabled

if TYPE_CHECKING:
    from equipoise.balance.balancer import Balancer

Group: TypeAlias = "tuple[list[int], list[Tensor]]"
"""Encoders that are decided on together, and where their gradients were taken."""


class Weights(NamedTuple):
    """A method's answer to `weigh`: encoder b moves along encoders[b] · Σ_i losses[i] · ∇_b f_i.

    Args:
        losses: Weight of the fused loss and of each uni-modal one, shape [K + 1].
        encoders: Factor on each encoder's gradient, shape [K]; None means ones.
        heads: Weight of each loss on the heads, shape [K + 1]; None means the same as ``losses``.
        value: What the returned scalar says; None means Σ_i losses[i] · f_i.
        recompute: Computes ``losses`` from the fused and the uni-modal losses, [K + 1], with their graph, where it
            depends on them; second derivatives are exact with it. None means that ``losses`` is constant.
    """

    losses: Tensor
    encoders: Tensor | None = None
    heads: Tensor | None = None
    value: Tensor | None = None
    recompute: Callable[[Tensor], Tensor] | None = None

    @staticmethod
    def joint(values: LossValues, encoders: Tensor | None = None) -> Weights:
        """Joint training: encoders learn from the fused loss, times a factor each; heads from every loss at one."""
        losses = torch.cat([torch.ones_like(values.fused)[None], torch.zeros_like(values.unimodal)])
        return Weights(losses, encoders=encoders, heads=torch.ones_like(losses), value=values.fused)

    @property
    def on_heads(self) -> Tensor:
        """The weight of each loss on the heads."""
        return self.losses if self.heads is None else self.heads

    def held(self) -> Weights:
        """The same weights, which depend on losses whose graph is not here, and so refuse second derivatives."""
        return self if self.recompute is None else self._replace(recompute=_refuse)

    def table(self, modalities: int) -> Tensor:
        """The coefficients c[objective, block] these weights stand for."""
        factors = self.encoders if self.encoders is not None else self.losses.new_ones(modalities)
        return torch.cat([self.losses[:, None] * factors, self.on_heads[:, None]], dim=1)


def _refuse(losses: Tensor) -> Tensor:  # noqa: ARG001
    msg = (
        "second derivatives: the weights of this step depend on other micro-batches or ranks, whose graph is not here; "
        "found create_graph=True: use mimo_objective on the losses of one batch instead"
    )
    raise RuntimeError(msg)


@final
@dataclass
class Held:
    """One decision for several micro-batches.

    Args:
        values: The losses of the whole window.
        weights: What the method made of them; None to let every micro-batch decide for itself.
        advanced: Whether the method's state has moved on for this window.
        scored: Whether scores were given for it.
        record: The losses and the scores of the micro-batches that came by.
    """

    values: LossValues | None = None
    weights: Weights | None = None
    advanced: bool = False
    scored: bool = False
    record: list[tuple[dict[str, Tensor], dict[str, Tensor] | None]] = field(default_factory=list)


@final
class _WeightedSum(torch.autograd.Function):
    """A scalar whose gradient by each part is its weight, and whose second derivatives are those of the weights."""

    @staticmethod
    def forward(
        ctx: Any, value: Tensor, weights: Tensor, recompute: Callable[[Tensor], Tensor], *parts: Tensor
    ) -> Tensor:
        ctx.weights, ctx.recompute = weights, recompute
        ctx.save_for_backward(*parts)
        return value.to(parts[0].dtype, copy=True)

    @staticmethod
    def backward(ctx: Any, scale: Tensor) -> tuple[Tensor | None, ...]:  # ty: ignore[incompatible-method-override]
        parts = ctx.saved_tensors
        weights = ctx.recompute(torch.stack(parts)) if torch.is_grad_enabled() else ctx.weights
        gradients = (weights.to(scale.dtype) * scale).unbind()
        return (None, None, None, *(g.to(part.dtype) for g, part in zip(gradients, parts, strict=True)))


def weighted_sum(scalars: Sequence[Tensor | None], extra: Tensor | None, weights: Weights, value: Tensor) -> Tensor:
    """Return a scalar of the objective's value whose gradient is the weighted sum of the losses' gradients.

    Args:
        scalars: The fused loss and one per modality; None where not given, or where it is to move nothing.
        extra: The sum of losses that belong to no modality.
        weights: The method's decision.
        value: Of the objective.
    """
    chosen = weights.on_heads
    parts = [scalar for scalar in scalars if scalar is not None]
    if weights.recompute is not None:
        result = _WeightedSum.apply(value, chosen, weights.recompute, *parts)
    else:
        stacked = torch.stack(parts)
        given = [place for place, scalar in enumerate(scalars) if scalar is not None]
        picked = chosen if len(given) == len(chosen) else torch.stack([chosen[place] for place in given])
        total = torch.dot(picked.to(stacked.dtype), stacked)
        result = total + (value - total).detach()
    return result if extra is None else result + extra


@final
class Step:
    """One step on the gradient path.

    Args:
        method: The balancer whose step it is.
        losses: The fused scalar (None where not given) and one per modality.
        extra: The sum of losses that belong to no modality.
        values: The values of those losses.
        weights: What the method made of them; None on the "gram" route, which decides from gradients.
        encoders: Trainable tensors per modality, in the same order; empty for a method that needs none.
        dependence: Remembers which connected parameters a loss really depends on.
        taps: What remembers the encoders' outputs, for a method that decides there.
    """

    def __init__(
        self,
        method: Balancer,
        losses: Sequence[Tensor | None],
        extra: Tensor | None,
        values: LossValues,
        weights: Weights | None,
        encoders: Sequence[Sequence[Tensor]],
        dependence: Dependence,
        taps: Sequence[Tap | None] = (),
    ) -> None:
        self.method, self.losses, self.extra, self.values, self.weights = method, losses, extra, values, weights
        self.reach = Reach(losses, extra, encoders, dependence)
        self.cut = Cut(losses, taps, self.reach) if taps else None
        self._noted = False
        self.encoder_tensors = list({id(t): t for block in self.reach.encoders for t in block}.values())

    def scalar(self, value: Tensor) -> Tensor:
        """A scalar of this value whose backward pass does the method's work."""
        return autograd.deliver(
            self._gradients, value, self.reach.leaves.values(), linear=not self.method.needs_encoders
        )

    def problems(self) -> list[str]:
        """Why this model and method do not fit, in sentences; empty when they do."""
        found = []
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

    def _gradients(self, scale: Tensor, keep_graph: bool) -> Gradients:
        with hooks_disabled(self.reach.leaves.values()):
            if self.weights is not None:
                found = self._weighted_sum(scale, self.weights, keep_graph=keep_graph)
            elif self.cut is None:
                found = self._mixture(scale, keep_graph=keep_graph)
            else:
                found = features.mixture(self, self.cut, scale, keep_graph=keep_graph)
        self._noted = True
        return found

    def _weighted_sum(self, scale: Tensor, weights: Weights, *, keep_graph: bool) -> Gradients:
        """Encoders learn from the fused loss, or from a weighted sum: one pass through them."""
        passes = [*self.extra_pass(), *self._passes(weights)]
        *others, last = autograd.run(passes, scale, keep_graph=keep_graph)
        found, heads = self._of_encoders(last), self._of_heads(last)
        if self.method.refines:
            (found,) = self._averaged([found])
        factors = self._group_means(weights) if self.method.modulates else None
        self.advance([gradient for each in (found, heads, *others) for gradient in each.values()], factors)
        untouched = self.method.on_updates()
        if factors is not None:
            self._scale_head_parts(heads, factors, untouched)
        if factors is not None or self.method.refines:
            found = self._modulated(found, factors, untouched)
        for more in (*others, heads):
            autograd.add(found, more)
        return found

    def extra_pass(self) -> list[Pass]:
        """The losses that belong to no modality, which count at weight one everywhere."""
        return [] if self.extra is None else [Pass([self.extra], None, list(self.reach.leaves.values()))]

    def _passes(self, weights: Weights) -> list[Pass]:
        reach, fused, unimodal = self.reach, self.losses[:1], self.losses[1:]
        on_heads = weights.on_heads
        if self.method.route == "fused":
            beside = Pass(unimodal, on_heads[1:].unbind(), reach.beside)
            return [beside, Pass(fused, on_heads[:1].unbind(), [*reach.fused_heads, *self.encoder_tensors])]
        encoders = Pass(self.losses, weights.losses.unbind(), self.encoder_tensors)
        if self.method.unimodal == "head":
            return [Pass(self.losses, on_heads.unbind(), reach.heads), encoders]
        # The uni-modal outputs are shares of the fused head: it learns from the fused loss alone.
        own_heads = Pass(unimodal, on_heads[1:].unbind(), reach.own_heads)
        return [own_heads, Pass(fused, on_heads[:1].unbind(), reach.fused_heads), encoders]

    def advance(self, gradients: Sequence[Tensor], factors: Tensor | None = None) -> None:
        """Move the method's state on, and note the factors for the optimiser, once for each call of the balancer."""
        method = self.method
        if self._noted or not (method.advances or (factors is not None and method.scales_updates)):
            return
        finite = autograd.all_finite(gradients) if gradients else self.values.fused.isfinite()
        finite = collectives.all_true(finite, method.group)
        if method.advances:
            method.move_on(self.values, finite)
        if factors is not None:
            method.note_factors(factors, finite)

    def _group_means(self, weights: Weights) -> Tensor | None:
        """The factor of each encoder; encoders that share parameters get the mean of theirs."""
        shared = [group for group in self.reach.groups() if len(group) > 1]
        if weights.encoders is None or not shared:
            return weights.encoders
        # Picked one by one: a list as an index would be copied to the device, and the device would wait.
        factors = list(weights.encoders.unbind())
        for group in shared:
            mean = torch.stack([factors[block] for block in group]).mean()
            for block in group:
                factors[block] = mean
        together = torch.stack(factors)
        self.method.fill(weights._replace(encoders=together).table(len(factors)))
        return together

    def _modulated(self, found: Gradients, factors: Tensor | None, untouched: set[int]) -> Gradients:
        """Scale the gradient of each encoder by its factor, but for some tensors, then let the method refine it."""
        method = self.method
        delivered: Gradients = {}
        for group, tensors in self._groups(found):
            gradients = [found[id(tensor)] for tensor in tensors]
            mixed = gradients
            scales = [id(tensor) not in untouched and method.touches(tensor) for tensor in tensors]
            if factors is not None and any(scales):
                moved = autograd.scaled(gradients, factors[group[0]])
                mixed = [m if scale else g for m, g, scale in zip(moved, gradients, scales, strict=True)]
            if method.refines:
                mixed = method.refined(method.modalities[group[0]], mixed, [gradients])
            delivered.update((id(tensor), gradient) for tensor, gradient in zip(tensors, mixed, strict=True))
        return delivered

    def _scale_head_parts(self, heads: Gradients, factors: Tensor, untouched: set[int]) -> None:
        """Scale each modality's part of the fused head as its encoder, where the method does so."""
        copied: set[int] = set()
        for block, parts in enumerate(self.method.head_parts()):
            for part in parts:
                key = id(part.tensor)
                if key not in heads or key in untouched or not self.method.touches(part.tensor):
                    continue
                if key not in copied:
                    heads[key] = heads[key].clone()
                    copied.add(key)
                part.of(heads[key]).mul_(factors[block].to(heads[key].dtype))

    def objectives(self, tensors: Sequence[Tensor], *, separate: bool) -> list[Pass]:
        """A pass for the fused loss and one for all the others, or one for each where encoders are entangled."""
        unimodal = [self.losses[1:]] if separate else [[loss] for loss in self.losses[1:]]
        return [Pass(losses, None, tensors) for losses in (self.losses[:1], *unimodal)]

    def _mixture(self, scale: Tensor, *, keep_graph: bool) -> Gradients:
        """Encoders learn from a mixture that their gradients decide: two passes, or K + 1 where they are entangled."""
        separate = self.reach.separate()
        objectives = self.objectives([*self.reach.heads, *self.encoder_tensors], separate=separate)
        results = autograd.run([*self.extra_pass(), *objectives], scale, keep_graph=keep_graph)
        extra, results = results[: -len(objectives)], results[-len(objectives) :]
        heads: Gradients = {}
        for more in (*extra, *(self._of_heads(result) for result in results)):
            autograd.add(heads, more)
        averaged = self._averaged([self._of_encoders(result) for result in results])
        self.advance([*heads.values(), *(gradient for result in averaged for gradient in result.values())])
        return autograd.add(self._mixed(averaged, separate=separate), heads)

    def _mixed(self, objectives: Sequence[Gradients], *, separate: bool) -> Gradients:
        method = self.method
        groups = list(self._groups(objectives[0]))
        parts = [[[found[id(t)] for t in tensors] for found in objectives] for _, tensors in groups]
        if not parts:
            self.fill([], None, separate=separate)
            return {}
        gram = torch.stack([autograd.gram_matrix(part) for part in parts])
        coefficients = self.decided(groups, gram, separate=separate)
        delivered: Gradients = {}
        for (group, tensors), part, weights in zip(groups, parts, coefficients.unbind(), strict=True):
            mixed = method.refined(method.modalities[group[0]], autograd.combined(part, weights), part)
            delivered.update((id(tensor), gradient) for tensor, gradient in zip(tensors, mixed, strict=True))
        return delivered

    def decided(self, groups: Sequence[Group], gram: Tensor, *, separate: bool) -> Tensor:
        """What the method makes of inner products; the table is filled with it."""
        largest = gram.diagonal(dim1=1, dim2=2).amax(dim=1)[:, None, None]
        coefficients = self.method.mixed(torch.where(largest == 0, gram, gram / largest))
        self.fill(groups, coefficients, separate=separate)
        return coefficients

    def fill(self, groups: Sequence[Group], mixture: Tensor | None, *, separate: bool) -> None:
        """Keep the table of a mixture; None where there was nothing to mix."""
        known = self.values.fused.new_zeros(0, 1) if mixture is None else mixture
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
        averaged = collectives.mean_of_each(whole, self.method.group)
        chunks = [averaged[start : start + len(keys)] for start in range(0, len(averaged), max(len(keys), 1))]
        return [dict(zip(keys, chunk, strict=True)) for chunk in chunks] or [{} for _ in results]

    def _of_encoders(self, found: Gradients) -> Gradients:
        return {key: gradient for key, gradient in found.items() if key in self.reach.owners}

    def _of_heads(self, found: Gradients) -> Gradients:
        return {key: gradient for key, gradient in found.items() if key not in self.reach.owners}
