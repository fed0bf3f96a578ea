"""From coefficients to gradients, in one of three ways.

One weighted sum of losses (`summed`) where all parameters move alike; a pass for each column of coefficients, with
factors of encoders (`Scaled`); or a mixture of each encoder's gradients (`Mixed`) where these decide.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any, NamedTuple, Protocol, TypeAlias, cast, final

import torch
from torch import Tensor

from equipoise.balance import collectives
from equipoise.balance.attach import Attachment
from equipoise.balance.blocks import Blocks
from equipoise.balance.coefficients import TRUNK, Coefficients, Losses
from equipoise.balance.features import FeatureCut
from equipoise.balance.held import HeldDecision
from equipoise.balance.method import Method
from equipoise.balance.passes import SECOND_DERIVATIVES, Gradients, Pass, add, deliver, hooks_disabled, run_passes
from equipoise.balance.reading import Reading
from equipoise.balance.tensors import all_finite, combined, gram_matrix, scaled, wide
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
            weights = _given(_column(_weighed_again(ctx.balancer, step, losses), step), step)
        if not ctx.done and ctx.balancer.sees_backward(step.held):  # once, however many backward passes there are
            ctx.done = True
            ctx.balancer.backward_of_sum(step.losses, scale, step.held)
        return None, None, None, None, weights.to(scale.dtype) * scale


def _weighed_again(balancer: Any, step: Step, losses: Tensor) -> Coefficients:
    """Return the answer to the losses of a step with their graph, those that were given; for second derivatives."""
    if step.held is not None or step.regularised:
        raise RuntimeError(ELSEWHERE if step.held is not None else SECOND_DERIVATIVES)
    values, given = list(step.losses.all.unbind()), losses.unbind()
    places = [place for place, one in enumerate(step.reading.scalars) if one is not None]
    for place, one in zip(places, given, strict=True):
        values[place] = one.to(values[place].dtype)
    return balancer.weigh_again(step.losses, torch.stack(values))


def summed(balancer: Method, step: Step) -> Tensor:
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

    def __init__(self, balancer: Method, step: Step, blocks: Blocks, attachment: Attachment | None) -> None:
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
        return not any(part is not None and part.requires_grad for part in again[:4])

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
            each = answer.encoders.unbind(dim=1)
            through = [
                self._pass(torch.stack([each[block] for block in group]).mean(dim=0), blocks.tensors_of(group))
                for group in blocks.groups()
            ]
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


class Gram(NamedTuple):
    """Inner products of the gradients of each block.

    Args:
        products: Shape [blocks, n, n].
        objectives: Of each block, the numbers of its n objectives in the order of the table; the fused one comes first.
            n is 2 (fused, own) where each loss reaches its own encoder alone, else K + 1, as it is at a trunk.
    """

    products: Tensor
    objectives: tuple[tuple[int, ...], ...]

    def relative(self) -> Tensor:
        """Return the products of each block in units of its largest."""
        largest = self.products.diagonal(dim1=1, dim2=2).amax(dim=1)[:, None, None]
        return torch.where(largest == 0, self.products, self.products / largest)

    def of(self, values: Tensor) -> Tensor:
        """Arrange one value per objective, [K + 1], as the objectives of each block, [blocks, n]."""
        each = values.unbind()
        return torch.stack([torch.stack([each[number] for number in row]) for row in self.objectives])


class Mixes(Protocol):
    """A method that mixes gradients, as `Mixed` calls it."""

    def mixed(self, gram: Gram, losses: Losses) -> Tensor:
        """Return the coefficients of the gradients of each block."""
        ...


@final
class Mixed(Delivery):
    """A mixture of each encoder's gradients that their inner products decide; heads learn from all losses alike.

    Decided at parameters, it takes two passes through encoders, or K + 1 where they are entangled. Decided at features,
    where encoders end, one pass goes on from there: with z = E(x; θ) the features of a batch and J = ∂z/∂θ, the
    gradients at an encoder's parameters are Jᵀv₁, Jᵀv₂, …, where v₁, v₂, … are those at z. Inner products at parameters
    are vᵢᵀ(JJᵀ)vⱼ, inner products at features vᵢᵀvⱼ: a method decides alike by both wherever JJᵀ acts as a multiple of
    the identity on the vᵢ.

    A trunk that uni-modal losses reach learns from a mixture of all K + 1 gradients, decided at its parameters; one
    that they do not reach learns as the fused head does.

    Args:
        arguments: Those of `Delivery`.
    """

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.separate = self.blocks.separate()
        self.shares_trunk = self.blocks.shares_trunk()
        self.cut: FeatureCut | None = None
        if self.balancer.at == "features" and self.attachment is not None:
            hooks = self.attachment.output_hooks()
            self._hooks = [hooks[name] for name in self.names if name in hooks]
            outputs = [[t for t in hook.outputs if t.grad_fn is not None] if hook else [] for hook in self._hooks]
            self.cut = FeatureCut(self.scalars, outputs, self.blocks)

    def problems(self) -> list[str]:
        """Return why the step cannot be decided at features."""
        instead = f"type {type(self.balancer).__name__}(at='parameters')"
        return [] if self.cut is None else self.cut.problems(self.names, instead)

    def gradients(self, scale: Tensor, *, keep_graph: bool) -> Gradients:
        """Mix the gradients of the objectives at each encoder, or where it ends."""
        blocks, cut = self.blocks, self.cut
        ends = blocks.encoder_tensors if cut is None else cut.tensors
        tensors = [*blocks.fused_head, *blocks.own_heads, *blocks.trunk, *ends]
        # One pass serves all uni-modal losses where no parameter has to tell them apart.
        unimodal = [self.scalars[1:]] if self._one_sum else [[loss] for loss in self.scalars[1:]]
        passes = [Pass(losses, None, tensors) for losses in (self.scalars[:1], *unimodal)]
        # The hooks of features are run by the pass that goes on from there.
        with nullcontext() if cut is None else hooks_disabled(cut.tensors):
            results = run_passes([*self.extra_pass(), *passes], scale, keep_graph=keep_graph or cut is not None)
        extra = results.pop(0) if self.step.extra is not None else {}
        trunk = self._take(results, blocks.trunk) if self.shares_trunk else []
        at_ends = {id(tensor) for tensor in ends}
        heads = add(extra, *({key: one for key, one in result.items() if key not in at_ends} for result in results))
        objectives = self.averaged(results, ends) if cut is None else results
        shared = [gradient for part in trunk for gradient in part]
        self.move([*heads.values(), *shared, *(one for result in objectives for one in result.values())])
        groups = self.groups(objectives[0]) if cut is None else cut.groups()
        mix = self._at_parameters if cut is None else partial(self._at_features, keep_graph=keep_graph)
        return add(mix(groups, objectives, trunk), heads)

    @property
    def _one_sum(self) -> bool:
        return self.separate and not self.shares_trunk

    def _take(self, results: Sequence[Gradients], tensors: Sequence[Tensor]) -> list[list[Tensor]]:
        """Take the gradients at some tensors out of those of each objective, averaged over ranks."""
        own = self.averaged(results, tensors)
        for result in results:
            for tensor in tensors:
                result.pop(id(tensor), None)
        return [[gradients[id(tensor)] for tensor in tensors] for gradients in own]

    def _own(self, objectives: Sequence[Gradients], group: Sequence[int]) -> list[Gradients]:
        """Return the gradients that are mixed at some encoders."""
        if not self.separate:
            return list(objectives)
        return [objectives[0], objectives[1 if self._one_sum else group[0] + 1]]

    def _at_parameters(
        self, groups: Sequence[EncoderGroup], objectives: Sequence[Gradients], trunk: Sequence[Sequence[Tensor]]
    ) -> Gradients:
        parts = [[[one[id(t)] for t in tensors] for one in self._own(objectives, group)] for group, tensors in groups]
        mixtures, of_trunk = self._decided(groups, [gram_matrix(part) for part in parts], trunk)
        delivered: Gradients = {}
        if of_trunk is not None:
            mixed = self.balancer.transformed(TRUNK, combined(trunk, of_trunk), trunk)
            delivered.update(zip(map(id, self.blocks.trunk), mixed, strict=True))
        for (group, tensors), part, coefficients in zip(groups, parts, mixtures, strict=True):
            mixed = self.balancer.transformed(self.names[group[0]], combined(part, coefficients), part)
            delivered.update(zip(map(id, tensors), mixed, strict=True))
        return delivered

    def _at_features(
        self,
        groups: Sequence[EncoderGroup],
        objectives: Sequence[Gradients],
        trunk: Sequence[Sequence[Tensor]],
        *,
        keep_graph: bool,
    ) -> Gradients:
        rows = [torch.stack([_row(tensors, one) for one in self._own(objectives, group)]) for group, tensors in groups]
        # Each rank has samples of its own, so that the inner products over all samples are sums over ranks.
        grams = list(collectives.mean_of_each([row @ row.T for row in rows], self.balancer.group)) if rows else []
        mixtures, of_trunk = self._decided(groups, grams, trunk)
        # Not transformed: at features, a method says all of it by its coefficients.
        combination = [] if of_trunk is None else combined(trunk, of_trunk)
        delivered = dict(zip(map(id, self.blocks.trunk if combination else ()), combination, strict=True))
        mixed = [
            piece.view_as(tensor).to(tensor.dtype)
            for (_, tensors), row, coefficients in zip(groups, rows, mixtures, strict=True)
            for tensor, piece in zip(tensors, (coefficients @ row).split([t.numel() for t in tensors]), strict=True)
        ]
        leaves = self.blocks.encoder_tensors
        if mixed and leaves:  # not all are frozen
            features = [tensor for _, tensors in groups for tensor in tensors]
            gradients = torch.autograd.grad(features, leaves, mixed, keep_graph, allow_unused=True)
            delivered |= {id(t): g for t, g in zip(leaves, gradients, strict=True) if g is not None}
        if not keep_graph and self.cut is not None:  # outputs that were used would hold on to the graph of the step
            used = {id(tensor) for tensors in self.cut.features for tensor in tensors}
            for hook in self._hooks:
                if hook is not None and any(id(tensor) in used for tensor in hook.outputs):
                    hook.outputs = []
        return delivered

    def _decided(
        self, groups: Sequence[EncoderGroup], grams: Sequence[Tensor], trunk: Sequence[Sequence[Tensor]]
    ) -> tuple[list[Tensor], Tensor | None]:
        """Return the method's coefficients for each group, and for a trunk that is shared; keep them for the table."""
        every = tuple(range(1 + len(self.names)))
        numbers = tuple((0, group[0] + 1) if self.separate else every for group, _ in groups)
        method, losses = cast("Mixes", self.balancer), self.step.losses
        mixtures = list(method.mixed(Gram(torch.stack(list(grams)), numbers), losses)) if grams else []
        of_trunk = method.mixed(Gram(gram_matrix(trunk)[None], (every,)), losses)[0] if trunk else None
        like = next(iter(mixtures), self.step.losses.fused)
        owners = [group for group, _ in groups]
        self.balancer.answered = partial(_answer, like, len(self.names), owners, numbers, mixtures, of_trunk)
        return mixtures, of_trunk


def _answer(
    like: Tensor,
    modalities: int,
    groups: Sequence[Sequence[int]],
    numbers: Sequence[Sequence[int]],
    mixtures: Sequence[Tensor],
    trunk: Tensor | None,
) -> Coefficients:
    """Return the coefficients that mixtures stand for. Heads learn from every loss at weight one."""
    encoders = like.new_zeros(1 + modalities, modalities)
    for group, objectives, mixture in zip(groups, numbers, mixtures, strict=True):
        for row, coefficient in zip(objectives, mixture.unbind(), strict=True):
            for block in group:
                encoders[row, block] = coefficient
    return Coefficients(encoders, fused_head=like.new_ones(1 + modalities), trunk=trunk)


def _row(tensors: Sequence[Tensor], gradients: Gradients) -> Tensor:
    """Lay the gradient of one objective at all features of a group side by side, in float64: features are small."""
    pieces = [gradients.get(id(tensor), torch.zeros_like(tensor)) for tensor in tensors]
    return torch.cat([piece.detach().reshape(-1).to(wide(tensors)) for piece in pieces])
