"""From coefficients to gradients, in one of three ways.

One weighted sum of losses (`summed`) where all parameters move alike; a pass for each column of coefficients, with
factors of encoders (`Scaled`); or a mixture of each encoder's gradients (`Mixed`) where these decide.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, TypeAlias, final

import torch
from torch import Tensor

from equipoise.balance import collectives
from equipoise.balance.attach import Attachment
from equipoise.balance.blocks import Blocks
from equipoise.balance.coefficients import Coefficients, Losses
from equipoise.balance.held import HeldDecision
from equipoise.balance.method import BalancingMethod
from equipoise.balance.passes import SECOND_DERIVATIVES, Gradients, Pass, add, deliver, hooks_disabled, run_passes
from equipoise.balance.reading import Reading
from equipoise.balance.tensors import all_finite, scaled
from equipoise.balance.updates import tensors_held

# Encoders that are decided on together, and where their gradients were taken.
EncoderGroup: TypeAlias = "tuple[list[int], list[Tensor]]"


ELSEWHERE = (
    "second derivatives: the weights of this step depend on other micro-batches or ranks, whose graph is not here; "
    "found create_graph=True: use mimo_objective on the losses of one batch instead"
)


class Step(NamedTuple):
    """The losses of one step, and the method's answer.

    Args:
        reading: The losses.
        losses: Those that decide: where a window holds the decision, those of the window.
        answer: The coefficients; None where gradients decide.
        value: Of the objective.
        extra: The sum of losses that count at weight one everywhere: a user's own, and the method's regulariser.
        regularised: Whether the method's regulariser is among them.
        held: The decision of a window that the step was taken in; None outside of one.
        unmasked: The losses of the samples before masks, by objective; None where no masks were given.
    """

    reading: Reading
    losses: Losses
    answer: Coefficients | None
    value: Tensor
    extra: Tensor | None = None
    regularised: bool = False
    held: HeldDecision | None = None
    unmasked: Sequence[Tensor | None] | None = None


# -- one sum --


@final
class _Sum(torch.autograd.Function):
    """A scalar whose gradient by each loss is its weight; differentiated again, the losses are weighed again."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, weights: Tensor, balancer: Any, step: Step, losses: Tensor) -> Tensor:
        ctx.weights, ctx.balancer, ctx.step, ctx.done = weights, balancer, step, False
        ctx.save_for_backward(losses)
        return value.to(losses.dtype, copy=True)

    @staticmethod
    def backward(ctx: Any, scale: Tensor) -> tuple[Tensor | None, ...]:  # ty: ignore[incompatible-method-override]
        (losses,), step, weights = ctx.saved_tensors, ctx.step, ctx.weights
        if torch.is_grad_enabled():  # second derivatives are wanted, and weights depend on losses
            again = _given(_column(_weighed_again(ctx.balancer, step, losses), step), step)
            weights = weights + (again - again.detach())  # the state may have moved since
        if not ctx.done and ctx.balancer.sees_backward(step.held):  # once, however many backward passes there are
            ctx.done = True
            ctx.balancer.backward_of_sum(step.losses, scale, step.held)
        return None, None, None, None, weights.to(scale.dtype) * scale


def _weighed_again(balancer: Any, step: Step, losses: Tensor) -> Coefficients:
    """Return the answer to the losses of a step with their graph, those that were given; for second derivatives."""
    if step.regularised:
        raise RuntimeError(SECOND_DERIVATIVES)
    values, given = list(step.losses.all.unbind()), losses.unbind()
    places = [place for place, one in enumerate(step.reading.scalars) if one is not None]
    for place, one in zip(places, given, strict=True):
        values[place] = one.to(values[place].dtype)
    again = balancer.weigh_again(step.losses, torch.stack(values))
    depends = any(part.requires_grad for part in again.parts)
    if depends and (step.held is not None or collectives.size(balancer.group) > 1):
        raise RuntimeError(ELSEWHERE)
    return again


def summed(balancer: BalancingMethod, step: Step) -> Tensor:
    """Return a scalar of the objective's value whose gradient is the weighted sum of the losses' gradients."""
    assert step.answer is not None
    total = _Sum.apply(step.value, _given(_column(step.answer, step), step), balancer, step, step.reading.stacked)
    return total if step.extra is None else total + step.extra


def _column(answer: Coefficients, step: Step) -> Tensor:
    """Return the weight of every loss where one sum serves all parameters."""
    if not answer.is_alone:
        return answer.encoders
    # What the fused loss reaches learns from it alone, and the other losses reach nothing of that.
    own = answer.own_heads
    others = answer.encoders.new_zeros(len(step.reading.scalars) - 1) if own is None else own[1:]
    return torch.cat([answer.encoders, others])


def _given(weights: Tensor, step: Step) -> Tensor:
    """Return the weights of the losses that were given."""
    scalars = step.reading.scalars
    if len(weights) == len(step.reading.stacked):
        return weights
    return torch.stack([weights[place] for place, one in enumerate(scalars) if one is not None])


# -- passes --


class Delivery(ABC):
    """One step that takes gradients block by block.

    Args:
        balancer: Whose step it is.
        step: The losses and the answer.
        blocks: The parameters.
        attachment: The model; None where encoders need not be known.
    """

    def __init__(self, balancer: BalancingMethod, step: Step, blocks: Blocks, attachment: Attachment | None) -> None:
        self.balancer, self.step, self.blocks, self.attachment = balancer, step, blocks, attachment
        self.names, self.scalars = balancer.modalities, step.reading.scalars
        self.updates = attachment.updates if attachment is not None else []
        self._moved = False

    def scalar(self) -> Tensor:
        """Return a scalar of the objective's value whose backward pass does the work."""
        step = self.step
        value = step.value if step.extra is None else step.value + step.extra.detach()
        return deliver(self._deliver, value, self.blocks.leaves.values(), self.is_linear)

    def is_linear(self) -> bool:
        """Return True if gradients are a fixed linear map of those of the losses, which can be differentiated again."""
        answer, balancer = self.step.answer, self.balancer
        if answer is None or not answer.moves_alike or balancer.transforms:
            return False
        again = _weighed_again(balancer, self.step, self.step.reading.stacked)
        return not any(part.requires_grad for part in again.parts)

    def _deliver(self, scale: Tensor, keep_graph: bool) -> Gradients:
        with hooks_disabled(self.blocks.leaves.values()):
            gradients = self.gradients(scale, keep_graph=keep_graph)
        self._moved = True
        return gradients

    @abstractmethod
    def gradients(self, scale: Tensor, *, keep_graph: bool) -> Gradients:
        """Compute the gradient of every leaf, times the factor that arrives from above."""

    def problems(self) -> list[str]:
        """Return why the losses of this step cannot be delivered so."""
        return []

    def extra_pass(self) -> list[Pass]:
        """Return the pass of the losses that count at weight one everywhere."""
        return [] if self.step.extra is None else [Pass([self.step.extra], None, list(self.blocks.leaves.values()))]

    def move(self, gradients: Iterable[Tensor], factors: Tensor | None = None) -> None:
        """Move the method's state on, and note the factors for the optimisers, once for each call of the balancer."""
        balancer = self.balancer
        sees = balancer.sees_backward(self.step.held)
        if self._moved or not (sees or (factors is not None and self.updates)):
            return
        taken = list(gradients)
        finite = all_finite(taken) if taken else self.step.losses.fused.isfinite()
        finite = collectives.all_true(finite, balancer.group)
        if sees:
            balancer.backward_done(self.step.losses, finite, self.step.held)
        if factors is not None:
            for update in self.updates:
                update.note(dict(zip(self.names, factors.unbind(), strict=True)), finite)

    def averaged(self, results: Sequence[Gradients], tensors: Sequence[Tensor]) -> list[Gradients]:
        """Average gradients over ranks, zeros where a loss does not reach: what decisions rest on."""
        whole = [result[id(t)] if id(t) in result else torch.zeros_like(t) for result in results for t in tensors]
        means = iter(collectives.mean_of_each(whole, self.balancer.group))
        return [{id(tensor): next(means) for tensor in tensors} for _ in results]

    def groups(self, gradients: Gradients) -> list[EncoderGroup]:
        """Return encoders with their tensors that have a gradient; encoders that share parameters come together."""
        found = [(group, self.blocks.tensors_of(group)) for group in self.blocks.groups()]
        found = [(group, [tensor for tensor in own if id(tensor) in gradients]) for group, own in found]
        return [(group, own) for group, own in found if own]


@final
class Scaled(Delivery):
    """A pass for each column of the answer, then a factor for each encoder."""

    def passes(self) -> tuple[list[Pass], list[Pass]]:
        """Return the passes through heads alone, and those that go through encoders."""
        answer, blocks = self.step.answer, self.blocks
        assert answer is not None
        one = answer.encoders if answer.encoders.dim() == 1 else None
        fused = one if answer.fused_head is None else answer.fused_head
        trunk = fused if answer.trunk is None else answer.trunk
        own = fused if answer.own_heads is None else answer.own_heads
        columns: dict[int, tuple[Tensor, list[Tensor]]] = {}
        for column, tensors in ((own, blocks.own_heads), (fused, blocks.fused_head), (trunk, blocks.trunk)):
            assert column is not None
            columns.setdefault(id(column), (column, []))[1].extend(tensors)
        if one is not None:
            with_encoders = columns.pop(id(one), (one, []))[1]
            through = [self._pass(one, [*with_encoders, *blocks.encoder_tensors])]
        else:  # encoders that share parameters have the mean of their columns
            each, groups, through = list(answer.encoders.unbind(dim=1)), blocks.groups(), []
            for group in groups:
                mean = torch.stack([each[block] for block in group]).mean(dim=0)
                through.append(self._pass(mean, blocks.tensors_of(group)))
                for block in group:
                    each[block] = mean
            if len(groups) < len(each):
                self.balancer.answered = answer._replace(encoders=torch.stack(each, dim=1))
        return [self._pass(*pair) for pair in columns.values()], through

    def _pass(self, column: Tensor, tensors: Sequence[Tensor]) -> Pass:
        return Pass(self.scalars[: len(column)], column.unbind(), tensors)

    def gradients(self, scale: Tensor, *, keep_graph: bool) -> Gradients:
        """Compute the sums, scale each encoder by its factor, and let the method transform it."""
        balancer, blocks = self.balancer, self.blocks
        through_heads, through_encoders = self.passes()
        others = run_passes([*self.extra_pass(), *through_heads], scale, keep_graph=True)
        extra = others.pop(0) if self.step.extra is not None else {}
        result = add(*run_passes(through_encoders, scale, keep_graph=keep_graph))
        owned = {id(tensor) for tensor in blocks.encoder_tensors}
        encoders = {key: gradient for key, gradient in result.items() if key in owned}
        heads = add({key: gradient for key, gradient in result.items() if key not in owned}, *others)
        if balancer.transforms:
            (encoders,) = self.averaged([encoders], blocks.encoder_tensors)
        factors = self._factors()
        self.move((one for each in (encoders, heads, extra) for one in each.values()), factors)
        if factors is None and not balancer.transforms:
            return add(encoders, extra, heads)
        # The factor of these acts on the optimiser's update and not on the gradient.
        later = {id(tensor) for update in self.updates for tensor in tensors_held(update.optimizer)}
        if factors is not None:
            self._scale_head_parts(heads, factors, later)
        delivered: Gradients = {}
        for group, tensors in self.groups(encoders):
            changed = own = [encoders[id(tensor)] for tensor in tensors]
            if factors is not None and not later.issuperset(map(id, tensors)):
                moved = scaled(own, factors[group[0]])
                changed = [old if id(t) in later else new for t, new, old in zip(tensors, moved, own, strict=True)]
            changed = balancer.transformed(self.names[group[0]], changed, [own])
            delivered.update(zip(map(id, tensors), changed, strict=True))
        return add(delivered, extra, heads)

    def _factors(self) -> Tensor | None:
        """Return the factor of each encoder; encoders that share parameters have the mean of theirs."""
        answer = self.step.answer
        assert answer is not None
        shared = [group for group in self.blocks.groups() if len(group) > 1]
        if answer.factors is None or not shared:
            return answer.factors
        # Picked one by one: a list as an index would be copied to the device, and the device would wait.
        factors, means = answer.factors.unbind(), {}
        for group in shared:
            means |= dict.fromkeys(group, torch.stack([factors[block] for block in group]).mean())
        together = torch.stack([means.get(block, factor) for block, factor in enumerate(factors)])
        self.balancer.answered = answer._replace(factors=together)
        return together

    def _scale_head_parts(self, heads: Gradients, factors: Tensor, later: set[int]) -> None:
        """Scale each modality's part of the fused head as its encoder, where it belongs to the block."""
        parts = self.attachment.head_parts() if self.attachment is not None else {}
        copied: set[int] = set()
        for block, name in enumerate(self.names):
            for part in parts.get(name, []):
                key = id(part.tensor)
                if key not in heads or key in later:
                    continue
                if key not in copied:
                    heads[key] = heads[key].clone()
                    copied.add(key)
                part.of(heads[key]).mul_(factors[block].to(heads[key].dtype))
